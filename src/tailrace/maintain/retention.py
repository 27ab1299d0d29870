"""Retention: which segments of a topic may go, decided from plain values; nothing here touches a disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailrace.arguments import format_duration, format_size
from tailrace.settings import segment_age_of

if TYPE_CHECKING:
    from tailrace.settings import TopicSettings

# With retain="read" an active segment that was read is closed when it is so old, or so large.
READ_AGE_US = 60_000_000
READ_BYTES = 1 << 20
# A time behind all others: of what is still written, and of what cannot be read.
LAST_US = (1 << 63) - 1

# By group, its stored cursor in each partition.
Cursors = Mapping[str, Sequence[int]]


class Rule(NamedTuple):
    """The settings of a topic that say what may go, in microseconds and bytes; None is no limit."""

    retain_us: int | None = None
    retain_bytes: int | None = None
    # Due when every group that reads the topic has read it.
    read: bool = False
    # What is due waits for all groups that read the topic, or for these.
    keep_unread: bool | tuple[str, ...] = False
    segment_age_us: int = LAST_US

    @classmethod
    def of(cls, settings: TopicSettings) -> Rule:
        """The rule of a topic."""
        retain = settings.retain
        return cls(
            None if isinstance(retain, str) else round(retain * 1e6),
            settings.retain_bytes,
            retain == "read",
            settings.keep_unread,
            round(segment_age_of(settings.segment_age, retain) * 1e6),
        )

    @property
    def limited(self) -> bool:
        """Whether anything can ever be due."""
        return self.retain_us is not None or self.retain_bytes is not None or self.read

    @property
    def asks_groups(self) -> bool:
        """Whether it matters what groups have read."""
        return self.read or (self.limited and self.keep_unread is not False)


class SegmentSpan(NamedTuple):
    """One segment that holds records: its offsets from `first` up to `stop`, and the times of its oldest and newest.

    Of an active one `oldest` is the time of its first frame, and `newest` is not known unless it was looked into.
    """

    partition: int
    first: int
    stop: int
    bytes: int
    records: int
    oldest: int
    newest: int
    sealed: bool = True
    created: int = 0
    # It is active still, and will be closed before it goes.
    closing: bool = False
    # In words, when it can be neither read nor removed.
    trouble: str | None = None


class Verdict(NamedTuple):
    """Whether a segment goes, and why, as a person would say it."""

    piece: SegmentSpan
    goes: bool
    why: str


def plan(
    rule: Rule, partitions: Sequence[Iterable[SegmentSpan]], cursors: Cursors, now_us: int, *, brief: bool = False
) -> list[Verdict]:
    """A verdict on every segment of a topic, partition by partition, the oldest first.

    `brief` asks for what goes and no more: of each partition nothing is looked at behind the first segment that stays.
    """
    newer: Mapping[tuple[int, int], int] = {}
    if rule.retain_bytes is not None:
        # Of a limit for all partitions every one has to be known.
        partitions = known = [list(pieces) for pieces in partitions]
        newer = newer_bytes(known)
    verdicts = []
    for pieces in partitions:
        stays: SegmentSpan | None = None
        for piece in pieces:
            verdict = _judge(rule, piece, newer.get((piece.partition, piece.first), 0), cursors, now_us)
            if stays is not None and verdict.goes:
                verdict = Verdict(piece, False, f"older records before it stay, from {stays.first} on")
            if not verdict.goes:
                stays = stays or piece
                if brief:
                    break
            verdicts.append(verdict)
    return verdicts


def newer_bytes(partitions: Sequence[Sequence[SegmentSpan]]) -> dict[tuple[int, int], int]:
    """By partition and first offset, how many bytes of the topic are newer than a segment.

    Within a partition the order is that of the offsets, whatever the timestamps say, so that what is removed is always
    the beginning of a partition. What is still written is newer than all that is not.
    """
    ordered = []
    for pieces in partitions:
        reached = -LAST_US
        for piece in pieces:
            reached = max(reached, piece.newest if piece.sealed and piece.trouble is None else LAST_US)
            ordered.append((reached, piece.partition, piece.first, piece.bytes))
    ordered.sort(reverse=True)
    newer = {}
    total = 0
    for _, partition, first, size in ordered:
        newer[partition, first] = total
        total += size
    return newer


def closes(rule: Rule, piece: SegmentSpan, cursors: Cursors, now_us: int) -> bool:
    """Whether an active segment is to be closed, because it would keep due records from going."""
    if piece.sealed or piece.trouble is not None or not rule.limited:
        return False
    age_us = now_us - piece.created
    if age_us > rule.segment_age_us:
        return True
    if rule.retain_us is not None and age_us > rule.retain_us and piece.oldest < now_us - rule.retain_us:
        return True
    old_or_large = age_us > min(rule.segment_age_us, READ_AGE_US) or piece.bytes > READ_BYTES
    return rule.read and old_or_large and bool(cursors) and not any(_unread(piece, cursors))


def _judge(rule: Rule, piece: SegmentSpan, newer: int, cursors: Cursors, now_us: int) -> Verdict:
    if piece.trouble is not None:
        return Verdict(piece, False, piece.trouble)
    if not rule.limited:
        return Verdict(piece, False, "no limit is set")
    if not piece.sealed:
        return Verdict(piece, False, "active segment")
    reasons = [*_by_age(rule, piece, now_us), *_by_size(rule, newer), *_by_reading(rule, piece, cursors)]
    going = [why for due, why in reasons if due]
    if not going:
        return Verdict(piece, False, "; ".join(why for _, why in reasons))
    waiting = next(_waited_for(rule, piece, cursors), None)
    return Verdict(piece, waiting is None, waiting or "; ".join(going))


def _by_age(rule: Rule, piece: SegmentSpan, now_us: int) -> Iterator[tuple[bool, str]]:
    if rule.retain_us is None:
        return
    age_us = now_us - piece.newest
    told = f"{format_duration(age_us / 1e6)} old" if age_us >= 0 else f"{format_duration(-age_us / 1e6)} in the future"
    yield age_us > rule.retain_us, f"newest record is {told}, kept for {format_duration(rule.retain_us / 1e6)}"


def _by_size(rule: Rule, newer: int) -> Iterator[tuple[bool, str]]:
    if rule.retain_bytes is None:
        return
    due = newer >= rule.retain_bytes
    side = "above" if due else "within"
    yield due, f"{side} the limit of {format_size(rule.retain_bytes)}: {format_size(newer)} are newer"


def _by_reading(rule: Rule, piece: SegmentSpan, cursors: Cursors) -> Iterator[tuple[bool, str]]:
    if not rule.read:
        return
    unread = next(_unread(piece, cursors), None)
    if not cursors:
        yield False, "no group reads the topic"
    elif unread is not None:
        yield False, unread
    else:
        yield True, f"read by every group: {', '.join(sorted(cursors))}"


def _waited_for(rule: Rule, piece: SegmentSpan, cursors: Cursors) -> Iterator[str]:
    """What a segment that is due waits for."""
    if rule.keep_unread is True:
        yield from _unread(piece, cursors)
    elif rule.keep_unread:
        for group in rule.keep_unread:
            if group not in cursors:
                yield f"group {group} is waited for, and does not read the topic yet"
        yield from _unread(piece, {group: cursors[group] for group in rule.keep_unread if group in cursors})


def _unread(piece: SegmentSpan, cursors: Cursors) -> Iterator[str]:
    """A sentence for every group that has not read a segment."""
    for group in sorted(cursors):
        places = cursors[group]
        # A partition that a group does not know yet is one it has not read.
        place = places[piece.partition] if piece.partition < len(places) else 0
        if place < piece.stop:
            yield f"group {group} has not read it: it is at {place}"
