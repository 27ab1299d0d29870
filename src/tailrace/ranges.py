"""Ranges of offsets: sorted ones as two arrays, because one call may name thousands of single offsets."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import overload

# From the first offset to the last, exclusive.
Range = tuple[int, int]

# No offset has more.
_OFFSET_BITS = 62


class Ranges(Sequence[Range]):
    """Sorted ranges, none of which is empty or touches the next one; they never change."""

    __slots__ = ("firsts", "single", "stops")

    def __init__(self, firsts: array[int], stops: array[int], *, single: bool = False) -> None:
        # The caller vouches for their order.
        self.firsts = firsts
        self.stops = stops
        # Whether it is known that each has one offset.
        self.single = single

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> Ranges:
        """Return ranges that are in order already."""
        words = array("Q", [*chain.from_iterable(ranges)])
        return cls(words[::2], words[1::2])

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self.firsts, self.stops, strict=True)

    @overload
    def __getitem__(self, index: int) -> Range: ...
    @overload
    def __getitem__(self, index: slice) -> Ranges: ...
    def __getitem__(self, index: int | slice) -> Range | Ranges:
        if isinstance(index, slice):
            return Ranges(self.firsts[index], self.stops[index], single=self.single)
        return self.firsts[index], self.stops[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ranges):
            return self.firsts == other.firsts and self.stops == other.stops
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ranges.of({[*self]})"

    @property
    def total(self) -> int:
        """The number of offsets in all of them."""
        return len(self.firsts) if self.single else sum(self.stops) - sum(self.firsts)

    def moved(self, by: int) -> Ranges:
        """Return the same ranges with a number added to each offset, none of which leaves 64 bits."""
        return Ranges(_added(self.firsts, by), _added(self.stops, by), single=self.single)

    def words(self) -> array[int]:
        """Return the first offset and the one after the last of each range in turn."""
        words = array("Q", bytes(16 * len(self.firsts)))
        words[::2], words[1::2] = self.firsts, self.stops
        return words


NOTHING = Ranges(array("Q"), array("Q"))


def single_offsets(offsets: Sequence[int]) -> Sequence[Range]:
    """Return single offsets, in any order and with repetitions, as sorted ranges."""
    try:
        firsts = array("Q", offsets)
    except OverflowError:
        return _joined(sorted({*offsets}))
    if not is_rising(firsts, 2):
        firsts = array("Q", sorted({*offsets}))
        if not is_rising(firsts, 2):
            return _joined(firsts.tolist())
    if firsts and firsts[-1] >> _OFFSET_BITS:
        return _joined(firsts.tolist())
    # No two of them are one range.
    return Ranges(firsts, _added(firsts, 1), single=True)


def _added(numbers: array[int], by: int) -> array[int]:
    """Return 64-bit numbers with the same one added: all at once, as the parts of one large number."""
    ones = int.from_bytes(b"\1\0\0\0\0\0\0\0" * len(numbers), "little")
    return array("Q", (int.from_bytes(numbers, "little") + by * ones).to_bytes(8 * len(numbers), "little"))


def normalized(ranges: Iterable[Range]) -> Sequence[Range]:
    """Return the same offsets as sorted ranges that do not touch each other; empty ones are left out."""
    if isinstance(ranges, Ranges):
        return ranges
    made: list[Range] = []
    for first, stop in sorted(ranges):
        if made and first <= made[-1][1]:
            if stop > made[-1][1]:
                made[-1] = (made[-1][0], stop)
        elif first < stop:
            made.append((first, stop))
    return made


def without(ranges: Sequence[Range], removed: Sequence[Range]) -> Sequence[Range]:
    """Return some sorted ranges without the offsets of others."""
    if not ranges or not removed or removed[-1][1] <= ranges[0][0] or removed[0][0] >= ranges[-1][1]:
        return ranges
    if ranges == removed:
        return NOTHING
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
    return ranges.total if isinstance(ranges, Ranges) else sum([stop - first for first, stop in ranges])


def _joined(offsets: Sequence[int]) -> list[Range]:
    """Return sorted offsets as ranges."""
    cuts = [at for at, (before, after) in enumerate(pairwise(offsets), 1) if after > before + 1]
    bounds = pairwise((0, *cuts, len(offsets))) if offsets else ()
    return [(offsets[low], offsets[high - 1] + 1) for low, high in bounds]


def is_rising(numbers: array[int], by: int = 1) -> bool:
    """Return whether each of some 64-bit numbers is larger than the one before it by at least 1 or 2.

    All at once, as one large number: each is subtracted from its neighbour with the highest bit set, which stays set
    unless the difference was too small.
    """
    pairs = len(numbers) - 1
    if pairs < 1:
        return True
    joined = int.from_bytes(numbers, "little")
    signs = int.from_bytes(b"\0\0\0\0\0\0\0\x80" * pairs, "little")
    if joined & (signs | signs >> 1) or joined >> (64 * pairs + _OFFSET_BITS):
        # The bits above an offset are in use.
        return all(after - before >= by for before, after in pairwise(numbers))
    lower = joined & ((1 << 64 * pairs) - 1)
    return ((joined >> 64 | signs) - lower - by * (signs >> 63)) & signs == signs
