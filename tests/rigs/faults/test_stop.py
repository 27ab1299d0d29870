"""SIGSTOP: a writer that is stopped while it holds a lock is named to whoever waits, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import LockedError
from tests.rigs.faults.storm import locks_held

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 0.4
# How much later than its timeout an error may come on a busy machine.
LATE_SECONDS_MAX = 5.0

APPENDER = """
import sys, tailrace
log = tailrace.open(sys.argv[1])
topic = log.topic("shared")
number = 0
while True:
    topic.append(b"%08d" % number + bytes(20_000))
    number += 1
    if number == 1:
        print("ready", flush=True)
"""
TRANSACTOR = """
import sys, tailrace
log = tailrace.open(sys.argv[1])
number = 0
while True:
    with log.transaction() as transaction:
        transaction.append("shared", b"%08d" % number + bytes(20_000))
        transaction.append("twin", b"%08d" % number)
    number += 1
    if number == 1:
        print("ready", flush=True)
"""


@contextmanager
def stopped(script: str, path: Path, locked: str) -> Iterator[subprocess.Popen[str]]:
    """A process that writes, stopped at a moment when it holds the lock of a directory of the log."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (directory,) = path.glob(locked)
        wanted = ("WRITE", directory.stat().st_ino)
        deadline = time.monotonic() + 30.0
        while True:
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            if wanted in locks_held(process.pid):
                break
            assert time.monotonic() < deadline, "the writer was never met inside a write"
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(0.0007)
        yield process
    finally:
        process.kill()
        process.communicate()


def refused(write: object, pid: int) -> None:
    """A write that must end in LockedError, in time, naming the process that holds the lock."""
    assert callable(write)
    began = time.monotonic()
    with pytest.raises(LockedError) as caught:
        write()
    assert TIMEOUT_SECONDS * 0.9 <= time.monotonic() - began < TIMEOUT_SECONDS + LATE_SECONDS_MAX
    assert caught.value.pid == pid
    assert str(pid) in str(caught.value)


def numbers(path: Path, topic: str) -> list[int]:
    """The numbers that the other process wrote."""
    with tailrace.open(path, "r") as log:
        return [int(record.value[:8]) for record in log.topic(topic).read() if record.value != b"mine"]


def test_append_names_a_stopped_appender(tmp_path):
    path = tmp_path / "log"
    with tailrace.open(path, timeout=TIMEOUT_SECONDS) as log:
        log.topic("shared", segment_bytes="1MiB")
        log.topic("other").append("mine")
        with stopped(APPENDER, path, "topics/*-shared/0") as process:
            before = log.topic("shared").offsets()[0].latest
            refused(lambda: log.topic("shared").append("mine"), process.pid)
            refused(lambda: log.topic("shared").append("mine", durable=False), process.pid)
            # Readers wait for nobody, and other topics have locks of their own.
            assert sum(1 for _ in log.topic("shared").read()) == before
            log.topic("other").append("mine")
            os.kill(process.pid, signal.SIGCONT)
            position = log.topic("shared").append("mine")
            deadline = time.monotonic() + 20.0
            while log.topic("shared").offsets()[0].latest <= position.offset + 5 and time.monotonic() < deadline:
                time.sleep(0.005)
            assert log.topic("shared").offsets()[0].latest > position.offset + 5
    # Each record in turn, none lost and none doubled by the stop.
    found = numbers(path, "shared")
    assert len(found) > before
    assert found == list(range(len(found)))


def test_transaction_names_a_stopped_transactor(tmp_path):
    path = tmp_path / "log"
    with tailrace.open(path, timeout=TIMEOUT_SECONDS) as log:
        log.topic("shared", segment_bytes="1MiB")
        log.topic("twin", segment_bytes="1MiB")

        def transact() -> None:
            with log.transaction() as transaction:
                transaction.append("shared", "mine")
                transaction.append("twin", "mine")

        with stopped(TRANSACTOR, path, "journal") as process:
            refused(transact, process.pid)
            refused(lambda: log.topic("new", partitions=1), process.pid)
            os.kill(process.pid, signal.SIGCONT)
            transact()
            log.topic("new", partitions=1).append("mine")
    for topic in ("shared", "twin"):
        found = numbers(path, topic)
        assert found == list(range(len(found)))
    # Both topics of every transaction, or neither.
    assert numbers(path, "shared") == numbers(path, "twin")


def test_killed_while_stopped_inside_an_append(tmp_path):
    """Nobody waits for a process that is dead, even if it never ran again after it was stopped."""
    path = tmp_path / "log"
    with tailrace.open(path, timeout=20.0) as log:
        log.topic("shared", segment_bytes="1MiB")
        with stopped(APPENDER, path, "topics/*-shared/0") as process:
            process.kill()
            process.wait()
            assert process.returncode == -signal.SIGKILL
            began = time.monotonic()
            log.topic("shared").append("mine")
            assert time.monotonic() - began < LATE_SECONDS_MAX
    found = numbers(path, "shared")
    assert found == list(range(len(found)))
