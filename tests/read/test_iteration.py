"""Iteration: one pass over a scan, under trims, drops, other threads, forks and closes."""

from __future__ import annotations

import os
import threading

import pytest

import tailrace
from tailrace.errors import (
    ClosedError,
    ForkedError,
    OffsetOutOfRangeError,
    ThreadError,
    TopicNotFoundError,
)

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


class TestTrimAndDrop:
    def test_a_trim_before_the_first_record_moves_the_beginning(self, log):
        topic = log.topic("orders", segment_bytes=4096)
        numbered(topic, 1_000, frame=50)
        scan = topic.read()
        batches = scan.batches(max_records=50)
        topic.trim(500)
        assert next(iter(batches))[0].offset == 500

    def test_a_trim_under_a_reader_raises_rather_than_skips(self, log):
        topic = log.topic("orders", segment_bytes=4096)
        numbered(topic, 5_000, frame=50)
        iterator = iter(topic.read())
        next(iterator)
        topic.trim(4_500)
        with pytest.raises(OffsetOutOfRangeError):
            list(iterator)

    def test_a_dropped_topic(self, log):
        topic = log.topic("orders", segment_bytes=4096)
        numbered(topic, 5_000, frame=50)
        iterator = iter(topic.read())
        next(iterator)
        topic.drop()
        with pytest.raises(TopicNotFoundError, match="dropped"):
            list(iterator)


class TestThreadsForksAndClosing:
    @pytest.mark.parametrize("follow", [False, True])
    def test_an_iteration_that_was_left_holds_no_file_open(self, log, follow):
        topic = log.topic("orders", segment_bytes=4096)
        numbered(topic, 2_000, frame=50)
        before = len(os.listdir("/proc/self/fd"))
        scan = topic.read(follow=follow)
        for record in scan:
            if record.offset == 700:
                break
        assert len(os.listdir("/proc/self/fd")) == before
        assert scan.positions == {("orders", 0): 701}
        assert scan.first().offset == 0
        assert len(os.listdir("/proc/self/fd")) == before

    def test_through_mapped_memory(self, log):
        topic = log.topic("orders", segment_bytes=4096)
        numbered(topic, 2_000, frame=50)
        with tailrace.open(log.location, io="mmap") as mapped:
            twin = mapped.topic("orders")
            assert values(twin.read()) == [*range(2_000)]
            assert twin.read().to_arrow() == topic.read().to_arrow()
            assert values(twin.read(reverse=True)) == [*range(2_000)][::-1]

    def test_two_threads_at_once(self, log):
        topic = log.topic("orders")
        topic.append("1")
        iterator = iter(topic.read(follow=True, timeout=30))
        assert next(iterator).value == b"1"
        found = []
        thread = threading.Thread(target=lambda: found.append(next(iterator)))
        thread.start()
        iteration = iterator._iteration
        while not iteration.mutex.locked():
            thread.join(0.001)
        with pytest.raises(ThreadError):
            next(iterator)
        topic.append("2")
        thread.join(10)
        assert [record.value for record in found] == [b"2"]

    def test_a_forked_child_may_not_go_on_with_an_iterator(self, log):
        topic = log.topic("orders")
        numbered(topic, 50)
        log.sync()
        scan = topic.read()
        iterator, batches = iter(scan), scan.batches(5)
        next(iterator), next(batches)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            told = b""
            for forked in (iterator, batches):
                try:
                    next(forked)
                    told += b"read "
                except ForkedError:
                    told += b"forked "
            try:
                told += str(len(list(scan))).encode()
            finally:
                os.write(writing, told)
                os._exit(0)
        os.waitpid(child, 0)
        told = os.read(reading, 100)
        os.close(reading), os.close(writing)
        assert told == b"forked forked 50"
        assert next(iterator).value == b"1"

    def test_a_closed_log(self, tmp_path):
        log = tailrace.open(tmp_path / "log", durable=False)
        topic = log.topic("orders", segment_bytes=4096)
        numbered(topic, 5_000, frame=50)
        scan = topic.read()
        iterator = iter(scan)
        next(iterator)
        log.close()
        with pytest.raises(ClosedError):
            list(iterator)
        with pytest.raises(ClosedError):
            list(scan)
