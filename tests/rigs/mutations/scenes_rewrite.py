"""Directed scenarios of rewrites: what happens beside one, and after one that died or failed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random

from tailrace.disk import rewrite as rewriting
from tailrace.disk.admin import Admin
from tailrace.disk.backup_point import LogSnapshot
from tailrace.disk.rewrite import rewrite
from tailrace.disk.segment_facts import Key
from tailrace.engine.engine import Engine
from tailrace.errors import StorageError
from tailrace.maintain.backup import take as backups
from tailrace.maintain.backup.restore import restore
from tailrace.maintain.backup.take import Backup, BackupSource
from tests.rigs.mutations.sweeps import Run
from tests.rigs.sim import PASSIVE, Deadlock, Fail, Kill, Killed, Process, Scheduler
from tests.rigs.sim.backups import RESTORED, TARGET, opened
from tests.rigs.sim.engine import PATH, SEGMENT_BYTES, open_store, sim_tuning
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.rewrites import (
    DIRECTORY,
    Rewriting,
    Shown,
    cut_at_every_operation,
    look,
    partition_of,
    rewrite_one,
    shown,
    told,
    vacuum,
)
from tests.rigs.sim.witness import Finding


def said(action: Callable[[int], Finding | None]) -> Run:
    """What a scenario finds, in words."""

    def run(seed: int) -> str | None:
        found = told(lambda: action(seed))
        return None if found is None else found.text

    return run


@said
def cuts(seed: int) -> Finding | None:
    """The power goes before every operation of a rewrite."""
    return cut_at_every_operation(seed, rewrite_one, states=12)


@said
def vacuums(seed: int) -> Finding | None:
    """A vacuum without any fault, and a cut after it."""
    machine = Rewriting(seed)
    machine.disk.observer = machine.observe
    vacuum(machine.opened)
    if partition_of(machine.opened).rewrites & 1:
        return Finding("the count of rewrites is odd after a vacuum")
    return _after(machine)


@said
def deaths(seed: int) -> Finding | None:
    """A rewrite dies before every operation and after it; another process vacuums."""
    machine = Rewriting(seed)
    first = machine.victim.steps
    trace = machine.disk.record()
    rewrite_one(machine.opened)
    for number, (_, kind, _) in enumerate(trace, first + 1):
        if kind not in PASSIVE:
            for when in ("before", "after"):
                found = _struck(seed, Kill(number, process="victim", when=when))
                if found is not None:
                    return Finding(f"death {when} {kind}: {found.text}")
    return None


@said
def failed_name(seed: int) -> Finding | None:
    """The sync of the directory fails behind the rename; the kernel calls the name clean."""
    machine = Rewriting(seed)
    planned: list[Fault] = []

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        machine.observe(process, kind, detail)
        renamed = f"{DIRECTORY}/{0:020d}.seg.rewrite" not in machine.disk.files()
        if kind == "sync_directory" and detail[0] == DIRECTORY and renamed and not planned:
            planned.append(Fail(machine.disk.steps))
            machine.disk.plan(*planned)

    machine.disk.observer = observe
    try:
        rewrite_one(machine.opened)
    except StorageError:
        pass
    if not planned:
        return Finding("nothing failed")
    machine.disk.observer = machine.observe
    return _after(machine)


def _struck(seed: int, fault: Fault) -> Finding | None:
    machine = Rewriting(seed)
    machine.disk.observer = machine.observe
    machine.disk.plan(fault)
    try:
        rewrite_one(machine.opened)
    except Killed:
        pass
    return _after(machine)


def _after(machine: Rewriting) -> Finding | None:
    """What is wrong now, after another vacuum, and after a cut."""
    found = look(machine.disk, machine.expected)
    if found is None and machine.broken:
        found = Finding(machine.broken[0])
    for choice in machine.disk.crash_states(Random(1), 4) if found is None else ():
        found = found or look(machine.disk.crash(choice), machine.expected)
    return found


@said
def trimmed_meanwhile(seed: int) -> Finding | None:
    """A trim removes the segment while its new version is written."""
    machine = Rewriting(seed)
    steps = rewrite(machine.opened, partition_of(machine.opened), 0, machine.victim.now_us())
    next(steps)
    Admin(machine.store).trim(1, 0, 6)
    for _ in steps:
        continue
    expected = [record for record in machine.expected if record[0] >= 6]
    if any(path.startswith(f"{DIRECTORY}/{0:020d}") for path in machine.disk.files()):
        return Finding("a trimmed segment came back")
    return look(machine.disk, expected) or look(machine.disk.crash(None), expected)


@said
def backups_and_vacuums(seed: int) -> Finding | None:
    """A backup and a vacuum that trims, at once: neither holds a lock that the other one waits for."""
    for number in range(20):
        machine = Rewriting(seed + number)
        # The oldest segments are due.
        Admin(machine.store).alter(1, {"retain_bytes": SEGMENT_BYTES}, 1)
        scheduler = Scheduler(machine.disk, seed + number, stay=0.3)
        engine = Engine(Process(machine.disk, "backup"), PATH, "a", False, 30.0, sim_tuning())
        source = BackupSource((), PATH, engine.store, partial(backups._run_alone, engine))

        def clean(machine: Rewriting = machine, number: int = number) -> None:
            # It begins while the backup prepares its directory, now earlier and now later.
            for _ in range(2 * number):
                machine.victim.stat(PATH)
            vacuum(machine.opened)

        scheduler.spawn(engine.files, partial(Backup(TARGET).run, iter([source])))  # type: ignore[arg-type]
        scheduler.spawn(machine.victim, clean)
        try:
            scheduler.run()
        except Deadlock as error:
            return Finding(f"a backup and a vacuum wait for each other: {error}")
        finally:
            engine.closed, engine.live = True, None
    return None


def remembered_facts(seed: int, *, during: bool) -> Finding | None:
    """A process that remembers the sizes of segments looks before and after a rewrite, or while it runs as well."""
    machine = Rewriting(seed)
    reader = open_store(Process(machine.disk, "reader"))
    wrong: list[str] = []

    def look(when: str) -> None:
        partition = partition_of(reader)
        state = rewriting._state_of(partition)
        cache = reader.indexes.facts
        facts = cache.load(partition, cache.recall(partition, Key.of(partition, state)))
        files = machine.disk.files()
        sizes = [len(files[f"{DIRECTORY}/{facts.base(row):020d}.seg"]) for row in range(len(facts))]
        known = [stop - first for first, stop in pairwise(facts.bytes_before)]
        if sizes != known:
            wrong.append(f"sizes {known} are remembered {when}, not {sizes}")

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        if during and process is machine.victim and kind in ("rename", "sync_directory"):
            look(f"before {kind}")

    look("before a rewrite")
    machine.disk.observer = observe
    rewrite_one(machine.opened)
    machine.disk.observer = None
    look("after a rewrite")
    return Finding(wrong[0]) if wrong else None


class Linkless(Process):
    """A process on a file system that cannot link."""

    def link(self, source: str, target: str) -> None:
        raise OSError(1, "Operation not permitted")


@said
def backup_without_links(seed: int) -> Finding | None:
    """A segment is rewritten after the snapshot of a backup that could not link it."""
    machine = Rewriting(seed)
    process = Linkless(machine.disk, "backup")
    expected: list[Shown] = []
    store = opened(process, PATH)

    def run(take: Callable[[], LogSnapshot]) -> LogSnapshot:
        taken = take()
        expected.append(shown(machine.store))
        if len(expected) == 1:
            rewrite_one(machine.opened, 0, ((1, 2),))
        return taken

    Backup(TARGET).run(iter([BackupSource((), store.path, store, run)]))
    restorer = Process(machine.disk, "restorer")
    restore(restorer, TARGET, RESTORED)
    found = shown(opened(restorer, RESTORED))
    if found != expected[-1]:
        return Finding(f"a record of the backup's moment is gone: {[each[0] for each in found]}")
    return None if len(expected) == 2 else Finding("the backup did not start over")
