"""A campaign: one system on one file system, recorded, cut at many points, and what became of it."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.rigs.powercut.record import Record, State
from tests.rigs.powercut.rig import Checked, check_states, record_again, record_workload
from tests.rigs.powercut.systems import System

FAULTS_SHOWN = 5
# A second power cut gets a shorter run and fewer states: there are several of them.
AGAIN_CALLS = 40
AGAIN_SHARE = 6
# Of so many states one may be a file system that cannot be mounted again: xfs takes a block whose first sector names
# the newest change for done, so that a cut within its own recovery, between two sectors of a block, is too much for it.
# More would be a fault of the rig, which checks nothing there.
MOUNTED_FOR_EACH_UNMOUNTED = 500


class Request(NamedTuple):
    """How much is tried."""

    states: int
    seed: int
    calls: int = 300
    pause: float = 0.002
    # How many of the crash states get a second run and a second power cut; for Tailrace.
    again: int = 2
    mutation: str = ""
    deadline: float = float("inf")


class Row(NamedTuple):
    """What is counted of one system on one file system."""

    key: str
    label: str
    setting: str
    file_system: str
    states: int = 0
    # States after a second power cut are among them.
    states_again: int = 0
    # Events recorded: writes and flushes of the disk.
    writes: int = 0
    flushes: int = 0
    # Summed over all states, and in the state where most was lost.
    acknowledged: int = 0
    survived: int = 0
    worst_acknowledged: int = 0
    worst_survived: int = 0
    losing: int = 0
    damaged: int = 0
    damage: str = ""
    # States in which e2fsck had to run before ext4 could be mounted.
    repaired: int = 0
    # States, counted in no other number, in which the file system could not be mounted; and why.
    unmounted: int = 0
    unmounted_why: str = ""
    faults: tuple[str, ...] = ()

    def with_checked(self, checked: Checked, faults_of: str) -> Row:
        if checked.unmounted:
            why = self.unmounted_why or f"{faults_of}{checked.state.text()}: {checked.unmounted}"
            return self._replace(unmounted=self.unmounted + 1, unmounted_why=why)
        found = checked.verdict
        lost = found.acknowledged - found.survived
        so_far = (self.worst_acknowledged - self.worst_survived, self.worst_acknowledged)
        worst = found if (lost, found.acknowledged) >= so_far else None
        new = tuple(f"{faults_of}{checked.state.text()}: {fault}" for fault in found.faults)
        return self._replace(
            states=self.states + 1,
            acknowledged=self.acknowledged + found.acknowledged,
            survived=self.survived + found.survived,
            worst_acknowledged=self.worst_acknowledged if worst is None else worst.acknowledged,
            worst_survived=self.worst_survived if worst is None else worst.survived,
            losing=self.losing + (lost > 0),
            damaged=self.damaged + bool(found.damaged),
            damage=self.damage or found.damaged,
            repaired=self.repaired + checked.repaired,
            faults=self.faults + new,
        )

    def merged(self, other: Row) -> Row:
        """Both together: another pass over the same system."""
        lost = self.worst_acknowledged - self.worst_survived
        worse = other if other.worst_acknowledged - other.worst_survived > lost else self
        sums = (
            "states",
            "states_again",
            "writes",
            "flushes",
            "acknowledged",
            "survived",
            "losing",
            "damaged",
            "repaired",
            "unmounted",
        )
        return self._replace(
            worst_acknowledged=worse.worst_acknowledged,
            worst_survived=worse.worst_survived,
            damage=self.damage or other.damage,
            unmounted_why=self.unmounted_why or other.unmounted_why,
            faults=self.faults + other.faults,
            **{name: getattr(self, name) + getattr(other, name) for name in sums},
        )

    def broken(self, system: System) -> list[str]:
        """Why this row fails a run: a promise that did not hold. Peers are counted, not judged."""
        found = list(self.faults[:FAULTS_SHOWN])
        if len(self.faults) > FAULTS_SHOWN:
            found.append(f"and {len(self.faults) - FAULTS_SHOWN} more")
        if system.name == "Tailrace" and self.damaged:
            found.append(f"{self.damaged} states could not be read: {self.damage}")
        if system.promised and self.losing:
            found.append(f"{self.losing} states lost acknowledged records")
        if self.unmounted > 1 + self.states // MOUNTED_FOR_EACH_UNMOUNTED:
            found.append(f"{self.unmounted} states could not be mounted: {self.unmounted_why}")
        return found

    def text(self) -> str:
        return (
            f"{self.file_system}  {self.label}, {self.setting}: acknowledged {self.worst_acknowledged}, survived "
            f"{self.worst_survived} in the worst of {self.states} states; something lost in {self.losing}, damaged in "
            f"{self.damaged} ({self.writes} writes, {self.flushes} flushes recorded"
            + (f"; e2fsck needed in {self.repaired}" if self.repaired else "")
            + (f"; {self.unmounted} more not looked at, {self.unmounted_why})" if self.unmounted else ")")
        )


def run(home: Path, system: System, file_system: str, request: Request) -> Row:
    """Record, cut and check; then once more from some of the states, with a second cut."""
    record = record_workload(home, system, file_system, request.calls, request.pause, request.mutation)
    level = next((note["level"] for note in record.notes.values() if note.get("level")), "")
    setting = f"{system.setting} ({level})" if level else system.setting
    row = Row(system.key, system.label, setting, file_system, writes=record.writes, flushes=record.flushes)
    row = _add(row, home, system, record, request, request.states, "")
    if system.name != "Tailrace" or request.mutation:
        return row
    draw = random.Random(f"{request.seed}:again")
    candidates = states_of(record, system, request, request.states)
    for number in range(request.again):
        state = draw.choice(candidates)
        again = record_again(home, system, file_system, record, state, AGAIN_CALLS, request.pause)
        states = row.states
        row = _add(row, home, system, again, request, request.states // AGAIN_SHARE, f"second cut {number}, ")
        row = row._replace(
            states_again=row.states_again + row.states - states,
            writes=row.writes + again.writes,
            flushes=row.flushes + again.flushes,
        )
    return row


def _add(row: Row, home: Path, system: System, record: Record, request: Request, count: int, name: str) -> Row:
    states = states_of(record, system, request, count)
    kept = ""
    for checked in check_states(home, system, row.file_system, record, states, request.deadline):
        wrong = checked.verdict.faults or (system.name == "Tailrace" and (checked.verdict.damaged or checked.unmounted))
        if wrong and not kept and not system.hidden and not request.mutation:
            kept = str(keep(record, row, request, count))
            name = f"{name}kept in {kept}, "
        row = row.with_checked(checked, name)
    return row


def states_of(record: Record, system: System, request: Request, count: int) -> list[State]:
    """Peers are cut from their first acknowledgement on; Tailrace also while it makes its files."""
    return record.states(count, str(request.seed), from_the_first_byte=system.name == "Tailrace")


def keep(record: Record, row: Row, request: Request, count: int) -> Path:
    """Put a record away in which something was found, so that its states can be made again."""
    place = Path(tempfile.mkdtemp(prefix="tailrace-cut-"))
    shutil.copy(record.image, place / "image")
    shutil.copy(record.path, place / "record")
    about = {
        "system": row.key,
        "file_system": row.file_system,
        "states": count,
        "seed": request.seed,
        "before": record.before,
    }
    (place / "about.json").write_text(json.dumps(about), encoding="utf-8")
    return place


def replay(home: Path, place: Path, systems: dict[str, System]) -> Iterator[Checked]:
    """Check the states of a record that was kept."""
    about: dict[str, Any] = json.loads((place / "about.json").read_text(encoding="utf-8"))
    record = Record(place / "image", place / "record", tuple(about["before"]))
    system = systems[about["system"]]
    states = states_of(record, system, Request(about["states"], about["seed"]), about["states"])
    yield from check_states(home, system, about["file_system"], record, states)
