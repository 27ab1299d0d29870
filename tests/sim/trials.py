"""Trials: each lets one kind of thing go wrong at many moments of a seeded run, and checks what is left.

A trial takes a plan (seed, length of the workload, how many moments and crash states) and adds to a tally. The suite
runs a slice, the sweep command all of it.
"""

from __future__ import annotations

import errno
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random

from tailrace.disk.store import Store
from tailrace.errors import OffsetOutOfRangeError, StorageError, TopicNotFoundError
from tests.sim import FALLIBLE, PASSIVE, Cut, Disk, Fail, Full, Interrupt, Kill, Killed, Process, Scheduler
from tests.sim.engine import (
    ORDINARY,
    Step,
    Writer,
    check,
    check_reading,
    open_store,
    run,
    step,
    workload,
)
from tests.sim.faults import Fault
from tests.sim.invariants import Invariants, held_locks
from tests.sim.witness import Contents, Finding, Found, Witness, compare, differences, read_all

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

    def probe(self, label: object, look: Callable[[], Finding | None]) -> bool:
        """Note what a look finds; an exception is a finding too. False when there is one."""
        try:
            finding = look()
        except Exception:  # noqa: BLE001  # Whatever comes up is told with the moment at which it did.
            finding = Finding(traceback.format_exc(limit=-6))
        if finding is None:
            return True
        self.lost += finding.lost
        self.problems.append(f"{label}: {finding.text}")
        return False

    def state(self, label: object, witness: Witness, look: Callable[[], Finding | None]) -> None:
        """One crash state."""
        self.states += 1
        self.acknowledged += witness.acknowledged
        self.probe(label, look)

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

    def broken(self) -> Finding | None:
        self.invariants.look()
        return Finding(self.invariants.broken[0]) if self.invariants.broken else None


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


def _active(kind: str) -> bool:
    return kind not in PASSIVE


# Power cuts.


def cuts(plan: Plan) -> Tally:
    """The power goes before every operation that changes anything; many states of the medium each (I1, I6 to I9)."""
    tally = Tally()
    chosen = set(moments(plan, "cuts", _active))
    machine = Machine(plan)
    disk, witness, invariants = machine.disk, machine.witness, machine.invariants
    random = plan.random("states")

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        invariants(process, kind, detail)
        if process.name == "victim" and process.steps in chosen and not plan.over and not tally.enough:
            for choice in disk.crash_states(random, plan.states):
                label = (plan.seed, process.steps, kind, detail, choice)
                deep = random.random() < 0.15
                if random.random() < 0.15:
                    tally.probe((*label, "reader"), lambda: check_reading(disk.crash(choice), witness, cut=True))
                tally.state(label, witness, lambda: check(disk.crash(choice), witness, cut=True, deep=deep))

    disk.observer = look
    run(machine.victim, victim_steps(plan))
    tally.probe((plan.seed, "end"), lambda: check(disk.clone(), witness, cut=False))
    tally.probe((plan.seed, "reader"), lambda: check_reading(disk.clone(), witness, cut=False))
    tally.probe((plan.seed, "invariants"), machine.broken)
    return tally


# What follows a fault.


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
    tally.probe((*label, "live"), lambda: check(disk.clone(), witness, cut=False, whole=whole))
    tally.probe((*label, "invariants"), machine.broken)
    end(tally, machine, label, random, plan.states)


def end(tally: Tally, machine: Machine, label: tuple[object, ...], random: Random, states: int) -> None:
    """The power goes, in several states."""
    disk, witness = machine.disk, machine.witness
    for choice in disk.crash_states(random, states):
        deep = random.random() < 0.5
        tally.state((*label, choice), witness, lambda: check(disk.crash(choice), witness, cut=True, deep=deep))


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


# Deaths.


def kills(plan: Plan) -> Tally:
    """The victim dies before, in the middle of and after every operation, while another process has the log open."""
    tally = Tally()
    for at, random in each_moment(plan, tally, "kills", _active):
        for when in MOMENTS:
            machine = Machine(plan)
            label = ("kill", plan.seed, at, when)
            fault = Kill(at, process="victim", when=when)
            if tally.probe(label, lambda: _no(struck(machine, fault))) and fault.fired:
                tally.faults += 1
                before = _safe_part(tally, machine, label)
                aftermath(tally, machine, label, random)
                if before is not None:
                    _still_there(tally, machine, label, before)
    return tally


