"""Directed scenarios about damage: whatever is lost has to be named."""

from __future__ import annotations

from contextlib import suppress

from tailrace.disk.tails import SYNCING
from tailrace.errors import (
    CorruptionError,
)
from tests.rigs.mutations.sweeps import told
from tests.rigs.sim import Disk, Kill, Killed, Process
from tests.rigs.sim import test_engine_files as files
from tests.rigs.sim.bench import FIRST, Bench
from tests.rigs.sim.engine import open_store
from tests.rigs.sim.witness import Witness, compare, read_all


def floor(seed: int) -> str | None:
    """The last frame is damaged after a checkpoint and a power cut: the loss has to be named."""
    bench = Bench(seed)
    bench.a.store.committer.checkpoint()
    return _damaged(bench.disk.crash(None), bench.witness)


def floor_without_commits(seed: int) -> str | None:
    """As `floor`, in a log whose journal is empty, and which was closed."""
    bench = Bench(seed)
    bench.a.store.committer.checkpoint()
    bench.a.append(("t", 0))
    bench.a.store.checkpoint()
    return _damaged(bench.disk.crash(None), bench.witness)


def floor_of_a_recovery(seed: int) -> str | None:
    """As `floor`, after a recovery that found more than the checkpoint before it knew, and another power cut."""
    for choice in (None, "everything"):
        bench = Bench(seed)
        bench.a.store.committer.checkpoint()
        bench.a.append(("t", 0))
        disk = bench.disk.crash(None)
        recoverer = Process(disk, "recoverer")
        open_store(recoverer)
        recoverer.kill()
        problem = _damaged(disk.crash(disk.everything() if choice else None), bench.witness)
        if problem:
            return problem
    return None


def _damaged(disk: Disk, witness: Witness) -> str | None:
    data = disk.files()[FIRST].rstrip(b"\0")
    disk.flip(FIRST, len(data) - 2)

    def look() -> str | None:
        with suppress(CorruptionError):
            finding = compare(witness, read_all(open_store(Process(disk, "reader"))), cut=True)
            return f"damage went unnoticed: {finding.text if finding else 'nothing is missing'}"
        return None

    return told(look)


def rolled_back(seed: int) -> str | None:
    """The newest segment is taken back to an earlier state under a log that is in use."""
    bench = Bench(seed)
    earlier = bytes(bench.disk.file(FIRST).data)
    bench.a.append(("t", 0))
    bench.a.append(("t", 0))
    file = bench.disk.file(FIRST)
    file.data[:] = earlier.ljust(len(file.data), b"\0")
    file.durable[:] = file.data
    late = bench.writer("c")
    with suppress(CorruptionError):
        late.append(("t", 0))
        return "records were written behind a gap, and acknowledged"
    return None


def interrupted_sync_of_damage(seed: int) -> str | None:
    """A sync that nobody saw the end of, over bytes that cannot be read back: nothing may be promised of them."""
    bench = Bench(seed)
    bench.a.append(("t", 0), durable=None)
    _, partition = bench.a.at(("t", 0))
    position = partition.state.position
    bench.a.store.tails.words[partition.word + SYNCING] = 1
    bench.a.process.kill()
    file = bench.disk.file(FIRST)
    file.data[position - 8 : position] = bytes(8)
    with suppress(CorruptionError):
        bench.b.append(("t", 0))
        return "records were written behind damage, and acknowledged"
    return None


def data_that_no_state_names(seed: int) -> str | None:
    """A file with records lies where the next segment goes: it is nobody's leftover."""
    bench = Bench(seed)
    bench.a.roll(("t", 0))
    end = bench.a.at(("t", 0))[1].end
    other = Process(bench.disk, "other")
    path = f"{FIRST.rpartition('/')[0]}/{end:020d}.seg"
    other.write(other.open(path, create=True), bytes(bench.disk.file(FIRST).data), 0)
    before = bench.disk.files()[path]
    with suppress(CorruptionError):
        bench.a.append(("t", 0))
    return None if bench.disk.files()[path] == before else "a file with records was removed"


def damaged_header(seed: int) -> str | None:
    return told(lambda: files.damaged_header(20, floor=False))


