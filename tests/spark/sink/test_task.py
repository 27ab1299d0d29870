"""Segments that are written while a task is still at work: in order, few, and gone when the task fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

import tailrace
from tailrace import testing
from tailrace.bulk import StagedPart
from tailrace.errors import StorageError
from tailrace.spark import handles, limits
from tailrace.spark.sink import task as staging
from tests.spark.tasks import Job, context
from tests.tuning import limit

PARTITIONS = 4
COUNT = 20_000


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        opened.topic("a", partitions=PARTITIONS)
        yield opened
    handles.close_all()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Everything happens a thousand times sooner than in earnest."""
    limit(monkeypatch, limits, gathered_bytes_max=50_000, write_bytes_min=5_000, message_bytes_max=1_000)


def job(log, **options):
    return Job("value string, key string", path=log.location, topic="a", **options)


def table(count=COUNT):
    numbers = [str(number) for number in range(count)]
    return pa.table({"value": numbers, "key": [f"key {number}" for number in numbers]})


def batches(count=COUNT):
    return table(count).to_batches(max_chunksize=1_000)


def check(log, count=COUNT):
    found = {
        partition: [int(record.text) for record in log.topic("a").read(partition=partition)]
        for partition in range(PARTITIONS)
    }
    assert all(some == sorted(some) for some in found.values())
    assert sorted(number for some in found.values() for number in some) == [*range(count)]


def staged_files(log):
    return sorted(Path(log.location).rglob("*.staged"))


def test_each_partition_has_one_segment_however_often_frames_were_written(log):
    write = job(log)
    message = write.task(table())
    assert sorted(part.partition for part in message.parts) == [*range(PARTITIONS)]
    assert all(isinstance(part, StagedPart) for part in message.parts)
    write.commit([message])
    check(log)
    assert staged_files(log) == []


def test_a_segment_that_is_large_enough_is_followed_by_another(log, monkeypatch):
    limit(monkeypatch, limits, segment_bytes=40_000)
    write = job(log)
    message = write.task(table())
    assert len(message.parts) > 2 * PARTITIONS
    write.commit([message])
    check(log)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_others_wait_when_so_many_segments_are_being_written(log, monkeypatch, most):
    limit(monkeypatch, limits, segments_max=most, task_bytes_max=120_000)
    open_at_once = 0
    real = staging.Staging.spill

    def spill(self, task):
        nonlocal open_at_once
        real(self, task)
        open_at_once = max(open_at_once, len(self._growing))

    monkeypatch.setattr(staging.Staging, "spill", spill)
    write = job(log, query="q")
    for _ in range(2):
        write.run(table(), batch=0)
    assert open_at_once == most
    check(log)
    assert staged_files(log) == []


def test_a_task_that_fails_leaves_no_file_and_no_descriptor(log):
    writer = job(log).plan()
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None

    def failing():
        yield from batches()
        assert len(staged_files(log)) == PARTITIONS
        raise ZeroDivisionError

    with context(0, None, 0), pytest.raises(ZeroDivisionError):
        writer.write(failing())
    assert staged_files(log) == []
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= len(before)


@pytest.mark.parametrize("point", ["write", "sync"])
def test_a_disk_that_fails_in_the_middle_leaves_nothing(tmp_path, point):
    with testing.steered() as steered:
        with tailrace.open(tmp_path / "log") as log:
            log.topic("a", partitions=PARTITIONS)
            writer = job(log).plan()

            def failing():
                given = batches()
                yield from given[:10]
                assert staged_files(log)
                (steered.faults.fail_write if point == "write" else steered.faults.fail_sync)(topic="a")
                yield from given[10:]

            with context(0, None, 0), pytest.raises(StorageError):
                writer.write(failing())
            assert staged_files(log) == []
        handles.close_all()
