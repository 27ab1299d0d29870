"""Trials of groups: each lets one kind of thing go wrong at many operations of every scenario."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from random import Random

from tailrace.errors import TailraceError
from tests.rigs.sim import FALLIBLE, Cut, Disk, Fail, Full, Interrupt, Kill, Killed, Process
from tests.rigs.sim.group_check import check, see
from tests.rigs.sim.group_live import group_live
from tests.rigs.sim.group_members import Member, small_groups
from tests.rigs.sim.group_stops import group_stops
from tests.rigs.sim.group_witness import GroupWitness
from tests.rigs.sim.groups import FAULTY, ORDINARY, SCENARIOS, GroupMachine, aftermath, operations, state, struck
from tests.rigs.sim.machine import MOMENTS, Plan, Tally, active

EVERYTHING = (*SCENARIOS, "mixed")


def each_moment(plan: Plan, tally: Tally, name: str, fits: Callable[[str], bool]) -> Iterator[tuple[str, int, Random]]:
    """The operations of every scenario at which something goes wrong."""
    for scenario in EVERYTHING:
        numbers = [number for number, kind in operations(plan, scenario) if fits(kind)]
        for at in plan.pick(f"{name}/{scenario}", numbers):
            if plan.over or tally.enough:
                return
            yield scenario, at, plan.random(f"{name}/{scenario}/{at}")


def group_cuts(plan: Plan) -> Tally:
    """The power goes before every operation that changes anything; many states of the medium each."""
    tally = Tally()
    with small_groups():
        for scenario in EVERYTHING:
            numbers = [number for number, kind in operations(plan, scenario) if active(kind)]
            _cut_everywhere(plan, tally, scenario, set(plan.pick(f"cuts/{scenario}", numbers)))
    return tally


def _cut_everywhere(plan: Plan, tally: Tally, scenario: str, chosen: set[int]) -> None:
    machine = GroupMachine(plan, scenario)
    disk, witness, audit = machine.disk, machine.witness, machine.audit
    random = plan.random(f"states/{scenario}")

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        audit(process, kind, detail)
        if disk.steps in chosen and not plan.over and not tally.enough:
            for choice in disk.crash_states(random, plan.states):
                label = (scenario, plan.seed, disk.steps, process.name, kind, detail, choice)
                state(tally, label, disk.crash(choice), witness, deep=random.random() < 0.2)

    disk.observer = look
    machine.run(machine.steps)
    tally.probe((scenario, plan.seed, "end"), check, disk.clone(), witness, cut=False, deep=True)
    tally.probe((scenario, plan.seed, "audit"), audit.finding)
    machine.close()


def group_kills(plan: Plan) -> Tally:
    """Whoever does an operation dies before, in the middle of, or after it; the other members go on."""
    tally = Tally()
    with small_groups():
        for scenario, at, random in each_moment(plan, tally, "kills", active):
            for when in MOMENTS:
                machine = GroupMachine(plan, scenario)
                label = ("kill", scenario, plan.seed, at, when)
                fault = Kill(at, when=when)
                if tally.probe(label, struck, machine, fault) and fault.fired:
                    tally.faults += 1
                    aftermath(tally, machine, label, random, whole=True)
    return tally


def group_fails(plan: Plan) -> Tally:
    """Every operation fails once: EIO (pages stay clean), ENOSPC, EINTR, with nothing, half or all of a write kept."""
    tally = Tally()
    with small_groups():
        for scenario, at, random in each_moment(plan, tally, "fails", FALLIBLE.__contains__):
            for number in (errno.EIO, errno.ENOSPC, errno.EINTR):
                machine = GroupMachine(plan, scenario)
                keep = random.choice((0.0, 0.5, 1.0))
                label = ("fail", scenario, plan.seed, at, errno.errorcode[number], keep)
                fault = Fail(at, number=number, keep=keep)
                if tally.probe(label, struck, machine, fault, expected=FAULTY) and fault.fired:
                    tally.faults += 1
                    aftermath(tally, machine, label, random, whole=False)
    return tally


def group_full(plan: Plan) -> Tally:
    """The disk is full from every operation on; when space is freed, all members go on as if nothing had happened."""
    tally = Tally()
    with small_groups():
        for scenario, at, random in each_moment(plan, tally, "full", lambda _: True):
            machine = GroupMachine(plan, scenario)
            free = random.choice((0, 100, 1_000, 5_000))
            label = ("full", scenario, plan.seed, at, free)
            fault = Full(at, free=free)
            if tally.probe(label, struck, machine, fault, expected=FAULTY) and fault.fired:
                tally.faults += 1
                machine.disk.free = None
                aftermath(tally, machine, label, random, whole=True)
    return tally


def group_interrupts(plan: Plan) -> Tally:
    """Ctrl-C before, in the middle of and after every operation: the member goes on with the same consumer."""
    tally = Tally()
    with small_groups():
        for scenario, at, random in each_moment(plan, tally, "interrupts", lambda _: True):
            machine = GroupMachine(plan, scenario)
            when = random.choice(MOMENTS)
            label = ("interrupt", scenario, plan.seed, at, when)
            fault = Interrupt(at, when=when)
            expected = (*ORDINARY, KeyboardInterrupt)
            if tally.probe(label, struck, machine, fault, expected=expected) and fault.fired:
                tally.faults += 1
                aftermath(tally, machine, label, random, whole=True)
    return tally


def group_recoveries(plan: Plan) -> Tally:
    """The power goes, and recovery is cut off again and again, by the power or by the death of its process."""
    tally = Tally()
    with small_groups():
        for scenario, at, random in each_moment(plan, tally, "recoveries", active):
            machine = GroupMachine(plan, scenario)
            if not struck(machine, Cut(at, when=random.choice(MOMENTS))):
                continue
            tally.faults += 1
            for choice in machine.disk.crash_states(random, plan.states):
                disk, label = machine.disk.crash(choice), ("recovery", scenario, plan.seed, at, choice)
                for _ in range(random.randrange(1, 4)):
                    disk.plan(random.choice((Kill, Cut))(random.randrange(1, 130)))
                    tally.probe(label, _recover, disk)
                    disk = disk.crash(random.choice(list(disk.crash_states(random, 8))))
                state(tally, label, disk, machine.witness, deep=random.random() < 0.3)
            machine.close()
    return tally


def _recover(disk: Disk) -> None:
    member: Member | None = None
    try:
        member = Member(disk, "recoverer", GroupWitness())
        see(member.log)
    except (Killed, TailraceError):
        return
    finally:
        if member is not None:
            member.die()


GROUP_TRIALS: dict[str, Callable[[Plan], Tally]] = {
    "group-cuts": group_cuts,
    "group-kills": group_kills,
    "group-fails": group_fails,
    "group-full": group_full,
    "group-interrupts": group_interrupts,
    "group-recoveries": group_recoveries,
    "group-stops": group_stops,
    "group-live": group_live,
}
