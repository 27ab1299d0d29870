"""`tailrace import`: files of JSON lines or CSV into a topic."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from shlex import join
from typing import IO, TYPE_CHECKING, Any

import click

from . import intake
from .arguments import complete_topics, parse_durable
from .commands import command as make_command
from .confirmation import counted
from .failure import FAILED, Interrupted
from .invocation import Invocation
from .output import Progress, printable, to_json, write
from .writing import Written

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tailrace import Topic

# More than these are counted, not named.
_BAD_NAMED_MAX = 100
_FORMS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


@make_command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--topic", "name", shell_complete=complete_topics, required=True, metavar="T", help="Topic to append to.")
@click.option("--jsonl", "form", flag_value="jsonl", help="A line is a JSON value, stored as it stands.")
@click.option("--csv", "form", flag_value="csv", help="A row is stored as a JSON object; the first line has the names.")
@click.option("--key-field", metavar="NAME", help="Take the key from this field or column.")
@click.option(
    "--from-line", type=click.IntRange(1), default=1, metavar="N", help="Begin at this line of the first file."
)
@click.option("--partition", type=int, metavar="N", help="Partition, whatever the key.")
@click.option(
    "--durable", metavar="yes|no|TIME", help="On disk before the next batch (yes), within a time (50ms), or no."
)
@click.pass_obj
def command(invocation: Invocation, /, files: tuple[str, ...], name: str, **options: Any) -> None:
    """Import files of JSON lines or CSV into a topic.

    Files are read as streams and appended in batches, each whole or absent, so that many imports may run at once. Lines
    that are not records are named, counted and passed over; the exit code is then 1. - is stdin. Without --jsonl or
    --csv the ending of a file's name decides.
    """
    forms = [_form(file, options["form"]) for file in files]
    invocation.format()
    importing = Importing(invocation, name, options)
    progress = Progress(invocation, "importing")
    sizes = [os.path.getsize(file) if file != "-" else 0 for file in files]
    with invocation.open("create") as log:
        topic = log.topic(name)
        try:
            for index, (file, form) in enumerate(zip(files, forms, strict=True)):
                first_line = options["from_line"] if index == 0 else 1
                importing.run(topic, file, form, first_line, progress, (sum(sizes[:index]), sum(sizes)))
        except KeyboardInterrupt:
            raise Interrupted(importing.resume(files)) from None
        except Exception as error:
            error.add_note(importing.resume(files))
            raise
        finally:
            progress.clear()
    importing.print()
    if importing.bad:
        click.get_current_context().exit(FAILED)


class Importing:
    """One call: what was written, what was bad, and how far it came."""

    def __init__(self, invocation: Invocation, name: str, options: dict[str, Any]) -> None:
        self.invocation = invocation
        self.written = Written(name)
        self.options = options
        self.durable = None if options["durable"] is None else parse_durable(options["durable"])
        self.bad = 0
        self.bad_named: list[dict[str, Any]] = []
        self.file = ""
        self.line = 0

    def run(
        self, topic: Topic, file: str, form: str, first_line: int, progress: Progress, share: tuple[int, int]
    ) -> None:
        """Append one file; `share` is the bytes of the files before it, and of all."""
        before, total = share
        self.file, self.line = file, first_line - 1
        with _opened(file) as stream:
            for batch in self._batches(stream, form, first_line):
                self.written.extend(topic, batch.entries, self.options["partition"], self.durable)
                self.line = batch.line
                if batch.bad:
                    progress.clear()
                    self._name(batch.bad)
                if file != "-":
                    progress.update(before + os.lseek(stream.fileno(), 0, os.SEEK_CUR), total)

    def _batches(self, stream: IO[bytes], form: str, first_line: int) -> Iterator[intake.Batch]:
        key_field = self.options["key_field"]
        if form == "csv":
            return intake.read_rows(stream, key_field, first_line, lenient=True)
        return intake.read_lines(stream, intake.json_parser(key_field), first_line, lenient=True)

    def _name(self, bad: list[intake.BadLine]) -> None:
        for line, reason in bad:
            self.bad += 1
            if self.bad <= _BAD_NAMED_MAX:
                self.bad_named.append({"file": self.file, "line": line, "reason": reason})
                click.echo(f"{printable(self.file)}:{line}: {printable(reason)}", err=True)
            elif self.bad == _BAD_NAMED_MAX + 1:
                click.echo("More bad lines are counted, not named.", err=True)

    def print(self) -> None:
        """What was written on stdout; the count of bad lines on stderr, or within the JSON."""
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
            write(to_json(fields, indent) + "\n")
            return
        self.written.print(self.invocation)
        if self.bad:
            imported = counted(self.written.records, "record")
            click.echo(f"Imported {imported}; passed over {counted(self.bad, 'bad line')}.", err=True)

    def resume(self, files: tuple[str, ...]) -> str:
        """What is in the topic, and how to go on behind it."""
        if not self.file:
            return self.written.so_far()
        words = ["tailrace", "import", *files[files.index(self.file) :], "--topic", self.written.topic]
        words += [f"--{self.options['form']}"] if self.options["form"] else []
        words += ["--key-field", self.options["key_field"]] if self.options["key_field"] is not None else []
        return f"{self.written.so_far()} Go on with: {join([*words, '--from-line', str(self.line + 1)])}"


def _form(file: str, given: str | None) -> str:
    form = given or _FORMS.get(os.path.splitext(file)[1].lower())
    if form is None:
        raise click.UsageError(f"The name {file!r} does not say what it holds: add --jsonl or --csv.")
    return form


def _opened(file: str) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb")
