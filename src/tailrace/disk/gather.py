"""Gathering: builds a frame from some records of others, column by column, without an object for each number."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, compress, islice
from operator import sub
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import (
    DELTA_MAX,
    EXPIRY_EACH,
    GAPS,
    HEADERS,
    KEY_NULLS,
    KEYS,
    NEVER,
    PADDING,
    TIMES_DELTA,
    TIMES_FULL,
    VALUE_NULLS,
    Prepared,
    expiry_column,
    seal_joined,
)
from tailrace.disk.runs import Run
from tailrace.limits import FRAME_RECORDS_MAX

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from tailrace.disk.columns import Columns

# Items of one length up to this one are taken apart all at once; of longer ones only those that stay are copied.
EVEN_BYTES_MAX = 1_024
# How many of these are taken apart by one call.
_EVEN_ITEMS = 256
# Stretches of kept records of at least this average length are copied as one piece each.
_STRETCH_RECORDS = 4
_KEPT = re.compile(b"\x01+")
# For as many records as a frame can have: 1, and 1, 2, 3 and so on, in 32 bits each.
_ONES_32 = int.from_bytes(b"\1\0\0\0" * FRAME_RECORDS_MAX, "little")
_COUNTING = int.from_bytes(array("i", range(1, FRAME_RECORDS_MAX + 1)), "little")


class Blob(NamedTuple):
    """Byte strings of one column: their bytes in pieces, and the running sum of their lengths in 32 bits each."""

    pieces: Sequence[ReadableBuffer]
    ends: ReadableBuffer
    size: int
    # 0 for a null and 1 for any other item; empty if none is null.
    valid: bytes = b""


class Times(NamedTuple):
    """The timestamps of some records: their bounds, and a column to which `base` is added; None if all are equal."""

    low: int
    high: int
    base: int = 0
    column: Sequence[int] | None = None


class Selected(NamedTuple):
    """Some records of a frame, with offsets relative to the base of the frame that they will be in."""

    count: int  # type: ignore[assignment]  # It is never searched as a tuple.
    first: int
    last: int
    size: int
    offsets: bytes
    times: Times
    expiry: int | Sequence[int]
    # None if every key is null, and if no record has headers.
    keys: Blob | None
    headers: Blob | None
    values: Blob


def select(column: Columns, mask: bytes, base: int) -> Selected:
    """Return the records of a frame for which the mask has 1, of which there is at least one."""
    count = mask.count(1)
    shift = column.base_offset - base
    if column.offsets is None:
        offsets = array("i", [*compress(range(shift, shift + column.count), mask)])
    else:
        offsets = array("i", [offset + shift for offset in compress(column.offsets, mask)])
    expiry: int | Sequence[int] | None = column.expiry
    if expiry is None:
        expiry = NEVER
    elif not isinstance(expiry, int):
        expiry = [*compress(_listed(expiry), mask)]
    if isinstance(column, Run):
        keys, headers = column.keys(), column.headers_list()
        values = _listed_blob(compress(column.values(), mask))
        key_blob = None if keys is None else _listed_blob(compress(keys, mask))
        header_blob = None if headers is None else _listed_blob(compress(headers, mask))
    else:
        values = _viewed_blob(column.value_offsets, column.value_blob, column.value_valid, mask, count)
        key_blob = header_blob = None
        if column.key_offsets is not None:
            key_blob = _viewed_blob(column.key_offsets, column.key_blob, column.key_valid, mask, count)
        if column.header_offsets is not None:
            header_blob = _viewed_blob(column.header_offsets, column.header_blob, None, mask, count)
    if key_blob is not None and key_blob.valid and not any(key_blob.valid):
        key_blob = None
    if header_blob is not None and not header_blob.size:
        header_blob = None
    size = sum([blob.size for blob in (key_blob, header_blob, values) if blob is not None])
    return Selected(
        count, offsets[0], offsets[-1], size, offsets.tobytes(), _times(column, mask), expiry, key_blob, header_blob,
        values,
    )  # fmt: skip


def moved(part: Selected, by: int) -> Selected:
    """Return the same records for a frame whose base is larger by a number of offsets."""
    return part._replace(first=part.first - by, last=part.last - by, offsets=_shifted(part.offsets, -by))


def join_selected(parts: Sequence[Selected], codec: int, identity: bytes) -> Prepared:
    """Build one frame of the records of others; `identity` are the attributes of producer and schema to take over."""
    count = sum([part.count for part in parts])
    last = parts[-1].last
    flags = span = 0
    pieces: list[ReadableBuffer] = []
    if last >= count:
        flags, span = GAPS, last + 1
        pieces += [part.offsets for part in parts]
        pieces.append(PADDING[4 * -count & 7])
    flag, low, high, column = _joined_times([part.times for part in parts], [part.count for part in parts])
    flags |= flag
    pieces += (column, PADDING[-len(column) & 7])
    flag, attributes, column = _joined_expiry(parts)
    flags |= flag
    pieces.append(column)
    for blobs, present, nulls in (
        ([part.keys for part in parts], KEYS, KEY_NULLS),
        ([part.headers for part in parts], HEADERS, 0),
        ([part.values for part in parts], 0, VALUE_NULLS),
    ):
        if present and not any(blobs):
            continue
        flags |= present
        valid = _joined_valid(parts, blobs) if nulls else b""
        if valid:
            flags |= nulls
            pieces += (valid, PADDING[-len(valid) & 7])
        pieces += (bytes(4), *_joined_ends(parts, blobs), PADDING[4 * ~count & 7])
        size = 0
        for blob in blobs:
            if blob is not None:
                pieces += blob.pieces
                size += blob.size
        pieces.append(PADDING[-size & 7])
    # The last column is not padded.
    pieces.pop()
    return seal_joined(flags, count, b"".join(pieces), low, high, codec, identity, attributes, span)


def _some(numbers: int, bits: int, count: int) -> int:
    """Return the first of many numbers of some bits each that are one large number."""
    return numbers & ((1 << bits * count) - 1)


def _listed(numbers: Sequence[int]) -> Sequence[int]:
    return numbers.tolist() if isinstance(numbers, memoryview) else numbers


def _times(column: Columns, mask: bytes) -> Times:
    times = column.times_list() if isinstance(column, Run) else column.times
    if isinstance(times, int):
        return Times(times, times)
    kept = [*compress(_listed(times), mask)]
    base = column.time_base
    return Times(base + min(kept), base + max(kept), base, kept)


def _joined_times(every: Sequence[Times], counts: Sequence[int]) -> tuple[int, int, int, bytes]:
    """Return flag, smallest, largest and column of all times."""
    low, high = min([times.low for times in every]), max([times.high for times in every])
    if low == high:
        return 0, low, high, b""
    code, flag, origin = ("i", TIMES_DELTA, low) if high - low <= DELTA_MAX else ("q", TIMES_FULL, 0)
    joined = array(code)
    for times, count in zip(every, counts, strict=True):
        if times.column is None:
            joined += array(code, [times.low - origin]) * count
        elif times.base == origin:
            joined += array(code, times.column)
        elif code == "i" and 0 < times.base <= times.low:
            # Its numbers are the differences to the first time of the frame that they come from.
            joined.frombytes(_shifted(array("i", times.column), times.base - origin))
        else:
            shift = times.base - origin
            joined += array(code, [time + shift for time in times.column])
    return flag, low, high, joined.tobytes()


def _joined_expiry(parts: Sequence[Selected]) -> tuple[int, bytes, bytes]:
    """Return flag, attributes and column of the expiry of all records."""
    found = [part.expiry for part in parts]
    bounds = [
        bound
        for each in found
        for bound in ((each,) if isinstance(each, int) else (min(each), max(each)))
    ]  # fmt: skip
    flag, attributes, column = expiry_column((min(bounds), max(bounds)))
    if flag == EXPIRY_EACH:
        joined = array("q")
        for part, each in zip(parts, found, strict=True):
            joined += array("q", [each]) * part.count if isinstance(each, int) else array("q", each)
        column = joined.tobytes()
    return flag, attributes, column


def _joined_ends(parts: Sequence[Selected], blobs: Sequence[Blob | None]) -> Iterable[ReadableBuffer]:
    """Yield the running sum of all lengths, without the zero before it."""
    total = 0
    for part, blob in zip(parts, blobs, strict=True):
        ends = bytes(4 * part.count) if blob is None else blob.ends
        yield _shifted(ends, total) if total else ends
        total += 0 if blob is None else blob.size


def _joined_valid(parts: Sequence[Selected], blobs: Sequence[Blob | None]) -> bytes:
    """Return the bitmap of all items; empty if none is null."""
    if all(blob is not None and not blob.valid for blob in blobs):
        return b""
    bits = b"".join(
        [
            bytes(part.count) if blob is None else blob.valid or b"\x01" * part.count
            for part, blob in zip(parts, blobs, strict=True)
        ]
    )
    return int(bits[::-1].translate(_DIGITS), 2).to_bytes(len(bits) + 7 >> 3, "little")


_DIGITS = bytes([48, 49]) + bytes(range(2, 256))


def _shifted(numbers: ReadableBuffer, by: int) -> bytes:
    """Return numbers of 32 bits, each with the same one added, which none of them can overflow."""
    size = memoryview(numbers).nbytes
    return (int.from_bytes(numbers, "little") + by * _some(_ONES_32, 32, size // 4)).to_bytes(size, "little")


def _listed_blob(items: Iterable[bytes | None]) -> Blob:
    """Return a column of items that are there one by one."""
    kept = [*items]
    valid = b""
    if None in kept:
        valid = bytes([item is not None for item in kept])
    pieces = [item or b"" for item in kept] if valid else kept
    ends = array("i", [*accumulate(map(len, pieces))])  # type: ignore[arg-type]  # No item is None any more.
    return Blob(pieces, ends, ends[-1], valid)  # type: ignore[arg-type]  # As above.


def _viewed_blob(ends: memoryview[int], blob: memoryview, bits: memoryview | None, mask: bytes, kept: int) -> Blob:
    """Return the items of a frame's column for which the mask has 1."""
    count = len(mask)
    valid = b""
    if bits is not None:
        # Written out highest bit first; the sentinel above the highest bit keeps the leading zeros.
        text = bin(int.from_bytes(bits, "little") & ((1 << count) - 1) | 1 << count)[: -count - 1 : -1]
        valid = bytes(compress(text.encode().translate(_BITS), mask))
        valid = valid if 0 in valid else b""
    if kept == count:
        return Blob([blob], ends[1:], ends[count], valid)
    step, rest = divmod(ends[count], count)
    even = not rest and int.from_bytes(ends[1:], "little") == step * _some(_COUNTING, 32, count)
    if even:
        size = step * kept
        summed: ReadableBuffer = (step * _some(_COUNTING, 32, kept)).to_bytes(4 * kept, "little")
        if 0 < step <= EVEN_BYTES_MAX:
            return Blob([*compress(_taken_apart(blob, step, count), mask)], summed, size, valid)
    listed = ends.tolist()
    if even and not step:
        return Blob([], summed, 0, valid)
    stretches = mask.count(b"\x00\x01") + mask[0]
    if stretches * _STRETCH_RECORDS <= kept:
        spans = [found.span() for found in _KEPT.finditer(mask)]
        pieces: list[ReadableBuffer] = [blob[listed[first] : listed[stop]] for first, stop in spans]
        if 2 * sum([listed[stop] - listed[first] for first, stop in spans]) < len(blob):
            # A view keeps the whole body, of which little stays, until the frame is written.
            pieces = [b"".join(pieces)]
        lengths: Iterable[int] = compress(map(sub, islice(listed, 1, None), listed), mask)
    else:
        # Slicing bytes is several times faster than making bytes from slices of a memoryview.
        data = bytes(blob)
        found = zip(compress(listed, mask), compress(islice(listed, 1, None), mask), strict=True)
        sliced = [data[first:stop] for first, stop in found]
        pieces, lengths = [*sliced], map(len, sliced)
    if not even:
        summed = array("i", [*accumulate(lengths)])
    return Blob(pieces, summed, sum(map(len, pieces)), valid)  # type: ignore[arg-type]  # They are bytes or views.


_BITS = bytes(48) + bytes([0, 1]) + bytes(206)


def _taken_apart(blob: memoryview, step: int, count: int) -> Iterable[bytes]:
    """Yield all items of a column whose items have one length."""
    whole = count // _EVEN_ITEMS * _EVEN_ITEMS
    several = _items(step, _EVEN_ITEMS).iter_unpack(blob[: whole * step])
    single = _items(step, 1).iter_unpack(blob[whole * step :])
    return chain(chain.from_iterable(several), chain.from_iterable(single))


@lru_cache(maxsize=32)
def _items(step: int, count: int) -> Struct:
    return Struct(f"{step}s" * count)
