"""The frame: a batch of records as bytes, per docs/format.md section 2."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import add
from struct import Struct, pack
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.disk import codec as codecs
from tailrace.errors import LimitError, VersionError
from tailrace.limits import FRAME_BODY_BYTES_MAX, FRAME_BYTES_TARGET, FRAME_RECORDS_MAX, LOST_BYTES_MAX

try:
    from fastcrc.crc32 import iscsi as fastest_crc32c
except ImportError:  # google-crc32c takes bytes only, so each buffer is copied: right, but slower.
    import google_crc32c

    def fastest_crc32c(data: ReadableBuffer, initial: int | None = None) -> int:
        return int(google_crc32c.extend(initial or 0, bytes(data)))


crc32c = fastest_crc32c


if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

if sys.byteorder != "little":
    # Columns are viewed in place, which on a big-endian machine would turn every number around.
    raise ImportError("Tailrace needs a little-endian machine")

MAGIC = 0x31465254
VERSION = 1
HEADER = Struct("<IBBHIIIIQIIqqQHHIII")
HEADER_BYTES = 80

MORE = 1 << 0
KEYS = 1 << 1
KEY_NULLS = 1 << 2
VALUE_NULLS = 1 << 3
HEADERS = 1 << 4
TIMES_MASK = 3 << 5
TIMES_DELTA = 1 << 5
TIMES_FULL = 2 << 5
GAPS = 1 << 9
# A placeholder: it holds no records, and stands for as many offsets as its span says. No other flag goes with it.
LOST = 1 << 11
KNOWN_FLAGS = MORE | KEYS | KEY_NULLS | VALUE_NULLS | HEADERS | TIMES_MASK | GAPS

PADDING = tuple(bytes(count) for count in range(8))

_CHECKED = Struct("<IBBHIIIIQIIqqQHHII")
_CHECKED_BYTES = HEADER_BYTES - 4
_CRC = Struct("<I")
_PAIR = Struct("<ii")
_NULL_BITMAP = bytes(8)
# Key id, producer id, epoch and sequence of a frame that has none of them.
_NOBODYS = (0, 0, 0, 0)
# Frames of single records are joined into one of so many bytes at most: beyond it, copying costs more than it saves.
JOINED_BYTES_MAX = 64 << 10
DELTA_MAX = (1 << 31) - 1


class Prepared(NamedTuple):
    """A frame that does not know its place yet: everything but base and chain."""

    codec: int
    flags: int
    count: int  # type: ignore[assignment]  # A frame is never searched as a tuple.
    body: bytes
    raw_length: int
    body_crc: int
    span: int
    min_time: int
    max_time: int
    key_id: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = 0

    @property
    def size(self) -> int:
        """Bytes the frame takes in a segment."""
        return HEADER_BYTES + len(self.body) + 7 & ~7


# Bound once, and made without the checks of their own constructor: a frame of one record is built for every append.
_pack_checked, _pack_crc, _pack_pair = _CHECKED.pack, _CRC.pack, _PAIR.pack
_prepared: Callable[[type[Prepared], tuple[Any, ...]], Prepared] = tuple.__new__


class Placed(NamedTuple):
    """A group of frames ready for one vectored write."""

    buffers: list[bytes]
    size: int
    span: int
    chain: int
    # Position of the last frame's header within the group.
    last: int


class Header(NamedTuple):
    """A frame's header as read and checked."""

    codec: int
    flags: int
    count: int  # type: ignore[assignment]  # A header is never searched as a tuple.
    body_length: int
    raw_length: int
    body_crc: int
    base: int
    span: int
    key_id: int
    min_time: int
    max_time: int
    producer_id: int
    producer_epoch: int
    sequence: int
    chain: int
    crc: int

    @property
    def size(self) -> int:
        """Bytes from this header to where the next one begins."""
        return HEADER_BYTES + self.body_length + 7 & ~7

    @property
    def length(self) -> int:
        """Bytes of the frame itself: the padding behind them is no data, and a file may end in it."""
        return HEADER_BYTES + self.body_length

    @property
    def more(self) -> bool:
        """Whether the next frame belongs to the same write."""
        return bool(self.flags & MORE)

    @property
    def lost(self) -> bool:
        """Whether this is a placeholder for records that were lost, which a repair left."""
        return self.flags == LOST


def prepare_one(value: bytes | None, key: bytes | None, headers: bytes, time: int, codec: int = 0) -> Prepared:
    """Build the frame of a single record."""
    if value is not None and key is None and not headers:
        flags = 0
        body = _pack_pair(0, len(value)) + value
    else:
        flags, body = _body_of_one(value, key, headers)
    if codec or len(body) > FRAME_BODY_BYTES_MAX:
        return _seal(flags, 1, body, time, time, codec)
    return _prepared(Prepared, (0, flags, 1, body, len(body), crc32c(body), 1, time, time, 0, 0, 0, 0))


