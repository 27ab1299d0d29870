"""The pytest plugin and what it stands on: the clock, the planned faults, the children that are killed.

Every fault is asserted to have fired, every child to have been killed: a test of a failure that did not happen is none.
"""

from __future__ import annotations

import ast
import errno
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tailrace
from tailrace import bulk
from tailrace.engine import engine as engines
from tailrace.errors import (
    CommittedNotVisibleError,
    DiskFullError,
    DurabilityError,
    StorageError,
)
from tailrace.testing import Clock
from tests.actions import LARGE, commit, large, roll, trim, values
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


def test_the_nth_write_fails_and_nothing_else(tailrace_log, tailrace_faults):
    fault = tailrace_faults.fail_write(3)
    topic = tailrace_log.topic("orders")
    topic.append(b"1")
    topic.append(b"2", durable=False)
    assert not fault.fired
    with pytest.raises(StorageError) as caught:
        topic.append(b"3")
    assert fault.fired
    assert tailrace_faults.fired == [fault]
    assert caught.value.errno == errno.EIO
    topic.append(b"4")
    assert values(topic) == [b"1", b"2", b"4"]


def test_the_first_append_to_a_new_topic_is_one_write_and_one_sync(tailrace_log, tailrace_faults):
    """Not the topic in the catalog, not the segment's header, not the zeros ahead: only what holds records counts."""
    tailrace_log.topic("orders").append(b"1")
    assert (tailrace_faults.writes, tailrace_faults.syncs) == (1, 1)
    tailrace_log.topic("orders").extend([b"2", b"3"])
    assert (tailrace_faults.writes, tailrace_faults.syncs) == (2, 2)
    tailrace_log.topic("orders").append(b"4", durable=False)
    assert tailrace_faults.writes == 3
    assert {"catalog-write", "create", "created", "published"} < {*tailrace_faults.passed}


def test_a_commit_over_partitions_is_an_entry_and_a_write_each(tailrace_log, tailrace_faults):
    for name in ("a", "b"):
        tailrace_log.topic(name).append(b"0")
    writes, syncs = tailrace_faults.writes, tailrace_faults.syncs
    commit(tailrace_log, "a", "b")
    assert (tailrace_faults.writes - writes, tailrace_faults.syncs - syncs) == (3, 1)


