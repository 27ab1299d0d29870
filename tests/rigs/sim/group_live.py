"""Live members: three of them, a writer and perhaps an operator take turns at every operation, as a seed decides.

One or two of them die on the way. Nobody waits for ever, the audit looks at every record of a group as it is published,
and the power may go at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from tailrace.errors import OwnershipError
from tests.rigs.sim import Kill, Process, Scheduler
from tests.rigs.sim.group_check import check
from tests.rigs.sim.group_members import EXACT_GROUP, ORDINARY_GROUP, Member, small_groups
from tests.rigs.sim.groups import NAMES, GroupMachine, end, go_on, state
from tests.rigs.sim.machine import MOMENTS, Plan, Tally

ROUNDS = 40
# Beyond so many operations of one round somebody goes round in circles.
OPERATIONS_MAX = 60_000
WRITER, OPERATOR = "writer", "operator"


def group_live(plan: Plan) -> Tally:
    """Three members and a writer take turns at every operation; some die; the others read everything."""
    tally = Tally()
    with small_groups():
        for number in range(plan.moments if plan.moments is not None else ROUNDS):
            if plan.over or tally.enough:
                break
            _live_round(tally, plan, number)
    return tally


def _live_round(tally: Tally, plan: Plan, number: int) -> None:
    random = plan.random(f"live/{number}")
    exact = random.random() < 0.5
    # Some rounds begin where the next records make somebody write a snapshot and remove what was before it.
    before = random.choice(("mixed", "exact snapshot" if exact else "snapshot"))
    machine = GroupMachine(plan, before)
    disk, witness = machine.disk, machine.witness
    label = ("live", plan.seed, number)
    for name in NAMES:
        machine.members[name].leave()
    for name in (WRITER, OPERATOR):
        machine.members[name] = Member(disk, name, witness)
    scheduler = Scheduler(disk, random.randrange(1 << 30), stay=random.choice((0.0, 0.5, 0.9)))
    for name in NAMES:
        member = machine.members[name]
        every = random.choice((1, 1, 3, "10s"))
        work = partial(_transact, member, random.randrange(4, 9)) if exact else partial(_consume, member, every, random)
        scheduler.spawn(member.process, _alive(member, work))
    writer = machine.members[WRITER]
    scheduler.spawn(writer.process, _alive(writer, partial(_write, writer, random)))
    if random.random() < 0.4:
        operator = machine.members[OPERATOR]
        scheduler.spawn(operator.process, _alive(operator, partial(_operate, machine, operator, random, exact)))
    kills = [
        Kill(random.randrange(1, 260), process=name, when=random.choice(MOMENTS))
        for name in random.sample([*NAMES, WRITER], random.choice((0, 1, 1, 2)))
    ]
    for kill in kills:
        kill.at += machine.members[str(kill.process)].process.steps
    disk.plan(*kills)
    _watch(tally, plan, machine, random, label)
    tally.probe((*label, kills), scheduler.run)
    disk.plan()
    disk.observer = machine.audit
    tally.faults += sum(kill.fired for kill in kills)
    machine.remove_dead()
    tally.probe((*label, "next process"), check, disk.clone(), witness, cut=False)
    tally.probe((*label, "going on"), go_on, machine, random, (OwnershipError,), True)
    tally.probe((*label, "audit"), machine.audit.finding)
    end(tally, machine, label, random, plan.states)
    machine.close()


def _watch(tally: Tally, plan: Plan, machine: GroupMachine, random: Random, label: tuple[object, ...]) -> None:
    """Cut the power at a few moments of the round, and end it when it goes on for too long."""
    disk, audit = machine.disk, machine.audit
    moment, first = random.randrange(1, 1_500), disk.steps
    cut_at = {first + moment, first + moment // 2, first + moment // 4}

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        audit(process, kind, detail)
        if disk.steps in cut_at and not tally.enough:
            for choice in disk.crash_states(random, plan.states):
                told = (*label, disk.steps, process.name, kind, detail, choice)
                state(tally, told, disk.crash(choice), machine.witness, deep=random.random() < 0.2)
        if disk.steps > first + OPERATIONS_MAX:
            raise AssertionError(f"after {OPERATIONS_MAX} operations {process.name} is still at {kind} {detail}")

    disk.observer = look


def _alive(member: Member, work: Callable[[], object]) -> Callable[[], None]:
    """What a member does until it dies."""

    def run() -> None:
        try:
            work()
        finally:
            if member.dead:
                member.die()

    return run


def _tried(member: Member, action: Callable[[], int]) -> int:
    try:
        return action()
    except OwnershipError as error:
        member.failed(error)
        return 0


def _consume(member: Member, every: int | str, random: Random) -> None:
    commit = random.choice(("after", "after", "after", "before"))
    for _ in range(random.randrange(1, 3)):
        member.join(ORDINARY_GROUP, commit, every)
        for _ in range(random.randrange(2, 7)):
            member.join(ORDINARY_GROUP, commit, every)
            _tried(member, partial(member.consume, random.randrange(1, 4), timeout=random.choice((0.0, 0.05, 0.3))))
            if random.random() < 0.2:
                _tried(member, partial(_committed, member))
        if random.random() < 0.6:
            _tried(member, partial(_left, member))


def _committed(member: Member) -> int:
    member.commit()
    return 0


def _left(member: Member) -> int:
    member.leave()
    return 0


def _transact(member: Member, rounds: int) -> None:
    for number in range(rounds):
        member.join(EXACT_GROUP, "manual")
        _tried(member, partial(member.transact, 1 + number % 3, timeout=0.05 * (number % 2)))
    _tried(member, partial(_left, member))


def _write(writer: Member, random: Random) -> None:
    for _ in range(random.randrange(2, 8)):
        writer.produce(random.randrange(3), random.randrange(1, 3), durable=random.random() < 0.5)
        if random.random() < 0.3:
            writer.process.sleep(0.1)
        if random.random() < 0.2:
            writer.flush()


def _operate(machine: GroupMachine, operator: Member, random: Random, exact: bool) -> None:
    """Evict somebody; in the ordinary group also reset and drop."""
    for _ in range(random.randrange(1, 3)):
        operator.process.sleep(random.choice((0.0, 0.05, 0.2)))
        other = machine.members[random.choice(NAMES)]
        actions: list[Callable[[], object]] = [partial(operator.evict, other)]
        if not exact:
            actions += [
                partial(operator.reset, random.choice(("earliest", "latest")), force=random.random() < 0.5),
                operator.drop,
            ]
        try:
            random.choice(actions)()
        except OwnershipError:
            continue
