"""Retention: decides from plain values which segments of a topic may be removed; nothing here touches a disk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, overload

from tailrace.arguments import format_duration, format_size
from tailrace.disk.layout import is_expired
from tailrace.settings import segment_age_of

if TYPE_CHECKING:
    from tailrace.settings import TopicSettings

# With retain="read" an active segment that every group has read is sealed at this age, or at this size.
READ_AGE_US = 60_000_000
READ_BYTES = 1 << 20
# Later than every timestamp: stands for the newest time of an active segment, and of one that cannot be read.
LAST_US = (1 << 63) - 1

# For each group its stored cursor in each partition.
Cursors = Mapping[str, Sequence[int]]


class Rule(NamedTuple):
    """The settings of a topic that decide what may be removed, in microseconds and bytes; None is no limit."""

    retain_us: int | None = None
    retain_bytes: int | None = None
    # Segments are due when every group that reads the topic has read them.
    read: bool = False
    # Due segments are kept until all groups that read the topic have read them, or the named ones.
    keep_unread: bool | tuple[str, ...] = False
    segment_age_us: int = LAST_US
    # Records expire: segments are due when all of theirs have.
    expires: bool = False
    # Single records may be deleted: segments that hold some of these are rewritten.
    mutable: bool = False

    @classmethod
    def of(cls, settings: TopicSettings) -> Rule:
        """Return the rule of a topic."""
        retain = settings.retain
        return cls(
            None if isinstance(retain, str) else round(retain * 1e6),
            settings.retain_bytes,
            retain == "read",
            settings.keep_unread,
            round(segment_age_of(settings.segment_age, retain) * 1e6),
            settings.ttl is not None,
        )

    @property
    def limited(self) -> bool:
        """Whether anything can ever be due."""
        return self.retain_us is not None or self.retain_bytes is not None or self.read or self.expires

    @property
    def needs_cursors(self) -> bool:
        """Whether the cursors of groups are needed for a decision."""
        return self.read or (self.limited and self.keep_unread is not False)


class SegmentSpan(NamedTuple):
    """One segment that holds records: its offsets from `first` up to `stop`, and the times of its oldest and newest.

    For an active segment `oldest` is the time of its first frame, and `newest` is known only if its frames were read.
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
    # Active, and to be sealed before it is removed.
    closing: bool = False
    # The reason, if it can be neither read nor removed.
    trouble: str | None = None
    # The bounds of the expiry in seconds; both 0 if no record expires.
    expiry_low: int = 0
    expiry_high: int = 0


class Verdict(NamedTuple):
    """Whether a segment is to be removed, and the reason as a phrase for reports."""

    piece: SegmentSpan
    goes: bool
    why: str


class Ranked(NamedTuple):
    """The segments of one partition, the oldest first, and the values that order them among those of other partitions.

    Within a partition the order is that of the offsets, whatever the timestamps are, so that removal always takes the
    beginning of a partition. An active segment counts as newer than every sealed one.
    """

    pieces: Sequence[SegmentSpan]
    # For each segment the newest time up to and including it, and the bytes before it; the last entry is the total.
    reached: Sequence[int]
    bytes_before: Sequence[int]

    @classmethod
    def of(cls, pieces: Iterable[SegmentSpan]) -> Ranked:
        """Return the ranking of segments that are given one by one."""
        known = list(pieces)
        newest = [piece.newest if piece.sealed and piece.trouble is None else LAST_US for piece in known]
        return cls(known, [*accumulate(newest, max)], [*accumulate((piece.bytes for piece in known), initial=0)])


class Verdicts(Sequence[Verdict]):
    """The verdicts on the segments of one partition, each made when it is accessed."""

    def __init__(self, rule: Rule, partitions: Sequence[Ranked], number: int, cursors: Cursors, now_us: int) -> None:
        self.rule = rule
        self.partitions = partitions
        self.number = number
        self.cursors = cursors
        self.now_us = now_us
        self.pieces = partitions[number].pieces
        # The index of the first segment that is kept; no segment after it is removed.
        self.stays = next((at for at in range(len(self.pieces)) if not self._judged(at).goes), len(self.pieces))

    def __len__(self) -> int:
        return len(self.pieces)

    @overload
    def __getitem__(self, at: int) -> Verdict: ...

    @overload
    def __getitem__(self, at: slice) -> list[Verdict]: ...

    def __getitem__(self, at: int | slice) -> Verdict | list[Verdict]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        verdict = self._judged(at)
        if verdict.goes and at > self.stays:
            kept = self.pieces[self.stays].first
            return Verdict(verdict.piece, False, f"older records before it stay, from {kept} on")
        return verdict

    def _judged(self, at: int) -> Verdict:
        """Return the verdict on one segment, without regard to those before it."""
        newer = newer_bytes(self.partitions, self.number, at) if self.rule.retain_bytes is not None else 0
        return _judge(self.rule, self.pieces[at], newer, self.cursors, self.now_us)