def _no(_: object) -> None:
    """Nothing found: the call itself is the look."""


def _safe_part(tally: Tally, machine: Machine, label: tuple[object, ...]) -> tuple[Found, dict[tuple[int, int], int]] | None:
    """What the survivor sees right after the death, and how much of it is safe."""
    seen: list[Found] = []
    tally.probe((*label, "survivor reads"), lambda: seen.append(read_all(machine.survivor.store)))
    machine.invariants.look()
    return (seen[0], dict(machine.witness.safe)) if seen else None


def _still_there(
    tally: Tally, machine: Machine, label: tuple[object, ...], before: tuple[Found, dict[tuple[int, int], int]]
) -> None:
    """I6: what was seen and safe then is there after a cut that keeps nothing else."""
    found, safe = before
    keys = [key for key in found if key[0] not in machine.witness.dropping]
    disk = machine.disk.crash(None)
    tally.probe(
        (*label, "I6"), lambda: differences(found, read_all(open_store(Process(disk, "last"))), keys, safe)
    )


def interrupts(plan: Plan) -> Tally:
    """Ctrl-C before, in the middle of and after every operation: no lock stays, and the process goes on."""
    tally = Tally()
    for at, random in each_moment(plan, tally, "interrupts", lambda _: True):
        for when in MOMENTS:
            machine = Machine(plan)
            label = ("interrupt", plan.seed, at, when)
            fault = Interrupt(at, process="victim", when=when)
            machine.disk.plan(fault)
            if tally.probe(label, lambda: _run_interrupted(machine)) and fault.fired:
                tally.faults += 1
                aftermath(tally, machine, label, random)
    return tally


def _run_interrupted(machine: Machine) -> Finding | None:
    victim = machine.victim
    for each in victim_steps(machine.plan):
        try:
            run(victim, [each])
        except KeyboardInterrupt:
            if victim.store.closed:
                # A close that was interrupted is finished by another.
                victim.store.close()
            left = [path for path in held_locks(victim.process) if path != "/log/lock"]
            if left:
                return Finding(f"{each} was interrupted and left {left} locked")
            owned = [part.path for part in victim.store.partitions.values() if part.lock.held]
            if owned or victim.store.committer.lock.held:
                return Finding(f"{each} was interrupted and left {owned} marked as held")
            if not victim.store.closed and not _can_lock(machine):
                return Finding(f"{each} was interrupted and another process cannot append at once")
    victim.store.close()
    left = held_locks(victim.process)
    return Finding(f"after the last close {left} is still locked") if left else None


def _can_lock(machine: Machine) -> bool:
    """Whether a new process gets every lock without waiting."""
    prober = Process(machine.disk, "prober")
    paths = [partition.path for partition in machine.victim.store.partitions.values()]
    for path in [*paths, "/log/journal"]:
        if prober.stat(path) is not None:
            descriptor = prober.open(path, directory=True)
            if not prober.lock(descriptor):
                return False
            prober.close(descriptor)
    prober.kill()
    return True


# Failures.


def fails(plan: Plan) -> Tally:
    """Every operation fails once: EIO (pages stay clean), ENOSPC, EINTR, with nothing, half or all of a write kept."""
    tally = Tally()
    for at, random in each_moment(plan, tally, "fails", FALLIBLE.__contains__):
        for number in (errno.EIO, errno.ENOSPC, errno.EINTR):
            machine = Machine(plan)
            keep = random.choice((0.0, 0.5, 1.0))
            label = ("fail", plan.seed, at, errno.errorcode[number], keep)
            fault = Fail(at, process="victim", number=number, keep=keep)
            if tally.probe(label, lambda: _no(struck(machine, fault, expected=FAULTY))) and fault.fired:
                tally.faults += 1
                aftermath(tally, machine, label, random, whole=False)
    return tally


def full(plan: Plan) -> Tally:
    """The disk is full from every operation on; when space is freed, every partition takes appends again."""
    tally = Tally()
    for at, random in each_moment(plan, tally, "full", lambda _: True):
        machine = Machine(plan)
        free = random.choice((0, 100, 1_000, 5_000))
        label = ("full", plan.seed, at, free)
        fault = Full(at, process="victim", free=free)
        if tally.probe(label, lambda: _no(struck(machine, fault, expected=FAULTY))) and fault.fired:
            tally.faults += 1
            machine.disk.free = None
            for writer in (machine.victim, machine.survivor):
                tally.probe((*label, writer.process.name, "goes on"), lambda: _append_everywhere(writer))
            aftermath(tally, machine, label, random)
    return tally


