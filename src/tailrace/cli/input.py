"""Input: reads files and pipes of any size as batches of entries, each entry a record to append."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from time import time_ns
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

from tailrace.cli import limits
from tailrace.cli.arguments import ID_HEADER, HeaderList, check_time, parse_time

if TYPE_CHECKING:
    from datetime import datetime
    from json import JSONDecoder

# The maxima of the library, whose import a call that only prints help does without.
KEY_BYTES_MAX = 1 << 20
HEADERS_BYTES_MAX = 1 << 20
HEADER_NAME_BYTES_MAX = 65_535
# How long to wait for more bytes of a pipe before the lines read so far are appended.
_LINGER_SECONDS = 0.005
_READ_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class InputRecord(NamedTuple):
    """A record to append; a timestamp of None means the time of the append."""

    value: bytes | None
    key: bytes | None = None
    headers: HeaderList | None = None
    timestamp: datetime | int | None = None


class BadLine(NamedTuple):
    """A line that is not a record, and the reason; `lines` counts the lines skipped with it, itself included."""

    line: int
    reason: str
    lines: int = 1


class InputBatch(NamedTuple):
    """The entries and bad lines of one chunk of input; `line` is the number of its last line.

    `lines` has the number of the line at which each entry begins.
    """

    entries: list[InputRecord]
    bad: list[BadLine]
    line: int
    lines: Sequence[int] = ()


# Returns the entry of a line, None for a line to skip, or raises ValueError with the reason.
Parse = Callable[[bytes], InputRecord | None]


def read_lines(
    stream: IO[bytes],
    parse: Parse,
    first_line: int = 1,
    *,
    lenient: bool = False,
    text: bool = False,
    value_bytes_max: int = limits.LIMITS.entry_bytes_max,
) -> Iterator[InputBatch]:
    """Yield batches of lines from `first_line` on, without waiting for a slow pipe; unless lenient, stop at a bad line.

    With `text`, a byte order mark before the first line is removed.
    """
    longest = limits.LIMITS.entry_bytes_max
    line = 0
    for texts in complete_lines(stream):
        entries: list[InputRecord] = []
        lines: list[int] = []
        bad: list[BadLine] = []
        if text and not line:
            texts[0] = texts[0].removeprefix(BYTE_ORDER_MARK)
        for each in texts:
            line += 1
            if line < first_line:
                continue
            try:
                if len(each) > longest:
                    raise ValueError(f"it is longer than {longest} bytes")
                entry = parse(each)
                if entry is not None:
                    check_sizes(entry, value_bytes_max)
                    entries.append(entry)
                    lines.append(line)
            except (ValueError, RecursionError) as error:
                bad.append(BadLine(line, reason_of(error)))
                if not lenient:
                    yield InputBatch(entries, bad, line, lines)
                    return
        yield InputBatch(entries, bad, line, lines)


def parse_values(values: Sequence[bytes], parse: Parse) -> InputBatch:
    """Return values given as arguments as one batch, counted as lines; one bad value leaves no entries."""
    entries: list[InputRecord] = []
    lines: list[int] = []
    for number, value in enumerate(values, 1):
        try:
            entry = parse(value)
        except (ValueError, RecursionError) as error:
            return InputBatch([], [BadLine(number, reason_of(error))], number)
        if entry is not None:
            entries.append(entry)
            lines.append(number)
    return InputBatch(entries, [], len(values), lines)


def check_sizes(entry: InputRecord, value_bytes_max: int) -> None:
    """Raise ValueError for an entry that the topic would refuse, since it would refuse the whole batch with it."""
    value, key, headers, _ = entry
    if value is not None and len(value) > value_bytes_max:
        raise ValueError(f"its value has {len(value):,} bytes, and the topic takes {value_bytes_max:,}")
    if key is not None and len(key) > KEY_BYTES_MAX:
        raise ValueError(f"its key has {len(key):,} bytes, and the maximum is {KEY_BYTES_MAX:,}")
    if headers:
        sizes = [len(name.encode()) for name, _ in headers.pairs]
        if max(sizes) > HEADER_NAME_BYTES_MAX:
            raise ValueError(f"the name of a header is longer than {HEADER_NAME_BYTES_MAX:,} bytes")
        # Two length fields precede each header.
        if sum(sizes) + sum(6 + len(data) for _, data in headers.pairs) > HEADERS_BYTES_MAX:
            raise ValueError(f"its headers take more than {HEADERS_BYTES_MAX:,} bytes")


def read_whole(stream: IO[bytes], key: bytes | None) -> InputRecord:
    """Read the whole stream as one record, byte for byte."""
    parts = []
    room = limits.LIMITS.entry_bytes_max + 1
    while room and (part := stream.read(min(room, _READ_BYTES))):
        parts.append(part)
        room -= len(part)
    return InputRecord(b"".join(parts), key)


def line_parser(key: bytes | None, key_field: str | None) -> Parse:
    """Return a parser that takes a line as the value; with a key field the line is a JSON object that has the field."""
    if key_field is None:
        return lambda text: InputRecord(text, key)
    return lambda text: InputRecord(text, _field_key(_load(text), key_field))


def json_parser(key_field: str | None) -> Parse:
    """Return a parser that takes a line of JSON as the value, unchanged, and skips blank lines."""

    def parse(text: bytes) -> InputRecord | None:
        text = text.strip()
        if not text:
            return None
        loaded = _load(text)
        return InputRecord(text, None if key_field is None else _field_key(loaded, key_field))

    return parse


def record_parser(key: bytes | None, key_field: str | None) -> Parse:
    """Return a parser for records as `read -o jsonl` prints them: value or value_base64, key, headers, timestamp."""

    def parse(text: bytes) -> InputRecord | None:
        if not text.strip():
            return None
        fields = _load(text)
        if not isinstance(fields, dict) or not ("value" in fields or "value_base64" in fields):
            raise ValueError('it has no "value"; --lines stores whole lines')
        value = _data(fields, "value")
        own_key = _data(fields, "key") if key is None else key
        if key_field is not None:
            own_key = _field_key(_load(value or b""), key_field)
        if value is None and own_key is None:
            raise ValueError("a null value is a tombstone, which needs a key")
        return InputRecord(value, own_key, _headers(fields), _timestamp(fields.get("timestamp")))

    return parse


class InputColumns(NamedTuple):
    """The entries of a batch as Topic.extend() takes them."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[HeaderList | None] | None
    timestamps: list[datetime | int] | None


