"""A topic is dropped and another gets its slots, while a second process still has the first one at hand."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from tailrace.disk.partition import Partition
from tailrace.disk.reader import Reader
from tailrace.errors import DurabilityError, TailraceError, TopicNotFoundError
from tests.rigs.sim import Fail, Kill, Killed
from tests.rigs.sim.bench import BOTH, Bench
from tests.rigs.sim.engine import frames_of
from tests.rigs.sim.faults import FALLIBLE, Fault
from tests.rigs.sim.mutation import mutate, never, without

OLD = 1


class Stale:
    """A process that opened a partition of the dropped topic before, and knows of nothing that happened since."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.writer = bench.writer("c")
        self.writer.append(("t", 0))
        self.partition: Partition = self.writer.at(("t", 0))[1]
        self.reader: Reader = self.writer.store.reader(self.partition)
        self.old = self.read()
        assert self.old

    def read(self) -> list[bytes | None]:
        return [value for column, _ in self.reader.pieces(0, 1 << 40) for value in column.values()]

    def check(self, *, failed: bool = False) -> None:
        """What is read are records of the old topic; an append goes to it, or nowhere. A sync may have `failed`."""
        store, partition = self.writer.store, self.partition
        try:
            found = self.read()
            assert found[: len(self.old)] == self.old
            assert len(found) == len(self.old)
            assert partition.end == len(self.old)
        except TopicNotFoundError:
            assert not partition.alive
        witness = self.bench.witness
        values = witness.values(1, 0)
        group = witness.attempt({(OLD, 0): values}, True)
        try:
            first = store.append(partition, frames_of(values, self.writer.process, False), 0.0, None)
            assert first == len(self.old)
            group.acknowledged = {(OLD, 0): first}
        except TopicNotFoundError:
            assert store.refresh().by_id.get(OLD) is None
        except DurabilityError:
            # A drop whose catalog cannot be synced leaves its topic read-only.
            assert partition.failed
            assert failed


def slots_of(bench: Bench, name: str) -> tuple[int, ...]:
    return bench.a.entry(name).slots


def succeed(bench: Bench) -> None:
    """Drop the topic and make another in its slots, with more records and commits of both kinds."""
    bench.a.drop("t")
    bench.a.topic("u")
    for _ in range(6):
        bench.a.append(("u", 0))
    bench.a.transact([("u", 0), ("u", 1)])


def test_a_slot_gets_another_topic_and_nobody_takes_it_for_the_first():
    bench = Bench()
    before = slots_of(bench, "t")
    stale = Stale(bench)
    succeed(bench)
    assert slots_of(bench, "u") == before
    # The new topic's words are in the slot, and none of them is taken for one of the old topic.
    assert stale.partition.end == len(stale.old) != bench.a.at(("u", 0))[1].end
    stale.check()
    assert not stale.partition.alive
    bench.witness.dropped.add(OLD)
    bench.b.append(("u", 0))
    assert bench.cut(10) is None


def struck(fault: Fault) -> bool:
    """Let one fault happen in a drop and a creation, and go on behind it; whether it happened."""
    bench = Bench()
    stale = Stale(bench)
    fault.at += bench.a.process.steps
    bench.disk.plan(fault)
    with suppress(Killed, TailraceError, OSError):
        succeed(bench)
    bench.calm()
    if not fault.fired:
        return False
    stale.check(failed=isinstance(fault, Fail))
    # A drop whose sync failed may or may not be there after a power cut; until then its topic is read-only.
    kept = OLD in stale.writer.store.refresh().by_id
    if kept and not stale.partition.failed:
        bench.witness.dropping.discard(OLD)
    elif not kept:
        bench.witness.dropped.add(OLD)
    try:
        # The next process makes the second topic, if there is none, and goes on in it.
        bench.b.append(("u", 0))
        bench.b.transact([("u", 0), ("u", 1)])
    except TailraceError:
        # What a failed sync leaves is read-only.
        assert isinstance(fault, Fail)
    if not kept:
        stale.check(failed=isinstance(fault, Fail))
    finding = bench.cut(4)
    assert finding is None, (fault, finding)
    return True


def operations() -> int:
    """How many operations the first process needs for a drop and a creation."""
    bench = Bench()
    first = bench.a.process.steps
    succeed(bench)
    return bench.a.process.steps - first


FAULTS = [
    pytest.param(lambda at: Kill(at, process="a"), id="kill before"),
    pytest.param(lambda at: Kill(at, process="a", when="middle"), id="kill within"),
    pytest.param(lambda at: Kill(at, process="a", when="after"), id="kill after"),
    pytest.param(lambda at: Fail(at, process="a", number=errno.EIO, kinds=FALLIBLE), id="fail"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_some_operations_of_a_drop_and_a_creation(fault, seed):
    places = Random(seed).sample(range(1, operations() + 1), 8)
    assert sum(struck(fault(at)) for at in places) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_operation_of_a_drop_and_a_creation(fault):
    assert sum(struck(fault(at)) for at in range(1, operations() + 1)) > 10


def test_without_the_look_at_the_incarnation_records_of_another_topic_are_promised(monkeypatch):
    mutate(monkeypatch, never("slot of another topic"))
    bench = Bench()
    stale = Stale(bench)
    succeed(bench)
    assert stale.partition.end == bench.a.at(("u", 0))[1].end


def test_without_a_state_of_its_own_the_new_topic_cannot_be_written(monkeypatch):
    mutate(monkeypatch, without("state of a new topic"))
    bench = Bench()
    with pytest.raises(TailraceError, match="belongs to another topic"):
        succeed(bench)


def test_a_commit_that_died_in_the_new_topic_is_resolved_by_a_process_that_knows_the_old_one():
    bench = Bench()
    stale = Stale(bench)
    bench.a.drop("t")
    bench.a.topic("u")
    bench.a.append(("u", 0))
    bench.strike(Kill(0, when="after"), "sync_data", ".wal")
    with pytest.raises(Killed):
        bench.a.transact([("u", 0), ("u", 1)])
    bench.calm()
    bench.witness.dropped.add(OLD)
    # Meets the dead commit in the slots, which it knows as those of another topic.
    stale.writer.append(("v", 0))
    stale.writer.append(("u", 0))
    stale.check()
    assert bench.cut(10) is None


def test_both_topics_before_and_after_recovery():
    bench = Bench()
    succeed(bench)
    bench.a.transact(BOTH)
    assert bench.a.entry("t").slots != bench.a.entry("u").slots
    assert bench.cut(20) is None
