"""The flusher beside somebody who appends without a pause: it gets the lock, and costs nothing where it does not."""

from __future__ import annotations

import threading
import time

import pytest

import tailrace
from tailrace.disk.files import Files
from tailrace.disk.partition import Partition
from tailrace.errors import LockedError


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        log.topic("orders").append("first")
        log.engine.store.flusher.stop()
        yield log


@pytest.fixture
def partition(log):
    return log.engine.partition(log.engine.find("orders"), 0)


def test_a_flush_that_finds_the_lock_taken_leaves_the_writer_what_it_knows(log, partition, monkeypatch):
    """Else every record that is not on disk yet would be read and checked again by the next append."""
    loads = []
    monkeypatch.setattr(Partition, "_check_tail", lambda self: loads.append(self.path))
    store = log.engine.store
    caught: list[BaseException] = []

    def flush() -> None:
        try:
            store.flush(0.01)
        except BaseException as error:  # noqa: BLE001  # looked at below
            caught.append(error)

    partition.enter()
    other = threading.Thread(target=flush)
    other.start()
    other.join()
    partition.leave()
    assert [type(error) for error in caught] == [LockedError]
    seen = partition.seen
    log.topic("orders").append("second")
    assert loads == []
    assert partition.seen is seen
    assert seen.position == partition.state.position


def test_an_append_gives_way_to_a_flush_that_waits(log, partition, monkeypatch):
    """A mutex is not fair: who has just let go of it has it back before the one who waits is awake."""
    slept = []

    def sleep(self: Files, seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            partition.lock.wanted = False

    monkeypatch.setattr(Files, "sleep", sleep)
    log.topic("orders").append("at once")
    assert slept == []
    partition.lock.wanted = True
    log.topic("orders").append("after a while")
    assert len(slept) == 3
    # A flush that does not come any more, because its thread was stopped, holds nobody up for long.
    partition.lock.wanted = True
    slept[:] = [0.0] * 3
    log.topic("orders").append("all the same")
    assert 0 < sum(slept) < 0.02


def test_a_flush_says_that_it_waits_and_takes_it_back(log, partition):
    partition.enter()
    other = threading.Thread(target=log.engine.store.flush)
    other.start()
    end = time.monotonic() + 20
    while not partition.lock.wanted and time.monotonic() < end:
        time.sleep(0.001)
    assert partition.lock.wanted
    partition.leave()
    other.join()
    assert not partition.lock.wanted
    assert partition.safe == partition.end == 1


@pytest.mark.parametrize("ends", ["refused", "interrupted"])
def test_a_flush_that_fails_takes_it_back_as_well(log, partition, monkeypatch, ends):
    error = {"refused": OSError(5, "refused"), "interrupted": KeyboardInterrupt()}[ends]

    def fail(self: Partition, after: object = None) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "sync", fail)
        with pytest.raises((tailrace.errors.StorageError, KeyboardInterrupt)):
            log.engine.store.flush()
    assert not partition.lock.wanted


def test_what_a_busy_writer_appends_comes_to_disk(tmp_path):
    """While it never pauses."""
    with tailrace.open(tmp_path / "log", durable=False) as log:
        topic = log.topic("orders")
        topic.append("x")
        partition = log.engine.partition(log.engine.find("orders"), 0)
        end = time.monotonic() + 60
        moved = {partition.safe}
        while len(moved) < 4 and time.monotonic() < end:
            for _ in range(100):
                topic.append("x")
            moved.add(partition.safe)
        assert len(moved) == 4


def test_a_descriptor_stays_until_what_was_written_through_it_is_on_disk(log, partition):
    """A system that fails to write back tells it to whoever had the file open then, and to nobody else."""
    descriptor = partition.descriptor
    assert not partition.retire()
    assert partition.descriptor == descriptor >= 0
    log.engine.store.flush()
    assert partition.retire()
    assert partition.descriptor < 0
    assert log.topic("orders").append("second").offset == 1
