"""Partitions that a member has given back without knowing it, and partitions that come back to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tailrace.errors import PartitionLostError
from tailrace.groups.consumer import Consumer
from tailrace.groups.group_topic import find_group
from tailrace.records import Record
from tests.rigs.sim import Interrupt
from tests.rigs.sim.group_audit import values_of
from tests.rigs.sim.group_bench import GroupBench
from tests.rigs.sim.group_check import outputs, see
from tests.rigs.sim.group_members import EXACT_GROUP, SOURCE, TARGET, Member, small_groups
from tests.rigs.sim.witness import Finding

# Operations from the write of the record that gives partitions back: it becomes visible with the second, and where only
# the first was done, it does so when somebody takes the lock.
MOMENTS = {"found by the next": 1, "published": 2}


@pytest.fixture
def bench() -> Iterator[GroupBench]:
    with small_groups():
        made = GroupBench()
        made.a.topic(TARGET, 1)
        yield made
        made.close()


@pytest.fixture(params=MOMENTS.values(), ids=MOMENTS)
def moment(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def consumer_of(member: Member, commit: str = "manual") -> Consumer:
    return member.log.consumer(SOURCE, EXACT_GROUP, commit=commit)  # type: ignore[arg-type]


def interrupted(bench: GroupBench, mine: Consumer, moment: int) -> None:
    """Let the owner of everything give partitions back, and interrupt it when that is written."""
    fault = Interrupt(0, when="after")

    def strike() -> None:
        fault.at = bench.disk.steps + moment
        bench.disk.plan(fault)

    bench.when(bench.a, "write", "__group.x", strike)
    with pytest.raises(KeyboardInterrupt):
        mine.poll(1, timeout=0)
    bench.disk.plan()
    assert fault.fired


def process(
    member: Member, consumer: Consumer, handed: list[Record], meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Store what was made of records together with the cursors behind them."""
    with member.log.transaction() as tx:
        values = [b"%d@%d=" % (record.partition, record.offset) + (record.value or b"") for record in handed]
        tx.extend(TARGET, values, partition=0)
        consumer.commit(tx)
        meanwhile()


def process_share(member: Member, consumer: Consumer) -> int:
    """The same for all that a member is given now."""
    count = 0
    while handed := list(consumer.poll(20, timeout=0.5)):
        process(member, consumer, handed)
        count += len(handed)
    return count


def made_twice(bench: GroupBench) -> Finding | None:
    """What is wrong with the outputs and the records of the group."""
    group, seen = find_group(bench.a.log.engine, EXACT_GROUP), see(bench.a.log)
    assert group is not None
    return outputs(seen, seen.cursors[group.id]) or bench.finding()


def finish(bench: GroupBench, *consumers: Consumer) -> None:
    """Close the consumers; somebody else finds nothing done twice and makes what is left."""
    for consumer in consumers:
        consumer.close()
    assert made_twice(bench) is None
    with consumer_of(bench.c) as last:
        process_share(bench.c, last)
    assert made_twice(bench) is None


def test_a_give_that_was_interrupted_is_written_once(bench, moment):
    """Whoever goes on after it has what it kept, and nothing is said of the rest a second time."""
    mine, theirs = consumer_of(bench.a), consumer_of(bench.b)
    mine.poll(1, timeout=0)
    theirs.poll(1, timeout=0)
    interrupted(bench, mine, moment)
    member = mine.member
    mine.poll(1, timeout=0)
    assert bench.finding() is None
    assert mine.member == member
    assert len(mine.assigned) == 2
    finish(bench, mine, theirs)


