"""Groups over the simulated disk: scenarios of three members, and how they go on after something went wrong.

A scenario is a list of steps, each done by one process after another. What goes wrong strikes whoever does the chosen
operation; the others go on, a new process joins them, everything left is read, and then the power goes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tailrace.errors import OwnershipError, StorageError
from tests.rigs.sim import Disk, Killed
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.group_audit import GroupAudit
from tests.rigs.sim.group_check import check, is_read, judge, see
from tests.rigs.sim.group_members import EXACT_GROUP, Member
from tests.rigs.sim.group_witness import GroupWitness
from tests.rigs.sim.machine import Plan, Tally
from tests.rigs.sim.witness import Finding

# What a member may meet when others evict it, drop its group, or are at work when it wants to reset.
ORDINARY: tuple[type[BaseException], ...] = (OwnershipError,)
FAULTY: tuple[type[BaseException], ...] = (OwnershipError, StorageError)
NAMES = ("a", "b", "c")
DRAIN_ROUNDS_MAX = 60
MACHINES_UNCOLLECTED = 25
# Partitions that change hands take a few rounds in which nobody reads.
IDLE_ROUNDS = 3


# Steps.


@dataclass(frozen=True)
class Step:
    """One thing for a member to do; all of its choices are made, so that it can be done again on another machine."""

    name: str
    verb: str
    arguments: tuple[object, ...] = ()
    options: tuple[tuple[str, object], ...] = ()

    def __call__(self, machine: GroupMachine) -> None:
        arguments = [machine.members[str(each)] if each in NAMES else each for each in self.arguments]
        getattr(machine.members[self.name], self.verb)(*arguments, **dict(self.options))


def step(name: str, verb: str, *arguments: object, **options: object) -> Step:
    return Step(name, verb, arguments, tuple(options.items()))


PREPARED = (
    step("a", "produce", 0, 4), step("a", "produce", 1, 3, durable=False), step("a", "produce", 2, 2),
    step("a", "transact", 2), step("a", "leave"), step("a", "consume", 2), step("b", "flush"), step("c", "flush"),
)  # fmt: skip

# What goes before each scenario undisturbed, and the steps in which something goes wrong.
SCENARIOS: dict[str, tuple[tuple[Step, ...], tuple[Step, ...]]] = {
    "commit": ((), (
        step("a", "consume", 2), step("a", "commit"), step("b", "produce", 0, 3, durable=False),
        step("a", "consume", 3), step("a", "consume", 3), step("a", "commit"), step("a", "leave"),
        step("a", "iterate", 2), step("a", "join", commit="before"), step("a", "consume", 2), step("a", "consume", 2),
    )),
    "exactly once": ((), (
        step("a", "transact", 2), step("b", "produce", 1, 2, durable=False), step("a", "transact", 3),
        step("b", "produce", 2, 2, size=500), step("a", "checkpoint"), step("a", "transact", 4), step("a", "leave"),
        step("b", "process_all", 2),
    )),
    # Cursors are stored when partitions change hands.
    "rebalance": ((step("a", "leave"), step("a", "join", every="10s"), step("a", "consume", 2)), (
        step("b", "join", every="10s"), step("b", "consume", 2), step("a", "consume", 1), step("b", "consume", 1),
        step("c", "consume", 1), step("c", "produce", 1, 2, durable=False), step("a", "consume", 1),
        step("b", "consume", 1), step("c", "consume", 2), step("b", "leave"), step("a", "consume", 1),
        step("c", "consume", 1), step("a", "leave"), step("c", "consume", 4),
    )),
    "exact rebalance": ((), (
        step("a", "transact", 1), step("b", "transact", 1), step("a", "transact", 1), step("b", "transact", 2),
        step("c", "produce", 1, 2, durable=False), step("c", "transact", 1), step("a", "transact", 1),
        step("b", "transact", 1), step("c", "transact", 2), step("a", "leave"), step("b", "transact", 2),
        step("c", "transact", 2),
    )),
    "snapshot": (
        (step("c", "produce", 0, 12), step("b", "consume", 1), *[step("a", "consume", 1)] * 16),
        (*[step("a", "consume", 1), step("b", "consume", 1)] * 4, step("c", "consume", 1), step("a", "transact", 1)),
    ),
    "exact snapshot": (
        (step("c", "produce", 0, 22), *[step("a", "transact", 1)] * 21),
        (*[step("a", "transact", 1)] * 2, step("b", "transact", 1), step("a", "transact", 1), step("b", "transact", 1)),
    ),
    "operator": ((), (
        step("a", "leave"), step("c", "reset", "earliest"), step("a", "consume", 2), step("c", "evict", "a"),
        step("a", "commit"), step("b", "consume", 2), step("a", "consume", 1), step("b", "consume", 1),
        step("c", "reset", "latest", force=True), step("a", "consume", 1), step("b", "commit"),
        step("a", "produce", 0, 2), step("b", "consume", 2), step("c", "drop"), step("b", "commit"),
        step("a", "consume", 2), step("b", "consume", 2), step("a", "leave"), step("b", "leave"), step("c", "drop"),
    )),
}  # fmt: skip


def _anybody(random: Random) -> str:
    return random.choice(NAMES)


KINDS: tuple[tuple[int, Callable[[Random], Step]], ...] = (
    (6, lambda random: step(_anybody(random), "consume", random.randrange(1, 4))),
    (5, lambda random: step(_anybody(random), "transact", random.randrange(1, 4))),
    (3, lambda random: step(_anybody(random), "commit")),
    (3, lambda random: step(_anybody(random), "leave")),
    (4, lambda random: step(_anybody(random), "produce", random.randrange(3), 2, durable=random.random() < 0.5)),
    (1, lambda random: step(_anybody(random), "produce", random.randrange(3), 1, size=1_200)),
    (2, lambda random: step(_anybody(random), "join", commit="before")),
    (1, lambda random: step(_anybody(random), "join", every="10s")),
    (1, lambda random: step(_anybody(random), "flush")),
    (1, lambda random: step(_anybody(random), "checkpoint")),
    (1, lambda random: step(_anybody(random), "reset", random.choice(("earliest", "latest")), force=True)),
    (2, lambda random: step(_anybody(random), "evict", _anybody(random))),
    (1, lambda random: step(_anybody(random), "drop")),
)


def mixed(random: Random, length: int) -> tuple[Step, ...]:
    """A seeded list of steps of every kind."""
    weights = [weight for weight, _ in KINDS]
    return tuple(make(random) for _, make in random.choices(KINDS, weights, k=length))


# The machine.


class GroupMachine:
    """Three processes that have a log with two groups open."""

    closed = 0

    def __init__(self, plan: Plan, scenario: str) -> None:
        self.plan = plan
        self.scenario = scenario
        self.disk = Disk(plan.seed)
        self.witness = GroupWitness()
        self.audit = GroupAudit(self.disk, self.witness)
        self.audit.on_silent = self.excuse
        self.members = {"a": Member(self.disk, "a", self.witness)}
        self.audit.begin()
        for name in NAMES[1:]:
            self.members[name] = Member(self.disk, name, self.witness)
        before, self.steps = SCENARIOS.get(scenario) or ((), mixed(plan.random("mixed"), plan.length))
        self.run((*PREPARED, *before))

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members.values() if not member.dead]

    def run(self, steps: Sequence[Step], expected: tuple[type[BaseException], ...] = ORDINARY) -> None:
        """Do the steps of those who live; only the expected errors may come up."""
        for each in steps:
            member = self.members[each.name]
            if member.dead:
                continue
            try:
                each(self)
            except Killed:
                self.remove_dead()
            except expected as error:
                member.failed(error)

    def excuse(self, silent: str) -> None:
        """What a member was handed that has not polled for too long comes again to others."""
        for member in self.members.values():
            if member.consumer is not None and member.consumer.member == silent:
                member.turn.excused = True
        self.witness.silenced(silent)

    def remove_dead(self) -> None:
        for member in self.members.values():
            if member.dead:
                member.die()

    def close(self) -> None:
        """Everybody dies; now and then the dead are swept up, since the collector is switched off."""
        for member in self.members.values():
            member.die()
        GroupMachine.closed += 1
        if not GroupMachine.closed % MACHINES_UNCOLLECTED:
            gc.collect()


def operations(plan: Plan, scenario: str) -> list[tuple[int, str]]:
    """(number, kind) of each operation of an undisturbed run."""
    machine = GroupMachine(plan, scenario)
    first = machine.disk.steps
    trace = machine.disk.record()
    machine.run(machine.steps)
    machine.close()
    return [(first + at, kind) for at, (_, kind, _) in enumerate(trace, 1)]


# Going on.


def aftermath(tally: Tally, machine: GroupMachine, label: tuple[object, ...], random: Random, *, whole: bool) -> None:
    """Those who live go on, another process joins them, everything is read; then the power goes."""
    expected = ORDINARY if whole else FAULTY
    witness, disk = machine.witness, machine.disk
    early = disk.clone() if random.random() < 0.5 else None
    if early is not None:
        tally.probe((*label, "next process"), check, early, witness, cut=False, deep=whole, whole=whole)
    tally.probe((*label, "going on"), go_on, machine, random, expected, whole)
    tally.probe((*label, "audit"), machine.audit.finding)
    end(tally, machine, label, random, machine.plan.states)
    machine.close()


def go_on(
    machine: GroupMachine, random: Random, expected: tuple[type[BaseException], ...], whole: bool
) -> Finding | None:
    """Whoever has a consumer reads on with it; then all leave but a newcomer, who reads the rest."""
    for member in machine.living:
        machine.run([step(member.name, "transact" if member.turn.group == EXACT_GROUP else "consume", 2)], expected)
    machine.members["d"] = newcomer = Member(machine.disk, "d", machine.witness)
    machine.run(mixed(random, 3), expected)
    readers = [member for member in machine.living if random.random() < 0.7 or member is newcomer]
    for member in machine.living:
        if member not in readers or member.turn.group == EXACT_GROUP:
            machine.run([step(member.name, "leave")], expected)
    idle = 0
    for _ in range(DRAIN_ROUNDS_MAX):
        idle += 1
        for member in readers:
            try:
                idle = 0 if member.consume(3, timeout=0.25) else idle
            except expected as error:
                member.failed(error)
        if idle > IDLE_ROUNDS:
            break
    for verb in ("commit", "leave"):
        machine.run([step(member.name, verb) for member in machine.living], expected)
    machine.run([step("d", "process_all", 3)], expected)
    if not whole:
        return None
    seen = see(newcomer.log)
    return judge(machine.witness, seen, cut=False) or is_read(seen)


def end(tally: Tally, machine: GroupMachine, label: tuple[object, ...], random: Random, states: int) -> None:
    """The power goes, in several states."""
    for choice in machine.disk.crash_states(random, states):
        state(tally, (*label, choice), machine.disk.crash(choice), machine.witness, deep=random.random() < 0.3)


def state(tally: Tally, label: object, disk: Disk, witness: GroupWitness, *, deep: bool) -> None:
    """One crash state, checked."""
    tally.states += 1
    tally.acknowledged += witness.records.acknowledged
    tally.probe(label, check, disk, witness, cut=True, deep=deep)


def struck(machine: GroupMachine, *faults: Fault, expected: tuple[type[BaseException], ...] = ORDINARY) -> bool:
    """Run a scenario under faults; whether the first of them struck."""
    machine.disk.plan(*faults)
    machine.run(machine.steps, expected)
    machine.disk.plan()
    machine.remove_dead()
    return faults[0].fired
