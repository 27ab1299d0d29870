"""`tailrace backup`: copy a log in use into a directory; a later backup copies only new data."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.candidates import complete_directories, named_directory
from tailrace.cli.ending import CommandError, Interrupted
from tailrace.cli.errors import answering
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import Progress, human_size, write_object
from tailrace.cli.prompts import counted
from tailrace.cli.resume import again
from tailrace.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.types import BackupReport, Damage, RestoreReport


@make_command("backup")
@click.argument("directory", callback=named_directory, shell_complete=complete_directories)
@click.option("--allow-damage", is_flag=True, help="Copy what there is of a damaged log, and exit with 5.")
@click.pass_obj
def command(invocation: Invocation, directory: str, allow_damage: bool) -> None:
    """Copy the log into a directory, while other processes write.

    DIRECTORY is created, or is an earlier backup of the same log, to which only new data is copied. It always holds one
    complete backup: the previous one until the new one is finished. Without -N the namespaces are copied as well. Make
    a log of it again with: tailrace restore DIRECTORY TO
    """
    progress = Progress(invocation, "copying")
    before = _manifest(directory)
    try:
        with invocation.open("change") as log:
            try:
                report = log.backup(directory, allow_damage=allow_damage, progress=progress.callback)
            finally:
                progress.clear()
    except KeyboardInterrupt:
        raise Interrupted(f"{_left(directory, before)}\n{again(invocation)}") from None
    except StorageError as error:
        error.add_note(again(invocation))
        raise
    copied = f"{counted(report.copied_files, 'file')} with {human_size(report.copied_bytes)}"
    deed = f"Backed up {records_text(report)} into {directory}, {copied} copied"
    with answering(deed):
        write_object(invocation, shown(invocation, report.to_json()))
    refuse_damage(report.damage, deed)
    held = f"commits waited for at most {report.journal_held_ms:.1f} ms"
    invocation.note(f"{deed}, in {report.seconds:.2f} s; {held}.")


def _manifest(directory: str) -> tuple[int, int] | None:
    """Return what distinguishes the manifest in a directory from its successor; None without one."""
    try:
        stat = os.stat(os.path.join(directory, "backup.json"))
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _left(directory: str, before: tuple[int, int] | None) -> str:
    """Return the state that an interrupted backup leaves."""
    now = _manifest(directory)
    if now is None:
        return f"The log is not changed; {directory} is no backup yet, and the next one clears away what was copied."
    which = "still holds the previous backup" if now == before else "holds the new backup"
    return f"The log is not changed, and {directory} {which}, whole."


def records_text(report: BackupReport | RestoreReport) -> str:
    """Return the number of records, and the number that an earlier repair gave up."""
    lost = f" ({counted(report.lost_records, 'lost record')} known from a repair)" if report.lost_records else ""
    return counted(report.records, "record") + lost


def shown(invocation: Invocation, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a report, without empty ones for people, all of them for programs."""
    if invocation.format() == "table":
        return {name: value for name, value in fields.items() if value or name not in ("damage", "lost_records")}
    return fields


def refuse_damage(damage: Sequence[Damage], deed: str) -> None:
    """Raise an error with exit code 5 if there is damage, after everything else was done."""
    if damage:
        first = damage[0]
        where = f"{first.topic}[{first.partition}] from {first.first} on, {os.path.basename(first.file)}"
        raise CommandError(
            "damage-found",
            f"{deed}; {counted(len(damage), 'damaged range')}, the first is {where}: {first.reason}.",
            "Everything else is whole; -o json lists the ranges.",
        )