def _append_everywhere(writer: Writer) -> None:
    writer.open_again()
    for entry in list(writer.store.refresh().by_id.values()):
        for index in range(len(entry.slots)):
            writer.append((entry.name, index))
            writer.append((entry.name, index), durable=None)
    writer.transact((("t", 0), ("t", 1), ("u", 0)))


# One thing after another.


def nested(plan: Plan) -> Tally:
    """Fail, then kill, then cut; two deaths in a row; deaths and cuts in the middle of recovery, and failures there."""
    tally = Tally()
    for at, random in each_moment(plan, tally, "fail, kill", FALLIBLE.__contains__):
        machine = Machine(plan)
        number = random.choice((errno.EIO, errno.EIO, errno.ENOSPC))
        fail = Fail(at, process="victim", number=number, keep=random.choice((0.0, 0.5, 1.0)))
        kill = Kill(at + random.randrange(1, 30), process="victim", when=random.choice(MOMENTS))
        label = ("fail, kill", plan.seed, at, errno.errorcode[number], fail.keep, kill.at, kill.when)
        if tally.probe(label, lambda: _no(struck(machine, fail, kill, expected=FAULTY))) and fail.fired:
            tally.faults += 1 + kill.fired
            aftermath(tally, machine, label, random, whole=False)
    for at, random in each_moment(plan, tally, "kill, kill", _active):
        machine = Machine(plan)
        label = ("kill, kill", plan.seed, at)
        if struck(machine, Kill(at, process="victim", when=random.choice(MOMENTS))):
            tally.faults += 1
            two_deaths(tally, machine, label, random)
    for at, random in each_moment(plan, tally, "recoveries", _active):
        machine = Machine(plan)
        label = ("recovery", plan.seed, at)
        if struck(machine, Cut(at, process="victim", when=random.choice(MOMENTS))):
            tally.faults += 1
            recoveries(tally, machine, label, random)
    return tally


def two_deaths(tally: Tally, machine: Machine, label: tuple[object, ...], random: Random) -> None:
    """After one death another process opens the log, resolves, works on, and dies too; perhaps a third."""
    for number in range(random.randrange(1, 4)):
        process = Process(machine.disk, f"next-{number}")
        fault = Kill(random.randrange(1, 80), process=process.name, when=random.choice(MOMENTS))
        machine.disk.plan(fault)
        label = (*label, fault.at, fault.when)

        def work() -> None:
            try:
                run(Writer(process, machine.witness), workload(random, 3))
            except Killed:
                return

        tally.probe(label, work)
        process.kill()
    machine.disk.plan()
    aftermath(tally, machine, label, random)


def recoveries(tally: Tally, machine: Machine, label: tuple[object, ...], random: Random) -> None:
    """Recovery is cut off again and again, by the power or by the death of its process, and then finds the same."""
    disk, witness = machine.disk, machine.witness
    for choice in disk.crash_states(random, machine.plan.states):
        other = disk.crash(choice)
        told: tuple[object, ...] = (*label, choice)
        for _ in range(random.randrange(1, 5)):
            kind = random.choice((Kill, Cut, Cut, Fail))
            fault = kind(random.randrange(1, 130), when="before" if kind is Fail else random.choice(MOMENTS))
            told = (*told, kind.__name__, fault.at, fault.when)
            fault.at += other.steps
            other.plan(fault)
            tally.probe(told, lambda: _no(_recover(other)))
            other.plan()
            if other.off or random.random() < 0.5:
                again = list(other.crash_states(random, 8))
                picked = random.choice(again)
                told = (*told, picked)
                other = other.crash(picked)
        tally.state(told, witness, lambda: check(other, witness, cut=True, deep=True))


def _recover(disk: Disk) -> None:
    process = Process(disk, "recoverer")
    try:
        read_all(open_store(process))
    except (Killed, StorageError):
        pass
    process.kill()


# Live writers.


def live(plan: Plan) -> Tally:
    """Three writers and a reader take turns at every operation; one of the writers dies; then the power goes."""
    tally = Tally()
    rounds = plan.moments if plan.moments is not None else 40
    for number in range(rounds):
        if plan.over or tally.enough:
            break
        _live_round(tally, plan, number)
    return tally