def test_another_error_number_may_be_asked_for(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    fault = tailrace_faults.fail_write(errno=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        topic.append(b"1")
    assert fault.fired
    topic.append(b"2")
    assert values(topic) == [b"2"]


def test_a_failed_sync_makes_its_partition_read_only(tailrace_log, tailrace_faults):
    topic, other = tailrace_log.topic("orders"), tailrace_log.topic("other")
    topic.append(b"1")
    fault = tailrace_faults.fail_sync()
    with pytest.raises(DurabilityError) as caught:
        topic.append(b"2")
    assert fault.fired
    assert caught.value.errno == errno.EIO
    with pytest.raises(DurabilityError):
        topic.append(b"3")
    assert values(topic) == [b"1"]
    other.append(b"4")
    assert values(other) == [b"4"]


def test_a_fault_is_for_one_topic_when_it_names_one(tailrace_log, tailrace_faults):
    orders, other = tailrace_log.topic("shop.orders"), tailrace_log.topic("other")
    fault = tailrace_faults.fail_write(2, topic="shop.orders")
    for _ in range(3):
        other.append(b"other")
    orders.append(b"1")
    other.append(b"other")
    with pytest.raises(StorageError):
        orders.append(b"2")
    assert fault.fired
    assert len(values(other)) == 4


def test_a_background_sync_fails_as_well(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    fault = tailrace_faults.fail_sync()
    topic.append(b"1", durable=False)
    with pytest.raises(DurabilityError):
        tailrace_log.sync()
    assert fault.fired
    with pytest.raises(DurabilityError):
        topic.append(b"2")


def test_a_failed_journal_write_leaves_no_trace(tailrace_log, tailrace_faults):
    fault = tailrace_faults.fail("journal-write")
    with pytest.raises(StorageError):
        commit(tailrace_log, "a", "b", value=b"1")
    assert fault.fired
    commit(tailrace_log, "a", "b", value=b"2")
    assert values(tailrace_log.topic("a")) == values(tailrace_log.topic("b")) == [b"2"]


def test_what_is_committed_and_cannot_be_shown_is_said_so(tailrace_log, tailrace_faults):
    for name in ("a", "b"):
        tailrace_log.topic(name).append(b"0")
    fault = tailrace_faults.fail("write", 2, errno.ENOSPC)
    with pytest.raises(CommittedNotVisibleError):
        commit(tailrace_log, "a", "b", value=b"1")
    assert fault.fired
    for name in ("a", "b"):
        tailrace_log.topic(name).append(b"2")
        assert values(tailrace_log.topic(name)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("point", "action"),
    [
        ("create", roll),
        ("seal", roll),
        ("staged-write", large),
        ("staged-sync", large),
        ("catalog-write", lambda log: log.topic("made", partitions=2)),
        ("catalog-sync", lambda log: log.topic("made", partitions=2)),
        ("journal-sync", large),
        ("sync", roll),
        ("write", roll),
    ],
)
def test_every_operation_fails_by_its_name(tailrace_log, tailrace_faults, point, action):
    fault = tailrace_faults.fail(point)
    with pytest.raises(StorageError):
        action(tailrace_log)
    assert fault.fired
    assert repr(fault) == f"<Fault EIO at {point} fired>"


def test_a_failed_rename_is_not_visible_yet_but_committed(tailrace_log, tailrace_faults):
    fault = tailrace_faults.fail("rename")
    with pytest.raises(CommittedNotVisibleError):
        large(tailrace_log)
    assert fault.fired


def test_a_failed_removal_is_made_up_for(tailrace_log, tailrace_faults):
    roll(tailrace_log)
    fault = tailrace_faults.fail("remove")
    with pytest.raises(StorageError):
        trim(tailrace_log)
    assert fault.fired
    trim(tailrace_log)
    assert values(tailrace_log.topic("small")) == [LARGE[:400_000]]


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


# A full disk.


def test_a_full_disk_is_said_at_the_next_append_and_ends(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    topic.append(b"1")
    fault = tailrace_faults.fill_disk()
    assert tailrace_faults.room == 0
    for durable in (True, False):
        with pytest.raises(DiskFullError):
            topic.append(b"2", durable=durable)
    assert fault.fired
    assert repr(fault) == "<Fault ENOSPC on a full disk fired>"
    assert values(topic) == [b"1"]
    with pytest.raises(DiskFullError):
        tailrace_log.topic("other").append(b"2")
    with pytest.raises(DiskFullError):
        commit(tailrace_log, "orders", "other")
    tailrace_faults.free_disk()
    assert tailrace_faults.room is None
    topic.append(b"3")
    assert values(topic) == [b"1", b"3"]


def test_a_disk_fills_up_after_so_many_bytes(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    topic.append(b"0")
    fault = tailrace_faults.fill_disk(after="1MiB")
    for _ in range(10):
        topic.append(bytes(100_000))
    assert not fault.fired
    with pytest.raises(DiskFullError):
        topic.append(bytes(100_000))
    assert fault.fired
    assert tailrace_faults.room == 0
    assert len(values(topic)) == 11
    tailrace_faults.free_disk()
    topic.append(b"1")
    assert len(values(topic)) == 12
    assert tailrace_log.verify().ok


def test_space_is_reserved_before_a_commit_is_promised(tailrace_log, tailrace_faults):
    """Two parts that fit one by one and not together: nothing of the commit is kept."""
    for name in ("a", "b"):
        tailrace_log.topic(name).append(b"0")
    # Makes the journal's file.
    commit(tailrace_log, "a", "b")
    fault = tailrace_faults.fill_disk(after="150kB")
    with pytest.raises(DiskFullError):
        commit(tailrace_log, "a", "b", value=bytes(100_000))
    assert fault.fired
    tailrace_faults.fill_disk(after="250kB")
    commit(tailrace_log, "a", "b", value=bytes(100_000))
    assert tailrace_faults.room is not None
    assert tailrace_faults.room < 60_000
    assert [len(values(tailrace_log.topic(name))) for name in ("a", "b")] == [3, 3]


def test_a_large_extend_fills_the_disk_in_its_middle(tailrace_log, tailrace_faults):
    topic = tailrace_log.topic("orders")
    topic.append(b"0")
    fault = tailrace_faults.fill_disk(after="1MB")
    with pytest.raises(DiskFullError):
        topic.extend([LARGE] * 3, durable=False)
    assert fault.fired
    with pytest.raises(DiskFullError):
        large(tailrace_log)
    tailrace_faults.free_disk()
    assert values(topic) == [b"0"]
    topic.append(b"1")
    assert values(topic) == [b"0", b"1"]


def test_a_vacuum_needs_no_room(tailrace_log, tailrace_clock, tailrace_faults):
    tailrace_clock.freeze(NOON)
    topic = tailrace_log.topic("orders", retain="7d", segment_bytes="1MiB")
    for _ in range(20):
        topic.append(bytes(100_000))
    fault = tailrace_faults.fill_disk()
    with pytest.raises(DiskFullError):
        topic.append(b"1")
    assert fault.fired
    tailrace_clock.advance("8d")
    tailrace_log.vacuum()
    assert values(topic) == []
    assert tailrace_faults.passed["removed"] >= 2
    tailrace_faults.free_disk()
    topic.append(b"2")
    assert values(topic) == [b"2"]


def test_no_log_can_be_made_on_a_full_disk(tmp_path, tailrace_faults):
    fault = tailrace_faults.fill_disk()
    with pytest.raises(DiskFullError):
        tailrace.open(tmp_path / "new")
    assert fault.fired
    tailrace_faults.free_disk()
    tailrace.open(tmp_path / "new").close()


def test_free_space_is_what_is_left(tailrace_log, tailrace_faults):
    files = engines.FILES
    tailrace_faults.fill_disk(after=12_345)
    assert files.free_bytes(tailrace_log.location) == 12_345
    tailrace_faults.free_disk()
    assert files.free_bytes(tailrace_log.location) > 12_345
