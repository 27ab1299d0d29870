"""The pytest plugin and what it stands on: the clock, the planned faults, the children that are killed.

Every fault is asserted to have fired, every child to have been killed: a test of a failure that did not happen is none.
"""

from __future__ import annotations

import ast
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tailrace import bulk
from tailrace.errors import (
    StorageError,
)
from tailrace.testing import Clock
from tests.processes import in_fork

ROOT = Path(__file__).parents[2]
NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)
NOON_US = 1_906_545_600_000_000
HOUR_US = 3_600_000_000


# The clock.


def test_the_clock_runs_with_the_real_one_until_it_is_moved():
    clock = Clock()
    assert abs(clock.now_us - time.time_ns() // 1_000) < 1_000_000
    assert not clock.frozen
    before = clock.now_us
    while clock.now_us == before:
        pass
    assert clock.now_us > before


@pytest.mark.parametrize("given", [NOON, "2030-06-01T12:00Z", "2030-06-01T14:00+02:00", NOON_US])
def test_the_clock_is_set_and_runs_on(given):
    clock = Clock()
    clock.set(given)
    assert 0 <= clock.now_us - NOON_US < 1_000_000
    assert abs(clock.now - NOON) < timedelta(seconds=1)
    before = clock.now_us
    while clock.now_us == before:
        pass


def test_a_frozen_clock_moves_only_when_it_is_told_to():
    clock = Clock()
    clock.freeze(NOON)
    assert clock.frozen
    assert clock.now == NOON
    clock.advance("1h")
    assert clock.now_us == NOON_US + HOUR_US
    clock.advance(timedelta(minutes=30))
    clock.advance(0.5)
    clock.set("-90m")
    assert clock.now_us == NOON_US + 500_000
    clock.set(NOON)
    assert clock.now == NOON
    clock.freeze()
    assert clock.now == NOON
    assert repr(clock) == "<Clock 2030-06-01T12:00:00+00:00 frozen>"
    clock.unfreeze()
    assert not clock.frozen
    assert 0 <= clock.now_us - NOON_US < 1_000_000


def test_a_running_clock_is_advanced_and_set_back():
    clock = Clock()
    clock.advance("7d")
    ahead = clock.now_us - time.time_ns() // 1_000
    assert abs(ahead - 7 * 24 * HOUR_US) < 1_000_000
    clock.set("-7d")
    assert abs(clock.now_us - time.time_ns() // 1_000) < 1_000_000


@pytest.mark.parametrize(
    ("call", "given"),
    [("set", "yesterday"), ("set", datetime(2030, 1, 1)), ("advance", "-1h"), ("set", 17)],  # noqa: DTZ001
)
def test_a_wrong_time_is_refused_and_moves_nothing(call, given):
    clock = Clock()
    clock.freeze(NOON)
    with pytest.raises(ValueError):
        getattr(clock, call)(given)
    assert clock.now == NOON


def test_every_record_has_the_time_of_the_clock(tailrace_log, tailrace_clock):
    tailrace_clock.freeze(NOON)
    topic = tailrace_log.topic("orders")
    topic.append(b"append")
    topic.append(b"relative", timestamp="-1h")
    topic.extend([b"extend"])
    topic.extend([b"relative"], timestamps=["-1h"])
    with tailrace_log.transaction() as tx:
        tx.append("orders", b"transaction")
        tx.extend("orders", [b"transaction"])
        tx.append("orders", b"relative", timestamp="-1h")
    with topic.producer() as producer:
        producer.append(b"producer").result()
        producer.append(b"relative", timestamp="-1h").result()
    bulk.commit(tailrace_log, [bulk.InlinePart("orders", 0, bulk.build([b"bulk"]))])
    got = [(record.value, record.timestamp_us - NOON_US) for record in topic.read()]
    assert len(got) == 10
    assert got == [(value, -HOUR_US if value == b"relative" else 0) for value, _ in got]


def test_relative_times_are_relative_to_the_clock(tailrace_log, tailrace_clock):
    topic = tailrace_log.topic("orders")
    tailrace_clock.freeze(NOON)
    for hour in range(4):
        topic.append(str(hour))
        tailrace_clock.advance("1h")
    # It is 16:00, the records are of 12:00, 13:00, 14:00 and 15:00.
    assert [record.text for record in topic.read(start="-2h")] == ["2", "3"]
    assert [record.text for record in topic.read(stop="-2h")] == ["0", "1"]
    assert [record.text for record in topic.read(last="1h")] == ["3"]
    assert topic.offset_at("-3h") == 1
    assert sum(part.stop - part.first for part in bulk.plan(tailrace_log, "orders", start="-2h")) == 2
    assert topic.trim("-3h") == 1


def test_a_follower_ends_when_the_clock_says_so(tailrace_log, tailrace_clock):
    topic = tailrace_log.topic("orders")
    tailrace_clock.freeze(NOON)
    topic.append(b"one")
    scan = topic.read(follow=True, stop=NOON + timedelta(hours=1), timeout="20s")
    timer = threading.Timer(0.05, tailrace_clock.advance, ["2h"])
    timer.start()
    began = time.monotonic()
    assert [record.value for record in scan] == [b"one"]
    assert time.monotonic() - began < 10
    timer.join()


def test_waiting_is_measured_in_real_time(tailrace_log, tailrace_clock):
    tailrace_clock.freeze(NOON)
    topic = tailrace_log.topic("orders")
    topic.append(b"one")
    assert [record.value for record in topic.read(follow=True, timeout="10ms")] == [b"one"]


def test_forked_children_share_the_clock(tailrace_log, tailrace_clock):
    tailrace_clock.freeze(NOON)
    topic = tailrace_log.topic("orders")

    def move_on():
        topic.append(b"child")
        tailrace_clock.advance("1h")

    in_fork(move_on)
    topic.append(b"parent")
    assert [record.timestamp_us - NOON_US for record in topic.read()] == [0, HOUR_US]


def test_only_the_file_layer_reads_the_clock():
    """Whoever reads the time by itself escapes the clock of a test; the command line is a process of its own.

    A benchmark notes when it was made.
    """
    allowed = {"disk/files.py", "testing/__init__.py", "arguments.py", "bench/machine.py"}
    readings = re.compile(r"\btime_ns\b|\btime\.time\(|\bdatetime\.now\(|\butcnow\(|\bdate\.today\(|\btime\(\)")
    source = ROOT / "src" / "tailrace"
    found = set()
    for path in source.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        strings = {id(node) for node in ast.walk(tree) if isinstance(node, (ast.Constant, ast.JoinedStr))}
        code = " ".join(
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Call, ast.ImportFrom, ast.Attribute)) and id(node) not in strings
        )
        if readings.search(re.sub(r"(['\"]).*?\1", "", code)) and "cli" not in path.parts:
            found.add(str(path.relative_to(source)))
    assert found <= allowed
    assert "disk/files.py" in found


