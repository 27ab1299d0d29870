"""The frame: a batch of records as bytes, per docs/format.md section 2."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
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
    # Columns are viewed in place, which on a big-endian machine would reverse the bytes of every number.
    raise ImportError("Tailrace needs a little-endian machine")

MAGIC = 0x31465254
VERSION = 1
HEADER = Struct("<IBBHIIIIQIIqq32sII")
HEADER_BYTES = 96

MORE = 1 << 0
KEYS = 1 << 1
KEY_NULLS = 1 << 2
VALUE_NULLS = 1 << 3
HEADERS = 1 << 4
TIMES_MASK = 3 << 5
TIMES_DELTA = 1 << 5
TIMES_FULL = 2 << 5
EXPIRY_MASK = 3 << 7
EXPIRY_ONE = 1 << 7
EXPIRY_EACH = 2 << 7
GAPS = 1 << 9
# Placeholders: for records that were lost, and for records that were removed on purpose. Their span is the number of
# offsets. No other flag is set with either.
LOST = 1 << 11
REMOVED = 1 << 12
KNOWN_FLAGS = MORE | KEYS | KEY_NULLS | VALUE_NULLS | HEADERS | TIMES_MASK | EXPIRY_MASK | GAPS
# The expiry of a record that does not expire, in a column with those of records that do.
NEVER = (1 << 63) - 1
# The upper bound of the expiry of records of which one does not expire.
EXPIRY_OPEN = (1 << 32) - 1
# Expiries are kept within what the bounds in a header can hold: the first second of 1970 means that nothing expires.
EXPIRY_US_MIN, EXPIRY_US_MAX = 1_000_000, (EXPIRY_OPEN - 1) * 1_000_000
# The body of a placeholder for removed records: a frame without a body at the end of a segment would not be read.
REMOVED_BODY = bytes(8)

PADDING = tuple(bytes(count) for count in range(8))

_CHECKED = Struct("<IBBHIIIIQIIqq32sI")
_CHECKED_BYTES = HEADER_BYTES - 4
_CRC = Struct("<I")
_PAIR = Struct("<ii")
_NULL_BITMAP = bytes(8)
# The attributes of a frame: producer id, its epoch, schema version, sequence, bounds of the expiry, 8 reserved bytes.
ATTRIBUTES = Struct("<QHHIII8s")
# A frame that has none of them. They stay packed until their first use: nearly every frame has these.
PLAIN = bytes(ATTRIBUTES.size)
# The bounds of the expiry among the attributes; those before them, of the producer and the schema, may be ignored.
_EXPIRY_BOUNDS = Struct("<II")
_EXPIRY_AT = 16
_RESERVED_AT = 24
_NO_EXPIRY, _NO_IDENTITY, _NOT_RESERVED = bytes(8), bytes(_EXPIRY_AT), bytes(8)
# The version of the schema stands between the producer with its epoch and the sequence.
_SCHEMA_AT, _SEQUENCE_AT = 10, 12
_NO_PRODUCER = bytes(_EXPIRY_AT - 2)
_EXPIRING = Struct("<16xII8x")
# The identity of a write with a dedupe id: the digest as its producer, this epoch, and as the sequence of a frame the
# index of its first record within the write. No other producer has this epoch.
DEDUPE_EPOCH = 65_535
_PRODUCER, _SEQUENCE = Struct("<QH"), Struct("<I")
_INT64 = Struct("<q")
_EXPIRING_PAIR = Struct("<qii")
# Frames of single records are joined into one of at most this many bytes: above it, copying costs more than it saves.
JOINED_BYTES_MAX = 64 << 10
DELTA_MAX = (1 << 31) - 1


class Prepared(NamedTuple):
    """A frame without its position: everything but base and chain."""

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
    attributes: bytes = PLAIN

    @property
    def size(self) -> int:
        """The bytes of the frame in a segment."""
        return HEADER_BYTES + len(self.body) + 7 & ~7


# Bound once, and made without their own constructor: a frame of one record is built for every append.
_pack_checked, _pack_crc, _pack_pair, _pack_expiring_pair = _CHECKED.pack, _CRC.pack, _PAIR.pack, _EXPIRING_PAIR.pack
_prepared: Callable[[type[Prepared], tuple[Any, ...]], Prepared] = tuple.__new__


class Placed(NamedTuple):
    """A write group of frames, ready for one vectored write."""

    buffers: list[bytes]
    size: int
    span: int
    chain: int
    # Position of the last frame's header within the write group.
    last: int


class Attributes(NamedTuple):
    """The origin of a frame's records and their expiry; all 0 for most frames."""

    producer_id: int = 0
    producer_epoch: int = 0
    schema_version: int = 0
    sequence: int = 0
    expiry_low: int = 0
    expiry_high: int = 0

    def pack(self) -> bytes:
        """Return the 32 bytes of a header, the last 8 of which are reserved."""
        return ATTRIBUTES.pack(*self, bytes(8))

    @classmethod
    def unpack(cls, packed: bytes) -> Attributes:
        """Return the attributes in a header."""
        return cls(*ATTRIBUTES.unpack(packed)[:-1])


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
    attributes: bytes
    chain: int
    crc: int

    @property
    def size(self) -> int:
        """The bytes from this header to the start of the next one."""
        return HEADER_BYTES + self.body_length + 7 & ~7

    @property
    def length(self) -> int:
        """The bytes of the frame itself: the padding after them is no data, and a file may end in it."""
        return HEADER_BYTES + self.body_length

    @property
    def more(self) -> bool:
        """Whether the next frame belongs to the same write."""
        return bool(self.flags & MORE)

    @property
    def placeholder(self) -> bool:
        """Whether the frame holds no records, and replaces as many offsets as its span says."""
        return not self.count

    @property
    def lost(self) -> bool:
        """Whether this is a placeholder for lost records, which a repair wrote."""
        return self.flags == LOST

    @property
    def removed(self) -> bool:
        """Whether this is a placeholder for records that were removed on purpose."""
        return self.flags == REMOVED

    @property
    def expiry(self) -> tuple[int, int]:
        """The bounds of the expiry in seconds; both 0 if no record expires."""
        return expiry_bounds(self.attributes)


