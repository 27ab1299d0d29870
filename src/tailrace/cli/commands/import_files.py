"""`tailrace import`: files of JSON lines or CSV into a topic."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any

import click

from tailrace.cli import input as intake
from tailrace.cli import limits
from tailrace.cli.arguments import one_of, parse_durable
from tailrace.cli.candidates import complete_files, complete_topics
from tailrace.cli.ending import Interrupted
from tailrace.cli.errors import FAILED, answering
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation, print_line
from tailrace.cli.output import Progress, to_json, write
from tailrace.cli.prompts import counted
from tailrace.cli.quoting import printable
from tailrace.cli.resume import go_on
from tailrace.cli.rows import read_rows
from tailrace.cli.writing import WrittenOffsets, unfit, value_bytes_max

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tailrace import Topic

# Further bad lines are counted, not named.
_BAD_NAMED_MAX = 100
_FORMS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


@make_command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_files)
@click.option("--topic", "name", shell_complete=complete_topics, required=True, metavar="T", help="Topic to append to.")
@click.option("--jsonl", is_flag=True, help="A line is a JSON value, stored as it stands.")
@click.option("--csv", is_flag=True, help="A row is stored as a JSON object; the first line has the names.")
@click.option("--key-field", metavar="NAME", help="Take the key from this field or column.")
@click.option(
    "--from-line", type=click.IntRange(1), default=1, metavar="N", help="Begin at this line of the first file."
)
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Partition, whatever the key.")
@click.option(
    "--durable", metavar="yes|no|TIME", help="On disk before the next batch (yes), within a time (50ms), or no."
)
@click.pass_obj
def command(invocation: Invocation, /, files: tuple[str, ...], name: str, **options: Any) -> None:
    """Import files of JSON lines or CSV into a topic.

    Files are read as streams and appended in batches, each all or nothing, so several imports may run at once. Lines
    that are not records are named, counted and skipped; the exit code is then 1. - is stdin. Without --jsonl or --csv
    the extension of a file's name decides.
    """
    form = one_of(options, ("jsonl", "csv"))
    forms = [_form(file, form) for file in files]
    invocation.format()
    importing = Importing(invocation, name, files, options)
    progress = Progress(invocation, "importing")
    sizes = [os.path.getsize(file) if file != "-" else 0 for file in files]
    with invocation.open("create") as log:
        topic = log.topic(name)
        importing.value_bytes_max = value_bytes_max(topic, options["partition"])
        try:
            for index, form in enumerate(forms):
                importing.run(topic, index, form, progress, (sum(sizes[:index]), sum(sizes)))
        except KeyboardInterrupt:
            raise Interrupted(importing.resume()) from None
        except Exception as error:
            error.add_note(importing.resume())
            raise
        finally:
            progress.clear()
    importing.print()
    if importing.bad:
        click.get_current_context().exit(FAILED)


class Importing:
    """One call: what was written, which lines were bad, and the last line processed."""

    def __init__(self, invocation: Invocation, name: str, files: tuple[str, ...], options: dict[str, Any]) -> None:
        self.invocation = invocation
        self.written = WrittenOffsets(name)
        self.files = files
        self.options = options
        self.durable = None if options["durable"] is None else parse_durable(options["durable"])
        self.value_bytes_max = limits.LIMITS.entry_bytes_max
        self.bad = 0
        self.named = 0
        self.bad_named: list[dict[str, Any]] = []
        # The file being read, and its last line that was processed.
        self.index = 0
        self.line: int = options["from_line"] - 1

    def run(self, topic: Topic, index: int, form: str, progress: Progress, share: tuple[int, int]) -> None:
        """Append one file; `share` is the bytes of the files before it, and of all files."""
        before, total = share
        file = self.files[index]
        first_line = self.options["from_line"] if index == 0 else 1
        self.index, self.line = index, first_line - 1
        seen = 0
        with _opened(file) as stream:
            for batch in self._batches(stream, form, first_line):
                unfit_lines = self._append(topic, batch)
                seen = batch.line
                self.line = max(self.line, seen)
                if bad := sorted([*batch.bad, *unfit_lines]):
                    progress.clear()
                    self._name(bad)
                if file != "-" and stream.seekable():
                    progress.update(before + os.lseek(stream.fileno(), 0, os.SEEK_CUR), total)
        if 1 < first_line > seen:
            progress.clear()
            has = counted(seen, "line")
            self.invocation.note(f"{printable(file)} has {has}, so nothing of it stands from line {first_line:,} on.")

    def _append(self, topic: Topic, batch: intake.InputBatch) -> list[intake.BadLine]:
        """Append the entries of a batch, all or none of those that fit the schema; return the lines of the others."""
        from tailrace.errors import SchemaError

        entries, lines = batch.entries, batch.lines
        bad: list[intake.BadLine] = []
        while True:
            try:
                self.written.extend(topic, entries, self.options["partition"], self.durable)
                return bad
            except SchemaError as error:
                reasons = {index: unfit(field, reason) for index, field, reason in error.failures}
                bad += [intake.BadLine(lines[index], reason) for index, reason in reasons.items()]
                entries = [entry for index, entry in enumerate(entries) if index not in reasons]
                lines = [line for index, line in enumerate(lines) if index not in reasons]

    def _batches(self, stream: IO[bytes], form: str, first_line: int) -> Iterator[intake.InputBatch]:
        key_field, maximum = self.options["key_field"], self.value_bytes_max
        if form == "csv":
            return read_rows(stream, key_field, first_line, lenient=True, value_bytes_max=maximum)
        parse = intake.json_parser(key_field)
        return intake.read_lines(stream, parse, first_line, lenient=True, text=True, value_bytes_max=maximum)

    def _name(self, bad: list[intake.BadLine]) -> None:
        file = self.files[self.index]
        for line, reason, lines in bad:
            self.bad += lines
            self.named += 1
            if self.named <= _BAD_NAMED_MAX:
                self.bad_named.append({"file": file, "line": line, "reason": reason})
                print_line(f"{printable(file)}:{line}: {printable(reason)}")
            elif self.named == _BAD_NAMED_MAX + 1:
                print_line("More bad lines are counted, not named.")

    def print(self) -> None:
        """Print what was written on stdout, and the count of bad lines on stderr or within the JSON."""
        if self.invocation.format() in ("json", "jsonl"):
            indent = 2 if self.invocation.format() == "json" else None
            fields = {
                "topic": self.written.topic,
                "records": self.written.records,
                "partitions": [
                    {name: value for name, value in row.items() if name != "topic"} for row in self.written.rows()
                ],
                "bad": self.bad,
                "bad_lines": self.bad_named,
            }
            with answering(self.written.deed()):
                write(to_json(fields, indent) + "\n")
            return
        self.written.print(self.invocation)
        if self.bad:
            imported = counted(self.written.records, "record")
            print_line(f"Imported {imported}; passed over {counted(self.bad, 'bad line')}.")

    def resume(self) -> str:
        """Return what was appended, and the command that continues after it."""
        options = ["--topic", self.written.topic]
        options += [f"--{form}" for form in ("jsonl", "csv") if self.options[form]]
        for option in ("key_field", "partition", "durable"):
            if self.options[option] is not None:
                options += [f"--{option.replace('_', '-')}", str(self.options[option])]
        options += ["--from-line", str(self.line + 1)]
        return f"{self.written.so_far()}\n{go_on(self.invocation, 'import', self.files[self.index :], options)}"


def _form(file: str, given: str | None) -> str:
    form = given or _FORMS.get(os.path.splitext(file)[1].lower())
    if form is None:
        raise click.UsageError(f"The name {file!r} does not say what it holds: add --jsonl or --csv.")
    return form


def _opened(file: str) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb")
