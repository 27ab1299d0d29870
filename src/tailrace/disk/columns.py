"""The columns of a frame's body, viewed in place, per docs/format.md section 2."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.codec import CodecError, decompress
from tailrace.disk.frame import (
    EXPIRY_EACH,
    EXPIRY_MASK,
    GAPS,
    HEADERS,
    KEY_NULLS,
    KEYS,
    NEVER,
    TIMES_DELTA,
    TIMES_MASK,
    VALUE_NULLS,
    Header,
)
from tailrace.limits import FRAME_RECORDS_MAX

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Columns:
    """One frame's records by column; an index counts records within the frame, an offset within the partition."""

    __slots__ = (
        "base_offset",
        "count",
        "expiry",
        "expiry_low",
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
        "weight",
    )

    count: int
    base_offset: int
    # Relative to base_offset; None if the frame has no gaps.
    offsets: memoryview[int] | None
    # One number for all records, or a column to which time_base is added.
    times: int | memoryview[int]
    time_base: int
    # When the records expire, in microseconds: one time for all, or one for each (NEVER: not at all); None: none does.
    expiry: int | Sequence[int] | None
    # Before this time none of them has expired.
    expiry_low: int
    # None if every key is null.
    key_offsets: memoryview[int] | None
    key_blob: memoryview
    # Bitmaps, least significant bit first, 1 for a value; None if there are no nulls.
    key_valid: memoryview | None
    # None if no record has headers.
    header_offsets: memoryview[int] | None
    header_blob: memoryview
    value_offsets: memoryview[int]
    value_blob: memoryview
    value_valid: memoryview | None
    # The approximate bytes of all values and keys: readers bound their memory by it.
    weight: int

    @property
    def first_offset(self) -> int:
        return self.offset(0)

    @property
    def last_offset(self) -> int:
        return self.offset(self.count - 1)

    def offset(self, index: int) -> int:
        return self.base_offset + (index if self.offsets is None else self.offsets[index])

    def index_at(self, offset: int) -> int:
        """Return the index of the first record at or after an offset; `count` if there is none."""
        relative = offset - self.base_offset
        if self.offsets is not None:
            return bisect_left(self.offsets, relative)
        return min(max(relative, 0), self.count)

    def size(self, first: int, stop: int) -> int:
        """Return the bytes of values, keys and headers of some records."""
        ends = (self.value_offsets, self.key_offsets, self.header_offsets)
        return sum([each[stop] - each[first] for each in ends if each is not None])

    def fitting(self, first: int, stop: int, size: int) -> int:
        """Return the index up to which the records from `first` on have at most `size` bytes."""
        return first + bisect_right(range(first + 1, stop + 1), size, key=lambda last: self.size(first, last))

    def time(self, index: int) -> int:
        times = self.times
        return times if isinstance(times, int) else self.time_base + times[index]

    def expires(self, index: int) -> int:
        """Return when a record expires; NEVER if it does not."""
        expiry = self.expiry
        return NEVER if expiry is None else expiry if isinstance(expiry, int) else expiry[index]

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

    def row(self, index: int) -> tuple[int, int, bytes | None, bytes | None, bytes]:
        """Return offset, time, key, value and headers of one record."""
        return self.offset(index), self.time(index), self.key(index), self.value(index), self.headers(index)

    def headers(self, index: int) -> bytes:
        ends = self.header_offsets
        return b"" if ends is None else bytes(self.header_blob[ends[index] : ends[index + 1]])

    def values(self, first: int = 0, stop: int | None = None) -> list[bytes | None]:
        stop = self.count if stop is None else stop
        return _with_nulls(_slices(self.value_offsets, self.value_blob, first, stop), self.value_valid, first)

    def keys(self, first: int = 0, stop: int | None = None) -> list[bytes | None] | None:
        """Return the keys; None if every key is null."""
        if self.key_offsets is None:
            return None
        stop = self.count if stop is None else stop
        return _with_nulls(_slices(self.key_offsets, self.key_blob, first, stop), self.key_valid, first)

    def headers_list(self, first: int = 0, stop: int | None = None) -> list[bytes] | None:
        """Return the encoded headers; None if no record has headers."""
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
        """Return the timestamps; one number if all timestamps of the frame are equal."""
        times = self.times
        if isinstance(times, int):
            return times
        base = self.time_base
        return [base + delta for delta in times[first : self.count if stop is None else stop]]


class FramePart(NamedTuple):
    """The records first to stop (exclusive; indexes) of one frame, and their topic and partition."""

    topic: str
    partition: int
    columns: Columns
    first: int
    stop: int


class Newest(FramePart):
    """A part that was the end of the partition when it was read: a follower returns it before it reads on."""

    __slots__ = ()


