"""A topic is dropped under a member that is about to store how far it has read it, and under whoever lists topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tailrace.groups.consumer import Consumer
from tests.rigs.sim import Process
from tests.rigs.sim.group_bench import GroupBench
from tests.rigs.sim.group_members import ORDINARY_GROUP, SOURCE, TARGET, small_groups

OTHER = "other"


@pytest.fixture
def bench() -> Iterator[GroupBench]:
    with small_groups():
        made = GroupBench()
        made.a.topic(TARGET, 1)
        yield made
        made.close()


def drop(bench: GroupBench) -> None:
    """Another process drops the topic, and its directory is gone with it."""
    records = bench.witness.records
    topic = bench.c.log.engine.entry(SOURCE).id
    records.dropping.add(topic)
    bench.c.log.topic(SOURCE).drop()
    records.dropped.add(topic)


def with_outputs(consumer: Consumer) -> None:
    with consumer.log.transaction() as tx:
        tx.append(TARGET, b"made", partition=0)
        consumer.commit(tx)


WAYS: dict[str, tuple[str, Callable[[Consumer], object]]] = {
    "commit": ("manual", lambda consumer: consumer.commit()),
    "transaction": ("manual", with_outputs),
    "poll": ("after", lambda consumer: consumer.poll(timeout=0)),
    "close": ("after", lambda consumer: (consumer.poll(timeout=0), consumer.close())),
}


@pytest.mark.parametrize("moment", ["when it opens the partition", "when it takes the lock"])
@pytest.mark.parametrize("way", WAYS)
def test_a_topic_dropped_when_its_records_are_brought_to_disk(bench, way, moment):
    """What was read of the others is stored all the same, and the member stays one."""
    commit, store = WAYS[way]
    # The one has written to the partition before, the other has not.
    reader, kind = (bench.b, "open") if "opens" in moment else (bench.a, "lock")
    other = bench.c.log.topic(OTHER)
    with reader.log.consumer([SOURCE, OTHER], ORDINARY_GROUP, commit=commit, commit_every=1) as consumer:
        while consumer.poll(timeout=0):
            continue
        other.append("one")
        bench.c.produce(0, 2, durable=False)
        assert len(consumer.poll(timeout=0)) == 3
        member = consumer.member
        bench.when(reader, kind, "-in/0", lambda: drop(bench))
        store(consumer)
        assert bench.happened
        assert consumer.member in (member, None)
    positions = {each[:2]: each.position for each in bench.c.log.group(ORDINARY_GROUP).partitions}
    assert positions == {(OTHER, 0): 1}
    assert bench.finding() is None


def dropped_at(number: int) -> bool:
    """Drop the topic before the number-th operation of a listing that is about it; whether there was such a one."""
    bench = GroupBench()
    bench.c.log.topic(OTHER).append("one")
    seen = 0

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal seen
        bench.audit(process, kind, detail)
        if process is bench.b.process and "-in/" in str(detail):
            seen += 1
            if seen == number:
                bench.disk.observer = bench.audit
                drop(bench)

    bench.disk.observer = look
    names = [info.name for info in bench.b.log.topics()]
    happened = bench.disk.observer is bench.audit
    assert names in ([SOURCE, OTHER], [OTHER])
    assert not happened or [info.name for info in bench.b.log.topics()] == [OTHER]
    bench.close()
    return happened


def test_a_topic_dropped_while_topics_are_listed():
    """It is in the list or not, and the others are."""
    number = 1
    with small_groups():
        while dropped_at(number):
            number += 1
    assert number > 20
