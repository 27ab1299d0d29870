"""The columns of a frame's body, viewed in place, per docs/format.md section 2."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.codec import CodecError, decompress
from tailrace.disk.frame import (
    GAPS,
    HEADERS,
    KEY_NULLS,
    KEYS,
    TIMES_DELTA,
    TIMES_MASK,
    VALUE_NULLS,
    Header,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Columns:
    """One frame's records by column; an index counts records within the frame, an offset within the partition."""

    __slots__ = (
        "base_offset",
        "count",
        "header_blob",
        "header_offsets",
        "key_blob",
        "key_offsets",
        "key_valid",
        "offsets",
        "time_base",
        "times",
        "value_blob",
        "value_offsets",
        "value_valid",
    )

    count: int
    base_offset: int
    # Relative to base_offset; None when the frame has no gaps.
    offsets: memoryview[int] | None
    # One number for all records, or a column to which time_base is added.
    times: int | memoryview[int]
    time_base: int
    # None when every key is null.
    key_offsets: memoryview[int] | None
    key_blob: memoryview
    # Bitmaps, least significant bit first, 1 for a value; None when there are no nulls.
    key_valid: memoryview | None
    # None when no record has headers.
    header_offsets: memoryview[int] | None
    header_blob: memoryview
    value_offsets: memoryview[int]
    value_blob: memoryview
    value_valid: memoryview | None

    @property
    def first_offset(self) -> int:
        return self.offset(0)

    @property
    def last_offset(self) -> int:
        return self.offset(self.count - 1)

    def offset(self, index: int) -> int:
        return self.base_offset + (index if self.offsets is None else self.offsets[index])

    def index_at(self, offset: int) -> int:
        """Index of the first record at or after an offset; count when there is none."""
        relative = offset - self.base_offset
        if self.offsets is not None:
            return bisect_left(self.offsets, relative)
        return min(max(relative, 0), self.count)

    def size(self, first: int, stop: int) -> int:
        """The bytes of values, keys and headers of some records."""
        ends = (self.value_offsets, self.key_offsets, self.header_offsets)
        return sum([each[stop] - each[first] for each in ends if each is not None])

    def fitting(self, first: int, stop: int, size: int) -> int:
        """The index up to which records from `first` on have no more than so many bytes."""
        return first + bisect_right(range(first + 1, stop + 1), size, key=lambda last: self.size(first, last))

    def time(self, index: int) -> int:
        times = self.times
        return times if isinstance(times, int) else self.time_base + times[index]

    def key(self, index: int) -> bytes | None:
        ends, valid = self.key_offsets, self.key_valid
        if ends is None or (valid is not None and not valid[index >> 3] >> (index & 7) & 1):
            return None
        return bytes(self.key_blob[ends[index] : ends[index + 1]])

    def value(self, index: int) -> bytes | None:
        valid = self.value_valid
        if valid is not None and not valid[index >> 3] >> (index & 7) & 1:
            return None
        ends = self.value_offsets
        return bytes(self.value_blob[ends[index] : ends[index + 1]])

    def headers(self, index: int) -> bytes:
        ends = self.header_offsets
        return b"" if ends is None else bytes(self.header_blob[ends[index] : ends[index + 1]])

    def values(self, first: int = 0, stop: int | None = None) -> list[bytes | None]:
        stop = self.count if stop is None else stop
        return _with_nulls(_slices(self.value_offsets, self.value_blob, first, stop), self.value_valid, first)

    def keys(self, first: int = 0, stop: int | None = None) -> list[bytes | None] | None:
        """None when every key is null."""
        if self.key_offsets is None:
            return None
        stop = self.count if stop is None else stop
        return _with_nulls(_slices(self.key_offsets, self.key_blob, first, stop), self.key_valid, first)

    def headers_list(self, first: int = 0, stop: int | None = None) -> list[bytes] | None:
        """None when no record has headers."""
        if self.header_offsets is None:
            return None
        return _slices(self.header_offsets, self.header_blob, first, self.count if stop is None else stop)

    def offsets_list(self, first: int = 0, stop: int | None = None) -> Sequence[int]:
        stop = self.count if stop is None else stop
        base = self.base_offset
        if self.offsets is None:
            return range(base + first, base + stop)
        return [base + relative for relative in self.offsets[first:stop]]

    def times_list(self, first: int = 0, stop: int | None = None) -> int | list[int]:
        """One number when all timestamps of the frame are equal."""
        times = self.times
        if isinstance(times, int):
            return times
        base = self.time_base
        return [base + delta for delta in times[first : self.count if stop is None else stop]]


