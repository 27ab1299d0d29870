"""`tailrace append`: records from arguments, a file or stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from tailrace.cli import input as intake
from tailrace.cli import limits
from tailrace.cli.arguments import (
    OFFSET_MAX,
    HeaderList,
    one_of,
    parse_dedupe_id,
    parse_durable,
    parse_headers,
    parse_time,
    parse_ttl,
)
from tailrace.cli.candidates import complete_files, complete_topics
from tailrace.cli.ending import CommandError, Interrupted
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation
from tailrace.cli.rows import read_rows
from tailrace.cli.writing import WrittenOffsets, settings_of, unfit, value_bytes_max

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from datetime import datetime

    from tailrace import Topic
    from tailrace.errors import SchemaError


_FORMS = ("lines", "jsonl", "csv", "raw")


class AppendRequest(NamedTuple):
    """What a call appends, and how; built before the log is opened."""

    values: tuple[bytes, ...]
    file: str | None
    form: str
    key: bytes | None
    key_field: str | None
    headers: HeaderList | None
    timestamp: datetime | int | None
    partition: int | None
    expect_offset: int | None
    durable: bool | str | None
    ttl: str | None
    dedupe_id: str | None = None
    value_bytes_max: int = limits.LIMITS.entry_bytes_max


@make_command("append")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@click.option(
    "-i",
    "--input",
    "file",
    metavar="FILE",
    shell_complete=complete_files,
    help="Read records from a file; - is stdin.",
)
@click.option("--lines", is_flag=True, help="A record a line.  [default]")
@click.option("--jsonl", is_flag=True, help="A line is a record as `read -o jsonl` prints it.")
@click.option("--csv", is_flag=True, help="A row is a JSON object; the first line has the names.")
@click.option("--raw", is_flag=True, help="The whole input is one record.")
@click.option("-k", "--key", metavar="KEY", help="Key of every record.")
@click.option("--key-field", metavar="NAME", help="Take the key from this field of a JSON value or CSV row.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of every record; may repeat."
)
@click.option("--timestamp", metavar="T", help="Time of every record: ISO with a zone, a date, or microseconds.")
@click.option("--ttl", metavar="TIME", help="When every record expires, counted from now: 90s, 2h; or never.")
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Partition, whatever the key.")
@click.option(
    "--expect-offset",
    type=click.IntRange(0, OFFSET_MAX),
    metavar="N",
    help="Append one record, only if it gets this offset.",
)
@click.option("--dedupe-id", metavar="ID", help="Append one record once: a repeat with this ID is not stored.")
@click.option("--durable", metavar="yes|no|TIME", help="On disk before the answer (yes), within a time (50ms), or no.")
@click.pass_obj
def command(invocation: Invocation, /, topic: str, **options: Any) -> None:
    """Append records to a topic.

    Values come from the arguments, from -i FILE, or from stdin, one record per line. A missing topic or log is created.
    Prints the offsets of the records: orders[0]@17..19  (3 records)
    """
    request = _request(options)
    invocation.format()
    written = WrittenOffsets(topic)
    with _input(invocation, request) as stream, invocation.open("create") as log:
        target = log.topic(topic)
        request = request._replace(value_bytes_max=value_bytes_max(target, request.partition))
        if request.expect_offset is not None or request.dedupe_id is not None:
            _append_one(target, stream, request, written)
        else:
            _append_all(target, stream, request, written)
    written.print(invocation)


def _request(options: dict[str, Any]) -> AppendRequest:
    values, form = options["values"], one_of(options, _FORMS) or "lines"
    if values and options["file"] is not None:
        raise click.UsageError("Give values as arguments or a file with -i, not both.")
    if values and form in ("csv", "raw"):
        raise click.UsageError(f"--{form} is for a file or stdin, not for values as arguments.")
    if options["key"] is not None and options["key_field"] is not None:
        raise click.UsageError("Give -k KEY or --key-field NAME, not both.")
    if form == "raw" and options["key_field"] is not None:
        raise click.UsageError("--raw takes its key from -k KEY.")
    for option in ("expect_offset", "dedupe_id"):
        if options[option] is not None and len(values) != 1 and (values or form != "raw"):
            raise click.UsageError(f"--{option.replace('_', '-')} is for one record: give one VALUE, or --raw.")
    return AppendRequest(
        values=tuple(map(os.fsencode, values)),
        file=options["file"],
        form=form,
        key=None if options["key"] is None else os.fsencode(options["key"]),
        key_field=options["key_field"],
        headers=parse_headers(options["headers"]),
        timestamp=None if options["timestamp"] is None else _time(options["timestamp"]),
        partition=options["partition"],
        expect_offset=options["expect_offset"],
        durable=None if options["durable"] is None else parse_durable(options["durable"]),
        ttl=None if options["ttl"] is None else parse_ttl(options["ttl"]),
        dedupe_id=None if options["dedupe_id"] is None else parse_dedupe_id(options["dedupe_id"]),
    )


def _time(text: str) -> datetime | int:
    try:
        return parse_time(text)
    except ValueError as error:
        raise click.UsageError(f"--timestamp {error}.") from None


def _input(invocation: Invocation, request: AppendRequest) -> AbstractContextManager[IO[bytes]]:
    if request.file is not None and request.file != "-":
        return open(request.file, "rb")
    if not request.values and sys.stdin.isatty():
        invocation.note("Reading records from the terminal, one a line; Ctrl-D ends.")
    return nullcontext(sys.stdin.buffer)


def _append_one(topic: Topic, stream: IO[bytes], request: AppendRequest, written: WrittenOffsets) -> None:
    settings = settings_of(topic)
    placed = request.expect_offset is None or request.partition is not None
    if not placed and settings is not None and settings["partitions"] > 1:
        raise click.UsageError(
            f"--expect-offset needs --partition N here: {topic.name!r} has {settings['partitions']} partitions."
        )
    batch = next(_batches(stream, request))
    _refuse_bad(batch, written)
    if len(batch.entries) != 1:
        raise CommandError("bad-input", "The value is empty.", "Nothing was appended; give one record.")
    entry = batch.entries[0]
    position = topic.append(
        entry.value,
        key=entry.key,
        headers=entry.headers,
        timestamp=entry.timestamp,
        ttl=request.ttl,
        partition=request.partition,
        expect_offset=request.expect_offset,
        dedupe_id=request.dedupe_id,
        durable=request.durable,
    )
    written.add(position.partition, range(position.offset, position.offset + 1))


def _append_all(topic: Topic, stream: IO[bytes], request: AppendRequest, written: WrittenOffsets) -> None:
    from tailrace.errors import SchemaError

    line = 0
    try:
        for batch in _batches(stream, request):
            try:
                written.extend(topic, batch.entries, request.partition, request.durable, request.ttl)
            except SchemaError as error:
                _refuse_unfit(topic, batch, error, request, written)
            line = batch.line
            _refuse_bad(batch, written)
    except KeyboardInterrupt:
        raise Interrupted(f"{written.so_far()} The input was read up to line {line}.") from None
    except (CommandError, click.UsageError):
        raise
    except Exception as error:
        if written.partitions:
            error.add_note(f"{written.so_far()} The input was appended up to line {line}.")
        raise


def _batches(stream: IO[bytes], request: AppendRequest) -> Iterator[intake.InputBatch]:
    """Yield the input in batches; a batch with a bad line is the last."""
    for batch in _plain_batches(stream, request):
        entries = batch.entries
        if request.headers:
            entries = [entry._replace(headers=_joined(entry.headers, request.headers)) for entry in entries]
        if request.timestamp is not None:
            entries = [entry._replace(timestamp=request.timestamp) for entry in entries]
        yield batch._replace(entries=entries)


def _plain_batches(stream: IO[bytes], request: AppendRequest) -> Iterator[intake.InputBatch]:
    if request.form == "raw":
        yield intake.InputBatch([intake.read_whole(stream, request.key)], [], 1)
    elif request.form == "csv":
        for batch in read_rows(stream, request.key_field, value_bytes_max=request.value_bytes_max):
            if request.key is None:
                yield batch
            else:
                yield batch._replace(entries=[entry._replace(key=request.key) for entry in batch.entries])
    else:
        json = request.form == "jsonl"
        parse = (intake.record_parser if json else intake.line_parser)(request.key, request.key_field)
        if request.values:
            yield intake.parse_values(request.values, parse)
        else:
            yield from intake.read_lines(stream, parse, text=json, value_bytes_max=request.value_bytes_max)


def _joined(own: HeaderList | None, given: HeaderList) -> HeaderList:
    return given if own is None else HeaderList((*own.pairs, *given.pairs))


def _refuse_bad(batch: intake.InputBatch, written: WrittenOffsets) -> None:
    if batch.bad:
        line, reason, _ = batch.bad[0]
        raise CommandError(
            "bad-input",
            f"Line {line} is no record: {reason}.",
            f"{written.so_far()} Correct that line, then append it and what follows.",
        )


def _refuse_unfit(
    topic: Topic, batch: intake.InputBatch, error: SchemaError, request: AppendRequest, written: WrittenOffsets
) -> NoReturn:
    """Append what stands before the first line that does not fit the schema, unless it is an argument, and stop."""
    index, field, reason = error.failures[0]
    what, remedy = "Value", "Correct it, then append all of the values again."
    if not request.values:
        written.extend(topic, batch.entries[:index], request.partition, request.durable, request.ttl)
        what, remedy = "Line", "Correct that line, then append it and what follows."
    raise CommandError(
        error.code,
        f"{what} {batch.lines[index]} does not fit the schema of {topic.name!r}: {unfit(field, reason)}.",
        f"{written.so_far()} {remedy}",
    ) from None
