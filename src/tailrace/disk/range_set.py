"""Range set: sorted ranges of offsets in chunks; a change copies the chunks it touches, not those beside them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain

from tailrace.ranges import NOTHING, Range, Ranges, is_rising, normalized, without

# No chunk has more ranges; those of a larger one are shared out evenly.
CHUNK_RANGES_MAX = 4_096
# Up to this many ranges are inserted one by one; more are merged with those between them.
INSERTED_MAX = 64


class RangeSet:
    """Sorted ranges, none of which touches the next one; it never changes, so any thread may keep it."""

    __slots__ = ("_begins", "_chunks", "_count")

    def __init__(self, chunks: Sequence[Ranges] = ()) -> None:
        # None of them is empty; their first offsets, and the number of all ranges.
        self._chunks = chunks
        self._begins = [chunk.firsts[0] for chunk in chunks]
        self._count = sum([len(chunk) for chunk in chunks])

    @classmethod
    def of(cls, ranges: Ranges, chunk_max: int = CHUNK_RANGES_MAX) -> RangeSet:
        """Return a set of ranges that are in order."""
        return cls(_chunked(ranges, chunk_max))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Range]:
        return chain.from_iterable(self._chunks)

    @property
    def stop(self) -> int:
        """The offset after the last range; 0 if there is none."""
        return self._chunks[-1].stops[-1] if self._chunks else 0

    def touches(self, first: int, stop: int) -> bool:
        """Return whether any offset of a range is in the set."""
        at = bisect_left(self._begins, stop) - 1
        if first >= stop or at < 0:
            return False
        chunk = self._chunks[at]
        return chunk.stops[bisect_left(chunk.firsts, stop) - 1] > first

    def within(self, first: int, stop: int) -> Ranges:
        """Return what the set has of a range."""
        if not self.touches(first, stop):
            return NOTHING
        low, high = self._touched(first, stop)
        found = _together(self._chunks[low:high])
        low, high = bisect_right(found.stops, first), bisect_left(found.firsts, stop)
        firsts, stops = found.firsts[low:high], found.stops[low:high]
        firsts[0], stops[-1] = max(firsts[0], first), min(stops[-1], stop)
        return Ranges(firsts, stops)

    def lacking(self, ranges: Sequence[Range]) -> Sequence[Range]:
        """Return what the set has not of some sorted ranges."""
        if not ranges or not self.touches(ranges[0][0], ranges[-1][1]):
            return ranges
        left: list[Range] = []
        for first, stop in ranges:
            if self.touches(first, stop):
                left += without([(first, stop)], self.within(first, stop))
            else:
                left.append((first, stop))
        return left

    def bounds(self, first: int, stop: int) -> Range | None:
        """Return the first offset that the set has of a range and the one after the last; None if it has none."""
        if not self.touches(first, stop):
            return None
        at = max(bisect_right(self._begins, first) - 1, 0)
        if self._chunks[at].stops[-1] <= first:
            at += 1
        low, high = self._chunks[at], self._chunks[bisect_left(self._begins, stop) - 1]
        return (
            max(low.firsts[bisect_right(low.stops, first)], first),
            min(high.stops[bisect_left(high.firsts, stop) - 1], stop),
        )

    def joined(self) -> Ranges:
        """Return all ranges at once."""
        return _together(self._chunks)

    def adding(self, ranges: Sequence[Range], chunk_max: int = CHUNK_RANGES_MAX) -> RangeSet:
        """Return the set with further ranges, which are in any order."""
        if not ranges:
            return self
        added = ranges if isinstance(ranges, Ranges) else Ranges.of(normalized(ranges))
        if not added:
            return self
        if not self._chunks:
            return RangeSet(_chunked(added, chunk_max))
        low, high = self._touched(added.firsts[0], added.stops[-1])
        # Those before all others join the first chunk.
        high = max(high, low + 1)
        made = [*self._chunks[:low]]
        at = 0
        while low < high:
            after = low + 1
            while True:
                # Those that begin before the next chunk; it is taken along if they reach it.
                end = bisect_left(added.firsts, self._begins[after], at) if after < high else len(added)
                if after >= high or end == at or added.stops[end - 1] < self._begins[after]:
                    break
                after += 1
            chunks = self._chunks[low:after]
            made += chunks if end == at else _chunked(_merged(_together(chunks), added[at:end]), chunk_max)
            low, at = after, end
        return RangeSet([*made, *self._chunks[high:]])

    def outside(self, first: int, stop: int, chunk_max: int = CHUNK_RANGES_MAX) -> RangeSet:
        """Return the set without the offsets of a range."""
        if not self.touches(first, stop):
            return self
        low, high = self._touched(first, stop)
        known = _together(self._chunks[low:high])
        begin, end = bisect_right(known.stops, first), bisect_left(known.firsts, stop)
        edges = [(known.firsts[begin], first), (stop, known.stops[end - 1])]
        left = Ranges.of([edge for edge in edges if edge[0] < edge[1]])
        firsts = known.firsts[:begin] + left.firsts + known.firsts[end:]
        left = Ranges(firsts, known.stops[:begin] + left.stops + known.stops[end:])
        return RangeSet([*self._chunks[:low], *_chunked(left, chunk_max), *self._chunks[high:]])

    def _touched(self, first: int, stop: int) -> tuple[int, int]:
        """Return the indexes of the chunks whose ranges may overlap or touch a range."""
        return max(bisect_right(self._begins, first) - 1, 0), bisect_right(self._begins, stop)

NO_RANGES = RangeSet()


def _chunked(ranges: Ranges, chunk_max: int) -> list[Ranges]:
    """Return ranges in chunks of about the same size, so that many additions at one place do not leave small ones."""
    count = len(ranges)
    if count <= chunk_max:
        return [ranges] if count else []
    size = -(-count // -(-count // chunk_max))
    return [ranges[at : at + size] for at in range(0, count, size)]


def _together(chunks: Sequence[Ranges]) -> Ranges:
    if len(chunks) == 1:
        return chunks[0]
    firsts, stops = array("Q"), array("Q")
    for chunk in chunks:
        firsts += chunk.firsts
        stops += chunk.stops
    return Ranges(firsts, stops)


def _merged(known: Ranges, added: Ranges) -> Ranges:
    """Return the ranges of both."""
    firsts, stops = known.firsts, known.stops
    # Those of `known` from `low` to `high` overlap or touch what lies between the first and the last that is added.
    low, high = bisect_left(stops, added.firsts[0]), bisect_right(firsts, added.stops[-1])
    if low >= high:
        return Ranges(firsts[:low] + added.firsts + firsts[low:], stops[:low] + added.stops + stops[low:])
    if len(added) > INSERTED_MAX:
        pairs = sorted([*known[low:high], *added])
        words = array("Q", [*chain.from_iterable(pairs)])
        between = Ranges(words[::2], words[1::2]) if is_rising(words) else Ranges.of(normalized(pairs))
        return Ranges(firsts[:low] + between.firsts + firsts[high:], stops[:low] + between.stops + stops[high:])
    firsts, stops = firsts[:], stops[:]
    for first, stop in added:
        low, high = bisect_left(stops, first), bisect_right(firsts, stop)
        if low < high:
            first, stop = min(first, firsts[low]), max(stop, stops[high - 1])
        firsts[low:high] = array("Q", (first,))
        stops[low:high] = array("Q", (stop,))
    return Ranges(firsts, stops)