def prepare(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[bytes] | None,
    times: int | Sequence[int],
    codec: int = 0,
    since: int = 0,
    bytes_max: int | None = None,
) -> list[Prepared]:
    """Build as few frames as hold the records; all but the last are flagged MORE. Times are counted from `since`.

    LimitError, before any is built, when the records have more bytes than `bytes_max`.
    """
    count = len(values)
    for name, given in (("keys", keys), ("headers", headers), ("times", times)):
        if given is not None and not isinstance(given, int) and len(given) != count:
            raise ValueError(f"There are {count} values but {len(given)} {name}.")
    if not count:
        return []
    value_column = _BlobColumn(values)
    key_column = _BlobColumn(keys) if keys is not None and keys.count(None) != count else None
    header_column = _BlobColumn(headers) if headers is not None and any(headers) else None
    present = [column for column in (value_column, key_column, header_column) if column is not None]
    if count <= FRAME_RECORDS_MAX and sum(column.ends[-1] for column in present) <= FRAME_BYTES_TARGET:
        return [_assemble(value_column, key_column, header_column, times, codec, since)]
    weights = value_column.ends
    for column in present[1:]:
        weights = list(map(add, weights, column.ends))
    if bytes_max is not None:
        check_total(weights[-1], bytes_max)
    frames = []
    for first, stop in cuts(weights):
        frame = _assemble(
            value_column.cut(first, stop),
            key_column and key_column.cut(first, stop),
            header_column and header_column.cut(first, stop),
            times if isinstance(times, int) else times[first:stop],
            codec,
            since,
        )
        frames.append(frame if stop == count else frame._replace(flags=frame.flags | MORE))
    return frames


def check_total(size: int, maximum: int) -> None:
    """Refuse more bytes than one write to a partition can take."""
    if size > maximum:
        raise LimitError(
            f"One call would write {size:,} bytes to one partition; the maximum is {maximum:,}.",
            hint="Nothing of this call was written; write in smaller parts, or let a producer() do it.",
        )


def join(frames: Sequence[Prepared]) -> Sequence[Prepared]:
    """Frames of one record each as a single frame, which takes less of everything; any others as they are."""
    if not 1 < len(frames) <= FRAME_RECORDS_MAX or sum([len(frame.body) for frame in frames]) > JOINED_BYTES_MAX:
        return frames
    shapes = {frame[:3] for frame in frames}
    if {frame[9:] for frame in frames} != {_NOBODYS}:
        return frames
    times = [frame.min_time for frame in frames]
    if shapes == {(codecs.NONE, 0, 1)}:
        return prepare([frame.body[8:] for frame in frames], None, None, times)
    if any(codec or count != 1 or flags & ~(KEYS | HEADERS | VALUE_NULLS) for codec, flags, count in shapes):
        return frames
    values, keys, headers = zip(*[_record_of(frame.flags, frame.body) for frame in frames], strict=True)
    return prepare(values, keys, headers, times)