# Faults.


def test_wrong_plans_are_refused(tailrace_faults):
    with pytest.raises(ValueError, match="did you mean 'synced'"):
        tailrace_faults.fail("sincd")
    with pytest.raises(ValueError, match="Nothing can fail at 'published'"):
        tailrace_faults.fail("published")
    with pytest.raises(ValueError, match="belongs to no single topic"):
        tailrace_faults.fail("journal-sync", topic="orders")
    with pytest.raises(ValueError, match="write one of create, created, write"):
        tailrace_faults.kill(print, at="???")
    with pytest.raises(ValueError, match="n"):
        tailrace_faults.fail_write(0)
    assert tailrace_faults.fired == []


def test_faults_that_did_not_happen_are_forgotten_by_clear(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    happened = tailrace_faults.fail_write()
    with pytest.raises(StorageError):
        topic.append(b"1")
    pending = tailrace_faults.fail_sync()
    tailrace_faults.fill_disk()
    tailrace_faults.clear()
    topic.append(b"2")
    assert not pending.fired
    assert tailrace_faults.fired == [happened]


def test_threads_count_together(tailrace_log, tailrace_faults):
    """Appends of several threads may share a write, so every write that there was is counted exactly once."""
    topic = tailrace_log.topic("orders", partitions=4)
    threads = [
        threading.Thread(target=lambda own=own: [topic.append(b"x", partition=own, durable=False) for _ in range(200)])
        for own in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tailrace_faults.writes == 800


def test_a_forked_child_inherits_the_plan(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    topic.append(b"1")
    fault = tailrace_faults.fail_write()

    def in_child():
        with pytest.raises(StorageError):
            topic.append(b"2")
        return fault.fired, tailrace_faults.writes

    assert in_fork(in_child) == (True, 2)
    # The child had a copy.
    assert not fault.fired
    with pytest.raises(StorageError):
        topic.append(b"3")
    assert fault.fired