def join(seed: int) -> str | None:
    """A segment in the middle is gone after a power cut: reading has to say so."""
    bench = Bench(seed)
    for _ in range(3):
        bench.a.roll(("t", 0))
        bench.a.append(("t", 0))
    bench.a.store.checkpoint()
    disk = bench.disk.crash(None)
    middle = sorted(path for path in disk.files() if path.startswith(FIRST[:-25]) and path.endswith(".seg"))[1]
    Process(disk, "tamperer").remove_file(middle)

    def look() -> str | None:
        store = open_store(Process(disk, "c"))
        if store.partition(1).failed:
            return None
        return "a missing segment went unnoticed, and the partition takes appends"

    return told(look)


def exchanged(seed: int) -> str | None:
    """Two segments that hold as many records have each other's names: none may be read under a wrong offset."""
    bench = Bench(seed)
    for _ in range(3):
        bench.a.roll(("t", 0))
        bench.a.append(("t", 0))
    bench.a.store.checkpoint()
    paths = sorted(path for path in bench.disk.files() if path.startswith(FIRST[:-25]) and path.endswith(".seg"))
    parent = bench.disk.parent(FIRST)[0]
    one, other = (path.rpartition("/")[2] for path in paths[1:3])
    for names in (parent.entries, parent.durable):
        names[one], names[other] = names[other], names[one]

    def look() -> str | None:
        with suppress(CorruptionError):
            finding = compare(bench.witness, read_all(open_store(Process(bench.disk, "reader"), mode="r")), cut=False)
            return f"records were read under wrong offsets: {finding.text if finding else ''}"
        return None

    return told(look)


def damage_without_tails(seed: int) -> str | None:
    """The tails are lost and a frame is damaged: whole ones behind it must not be written over."""
    bench = Bench(seed)
    for _ in range(3):
        bench.a.append(("t", 0))
    bench.a.store.checkpoint()
    disk = bench.disk.crash(None)
    Process(disk, "tamperer").remove_file("/log/tails")
    disk.flip(FIRST, bytes(disk.file(FIRST).data).index(b"TRF1", 72) + 30)

    def look() -> str | None:
        store = open_store(Process(disk, "c"))
        if store.partition(1).failed:
            return None
        return "appends go over whole records behind damage"

    return told(look)


def first_segment_is_gone(seed: int) -> str | None:
    """The first segment is gone and nobody trimmed it."""
    bench = Bench(seed)
    bench.a.roll(("t", 0))
    bench.a.append(("t", 0))
    bench.a.store.checkpoint()
    disk = bench.disk.crash(None)
    Process(disk, "tamperer").remove_file(FIRST)

    def look() -> str | None:
        with suppress(CorruptionError):
            finding = compare(bench.witness, read_all(open_store(Process(disk, "c"))), cut=True)
            return f"missing records went unnoticed: {finding.text if finding else ''}"
        return None

    return told(look)


def floor_of_a_dead_recovery(seed: int) -> str | None:
    """A recovery dies at each of its operations, the power goes, and then there is damage: the floor is still known."""
    number = 0
    while True:
        number += 1
        bench = Bench(seed)
        bench.a.store.committer.checkpoint()
        disk = bench.disk.crash(None)
        kill = Kill(number, process="recoverer", when="after")
        disk.plan(kill)
        with suppress(Killed):
            open_store(Process(disk, "recoverer"))
        disk.plan()
        if not kill.fired:
            return None
        for choice in (None, disk.everything()):
            problem = _damaged(disk.crash(choice), bench.witness)
            if problem:
                return problem


def truncated(seed: int) -> str | None:
    """The newest segment lost its end after a checkpoint: the loss has to be named."""
    bench = Bench(seed)
    bench.a.store.committer.checkpoint()
    bench.a.append(("t", 0))
    bench.a.store.checkpoint()
    disk = bench.disk.crash(None)
    file = disk.file(FIRST)
    size = len(bytes(file.data).rstrip(b"\0")) - 20
    del file.data[size:], file.durable[size:]

    def look() -> str | None:
        with suppress(CorruptionError):
            finding = compare(bench.witness, read_all(open_store(Process(disk, "reader"))), cut=True)
            return f"a truncated segment went unnoticed: {finding.text if finding else 'nothing is missing'}"
        return None

    return told(look)
