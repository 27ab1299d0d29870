"""A rewrite that is cut off, killed, failed, out of room, and interleaved at every operation.

No visible record changes (I14), nothing is taken for damage, the count of rewrites is odd while a name may not be on
disk (I15), and the next vacuum finishes what was left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from tailrace.disk.store import Store
from tailrace.errors import OffsetOutOfRangeError, StorageError
from tests.rigs.sim import FALLIBLE, PASSIVE, Disk, Fail, Full, Kill, Killed, Process, Scheduler
from tests.rigs.sim.backups import RESTORED, TARGET, opened
from tests.rigs.sim.engine import open_store, small_limits
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.rewrites import (
    DIRECTORY,
    Rewriting,
    cut_at_every_operation,
    look,
    partition_of,
    rewrite_one,
    shown,
    vacuum,
)


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_limits():
        yield


def operations(action: Callable[[Store], object]) -> list[tuple[int, str]]:
    """(number, kind) of each operation of the victim, counted by the victim."""
    machine = Rewriting()
    first = machine.victim.steps
    trace = machine.disk.record()
    action(machine.opened)
    assert machine.partition.start == 0 or machine.expected[0][0] >= machine.partition.start
    return [(first + at, kind) for at, (_, kind, _) in enumerate(trace, 1)]


def picked(
    seed: int, action: Callable[[Store], object], moments: int, kinds: frozenset[str] | None = None
) -> list[int]:
    found = [number for number, kind in operations(action) if (kind in kinds if kinds else kind not in PASSIVE)]
    return sorted(Random(seed).sample(found, min(moments, len(found))))


def struck(fault: Fault, action: Callable[[Store], object]) -> Rewriting:
    """A machine on which the fault has happened in the action of the victim."""
    machine = Rewriting()
    machine.disk.observer = machine.observe
    machine.disk.plan(fault)
    try:
        action(machine.opened)
    except (Killed, StorageError, OSError):
        pass
    assert fault.fired
    machine.disk.plan()
    assert not machine.broken, machine.broken[0]
    return machine


def after(machine: Rewriting, states: int = 2) -> None:
    """Others go on, the next vacuum finishes, and a power cut at either time takes nothing."""
    random = Random(1)
    machine.disk.free = None
    for choice in machine.disk.crash_states(random, states):
        assert look(machine.disk.crash(choice), machine.expected) is None
    machine.disk.observer = machine.observe
    machine.append(13)
    expected = shown(machine.store)
    assert expected[:-1] == machine.expected
    assert look(machine.disk, expected) is None
    assert not machine.broken, machine.broken[0]
    for choice in machine.disk.crash_states(random, states):
        assert look(machine.disk.crash(choice), expected) is None


def test_the_machine_is_worth_trying():
    """The vacuum of it trims a segment, rewrites three, of which one is sealed for it, and keeps what lives."""
    machine = Rewriting()
    run = vacuum(machine.opened)
    assert [note.records for note in run.rewrites.rewritten] == [2, 3, 1]
    assert shown(machine.store) == shown(machine.opened) == machine.expected
    assert look(machine.disk, machine.expected) is None
    assert {"rename", "sync_directory", "sync_data", "write", "create"} <= {kind for _, kind in operations(vacuum)}


def test_cuts(seed):
    """The power goes before every fourth operation of a vacuum; the sweep of one rewrite leaves none out."""
    assert cut_at_every_operation(seed, vacuum, states=3, every=4) is None


def test_cuts_at_every_operation(seed):
    assert cut_at_every_operation(seed, rewrite_one, states=4) is None


@pytest.mark.parametrize("when", ["before", "middle", "after"])
def test_kills(seed, when):
    for at in picked(seed, vacuum, 15):
        after(struck(Kill(at, process="victim", when=when), vacuum))


def test_failures(seed):
    for at in picked(seed, vacuum, 40, FALLIBLE):
        after(struck(Fail(at, process="victim"), vacuum))


def test_every_failure_of_one_rewrite():
    for at in picked(0, rewrite_one, 1_000, FALLIBLE):
        after(struck(Fail(at, process="victim"), rewrite_one), states=1)


def test_a_full_disk(seed):
    for at in picked(seed, vacuum, 15):
        after(struck(Full(at, process="victim"), vacuum), states=1)


def test_two_failed_names_then_a_cut():
    """Two syncs of the directory fail: the third vacuum renames once more, and only then the count is even."""
    machine = Rewriting()
    failing = 2

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal failing
        machine.observe(process, kind, detail)
        if (
            failing
            and kind == "sync_directory"
            and detail[0] == DIRECTORY
            and partition_of(machine.opened).rewrites & 1
        ):
            failing -= 1
            machine.disk.plan(Fail(machine.disk.steps))

    machine.disk.observer = observe
    for _ in range(2):
        vacuum(machine.opened)
    assert not failing
    after(machine)


def test_live(seed):
    """Two processes vacuum, one appends and trims, one reads, all at once."""
    for number in range(6):
        machine = Rewriting(seed + number)
        disk = machine.disk
        scheduler = Scheduler(disk, seed * 10 + number, stay=0.3)
        disk.observer = machine.observe
        seen: list[str] = []

        def write(machine: Rewriting = machine) -> None:
            for value in range(13, 17):
                machine.append(value)
            from tailrace.disk.admin import Admin

            Admin(machine.store).trim(1, 0, 7)

        def read(machine: Rewriting = machine, disk: Disk = disk, seen: list[str] = seen) -> None:
            store = open_store(Process(disk, "reader"), mode="r")
            must = {record for record in machine.expected if record[0] >= 7}
            for _ in range(6):
                try:
                    found = shown(store)
                except OffsetOutOfRangeError:
                    continue
                if not must <= set(found) or [record[0] for record in found] != sorted({record[0] for record in found}):
                    seen.append(f"{[record[0] for record in found]}")

        reader = Process(disk, "reading")
        other = Process(disk, "other")
        scheduler.spawn(machine.victim, lambda machine=machine: vacuum(machine.opened))
        scheduler.spawn(other, lambda other=other: vacuum(open_store(other)))
        scheduler.spawn(machine.store.files, write)  # type: ignore[arg-type]  # a process
        scheduler.spawn(reader, read)
        scheduler.run()
        assert not seen
        assert not machine.broken, machine.broken[0]
        disk.observer = None
        expected = shown(machine.store)
        assert [record[0] for record in expected] == [8, 9, 10, 11, 12, 13, 14, 15, 16]
        assert look(disk, expected) is None
        assert look(disk.crash(None), expected) is None


def test_a_drop_beside_a_rewrite(seed):
    from tailrace.disk.admin import Admin

    for number in range(6):
        machine = Rewriting(seed + number)
        scheduler = Scheduler(machine.disk, seed * 10 + number)
        scheduler.spawn(machine.victim, lambda machine=machine: vacuum(machine.opened))
        scheduler.spawn(
            machine.store.files,  # type: ignore[arg-type]  # a process
            lambda machine=machine: Admin(machine.store).drop(1),
        )
        scheduler.run()
        store = open_store(Process(machine.disk.crash(None), "next"))
        assert not store.refresh().by_name


@pytest.mark.parametrize("links", [True, False])
def test_a_backup_beside_rewrites(seed, monkeypatch, links):
    """The backup holds the visible records; without links it starts over after a rewrite."""
    from tailrace.maintain.backup.restore import restore
    from tailrace.maintain.backup.take import Backup, BackupSource
    from tests.rigs.sim.rewrites import vacuum_lock

    if not links:

        def link(self: Process, source: str, target: str) -> None:
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(Process, "link", link)
    for number in range(6):
        machine = Rewriting(seed + number)
        scheduler = Scheduler(machine.disk, seed * 10 + number)
        process = Process(machine.disk, "backup")

        def back_up(process: Process = process) -> None:
            store = open_store(process)

            def alone(action: Callable[[], object]) -> object:
                with vacuum_lock(process):
                    return action()

            Backup(TARGET).run(iter([BackupSource((), store.path, store, alone)]))  # type: ignore[arg-type]

        scheduler.spawn(machine.victim, lambda machine=machine: vacuum(machine.opened))
        scheduler.spawn(process, back_up)
        scheduler.run()
        restorer = Process(machine.disk, "restorer")
        restore(restorer, TARGET, RESTORED)
        assert shown(opened(restorer, RESTORED)) == machine.expected
