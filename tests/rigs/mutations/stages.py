"""What a sweep strikes: one action each, on a log that a second process has open as well."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tailrace.bulk.staged import combine
from tailrace.disk.staging import Write
from tests.rigs.mutations.sweeps import Prepare, Stage
from tests.rigs.sim import Disk, Kill, Killed, Process, engine
from tests.rigs.sim.bench import BOTH, Bench
from tests.rigs.sim.engine import BIG_BYTES, Writer, frames_of
from tests.rigs.sim.invariants import Invariants
from tests.rigs.sim.witness import Witness

Action = Callable[[Bench], object]


def on_bench(action: Action, before: Action | None = None) -> Prepare:
    """An action of writer a while b has the log open."""

    def prepare(seed: int) -> Stage:
        bench = Bench(seed)
        if before is not None:
            before(bench)
        return Stage(
            bench.disk, bench.witness, bench.a.process, lambda: action(bench), [bench.b], bench.invariants, bench.a
        )

    return prepare


def young(action: Callable[[Writer], object], before: Callable[[Writer], object] | None = None) -> Prepare:
    """An action of writer a on a log without a journal, which b has open too."""

    def prepare(seed: int) -> Stage:
        disk, witness = Disk(seed), Witness()
        invariants = Invariants(disk, witness)
        a, b = Writer(Process(disk, "a"), witness), Writer(Process(disk, "b"), witness)
        a.topic("t")
        if before is not None:
            before(a)
        return Stage(disk, witness, a.process, lambda: action(a), [b], invariants, a)

    return prepare


def creating_a_log(seed: int) -> Stage:
    """A directory becomes a log, below directories that do not exist yet."""
    disk, witness = Disk(seed), Witness()
    actor = Process(disk, "a")

    def act() -> None:
        writer = Writer(actor, witness)
        writer.append(("t", 0))

    return Stage(disk, witness, actor, act, [], Invariants(disk, witness, engine.PATH))


def recovering(before: Action, *, cut: str = "nothing", then: Callable[[Writer], object] | None = None) -> Prepare:
    """A log that is opened after a power cut which kept nothing unsynced, everything, or some of it."""

    def prepare(seed: int) -> Stage:
        bench = Bench(seed)
        before(bench)
        bench.calm()
        choice = None
        if cut == "everything":
            choice = bench.disk.everything()
        elif cut == "some":
            choice = list(bench.disk.crash_states(Random(seed), 12))[-1]
        disk = bench.disk.crash(choice)
        actor = Process(disk, "a")

        def act() -> None:
            writer = Writer(actor, bench.witness)
            if then is not None:
                then(writer)

        return Stage(disk, bench.witness, actor, act)

    return prepare


# Actions.


def append(bench: Bench) -> None:
    bench.a.append(("t", 0))
    bench.a.append(("t", 0), 3, split=True)


def append_and_flush(bench: Bench) -> None:
    bench.a.append(("t", 0), 3, split=True, durable=None)
    bench.a.append(("t", 1), durable=None)
    bench.a.store.flush()
    bench.a.append(("t", 1), durable=None)


def roll(bench: Bench) -> None:
    bench.a.append(("t", 0), 2, split=True, durable=None)
    bench.a.roll(("t", 0))
    bench.a.append(("t", 0))


def commit(bench: Bench) -> None:
    bench.a.transact(BOTH, size=300)


def commit_behind(bench: Bench) -> None:
    bench.a.append(("t", 0), durable=None)
    bench.a.transact(BOTH)


def commit_into_a_new_segment(bench: Bench) -> None:
    bench.a.roll(("t", 0))
    bench.a.transact(BOTH)


def adopt(bench: Bench) -> None:
    bench.a.append(("t", 0), durable=None)
    bench.a.transact(BOTH, size=BIG_BYTES)
    bench.a.append(("t", 0))


def adopt_and_checkpoint(bench: Bench) -> None:
    bench.a.transact(BOTH, size=BIG_BYTES)
    bench.a.store.committer.checkpoint()


def adopt_several(bench: Bench) -> None:
    bench.a.adopt(BOTH, 3)


def adopt_bulk(bench: Bench) -> None:
    """A segment that was combined from pieces, as bulk work brings it."""
    keys, writes = {}, []
    for place in BOTH:
        key, partition = bench.a.at(place)
        keys[key] = bench.witness.values(2)
        staged = combine(partition, frames_of(keys[key], bench.a.process, split=True))
        writes.append(Write(partition, (), None, staged))
    group = bench.witness.attempt(keys, True)
    firsts = bench.a.store.committer.commit(writes)
    group.acknowledged = dict(zip(keys, firsts, strict=True))


def checkpoint(bench: Bench) -> None:
    bench.a.transact(BOTH)
    bench.a.store.committer.checkpoint()
    bench.a.transact(BOTH)


def new_topic(bench: Bench) -> None:
    bench.a.topic("n")
    bench.a.append(("n", 0))


def more_partitions(bench: Bench) -> None:
    bench.a.alter("t", 3)
    bench.a.append(("t", 2))


def segments(bench: Bench) -> None:
    for _ in range(4):
        bench.a.roll(("t", 0))
        bench.a.append(("t", 0))


def roll_all(bench: Bench) -> None:
    segments(bench)
    bench.a.roll(("t", 0))


def trim(bench: Bench) -> None:
    bench.a.trim(("t", 0), 6)


def trim_unsynced(bench: Bench) -> None:
    bench.a.append(("t", 0), 2, split=True, durable=None)
    bench.a.trim(("t", 0), 99)
    bench.b.append(("t", 0))


def drop(bench: Bench) -> None:
    bench.a.drop("t")
    bench.a.append(("t", 0))


def dead_commit(bench: Bench) -> None:
    """A commit whose entry is on disk, and whose process died before anything else was."""
    _dies(bench, lambda: bench.a.transact(BOTH), "write", ".seg")


def dead_adoption(bench: Bench) -> None:
    _dies(bench, lambda: bench.a.transact(BOTH, size=BIG_BYTES), "rename", ".staged")


def _dies(bench: Bench, action: Callable[[], object], kind: str, path: str) -> None:
    bench.strike(Kill(0), kind, path)
    try:
        action()
    except Killed:
        bench.witness.groups[-1].committed = True
        bench.calm()
        return
    raise AssertionError("the process did not die")


def empty_directories(bench: Bench) -> None:
    """A topic without records, whose directories a copy left out."""
    bench.a.topic("n")
    bench.a.store.checkpoint()
    process = Process(bench.disk, "copier")
    for index in "01":
        process.remove_directory(f"/log/topics/00000002-n/{index}")
    process.sync_directory("/log/topics/00000002-n")
    process.remove_directory("/log/topics/00000002-n")
    process.sync_directory("/log/topics")


def one_empty_directory(bench: Bench) -> None:
    bench.a.topic("n")
    process = Process(bench.disk, "copier")
    process.remove_directory("/log/topics/00000002-n/0")
    process.sync_directory("/log/topics/00000002-n")


def append_without_waiting(bench: Bench) -> None:
    bench.a.append(("t", 0), 3, split=True, durable=None)


def trim_everything(bench: Bench) -> None:
    bench.a.trim(("t", 0), 99)
    bench.a.append(("t", 0))


def append_a_group(bench: Bench) -> None:
    bench.a.append(("t", 0), 3, split=True, size=400)


def checkpointed(bench: Bench) -> None:
    bench.a.store.committer.checkpoint()


def empty_topic(bench: Bench) -> None:
    bench.a.topic("n")


def adopt_into_an_empty_partition(bench: Bench) -> None:
    bench.a.adopt((("n", 0), ("n", 1)), 3)


def trim_within_a_segment(bench: Bench) -> None:
    bench.a.append(("t", 0), 3)
    bench.a.trim(("t", 0), 2)


def many_partitions(bench: Bench) -> None:
    bench.a.topic("w", 20)
    bench.a.append(("w", 19))
