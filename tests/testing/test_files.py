"""Faulty files: operations that fail by their names, and disks that fill up."""

from __future__ import annotations

import errno
from datetime import UTC, datetime

import pytest

import tailrace
from tailrace.engine import engine as engines
from tailrace.errors import (
    CommittedNotVisibleError,
    DiskFullError,
    DurabilityError,
    StorageError,
)
from tests.actions import LARGE, commit, large, roll, trim, values

NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)


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
