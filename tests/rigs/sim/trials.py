"""Trials: each lets one kind of thing go wrong at many moments of a seeded run, and checks what is left."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

from tailrace.errors import StorageError
from tests.rigs.sim import FALLIBLE, Cut, Disk, Fail, Full, Interrupt, Kill, Killed, Process
from tests.rigs.sim.engine import Step, Writer, check, check_reading, open_store, run, workload
from tests.rigs.sim.group_trials import GROUP_TRIALS
from tests.rigs.sim.invariants import held_locks
from tests.rigs.sim.live import live
from tests.rigs.sim.machine import (
    FAULTY,
    MOMENTS,
    Machine,
    Plan,
    Tally,
    active,
    aftermath,
    each_moment,
    moments,
    struck,
    victim_steps,
)
from tests.rigs.sim.repairs import PATIENTS, deaths, failures
from tests.rigs.sim.witness import Finding, Found, Key, Witness, differences, read_all

# Power cuts.


def cuts(plan: Plan) -> Tally:
    """The power goes before every operation that changes anything; many states of the medium each (I1, I6 to I9)."""
    tally = Tally()
    chosen = set(moments(plan, "cuts", active))
    machine = Machine(plan)
    disk, witness, invariants = machine.disk, machine.witness, machine.invariants
    random = plan.random("states")

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        invariants(process, kind, detail)
        if process.name == "victim" and process.steps in chosen and not plan.over and not tally.enough:
            for choice in disk.crash_states(random, plan.states):
                label = (plan.seed, process.steps, kind, detail, choice)
                if random.random() < 0.15:
                    tally.probe((*label, "reader"), check_reading, disk.crash(choice), witness, cut=True)
                tally.state(label, disk.crash(choice), witness, deep=random.random() < 0.15)

    disk.observer = look
    run(machine.victim, victim_steps(plan))
    tally.probe((plan.seed, "end"), check, disk.clone(), witness, cut=False)
    tally.probe((plan.seed, "reader"), check_reading, disk.clone(), witness, cut=False)
    tally.probe((plan.seed, "invariants"), invariants.finding)
    return tally


# Deaths.


def kills(plan: Plan) -> Tally:
    """The victim dies before, in the middle of and after every operation, while another process has the log open."""
    tally = Tally()
    for at, random in each_moment(plan, tally, "kills", active):
        for when in MOMENTS:
            machine = Machine(plan)
            label = ("kill", plan.seed, at, when)
            fault = Kill(at, process="victim", when=when)
            if tally.probe(label, struck, machine, fault) and fault.fired:
                tally.faults += 1
                before = _safe_part(tally, machine, label)
                aftermath(tally, machine, label, random)
                if before is not None:
                    _still_there(tally, machine, label, before)
    return tally


def _safe_part(tally: Tally, machine: Machine, label: tuple[object, ...]) -> tuple[Found, dict[Key, int]] | None:
    """What the survivor sees right after the death, and how much of it is safe."""
    seen: list[Found] = []
    tally.probe((*label, "survivor reads"), lambda: seen.append(read_all(machine.survivor.store)))
    machine.invariants.look()
    return (seen[0], dict(machine.witness.safe)) if seen else None


def _still_there(
    tally: Tally, machine: Machine, label: tuple[object, ...], before: tuple[Found, dict[Key, int]]
) -> None:
    """I6: what was seen and safe then is there after a cut that keeps nothing else."""
    found, safe = before
    keys = [key for key in found if key[0] not in machine.witness.dropping]
    disk = machine.disk.crash(None)
    tally.probe((*label, "I6"), _compare_after, disk, found, keys, safe)


def _compare_after(disk: Disk, found: Found, keys: list[Key], safe: dict[Key, int]) -> Finding | None:
    return differences(found, read_all(open_store(Process(disk, "last"))), keys, safe)


def interrupts(plan: Plan) -> Tally:
    """Ctrl-C before, in the middle of and after every operation: no lock stays, and the process goes on."""
    tally = Tally()
    for at, random in each_moment(plan, tally, "interrupts", lambda _: True):
        for when in MOMENTS:
            machine = Machine(plan)
            label = ("interrupt", plan.seed, at, when)
            fault = Interrupt(at, process="victim", when=when)
            machine.disk.plan(fault)
            if tally.probe(label, _run_interrupted, machine) and fault.fired:
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
            if tally.probe(label, struck, machine, fault, expected=FAULTY) and fault.fired:
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
        if tally.probe(label, struck, machine, fault, expected=FAULTY) and fault.fired:
            tally.faults += 1
            machine.disk.free = None
            for writer in (machine.victim, machine.survivor):
                tally.probe((*label, writer.process.name, "goes on"), _append_everywhere, writer)
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
        if tally.probe(label, struck, machine, fail, kill, expected=FAULTY) and fail.fired:
            tally.faults += 1 + kill.fired
            aftermath(tally, machine, label, random, whole=False)
    for at, random in each_moment(plan, tally, "kill, kill", active):
        machine = Machine(plan)
        if struck(machine, Kill(at, process="victim", when=random.choice(MOMENTS))):
            tally.faults += 1
            two_deaths(tally, machine, ("kill, kill", plan.seed, at), random)
    for at, random in each_moment(plan, tally, "recoveries", active):
        machine = Machine(plan)
        if struck(machine, Cut(at, process="victim", when=random.choice(MOMENTS))):
            tally.faults += 1
            recoveries(tally, machine, ("recovery", plan.seed, at), random)
    return tally


def two_deaths(tally: Tally, machine: Machine, label: tuple[object, ...], random: Random) -> None:
    """After one death another process opens the log, resolves, works on, and dies too; perhaps a third."""
    for number in range(random.randrange(1, 4)):
        process = Process(machine.disk, f"next-{number}")
        fault = Kill(random.randrange(1, 80), process=process.name, when=random.choice(MOMENTS))
        machine.disk.plan(fault)
        label = (*label, fault.at, fault.when)

        tally.probe(label, _work_and_die, process, machine.witness, workload(random, 3))
        process.kill()
    machine.disk.plan()
    aftermath(tally, machine, label, random)


def _work_and_die(process: Process, witness: Witness, steps: list[Step]) -> None:
    try:
        run(Writer(process, witness), steps)
    except Killed:
        return


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
            tally.probe(told, _recover, other)
            other.plan()
            if other.off or random.random() < 0.5:
                again = list(other.crash_states(random, 8))
                picked = random.choice(again)
                told = (*told, picked)
                other = other.crash(picked)
        tally.state(told, other, witness)


def _recover(disk: Disk) -> None:
    process = Process(disk, "recoverer")
    try:
        read_all(open_store(process))
    except (Killed, StorageError):
        pass
    process.kill()


# Repairs.


def repairs(plan: Plan) -> Tally:
    """A repair of each kind of damage dies or fails at its operations; the log goes on, and the next one finishes."""
    tally = Tally()
    for name, make in PATIENTS.items():
        if plan.over or tally.enough:
            break
        random = plan.random(f"repairs/{name}")
        wrong = [*deaths(make, random, moments=plan.moments, states=2, tally=tally)]
        wrong += failures(make, random, moments=plan.moments)
        tally.problems += [f"{name}: {found}" for found in wrong]
    return tally


TRIALS: dict[str, Callable[[Plan], Tally]] = {
    "cuts": cuts,
    "kills": kills,
    "live": live,
    "fails": fails,
    "full": full,
    "nested": nested,
    "interrupts": interrupts,
    "repairs": repairs,
    **GROUP_TRIALS,
}
