"""The store: partitions by slot, descriptors that stay bounded, syncing, and a close that tells what was lost."""

from __future__ import annotations

import errno

import pytest

import tailrace
from tailrace.disk.tails import INCARNATION, word_of
from tailrace.errors import ClosedError, CorruptionError, DurabilityError, ReadOnlyError, TopicNotFoundError
from tests.consuming import descriptors
from tests.tuning import retune


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        log.topic("orders", partitions=3).append("a", partition=0)
        yield log


@pytest.fixture
def store(log):
    return log.engine.store


def entry(log):
    return log.engine.entry("orders")


def test_partitions_are_made_once_and_found_by_slot(log, store):
    topic = entry(log)
    made = [store.partition(slot, topic.id) for slot in topic.slots]
    assert [partition.index for partition in made] == [0, 1, 2]
    assert [store.partition(slot) for slot in topic.slots] == made
    assert [store.locate(slot) for slot in topic.slots] == made


def test_a_slot_of_another_topic_is_not_given(log, store):
    topic = entry(log)
    with pytest.raises(TopicNotFoundError):
        store.partition(topic.slots[0], topic.id + 1)
    log.topic("orders").drop()
    with pytest.raises(TopicNotFoundError):
        store.partition(topic.slots[0])
    assert store.locate(topic.slots[0]) is None
    assert store.is_dropped(topic.slots[0], topic.id)


def test_settings_that_change_reach_a_partition_at_its_next_use(log, store):
    topic = entry(log)
    partition = store.partition(topic.slots[0], topic.id)
    log.topic("orders").alter(segment_bytes="8KiB")
    assert store.partition(topic.slots[0], topic.id) is partition
    assert partition.segment_bytes == 8 << 10


def test_the_catalog_is_followed_when_its_end_moves(log, store):
    before = store.catalog.offset
    assert store.refresh() is store.catalog
    with tailrace.open(log.location) as other:
        other.topic("more", partitions=1)
    assert store.refresh().offset > before
    assert "more" in store.catalog.by_name


def test_a_slot_that_was_cleared_is_damage_and_no_empty_partition(log, store):
    topic = entry(log)
    partition = store.partition(topic.slots[1], topic.id)
    store.reader(partition).close()
    store.tails.words[word_of(partition.slot) + INCARNATION] = 0
    with pytest.raises(CorruptionError, match="the catalog says that it was not") as caught:
        store.reader(partition)
    assert (caught.value.topic, caught.value.partition) == ("orders", 1)
    store.tails.words[word_of(partition.slot) + INCARNATION] = partition.incarnation


def test_partitions_that_were_opened_longest_ago_are_closed(log):
    retune(log, open_partitions_max=2)
    topic, store = log.topic("many", partitions=8), log.engine.store
    before = descriptors()
    for partition in range(8):
        topic.append("x", partition=partition)
    assert len(store.opened) == 2
    assert [partition.index for partition in store.opened.values()] == [6, 7]
    assert descriptors() <= before + 4


def test_a_flush_makes_everything_safe(log, store):
    topic = entry(log)
    partition = store.partition(topic.slots[0], topic.id)
    log.topic("orders").append("b", partition=0)
    store.flush()
    assert partition.safe == partition.end == 2


def test_a_sync_that_failed_is_told_by_every_sync_and_by_the_close(tmp_path, tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    topic.append("a")
    tailrace_faults.fail_sync(errno=errno.EIO)
    with pytest.raises(DurabilityError):
        topic.append("b", durable=True)
    store = tailrace_log.engine.store
    with pytest.raises(DurabilityError, match="a sync failed there earlier"):
        store.sync()
    assert all(partition.failed for partition in store.opened.values() if partition.topic_id)


def test_a_closed_store_refuses_and_gives_everything_back(tmp_path):
    tailrace.open(tmp_path / "log").close()
    before = descriptors()
    with tailrace.open(tmp_path / "log", durable=False) as log:
        log.topic("orders").append("a")
        store = log.engine.store
    assert descriptors() == before
    with pytest.raises(ClosedError):
        store.check_writable()
    store.close()


def test_a_store_that_only_reads_refuses_to_write(tmp_path):
    tailrace.open(tmp_path / "log").close()
    with tailrace.open(tmp_path / "log", "r") as reading, pytest.raises(ReadOnlyError):
        reading.engine.store.check_writable()
