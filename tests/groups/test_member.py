"""A member without a consumer: it shares partitions and commits by offset, and reads nothing."""

from __future__ import annotations

import time

import pytest

import tailrace
from tailrace import errors
from tailrace.groups.group_topic import open_group
from tailrace.groups.member import Member

LONG = 30.0


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        topic = log.topic("t", partitions=4)
        for partition in range(4):
            topic.extend([str(partition)] * 10, partition=partition)
        yield log


@pytest.fixture
def member(log):
    made = Member(log.engine, open_group(log.engine, "g"), ("t",), "server", 60.0)
    made.join()
    yield made
    made.release()


def until(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"


def cursors(log):
    return {part.partition: part.position for part in log.group("g").partitions}


def test_it_shares_with_a_consumer_commits_by_offset_and_leaves(log, member):
    assert member.poll() == [("t", 0), ("t", 1), ("t", 2), ("t", 3)]
    member.commit_offsets({("t", 0): 3, ("t", 3): 10})
    assert cursors(log) == {0: 3, 1: None, 2: None, 3: 10}
    with log.consumer("t", "g") as consumer:
        done = {("t", index): 5 for index in range(3)}
        found = []
        until(lambda: found.extend(consumer.poll(timeout=0)) or (member.poll(done) and len(consumer.assigned) == 2))
        assert len(member.assigned) == 2
        assert sorted([*member.assigned, *consumer.assigned]) == [("t", index) for index in range(4)]
        # What it gave back begins for the consumer where it said, and is read once.
        begun = {}
        for record in found:
            begun.setdefault(record.partition, record.offset)
        assert all(begun[index] == 5 for index in begun if index < 3)
        mine, *_ = member.assigned
        member.commit_offsets({mine: 7})
        with pytest.raises(errors.PartitionLostError):
            member.commit_offsets({consumer.assigned[0]: 9})
        states = {each.id: (each.state, each.partitions) for each in log.group("g").members}
        assert states == {member.id: ("alive", 2), consumer.member: ("alive", 2)}
        member.leave()
        member.release()
        until(lambda: found.extend(consumer.poll(timeout=0)) or len(consumer.assigned) == 4)
        assert [each.id for each in log.group("g").members] == [consumer.member]
        until(lambda: (consumer.poll(timeout=0) is not None and log.group("g").lag_records == 0) or consumer.commit())
    assert cursors(log) == dict.fromkeys(range(4), 10)


def test_an_offset_outside_of_the_partition_is_refused(log, member):
    member.poll()
    with pytest.raises(errors.OffsetOutOfRangeError, match="holds 0 up to 10"):
        member.commit_offsets({("t", 0): 11})
    with pytest.raises(errors.TopicNotFoundError):
        member.commit_offsets({("no", 0): 1})
    assert cursors(log) == dict.fromkeys(range(4))


def test_an_evicted_member_is_over(log, member):
    member.poll()
    log.evict_member("g", member.id)
    with pytest.raises(errors.PartitionLostError):
        member.commit_offsets({("t", 0): 1})
    with pytest.raises(errors.PartitionLostError):
        member.poll()


def test_a_member_that_does_not_poll_loses_its_partitions(log, member):
    member.poll()
    member.lock_file.heartbeat.polled -= 90.0
    member.lock_file.heartbeat._store(0, round(member.lock_file.heartbeat.polled * 1e6) << 1)
    with log.consumer("t", "g") as consumer:
        until(lambda: consumer.poll(timeout=0) is not None and len(consumer.assigned) == 4)
        with pytest.raises(errors.PartitionLostError, match="has not polled for"):
            member.commit_offsets({("t", 0): 1})
        with pytest.raises(errors.PartitionLostError, match="has not polled for"):
            member.poll()
