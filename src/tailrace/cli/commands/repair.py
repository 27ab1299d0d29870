"""`tailrace repair`: quarantine what is damaged, name what is lost, and make the log usable again."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.ending import CommandError, Interrupted
from tailrace.cli.errors import answering
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation, explained
from tailrace.cli.output import Progress, to_json, write, write_rows
from tailrace.cli.prompts import confirm, counted
from tailrace.cli.quoting import quote
from tailrace.cli.resume import again
from tailrace.errors import NotALogError, StorageError
from tailrace.names import IDENTITY_NAME

if TYPE_CHECKING:
    from tailrace.types import RepairReport

# The directory name of a namespace.
_ESCAPED = re.compile("([a-z0-9_-]|%[0-9A-F]{2})+")
_FIELDS = ("namespace", "what", "topic", "partition", "first", "last", "why")


@make_command("repair")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.pass_obj
def command(invocation: Invocation, dry_run: bool) -> None:
    """Repair a damaged log.

    Damaged bytes go into quarantine, every whole record keeps its offset, and a placeholder names each range that is
    lost. A partition or a journal that is read-only after a failed sync takes appends again. No other process may have
    the log open. Without -N the namespaces are repaired as well. Asks before it changes anything. Exits with 5 when
    records are lost, or anything else that a note names.
    """
    repairing = Repairing(invocation)
    try:
        with invocation.located() as (location, space):
            repairing.run(location, space, dry_run=True)
            if not repairing.reports:
                invocation.note("Nothing is wrong, and nothing was changed.")
            if repairing.reports and not dry_run:
                confirm(invocation, repairing.deed())
                repairing.mend(location)
    except KeyboardInterrupt:
        kept = "No record is lost by this: what is repaired stays so, and the next repair does the rest."
        left = kept if repairing.begun else "Nothing was changed."
        raise Interrupted(f"{left}\n{again(invocation)}") from None
    except NotALogError as error:
        raise explained(error, location, space) from None
    except StorageError as error:
        if repairing.begun:
            error.add_note(again(invocation))
        raise
    done = "Would repair" if dry_run else "Repaired"
    with answering(f"{done} the log"):
        repairing.show(dry_run)
    repairing.print_notes(dry_run)


class Repairing:
    """One call: the reports of the log and of the namespaces in it that need a repair."""

    def __init__(self, invocation: Invocation) -> None:
        self.invocation = invocation
        self.location = ""
        # By the path of namespaces; the log itself is the empty path.
        self.reports: dict[tuple[str, ...], RepairReport] = {}
        # Whether anything may have been changed.
        self.begun = False

    def run(self, location: str, space: str, *, dry_run: bool) -> None:
        """Plan the repair of a log, and of the namespaces in it unless one was named."""
        self.location = location
        way = (space,) if space else ()
        self._look(location, way, dry_run)
        if not space:
            self._within(location, way, dry_run)

    def _within(self, location: str, way: tuple[str, ...], dry_run: bool) -> None:
        for name in _namespaces(_inside(location, way)):
            self._look(location, (*way, name), dry_run)
            self._within(location, (*way, name), dry_run)

    def _look(self, location: str, way: tuple[str, ...], dry_run: bool) -> None:
        report = self._repair(location, way, dry_run)
        if not report.sound:
            self.reports[way] = report

    def mend(self, location: str) -> None:
        """Repair those in which the plan found something."""
        named, self.reports = list(self.reports), {}
        self.begun = True
        for way in named:
            self.reports[way] = self._repair(location, way, dry_run=False)

    def _repair(self, location: str, way: tuple[str, ...], dry_run: bool) -> RepairReport:
        import tailrace

        what = "looking at" if dry_run else "repairing"
        progress = Progress(self.invocation, what if not way else f"{what} {'/'.join(way)!r}")
        outer, name = _inside(location, way[:-1]), way[-1] if way else None
        try:
            return tailrace.repair(outer, namespace=name, dry_run=dry_run, progress=progress.callback)
        finally:
            progress.clear()

    def deed(self) -> str:
        """Return what is about to be done, for the confirmation."""
        lost = sum(damage.last - damage.first + 1 for _, damage in self._lost() if damage.topic is not None)
        steps = sum(len(report.steps) for report in self.reports.values())
        deed = f"repair {counted(steps, 'thing')} in {self.location}"
        if lost:
            return f"{deed}, giving up {counted(lost, 'record')} that cannot be read"
        noted = any(report.notes for report in self.reports.values())
        return f"{deed}; the notes of --dry-run say what may be lost" if noted else f"{deed}, losing no record"

    def _lost(self) -> list[tuple[tuple[str, ...], Any]]:
        return [(way, damage) for way, report in self.reports.items() for damage in report.lost]

    def show(self, dry_run: bool) -> None:
        """Print what was done, or would be."""
        layout = self.invocation.format()
        if layout in ("json", "jsonl"):
            write(to_json(self._to_json(dry_run), 2 if layout == "json" else None) + "\n")
            return
        rows = [row for way, report in self.reports.items() for row in _rows("/".join(way) or None, report)]
        if rows or layout != "table":
            spare = () if any(row["namespace"] for row in rows) else ("namespace",)
            write_rows(self.invocation, _FIELDS, rows, spare)

    def _to_json(self, dry_run: bool) -> dict[str, Any]:
        logs = [{"namespace": "/".join(way) or None, **report.to_json()} for way, report in self.reports.items()]
        return {"dry_run": dry_run, "sound": not logs, "logs": logs}

    def print_notes(self, dry_run: bool) -> None:
        """Print notes on stderr; raise an error with exit code 5 if something is lost."""
        for way, report in self.reports.items():
            for note in report.notes:
                # A full stop after a command would be pasted with it.
                stop = "" if ": tailrace " in note else "."
                self.invocation.note(self._placed(f"Note: {note}{stop}", way))
            for path in report.quarantine:
                self.invocation.note(f"Put aside: {os.path.relpath(path, self.location)}")
        lost = [(way, damage) for way, damage in self._lost() if damage.topic is not None]
        notes = sum(len(report.notes) for report in self.reports.values())
        if lost:
            verb = "would be given up" if dry_run else "is lost" if len(lost) == 1 else "are lost"
            raise CommandError("damage-found", f"{counted(len(lost), 'range')} of records {verb}.", self._next(dry_run))
        if notes:
            verb = "would be" if dry_run else "is"
            sentence = (
                f"The log {verb} whole again; {counted(notes, 'note')} above {'say' if notes > 1 else 'says'} what"
            )
            raise CommandError("damage-found", f"{sentence} could not be kept.", self._next(dry_run))
        if self.reports:
            done = "The log is whole again, and no record is lost."
            self.invocation.note("Nothing was changed." if dry_run else done)

    def _next(self, dry_run: bool) -> str:
        """Return the next step after a repair that could not keep everything, or before it."""
        if dry_run:
            return "Nothing was changed; run it without --dry-run to repair the log, with a copy of it at hand."
        topics = {(way, damage.topic) for way, damage in self._lost() if damage.topic and damage.topic[:2] != "__"}
        if not topics:
            return "Every record that can be read stays under its offset, and the log can be used."
        # One command serves as an example for all topics.
        way, topic = min(topics)
        read = f"read on after them with: tailrace read {quote(topic)} --on-damage skip"
        return self._placed(f"Every other record is readable; {read}", way)

    def _placed(self, text: str, way: tuple[str, ...]) -> str:
        """Return a text in which commands name the log or namespace that it is about."""
        if not way:
            return self.invocation.whole(text)
        inner = copy(self.invocation)
        inner.log, inner.namespace = _inside(self.location, way[:-1]), way[-1]
        return inner.whole(text)


def _rows(space: str | None, report: RepairReport) -> list[dict[str, Any]]:
    empty = dict.fromkeys(_FIELDS)
    rows = [{**empty, "namespace": space, **step.to_json()} for step in report.steps]
    rows += [
        {
            **empty, "namespace": space, "what": "lost", "topic": damage.topic, "partition": damage.partition,
            "first": damage.first, "last": damage.last, "why": damage.reason,
        }
        for damage in report.lost
    ]  # fmt: skip
    return rows


def _inside(location: str, way: tuple[str, ...]) -> str:
    """Return the directory of a namespace, as it is named on disk."""
    for name in way:
        found = [each for each in _entries(location) if _name_of(each) == name]
        location = os.path.join(location, "namespaces", found[0] if found else name)
    return location


def _entries(location: str) -> list[str]:
    directory = os.path.join(location, "namespaces")
    with _looking(directory):
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            if os.path.islink(directory):
                raise
            return []


def _namespaces(location: str) -> list[str]:
    """Return the namespaces of a log, which need not be a log that opens."""
    return [_name_of(name) for name in _entries(location) if _is_log(os.path.join(location, "namespaces", name))]


def _is_log(location: str) -> bool:
    """Return whether a directory can be repaired as a log, whichever files are missing; topics alone are no log."""
    if not _ESCAPED.fullmatch(os.path.basename(location)):
        # A foreign directory, or one that a drop is removing, is not a namespace.
        return False
    marks = (IDENTITY_NAME, "catalog", "tails")
    with _looking(location):
        if os.path.islink(location):
            # A broken link is a namespace that cannot be examined, so this raises.
            os.stat(location)
        holds = any(stat.S_ISDIR(_mode(location, name)) for name in ("catalog", "topics"))
        return holds and any(_mode(location, name) for name in marks)


def _mode(location: str, name: str) -> int:
    """Return the mode of a name in a directory; 0 if it does not exist."""
    try:
        return os.stat(os.path.join(location, name)).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


@contextmanager
def _looking(path: str) -> Iterator[None]:
    """Turn an OSError while namespaces are examined into an error: one that cannot be read may be damaged."""
    try:
        yield
    except OSError as error:
        code = "not-allowed" if isinstance(error, PermissionError) else "input-output"
        reason = "a symbolic link that leads nowhere" if isinstance(error, FileNotFoundError) else error.strerror
        raise CommandError(
            code,
            f"Namespaces cannot be looked at: {error.filename or path}: {reason or error}.",
            "Nothing was changed; see to it that it can be read, or move it away, then repair again.",
        ) from None


def _name_of(escaped: str) -> str:
    from urllib.parse import unquote

    return unquote(escaped, errors="surrogateescape")
