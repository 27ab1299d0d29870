"""Deaths, failures and interrupts at moments that the sweeps once found to matter, each as small as it gets."""

from __future__ import annotations

import errno

import pytest

from tailrace.disk.admin import Admin
from tailrace.disk.partition import Partition
from tailrace.disk.staging import Write
from tailrace.disk.store import Store
from tailrace.errors import CorruptionError, DiskFullError, StorageError, TopicNotFoundError
from tests.rigs.sim import Disk, Fail, Interrupt, Kill, Killed, Process
from tests.rigs.sim.bench import BOTH, FIRST, Bench, killed
from tests.rigs.sim.engine import BIG_BYTES, check, frames_of, open_store, sim_tuning
from tests.rigs.sim.invariants import held_locks
from tests.rigs.sim.witness import compare, read_all


def grown(bench: Bench) -> str:
    """The tails file grows while a has it mapped; the name of a topic whose slots a has never seen."""
    for name in "xyz":
        bench.b.topic(name, 2)
    return "z"


def test_a_flush_reaches_slots_that_another_process_made(small):
    bench = Bench()
    new = grown(bench)
    bench.b.append((new, 0), durable=None)
    bench.a.store.flush()
    _, partition = bench.b.at((new, 0))
    assert partition.safe == partition.end == 1


def test_a_checkpoint_reaches_slots_that_another_process_made(small):
    """I4: what lies in slots that were made later is synced before the journal forgets it."""
    bench = Bench()
    new = grown(bench)
    bench.b.transact(((new, 0), (new, 1)))
    bench.a.store.committer.checkpoint()
    assert bench.cut() is None


def test_a_dead_commit_in_slots_that_another_process_made(small):
    """I8: so is a commit that died in them."""
    bench = Bench()
    new = grown(bench)
    bench.b.append((new, 0))
    bench.strike(Kill(0), "write", ".seg")
    killed(lambda: bench.b.transact(((new, 0), ("t", 0))))
    bench.calm()
    bench.a.append(("t", 0))
    assert bench.cut() is None


@pytest.mark.parametrize("adopted", [False, True])
def test_a_death_in_the_very_first_state_block(small, adopted):
    """A state block that was never whole says nothing, as long as nothing was published under it."""
    bench = Bench()
    bench.a.topic("n")
    count = {"seen": 0}
    word = bench.a.at(("n", 0))[1].word * 8
    fault = Kill(0, when="middle")

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(process, kind, detail)
        if kind == "store" and detail[1:] == (word + 160, 96):
            count["seen"] += 1
            fault.at = bench.disk.steps
            bench.disk.plan(fault)

    bench.disk.observer = look
    if adopted:
        killed(lambda: bench.a.transact((("n", 0), ("n", 1)), size=BIG_BYTES))
    else:
        killed(lambda: bench.a.append(("n", 0)))
    assert count["seen"]
    bench.calm()
    bench.b.append(("n", 0))
    assert bench.cut() is None


def test_a_death_before_the_first_record_of_a_catalog_segment(small):
    """A catalog segment begins with a snapshot, whoever comes to write its first record."""
    bench = Bench()
    seen = set(bench.disk.files())

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(process, kind, detail)
        fresh = kind == "write" and "/catalog/" in str(detail[0]) and str(detail[0]) not in seen
        if fresh and detail[1] != 0:
            bench.disk.plan(Kill(bench.disk.steps))

    bench.disk.observer = look
    killed(lambda: [bench.a.topic(f"topic-{number}", 1) for number in range(99)])
    bench.calm()
    bench.b.drop("topic-0")
    assert compare(bench.witness, read_all(bench.writer("c").store), cut=False) is None
    assert bench.cut() is None


def test_an_unreadable_catalog_is_a_typed_error():
    bench = Bench()
    bench.b.topic("n")
    bench.strike(Fail(0, number=errno.EIO), "list", "/catalog")
    with pytest.raises(StorageError):
        open_store(Process(bench.disk, "c"))