def test_a_commit_after_a_give_that_was_interrupted(bench, moment):
    """Somebody had the partition meanwhile and left: that it is free does not make it the former owner's."""
    mine, theirs = consumer_of(bench.a), consumer_of(bench.b)
    handed = list(mine.poll(12, timeout=0))
    assert len(handed) == 12
    theirs.poll(1, timeout=0)
    interrupted(bench, mine, moment)
    theirs.poll(1, timeout=0)
    if moment == MOMENTS["published"]:
        theirs.seek("earliest")
        assert process_share(bench.b, theirs) == 4
    theirs.close()
    with pytest.raises(PartitionLostError, match=r"in\[2\]"):
        process(bench.a, mine, handed)
    finish(bench, mine)


def test_a_poll_and_a_commit_after_a_give_that_was_interrupted(bench, moment):
    """Records of the partition are in hand, and whoever has it now makes the same of them."""
    mine, theirs = consumer_of(bench.a), consumer_of(bench.b)
    handed = list(mine.poll(12, timeout=0))
    theirs.poll(1, timeout=0)
    interrupted(bench, mine, moment)
    handed += mine.poll(1, timeout=0)
    with pytest.raises(PartitionLostError, match=r"in\[2\]"):
        process(bench.a, mine, handed)
    finish(bench, mine, theirs)


def test_what_was_kept_is_stored_after_a_give_that_was_interrupted(bench, moment):
    """Cursors went with what was given back, and those of the rest are stored when the consumer is closed."""
    mine, theirs = consumer_of(bench.a, "after"), consumer_of(bench.b, "after")
    assert len(mine.poll(12, timeout=0)) == 12
    theirs.poll(1, timeout=0)
    interrupted(bench, mine, moment)
    mine.close()
    assert not theirs.poll(12, timeout=0.5)
    theirs.close()
    assert bench.finding() is None


def test_a_partition_comes_back_after_a_give_that_was_interrupted(bench, moment):
    """It is read on behind what another member has read of it."""
    bench.a.produce(2, 2)
    mine, theirs = consumer_of(bench.a, "after"), consumer_of(bench.b, "after")
    assert len(mine.poll(5, timeout=0)) == 5
    theirs.poll(1, timeout=0)
    interrupted(bench, mine, moment)
    handed = [(record.partition, record.offset) for record in theirs.poll(5, timeout=0.5)]
    theirs.poll(1, timeout=0)
    theirs.close()
    while batch := mine.poll(20, timeout=0.5):
        handed += [(record.partition, record.offset) for record in batch]
    assert len(handed) == len(set(handed))
    mine.close()
    assert bench.finding() is None


def test_a_partition_that_comes_back_within_a_transaction(bench):
    """The transaction is about records that another member has processed meanwhile."""
    mine, theirs = consumer_of(bench.a), consumer_of(bench.b)
    handed = list(mine.poll(12, timeout=0))
    theirs.poll(1, timeout=0)

    def meanwhile() -> None:
        # Asked for more, it gives a partition back; the other member does its work and leaves.
        assert not mine.poll(1, timeout=0)
        assert len(mine.assigned) == 2
        assert process_share(bench.b, theirs) == 4
        theirs.close()
        assert not mine.poll(1, timeout=0)
        assert len(mine.assigned) == 3

    with pytest.raises(PartitionLostError, match=r"in\[2\]"):
        process(bench.a, mine, handed, meanwhile)
    finish(bench, mine)


def test_who_leaves_while_another_takes_is_not_taken_for_dead(bench):
    """It has said itself that it goes, between the look at the members and the look at their lock files."""
    first, second, third = (consumer_of(member) for member in (bench.a, bench.b, bench.c))
    first.poll(1, timeout=0)
    second.poll(1, timeout=0)
    member = second.member
    first.close()
    bench.when(bench.c, "open", f"/{member}", second.close)
    third.poll(1, timeout=0)
    assert bench.happened
    assert len(third.assigned) == 3
    group = find_group(bench.c.log.engine, EXACT_GROUP)
    assert group is not None
    values = values_of(group.engine.store, group.partition.slot, 0, group.state.offset)
    written = [json.loads(value) for _, value in values]
    assert [record.get("member") for record in written if member in record.get("gone", ())] == [member]
    finish(bench, third)
