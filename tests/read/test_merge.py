"""Merge: the last records, the newest first, and several partitions by time."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace

TIME = 1_700_000_000_000_000


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


def numbered(topic, count, frame=7, partition=0, time=TIME, step=1, first=0):
    """Append `count` records with their number as value, `frame` at a time, one `step` of microseconds apart."""
    for at in range(first, first + count, frame):
        numbers = range(at, min(at + frame, first + count))
        topic.extend(
            [str(number) for number in numbers],
            timestamps=[time + number * step for number in numbers],
            partition=partition,
        )


def values(scan):
    return [int(record.value) for record in scan]


class TestOrder:
    def test_last_counts_over_all_partitions_and_gives_log_order(self, log):
        topic = log.topic("orders", partitions=3)
        numbered(topic, 30, partition=0, step=10)
        numbered(topic, 30, partition=1, step=10, time=TIME + 3)
        numbered(topic, 5, partition=2, step=10, time=TIME - 10_000)
        last = list(topic.read(last=5))
        assert [(record.partition, record.offset) for record in last] == [(0, 28), (0, 29), (1, 27), (1, 28), (1, 29)]
        merged = list(topic.read(last=5, order="time"))
        assert [record.timestamp_us for record in merged] == sorted(record.timestamp_us for record in last)
        assert list(topic.read(last=5, order="time", reverse=True)) == merged[::-1]
        assert topic.read(last=5).count() == 5
        assert values(topic.read(last=0)) == []
        assert len(list(topic.read(last=1000))) == 65

    def test_many_last_records_of_one_partition(self, log):
        topic = log.topic("orders")
        numbered(topic, 30_000, frame=1_000)
        assert values(topic.read(last=25_000)) == [*range(5_000, 30_000)]

    def test_reverse(self, log):
        topic = log.topic("orders", segment_bytes=4096)
        numbered(topic, 500)
        backwards = [*range(500)][::-1]
        assert values(topic.read(reverse=True)) == backwards
        assert values(topic.read(reverse=True, limit=9)) == backwards[:9]
        assert values(topic.read(10, 20, reverse=True)) == [*range(10, 20)][::-1]
        assert [int(record.value) for batch in topic.read(reverse=True).batches(40) for record in batch] == backwards
        table = topic.read(reverse=True, limit=100).to_arrow()
        assert table.column("offset").to_pylist() == backwards[:100]

    @given(st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), max_size=6), min_size=1, max_size=4))
    def test_by_time_is_the_merge_of_the_partitions(self, tmp_path_factory, runs):
        """Against a model: repeatedly the head with the smallest (timestamp, partition), over unsorted partitions."""
        with tailrace.open(tmp_path_factory.mktemp("log"), durable=False) as log:
            topic = log.topic("orders", partitions=len(runs))
            for partition, frames in enumerate(runs):
                for time, count in frames:
                    times = [TIME + (time * 3 + at * 2) % 7 for at in range(count)]
                    topic.extend([b"v"] * count, timestamps=times, partition=partition)
            queues = [[*topic.read(partition=partition)] for partition in range(len(runs))]
            expected = []
            while any(queues):
                queue = min(
                    (queue for queue in queues if queue), key=lambda queue: (queue[0].timestamp_us, queue[0][1])
                )
                expected.append(queue.pop(0))
            assert list(topic.read(order="time")) == expected
            assert [record for batch in topic.read(order="time").batches(3) for record in batch] == expected
            table = topic.read(order="time").to_arrow()
            places = zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True)
            assert [*places] == [(record.partition, record.offset) for record in expected]

    def test_by_time_newest_first(self, log):
        topic = log.topic("orders", partitions=2)
        numbered(topic, 100, partition=0, step=2, frame=9)
        numbered(topic, 100, partition=1, step=2, time=TIME + 1, frame=4)
        forward = list(topic.read(order="time"))
        assert [record.timestamp_us for record in forward] == [*range(TIME, TIME + 200)]
        assert list(topic.read(order="time", reverse=True)) == forward[::-1]
        table = topic.read(order="time", reverse=True, limit=30).to_arrow()
        assert table.column("timestamp").to_pylist() == [record.timestamp for record in forward[::-1][:30]]

    def test_turned_batches_keep_keys_headers_and_nulls(self, log):
        topic = log.topic("orders")
        topic.extend(
            [b"a", None, b"", b"d"], keys=[b"1", b"2", None, b"4"], headers=[{"x": b"1"}, {}, None, {"y": b"2"}]
        )
        expected = [*topic.read()][::-1]
        (batch,) = topic.read(reverse=True).batches()
        assert [*batch] == expected
        assert batch.to_arrow().column("value").to_pylist() == [b"d", b"", None, b"a"]
        assert batch.to_arrow().column("key").to_pylist() == [b"4", None, b"2", b"1"]

    def test_more_partitions_than_descriptors_for_them(self, log):
        topic = log.topic("wide", partitions=150)
        before = len(os.listdir("/proc/self/fd"))
        for partition in range(150):
            numbered(topic, 4, partition=partition, frame=2, time=TIME + partition, step=1_000)
        times = [record.timestamp_us for record in topic.read(order="time")]
        assert times == sorted(times)
        assert len(times) == 600
        assert len(os.listdir("/proc/self/fd")) - before < 400
