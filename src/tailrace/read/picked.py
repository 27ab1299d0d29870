"""Picked columns: some records of a frame, which keeps its bytes; nothing is copied before it is asked for."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import compress
from typing import Any

from tailrace.disk.columns import Columns, FramePart, blob_column


class Picked(Columns):
    """The records of a part that are shown. Columns as bytes, which few callers need, are built at their first use."""

    __slots__ = ("mask", "picks", "source", "start")

    # The index of each record in its frame.
    picks: list[int]

    def __init__(self, part: FramePart, shown: bytes) -> None:
        _, _, source, first, _ = part
        self.source = source
        # From the index `start` of the frame on, a byte for each record: 1 if it is shown.
        self.start, self.mask = first, shown
        self.count = shown.count(1)
        self.base_offset = source.base_offset
        # The whole stretch of the frame is held for them.
        self.weight = source.weight * len(shown) // source.count
        if source.expiry is None or isinstance(source.expiry, int):
            self.expiry = source.expiry
        if source.expiry is not None:
            self.expiry_low = source.expiry_low

    def __getattr__(self, name: str) -> Any:
        """Return the picks, the expiries, or a column as bytes, of which all are built at the first use of any."""
        if name == "picks":
            self.picks = [*compress(range(self.start, self.start + len(self.mask)), self.mask)]
            return self.picks
        if name == "expiry":
            expiry = self.source.expiry
            assert expiry is not None
            assert not isinstance(expiry, int)
            self.expiry = memoryview(array("q", compress(expiry[self.start : self.start + len(self.mask)], self.mask)))
            return self.expiry
        if name not in Columns.__slots__:
            raise AttributeError(name)
        base, times = self.base_offset, self.times_list()
        self.offsets = memoryview(array("i", [offset - base for offset in self.offsets_list()]))
        self.times, self.time_base = (times, times) if isinstance(times, int) else (memoryview(array("q", times)), 0)
        self.key_offsets, self.key_blob, self.key_valid = blob_column(self.keys())
        self.header_offsets, self.header_blob, _ = blob_column(self.headers_list())
        value_offsets, self.value_blob, self.value_valid = blob_column(self.values())
        assert value_offsets is not None
        self.value_offsets = value_offsets
        return getattr(self, name)

    @property
    def hidden(self) -> int:
        """The number of records between these that are not shown, and held in memory with them."""
        return len(self.mask) - self.count

    def offset(self, index: int) -> int:
        return self.source.offset(self.picks[index])

    def index_at(self, offset: int) -> int:
        """Return the index of the first record at or after an offset; `count` if there is none."""
        return bisect_left(self.picks, self.source.index_at(offset))

    def time(self, index: int) -> int:
        return self.source.time(self.picks[index])

    def key(self, index: int) -> bytes | None:
        return self.source.key(self.picks[index])

    def value(self, index: int) -> bytes | None:
        return self.source.value(self.picks[index])

    def headers(self, index: int) -> bytes:
        return self.source.headers(self.picks[index])

    def row(self, index: int) -> tuple[int, int, bytes | None, bytes | None, bytes]:
        """Return offset, time, key, value and headers of one record."""
        return self.source.row(self.picks[index])

    def _bounds(self, first: int, stop: int | None) -> tuple[list[int], int, int]:
        """Return the picks of some records relative to the first of them, and the indexes that hold them all."""
        picks = self.picks[first : self.count if stop is None else stop]
        if not picks:
            return [], 0, 0
        low = picks[0]
        return [pick - low for pick in picks] if low else picks, low, picks[-1] + 1

    def values(self, first: int = 0, stop: int | None = None) -> list[bytes | None]:
        picks, low, high = self._bounds(first, stop)
        return [*map(self.source.values(low, high).__getitem__, picks)]

    def keys(self, first: int = 0, stop: int | None = None) -> list[bytes | None] | None:
        """Return the keys; None if every key is null."""
        picks, low, high = self._bounds(first, stop)
        keys = self.source.keys(low, high)
        return None if keys is None else [*map(keys.__getitem__, picks)]

    def headers_list(self, first: int = 0, stop: int | None = None) -> list[bytes] | None:
        """Return the encoded headers; None if no record has headers."""
        picks, low, high = self._bounds(first, stop)
        headers = self.source.headers_list(low, high)
        return None if headers is None else [*map(headers.__getitem__, picks)]

    def offsets_list(self, first: int = 0, stop: int | None = None) -> Sequence[int]:
        picks, low, high = self._bounds(first, stop)
        return [*map(self.source.offsets_list(low, high).__getitem__, picks)]

    def times_list(self, first: int = 0, stop: int | None = None) -> int | list[int]:
        """Return the timestamps; one number if all timestamps of the frame are equal."""
        picks, low, high = self._bounds(first, stop)
        times = self.source.times_list(low, high)
        return times if isinstance(times, int) else [*map(times.__getitem__, picks)]

    def selection(self, first: int, stop: int) -> tuple[int, int, bytes]:
        """Return the indexes of the frame that hold some records, and a byte for each: 1 if it is one of them."""
        if stop - first == self.count:
            return self.start, self.start + len(self.mask), self.mask
        low, high = self.picks[first], self.picks[stop - 1] + 1
        return low, high, self.mask[low - self.start : high - self.start]
