"""Runs: adjacent frames of one record each, checked in one loop and viewed as the columns of one frame.

Appending record by record makes a frame for each record. Checking one frame, viewing its columns and passing it through
the layers costs six times as much as reading its record here.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.disk.columns import Columns, blob_column
from tailrace.disk.frame import (
    EXPIRY_ONE,
    HEADER_BYTES,
    HEADERS,
    KEYS,
    MAGIC,
    NEVER,
    VALUE_NULLS,
    VERSION,
    crc32c,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# The header fields that a run needs, and the first 8 bytes of the body: the two offsets of a column, or the expiry. The
# span and the key id are one number, and so are the bounds of the expiry.
_HEAD = Struct("<QIIIIQQqq16xQQIIQ")
_CHECKED_BYTES = HEADER_BYTES - 4
# Producer, schema and sequence within a header.
_IDENTITY_AT, _NO_IDENTITY = 56, bytes(16)
_ENDS = Struct("<II")
_LONG = Struct("<Q")
_COUNT = Struct("<I")
_COUNT_AT = 8
# Magic, version, codec and flags of an uncompressed frame as one number, and the flags that a run supports.
_BARE = MAGIC | VERSION << 32
_FLAGS = {_BARE | flags << 48: flags for flags in range(64) if not flags & ~(KEYS | HEADERS | VALUE_NULLS)}
# The same of a record that expires.
_EXPIRING = frozenset(shape | EXPIRY_ONE << 48 for shape in _FLAGS)


class Run(Columns):
    """The records of a run; columns that only Arrow and merging need are built at their first use."""

    __slots__ = ("_headers", "_keys", "_times", "_values")

    def __init__(
        self,
        base_offset: int,
        times: list[int],
        keys: list[bytes | None] | None,
        headers: list[bytes] | None,
        values: list[bytes | None],
        weight: int,
        expiry: list[int] | None = None,
    ) -> None:
        self.count = len(values)
        self.expiry = expiry
        self.expiry_low = 0 if expiry is None else min(expiry)
        self.base_offset = base_offset
        self.offsets = None
        self.time_base = 0
        self.weight = weight
        self._times, self._keys, self._headers, self._values = times, keys, headers, values

    def __getattr__(self, name: str) -> Any:
        """Return a column as bytes; build all of them at the first use of any."""
        if name not in Columns.__slots__:
            raise AttributeError(name)
        self.times = memoryview(array("q", self._times))
        self.key_offsets, self.key_blob, self.key_valid = blob_column(self._keys)
        self.header_offsets, self.header_blob, _ = blob_column(self._headers)
        value_offsets, self.value_blob, self.value_valid = blob_column(self._values)
        assert value_offsets is not None
        self.value_offsets = value_offsets
        return getattr(self, name)

    def row(self, index: int) -> tuple[int, int, bytes | None, bytes | None, bytes]:
        keys, headers = self._keys, self._headers
        return (
            self.base_offset + index,
            self._times[index],
            None if keys is None else keys[index],
            self._values[index],
            b"" if headers is None else headers[index],
        )

    def time(self, index: int) -> int:
        return self._times[index]

    def key(self, index: int) -> bytes | None:
        return None if self._keys is None else self._keys[index]

    def value(self, index: int) -> bytes | None:
        return self._values[index]

    def headers(self, index: int) -> bytes:
        return b"" if self._headers is None else self._headers[index]

    def values(self, first: int = 0, stop: int | None = None) -> list[bytes | None]:
        return self._values[first:stop]

    def keys(self, first: int = 0, stop: int | None = None) -> list[bytes | None] | None:
        return None if self._keys is None else self._keys[first:stop]

    def headers_list(self, first: int = 0, stop: int | None = None) -> list[bytes] | None:
        return None if self._headers is None else self._headers[first:stop]

    def times_list(self, first: int = 0, stop: int | None = None) -> int | list[int]:
        return self._times[first:stop]


class TakenRun(NamedTuple):
    """A run, the position of the next frame in the buffer, and the chain that frame must have."""

    run: Run
    at: int
    chain: int


def begins_run(buffer: ReadableBuffer, at: int) -> bool:
    """Return whether the header at a position says that its frame has one record; nothing is checked yet."""
    count: int = _COUNT.unpack_from(buffer, at + _COUNT_AT)[0]
    return count == 1


def take_run(
    data: bytes, at: int, base: int, offset: int, chain: int, limit: int, *, plain: bool = False
) -> TakenRun | None:
    """Return the longest run of whole frames at a position in a buffer, of at most `limit` records; None if none.

    `offset` is that of the first record within its segment, which starts at `base`. Any unsuitable frame ends the run:
    the reader of single frames reports what is wrong with it. With `plain` so does one of a producer or a schema.
    """
    first, end = offset, len(data)
    stop = offset + limit
    unpack = _HEAD.unpack_from
    times: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: dict[int, bytes] = {}
    expiries: dict[int, int] = {}
    weight = 0
    while offset < stop and at + _HEAD.size <= end:
        shape, count, length, raw, body_crc, own, span, low, high, expiry, rest, link, crc, ends = unpack(data, at)
        start = at + HEADER_BYTES
        after = start + length + 7 & ~7
        if link != chain or own != offset or count != 1 or span != 1 or raw != length or start + length > end:
            break
        body = data[start : start + length]
        if crc32c(data[at : at + _CHECKED_BYTES]) != crc or crc32c(body) != body_crc or low > high or rest:
            break
        if plain and data[at + _IDENTITY_AT : at + _IDENTITY_AT + len(_NO_IDENTITY)] != _NO_IDENTITY:
            break
        if expiry:
            # The first column is the expiry, and `ends` has its bytes.
            if shape not in _EXPIRING or length < 2 * _LONG.size or ends > NEVER:
                break
            expiries[len(values)] = ends
            body = body[_LONG.size :]
            ends = _LONG.unpack_from(body)[0]
            shape ^= EXPIRY_ONE << 48
            length -= _LONG.size
        if shape == _BARE and ends == length - 8 << 32:
            values.append(body[8:])
            keys.append(None)
        else:
            found = _parse(_FLAGS.get(shape, -1), body)
            if found is None:
                break
            key, stored, value = found
            if stored:
                headers[len(values)] = stored
            keys.append(key)
            values.append(value)
        times.append(low)
        weight += length
        offset += 1
        chain = crc
        at = after
    if not values:
        return None
    filled = [headers.get(index, b"") for index in range(len(values))] if headers else None
    known = None if keys.count(None) == len(keys) else keys
    expiring = [expiries.get(index, NEVER) for index in range(len(values))] if expiries else None
    return TakenRun(Run(base + first, times, known, filled, values, weight, expiring), at, chain)


def skim_run(data: bytes, at: int, offset: int, chain: int) -> tuple[int, int, int, int]:
    """Skip whole frames of one record each, each a write group of its own, without reading their records.

    Return where it stopped: position in the buffer, offset within the segment, chain; and the position of the last
    frame, -1 if there was none.
    """
    end, last = len(data), -1
    unpack = _HEAD.unpack_from
    while at + _HEAD.size <= end:
        shape, count, length, raw, body_crc, own, span, low, high, expiry, rest, link, crc, _ = unpack(data, at)
        start = at + HEADER_BYTES
        after = start + length + 7 & ~7
        if (
            link != chain or own != offset or count != 1 or span != 1 or raw != length
            or start + length > end or low > high or rest or shape not in (_EXPIRING if expiry else _FLAGS)
            or crc32c(data[at : at + _CHECKED_BYTES]) != crc or crc32c(data[start : start + length]) != body_crc
        ):  # fmt: skip
            break
        last = at
        offset += 1
        chain = crc
        at = after
    return at, offset, chain, last


def _parse(flags: int, body: bytes) -> tuple[bytes | None, bytes, bytes | None] | None:
    """Return key, headers and value of a frame of one record; None if its columns are not those of one."""
    length = len(body)
    if flags < 0 or length < 8:
        return None
    key, headers, position = None, b"", 0
    if flags & KEYS:
        low, size = _ENDS.unpack_from(body)
        key = body[8 : 8 + size]
        position = size + 15 & ~7
        if low or position + 8 > length:
            return None
    if flags & HEADERS:
        low, size = _ENDS.unpack_from(body, position)
        headers = body[position + 8 : position + 8 + size]
        position = position + size + 15 & ~7
        if low or position + 8 > length:
            return None
    if flags & VALUE_NULLS:
        valid = body[position] & 1
        position += 8
        if position + 8 > length:
            return None
    else:
        valid = 1
    low, size = _ENDS.unpack_from(body, position)
    if low or size != length - position - 8:
        return None
    return key, headers, body[position + 8 :] if valid else None
