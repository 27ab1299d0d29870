"""Background thread: rounds of retention by themselves, in one process at a time."""

from __future__ import annotations

import threading
import time

import pytest

import tailrace
from tailrace import errors
from tailrace.disk import admin as admins
from tests.processes import in_fork, run, start
from tests.vacuuming import HOUR, bases, clock, fill, log, size, tune

__all__ = ["clock", "log", "tune"]


def eventually(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


# Those of logs that other tests have left open in this process.
others: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _count_threads_from_here():
    others.clear()
    others.update(vacuum_threads())


def vacuum_threads() -> list[threading.Thread]:
    running = [thread for thread in threading.enumerate() if thread.name == "tailrace-vacuum"]
    return [thread for thread in running if thread not in others]


def test_it_happens_by_itself(tmp_path, clock, tune):
    tune(vacuum_seconds=0.05, flush_seconds=0.02)
    with tailrace.open(tmp_path / "log") as log:
        plain = log.topic("plain", segment_bytes=4096)
        fill(plain, 2)
        time.sleep(0.1)
        assert not vacuum_threads()
        topic = log.topic("orders", segment_bytes=4096, retain="1h")
        fill(topic, 3)
        eventually(vacuum_threads)
        clock.forward(2 * HOUR)
        eventually(lambda: bases(topic) == [9])
        assert len(bases(plain)) == 2
    assert not vacuum_threads()


def test_a_sealed_segment_asks_for_it_at_once(tmp_path, clock, tune):
    tune(vacuum_seconds=3_600.0, flush_seconds=0.02)
    with tailrace.open(tmp_path / "log", durable=False) as log:
        topic = log.topic("orders", segment_bytes=4096, retain_bytes=8192)
        fill(topic, 1)
        eventually(vacuum_threads)
        fill(topic, 20)
        # One segment more than after a round: the last close may have been looked at before the next one grew.
        eventually(lambda: size(topic) <= 8192 + 2 * 4096)


def test_a_process_that_ends_soon_keeps_the_bound(tmp_path):
    program = """
        import sys, tailrace
        with tailrace.open(sys.argv[1]) as log:
            topic = log.topic("orders", segment_bytes=4096, retain_bytes=8192)
            for _ in range(9):
                topic.append(b"x" * 1_200)
    """
    for _ in range(4):
        run(program, tmp_path / "log")
        with tailrace.open(tmp_path / "log", "r") as log:
            assert size(log.topic("orders")) <= 8192 + 4096


def test_one_process_at_a_time(tmp_path, clock, tune):
    tune(vacuum_seconds=0.02, flush_seconds=0.02)
    tailrace.open(tmp_path / "log").close()
    holder = start(
        """
        import fcntl, os, sys
        descriptor = os.open(sys.argv[1], os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        print("held", flush=True)
        sys.stdin.read()
        """,
        tmp_path / "log" / "topics",
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "held"
    try:
        with tailrace.open(tmp_path / "log", timeout=0.2) as log:
            topic = log.topic("orders", segment_bytes=4096, retain="1h")
            fill(topic, 3)
            clock.forward(2 * HOUR)
            eventually(vacuum_threads)
            time.sleep(0.15)
            assert bases(topic) == [0, 3, 6]
            with pytest.raises(errors.LockedError, match="is being done by process") as caught:
                log.vacuum()
            assert caught.value.pid == holder.pid
            assert log.vacuum(dry_run=True).segments == 3
            holder.communicate("")
            eventually(lambda: bases(topic) == [9])
    finally:
        holder.kill()
        holder.communicate()


def test_failures_are_counted_and_nobody_is_told(tmp_path, clock, tune, monkeypatch):
    tune(vacuum_seconds=0.02, flush_seconds=0.02)
    calls = []

    def fail(self, cuts):
        calls.append(cuts)
        raise errors.DiskFullError("The disk is full.")

    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders", segment_bytes=4096, retain="1h")
        fill(topic, 3)
        with monkeypatch.context() as patch:
            patch.setattr(admins.Admin, "forget", fail)
            clock.forward(2 * HOUR)
            eventually(lambda: len(calls) > 2)
        eventually(lambda: bases(topic) == [9])
        topic.append("goes on")
        log.engine.store.context.gauges.close()
        from tailrace.disk.gauges import collect

        assert collect(clock, f"{log.location}/stats").failures >= 2


def test_a_forked_child_has_a_vacuum_of_its_own(tmp_path, clock, tune):
    tune(vacuum_seconds=0.05, flush_seconds=0.02)
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders", segment_bytes=4096, retain="1h")
        fill(topic, 3)
        eventually(vacuum_threads)
        held: list[int] = []
        assert log.engine.worker.hold(1.0, held)

        def child():
            # The parent's lock is not the child's, and the child's thread is not the parent's.
            assert not log.engine.worker.locks
            assert not vacuum_threads()
            fill(topic, 1)
            eventually(vacuum_threads)
            clock.forward(2 * HOUR)
            time.sleep(0.2)
            return len(bases(topic))

        assert in_fork(child) == 4
        log.engine.worker.let_go(held)
        clock.forward(2 * HOUR)
        eventually(lambda: bases(topic) == [12])
