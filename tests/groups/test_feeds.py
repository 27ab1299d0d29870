"""Feeds: partitions that are read in turns, paused, and damaged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import tailrace
from tailrace import errors
from tests.consuming import fill, numbers


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


class TestPause:
    def test_and_resume(self, log):
        fill(log, "a", 2)
        fill(log, "b", 2)
        with log.consumer(["a", "b"], "g") as consumer:
            consumer.pause("a")
            assert {record.topic for record in consumer.poll(timeout=0)} == {"b"}
            assert len(consumer.poll(timeout=0)) == 0
            consumer.resume("a")
            assert {record.topic for record in consumer.poll(timeout=0)} == {"a"}

    def test_all(self, log):
        fill(log, "a", 2)
        fill(log, "b", 2)
        with log.consumer(["a", "b"], "g") as consumer:
            consumer.pause()
            assert len(consumer.poll(timeout=0)) == 0
            assert len(consumer.peek()) == 0
            consumer.resume("a")
            assert {record.topic for record in consumer.poll(timeout=0)} == {"a"}
            consumer.resume()
            assert {record.topic for record in consumer.poll(timeout=0)} == {"b"}

    def test_patterns_and_topics_that_come_later(self, log):
        with log.consumer("...", "g") as consumer:
            consumer.pause("logs.*")
            fill(log, "logs.a", 1)
            fill(log, "orders", 1)
            assert {record.topic for record in consumer.poll()} == {"orders"}
            assert len(consumer.poll(timeout=0)) == 0
            consumer.resume("logs.*")
            assert {record.topic for record in consumer.poll()} == {"logs.a"}

    def test_in_a_loop_what_was_read_ahead_waits_too(self, log):
        fill(log, "a", 5)
        fill(log, "b", 5)
        found = []
        with log.consumer(["a", "b"], "g", stop="now") as consumer:
            for record in consumer:
                if not found:
                    other = "b" if record.topic == "a" else "a"
                    consumer.pause(record.topic)
                found.append((record.topic, record.offset))
                if len(found) == 6:
                    assert {topic for topic, _ in found[1:]} == {other}
                    consumer.resume()
        assert sorted(found) == [(topic, offset) for topic in ("a", "b") for offset in range(5)]

    def test_a_paused_partition_still_belongs_to_the_consumer(self, log):
        fill(log, "t", 2)
        with log.consumer("t", "g") as consumer:
            consumer.peek()
            consumer.pause()
            assert consumer.assigned == [("t", 0)]
            assert consumer.lag().records == 2

    def test_nothing_ends_while_something_is_paused(self, log):
        fill(log, "t", 2)
        for stop in ("now", datetime.now(UTC)):
            with log.consumer("t", f"g{stop == 'now'}", stop=stop) as consumer:
                consumer.pause()
                assert len(consumer.poll(timeout=0.01)) == 0
                consumer.resume()
                assert numbers(consumer) == [0, 1]


class TestDamage:
    def test_one_damaged_partition_does_not_keep_the_others_from_being_read(self, log):
        log.topic("a").extend([b"x" * 100] * 100, durable=True)
        fill(log, "b", 3)
        (segment,) = (Path(log.location) / "topics").glob("*-a/0/*.seg")
        data = bytearray(segment.read_bytes())
        data[500:550] = b"\xff" * 50
        segment.write_bytes(data)
        found, damage = [], []
        with log.consumer(["a", "b"], "g") as consumer:
            for _ in range(6):
                try:
                    found += numbers(consumer.poll(timeout=0))
                except errors.CorruptionError as error:
                    damage.append(error)
            assert found == [0, 1, 2]
            assert {(error.topic, error.partition, error.first, error.last) for error in damage} == {("a", 0, 0, 99)}
            # Neither does it hide how far the group is, and the range that is lost can be stepped over.
            assert consumer.lag().records == 100
            assert log.group("g").lag_records == 103
            consumer.seek(100, topic="a")
            log.topic("a").append("3")
            assert numbers(consumer.poll()) == [3]
