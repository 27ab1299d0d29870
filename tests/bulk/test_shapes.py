"""Topics as engines plan for them: found again only when the catalog changed, and never mistaken for another log's."""

from __future__ import annotations

import shutil

import pytest

import tailrace
from tailrace import bulk
from tailrace.bulk import TopicShape


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


def test_the_shape_of_a_topic(log):
    log.topic("plain", partitions=1)
    log.topic("orders", partitions=6, partitioner="murmur2", compress="zstd", max_record_bytes=1_000)
    found = bulk.topics(log)
    assert set(found) == {"plain", "orders"}
    assert found["orders"] == TopicShape(bulk.find_topic(log, "orders").id, 6, "murmur2", "zstd", 1_000)
    assert found["plain"].id != found["orders"].id
    assert bulk.find_topic(log, "nothing") is None


def test_internal_topics_are_found_by_name_only(log):
    bulk.InternalTopic(log, "__own", 2, 1 << 20).create()
    assert bulk.topics(log) == {}
    assert bulk.find_topic(log, "__own").partitions == 2


def test_the_same_mapping_until_a_topic_changes(log):
    log.topic("a", partitions=1)
    first = bulk.topics(log)
    log.topic("a").append("x")
    assert bulk.topics(log) is first
    log.topic("a", partitions=3, alter=True)
    assert bulk.topics(log)["a"].partitions == 3
    assert first["a"].partitions == 1
    log.topic("a").drop()
    assert bulk.topics(log) == {}


def test_another_log_at_the_same_path(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("a", partitions=1)
        assert bulk.topics(log)["a"].partitions == 1
        before = bulk.log_id(log)
    shutil.rmtree(tmp_path / "log")
    with tailrace.open(tmp_path / "log") as log:
        log.topic("a", partitions=5)
        assert bulk.topics(log)["a"].partitions == 5
        assert bulk.log_id(log) != before


def test_the_hash_decides_where_a_key_goes(log):
    for partitioner in ("crc32", "murmur2"):
        topic = log.topic(partitioner, partitions=7, partitioner=partitioner)
        keys = [b"key-%d" % number for number in range(50)]
        topic.extend(keys, keys=keys)
        hashed = bulk.key_hash(partitioner)
        assert {record.key: record.partition for record in topic.read()} == {key: hashed(key) % 7 for key in keys}
