"""`tailrace vacuum`: remove what the settings of the topics let go, and say why the rest stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.errors import answering
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import human_size, to_json, write, write_rows
from tailrace.cli.prompts import counted

if TYPE_CHECKING:
    from tailrace.types import SegmentNote, VacuumReport

_FIELDS = ("action", "topic", "partition", "first", "last", "bytes", "sealed", "why")
# What a narrow terminal goes without, the first first.
_SPARE_FIELDS = ("sealed", "last", "first")


@make_command("vacuum")
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@click.pass_obj
def command(invocation: Invocation, dry_run: bool) -> None:
    """Remove what the settings of the topics let go.

    Says of every segment why it goes or stays. Only what retain, retain_bytes and keep_unread of a topic let go is
    removed, which happens by itself as well; so it does not ask. Namespaces are left alone: add -N NAME for one of
    them.
    """
    with invocation.open("read" if dry_run else "change") as log:
        report = log.vacuum(dry_run=dry_run)
    removed, size = counted(report.segments, "segment"), human_size(report.bytes)
    deed = f"{'Would remove' if dry_run else 'Removed'} {removed} with {counted(report.records, 'record')}, {size}"
    with answering(deed):
        _show(invocation, report)
    invocation.note(f"{deed}, in {report.seconds:.2f} s.")


def _show(invocation: Invocation, report: VacuumReport) -> None:
    layout = invocation.format()
    if layout in ("json", "jsonl"):
        write(to_json(report.to_json(), 2 if layout == "json" else None) + "\n")
        return
    goes = "would go" if report.dry_run else "removed"
    rows = [_row(goes, note) for note in report.removed] + [_row("kept", note) for note in report.kept]
    rows.sort(key=lambda row: (row["topic"], row["partition"], row["first"]))
    if rows or layout != "table":
        write_rows(invocation, _FIELDS, rows, _SPARE_FIELDS)


def _row(action: str, note: SegmentNote) -> dict[str, Any]:
    return {"action": action, **note.to_json()}