def expiry_bounds(attributes: bytes) -> tuple[int, int]:
    """Return the bounds of the expiry in a frame's attributes, in seconds; both 0 if no record expires."""
    low, high = _EXPIRY_BOUNDS.unpack_from(attributes, _EXPIRY_AT)
    return low, high


@lru_cache(maxsize=64)
def _expiring(low: int, high: int) -> bytes:
    """Return the attributes of records that expire; one object for the appends of a second, which often share them."""
    return _EXPIRING.pack(low, high)


@lru_cache(maxsize=64)
def identity_of_schema(version: int) -> bytes:
    """Return the attributes of records that were checked with a version of their topic's schema."""
    return Attributes(schema_version=version).pack()


@lru_cache(maxsize=256)
def _identified(identity: bytes, attributes: bytes) -> bytes:
    """Return attributes with those of an identity; one object for frames that follow each other."""
    return identity[:_EXPIRY_AT] + attributes[_EXPIRY_AT:]


def schema_version(frame: Prepared) -> int:
    """Return the version of the schema that the records of a frame were checked with; 0 if there was none."""
    attributes = frame.attributes
    return 0 if attributes is PLAIN else int.from_bytes(attributes[_SCHEMA_AT:_SEQUENCE_AT], "little")


def with_identity(frame: Prepared, identity: bytes) -> Prepared:
    """Return a frame with the producer, schema and sequence of some attributes, and with its own expiry."""
    attributes = frame.attributes
    return frame._replace(attributes=identity if attributes is PLAIN else _identified(identity, attributes))
def identified(frames: Sequence[Prepared], digest: int) -> list[Prepared]:
    """Return the frames of one write to a partition with the digest of its dedupe id as their identity."""
    made, sequence = [], 0
    for frame in frames:
        made.append(frame._replace(attributes=_of_write(frame.attributes, digest, sequence)))
        sequence += frame.span
    return made


def identified_one(frame: Prepared, digest: int) -> Prepared:
    """Return the same as `identified` of one frame."""
    *rest, attributes = frame
    return _prepared(Prepared, (*rest, _of_write(attributes, digest, 0)))


def _of_write(attributes: bytes, digest: int, sequence: int) -> bytes:
    """Return attributes with the identity of a write, and with the schema and the expiry that they have."""
    producer, rest = _PRODUCER.pack(digest, DEDUPE_EPOCH), attributes[_EXPIRY_AT:]
    return producer + attributes[_SCHEMA_AT:_SEQUENCE_AT] + _SEQUENCE.pack(sequence) + rest


