"""`tailrace vacuum`: remove the segments that the settings of the topics no longer keep, and say why the rest stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.errors import answering
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import human_size, to_json, write, write_rows
from tailrace.cli.prompts import counted

if TYPE_CHECKING:
    from tailrace.types import RewriteNote, SegmentNote, VacuumReport

_FIELDS = ("action", "topic", "partition", "first", "last", "bytes", "sealed", "why")
# Columns that a narrow terminal omits, in this order.
_SPARE_FIELDS = ("sealed", "last", "first")


@make_command("vacuum")
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@click.pass_obj
def command(invocation: Invocation, dry_run: bool) -> None:
    """Remove the segments that the settings of the topics no longer keep.

    Says of every segment why it goes or stays. Only what retain, retain_bytes, keep_unread and ttl of a topic do not
    keep is removed, which also happens in the background; so it does not ask. Namespaces are left
    alone: add -N NAME for one of them.
    """
    with invocation.open("read" if dry_run else "change") as log:
        report = log.vacuum(dry_run=dry_run)
    removed, size = counted(report.segments, "segment"), human_size(report.bytes)
    deed = f"{'Would remove' if dry_run else 'Removed'} {removed} with {counted(report.records, 'record')}, {size}"
    if report.rewritten:
        deed += f"; {_rewritten(report)}"
    with answering(deed):
        _show(invocation, report)
    invocation.note(f"{deed}, in {report.seconds:.2f} s.")


def _show(invocation: Invocation, report: VacuumReport) -> None:
    layout = invocation.format()
    if layout in ("json", "jsonl"):
        write(to_json(report.to_json(), 2 if layout == "json" else None) + "\n")
        return
    goes = "would go" if report.dry_run else "removed"
    rewritten = {(note.topic, note.partition, note.first): note for note in report.rewritten if note.records}
    rows = [_row(goes, note) for note in report.removed]
    rows += [
        _row(*_kept(report, note, rewritten.get((note.topic, note.partition, note.first)))) for note in report.kept
    ]
    rows.sort(key=lambda row: (row["topic"], row["partition"], row["first"]))
    if rows or layout != "table":
        write_rows(invocation, _FIELDS, rows, _SPARE_FIELDS)


def _rewritten(report: VacuumReport) -> str:
    """Return what was rewritten, as the end of a sentence."""
    done = [note for note in report.rewritten if note.records]
    freed = sum(note.bytes_before - note.bytes_after for note in done)
    counts = {word: sum(getattr(note, word) for note in done) for word in ("expired", "deleted")}
    gone = " and ".join(counted(count, f"{word} record") for word, count in counts.items() if count)
    text = f"{'would rewrite' if report.dry_run else 'rewrote'} {counted(len(done), 'segment')}"
    if done:
        text += f" without {gone}, {human_size(freed)}"
    failed = len(report.rewritten) - len(done)
    return f"{text}; {counted(failed, 'segment')} could not be rewritten" if failed else text


def _kept(report: VacuumReport, note: SegmentNote, rewrite: RewriteNote | None) -> tuple[str, SegmentNote]:
    """Return the action and the note of a segment that stays, which may have been rewritten."""
    if rewrite is None:
        return "kept", note
    why = f"{rewrite.why}; {human_size(rewrite.bytes_before)} before"
    action = "would rewrite" if report.dry_run else "rewritten"
    return action, note._replace(bytes=rewrite.bytes_after, why=why)


def _row(action: str, note: SegmentNote) -> dict[str, Any]:
    return {"action": action, **note.to_json()}
