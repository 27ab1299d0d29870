"""Marks: the removed offsets of a partition as sorted ranges, and the packed records that add up to them."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import lt
from typing import NamedTuple

from tailrace.disk.range_set import NO_RANGES, RangeSet
from tailrace.disk.removal_ages import NO_AGES, Age, RemovalAges
from tailrace.errors import CorruptionError, VersionError
from tailrace.ranges import Range, Ranges, is_rising, normalized, total

# The first word of a record: what it is.
REMOVE, REWRITTEN, SNAPSHOT = 1, 2, 3
# The time of a record that removes more ranges is kept once, from the first to the last of them.
AGED_RANGES_MAX = 64
# Ranges in one record of a snapshot.
SNAPSHOT_RANGES_MAX = 1 << 20

# The fewest words of a record.
_WORDS_MIN = {REWRITTEN: 5, SNAPSHOT: 3}
_TORN = "A record of removed offsets cannot be understood"
# No offset is as large.
_OFFSET_LIMIT = (1 << 64) - 1


class Rewrite(NamedTuple):
    """The newest version of a segment: its first offset, its end, how often it was rewritten, and for which moment."""

    base: int
    stop: int
    rewrites: int
    # In microseconds: what was removed before it is gone from the segment.
    moment_us: int = 0


class MarkTable:
    """The marks of a partition at one moment; it never changes, so any thread may keep it."""

    __slots__ = ("ages", "ranges", "rewrites")

    def __init__(
        self, ranges: RangeSet = NO_RANGES, rewrites: tuple[Rewrite, ...] = (), ages: RemovalAges = NO_AGES
    ) -> None:
        self.ranges = ranges
        # By base. Equal tuples of two tables are the same object, unless a segment was rewritten in between.
        self.rewrites = rewrites
        # Since when they are marked; only the vacuum asks.
        self.ages = ages

    def __len__(self) -> int:
        return len(self.ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MarkTable):
            return False
        return [*self] == [*other] and self.rewrites == other.rewrites and self.ages == other.ages

    __hash__ = None  # type: ignore[assignment]

    @property
    def end(self) -> int:
        """The offset after the last mark, or after the last rewritten segment; 0 if there is none."""
        marked = self.ranges.stop
        return max(marked, self.rewrites[-1].stop) if self.rewrites else marked

    # Questions.

    def covers(self, offset: int) -> bool:
        """Return whether an offset is marked."""
        return self.ranges.touches(offset, offset + 1)

    def touches(self, first: int, stop: int) -> bool:
        """Return whether any offset of a range is marked."""
        return self.ranges.touches(first, stop)

    def within(self, first: int, stop: int) -> Ranges:
        """Return the marks of a range."""
        return self.ranges.within(first, stop)

    def count(self, first: int, stop: int) -> int:
        """Return how many offsets of a range are marked."""
        return total(self.within(first, stop))

    def unmarked(self, ranges: Sequence[Range]) -> Sequence[Range]:
        """Return what is not marked of some sorted ranges."""
        return self.ranges.lacking(ranges)

    def rewrite_of(self, offset: int) -> Rewrite | None:
        """Return the newest version of the segment with an offset; None if no marks told of a rewrite."""
        at = bisect_right(self.rewrites, offset, key=_base) - 1
        return self.rewrites[at] if at >= 0 and offset < self.rewrites[at].stop else None

    def marked_since(self, first: int, stop: int) -> int | None:
        """Return since when, in microseconds, a segment holds marked records that a rewrite can take out; None if none.

        The time is not before that of its last rewrite: so a segment is not rewritten for its age again and again,
        also where ages are no longer known exactly.
        """
        since = self.ages.oldest(first, stop) if self.touches(first, stop) else None
        known = self.rewrite_of(first)
        return since if since is None or known is None else max(since, known.moment_us)

    # Changes: each returns another table.

    def adding(self, ranges: Sequence[Range]) -> MarkTable:
        """Return the table with further marks."""
        return MarkTable(self.ranges.adding(ranges), self.rewrites, self.ages)

    def rewritten(self, segment: Rewrite, stays: Sequence[Range]) -> MarkTable:
        """Return the table after a rewrite: of the marks of its segment those that stay."""
        base, stop, _, moment_us = segment
        known = [each for each in self.rewrites if each.stop <= base or each.base >= stop]
        newest = self.rewrite_of(base)
        if newest is not None and newest.base == base and newest.rewrites > segment.rewrites:
            segment = newest
        ranges = self.ranges.outside(base, stop).adding(stays)
        # Those that stay keep their time.
        aged = [Age(*each, self.ages.oldest(*each) or moment_us) for each in stays]
        ages = _narrowed(self.ages.outside(base, stop), ranges).adding(aged)
        return MarkTable(ranges, tuple(sorted([*known, segment])), ages)

    def between(self, start: int, end: int) -> MarkTable:
        """Return the table without what is below the start or at or above the end of its partition."""
        return MarkTable(
            self.ranges.outside(0, start).outside(end, _OFFSET_LIMIT),
            tuple([each for each in self.rewrites if each.stop > start and each.base < end]),
            self.ages.between(start, end),
        )

    def applied(self, values: Iterable[bytes | None], times: int | Iterable[int] = 0) -> MarkTable:
        """Return the table after some records, in order; `times` are theirs, or one time for all."""
        table = self
        removed: list[Ranges] = []
        ages: list[Age] = []
        for value, time in zip(values, repeat(times) if isinstance(times, int) else times, strict=False):
            words = _words(value or b"")
            if words[0] == REMOVE:
                removed.append(_ranges(words[2:]))
                if words[1]:
                    ages += _ages(removed[-1], time)
                continue
            table, removed, ages = table._removing(removed, ages), [], []
            if words[0] == REWRITTEN:
                table = table.rewritten(Rewrite(*words[1:5]), _ranges(words[5:]))
            elif words[0] == SNAPSHOT:
                table = _restored(words)
            else:
                raise VersionError(
                    f"A record of removed offsets is of the kind {words[0]}, which only a newer version knows."
                )
        return table._removing(removed, ages)

    def _removing(self, parts: Sequence[Ranges], ages: Sequence[Age]) -> MarkTable:
        """Return the table with further marks, and with the times of these and of others that it has already."""
        if not parts:
            return self
        added = parts[0] if len(parts) == 1 else normalized(chain.from_iterable(parts))
        return MarkTable(self.ranges.adding(added), self.rewrites, self.ages.adding(ages) if ages else self.ages)

    def snapshot(self, ranges_max: int = SNAPSHOT_RANGES_MAX) -> list[bytes]:
        """Return the records that replace all before them, each with at most `ranges_max` ranges."""
        head = array("Q", (SNAPSHOT, len(self.rewrites), len(self.ages.ages)))
        head.extend(number for each in (*self.rewrites, *self.ages.ages) for number in each)
        ranges = self.ranges.joined()
        return [
            _packed((array("Q", (REMOVE, 0)) if at else head) + ranges[at : at + ranges_max].words())
            for at in range(0, max(len(ranges), 1), ranges_max)
        ]


def _narrowed(ages: RemovalAges, marked: RangeSet) -> RemovalAges:
    """Return ages that begin and end with a marked offset each; those without one are left out."""
    bounds = [(age, marked.bounds(age.first, age.stop)) for age in ages.ages]
    return RemovalAges(tuple([Age(*found, age.since_us) for age, found in bounds if found is not None]))


NO_MARKS = MarkTable()


# Records.


def pack_remove(end: int, ranges: Iterable[Range]) -> bytes:
    """Return the record that removes offsets; `end` is that of their partition then."""
    return _packed(array("Q", (REMOVE, end)) + _flat(ranges))


def pack_rewritten(segment: Rewrite, stays: Iterable[Range]) -> bytes:
    """Return the record of a rewritten segment, with its marks that stay."""
    return _packed(array("Q", (REWRITTEN, *segment)) + _flat(stays))


def _flat(ranges: Iterable[Range]) -> array[int]:
    return ranges.words() if isinstance(ranges, Ranges) else array("Q", [*chain.from_iterable(ranges)])


def _packed(words: array[int]) -> bytes:
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _words(value: bytes) -> array[int]:
    words = array("Q")
    try:
        words.frombytes(value)
    except ValueError as error:
        raise CorruptionError(_TORN) from error
    if sys.byteorder == "big":
        words.byteswap()
    if len(words) < _WORDS_MIN.get(words[0] if words else 0, 2):
        raise CorruptionError(_TORN)
    return words


def _ranges(words: array[int]) -> Ranges:
    """Return the ranges of a record; most are in order, and there may be thousands."""
    firsts, stops = words[::2], words[1::2]
    if len(words) % 2 == 0 and is_rising(words):
        return Ranges(firsts, stops)
    if len(words) % 2 or not all(map(lt, firsts, stops)):
        raise CorruptionError(_TORN)
    return Ranges.of(normalized(zip(firsts, stops, strict=True)))


def _restored(words: array[int]) -> MarkTable:
    aged = 3 + 4 * words[1]
    after = aged + 3 * words[2]
    if after > len(words):
        raise CorruptionError(_TORN)
    told = [Rewrite(*words[at : at + 4]) for at in range(3, aged, 4)]  # rule: newest rewrites in a snapshot
    ages = RemovalAges(tuple([Age(*words[at : at + 3]) for at in range(aged, after, 3)]))
    if not ages.is_sorted():
        raise CorruptionError(_TORN)
    return MarkTable(RangeSet.of(_ranges(words[after:])), tuple(told), ages)


def _ages(ranges: Ranges, time: int) -> list[Age]:
    """Return the ages of what a record removes: many ranges of one record count as one."""
    time = max(time, 0)
    if len(ranges) > AGED_RANGES_MAX:
        return [Age(ranges.firsts[0], ranges.stops[-1], time)]
    return [Age(first, stop, time) for first, stop in ranges]


def _base(segment: Rewrite) -> int:
    return segment.base