def later_expiry(high: int, other: int) -> int:
    """Return the upper bound of the expiry of two sets of records, from that of each; 0 if no record expires."""
    return max(high, other) if bool(high) == bool(other) else EXPIRY_OPEN


def prepare_one(
    value: bytes | None, key: bytes | None, headers: bytes, time: int, codec: int = 0, expiry: int = 0
) -> Prepared:
    """Build the frame of a single record; an expiry of 0 means that it does not expire."""
    attributes = PLAIN
    if value is not None and key is None and not headers:
        if expiry:
            flags = EXPIRY_ONE
            body = _pack_expiring_pair(expiry, 0, len(value)) + value
            attributes = _expiring(expiry // 1_000_000, -(-expiry // 1_000_000))
        else:
            flags = 0
            body = _pack_pair(0, len(value)) + value
    else:
        flags, body = _body_of_one(value, key, headers)
        if expiry:
            flags |= EXPIRY_ONE
            body = _INT64.pack(expiry) + body
            attributes = _expiring(expiry // 1_000_000, -(-expiry // 1_000_000))
    if codec or len(body) > FRAME_BODY_BYTES_MAX:
        return _seal(flags, 1, body, time, time, codec, attributes)
    return _prepared(Prepared, (0, flags, 1, body, len(body), crc32c(body), 1, time, time, 0, attributes))


def prepare(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[bytes] | None,
    times: int | Sequence[int],
    codec: int = 0,
    since: int = 0,
    bytes_max: int | None = None,
    expiry: int | Sequence[int] = 0,
) -> list[Prepared]:
    """Build as few frames as hold the records; all but the last are flagged MORE. Times are relative to `since`.

    `expiry` is that of all records (0: they do not expire), or of each (NEVER for one that does not). Raise LimitError,
    before any frame is built, if the records have more bytes than `bytes_max`.
    """
    count = len(values)
    for name, given in (("keys", keys), ("headers", headers), ("times", times), ("expiries", expiry)):
        if given is not None and not isinstance(given, int) and len(given) != count:
            raise ValueError(f"There are {count} values but {len(given)} {name}.")
    if not count:
        return []
    value_column = _BlobColumn(values)
    key_column = _BlobColumn(keys) if keys is not None and keys.count(None) != count else None
    header_column = _BlobColumn(headers) if headers is not None and any(headers) else None
    present = [column for column in (value_column, key_column, header_column) if column is not None]
    if count <= FRAME_RECORDS_MAX and sum(column.ends[-1] for column in present) <= FRAME_BYTES_TARGET:
        return [_assemble(value_column, key_column, header_column, times, codec, since, expiry)]
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
            expiry if isinstance(expiry, int) else expiry[first:stop],
        )
        frames.append(frame if stop == count else frame._replace(flags=frame.flags | MORE))
    return frames


def seal_joined(
    flags: int, count: int, raw: bytes, low: int, high: int, codec: int, identity: bytes, attributes: bytes, span: int
) -> Prepared:
    """Build a frame from a body of padded columns, of which records may be missing in between: then it has a span.

    `identity` are the attributes of which producer, schema and sequence are taken over; the others have the expiry.
    """
    if identity[:_EXPIRY_AT] != _NO_IDENTITY:
        attributes = identity[:_EXPIRY_AT] + attributes[_EXPIRY_AT:]
    return _seal(flags, count, raw, low, high, codec, attributes, span)


def stored(header: Header, body: bytes) -> Prepared:
    """Return a frame as it was stored, to be placed elsewhere: the end of a write group."""
    return Prepared(
        header.codec, header.flags & ~MORE, header.count, body, header.raw_length, header.body_crc, header.span,
        header.min_time, header.max_time, header.key_id, PLAIN if header.attributes == PLAIN else header.attributes,
    )  # fmt: skip


def check_total(size: int, maximum: int) -> None:
    """Raise LimitError for more bytes than one write to a partition can take."""
    if size > maximum:
        raise LimitError(
            f"One call would write {size:,} bytes to one partition; the maximum is {maximum:,}.",
            hint="Nothing of this call was written; write in smaller parts, or let a producer() do it.",
        )


def join(frames: Sequence[Prepared]) -> Sequence[Prepared]:
    """Return frames of one record each as a single frame, which is smaller and faster; any others unchanged."""
    if not 1 < len(frames) <= FRAME_RECORDS_MAX:
        return frames
    values: list[bytes] = []
    times: list[int] = []
    length = 0
    for codec, flags, count, body, _, _, _, time, _, key_id, attributes in frames:
        length += len(body)
        if length > JOINED_BYTES_MAX:
            return frames
        if codec or flags or count != 1 or key_id or attributes != PLAIN:
            return _join_any(frames)
        values.append(body[8:])
        times.append(time)
    # The same as `prepare` makes of them, without what only other records need: a leader does this for each group.
    count = len(values)
    ends = pack(f"<{count + 1}i", *accumulate(map(len, values), initial=0))
    flags, low, high, column = time_column(times)
    body = b"".join((column, PADDING[-len(column) & 7], ends, PADDING[4 * ~count & 7], *values))
    return [_seal(flags, count, body, low, high, codecs.NONE)]


def _is_numbered(identity: bytes) -> bool:
    """Return whether the first attributes of a frame name a producer, whose records are numbered."""
    return identity != _NO_IDENTITY and identity[:_SCHEMA_AT] + identity[_SEQUENCE_AT:] != _NO_PRODUCER


def _join_any(frames: Sequence[Prepared]) -> Sequence[Prepared]:
    """Do the work of `join` for frames that have more than a value."""
    if sum([len(frame.body) for frame in frames]) > JOINED_BYTES_MAX:
        return frames
    shapes = {frame[:3] for frame in frames}
    if any(frame.key_id for frame in frames):
        return frames
    identity = frames[0].attributes
    own = identity[:_EXPIRY_AT]
    if _is_numbered(own) or any(frame.attributes[:_EXPIRY_AT] != own for frame in frames):
        # A frame of a producer, or of a write with an id, has a sequence, and stays a frame of its own. Those between
        # such frames are joined if they have one schema.
        stretches = groupby(frames, lambda frame: frame.attributes[:_EXPIRY_AT])
        made = [frame for each, some in stretches for frame in (some if _is_numbered(each) else join([*some]))]
        return made if len(made) < len(frames) else frames
    if any(
        codec or count != 1 or flags & ~(KEYS | HEADERS | VALUE_NULLS | EXPIRY_ONE) for codec, flags, count in shapes
    ):
        return frames
    values, keys, headers, expiries = zip(*[_record_of(frame.flags, frame.body) for frame in frames], strict=True)
    joined = prepare(values, keys, headers, [frame.min_time for frame in frames], expiry=expiries)
    return joined if own == _NO_IDENTITY else [with_identity(frame, identity) for frame in joined]


def cuts(ends: Sequence[int], first: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
    """Split records into ranges of a frame each; `ends` is the running sum of their bytes (count + 1 numbers)."""
    ranges = []
    last = len(ends) - 1 if stop is None else stop
    while first < last:
        fitting = bisect_right(ends, ends[first] + FRAME_BYTES_TARGET, first + 1, last + 1) - 1
        upper = min(max(fitting, first + 1), first + FRAME_RECORDS_MAX)
        ranges.append((first, upper))
        first = upper
    return ranges


def place(frames: Sequence[Prepared], base: int, chain: int) -> Placed:
    """Give each frame its offset and its link to the previous one; bodies are not copied."""
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
    """Return the whole padded frame as one buffer, and the chain after it."""
    return place_counted(frame, base, chain)[:2]


def place_counted(frame: Prepared, base: int, chain: int) -> tuple[bytes, int, int, int, int, int, bytes]:
    """Return the same as `place_one`, then count, span, bounds of the times and attributes, which an index takes.

    Together, because taking a frame apart costs as much as a short call.
    """
    codec, flags, count, body, raw_length, body_crc, span, low, high, key_id, attributes = frame
    length = len(body)
    head = _pack_checked(
        MAGIC, VERSION, codec, flags, count, length, raw_length, body_crc, base, span, key_id, low, high,
        attributes, chain,
    )  # fmt: skip
    crc = crc32c(head)
    return b"".join((head, _pack_crc(crc), body, PADDING[-length & 7])), crc, count, span, low, high, attributes


def read_header(buffer: ReadableBuffer, position: int = 0) -> Header | None:
    """Return the header at a position; None if there is no frame there.

    Raise VersionError if the header is whole but has a value that only a newer version knows.
    """
    view = memoryview(buffer)
    if position < 0 or position + HEADER_BYTES > view.nbytes:
        return None
    (
        magic, version, codec, flags, count, body_length, raw_length, body_crc, base, span, key_id, low, high,
        attributes, chain, crc,
    ) = HEADER.unpack_from(view, position)  # fmt: skip
    if magic != MAGIC or crc != crc32c(view[position : position + _CHECKED_BYTES]):  # rule: frame header's checksum
        return None
    if (
        version != VERSION
        or flags & ~KNOWN_FLAGS
        or flags & TIMES_MASK == TIMES_MASK
        or flags & EXPIRY_MASK == EXPIRY_MASK
        or codec not in codecs.KNOWN
        or key_id
        or (attributes != PLAIN and not _attributes_fit(flags, attributes))
    ):
        if _refuse_newer(position, version, codec, flags, key_id, attributes):
            return None
        if count or not span or body_length != raw_length or raw_length > LOST_BYTES_MAX or low > high:
            return None
        if flags == REMOVED and raw_length != len(REMOVED_BODY):
            return None
    elif (
        not 0 < count <= FRAME_RECORDS_MAX
        or (span < count if flags & GAPS else span != count)
        or raw_length > FRAME_BODY_BYTES_MAX
        or body_length > raw_length
        or (body_length != raw_length and not codec)
        or low > high
        or (flags & EXPIRY_MASK and attributes[_EXPIRY_AT:_RESERVED_AT] == _NO_EXPIRY)
    ):
        return None
    return Header(
        codec, flags, count, body_length, raw_length, body_crc, base, span, key_id, low, high, attributes, chain, crc
    )


def _attributes_fit(flags: int, attributes: bytes) -> bool:
    """Return whether the attributes have no reserved bytes, and bounds of the expiry where the flags say so."""
    if attributes[_RESERVED_AT:] != _NOT_RESERVED:
        return False
    low, high = expiry_bounds(attributes)
    return 0 < low <= high if flags & EXPIRY_MASK else not (low or high)


def _refuse_newer(position: int, version: int, codec: int, flags: int, key_id: int, attributes: bytes) -> bool:
    """Raise VersionError that names what only a newer version knows.

    Otherwise return whether the frame is invalid; False for a placeholder.
    """
    *_, low, high, reserved = ATTRIBUTES.unpack(attributes)
    placeholder = flags in (LOST, REMOVED)
    if version != VERSION:
        what = f"has version {version}"
    elif codec not in codecs.KNOWN:
        what = f"is compressed with codec {codec}"
    elif not placeholder and (
        flags & ~KNOWN_FLAGS or flags & TIMES_MASK == TIMES_MASK or flags & EXPIRY_MASK == EXPIRY_MASK
    ):
        what = f"has the flags {flags:#06x}"
    elif key_id:
        what = "is encrypted"
    elif any(reserved):
        what = f"has the reserved bytes {reserved.hex()}"
    elif codec and placeholder:
        what = "is a placeholder and compressed"
    else:
        return not placeholder or bool(low or high)
    raise VersionError(
        f"The frame at position {position} {what}: it was written by a newer version of Tailrace, "
        "and this one does not know how to read it."
    )


def prepare_lost(span: int, note: bytes, low: int, high: int) -> Prepared:
    """Build a placeholder for `span` offsets; the note says why, and the times are those of its neighbours."""
    return Prepared(codecs.NONE, LOST, 0, note, len(note), crc32c(note), span, low, high)


def prepare_removed(span: int, low: int, high: int) -> Prepared:
    """Build a placeholder for `span` offsets whose records were removed on purpose, with their times."""
    return Prepared(codecs.NONE, REMOVED, 0, REMOVED_BODY, len(REMOVED_BODY), crc32c(REMOVED_BODY), span, low, high)


def body_fits(buffer: ReadableBuffer, position: int, header: Header) -> bool:
    """Return whether the body of the frame at a position is within the buffer and undamaged."""
    start = position + HEADER_BYTES
    body = memoryview(buffer)[start : start + header.body_length]
    return body.nbytes == header.body_length and crc32c(body) == header.body_crc  # rule: frame body's checksum


def salt_chain(salt: int) -> int:
    """Return the chain of the first frame of a segment."""
    return crc32c(salt.to_bytes(8, "little"))


def seal(
    flags: int,
    count: int,
    columns: Sequence[ReadableBuffer],
    low: int,
    high: int,
    codec: int,
    attributes: bytes = PLAIN,
    span: int = 0,
) -> Prepared:
    """Build a frame from its columns in the order of the format; each but the last is padded here.

    `span` is given for a frame with gaps.
    """
    pieces: list[ReadableBuffer] = []
    for column in columns:
        pieces.append(column)
        pieces.append(PADDING[-memoryview(column).nbytes & 7])
    return _seal(flags, count, b"".join(pieces[:-1]), low, high, codec, attributes, span)


class _BlobColumn:
    """Byte strings of one column, with the running sum of their lengths."""

    __slots__ = ("ends", "items", "nulls")

    def __init__(self, items: Sequence[bytes | None]) -> None:
        # Nulls are rare and len() refuses them, so a column without nulls is not searched for them.
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
        """Return the validity bitmap; empty if no item is null."""
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
    expiry: int | Sequence[int] = 0,
) -> Prepared:
    count = len(values.items)
    if isinstance(times, int):
        flags, low, high, column = 0, since + times, since + times, b""
    else:
        flags, low, high, column = time_column(times, since)
    # All items are joined once, directly into the body.
    pieces: list[bytes] = [column, PADDING[-len(column) & 7]]
    length = len(column) + 7 & ~7
    attributes = PLAIN
    if expiry:
        expiring, attributes, column = expiry_column(expiry)
        flags |= expiring
        pieces.append(column)
        length += len(column)
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
    return _seal(flags, count, raw, low, high, codec, attributes)


def time_column(times: Sequence[int], since: int = 0) -> tuple[int, int, int, bytes]:
    """Return flag, smallest, largest and column (empty if all are equal) of a frame's timestamps."""
    if since:
        # They come from a clock and are nearly always in order: then sorting is the cheapest way to find the bounds.
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


def expiry_column(expiry: int | Sequence[int]) -> tuple[int, bytes, bytes]:
    """Return flag, attributes and column of the expiry of a frame's records; NEVER is that of one that does not expire.

    The column is empty if none of them expires.
    """
    low, high = (expiry, expiry) if isinstance(expiry, int) else (min(expiry), max(expiry))
    if low == NEVER:
        return 0, PLAIN, b""
    attributes = _expiring(low // 1_000_000, EXPIRY_OPEN if high == NEVER else -(-high // 1_000_000))
    if isinstance(expiry, int) or low == high:
        return EXPIRY_ONE, attributes, _INT64.pack(low)
    return EXPIRY_EACH, attributes, pack(f"<{len(expiry)}q", *expiry)


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


def _record_of(flags: int, body: bytes) -> tuple[bytes | None, bytes | None, bytes, int]:
    """Return value, key, headers and expiry of a body that `prepare_one` made."""
    at, expiry = 0, NEVER
    if flags & EXPIRY_ONE:
        expiry = _INT64.unpack_from(body)[0]
        at = 8
    found: list[bytes | None] = [None, b""]
    for column, present in enumerate((KEYS, HEADERS)):
        if flags & present:
            stop = at + 8 + _PAIR.unpack_from(body, at)[1]
            found[column] = body[at + 8 : stop]
            at = stop + 7 & ~7
    return None if flags & VALUE_NULLS else body[at + 8 :], found[0], found[1] or b"", expiry


def _seal(
    flags: int,
    count: int,
    raw: bytes,
    low: int,
    high: int,
    codec: int,
    attributes: bytes = PLAIN,
    span: int = 0,
) -> Prepared:
    raw_length = len(raw)
    _check_length(raw_length)
    body = raw
    if codec:
        body = codecs.compress(codec, raw)
        if len(body) >= raw_length:
            # A body that does not shrink is stored uncompressed, so that a stored body is never longer than a raw one.
            codec, body = codecs.NONE, raw
    return Prepared(codec, flags, count, body, raw_length, crc32c(body), span or count, low, high, 0, attributes)


def _check_length(length: int) -> None:
    if length > FRAME_BODY_BYTES_MAX:
        raise LimitError(f"A record is larger than the {FRAME_BODY_BYTES_MAX} bytes a frame can hold.")


def _head(frame: Prepared, base: int, chain: int) -> tuple[bytes, int]:
    codec, flags, count, body, raw_length, body_crc, span, low, high, key_id, attributes = frame
    head = _CHECKED.pack(
        MAGIC, VERSION, codec, flags, count, len(body), raw_length, body_crc, base, span, key_id, low, high,
        attributes, chain,
    )  # fmt: skip
    crc = crc32c(head)
    return head + _CRC.pack(crc), crc