def cuts(ends: Sequence[int], first: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
    """Split records whose bytes add up to `ends` (count + 1 numbers) into stretches of a frame each."""
    ranges = []
    last = len(ends) - 1 if stop is None else stop
    while first < last:
        fitting = bisect_right(ends, ends[first] + FRAME_BYTES_TARGET, first + 1, last + 1) - 1
        upper = min(max(fitting, first + 1), first + FRAME_RECORDS_MAX)
        ranges.append((first, upper))
        first = upper
    return ranges


def place(frames: Sequence[Prepared], base: int, chain: int) -> Placed:
    """Give each frame its offset and its link to the one before; bodies are not copied."""
    buffers: list[bytes] = []
    size = span = last = 0
    for frame in frames:
        head, chain = _head(frame, base + span, chain)
        body = frame.body
        length = len(body)
        last = size
        buffers.append(head)
        buffers.append(body)
        if length & 7:
            buffers.append(PADDING[-length & 7])
        size += HEADER_BYTES + length + 7 & ~7
        span += frame.span
    return Placed(buffers, size, span, chain, last)


def place_one(frame: Prepared, base: int, chain: int) -> tuple[bytes, int]:
    """The whole padded frame in one piece, and the chain after it."""
    codec, flags, count, body, raw_length, body_crc, span, low, high, key_id, producer, epoch, sequence = frame
    length = len(body)
    head = _pack_checked(
        MAGIC, VERSION, codec, flags, count, length, raw_length, body_crc, base, span, key_id, low, high,
        producer, epoch, 0, sequence, chain,
    )  # fmt: skip
    crc = crc32c(head)
    return b"".join((head, _pack_crc(crc), body, PADDING[-length & 7])), crc


def read_header(buffer: ReadableBuffer, position: int = 0) -> Header | None:
    """The header at a position; None when there is no frame there.

    Raises VersionError when the header is whole but says something that only a newer version knows.
    """
    view = memoryview(buffer)
    if position < 0 or position + HEADER_BYTES > view.nbytes:
        return None
    (
        magic, version, codec, flags, count, body_length, raw_length, body_crc, base, span, key_id, low, high,
        producer, epoch, _, sequence, chain, crc,
    ) = HEADER.unpack_from(view, position)  # fmt: skip
    if magic != MAGIC or crc != crc32c(view[position : position + _CHECKED_BYTES]):  # rule: frame header's checksum
        return None
    if version != VERSION or flags & ~KNOWN_FLAGS or flags & TIMES_MASK == TIMES_MASK or codec not in codecs.KNOWN:
        if (version, codec, flags) == (VERSION, 0, LOST):
            if count or not span or body_length != raw_length or raw_length > LOST_BYTES_MAX or low > high:
                return None
            return Header(
                codec, flags, count, body_length, raw_length, body_crc, base, span, key_id, low, high,
                producer, epoch, sequence, chain, crc,
            )  # fmt: skip
        raise VersionError(
            f"The frame at position {position} has version {version}, codec {codec} and flags {flags:#06x}, "
            "which this version of Tailrace does not know."
        )
    if (
        not 0 < count <= FRAME_RECORDS_MAX
        or (span < count if flags & GAPS else span != count)
        or raw_length > FRAME_BODY_BYTES_MAX
        or body_length > raw_length
        or (body_length != raw_length and not codec)
        or low > high
    ):
        return None
    return Header(
        codec, flags, count, body_length, raw_length, body_crc, base, span, key_id, low, high,
        producer, epoch, sequence, chain, crc,
    )  # fmt: skip


def prepare_lost(span: int, note: bytes, low: int, high: int) -> Prepared:
    """Build a placeholder for so many offsets; the note says why, and the times are those of its neighbours."""
    return Prepared(codecs.NONE, LOST, 0, note, len(note), crc32c(note), span, low, high)


def body_fits(buffer: ReadableBuffer, position: int, header: Header) -> bool:
    """Whether the body of the frame at a position lies within the buffer and is undamaged."""
    start = position + HEADER_BYTES
    body = memoryview(buffer)[start : start + header.body_length]
    return body.nbytes == header.body_length and crc32c(body) == header.body_crc  # rule: frame body's checksum


def salt_chain(salt: int) -> int:
    """What the first frame of a segment carries as its chain."""
    return crc32c(salt.to_bytes(8, "little"))


def seal(flags: int, count: int, columns: Sequence[ReadableBuffer], low: int, high: int, codec: int) -> Prepared:
    """Build a frame from its columns in the order of the format; each but the last is padded here."""
    pieces: list[ReadableBuffer] = []
    for column in columns:
        pieces.append(column)
        pieces.append(PADDING[-memoryview(column).nbytes & 7])
    return _seal(flags, count, b"".join(pieces[:-1]), low, high, codec)


class _BlobColumn:
    """Byte strings of one column, with the running sum of their lengths."""

    __slots__ = ("ends", "items", "nulls")

    def __init__(self, items: Sequence[bytes | None]) -> None:
        # Nulls are rare and len() refuses them, so that a column without any is not searched for them.
        self.items: Sequence[bytes]
        self.nulls: Sequence[bytes | None] | None = None
        try:
            self.ends = list(accumulate(map(len, items), initial=0))  # type: ignore[arg-type]
            self.items = items  # type: ignore[assignment]
        except TypeError:
            self.nulls = items
            self.items = [b"" if item is None else item for item in items]
            self.ends = list(accumulate(map(len, self.items), initial=0))

    def cut(self, first: int, stop: int) -> _BlobColumn:
        return _BlobColumn((self.items if self.nulls is None else self.nulls)[first:stop])

    def bitmap(self) -> bytes:
        """Which items are not null; empty when all are."""
        if self.nulls is None:
            return b""
        bits = "".join(["0" if item is None else "1" for item in reversed(self.nulls)])
        return int(bits, 2).to_bytes(len(bits) + 7 >> 3, "little")


def _assemble(
    values: _BlobColumn,
    keys: _BlobColumn | None,
    headers: _BlobColumn | None,
    times: int | Sequence[int],
    codec: int,
    since: int,
) -> Prepared:
    count = len(values.items)
    if isinstance(times, int):
        flags, low, high, column = 0, since + times, since + times, b""
    else:
        flags, low, high, column = time_column(times, since)
    # All items are joined once, straight into the body.
    pieces: list[bytes] = [column, PADDING[-len(column) & 7]]
    length = len(column) + 7 & ~7
    for blob, present, nulls in ((keys, KEYS, KEY_NULLS), (headers, HEADERS, 0), (values, 0, VALUE_NULLS)):
        if blob is None:
            continue
        flags |= present
        size = blob.ends[-1]
        bitmap = blob.bitmap() if nulls else b""
        if bitmap:
            flags |= nulls
            pieces += (bitmap, PADDING[-len(bitmap) & 7])
        _check_length(size)
        pieces += (pack(f"<{count + 1}i", *blob.ends), PADDING[4 * ~count & 7])
        pieces += blob.items
        pieces.append(PADDING[-size & 7])
        length += (len(bitmap) + 7 & ~7) + (4 * count + 11 & ~7) + (size + 7 & ~7)
    pieces.pop()
    length -= -values.ends[-1] & 7
    raw = b"".join(pieces)
    if len(raw) != length:
        raise TypeError("A memoryview must be one-dimensional and of bytes.")
    return _seal(flags, count, raw, low, high, codec)


def time_column(times: Sequence[int], since: int = 0) -> tuple[int, int, int, bytes]:
    """Flag, smallest, largest and column (empty when all are equal) of a frame's timestamps."""
    if since:
        # They were taken from a clock, so they are nearly always in order: then sorting is the cheapest look at all.
        ordered = sorted(times)
        low, high = ordered[0], ordered[-1]
    else:
        low, high = min(times), max(times)
    if low == high:
        return 0, since + low, since + high, b""
    if high - low <= DELTA_MAX:
        deltas = [time - low for time in times] if low else times
        return TIMES_DELTA, since + low, since + high, pack(f"<{len(times)}i", *deltas)
    return TIMES_FULL, since + low, since + high, pack(f"<{len(times)}q", *[since + time for time in times])


def _body_of_one(value: bytes | None, key: bytes | None, headers: bytes) -> tuple[int, bytes]:
    flags = 0
    pieces: list[bytes] = []
    if key is not None:
        flags |= KEYS
        pieces += (_PAIR.pack(0, len(key)), key, PADDING[-len(key) & 7])
    if headers:
        flags |= HEADERS
        pieces += (_PAIR.pack(0, len(headers)), headers, PADDING[-len(headers) & 7])
    if value is None:
        flags |= VALUE_NULLS
        pieces += (_NULL_BITMAP, _PAIR.pack(0, 0))
    else:
        pieces += (_PAIR.pack(0, len(value)), value)
    return flags, b"".join(pieces)


def _record_of(flags: int, body: bytes) -> tuple[bytes | None, bytes | None, bytes]:
    """Value, key and headers of a body that `_body_of_one` made."""
    at = 0
    found: list[bytes | None] = [None, b""]
    for column, present in enumerate((KEYS, HEADERS)):
        if flags & present:
            stop = at + 8 + _PAIR.unpack_from(body, at)[1]
            found[column] = body[at + 8 : stop]
            at = stop + 7 & ~7
    return None if flags & VALUE_NULLS else body[at + 8 :], found[0], found[1] or b""


def _seal(flags: int, count: int, raw: bytes, low: int, high: int, codec: int) -> Prepared:
    raw_length = len(raw)
    _check_length(raw_length)
    body = raw
    if codec:
        body = codecs.compress(codec, raw)
        if len(body) >= raw_length:
            # What does not shrink is stored as it is, so that a stored body is never longer than a raw one.
            codec, body = codecs.NONE, raw
    return Prepared(codec, flags, count, body, raw_length, crc32c(body), count, low, high)


def _check_length(length: int) -> None:
    if length > FRAME_BODY_BYTES_MAX:
        raise LimitError(f"A record is larger than the {FRAME_BODY_BYTES_MAX} bytes a frame can hold.")


def _head(frame: Prepared, base: int, chain: int) -> tuple[bytes, int]:
    codec, flags, count, body, raw_length, body_crc, span, low, high, key_id, producer, epoch, sequence = frame
    head = _CHECKED.pack(
        MAGIC, VERSION, codec, flags, count, len(body), raw_length, body_crc, base, span, key_id, low, high,
        producer, epoch, 0, sequence, chain,
    )  # fmt: skip
    crc = crc32c(head)
    return head + _CRC.pack(crc), crc
