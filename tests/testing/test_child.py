"""Children that are killed at a point: they die there and nowhere else, and leave what the guide says.

Every child is asserted to have been killed: a test of a death that did not happen is none.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import tailrace
from tailrace.errors import LockedError, StorageError
from tailrace.testing import POINTS
from tests.actions import LARGE, append, commit, large, make, roll, trim, values

GUIDE = Path(__file__).parents[2] / "docs" / "testing.md"

# What is run to reach a point, and whether another process finds it done once somebody has written again.
DEATHS = {
    "create": (roll, False),
    "created": (roll, False),
    "write": (append, False),
    "written": (append, False),
    "sync": (append, False),
    "synced": (append, False),
    "published": (append, True),
    "seal": (roll, False),
    "sealed": (roll, False),
    "journal-write": (commit, False),
    "journal-written": (commit, True),
    "journal-sync": (commit, True),
    "journal-synced": (commit, True),
    "staged-write": (large, False),
    "staged-written": (large, False),
    "staged-sync": (large, False),
    "staged-synced": (large, False),
    "rename": (large, True),
    "renamed": (large, True),
    "catalog-write": (make, False),
    "catalog-written": (make, False),
    "catalog-sync": (make, False),
    "catalog-synced": (make, False),
    "catalog-published": (make, True),
    "remove": (trim, True),
    "removed": (trim, True),
}


def state(log):
    """Where every topic begins and ends."""
    return {
        info.name: [tuple(bounds[:2]) for bounds in log.topic(info.name).offsets().values()] for info in log.topics()
    }


def prepare(log, action):
    """Topics for every action, such that the next append to `small` rolls its segment."""
    log.topic("orders").append(b"old")
    log.topic("two", partitions=2).append(b"old", partition=0)
    log.topic("two").append(b"old", partition=1)
    small = log.topic("small", segment_bytes="1MiB")
    for _ in range(3 if action is trim else 2):
        small.append(LARGE[:500_000])


def test_the_guide_lists_every_point_and_what_is_there_after_a_death():
    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \| (.+?) \|$", GUIDE.read_text("utf-8"), re.MULTILINE)
    listed = {name: (said, rest) for name, said, rest in rows if not name.startswith("tailrace")}
    assert {name: said for name, (said, _) in listed.items()} == POINTS
    assert {name: rest.startswith("there") for name, (_, rest) in listed.items()} == {
        name: done for name, (_, done) in DEATHS.items()
    }


@pytest.mark.parametrize("point", POINTS)
def test_a_process_dies_at_every_point(tailrace_log, tailrace_faults, tmp_path, point):
    action, done = DEATHS[point]
    prepare(tailrace_log, action)
    before = state(tailrace_log)
    ending = tailrace_faults.kill(action, tailrace_log, at=point)
    assert ending.killed
    assert ending.error is None
    assert ending.passed[point] == 1
    with tailrace.open(tmp_path / "other") as other:
        prepare(other, action)
        action(other)
        after = state(other)
    # One append to each topic settles what the dead process left.
    want = after if done else before
    for name in before:
        for partition, (_, end) in enumerate(want[name]):
            if (name, partition) != ("two", 1):
                assert tailrace_log.topic(name).append(b"next", partition=partition).offset == end
                want[name][partition] = (want[name][partition][0], end + 1)
    assert state(tailrace_log) == want
    assert tailrace_log.verify().ok


def test_what_was_synced_is_there_after_another_boot(tailrace_log, tailrace_faults, monkeypatch):
    tailrace_log.topic("orders").append(b"old")
    assert tailrace_faults.kill(append, tailrace_log, at="synced").killed
    assert values(tailrace_log.topic("orders")) == [b"old"]
    tailrace_log.close()
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    with tailrace.open(tailrace_log.location) as log:
        assert values(log.topic("orders")) == [b"old", b"new"]


def test_a_killed_commit_is_whole_or_absent_after_it_is_opened_again(tmp_path, tailrace_faults):
    for number, (point, kept) in enumerate([("journal-write", False), ("journal-synced", True), ("written", True)]):
        path = tmp_path / str(number)

        def work(path=path):
            with tailrace.open(path) as log, log.transaction() as tx:
                tx.append("a", b"1")
                tx.append("b", b"1")

        assert tailrace_faults.kill(work, at=point).killed
        with tailrace.open(path) as log:
            assert [info.records for info in log.topics()] == ([1, 1] if kept else [0, 0])


@pytest.mark.parametrize("point", ["catalog-synced", "catalog-published", "remove", "removed"])
def test_a_killed_vacuum_is_finished_by_the_next(tailrace_log, tailrace_clock, tailrace_faults, point):
    tailrace_clock.freeze("2030-01-01T12:00Z")
    topic = tailrace_log.topic("orders", retain="7d", segment_bytes="1MiB")
    for _ in range(20):
        topic.append(bytes(100_000))

    def work():
        # In the child, or the vacuum of the parent would be quicker; the clock is that of both.
        tailrace_clock.advance("8d")
        tailrace_log.vacuum()

    assert tailrace_faults.kill(work, at=point).killed
    topic.append(b"new")
    tailrace_log.vacuum()
    assert values(topic) == [b"new"]
    assert tailrace_log.verify().ok


def test_the_nth_time_and_the_topic_are_chosen(tailrace_log, tailrace_faults):
    orders, other = tailrace_log.topic("orders"), tailrace_log.topic("other")

    def work():
        for number in range(5):
            other.append(str(number))
            orders.append(str(number))

    ending = tailrace_faults.kill(work, at="published", n=3, topic="orders")
    assert ending.killed
    assert values(orders) == [b"0", b"1", b"2"]
    assert values(other) == [b"0", b"1", b"2"]
    # The parent counts nothing of what its child did.
    assert tailrace_faults.writes == 0


def test_a_child_that_does_not_get_there_is_an_assertion(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    with pytest.raises(AssertionError, match=r"without reaching 'sync' 2 times; .*sync 1, .*published 1"):
        tailrace_faults.kill(lambda: topic.append(b"1"), at="sync", n=2)
    ending = tailrace_faults.kill(lambda: topic.append(b"2"), at="journal-synced", check=False)
    assert not ending.killed
    assert ending.error is None
    assert ending.passed["published"] == 1
    assert values(topic) == [b"1", b"2"]


def test_a_child_that_raises_says_what(tailrace_log, tailrace_faults):
    def work():
        raise ValueError("this is why")

    with pytest.raises(AssertionError, match=r"(?s)without reaching 'sync'; the points it passed: none.*this is why"):
        tailrace_faults.kill(work, at="sync")
    for kind in (SystemExit, KeyboardInterrupt):
        ending = tailrace_faults.kill(lambda kind=kind: (_ for _ in ()).throw(kind), at="sync", check=False)
        assert not ending.killed
        assert kind.__name__ in (ending.error or "")


def test_a_child_that_dies_by_itself_was_not_killed_by_us(tailrace_faults):
    ending = tailrace_faults.kill(os._exit, 3, at="sync", check=False)
    assert not ending.killed
    assert ending.error == "The child ended by itself with exit code 3."
    ending = tailrace_faults.kill(lambda: os.kill(os.getpid(), signal.SIGKILL), at="sync", check=False)
    assert not ending.killed
    assert ending.error == "The child ended by itself with exit code -9."


def alive(pid):
    try:
        status = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return status != "Z"


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_child_that_hangs_is_ended_with_all_that_it_started(tmp_path, tailrace_faults):
    noted = tmp_path / "pids"

    def work():
        inner = os.fork()
        if inner:
            noted.write_text(f"{os.getpid()} {inner}", "ascii")
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(TimeoutError, match="neither reached 'sync' nor ended"):
        tailrace_faults.kill(work, at="sync", timeout="300ms")
    assert time.monotonic() - began < 10
    pids = [int(pid) for pid in noted.read_text("ascii").split()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_grandchild_that_holds_on_does_not_delay_the_end(tmp_path, tailrace_log, tailrace_faults):
    noted = tmp_path / "pid"
    topic = tailrace_log.topic("orders")

    def work():
        inner = os.fork()
        if inner == 0:
            time.sleep(60)
            os._exit(0)
        noted.write_text(str(inner), "ascii")
        topic.append(b"1")

    began = time.monotonic()
    assert tailrace_faults.kill(work, at="synced").killed
    assert time.monotonic() - began < 10
    wait_until(lambda: not alive(int(noted.read_text("ascii"))))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_is_left_behind(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    topic.append(b"0")

    def descriptors():
        return sorted(
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        )

    before = descriptors()
    children = psutil.Process().children()
    for _ in range(5):
        assert tailrace_faults.kill(append, tailrace_log, at="written").killed
        tailrace_faults.kill(append, tailrace_log, at="remove", check=False)
    with pytest.raises(TimeoutError):
        tailrace_faults.kill(time.sleep, 60, at="sync", timeout="50ms")
    assert descriptors() == before
    assert psutil.Process().children() == children


def test_a_child_of_a_process_with_threads_and_a_producer(tailrace_log, tailrace_faults):
    """Fork copies a busy process: no lock of the parent's threads may hang the child."""
    topic = tailrace_log.topic("busy")
    stop = threading.Event()

    def write():
        with topic.producer() as producer:
            while not stop.is_set():
                producer.append(b"x" * 100)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert tailrace_faults.kill(append, tailrace_log, at="synced", topic="orders").killed
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    append(tailrace_log)
    assert values(tailrace_log.topic("orders")) == [b"new"]


def test_a_lock_of_the_dead_is_free_at_once(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    assert tailrace_faults.kill(append, tailrace_log, at="write").killed
    began = time.monotonic()
    topic.append(b"1")
    assert time.monotonic() - began < 5


def test_an_exclusive_handle_is_the_parents_alone(tmp_path, tailrace_faults):
    with tailrace.open(tmp_path / "mine", exclusive=True, timeout="50ms") as log:
        ending = tailrace_faults.kill(append, log, at="sync", check=False)
    assert not ending.killed
    assert LockedError.__name__ in (ending.error or "")


def test_a_planned_fault_goes_along_into_the_child(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    tailrace_faults.fail_write()

    def work():
        with pytest.raises(StorageError):
            topic.append(b"1")
        topic.append(b"2")

    assert tailrace_faults.kill(work, at="published").killed
    assert values(topic) == [b"2"]