def plan(
    rule: Rule, partitions: Sequence[Iterable[SegmentSpan]], cursors: Cursors, now_us: int, *, brief: bool = False
) -> list[Verdict]:
    """Return a verdict on every segment of a topic, partition by partition, the oldest first.

    `brief` returns only the segments to remove: in each partition nothing is read after the first segment that is kept,
    unless the topic has a limit in bytes, for which the sizes of all segments are needed.
    """
    if brief and rule.retain_bytes is None:
        judged = [(_judge(rule, piece, 0, cursors, now_us) for piece in pieces) for pieces in partitions]
        return [verdict for verdicts in judged for verdict in takewhile(attrgetter("goes"), verdicts)]
    every = review(rule, [Ranked.of(pieces) for pieces in partitions], cursors, now_us)
    return [verdict for verdicts in every for verdict in verdicts[: verdicts.stays if brief else None]]


def review(rule: Rule, partitions: Sequence[Ranked], cursors: Cursors, now_us: int) -> list[Verdicts]:
    """Return the verdicts on the segments of each partition of a topic."""
    return [Verdicts(rule, partitions, number, cursors, now_us) for number in range(len(partitions))]


def newer_bytes(partitions: Sequence[Ranked], number: int, at: int) -> int:
    """Return how many bytes of a topic are newer than one segment of one of its partitions."""
    reached = partitions[number].reached[at]
    total = 0
    for other, ranked in enumerate(partitions):
        if other == number:
            first = at + 1
        else:
            # Among segments of equal age those of a later partition count as newer.
            first = (bisect_left if other > number else bisect_right)(ranked.reached, reached)
        total += ranked.bytes_before[-1] - ranked.bytes_before[first]
    return total


def should_close(rule: Rule, piece: SegmentSpan, cursors: Cursors, now_us: int, *, partly: bool = False) -> bool:
    """Return whether to seal an active segment, because it would keep due records from being removed.

    With `partly` one expired record is enough.
    """
    if piece.sealed or piece.trouble is not None or not rule.limited:
        return False
    if rule.expires and is_expired(piece.expiry_high, now_us):
        return True
    if rule.expires and partly and piece.expiry_low and now_us >= piece.expiry_low * 1_000_000:
        return True
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
    reasons = [
        *_by_age(rule, piece, now_us),
        *_by_size(rule, newer),
        *_by_reading(rule, piece, cursors),
        *_by_expiry(rule, piece, now_us),
    ]
    going = [why for due, why in reasons if due]
    if not going:
        return Verdict(piece, False, "; ".join(why for _, why in reasons))
    waiting = next(_waited_for(rule, piece, cursors), None)
    return Verdict(piece, waiting is None, waiting or "; ".join(going))


def _by_age(rule: Rule, piece: SegmentSpan, now_us: int) -> Iterator[tuple[bool, str]]:
    if rule.retain_us is None:
        return
    age_us = now_us - piece.newest
    age = f"{format_duration(age_us / 1e6)} old" if age_us >= 0 else f"{format_duration(-age_us / 1e6)} in the future"
    yield age_us > rule.retain_us, f"newest record is {age}, kept for {format_duration(rule.retain_us / 1e6)}"


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


def _by_expiry(rule: Rule, piece: SegmentSpan, now_us: int) -> Iterator[tuple[bool, str]]:
    if rule.expires:
        due = is_expired(piece.expiry_high, now_us)
        yield due, "all of its records have expired" if due else "not all of its records have expired"


def _waited_for(rule: Rule, piece: SegmentSpan, cursors: Cursors) -> Iterator[str]:
    """Yield the reasons why a segment that is due is kept."""
    if rule.keep_unread is True:
        yield from _unread(piece, cursors)
    elif rule.keep_unread:
        for group in rule.keep_unread:
            if group not in cursors:
                yield f"group {group} is waited for, and does not read the topic yet"
        yield from _unread(piece, {group: cursors[group] for group in rule.keep_unread if group in cursors})


def _unread(piece: SegmentSpan, cursors: Cursors) -> Iterator[str]:
    """Yield a phrase for every group that has not read a segment completely."""
    for group in sorted(cursors):
        places = cursors[group]
        # A group without a cursor in a partition has not read it.
        place = places[piece.partition] if piece.partition < len(places) else 0
        if place < piece.stop:
            yield f"group {group} has not read it: it is at {place}"