def _live_round(tally: Tally, plan: Plan, number: int) -> None:
    random = plan.random(f"live/{number}")
    disk = Disk(plan.seed)
    witness = Witness()
    invariants = Invariants(disk, witness)
    first = Writer(Process(disk, "first"), witness)
    run(first, workload(random, 2))
    first.process.kill()
    scheduler = Scheduler(disk, random.randrange(1 << 30), stay=random.choice((0.0, 0.5, 0.9)))
    names = [f"writer-{index}" for index in range(3)]
    label = ("live", plan.seed, number)

    # A process that opens the log while another does sleeps for long, so mostly all have it open from the start.
    early = random.random() < 0.75
    for name in names:
        process = Process(disk, name)
        writer = Writer(process, witness) if early else None
        steps = workload(random, plan.length)
        scheduler.spawn(process, partial(_write, process, witness, writer, steps))
    reader = Process(disk, "reader")
    reads: list[Finding] = []
    scheduler.spawn(reader, partial(_read_on, reader, witness, reads))
    kill = Kill(random.randrange(1, 700), process=random.choice(names), when=random.choice(MOMENTS))
    disk.plan(*([kill] if random.random() < 0.8 else []))
    moment = random.randrange(1, 2_000)
    cut_at = {disk.steps + moment, disk.steps + moment // 2, disk.steps + moment // 4}

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        invariants(process, kind, detail)
        if disk.steps in cut_at and not tally.enough:
            for choice in disk.crash_states(random, plan.states):
                told = (*label, disk.steps, process.name, kind, detail, choice)
                tally.state(told, witness, lambda: check(disk.crash(choice), witness, cut=True, deep=True))

    disk.observer = look
    tally.probe((*label, kill), scheduler.run)
    tally.faults += kill.fired
    disk.plan()
    disk.observer = invariants
    invariants.look()
    tally.probe((*label, "reader"), lambda: reads[0] if reads else None)
    tally.probe((*label, "invariants"), lambda: Finding(invariants.broken[0]) if invariants.broken else None)
    tally.probe((*label, "live"), lambda: check(disk.clone(), witness, cut=False))
    for choice in disk.crash_states(random, plan.states):
        told = (*label, "end", choice)
        tally.state(told, witness, lambda: check(disk.crash(choice), witness, cut=True, deep=True))


def _write(process: Process, witness: Witness, writer: Writer | None, steps: list[Step]) -> None:
    run(writer or Writer(process, witness), steps)


def _read_on(process: Process, witness: Witness, findings: list[Finding]) -> None:
    """Read everything again and again while others write: what was acknowledged before is there, and nothing moves."""
    store = open_store(process, mode="r")
    seen: dict[tuple[tuple[int, int], int], bytes] = {}
    for _ in range(6):
        before = witness.copy()
        try:
            found = read_all(store)
        except (OffsetOutOfRangeError, TopicNotFoundError):
            # Trimmed or dropped while it was being read.
            continue
        finding = _missing(before, witness, found)
        if finding is not None:
            findings.append(finding)
        for key, contents in found.items():
            for offset, value in contents.records.items():
                if seen.setdefault((key, offset), value) != value:
                    findings.append(Finding(f"{key}@{offset} changed from {seen[key, offset][:7]!r} to {value[:7]!r}"))
    store.close()


def _missing(before: Witness, after: Witness, found: Found) -> Finding | None:
    """What was acknowledged before a read began, was not trimmed or dropped before it ended, and was not found."""
    groups = [group for group in before.groups if group.acknowledged]
    promised = Witness(groups, dropping=set(after.dropping), trimming=dict(after.trimming))
    values = {value for group in groups for values in group.parts.values() for value in values}
    known = {
        key: Contents(0, contents.end, {at: value for at, value in contents.records.items() if value in values})
        for key, contents in found.items()
    }
    finding = compare(promised, known, cut=False, whole=False)
    return finding and finding._replace(text=f"a live reader: {finding.text}")


TRIALS: dict[str, Callable[[Plan], Tally]] = {
    "cuts": cuts,
    "kills": kills,
    "live": live,
    "fails": fails,
    "full": full,
    "nested": nested,
    "interrupts": interrupts,
}
