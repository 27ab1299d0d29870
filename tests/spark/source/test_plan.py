"""Ranges of offsets are cut into tasks of about one size, as many as are worth it or asked for."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from tailrace.bulk import ReadPart
from tailrace.spark import limits
from tailrace.spark.source import plan as planning
from tests.spark.plain import batch, expected, fill, places, tasks
from tests.tuning import limit


def part(first, stop, size=1_000, partition=0):
    """A part as planning sees it; the file does not exist."""
    return ReadPart("a", partition, "/none", 1, 0, 100, first, 2, 100 + size, 3, first, stop, 0)


def ranges(groups):
    return [[(part.first, part.stop) for part in group] for group in groups]


class TestBytes:
    """Parts are shared out by their sizes."""

    def test_the_same_for_each_task(self):
        parts = [part(at, at + 1) for at in range(8)]
        assert [len(group) for group in planning.by_bytes(parts, 4)] == [2, 2, 2, 2]
        assert planning.by_bytes(parts, 1) == [parts]

    def test_in_order_and_none_left_out(self):
        parts = [part(at, at + 1, size=size) for at, size in enumerate((5, 900, 1, 1, 300, 40, 2_000, 7))]
        for tasks_wanted in range(1, 12):
            groups = planning.by_bytes(parts, tasks_wanted)
            assert [each for group in groups for each in group] == parts
            assert all(groups)
            assert len(groups) <= tasks_wanted

    def test_a_large_part_has_a_task_of_its_own(self):
        parts = [part(0, 1, size=10), part(1, 2, size=10_000), part(2, 3, size=10)]
        assert ranges(planning.by_bytes(parts, 3)) == [[(0, 1)], [(1, 2)], [(2, 3)]]

    @pytest.mark.parametrize("parts", [[], [part(0, 5, size=0)]], ids=len)
    def test_nothing(self, parts):
        assert planning.by_bytes(parts, 4) == [[each] for each in parts]


class TestRecords:
    """Parts are cut where a task may have so many records."""

    def test_a_part_is_cut_into_pieces_of_the_most(self):
        assert ranges(planning.by_records([part(5, 12)], 3)) == [[(5, 8)], [(8, 11)], [(11, 12)]]

    def test_small_parts_share_a_task(self):
        parts = [part(0, 2), part(0, 2, partition=1), part(0, 2, partition=2)]
        assert ranges(planning.by_records(parts, 4)) == [[(0, 2), (0, 2)], [(0, 2)]]

    def test_only_the_last_piece_knows_the_checksums_at_its_end(self):
        groups = planning.by_records([part(0, 5)], 2)
        assert [group[0].stop_chain for group in groups] == [None, None, 3]
        # Each is read from the first frame of the part.
        assert {(group[0].position, group[0].offset) for group in groups} == {(100, 0)}

    def test_nothing(self):
        assert planning.by_records([], 5) == []


def test_a_task_is_shown_by_its_size():
    assert repr(planning.TailracePartition((part(5, 12), part(0, 3)))) == "<TailracePartition of 10 offsets>"


def test_the_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(planning.os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert planning.cores() == 3
    monkeypatch.delattr(planning.os, "sched_getaffinity")
    monkeypatch.setattr(planning.os, "cpu_count", lambda: None)
    assert planning.cores() == 1


class TestTasks:
    def test_one_huge_partition_is_read_by_many(self, log, path, monkeypatch):
        limit(monkeypatch, limits, second_task_bytes_min=100_000)
        monkeypatch.setattr(planning, "cores", lambda: 2)
        topic = log.topic("orders", segment_bytes="4MiB")
        for at in range(0, 60_000, 1_000):
            fill(topic, 1_000, size=100, first=at)
        made = tasks(path=path, subscribe="orders")
        sizes = [sum(part.bytes for part in task.parts) for task in made]
        assert len(made) == 4
        assert max(sizes) < 1.5 * min(sizes)
        assert places(batch(path=path, subscribe="orders")) == expected("orders", (0, range(60_000)))

    def test_many_small_partitions_are_one_task(self, log, path):
        topic = log.topic("orders", partitions=50)
        for partition in range(50):
            topic.append("x", partition=partition)
        (task,) = tasks(path=path, subscribe="orders")
        assert len(task.parts) == 50
        assert batch(path=path, subscribe="orders").num_rows == 50

    @pytest.mark.parametrize("least", [1, 3, 7, 40])
    def test_at_least_so_many(self, log, path, least):
        topic = log.topic("orders", partitions=3)
        for partition in range(3):
            fill(topic, 100, partition=partition)
        made = tasks(path=path, subscribe="orders", minPartitions=least)
        assert least <= len(made) <= 2 * least + 3
        assert places(batch(path=path, subscribe="orders", minPartitions=least)) == expected(
            "orders", *((partition, range(100)) for partition in range(3))
        )

    @pytest.mark.parametrize("most", [1, 7, 100, 1_000])
    def test_at_most_so_many_records(self, log, path, most):
        topic = log.topic("orders", partitions=2)
        for at in range(0, 120, 60):
            fill(topic, 60, first=at, partition=0)
            fill(topic, 60, first=at, partition=1)
        made = tasks(path=path, subscribe="orders", maxRecordsPerPartition=most)
        assert all(sum(planning.records_of(part) for part in task.parts) <= most for task in made)
        assert len(made) <= 2 * -(-240 // most) + 1
        assert places(batch(path=path, subscribe="orders", maxRecordsPerPartition=most)) == expected(
            "orders", (0, range(120)), (1, range(120))
        )

    def test_small_tasks_do_not_read_what_is_not_theirs(self, log, path):
        topic = log.topic("orders")
        for _ in range(400):
            topic.extend([b"x" * 100] * 100, durable=False)
        log.sync()
        made = tasks(path=path, subscribe="orders", maxRecordsPerPartition=250)
        whole = sum(part.bytes for task in tasks(path=path, subscribe="orders") for part in task.parts)
        # A part that is cut is walked from its beginning by each of its pieces.
        assert sum(part.bytes for task in made for part in task.parts) < 5 * whole

    @pytest.mark.parametrize(
        ("total", "wanted", "cores", "count"),
        [
            (0, None, 2, 1),
            (1, None, 2, 1),
            (5 << 20, None, 2, 2),
            (5 << 20, None, 8, 2),
            # A batch of a stream: a task for each core, and a second one only when there is enough for it.
            (13 << 20, None, 2, 2),
            (64 << 20, None, 2, 2),
            (65 << 20, None, 2, 3),
            (128 << 20, None, 2, 4),
            (1 << 30, None, 2, 4),
            (10 << 30, None, 2, 40),
            (10 << 20, 7, 2, 7),
            (10 << 30, 7, 2, 40),
        ],
    )
    def test_how_many(self, total, wanted, cores, count):
        assert planning.task_count(total, wanted, cores) == count

    def test_nothing_to_read_is_no_task(self, log, path):
        log.topic("orders", partitions=4)
        assert tasks(path=path, subscribe="orders") == []
        assert batch(path=path, subscribe="orders").num_rows == 0