def columns(entries: Sequence[InputRecord]) -> InputColumns:
    """Return the entries column by column; a column that no entry has is None."""
    values, keys, headers, timestamps = (list(column) for column in zip(*entries, strict=True))
    now = time_ns() // 1_000
    return InputColumns(
        values,
        keys if any(key is not None for key in keys) else None,
        headers if any(headers) else None,
        [now if each is None else each for each in timestamps]
        if any(each is not None for each in timestamps)
        else None,
    )


def complete_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield the complete lines read so far, without line feeds; the last line of the input may lack its own."""
    longest, most = limits.LIMITS.entry_bytes_max, limits.LIMITS.batch_entries_max
    pending: list[bytes] = []
    pending_bytes = 0
    for chunk in _chunks(stream):
        head, feed, tail = chunk.rpartition(b"\n")
        if feed:
            texts = (b"".join(pending) + head).split(b"\n")
            for start in range(0, len(texts), most):
                yield texts[start : start + most]
            pending, pending_bytes = [], 0
        if tail and pending_bytes <= longest:
            # A line that is too long is kept only as far as needed to detect it.
            pending.append(tail)
            pending_bytes += len(tail)
    if pending:
        yield [b"".join(pending)]


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes that are available, up to a batch at a time, without waiting for a batch to fill."""
    most = limits.LIMITS.batch_bytes_max
    try:
        number = stream.fileno()
    except OSError:
        while chunk := stream.read(most):
            yield chunk
        return
    while True:
        parts = [os.read(number, _READ_BYTES)]
        size = len(parts[0])
        while parts[-1] and size < most and select.select([number], [], [], _LINGER_SECONDS)[0]:
            parts.append(os.read(number, _READ_BYTES))
            size += len(parts[-1])
        if size:
            yield b"".join(parts)
        if not parts[-1]:
            return


def _load(text: bytes) -> Any:
    from json import JSONDecodeError

    try:
        return _decoder().decode(text.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg.removesuffix(' at')} at column {error.colno}") from None


@lru_cache(1)
def _decoder() -> JSONDecoder:
    """Return a strict JSON decoder: Python's own also accepts NaN and Infinity."""
    from json import JSONDecoder

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"it is not JSON: {name} is not a number there")

    return JSONDecoder(parse_constant=refuse)


def reason_of(error: Exception) -> str:
    """Return what is wrong with a line, as text."""
    if isinstance(error, UnicodeEncodeError):
        return "it holds half of a surrogate pair, which UTF-8 cannot store"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)


def _field_key(loaded: Any, name: str) -> bytes | None:
    if not isinstance(loaded, dict) or name not in loaded:
        raise ValueError(f"it has no field {name!r} for the key")
    return _as_data(loaded[name])


def _as_data(value: Any) -> bytes | None:
    """Return text as UTF-8, null as None, anything else as JSON without spaces."""
    if value is None:
        return None
    if not isinstance(value, str):
        import json

        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    assert isinstance(value, str)
    return value.encode()


def _data(fields: dict[str, Any], name: str) -> bytes | None:
    encoded = fields.get(name + "_base64")
    if encoded is None:
        return _as_data(fields.get(name))
    if fields.get(name) is not None:
        raise ValueError(f'it has both "{name}" and "{name}_base64"')
    return _from_base64(encoded, name + "_base64")


def _from_base64(encoded: Any, name: str) -> bytes:
    from base64 import b64decode

    try:
        return b64decode(encoded, validate=True)
    except (ValueError, TypeError):
        raise ValueError(f'"{name}" is not base64') from None


def _headers(fields: dict[str, Any]) -> HeaderList | None:
    """Parse headers as `read -o jsonl` prints them; a list is a repeated name."""
    pairs: list[tuple[str, bytes]] = []
    for field in ("headers", "headers_base64"):
        given = fields.get(field) or {}
        if not isinstance(given, dict):
            raise ValueError(f'"{field}" is not an object')
        for name, values in given.items():
            for value in values if isinstance(values, list) else [values]:
                if not isinstance(value, str):
                    raise ValueError(f"the header {name!r} is not a text")
                # A record that is copied is another write, and not the one that had this id.
                if name != ID_HEADER:
                    pairs.append((name, value.encode() if field == "headers" else _from_base64(value, field)))
    return HeaderList(pairs) if pairs else None


def _timestamp(value: Any) -> datetime | int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return check_time(value)
    if not isinstance(value, str):
        raise ValueError('"timestamp" is not a time')
    try:
        return parse_time(value)
    except ValueError as error:
        raise ValueError(f'"timestamp" {error}') from None
