"""Renderers: records in the formats of `-o` and `-F`."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

import click

from tailrace.cli.invocation import Invocation
from tailrace.cli.output import clip, csv_text, exact_cell, json_encoder, terminal_columns, to_json
from tailrace.cli.quoting import printable

if TYPE_CHECKING:
    from tailrace import Batch, Record, Scan

CSV_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "key_base64", "value_base64")
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


class Renderer:
    """Bytes to print before all records, for each batch, and after all records."""

    def begin(self) -> bytes:
        """Return the bytes before the first record."""
        return b""

    def render(self, records: Sequence[Record]) -> bytes:
        """Return the bytes of some records."""
        raise NotImplementedError

    def end(self) -> bytes:
        """Return the bytes after the last record."""
        return b""


class PlainRenderer(Renderer):
    """The value and a line feed, byte for byte."""

    def render(self, records: Sequence[Record]) -> bytes:
        return render_values([record.value for record in records])


class LineRenderer(Renderer):
    """One line per record for people: time, position, key, value."""

    def __init__(self, invocation: Invocation) -> None:
        from datetime import datetime

        self._edge = terminal_columns()
        self._color = invocation.color
        self._today = datetime.now().astimezone().date()

    def render(self, records: Sequence[Record]) -> bytes:
        return "".join(map(self._line, records)).encode()

    def _line(self, record: Record) -> str:
        moment = record.timestamp
        try:
            moment = moment.astimezone()
        except OverflowError:
            # Within hours of the year 10000 the local time has no date, so it stays UTC.
            pass
        when = moment.strftime("%H:%M:%S.%f")[:-3]
        if moment.date() != self._today:
            when = f"{moment.date().isoformat()} {when}"
        value = "(tombstone)" if record.value is None else printable(record.value)
        key = "-" if record.key is None else printable(record.key)
        line = clip(
            f"{when}  {printable(record.topic)}[{record.partition}]@{record.offset}  {key}  {value}", self._edge
        )
        return f"\x1b[2m{line[: len(when)]}\x1b[0m{line[len(when) :]}\n" if self._color else line + "\n"


class JsonLinesRenderer(Renderer):
    """One JSON object per line."""

    def __init__(self) -> None:
        self._encode = json_encoder()

    def render(self, records: Sequence[Record]) -> bytes:
        encode = self._encode
        return "".join([encode(record_object(record)) + "\n" for record in records]).encode()


class JsonRenderer(Renderer):
    """One JSON array, written incrementally."""

    def __init__(self) -> None:
        self._separator = "\n  "
        self._encode = json_encoder()

    def begin(self) -> bytes:
        return b"["

    def end(self) -> bytes:
        return b"\n]\n"

    def render(self, records: Sequence[Record]) -> bytes:
        parts: list[str] = []
        for record in records:
            parts += (self._separator, self._encode(record_object(record)))
            self._separator = ",\n  "
        return "".join(parts).encode()


class CsvRenderer(Renderer):
    """One CSV row per record, after a line of names."""

    def begin(self) -> bytes:
        return csv_text([CSV_COLUMNS]).encode()

    def render(self, records: Sequence[Record]) -> bytes:
        rows = []
        for record in records:
            fields = record_object(record)
            fields["headers"] = _headers_json(fields) or None
            rows.append([exact_cell(fields.get(name)) for name in CSV_COLUMNS])
        return csv_text(rows).encode()


class FormatRenderer(Renderer):
    """The format of `-F`: %t topic, %p partition, %o offset, %d time, %k key, %v value, %h headers, %% percent."""

    def __init__(self, format: str) -> None:
        # A pipe gets the bytes unchanged; on a terminal data must not act as control sequences.
        data = _terminal_data if sys.stdout.isatty() else _exact_data
        self._parts = _compile(format, data)

    def render(self, records: Sequence[Record]) -> bytes:
        parts = self._parts
        return b"".join([part if isinstance(part, bytes) else part(record) for record in records for part in parts])


class ArrowRenderer(Renderer):
    """An Arrow IPC stream; it takes whole batches only, and its schema is that of an empty scan."""

    def __init__(self, empty: Scan) -> None:
        if sys.stdout.isatty():
            raise click.UsageError("-o arrow is not for a terminal: send it to a file or a pipe.")
        # Without pyarrow this raises the library's error, which says what to install.
        self._schema = empty.to_arrow().schema
        self._sink = BytesIO()

    def begin(self) -> bytes:
        from pyarrow import ipc

        self._writer = ipc.new_stream(self._sink, self._schema)
        return self._taken()

    def render(self, records: Sequence[Record]) -> bytes:
        self._writer.write_batch(cast("Batch", records).to_arrow())
        return self._taken()

    def end(self) -> bytes:
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        taken = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return taken


def render_values(values: list[bytes | None]) -> bytes:
    """Return each value followed by a line feed; a tombstone is an empty line."""
    return b"\n".join([*(value or b"" for value in values), b""])


def make_renderer(invocation: Invocation, format: str | None) -> Renderer:
    """Return the renderer for the options."""
    if format is not None:
        if not format:
            raise click.UsageError("-F is empty, so nothing would be printed: write '%v\\n'.")
        if invocation.output not in ("auto", "table"):
            raise click.UsageError(f"-F and -o {invocation.output} are two formats: give one of them.")
        return FormatRenderer(format)
    name = invocation.format()
    if name == "table":
        return LineRenderer(invocation)
    makers: dict[str, type[Renderer]] = {
        "plain": PlainRenderer,
        "json": JsonRenderer,
        "jsonl": JsonLinesRenderer,
        "csv": CsvRenderer,
    }
    return makers[name]()


def record_object(record: Record) -> dict[str, Any]:
    """Return a record as a JSON object; bytes that are not UTF-8 are under a name that ends with _base64."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": iso_time(record.timestamp_us),
    }
    _put(fields, "key", record.key)
    _put(fields, "value", record.value)
    fields["headers"] = {}
    if record.headers:
        _put_headers(fields, record)
    return fields


