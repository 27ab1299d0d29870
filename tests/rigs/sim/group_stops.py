"""Stopped members: SIGSTOP before every operation of every scenario, while the others go on.

A stopped process keeps its locks and does nothing. The others must leave no partition without an owner, unless the
stopped process holds a lock that they need. Some stay away for so long that they lose their partitions; some are killed
where they stand. The rest go on in the middle of the operation, and must store nothing for what is another's by then.
"""

from __future__ import annotations

import threading
from random import Random

from tailrace.errors import LockedError, OwnershipError
from tailrace.groups.group_topic import find_group
from tests.rigs.sim import Disk, Process
from tests.rigs.sim.faults import Stop
from tests.rigs.sim.group_audit import SILENT_US
from tests.rigs.sim.group_members import EXACT_GROUP, ORDINARY_GROUP, PARTITIONS, SOURCE, Member, small_groups
from tests.rigs.sim.groups import SCENARIOS, GroupMachine, Step, aftermath, operations, step
from tests.rigs.sim.machine import Plan, Tally
from tests.rigs.sim.witness import Finding

EXPECTED = (OwnershipError, LockedError)
# Polls of those who run until every free partition has an owner; each of them waits for a quarter of a second.
ROUNDS = 12
# So often the clock is moved while the others poll, until the stopped one has been silent for too long.
LONG_STEPS = 5


class Stopping:
    """Runs each step in a thread of its own, and goes on with the others when its process is stopped."""

    def __init__(self, machine: GroupMachine) -> None:
        self.machine = machine
        self.stopped: Member | None = None
        # Whose turn it is: the thread of this object, or that of the process which was stopped.
        self.ours, self.theirs = threading.Semaphore(0), threading.Semaphore(0)
        self.error: BaseException | None = None
        machine.disk.on_stop = self._stop

    def _stop(self, process: Process) -> None:
        self.stopped = next(each for each in self.machine.members.values() if each.process is process)
        self.ours.release()
        self.theirs.acquire()

    def run(self, steps: tuple[Step, ...] | list[Step]) -> None:
        """Do the steps of those who run."""
        for each in steps:
            member = self.machine.members[each.name]
            others = [self.machine.members[str(other)] for other in each.arguments if other in self.machine.members]
            if not member.dead and self.stopped not in (member, *others):
                if self.stopped is None:
                    self._run_apart(each)
                else:
                    self.machine.run([each], EXPECTED)

    def _run_apart(self, each: Step) -> None:
        def body() -> None:
            try:
                self.machine.run([each], EXPECTED)
            except BaseException as error:  # noqa: BLE001  # It is raised again by the thread that started this one.
                self.error = error
            self.ours.release()

        threading.Thread(target=body, daemon=True).start()
        self._wait()

    def _wait(self) -> None:
        self.ours.acquire()
        if self.error is not None:
            raise self.error

    def go_on(self, *, kill: bool) -> None:
        """Continue the stopped process, or kill it; until its step is done."""
        assert self.stopped is not None
        if kill:
            self.stopped.process.kill()
        self.stopped = None
        self.theirs.release()
        self._wait()
        self.machine.remove_dead()


def group_stops(plan: Plan) -> Tally:
    """Whoever does an operation is stopped before it; the other members go on, and later it does too or is killed."""
    tally = Tally()
    with small_groups():
        for scenario in (*SCENARIOS, "mixed"):
            for at in plan.pick(f"stops/{scenario}", [number for number, _ in operations(plan, scenario)]):
                if plan.over or tally.enough:
                    return tally
                _stop_at(tally, plan, scenario, at, plan.random(f"stops/{scenario}/{at}"))
    return tally


def _stop_at(tally: Tally, plan: Plan, scenario: str, at: int, random: Random) -> None:
    machine = GroupMachine(plan, scenario)
    stopping = Stopping(machine)
    fault, long, kill = Stop(at), random.random() < 0.6, random.random() < 0.3
    label = ("stop", scenario, plan.seed, at, "long" if long else "short", "killed" if kill else "continued")
    machine.disk.plan(fault)
    fine = tally.probe(label, stopping.run, machine.steps)
    machine.disk.plan()
    if stopping.stopped is None:
        machine.close()
        return
    tally.faults += 1
    fine = fine and tally.probe((*label, "meanwhile"), _meanwhile, stopping, random, long)
    fine = tally.probe((*label, "continued"), stopping.go_on, kill=kill) and fine
    if fine:
        aftermath(tally, machine, label, random, whole=True)
    else:
        machine.close()


def _meanwhile(stopping: Stopping, random: Random, long: bool) -> Finding | None:
    """The others go on without the stopped one; what nobody owns then."""
    machine, stopped = stopping.machine, stopping.stopped
    assert stopped is not None
    group = random.choice((ORDINARY_GROUP, EXACT_GROUP))
    others = [member for member in machine.living if member is not stopped]
    verb = "consume" if group == ORDINARY_GROUP else "transact"
    for number in range(LONG_STEPS if long else 1):
        if number:
            machine.disk.clock_us += SILENT_US // (LONG_STEPS - 1) + 1
            # Not in one jump: those who run poll in between.
        for _ in range(ROUNDS if number in (0, LONG_STEPS - 1) else 1):
            stopping.run([step(member.name, verb, 1, timeout=0.25) for member in others])
    return None if holds_lock(stopped.process) else _without_owner(machine.disk, others, stopped, group, long)


def _without_owner(disk: Disk, others: list[Member], stopped: Member, group: str, long: bool) -> Finding | None:
    at_work = [member for member in others if member.consumer is not None and member.turn.group == group]
    known = find_group(others[0].log.engine, group)
    if not at_work or known is None:
        return None
    state, topic = known.view(), others[0].log.engine.entry(SOURCE).id
    free = [index for index in range(PARTITIONS) if (topic, index) not in state.owners]
    if free:
        return Finding(
            f"operation {disk.steps}: nobody reads {free} of the group {group} while {stopped.name} is stopped"
        )
    silent = [
        owner for owner in state.owners.values() if long and state.members[owner.member].pid == stopped.process.number
    ]
    return Finding(f"operation {disk.steps}: {stopped.name} is silent and keeps {silent}") if silent else None


def holds_lock(process: Process) -> bool:
    """Whether others may wait for a process: it holds a lock that is no member's."""
    return any(file.exclusive and "/members/" not in file.path for file in process.descriptors.values())
