"""Directed scenarios: one course of events each, small enough to say which rule it is about."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from tailrace.errors import (
    LockedError,
    StorageError,
    TopicNotFoundError,
)
from tests.rigs.mutations.sweeps import Run, told
from tests.rigs.sim import Kill, Killed, Process, process
from tests.rigs.sim import test_engine_files as files
from tests.rigs.sim import test_engine_reasoned as reasoned
from tests.rigs.sim import test_engine_rows as rows
from tests.rigs.sim.bench import BOTH, Bench
from tests.rigs.sim.engine import check, frames_of, open_store


def cut_of(make: Callable[[], Bench], states: int = 40) -> Run:
    """A bench that was brought into a state, and then a power cut."""

    def run(seed: int) -> str | None:
        made: list[Bench] = []
        problem = told(lambda: made.append(make()))
        return problem or told(lambda: made[0].cut(states))

    return run


def doing(*actions: Callable[[], object]) -> str | None:
    """What comes up while things are done one after another."""

    def run() -> None:
        for action in actions:
            action()

    return told(run)


def ending(bench: Bench, states: int = 40) -> str | None:
    """What is wrong with a log that is still open, and then after a power cut."""
    bench.calm()
    live = told(lambda: check(bench.disk.clone(), bench.witness, cut=False, whole=False))
    return live or told(lambda: bench.cut(states))


def another_device(seed: int) -> str | None:
    """The blocks of the file system are copied to another device on the same boot: same inodes, older tails."""
    bench = Bench(seed)
    bench.a.store.checkpoint()
    for _ in range(3):
        bench.a.append(("t", 0))
        bench.a.append(("t", 1))
    disk = bench.disk.crash(None)
    disk.boot = bench.disk.boot
    before, process.DEVICE = process.DEVICE, process.DEVICE + 1
    try:
        found = told(lambda: check(disk, bench.witness, cut=True))
    finally:
        process.DEVICE = before
    return found


def another_kernel(seed: int) -> str | None:
    """Somebody on another kernel opens a log that is in use here."""
    bench = Bench(seed)

    class Foreign(Process):
        def boot_id(self) -> bytes:
            return b"another kernel !"

    before = bench.disk.files()["/log/tails"]
    with suppress(LockedError):
        open_store(Foreign(bench.disk, "foreign"))
        return "a log that is in use was opened from another kernel"
    return None if bench.disk.files()["/log/tails"] == before else "its tails were written"


def tails_of_another_log(seed: int) -> str | None:
    """The tails of another log lie in this one's directory when it is recovered."""
    bench = Bench(seed)
    other = Bench(seed + 1)
    for _ in range(4):
        other.a.append(("t", 0))
    other.a.store.checkpoint()
    foreign = other.disk.files()["/log/tails"]
    disk = bench.disk.crash(None)
    disk.file("/log/tails").data[:] = foreign
    disk.file("/log/tails").durable[:] = foreign
    return told(lambda: check(disk, bench.witness, cut=True))


def copy_on_one_boot(seed: int) -> str | None:
    return told(files.copied_on_one_boot)


def dropped_and_made_again(seed: int) -> str | None:
    """A writer with a dropped topic in hand appends, while another topic has its name."""

    def stale() -> str | None:
        with suppress(TopicNotFoundError):
            return ending(rows.stale_writer(), 6) or "a stale writer was not refused"
        return None

    return told(stale)


def rolled_by_another(seed: int) -> str | None:
    """A process rolls a segment that another has open, and that one goes on."""
    bench = Bench(seed)
    bench.b.roll(("t", 0))
    bench.b.append(("t", 0))
    return doing(lambda: bench.a.append(("t", 0))) or ending(bench, 12)


def read_late(seed: int) -> str | None:
    """A reader sees the end before the bytes, as it may on arm64."""
    return told(lambda: None if len(reasoned.read_late(3)) == 3 else "a record is missing")


def dead_death(seed: int) -> str | None:
    return told(lambda: rows.dead_commit().cut())


def trim_that_dies_before_its_record(seed: int) -> str | None:
    """A trim dies at each of its operations; another process then sweeps what lies below the start."""
    number = 0
    while True:
        number += 1
        bench = Bench(seed)
        for _ in range(4):
            bench.a.roll(("t", 0))
            bench.a.append(("t", 0))
        kill = Kill(bench.a.process.steps + number, process="a")
        bench.disk.plan(kill)
        with suppress(Killed):
            bench.a.trim(("t", 0), 6)
        bench.disk.plan()
        if not kill.fired:
            return None
        _, partition = bench.b.at(("t", 0))
        problem = doing(lambda: bench.b.store.inside(partition, lambda: partition.sweep(99)))  # noqa: B023
        problem = problem or ending(bench, 6)
        if problem:
            return problem


def expected_offsets(seed: int) -> str | None:
    """Somebody appends between the look at the end and the append that expects it."""
    bench = Bench(seed)
    _, partition = bench.a.at(("t", 0))
    expected = partition.end
    bench.b.append(("t", 0))
    given: list[int] = []
    with suppress(StorageError, LookupError, ValueError):
        try:
            given.append(bench.a.store.append(partition, frames_of([b"x"], bench.a.process), 0.0, expected))
        except Exception as error:  # noqa: BLE001  # Refused, as it has to be.
            return None if type(error).__name__ == "OffsetMismatchError" else repr(error)
    return f"offset {expected} was expected and {given} was given"


def everything_on_disk(seed: int) -> str | None:
    """A flush says that all is on disk, whoever wrote it."""
    bench = Bench(seed)
    bench.a.append(("t", 0), durable=None)
    bench.b.append(("t", 1), durable=None)
    bench.a.store.sync()
    for group in bench.witness.groups[-2:]:
        group.durable = True
    found = ending(bench, 12)
    return f"what was flushed is not on disk: {found}" if found else None


def what_a_drop_leaves(seed: int) -> str | None:
    """After a drop and a power cut, whatever state it leaves, nothing of the topic takes up space."""
    bench = Bench(seed)
    bench.a.drop("t")
    for choice in bench.disk.crash_states(Random(seed), 20):
        disk = bench.disk.crash(choice)
        problem = told(lambda: check(disk, bench.witness, cut=True))  # noqa: B023
        left = [path for path in disk.files() if "/topics/00000001-t" in path]
        if problem or left:
            return problem or f"{left[0]} is left of a dropped topic"
    return None


def deaths_of_a_checkpoint(seed: int) -> str | None:
    """A checkpoint dies at each of its operations, another process makes one, and the power goes."""
    number = 0
    while True:
        number += 1
        bench = Bench(seed)
        bench.a.transact(BOTH)
        kill = Kill(bench.a.process.steps + number, process="a")
        bench.disk.plan(kill)
        with suppress(Killed):
            bench.a.store.committer.checkpoint()
        bench.disk.plan()
        if not kill.fired:
            return None
        problem = doing(bench.b.store.committer.checkpoint) or told(lambda: bench.cut(8))  # noqa: B023
        if problem:
            return problem