def iso_time(time_us: int) -> str:
    """Return a time as ISO text in UTC, to the microsecond."""
    seconds, microseconds = divmod(time_us, 1_000_000)
    return f"{_iso_second(seconds)}.{microseconds:06d}Z"


@lru_cache(1_024)
def _iso_second(seconds: int) -> str:
    # Consecutive records share their second, and formatting it is most of the cost of a line.
    from datetime import UTC, datetime, timedelta

    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")[:19]


def _put(fields: dict[str, Any], name: str, data: bytes | None) -> None:
    if data is None:
        fields[name] = None
        return
    try:
        fields[name] = data.decode()
    except UnicodeDecodeError:
        fields[name + "_base64"] = b64encode(data).decode()


def _put_headers(fields: dict[str, Any], record: Record) -> None:
    """Add headers to the fields: a text for a name, or a list of texts for a repeated name."""
    grouped: dict[str, list[bytes]] = {}
    for name, data in record.headers.multi_items():
        grouped.setdefault(name, []).append(data)
    for name, values in grouped.items():
        try:
            texts = [data.decode() for data in values]
            target = "headers"
        except UnicodeDecodeError:
            texts = [b64encode(data).decode() for data in values]
            target = "headers_base64"
        fields.setdefault(target, {})[name] = texts[0] if len(texts) == 1 else texts


def _headers_json(fields: dict[str, Any]) -> str:
    """Return the headers as JSON text, empty for none; those that are not UTF-8 are under headers_base64."""
    if "headers_base64" in fields:
        return to_json({name: fields[name] for name in ("headers", "headers_base64")})
    return to_json(fields["headers"]) if fields["headers"] else ""


def _compile(format: str, data: Callable[[bytes | None], bytes]) -> list[bytes | Callable[[Record], bytes]]:
    fields: dict[str, Callable[[Record], bytes]] = {
        "t": lambda record: data(record.topic.encode()),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "d": lambda record: iso_time(record.timestamp_us).encode(),
        "k": lambda record: data(record.key),
        "v": lambda record: data(record.value),
        "h": lambda record: _headers_json(record_object(record)).encode(),
    }
    parts: list[bytes | Callable[[Record], bytes]] = []
    rest = iter(format)
    for character in rest:
        if character == "%":
            letter = next(rest, "")
            if letter == "%":
                parts.append(b"%")
            elif letter in fields:
                parts.append(fields[letter])
            else:
                raise click.UsageError(f"-F does not know %{letter}: use %t %p %o %d %k %v %h, and %% for a percent.")
        elif character == "\\":
            letter = next(rest, "")
            if letter not in _ESCAPES:
                raise click.UsageError(f"-F does not know \\{letter}: use \\n \\t \\r \\0 and \\\\ for a backslash.")
            parts.append(_ESCAPES[letter])
        else:
            parts.append(character.encode("utf-8", "surrogateescape"))
    return parts


def _exact_data(data: bytes | None) -> bytes:
    return data or b""


def _terminal_data(data: bytes | None) -> bytes:
    return printable(data).encode()
