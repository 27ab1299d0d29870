"""`tailrace verify`: read everything and name every damaged range, in the log and in its namespaces."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.arguments import is_pattern
from tailrace.cli.candidates import complete_topics, near
from tailrace.cli.ending import CommandError
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import Progress, human_size, to_json, write, write_rows
from tailrace.cli.prompts import counted
from tailrace.errors import VersionError

if TYPE_CHECKING:
    from tailrace import Log
    from tailrace.types import VerifyReport

_FIELDS = ("namespace", "topic", "partition", "first", "last", "file", "position", "reason")
_EVERYTHING = "..."


@make_command("verify")
@click.argument("match", default=_EVERYTHING, shell_complete=complete_topics)
@click.pass_obj
def command(invocation: Invocation, match: str) -> None:
    """Read everything and report every damaged range.

    MATCH picks topics: * is one level, a final ... is the rest. Without -N the namespaces are read as well. Exits with
    5 when anything is damaged.
    """
    layout = invocation.format()
    verifying = Verifying(invocation, match)
    with invocation.open("read") as log:
        verifying.run(log, invocation.space or None)
    verifying.refuse_nothing()
    if layout in ("json", "jsonl"):
        write(to_json(verifying.to_json(), 2 if layout == "json" else None) + "\n")
    elif verifying.damage or layout != "table":
        rows = verifying.damage
        if layout == "table":
            rows = [{**row, "file": os.path.relpath(row["file"], verifying.location)} for row in rows]
        write_rows(invocation, _FIELDS, rows, ("position", *(() if verifying.spaces else ("namespace",)), "file"))
    read = f"{counted(verifying.records, 'record')}, {human_size(verifying.bytes)}"
    if verifying.spaces:
        read += f", {counted(len(verifying.spaces), 'namespace')} included"
    if verifying.damage:
        ranges = counted(len(verifying.damage), "damaged range")
        raise CommandError(
            "damage-found",
            f"{ranges} found in {read}.",
            "Records outside of them are readable; see what can be done with: tailrace repair --dry-run",
        )
    if verifying.newer is not None:
        raise verifying.newer
    known = f", {counted(len(verifying.lost), 'lost range')} known from a repair" if verifying.lost else ""
    invocation.note(f"No damage: {read}{known}, in {verifying.seconds:.2f} s.")


class Verifying:
    """One call: what was read of a log and its nested namespaces, and what was damaged."""

    def __init__(self, invocation: Invocation, match: str) -> None:
        self.invocation = invocation
        self.match = match
        self.location = ""
        self.records = self.bytes = self.segments = 0
        self.seconds = 0.0
        self.damage: list[dict[str, Any]] = []
        # Ranges that a repair replaced by placeholders: known losses, not damage.
        self.lost: list[dict[str, Any]] = []
        # The first file that this version of Tailrace cannot read: not damage, and not known to be sound.
        self.newer: VersionError | None = None
        self.spaces: list[str] = []
        self.matched = match == _EVERYTHING
        self.names: set[str] = set()

    def run(self, log: Log, space: str | None) -> None:
        """Verify a log, then the namespaces in it."""
        self.location = self.location or log.location
        self._look_for_topics(log)
        progress = Progress(self.invocation, "verifying" if space is None else f"verifying {space!r}")
        try:
            self._add(log.verify(self.match, progress=progress.callback), space)
        except VersionError as error:
            self.newer = self.newer or error
        finally:
            progress.clear()
        for name in log.namespaces():
            self._enter(log, name, name if space is None else f"{space}/{name}")

    def _add(self, report: VerifyReport, space: str | None) -> None:
        self.records += report.checked_records
        self.bytes += report.checked_bytes
        self.segments += report.checked_segments
        self.seconds += report.seconds
        self.damage += [{"namespace": space, **damage.to_json()} for damage in report.damage]
        self.lost += [{"namespace": space, **damage.to_json()} for damage in report.lost]

    def _enter(self, log: Log, name: str, space: str) -> None:
        from tailrace.errors import DataError, NotALogError

        try:
            inner = self.invocation.inner(log, name)
        except NotALogError:
            # Dropped at this moment.
            return
        except VersionError as error:
            self.newer = self.newer or error
            return
        except (DataError, CommandError) as error:
            row = dict.fromkeys(_FIELDS) | {"namespace": space, "file": log.location, "position": 0}
            self.damage.append(row | {"reason": str(error)})
            return
        self.spaces.append(space)
        with inner:
            self.run(inner, space)

    def _look_for_topics(self, log: Log) -> None:
        """Record whether anything matches: a name that no topic has would otherwise pass as sound."""
        from tailrace.errors import DataError, TopicNotFoundError

        if self.matched:
            return
        try:
            if is_pattern(self.match):
                self.matched = bool(log.topics(self.match))
            else:
                log.topic(self.match).offsets()
                self.matched = True
        except TopicNotFoundError as error:
            self.names.update({error.suggestion} if error.suggestion else ())
        except DataError:
            # It exists, and verify() is about to report its damage.
            self.matched = True

    def refuse_nothing(self) -> None:
        """Raise CommandError if no topic was examined although some were named."""
        if self.matched:
            return
        if is_pattern(self.match):
            message = f"No topic matches {self.match!r}."
        else:
            message = f"No topic matches: there is no topic {self.match!r}{near(self.match, sorted(self.names))}"
        raise CommandError("topic-not-found", message, "Nothing was verified; list the topics with: tailrace topic ls")

    def to_json(self) -> dict[str, Any]:
        return {
            "checked_bytes": self.bytes,
            "checked_records": self.records,
            "checked_segments": self.segments,
            "checked_namespaces": self.spaces,
            "damage": self.damage,
            "lost": self.lost,
            "seconds": self.seconds,
            "ok": not self.damage and self.newer is None,
        }
