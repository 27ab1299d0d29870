"""Topics as engines plan for them: found again only when the catalog changed, and never mistaken for another log's."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from tailrace import bulk
from tailrace.bulk import Frames, TopicShape
from tailrace.disk.writer import Writer
from tailrace.errors import SchemaError


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


SCHEMA = {"type": "integer"}


class TestSchema:
    """Frames for a topic with a schema: checked when they are built, refused if they were not."""

    @pytest.fixture
    def topic(self, log):
        return log.topic("orders", partitions=2, schema=SCHEMA)

    def refused(self, log, parts, said):
        with pytest.raises(SchemaError, match=said) as caught:
            bulk.commit(log, parts)
        assert (caught.value.index, caught.value.field) == (None, None)
        assert log.topic("orders").read().count() == 0

    def test_what_was_not_checked_is_refused(self, log, topic):
        frames = bulk.build([b"1"])
        self.refused(log, [bulk.InlinePart("orders", 0, frames)], "were not checked with the schema of the topic")
        self.refused(log, [bulk.InlinePart("orders", 0, Frames.from_bytes(frames.to_bytes()))], "not checked")
        with pytest.raises(SchemaError, match="not checked"):
            bulk.stage(log, "orders", 0, frames)
        writer = bulk.PartWriter(log.location, "orders", bulk.find_topic(log, "orders").id, 1)
        writer.add(frames)
        part = writer.finish()
        self.refused(log, [part], "not checked")
        assert bulk.abandon(log, [part]) == 1

    def test_values_are_checked_when_frames_are_built(self, log, topic):
        shape = bulk.find_topic(log, "orders")
        assert shape.schema == (1, '{"type":"integer"}')
        with pytest.raises(SchemaError) as caught:
            bulk.build([b"1", b"x"], shape=shape)
        assert caught.value.index == 1
        with pytest.raises(SchemaError):
            bulk.build(pa.array([b"1", b"1.5"]), shape=shape)
        with pytest.raises(SchemaError):
            bulk.build_runs(pa.array([b"1", b"x"]), None, None, None, [1, 2], shape=shape)
        with pytest.raises(SchemaError):
            bulk.FrameBuilder(shape=shape).extend([b"x"])
        runs = bulk.build_runs(pa.array([b"3", b"4"]), None, None, None, [1, 2], shape=shape)
        builder = bulk.FrameBuilder("zstd", shape=shape)
        builder.extend([b"5", None])
        far = pickle.loads(pickle.dumps(bulk.build([b"1", b"2"], shape=shape)))
        assert far.checked == (frozenset({1}), shape.id)
        staged = bulk.stage(log, "orders", 1, runs[0])
        writer = bulk.PartWriter(log.location, "orders", shape.id, 1)
        writer.add(runs[1])
        parts = [
            staged,
            pickle.loads(pickle.dumps(writer.finish())),
            bulk.InlinePart("orders", 0, far + builder.finish()),
        ]
        assert bulk.commit(log, parts).applied
        assert sorted(record.value or b"" for record in log.topic("orders").read()) == [
            b"",
            b"1",
            b"2",
            b"3",
            b"4",
            b"5",
        ]

    def test_frames_of_another_version_or_topic(self, log, topic):
        shape = bulk.find_topic(log, "orders")
        frames = bulk.build([b"1"], shape=shape)
        staged = bulk.stage(log, "orders", 0, frames)
        topic.alter(schema={"type": "number"})
        self.refused(log, [bulk.InlinePart("orders", 0, frames)], "not checked with version 2 of the schema")
        self.refused(log, [staged], "not checked with version 2")
        log.topic("others", schema={"type": "string"})
        other = bulk.build([b'"x"'], shape=bulk.find_topic(log, "others"))
        topic.alter(schema=None)
        topic.drop()
        log.topic("orders", partitions=2, schema=SCHEMA)
        self.refused(log, [bulk.InlinePart("orders", 0, other)], "checked with the schema of another topic")
        mixed = other + bulk.build([b"1"], shape=bulk.find_topic(log, "orders"))
        self.refused(log, [bulk.InlinePart("orders", 0, mixed)], "another topic")
        builder = bulk.FrameBuilder()
        builder.add(bulk.build([b"1"], shape=bulk.find_topic(log, "orders")))
        builder.add(other)
        self.refused(log, [bulk.InlinePart("orders", 0, builder.finish())], "another topic")
        bulk.commit(log, [bulk.InlinePart("orders", 0, bulk.build([b"1"], shape=bulk.find_topic(log, "orders")))])

    def test_a_batch_that_was_decided_before_is_delivered(self, log, topic):
        frames = bulk.build([b"1"], shape=bulk.find_topic(log, "orders"))
        topic.alter(schema={"type": "string"})
        assert bulk.commit(log, [bulk.InlinePart("orders", 0, frames)], decided=True).applied

    def test_a_topic_without_a_schema_takes_all(self, log, topic):
        frames = bulk.build([b"1"], shape=bulk.find_topic(log, "orders"))
        log.topic("plain", partitions=1)
        assert bulk.build([b"x"], shape=bulk.find_topic(log, "plain")).checked == (frozenset({0}), None)
        bulk.commit(log, [bulk.InlinePart("plain", 0, frames + bulk.build([b"x"]))])
        topic.alter(schema=None)
        assert bulk.find_topic(log, "orders").schema is None
        bulk.commit(log, [bulk.InlinePart("orders", 0, bulk.build([b"x"]))])

    @pytest.mark.parametrize("size", [1, 300_000], ids=["inline", "segments"])
    def test_a_schema_that_comes_between_the_check_and_the_commit(self, log, monkeypatch, size):
        """What was not checked is not published after alter() has returned."""
        topic = log.topic("orders", partitions=2)
        parts = [bulk.InlinePart("orders", index, bulk.build([b"%0*d" % (size, 1)] * 4)) for index in range(2)]
        transact, done = Writer.transact, []

        def late(self, writes):
            if not done:
                done.append(True)
                topic.alter(schema={"type": "string"})
            return transact(self, writes)

        monkeypatch.setattr(Writer, "transact", late)
        self.refused(log, parts, "not checked with the schema")
        assert log.verify().damage == ()
        assert not list(Path(log.location).glob("topics/*/*/*.staged"))

    @pytest.mark.parametrize("size", [1, 300_000], ids=["inline", "segments"])
    def test_another_change_of_the_catalog_meanwhile(self, log, monkeypatch, size):
        log.topic("texts", partitions=2, schema={"type": "string"})
        frames = bulk.build([b'"%0*d"' % (size, 1)] * 4, shape=bulk.find_topic(log, "texts"))
        transact, done = Writer.transact, []

        def late(self, writes):
            if not done:
                done.append(True)
                log.topic("others", partitions=1)
            return transact(self, writes)

        monkeypatch.setattr(Writer, "transact", late)
        parts = [bulk.InlinePart("texts", index, frames) for index in range(2)]
        assert bulk.commit(log, parts, ("job", 1)).applied
        assert log.topic("texts").read().count() == 8
        assert log.verify().damage == ()
        assert not list(Path(log.location).glob("topics/*/*/*.staged"))