class Part(NamedTuple):
    """The records first to stop (exclusive; indexes) of one frame, and where they come from."""

    topic: str
    partition: int
    columns: Columns
    first: int
    stop: int


def columns(header: Header, body: ReadableBuffer, base_offset: int) -> Columns:
    """View a body whose CRC was checked; base_offset is the frame's first offset in the partition.

    Raises CodecError when the body does not hold what the header says.
    """
    flags, count = header.flags, header.count
    view = memoryview(decompress(header.codec, body, header.raw_length) if header.codec else body)
    length = view.nbytes
    if length != header.raw_length:
        raise CodecError(f"A body has {length} bytes where its header promises {header.raw_length}.")
    made = Columns()
    made.count = count
    made.base_offset = base_offset
    made.times = made.time_base = header.min_time
    made.offsets = made.key_offsets = made.key_valid = made.header_offsets = made.value_valid = None
    made.key_blob = made.header_blob = _EMPTY
    position = 0
    try:
        if flags & GAPS:
            made.offsets = offsets = view[: 4 * count].cast("i")
            position = 4 * count + 7 & ~7
            if offsets[0] < 0 or offsets[count - 1] != header.span - 1:
                raise CodecError("A column of relative offsets does not cover the frame's span.")
        if flags & TIMES_MASK:
            width = 4 if flags & TIMES_MASK == TIMES_DELTA else 8
            made.times = view[position : position + width * count].cast("i" if width == 4 else "q")
            if width == 8:
                made.time_base = 0
            position = position + width * count + 7 & ~7
        if flags & KEY_NULLS:
            made.key_valid = view[position : position + (count + 7 >> 3)]
            position = position + (count + 7 >> 3) + 7 & ~7
        if flags & KEYS:
            made.key_offsets, made.key_blob, position = _blob_column(view, position, count)
        if flags & HEADERS:
            made.header_offsets, made.header_blob, position = _blob_column(view, position, count)
        if flags & VALUE_NULLS:
            made.value_valid = view[position : position + (count + 7 >> 3)]
            position = position + (count + 7 >> 3) + 7 & ~7
        made.value_offsets = ends = view[position : position + 4 * count + 4].cast("i")
        position = position + 4 * count + 11 & ~7
        made.value_blob = view[position:]
        if ends[0] or ends[count] != length - position:
            raise CodecError("A column's lengths do not add up to its bytes.")
    except (TypeError, IndexError):
        # A slice beyond the end is short: casting it fails, or its last element is missing.
        raise CodecError("A body ends within a column.") from None
    return made


_EMPTY = memoryview(b"")


def _blob_column(view: memoryview, position: int, count: int) -> tuple[memoryview[int], memoryview, int]:
    """Offsets, blob and the position after them."""
    ends = view[position : position + 4 * count + 4].cast("i")
    start = position + 4 * count + 11 & ~7
    stop = start + ends[count]
    if ends[0] or not start <= stop <= view.nbytes:
        raise CodecError("A column's lengths do not add up to its bytes.")
    return ends, view[start:stop], stop + 7 & ~7


def _slices(offsets: memoryview[int], blob: memoryview, first: int, stop: int) -> list[bytes]:
    if stop <= first:
        return []
    ends = offsets[first : stop + 1].tolist()
    start = ends[0]
    # Slicing bytes is several times faster than making bytes of a memoryview's slices.
    data = bytes(blob[start : ends[-1]])
    if start:
        return [data[begin - start : end - start] for begin, end in pairwise(ends)]
    return [data[begin:end] for begin, end in pairwise(ends)]


def _with_nulls(items: list[bytes], valid: memoryview | None, first: int) -> list[bytes | None]:
    if valid is None:
        return items  # type: ignore[return-value]  # Nobody else holds the list.
    bits = int.from_bytes(valid, "little") >> first
    # Written out highest bit first, and the sentinel above the highest keeps the leading zeros.
    text = bin(bits | 1 << len(items))[: -len(items) - 1 : -1] if items else ""
    return [item if bit == "1" else None for item, bit in zip(items, text, strict=True)]
