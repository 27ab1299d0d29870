"""A machine for trials: a log that two processes have open, how much to try on it, and what was found.

A plan says how many moments of a seeded run and how many crash states of each are tried. The suite runs a slice, the
sweep command all of it.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tailrace.errors import StorageError
from tests.rigs.sim import PASSIVE, Disk, Killed, Process
from tests.rigs.sim.engine import ORDINARY, Step, Writer, check, run, step, workload
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.invariants import Invariants
from tests.rigs.sim.witness import Finding, Witness

FAULTY = (*ORDINARY, StorageError)
MOMENTS = ("before", "middle", "after")
PROBLEMS_MAX = 5


@dataclass
class Plan:
    """How much of a trial to run; `moments` None means every operation."""

    seed: int
    length: int = 14
    moments: int | None = None
    states: int = 6
    deadline: float | None = None

    def random(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    @property
    def over(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def pick(self, name: str, numbers: list[int]) -> list[int]:
        """Some of the numbers, all of them in a full sweep."""
        if self.moments is None or self.moments >= len(numbers):
            return numbers
        return sorted(self.random(name).sample(numbers, self.moments))


@dataclass
class Tally:
    """What was tried, and what was found."""

    states: int = 0
    faults: int = 0
    acknowledged: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)

    def probe(self, label: object, look: Callable[..., object], *arguments: Any, **options: Any) -> bool:
        """Note what a look finds; an exception is a finding too. False when there is one."""
        try:
            finding = look(*arguments, **options)
        except Exception:  # noqa: BLE001  # Whatever comes up is told with the moment at which it did.
            finding = Finding(traceback.format_exc(limit=-6))
        if not isinstance(finding, Finding):
            return True
        self.lost += finding.lost
        self.problems.append(f"{label}: {finding.text}")
        return False

    def state(self, label: object, disk: Disk, witness: Witness, *, deep: bool = True) -> None:
        """One crash state, checked; `acknowledged` counts what each of them had to show."""
        self.states += 1
        self.acknowledged += witness.acknowledged
        self.probe(label, check, disk, witness, cut=True, deep=deep)

    @property
    def enough(self) -> bool:
        return len(self.problems) >= PROBLEMS_MAX

    def add(self, other: Tally) -> None:
        self.states += other.states
        self.faults += other.faults
        self.acknowledged += other.acknowledged
        self.lost += other.lost
        self.problems += other.problems


class Machine:
    """A log that two processes have open: the victim, and a survivor that has used the same partitions."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.disk = Disk(plan.seed)
        self.witness = Witness()
        self.invariants = Invariants(self.disk, self.witness)
        self.survivor = Writer(Process(self.disk, "survivor"), self.witness)
        prepared = [step("append", ("t", 0)), step("append", ("t", 1), durable=None), step("append", ("u", 0))]
        run(self.survivor, [*prepared, step("transact", (("t", 0), ("t", 1), ("u", 0)))])
        self.victim = Writer(Process(self.disk, "victim"), self.witness)

    def opener(self, name: str = "opener") -> Writer:
        """A process that opens the log now."""
        return Writer(Process(self.disk, name), self.witness)


def victim_steps(plan: Plan) -> list[Step]:
    return workload(plan.random("victim"), plan.length)


def operations(plan: Plan) -> list[tuple[int, str]]:
    """(number, kind) of each operation of the victim's undisturbed run, numbered as the victim counts them."""
    machine = Machine(plan)
    trace = machine.disk.record()
    first = machine.victim.process.steps
    run(machine.victim, victim_steps(plan))
    kinds = [kind for name, kind, _ in trace if name == "victim"]
    return list(enumerate(kinds, first + 1))


def moments(plan: Plan, name: str, fits: Callable[[str], bool]) -> list[int]:
    return plan.pick(name, [number for number, kind in operations(plan) if fits(kind)])


def active(kind: str) -> bool:
    return kind not in PASSIVE


def aftermath(tally: Tally, machine: Machine, label: tuple[object, ...], random: Random, *, whole: bool = True) -> None:
    """The survivor works on, another process opens the log and works, then the power goes."""
    plan, disk, witness = machine.plan, machine.disk, machine.witness
    expected = ORDINARY if whole else FAULTY
    order = random.random() < 0.5

    def go_on() -> None:
        writers = [machine.survivor] if order else []
        writers += [machine.opener()]
        writers += [] if order else [machine.survivor]
        for writer in writers:
            run(writer, workload(random, 4), expected)

    label = (*label, "survivor first" if order else "opener first")
    tally.probe((*label, "going on"), go_on)
    tally.probe((*label, "live"), check, disk.clone(), witness, cut=False, whole=whole)
    tally.probe((*label, "invariants"), machine.invariants.finding)
    end(tally, machine, label, random, plan.states)


def end(tally: Tally, machine: Machine, label: tuple[object, ...], random: Random, states: int) -> None:
    """The power goes, in several states."""
    disk, witness = machine.disk, machine.witness
    for choice in disk.crash_states(random, states):
        tally.state((*label, choice), disk.crash(choice), witness, deep=random.random() < 0.5)


def struck(machine: Machine, *faults: Fault, expected: tuple[type[Exception], ...] = ORDINARY) -> bool:
    """Run the victim under faults; whether the first of them struck."""
    machine.disk.plan(*faults)
    try:
        run(machine.victim, victim_steps(machine.plan), expected)
    except Killed:
        pass
    machine.disk.plan()
    return faults[0].fired


def each_moment(plan: Plan, tally: Tally, name: str, fits: Callable[[str], bool]) -> Iterator[tuple[int, Random]]:
    for at in moments(plan, name, fits):
        if plan.over or tally.enough:
            return
        yield at, plan.random(f"{name}/{at}")
