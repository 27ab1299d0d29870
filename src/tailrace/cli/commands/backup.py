"""`tailrace backup`: copy a living log into a directory, only what is new the second time."""

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
    """Copy the log into a directory, while others go on writing.

    DIRECTORY is made, or is an earlier backup of the same log, of which only what is new is copied. It always holds one
    whole backup: the one before, until the new one is finished. Without -N the namespaces are copied as well. Make a
    log of it again with: tailrace restore DIRECTORY TO
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
    deed = f"Backed up {records_told(report)} into {directory}, {copied} copied"
    with answering(deed):
        write_object(invocation, shown(invocation, report.to_json()))
    refuse_damage(report.damage, deed)
    held = f"commits waited for at most {report.journal_held_ms:.1f} ms"
    invocation.note(f"{deed}, in {report.seconds:.2f} s; {held}.")


def _manifest(directory: str) -> tuple[int, int] | None:
    """What tells the manifest in a directory from the next one; None where there is none, which is no backup."""
    try:
        stat = os.stat(os.path.join(directory, "backup.json"))
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _left(directory: str, before: tuple[int, int] | None) -> str:
    """What a backup that was interrupted leaves behind."""
    now = _manifest(directory)
    if now is None:
        return f"The log is not changed; {directory} is no backup yet, and the next one clears away what was copied."
    which = "still holds the backup of before" if now == before else "holds the new backup"
    return f"The log is not changed, and {directory} {which}, whole."


def records_told(report: BackupReport | RestoreReport) -> str:
    """How many records there are, and how many a repair had given up before."""
    lost = f" ({counted(report.lost_records, 'lost record')} known from a repair)" if report.lost_records else ""
    return counted(report.records, "record") + lost


def shown(invocation: Invocation, fields: dict[str, Any]) -> dict[str, Any]:
    """A report for people without what is nothing, for programs with everything."""
    if invocation.format() == "table":
        return {name: value for name, value in fields.items() if value or name not in ("damage", "lost_records")}
    return fields


def refuse_damage(damage: Sequence[Damage], deed: str) -> None:
    """End with 5 when something was damaged, though everything else was done."""
    if damage:
        first = damage[0]
        where = f"{first.topic}[{first.partition}] from {first.first} on, {os.path.basename(first.file)}"
        raise CommandError(
            "damage-found",
            f"{deed}; {counted(len(damage), 'damaged range')}, the first is {where}: {first.reason}.",
            "Everything else is whole; -o json lists the ranges.",
        )
