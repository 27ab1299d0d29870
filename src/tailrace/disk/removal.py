"""Removal: which records of a segment go, by their expiry and by their offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.disk.columns import Columns, later
from tailrace.disk.layout import is_expired
from tailrace.ranges import Range, Ranges

if TYPE_CHECKING:
    from tailrace.disk.frame import Header

# Sorted ranges of offsets whose records are to be taken out.
Removed = Sequence[Range]


class Removal:
    """Which records of a segment go: those that expired before a moment, and ranges of offsets relative to its base."""

    def __init__(self, now_us: int, ranges: Removed) -> None:
        self.now_us = now_us
        listed = ranges if isinstance(ranges, Ranges) else Ranges.of(ranges)
        self.firsts = listed.firsts
        self.stops = listed.stops

    @classmethod
    def within(cls, base: int, now_us: int, removed: Removed) -> Removal:
        """Return the removal of offsets of the partition from the segment with a base."""
        listed = removed if isinstance(removed, Ranges) else Ranges.of(removed)
        low = bisect_right(listed.stops, base)
        firsts = listed.firsts[low:]
        if firsts:
            # What lies before the segment is another one's.
            firsts[0] = max(firsts[0], base)
        return cls(now_us, Ranges(firsts, listed.stops[low:]).moved(-base))

    def takes(self, header: Header) -> bool | None:
        """Return whether all records of a frame go, or none; None if only its columns tell."""
        low, high = header.expiry
        stop = header.base + header.span
        at = bisect_right(self.firsts, header.base) - 1
        covered = self.stops[at] if at >= 0 else 0
        if is_expired(high, self.now_us) or covered >= stop:
            return True
        touched = covered > header.base or (at + 1 < len(self.firsts) and self.firsts[at + 1] < stop)
        return None if touched or (low and self.now_us >= low * 1_000_000) else False

    def is_over(self, header: Header) -> bool:
        """Return whether all records of a frame have expired."""
        return is_expired(header.expiry[1], self.now_us)

    def kept(self, column: Columns) -> tuple[bytes, int]:
        """Return 1 for every record that stays and 0 for the others, and how many of these have expired."""
        now, expiry, count = self.now_us, column.expiry, column.count
        if expiry is None or isinstance(expiry, int):
            found = b"\x01" * count if expiry is None or expiry > now else bytes(count)
        else:
            found = later(expiry, now)
        expired = found.count(0)
        low = bisect_right(self.stops, column.first_offset)
        high = bisect_right(self.firsts, column.last_offset)
        if low >= high:
            return found, expired
        mask = bytearray(found)
        base = column.base_offset if column.offsets is None else None
        for first, stop in zip(self.firsts[low:high], self.stops[low:high], strict=True):
            if base is not None and stop == first + 1:
                mask[first - base] = 0
                continue
            at, end = column.index_at(first), column.index_at(stop)
            mask[at:end] = bytes(end - at)
        return bytes(mask), expired
