"""Records, their headers and their positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.errors import RecordTooLargeError
from tailrace.limits import HEADER_NAME_BYTES_MAX, HEADERS_BYTES_MAX
from tailrace.names import ID_HEADER

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.types import Data

_NAME_LENGTH = Struct("<H")
_VALUE_LENGTH = Struct("<I")


class Position(NamedTuple):
    """The partition and the offset of a record in its topic; unpacks as (partition, offset)."""

    partition: int
    offset: int


class Record(NamedTuple):
    """One record as it was written; a value of None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def timestamp(self) -> datetime:
        """The time of the record, aware, in UTC."""
        return to_datetime(self.timestamp_us)

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        if self.value is None:
            raise ValueError(f"{self._where()} is a tombstone: its value is None and has no text.")
        return self.value.decode("utf-8")

    def json(self) -> Any:
        """Return the value parsed as JSON."""
        if self.value is None:
            raise ValueError(f"{self._where()} is a tombstone: its value is None and has no JSON.")
        import json

        try:
            return json.loads(self.value)
        except RecursionError:
            raise ValueError(f"{self._where()} holds JSON that is nested too deep to be parsed.") from None

    def _where(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class Headers(Mapping[str, bytes]):
    """The headers of one record, in the order written; a repeated name gives its last value."""

    __slots__ = ("_items", "_last")

    def __init__(self, items: Iterable[tuple[str, bytes]] = ()) -> None:
        self._items = tuple(items)
        self._last = dict(self._items)

    def __getitem__(self, name: str) -> bytes:
        return self._last[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)

    def multi_items(self) -> list[tuple[str, bytes]]:
        """Return every (name, value) in the order written, repeated names included."""
        return list(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return self._last == other._last and sorted(self._items) == sorted(other._items)
        if isinstance(other, Mapping):
            return len(self._items) == len(self._last) and self._last == dict(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._last.items()))

    def __repr__(self) -> str:
        if len(self._last) == len(self._items):
            return f"Headers({self._last!r})"
        return f"Headers({list(self._items)!r})"

    def __reduce__(self) -> tuple[type[Headers], tuple[tuple[tuple[str, bytes], ...]]]:
        return Headers, (self._items,)


EMPTY_HEADERS = Headers()


def encode_data(value: Data, what: str = "value") -> bytes:
    """Return the bytes that are stored for a value, a key or a header value; `what` names it in the error."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"The {what} holds a lone surrogate, which UTF-8 cannot store; pass bytes.") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(
        f"The {what} must be bytes, bytearray, memoryview or str, not {type(value).__name__}: "
        + ("use json= for anything else." if what == "value" else "convert it first.")
    )


def encode_headers(headers: Mapping[str, Data] | None) -> bytes:
    """Return the stored form of headers (docs/format.md section 2), b"" for none; a Headers keeps repeated names."""
    if headers is None:
        return b""
    if isinstance(headers, Headers):
        items: Iterable[tuple[str, Data]] = headers.multi_items()
    elif isinstance(headers, Mapping):
        if ID_HEADER in headers:
            raise ValueError(f"The header {ID_HEADER!r} is reserved for dedupe_id=: use another name.")
        items = headers.items()
    else:
        raise TypeError(f"headers must be a mapping of str to bytes or str, not {type(headers).__name__}.")
    parts: list[bytes] = []
    size = 0
    for name, value in items:
        if not isinstance(name, str):
            raise TypeError(f"A header name must be str, not {type(name).__name__}.")
        name_bytes = encode_data(name, "header name")
        if len(name_bytes) > HEADER_NAME_BYTES_MAX:
            raise RecordTooLargeError(
                f"A header name has {len(name_bytes)} bytes; the maximum is {HEADER_NAME_BYTES_MAX}.",
                size=len(name_bytes),
                maximum=HEADER_NAME_BYTES_MAX,
                hint="Nothing of this call was written; use a shorter name.",
            )
        value_bytes = encode_data(value, f"header {name!r}")
        parts += (_NAME_LENGTH.pack(len(name_bytes)), name_bytes, _VALUE_LENGTH.pack(len(value_bytes)), value_bytes)
        size += 6 + len(name_bytes) + len(value_bytes)
        if size > HEADERS_BYTES_MAX:
            raise RecordTooLargeError(
                f"The headers of a record take more than {HEADERS_BYTES_MAX} bytes.",
                size=size,
                maximum=HEADERS_BYTES_MAX,
                hint="Nothing of this call was written; move large headers into the value.",
            )
    return b"".join(parts)


def decode_headers(data: bytes | memoryview) -> Headers:
    """Parse headers from their stored form; raise ValueError if the bytes are not that."""
    if not data:
        return EMPTY_HEADERS
    stored = bytes(data)
    end = len(stored)
    items: list[tuple[str, bytes]] = []
    position = 0
    while position < end:
        name_start = position + 2
        if name_start > end:
            raise ValueError(f"The headers end inside a name length at byte {position}.")
        name_end = name_start + _NAME_LENGTH.unpack_from(stored, position)[0]
        value_start = name_end + 4
        if value_start > end:
            raise ValueError(f"The headers end inside the name at byte {position}.")
        position = value_start + _VALUE_LENGTH.unpack_from(stored, name_end)[0]
        if position > end:
            raise ValueError(f"The headers end inside the value at byte {value_start}.")
        items.append((stored[name_start:name_end].decode("utf-8"), stored[value_start:position]))
    return Headers(items)


def to_datetime(time_us: int) -> datetime:
    """Return microseconds since 1970 as an aware datetime in UTC, clipped to the range of datetime."""
    from datetime import UTC, datetime, timedelta

    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC) if time_us < 0 else datetime.max.replace(tzinfo=UTC)
