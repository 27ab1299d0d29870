"""Fetcher: batches of poll, what peek shows, and the waits between them."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

import tailrace
from tests.consuming import cursor, fill, numbers


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


class TestPoll:
    def test_a_batch(self, log):
        fill(log, "t", 1_000)
        with log.consumer("t", "g", stop="now") as consumer:
            batch = consumer.poll()
            assert isinstance(batch, tailrace.Batch)
            assert numbers(batch) == list(range(500))
            assert numbers(consumer.poll(10)) == list(range(500, 510))
            assert numbers(consumer.poll(10_000)) == list(range(510, 1_000))
            assert not consumer.poll()
        assert cursor(log) == 1_000

    def test_the_loop_of_the_documentation(self, log):
        fill(log, "t", 100)
        found = []
        with log.consumer("t", "g", stop="now") as consumer:
            while batch := consumer.poll(7):
                found += numbers(batch)
        assert found == list(range(100))

    def test_arrow(self, log):
        pytest.importorskip("pyarrow")
        fill(log, "t", 100)
        log.topic("t").append("alone", key="k")
        with log.consumer("t", "g", stop="now") as consumer:
            table = consumer.poll(30).to_arrow()
            assert table["offset"].to_pylist() == list(range(30))
            rest = consumer.poll().to_arrow()
            assert rest["value"].to_pylist()[-1] == b"alone"
            assert consumer.poll().to_arrow().num_rows == 0

    def test_max_bytes(self, log):
        log.topic("t").extend([b"x" * 1_000] * 100)
        with log.consumer("t", "g") as consumer:
            assert len(consumer.poll(max_bytes=10_000)) == 10
            assert len(consumer.poll(max_bytes="5kB")) == 5
            # One record at least, however large it is.
            assert len(consumer.poll(max_bytes=1)) == 1
            assert len(consumer.poll(3, max_bytes="1MB")) == 3
            assert consumer.poll(1)[0].offset == 19

    def test_max_bytes_over_partitions(self, log):
        topic = log.topic("t", partitions=4)
        for partition in range(4):
            topic.extend([b"x" * 1_000] * 10, partition=partition)
        found = []
        with log.consumer("t", "g", stop="now") as consumer:
            while batch := consumer.poll(max_bytes=3_500):
                assert len(batch) == 3 or len(found) > 30
                found += [(record.partition, record.offset) for record in batch]
        assert sorted(found) == [(partition, offset) for partition in range(4) for offset in range(10)]

    def test_timeout(self, log):
        log.topic("t", partitions=1)
        with log.consumer("t", "g") as consumer:
            for timeout, least in ((0, 0.0), (0.05, 0.05), ("60ms", 0.06), (timedelta(milliseconds=20), 0.02)):
                began = time.monotonic()
                assert len(consumer.poll(timeout=timeout)) == 0
                assert least <= time.monotonic() - began < least + 2

    @pytest.mark.parametrize(
        ("arguments", "kind"),
        [
            ({"max_records": 0}, ValueError),
            ({"max_records": -1}, ValueError),
            ({"max_records": "5"}, TypeError),
            ({"max_records": 2.5}, TypeError),
            ({"max_bytes": -1}, ValueError),
            ({"max_bytes": "many"}, ValueError),
            ({"timeout": -1}, ValueError),
            ({"timeout": "5"}, ValueError),
            ({"timeout": "soon"}, ValueError),
        ],
    )
    def test_wrong_arguments(self, log, arguments, kind):
        fill(log, "t", 1)
        with log.consumer("t", "g") as consumer:
            with pytest.raises(kind, match=next(iter(arguments))):
                consumer.poll(**arguments)
            assert consumer.member is None
            assert len(consumer.poll()) == 1


class TestPeek:
    def test_moves_nothing(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g") as consumer:
            assert numbers(consumer.peek()) == [0]
            assert numbers(consumer.peek(3)) == [0, 1, 2]
            assert consumer.lag().records == 10
            assert numbers(consumer.poll(2)) == [0, 1]
            assert numbers(consumer.peek(2)) == [2, 3]
            assert next(consumer).offset == 2
            assert numbers(consumer.peek(2)) == [3, 4]
            assert next(consumer).offset == 3
        assert cursor(log) == 3

    def test_of_several_partitions_gives_the_same_again(self, log):
        topic = log.topic("t", partitions=3)
        for partition in range(3):
            topic.append(str(partition), partition=partition)
        with log.consumer("t", "g", stop="now") as consumer:
            first = numbers(consumer.peek(2))
            assert numbers(consumer.peek(2)) == first
            assert numbers(consumer.poll(2)) == first
            assert sorted([*first, *numbers(consumer)]) == [0, 1, 2]

    def test_does_not_wait_and_stores_nothing(self, log):
        log.topic("t", partitions=1)
        with log.consumer("t", "g", commit="before") as consumer:
            assert len(consumer.peek(5)) == 0
            fill(log, "t", 3)
            assert numbers(consumer.peek(5)) == [0, 1, 2]
        assert cursor(log) is None

    def test_the_same_again_when_records_went_meanwhile(self, log):
        """A partition that fails is asked again, and its turn stays its turn."""
        topic = log.topic("t", partitions=3)
        for partition in range(3):
            topic.extend(["a", "b", "c", "d"], partition=partition)
        with log.consumer("t", "g", commit="manual", on_lost="earliest") as consumer:
            consumer.peek()
            for partition in range(3):
                topic.trim(2, partition=partition)
            first = [(record.partition, record.offset) for record in consumer.peek(2)]
            assert first == [(first[0][0], 2), (first[0][0], 3)]
            assert [(record.partition, record.offset) for record in consumer.peek(2)] == first
            assert [(record.partition, record.offset) for record in consumer.poll(2)] == first

    def test_nothing_of_a_topic_that_was_dropped(self, log):
        fill(log, "t", 6)
        with log.consumer("t", "g", commit="manual") as consumer:
            assert numbers(consumer.poll(1)) == [0]
            log.topic("t").drop()
            assert numbers(consumer.peek(3)) == []
            assert (consumer.lag().records, consumer.assigned) == (0, [])
            with pytest.raises(ValueError, match="no such partition"):
                consumer.seek("earliest")

    def test_who_only_peeked_begins_at_the_earliest_record(self, log):
        fill(log, "t", 6)
        with log.consumer("t", "g") as consumer:
            consumer.peek(4)
            log.topic("t").trim(3)
            assert numbers(consumer.poll(timeout=0)) == [3, 4, 5]
            assert consumer.lost == []

    def test_wrong_count(self, log):
        with log.consumer("t", "g") as consumer, pytest.raises(ValueError, match="max_records"):
            consumer.peek(0)
