"""`tailrace verify`: read everything and name every damage."""

from __future__ import annotations

import click

from .commands import command as make_command
from .confirmation import counted
from .failure import CommandError
from .invocation import Invocation
from .output import Progress, human_size, to_json, write, write_rows

_FIELDS = ("topic", "partition", "first", "last", "file", "position", "reason")


@make_command("verify")
@click.argument("match", default="...")
@click.pass_obj
def command(invocation: Invocation, match: str) -> None:
    """Read everything and report every damaged range.

    MATCH picks topics: * is one level, a final ... is the rest. Exits with 5 when anything is damaged.
    """
    layout = invocation.format()
    progress = Progress(invocation, "verifying")
    with invocation.open("read") as log:
        if "*" not in match and not match.endswith("..."):
            # A name that no topic has would otherwise pass for sound.
            log.topic(match).offsets()
        try:
            report = log.verify(match, progress=progress.callback)
        finally:
            progress.clear()
    fields = report.to_json()
    if layout in ("json", "jsonl"):
        write(to_json(fields, 2 if layout == "json" else None) + "\n")
    elif report.damage or layout != "table":
        write_rows(invocation, _FIELDS, fields["damage"])
    read = f"{counted(report.checked_records, 'record')}, {human_size(report.checked_bytes)}"
    if report.damage:
        ranges = counted(len(report.damage), "damaged range")
        raise CommandError(
            "damage-found",
            f"{ranges} found in {read}.",
            "Records outside of them are readable; keep a copy of the log.",
        )
    invocation.note(f"No damage: {read} in {report.seconds:.2f} s.")