def test_a_death_while_a_journal_file_is_renamed():
    """I2, I7: the journal is found whatever its file was called when its holder died."""
    for number in (1, 2):
        for when in ("before", "after"):
            bench = Bench()
            bench.a.store.checkpoint()
            bench.strike(Kill(0, when=when), "rename", "/journal/", number)
            try:
                bench.b.transact(BOTH)
            except Killed:
                pass
            bench.calm()
            cut = bench.disk.crash(None)
            assert check(cut, bench.witness, cut=True, deep=True) is None
            bench.writer("c").transact(BOTH)
            bench.a.transact(BOTH)
            bench.writer("d").transact(BOTH)
            assert bench.cut() is None


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_of_an_adopted_name(small, number):
    """I1: a name whose sync failed counts as synced, so the next attempt gives it anew."""
    bench = Bench()
    fault = Fail(0, number=number)
    seen = []

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(process, kind, detail)
        if kind == "rename" and ".staged" in str(detail[0]):
            seen.append(detail)
        if kind == "sync_directory" and len(seen) == 1 and not fault.fired:
            fault.at = bench.disk.steps
            bench.disk.plan(fault)

    bench.disk.observer = look
    with pytest.raises(StorageError):
        bench.a.transact(BOTH, size=BIG_BYTES)
    bench.calm()
    bench.a.append(("t", 1))
    bench.a.store.committer.checkpoint()
    assert fault.fired
    assert bench.cut() is None


@pytest.mark.parametrize("fails", [False, True])
def test_a_recovery_that_stops_behind_an_adoption(small, fails):
    """I9: the next recovery makes the adopted name durable before it lets go of the journal."""
    bench = Bench()
    bench.strike(Kill(0), "rename", ".staged")
    killed(lambda: bench.a.transact(BOTH, size=BIG_BYTES))
    bench.witness.groups[-1].committed = True
    disk = bench.disk.crash(None)
    fault = Fail(0) if fails else Kill(0)
    renamed = []

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        renamed.extend([detail] if kind == "rename" and ".staged" in str(detail[0]) else [])
        if kind == "sync_directory" and renamed and not fault.fired:
            fault.at = disk.steps
            disk.plan(fault)

    disk.observer = look
    first = Process(disk, "first")
    with pytest.raises((Killed, StorageError)):
        open_store(first)
    disk.observer = None
    disk.plan()
    first.kill()
    second = Process(disk, "second")
    assert compare(bench.witness, read_all(open_store(second)), cut=True) is None
    second.kill()
    assert check(disk.crash(None), bench.witness, cut=True, deep=True) is None


def test_a_dead_commit_in_a_topic_whose_drop_died(small):
    """Two deaths: a drop behind its record, and a commit of a writer that did not know. The log opens all the same."""
    bench = Bench()
    partitions = [bench.a.at(("t", 0))[1], bench.a.at(("u", 0))[1]]
    bench.a.append(("u", 0))
    word = partitions[0].word * 8

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(process, kind, detail)
        if kind == "store" and word <= int(str(detail[1])) < word + 64 and process.name == "b":
            bench.disk.plan(Kill(bench.disk.steps))

    bench.disk.observer = look
    killed(lambda: bench.b.drop("t"))
    bench.calm()
    bench.strike(Kill(0), "write", ".seg")
    values = bench.witness.values(2)
    group = bench.witness.attempt({(bench.a.entry("u").id, 0): values[1:]}, True)
    group.parts[1, 0] = values[:1]
    writes = [Write(part, frames_of([value], bench.a.process)) for part, value in zip(partitions, values, strict=True)]
    with pytest.raises((Killed, TopicNotFoundError)):
        bench.a.store.transact(writes)
    bench.calm()
    later = bench.writer("c")
    later.append(("u", 0))
    assert bench.cut() is None


def test_a_close_that_was_interrupted_is_finished_by_another():
    """No lock is left behind: a second close gives back what the first did not."""
    number = 0
    while True:
        number += 1
        bench = Bench()
        bench.a.process.kill()
        process = bench.b.process
        fault = Interrupt(process.steps + number, process="b")
        bench.disk.plan(fault)
        try:
            bench.b.store.close()
        except KeyboardInterrupt:
            bench.b.store.close()
        if not fault.fired:
            break
        assert held_locks(process) == [], number
    assert number > 10


