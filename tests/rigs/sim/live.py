"""Live writers: three of them and a reader take turns at every operation, in an order that a seed decides."""

from __future__ import annotations

from functools import partial

from tailrace.errors import OffsetOutOfRangeError, TopicNotFoundError
from tests.rigs.sim import Disk, Kill, Process, Scheduler
from tests.rigs.sim.engine import Step, Writer, check, open_store, run, workload
from tests.rigs.sim.invariants import Invariants
from tests.rigs.sim.machine import MOMENTS, Plan, Tally
from tests.rigs.sim.witness import Contents, Finding, Found, Witness, compare, read_all


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
                tally.state(told, disk.crash(choice), witness)

    disk.observer = look
    tally.probe((*label, kill), scheduler.run)
    tally.faults += kill.fired
    disk.plan()
    disk.observer = invariants
    invariants.look()
    tally.probe((*label, "reader"), next, iter(reads), None)
    tally.probe((*label, "invariants"), invariants.finding)
    tally.probe((*label, "live"), check, disk.clone(), witness, cut=False)
    for choice in disk.crash_states(random, plan.states):
        told = (*label, "end", choice)
        tally.state(told, disk.crash(choice), witness)


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
