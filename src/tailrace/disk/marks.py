"""Marks: the removed offsets of a partition as sorted ranges, and the packed records that add up to them."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter, lt
from typing import NamedTuple

from tailrace.errors import CorruptionError, VersionError

# The first word of a record: what it is.
REMOVE, REWRITTEN, SNAPSHOT = 1, 2, 3
# Up to this many ranges are inserted one by one; more are merged with those that are there.
INSERTED_MAX = 64
# Ranges in one record of a snapshot.
SNAPSHOT_RANGES_MAX = 1 << 20

# From the first offset to the last, exclusive.
Range = tuple[int, int]
_STOP = itemgetter(1)
_TORN = "A record of removed offsets cannot be understood"


class Rewrite(NamedTuple):
    """The newest version of a segment: its first offset, its end, and how often it was rewritten."""

    base: int
    stop: int
    rewrites: int


class MarkTable:
    """The marks of a partition at one moment; it never changes, so any thread may keep it."""

    __slots__ = ("firsts", "rewrites", "stops")

    def __init__(
        self,
        firsts: array[int] | None = None,
        stops: array[int] | None = None,
        rewrites: tuple[Rewrite, ...] = (),
    ) -> None:
        # Sorted ranges; none touches the next one.
        self.firsts: array[int] = array("Q") if firsts is None else firsts
        self.stops: array[int] = array("Q") if stops is None else stops
        # By base. Equal tuples of two tables are the same object, unless a segment was rewritten in between.
        self.rewrites = rewrites

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self.firsts, self.stops, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MarkTable) and [*self] == [*other] and self.rewrites == other.rewrites

    __hash__ = None  # type: ignore[assignment]

    @property
    def end(self) -> int:
        """The offset after the last mark, or after the last rewritten segment; 0 if there is none."""
        marked = self.stops[-1] if self.stops else 0
        return max(marked, self.rewrites[-1].stop) if self.rewrites else marked

    # Questions.

    def covers(self, offset: int) -> bool:
        """Return whether an offset is marked."""
        return self.touches(offset, offset + 1)

    def touches(self, first: int, stop: int) -> bool:
        """Return whether any offset of a range is marked."""
        at = bisect_right(self.stops, first)
        return first < stop and at < len(self.firsts) and self.firsts[at] < stop

    def within(self, first: int, stop: int) -> list[Range]:
        """Return the marks of a range."""
        if first >= stop:
            return []
        low, high = bisect_right(self.stops, first), bisect_left(self.firsts, stop)
        found = [*zip(self.firsts[low:high], self.stops[low:high], strict=True)]
        if found:
            found[0] = (max(found[0][0], first), found[0][1])
            found[-1] = (found[-1][0], min(found[-1][1], stop))
        return found

    def count(self, first: int, stop: int) -> int:
        """Return how many offsets of a range are marked."""
        return total(self.within(first, stop))

    def unmarked(self, ranges: Sequence[Range]) -> list[Range]:
        """Return what is not marked of some sorted ranges."""
        return without(ranges, self.within(ranges[0][0], ranges[-1][1])) if ranges else []

    def rewrite_of(self, offset: int) -> Rewrite | None:
        """Return the newest version of the segment with an offset; None if no marks told of a rewrite."""
        at = bisect_right(self.rewrites, offset, key=_base) - 1
        return self.rewrites[at] if at >= 0 and offset < self.rewrites[at].stop else None

    # Changes: each returns another table.

    def adding(self, ranges: Sequence[Range]) -> MarkTable:
        """Return the table with further marks."""
        if len(ranges) > INSERTED_MAX:
            # Only what lies between them is put in order again: a table may have far more marks than a call brings.
            low = bisect_left(self.stops, min(ranges)[0])
            high = bisect_right(self.firsts, max(map(_STOP, ranges)))
            known = zip(self.firsts[low:high], self.stops[low:high], strict=True)
            made = self._of(normalized([*known, *ranges]))
            made.firsts = self.firsts[:low] + made.firsts + self.firsts[high:]
            made.stops = self.stops[:low] + made.stops + self.stops[high:]
            return made
        firsts, stops = self.firsts[:], self.stops[:]
        for first, stop in ranges:
            low, high = bisect_left(stops, first), bisect_right(firsts, stop)
            if low < high:
                first, stop = min(first, firsts[low]), max(stop, stops[high - 1])
            firsts[low:high] = array("Q", (first,))
            stops[low:high] = array("Q", (stop,))
        return MarkTable(firsts, stops, self.rewrites)

    def _spliced(self, words: array[int]) -> MarkTable | None:
        """Return the table with many marks that lie between two of its own, in order; None if these are not such."""
        if len(words) <= 2 * INSERTED_MAX or len(words) % 2:
            return None
        firsts, stops = self.firsts, self.stops
        at = bisect_left(firsts, words[0])
        if (at and stops[at - 1] >= words[0]) or (at < len(firsts) and firsts[at] <= words[-1]):
            return None
        numbers = words.tolist()
        if not all(map(lt, numbers, numbers[1:])):
            return None
        return MarkTable(firsts[:at] + words[::2] + firsts[at:], stops[:at] + words[1::2] + stops[at:], self.rewrites)

    def rewritten(self, segment: Rewrite, stays: Sequence[Range]) -> MarkTable:
        """Return the table after a rewrite: of the marks of its segment those that stay."""
        base, stop, _ = segment
        # Marks of the segments beside it may be one range with its own.
        outside = without([*self], [(base, stop)])
        known = [each for each in self.rewrites if each.stop <= base or each.base >= stop]
        newest = self.rewrite_of(base)
        if newest is not None and newest.base == base and newest.rewrites > segment.rewrites:
            segment = newest
        made = self._of(normalized([*outside, *stays]))
        made.rewrites = tuple(sorted([*known, segment]))
        return made

    def between(self, start: int, end: int) -> MarkTable:
        """Return the table without what is below the start or at or above the end of its partition."""
        made = self._of(self.within(start, end))
        made.rewrites = tuple([each for each in self.rewrites if each.stop > start and each.base < end])
        return made

    def _of(self, ranges: Sequence[Range]) -> MarkTable:
        words = array("Q", [*chain.from_iterable(ranges)])
        return MarkTable(words[::2], words[1::2], self.rewrites)

    def applied(self, values: Iterable[bytes | None]) -> MarkTable:
        """Return the table after some records, in order."""
        table = self
        fresh: list[Range] = []
        for value in values:
            words = _words(value or b"")
            if words[0] == REMOVE:
                added = words[2:]
                spliced = None if fresh else table._spliced(added)
                if spliced is None:
                    fresh += _ranges(added)
                else:
                    table = spliced
                continue
            table, fresh = table.adding(fresh), []
            if words[0] == REWRITTEN:
                table = table.rewritten(Rewrite(*words[1:4]), _ranges(words[4:]))
            elif words[0] == SNAPSHOT:
                table = _restored(words)
            else:
                raise VersionError(
                    f"A record of removed offsets is of the kind {words[0]}, which only a newer version knows."
                )
        return table.adding(fresh) if fresh else table

    def snapshot(self, ranges_max: int = SNAPSHOT_RANGES_MAX) -> list[bytes]:
        """Return the records that replace all before them, each with at most `ranges_max` ranges."""
        head = array("Q", (SNAPSHOT, len(self.rewrites)))
        head.extend(number for each in self.rewrites for number in each)
        records = []
        for at in range(0, max(len(self), 1), ranges_max):
            firsts, stops = self.firsts[at : at + ranges_max], self.stops[at : at + ranges_max]
            pairs = array("Q", bytes(16 * len(firsts)))
            pairs[::2], pairs[1::2] = firsts, stops
            records.append(_packed((array("Q", (REMOVE, 0)) if at else head) + pairs))
        return records


NO_MARKS = MarkTable()


# Records.


def pack_remove(end: int, ranges: Iterable[Range]) -> bytes:
    """Return the record that removes offsets; `end` is that of their partition then."""
    return _packed(array("Q", (REMOVE, end, *chain.from_iterable(ranges))))


def pack_rewritten(segment: Rewrite, stays: Iterable[Range]) -> bytes:
    """Return the record of a rewritten segment, with its marks that stay."""
    return _packed(array("Q", (REWRITTEN, *segment, *chain.from_iterable(stays))))


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
    if len(words) < 2 or (words[0] == REWRITTEN and len(words) < 4):
        raise CorruptionError(_TORN)
    return words


def _ranges(words: array[int]) -> list[Range]:
    firsts, stops = words[::2], words[1::2]
    if len(words) % 2 or not all(map(lt, firsts, stops)):
        raise CorruptionError(_TORN)
    return [*zip(firsts, stops, strict=True)]


def _restored(words: array[int]) -> MarkTable:
    after = 2 + 3 * words[1]
    if after > len(words) or (len(words) - after) % 2:
        raise CorruptionError(_TORN)
    told = [Rewrite(*words[at : at + 3]) for at in range(2, after, 3)]  # rule: newest rewrites in a snapshot
    return MarkTable(words[after::2], words[after + 1 :: 2], tuple(told))


# Ranges.


def normalized(ranges: Iterable[Range]) -> list[Range]:
    """Return the same offsets as sorted ranges that do not touch each other; empty ones are left out."""
    ranges = [*ranges]
    flat = [*chain.from_iterable(ranges)]
    if all(map(lt, flat, flat[1:])):
        # Most are so already, and there may be thousands.
        return ranges
    made: list[Range] = []
    for first, stop in sorted(ranges):
        if made and first <= made[-1][1]:
            if stop > made[-1][1]:
                made[-1] = (made[-1][0], stop)
        elif first < stop:
            made.append((first, stop))
    return made


def without(ranges: Sequence[Range], removed: Sequence[Range]) -> list[Range]:
    """Return some sorted ranges without the offsets of others."""
    if not ranges or not removed or removed[-1][1] <= ranges[0][0] or removed[0][0] >= ranges[-1][1]:
        return [*ranges]
    left: list[Range] = []
    at = 0
    for first, stop in ranges:
        while at < len(removed) and removed[at][1] <= first:
            at += 1
        mine = at
        while mine < len(removed) and removed[mine][0] < stop:
            if first < removed[mine][0]:
                left.append((first, removed[mine][0]))
            first = max(first, removed[mine][1])
            mine += 1
        if first < stop:
            left.append((first, stop))
    return left


def total(ranges: Iterable[Range]) -> int:
    """Return how many offsets some ranges have."""
    return sum([stop - first for first, stop in ranges])


def _base(segment: Rewrite) -> int:
    return segment.base