def columns(header: Header, body: ReadableBuffer, base_offset: int) -> Columns:
    """View a body whose CRC was checked; `base_offset` is the frame's first offset in the partition.

    Raise CodecError if the body does not match the header.
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
    made.offsets = made.key_offsets = made.key_valid = made.header_offsets = made.value_valid = made.expiry = None
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
        if flags & EXPIRY_MASK:
            width = 8 * count if flags & EXPIRY_MASK == EXPIRY_EACH else 8
            column = view[position : position + width].cast("q")
            made.expiry = column if flags & EXPIRY_MASK == EXPIRY_EACH else column[0]
            made.expiry_low = header.expiry[0] * 1_000_000
            position += width
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
        if ends[0] or ends[count] != length - position or (count > 1 and not _rising(ends, count)):
            raise CodecError("A column's lengths do not add up to its bytes.")
        made.weight = made.value_blob.nbytes + made.key_blob.nbytes
    except (TypeError, IndexError):
        # A slice beyond the end is too short: casting it fails, or its last element is missing.
        raise CodecError("A body ends within a column.") from None
    return made


_EMPTY = memoryview(b"")


def blob_column(
    items: Sequence[bytes | None] | None,
) -> tuple[memoryview[int] | None, memoryview, memoryview | None]:
    """Return offsets, bytes and validity of a column from its items; None for an empty column."""
    if items is None:
        return None, _EMPTY, None
    valid = None
    if None in items:
        bits = "".join(["0" if item is None else "1" for item in reversed(items)])
        valid = memoryview(int(bits, 2).to_bytes(len(bits) + 7 >> 3, "little"))
    stored = [item or b"" for item in items]
    ends = memoryview(array("i", accumulate(map(len, stored), initial=0)))
    return ends, memoryview(b"".join(stored)), valid


def _blob_column(view: memoryview, position: int, count: int) -> tuple[memoryview[int], memoryview, int]:
    """Return offsets, blob, and the position after them."""
    ends = view[position : position + 4 * count + 4].cast("i")
    start = position + 4 * count + 11 & ~7
    stop = start + ends[count]
    if ends[0] or not start <= stop <= view.nbytes or (count > 1 and not _rising(ends, count)):
        raise CodecError("A column's lengths do not add up to its bytes.")
    return ends, view[start:stop], stop + 7 & ~7


# For more records, the offsets of items of equal length are not cached for comparison.
EVEN_RECORDS_MAX = 4_096
# The highest bit of every 32-bit number, of as many as a frame can have.
_SIGNS = int.from_bytes(b"\0\0\0\x80" * (FRAME_RECORDS_MAX + 1), "little")


@lru_cache(maxsize=32)
def _even(count: int, step: int) -> bytes:
    """Return the offsets of a column whose items have equal length, as fixed-size records and keys often do."""
    return array("i", [step * number for number in range(count + 1)]).tobytes()


def _rising(ends: memoryview[int], count: int) -> bool:
    """Return whether none of count + 1 numbers is negative or smaller than the one before it.

    All at once, as one large number: each is subtracted from its neighbour with the highest bit set, which stays set
    unless the neighbour was smaller. Arrow follows any offsets, and overlapping slices could be larger than the body.
    """
    step, rest = divmod(ends[count], count)
    if not rest and step >= 0 and count <= EVEN_RECORDS_MAX and ends.tobytes() == _even(count, step):
        return True
    numbers = int.from_bytes(ends, "little")
    signs = _SIGNS >> 32 * (FRAME_RECORDS_MAX - count)
    if numbers & signs:
        return False
    pairs = signs >> 32
    return ((numbers >> 32 | signs) - numbers) & pairs == pairs


def later(times: Sequence[int], now: int) -> bytes:
    """Return a byte for each of some times: 1 if it is after another one.

    Compared byte by byte, the highest ones of all times first. The rank of a byte is 0, 1 or 2: less than, equal to or
    greater than that of `now`. The ranks of up to five bytes are one number with the base 3, in one byte for each time;
    it is the middle one if all of them were equal, and then the next byte decides.
    """
    count = len(times)
    if type(times) is not memoryview or not 0 <= now < NEVER:
        return bytes([time > now for time in times])
    data = times.tobytes()
    found, compared = b"", 0
    for at, own in zip(range(7, -1, -1), now.to_bytes(8, "big"), strict=True):
        digits = data[at::8]
        if digits.count(own) == count:
            continue
        if at == 7 and not digits.isascii():
            # Some are negative.
            return bytes([time > now for time in times])
        digits = digits.translate(_ranks(own))
        if compared == len(_MIDDLES):
            found, compared = found.translate(_RANK), 1
        if compared:
            ranks = 3 * int.from_bytes(found, "little") + int.from_bytes(digits, "little")
            digits = ranks.to_bytes(count, "little")
        found = digits
        if _MIDDLES[compared] not in found:
            return found.translate(_ABOVE[compared])
        compared += 1
    return found.translate(_ABOVE[compared - 1]) if compared else bytes(count)


@lru_cache(maxsize=256)
def _ranks(own: int) -> bytes:
    """Return the rank of every byte beside one of them."""
    return bytes(own) + b"\1" + b"\2" * (255 - own)


# The rank of equal bytes after one to five of them; which ranks are above it; and of five bytes the rank as one.
_MIDDLES = (1, 4, 13, 40, 121)
_ABOVE = [bytes(middle + 1) + b"\1" * (255 - middle) for middle in _MIDDLES]
_RANK = _ranks(_MIDDLES[-1])


def _slices(offsets: memoryview[int], blob: memoryview, first: int, stop: int) -> list[bytes]:
    if stop <= first:
        return []
    ends = offsets[first : stop + 1].tolist()
    start = ends[0]
    # Slicing bytes is several times faster than making bytes from slices of a memoryview.
    data = bytes(blob[start : ends[-1]])
    if start:
        return [data[begin - start : end - start] for begin, end in pairwise(ends)]
    return [data[begin:end] for begin, end in pairwise(ends)]


def _with_nulls(items: list[bytes], valid: memoryview | None, first: int) -> list[bytes | None]:
    if valid is None:
        return items  # type: ignore[return-value]  # The caller holds the only reference to the list.
    bits = int.from_bytes(valid, "little") >> first
    # Written out highest bit first; the sentinel above the highest bit keeps the leading zeros.
    text = bin(bits | 1 << len(items))[: -len(items) - 1 : -1] if items else ""
    return [item if bit == "1" else None for item, bit in zip(items, text, strict=True)]
