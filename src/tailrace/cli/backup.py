"""`tailrace backup`: copy a living log into a directory, only what is new the second time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from .candidates import complete_directories, named_directory
from .commands import command as make_command
from .confirmation import counted
from .ending import CommandError
from .failure import answering
from .invocation import Invocation
from .output import Progress, human_size, write_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.types import Damage


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
    with invocation.open("change") as log:
        try:
            report = log.backup(directory, allow_damage=allow_damage, progress=progress.callback)
        finally:
            progress.clear()
    copied = f"{counted(report.copied_files, 'file')} with {human_size(report.copied_bytes)}"
    deed = f"Backed up {counted(report.records, 'record')} into {directory}, {copied} copied"
    with answering(deed):
        write_object(invocation, shown(invocation, report.to_json()))
    refuse_damage(report.damage, deed)
    held = f"commits waited for at most {report.journal_held_ms:.1f} ms"
    invocation.note(f"{deed}, in {report.seconds:.2f} s; {held}.")


def shown(invocation: Invocation, fields: dict[str, Any]) -> dict[str, Any]:
    """A report for people without what is nothing, for programs with everything."""
    if invocation.format() == "table":
        return {name: value for name, value in fields.items() if value != []}
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
