"""Rules that were first only reasoned: waits that name the holder, descriptors, slots, second looks, macOS."""

from __future__ import annotations

import sys

import pytest

from tailrace.disk.files import Files
from tailrace.disk.partition import Partition
from tailrace.disk.store import Store
from tailrace.disk.tails import DIRTY, INCARNATION, SLOTS_WORD, word_of
from tailrace.errors import CorruptionError, LockedError
from tests.rigs.sim import Process
from tests.rigs.sim.bench import BOTH, FIRST, Bench
from tests.rigs.sim.engine import open_store, sim_tuning
from tests.rigs.sim.mutation import mutate, never
from tests.rigs.sim.witness import compare, read_all

# Every wait has the handle's timeout and then names the holder.


@pytest.mark.parametrize("path", ["/log/topics/00000001-t/0", "/log/journal"])
def test_a_wait_ends_and_names_the_holder(path):
    bench = Bench()
    holder = Process(bench.disk, "stopped")
    assert holder.lock(holder.open(path, directory=True))
    before = bench.disk.clock_us
    with pytest.raises(LockedError, match=str(holder.number)) as caught:
        bench.a.transact(BOTH)
    assert caught.value.pid == holder.number
    assert 29 < (bench.disk.clock_us - before) / 1e6 < 120
    holder.kill()
    bench.a.transact(BOTH)
    assert bench.cut(8) is None


def test_an_exclusive_open_names_the_holder():
    bench = Bench()
    with pytest.raises(LockedError) as caught:
        Store(Process(bench.disk, "alone"), "/log", "a", exclusive=True, tuning=sim_tuning())
    assert caught.value.pid in (bench.a.process.number, bench.b.process.number)
    for writer in (bench.a, bench.b):
        writer.process.kill()
    alone = Process(bench.disk, "alone")
    store = Store(alone, "/log", "a", exclusive=True, tuning=sim_tuning())
    with pytest.raises(LockedError) as caught:
        open_store(Process(bench.disk, "other"))
    assert caught.value.pid == alone.number
    store.close()


# A descriptor with unsynced bytes is synced before it is closed.


def closes(bench: Bench) -> list[str]:
    """What happens to the first segment when its partition makes way for another: syncs and closes, in order."""
    writer = bench.writer("c", tuning=sim_tuning()._replace(open_partitions_max=1))
    writer.append(("t", 0), durable=None)
    descriptors = {fd for fd, file in writer.process.descriptors.items() if file.path == FIRST}
    trace = bench.disk.record()
    writer.append(("t", 1))
    assert not any(file.path == FIRST for file in writer.process.descriptors.values())
    return [kind for _, kind, detail in trace if detail and (detail[0] == FIRST or detail[0] in descriptors)]


def test_unsynced_bytes_are_synced_before_their_descriptor_is_closed():
    bench = Bench()
    kinds = [kind for kind in closes(bench) if kind in ("sync_data", "close")]
    assert kinds == ["sync_data", "close"]
    partition = bench.a.at(("t", 0))[1]
    assert partition.safe == partition.end


def test_committed_bytes_are_synced_before_their_descriptor_is_closed():
    """They are safe in the journal, but a write-back error that nobody heard of would let a checkpoint forget them."""
    bench = Bench()
    writer = bench.writer("c", tuning=sim_tuning()._replace(open_partitions_max=2))
    writer.transact(BOTH)
    partition = writer.at(("t", 0))[1]
    assert writer.store.tails.words[partition.word + DIRTY]
    writer.append(("u", 0))
    writer.append(("u", 1))
    assert not any(file.path == FIRST for file in writer.process.descriptors.values())
    assert not writer.store.tails.words[partition.word + DIRTY], "closed with bytes that only the journal vouches for"
    assert bench.cut() is None


def test_descriptors_closed_without_a_sync(monkeypatch):
    monkeypatch.setattr(Partition, "release", lambda self: bool(self.close()) or True)
    assert "sync_data" not in closes(Bench())


# Slots are used again, and incarnations come from the catalog.


def test_slots_are_used_again_and_incarnations_are_catalog_offsets():
    bench = Bench()
    given: set[tuple[int, ...]] = set()
    ids: set[int] = set()
    for _ in range(5):
        entry = bench.b.topic("n")
        given.add(entry.slots)
        assert entry.id not in ids
        ids.add(entry.id)
        words = bench.b.store.tails.words
        assert [words[word_of(slot) + INCARNATION] for slot in entry.slots] == [entry.id] * 2
        assert entry.id == bench.b.store.catalog.offset, "the topic was the last record, and ids are offsets plus one"
        bench.b.append(("n", 0))
        bench.b.drop("n")
    assert len(given) == 1
    assert bench.cut() is None


@pytest.mark.parametrize("damage", ["absent", "empty", "short", "words"])
def test_the_tails_only_cache(damage):
    """Without the file, with a part of it, or with other words in it, recovery finds the same from the rest."""
    bench = Bench()
    bench.b.drop("t")
    bench.b.append(("t", 1))
    bench.b.store.checkpoint()
    disk = bench.disk.crash(None)
    process = Process(disk, "damager")
    if damage == "absent":
        process.remove_file("/log/tails")
    else:
        file = disk.file("/log/tails")
        descriptor = process.open("/log/tails", write=True)
        if damage in ("empty", "short"):
            process.truncate(descriptor, 0 if damage == "empty" else 100)
        else:
            for slot in range(4):
                process.write(descriptor, b"\xff" * 64, word_of(slot) * 8)
        assert bool(file.data) == (damage != "empty")
    store = open_store(Process(disk, "c"))
    assert compare(bench.witness, read_all(store), cut=True) is None
    entry = store.catalog.by_name["t"]
    words = store.tails.words
    assert [words[word_of(slot) + INCARNATION] for slot in entry.slots] == [entry.id] * 2
    assert words[SLOTS_WORD] == store.catalog.next_slot


# A reader may see the end before the bytes, so a frame that does not check is read once more.


def read_late(late: int) -> dict[int, bytes]:
    """Read a partition whose newest bytes come into view only after so many reads: of footer, index, frames."""
    bench = Bench()

    class Late(Process):
        reads = 0

        def read(self, fd: int, count: int, position: int) -> bytes:
            data = super().read(fd, count, position)
            if self.descriptors[fd].path == FIRST and position + len(data) > 64 and count > 64:
                type(self).reads += 1
                if type(self).reads <= late:
                    return data[:90].ljust(len(data), b"\0")
            return data

    store = open_store(Late(bench.disk, "late"), mode="r")
    return read_all(store)[1, 0].records


def test_a_frame_that_does_not_check_is_read_once_more():
    assert len(read_late(3)) == 3
    with pytest.raises(CorruptionError):
        read_late(99)


def test_a_frame_that_is_read_only_once(monkeypatch):
    mutate(monkeypatch, never("read once more"))
    with pytest.raises(CorruptionError):
        read_late(3)


# macOS.


@pytest.mark.skipif(sys.platform != "darwin", reason="F_FULLFSYNC and kern.bootsessionuuid exist on macOS only")
def test_macos_syncs_to_the_medium_and_knows_its_boot(tmp_path, monkeypatch):
    import fcntl

    asked = []
    control = fcntl.fcntl
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, what, *rest: (asked.append(what), control(fd, what, *rest))[1])
    files = Files()
    descriptor = files.open(str(tmp_path / "file"), create=True)
    files.write(descriptor, b"x", 0)
    files.sync_data(descriptor)
    files.close(descriptor)
    assert fcntl.F_FULLFSYNC in asked
    assert len(files.boot_id()) == 16
    assert files.boot_id() == Files().boot_id()