@pytest.mark.parametrize("kind", [Interrupt, Fail])
def test_an_open_that_does_not_succeed_leaves_no_lock(kind):
    number = 0
    failures = 0
    while True:
        number += 1
        bench = Bench()
        bench.strike(Kill(0), "write", ".seg")
        killed(lambda: bench.a.transact(BOTH))  # noqa: B023  # It is called at once.
        bench.calm()
        process = Process(bench.disk, "c")
        fault = kind(number, process="c")
        bench.disk.plan(fault)
        try:
            open_store(process)
        except (KeyboardInterrupt, StorageError):
            failures += 1
            assert held_locks(process) == [], number
        if number > process.steps:
            break
    assert failures > 10


def test_silence_of_a_damaged_segment():
    """I10: a damaged last segment is named when it is read, also when the old tails are gone."""
    bench = Bench()
    disk = bench.disk.crash(None)
    disk.flip(FIRST, 20)
    process = Process(disk, "recoverer")
    process.remove_file("/log/tails")
    store = open_store(process)
    partition = store.partition(1)
    with pytest.raises(CorruptionError) as caught:
        list(store.reader(partition).frames(0, partition.end))
    assert caught.value.first == 0
    assert caught.value.last >= 1


def test_a_partition_is_closed_under_its_lock(monkeypatch):
    """A thread that enters right after the last one left keeps the lock it got."""
    bench = Bench()
    store, partition = bench.a.store, bench.a.at(("t", 0))[1]
    bench.a.append(("t", 0), durable=None)
    leave = Partition.leave

    def leave_and_meet(self: Partition) -> None:
        # The simulated machine has one thread a process, so the other thread's step is taken here.
        leave(self)
        if self is partition and not entered:
            entered.append(self)
            self.enter()

    entered: list[Partition] = []
    monkeypatch.setattr(Partition, "leave", leave_and_meet)
    partition.release()
    monkeypatch.undo()
    assert entered, "nobody entered in between, so nothing was tried"
    assert partition.path in held_locks(store.files)  # type: ignore[arg-type]


def test_space_that_is_missing_while_resolving():
    """The disk is full when a dead commit is to be rolled forward: the caller's own write was not begun."""
    bench = Bench()
    bench.strike(Kill(0), "write", ".seg")
    killed(lambda: bench.a.transact(BOTH))
    bench.calm()
    bench.disk.free = 0
    with pytest.raises(DiskFullError):
        bench.b.append(("t", 0))
    bench.disk.free = None
    bench.b.append(("t", 0))
    assert bench.cut() is None


@pytest.mark.parametrize("kind", [Kill, Fail])
@pytest.mark.parametrize(("path", "number"), [("/log", 1), ("/a/b/log", 1), ("/a/b/log", 2), ("/a/b/log", 3)])
def test_an_end_before_the_name_of_a_log_is_synced(kind, path, number):
    """I7: whoever goes on with a directory that another process made brings its name to the medium first."""
    disk = Disk(1)
    fault = kind(0)
    made = []

    def look(process: Process, done: str, detail: tuple[object, ...]) -> None:
        if done == "make_directory":
            made.append(detail)
        elif done == "sync_directory" and len(made) == number and not fault.fired:
            fault.at = disk.steps
            disk.plan(fault)

    disk.observer = look
    with pytest.raises((Killed, StorageError)):
        Store(Process(disk, "first"), path, "a", tuning=sim_tuning())
    assert fault.fired
    disk.observer = None
    process = Process(disk, "second")
    store = Store(process, path, "a", tuning=sim_tuning())
    entry = Admin(store).create("t", {}, 1)
    store.append(store.partition(entry.slots[0]), frames_of([b"kept"], process), 0.0)
    again = Store(Process(disk.crash(None), "third"), path, "a", tuning=sim_tuning())
    assert read_all(again)[entry.id, 0].records == {0: b"kept"}
