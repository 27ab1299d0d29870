"""Crash points: the functions that stand around those of the engine change nothing but where a process dies."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time

import tailrace

COMMIT = """
import sys, tailrace
from tests.rigs.spark import crash_points
crash_points._watch()
with tailrace.open(sys.argv[1], timeout=20) as log:
    reached = []
    crash_points.reach = lambda point: reached.append(point)
    print("ready", flush=True)
    sys.stdin.readline()
    with log.transaction() as transaction:
        transaction.append("a", "x")
        transaction.append("b", "y")
    print(reached.count("locked"), flush=True)
"""


def test_a_commit_waits_for_the_journal_of_another_process(tmp_path):
    """A function of the tests between a region of locks and a lock would be taken for a handler, which never waits."""
    with tailrace.open(tmp_path / "log") as log:
        log.topic("a"), log.topic("b")
        with log.transaction() as transaction:
            transaction.append("a", "first")
            transaction.append("b", "first")
    child = subprocess.Popen(
        [sys.executable, "-c", COMMIT, str(tmp_path / "log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    descriptor = os.open(tmp_path / "log" / "journal", os.O_RDONLY)
    try:
        assert child.stdout.readline() == "ready\n"
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(0.7)
        assert child.poll() is None
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        said, _ = child.communicate(timeout=60)
    finally:
        os.close(descriptor)
        child.kill()
        child.wait()
    assert child.returncode == 0
    assert int(said) >= 1
    with tailrace.open(tmp_path / "log", "r") as log:
        assert [record.text for record in log.topic("b").read()] == ["first", "y"]
