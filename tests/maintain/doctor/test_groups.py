"""The doctor on groups: readers that stop, die, get stuck or fall behind, and what retention waits for."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

import tailrace
from tailrace import settings
from tailrace.settings import Tuning
from tests.doctoring import diagnose, shell
from tests.processes import start


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "log"


def found(path: Path) -> dict[str, tailrace.types.Finding]:
    return {each.code: each for each in diagnose(path)}


CONSUMER = """
import sys, time, tailrace
log = tailrace.open(sys.argv[1])
consumer = log.consumer("orders", "billing", commit="manual")
assert len(consumer.poll(timeout=20)) > 0
print("ready", flush=True)
time.sleep(60)
"""


def consuming(path: Path):
    process = start(CONSUMER, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def test_a_stopped_member(path):
    with tailrace.open(path) as log:
        log.topic("orders").extend([b"x"] * 50)
    process = consuming(path)
    try:
        assert found(path) == {}
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        told = found(path)
        assert set(told) == {"stopped-member", "stopped-process"}
        assert f"process {process.pid} (" in told["stopped-member"].what
        assert "50 unread records" in told["stopped-member"].what
        shell(told["stopped-member"].run)
        deadline = time.monotonic() + 10
        while found(path) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found(path) == {}
    finally:
        process.kill()
        process.communicate()
    told = found(path)
    # What it wrote within the last half second need not be on disk yet, and the kill may have hit it in a sync.
    assert set(told) - {"not-on-disk", "interrupted-sync"} == {"dead-members"}
    shell(told["dead-members"].run)


def test_a_partition_without_an_owner(path):
    """It is reported at once, with the member that is in the way when there is one."""
    with tailrace.open(path) as log:
        log.topic("orders").extend([b"x"] * 50)
    process = consuming(path)
    try:
        with tailrace.open(path) as log:
            log.topic("orders").alter(partitions=3)
        told = found(path)
        assert set(told) == {"partition-without-owner"}
        what = told["partition-without-owner"].what
        assert what == "Group 'billing' has 1 living member, and none reads orders[1], orders[2]."
        shell(told["partition-without-owner"].run)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        told = found(path)
        assert set(told) == {"partition-without-owner", "stopped-member", "stopped-process"}
        assert "is stopped), and none reads orders[1]" in told["partition-without-owner"].what
        assert told["partition-without-owner"].run == f"kill -CONT {process.pid}"
        shell(told["partition-without-owner"].run)
        # A member that asks for records takes them.
        with tailrace.open(path) as log, log.consumer("orders", "billing") as consumer:
            deadline = time.monotonic() + 20
            while len(consumer.assigned) < 2 and time.monotonic() < deadline:
                consumer.poll(timeout=0.05)
            assert found(path) == {}
    finally:
        process.kill()
        process.communicate()


def test_a_silent_member(path):
    with tailrace.open(path) as log:
        log.topic("orders").extend([b"x"] * 50)
        with log.consumer("orders", "billing", commit="manual") as consumer:
            assert len(consumer.poll(timeout=10)) == 50
            assert found(path) == {}
            heartbeat = consumer._session.membership.member.lock_file.heartbeat
            heartbeat.polled -= 400
            heartbeat._store(0, round(heartbeat.polled * 1e6) << 1)
            told = found(path)
            assert set(told) == {"silent-member"}
            assert re.search(r"has not polled for 6\.[678]\d*m and has 1 partition", told["silent-member"].what)
            shell(told["silent-member"].run)
            assert found(path) == {}


def test_a_stuck_member_is_evicted_by_the_command(tailrace_log, tailrace_clock, path):
    tailrace_log.topic("orders").extend([b"x"] * 50)
    consumer = tailrace_log.consumer("orders", "billing", commit="manual")
    assert len(consumer.poll(timeout=10)) == 50
    assert found(path) == {}
    tailrace_clock.advance("10m")
    told = found(path)
    assert set(told) == {"stuck-member"}
    assert "10m" in told["stuck-member"].what
    shell(told["stuck-member"].run)
    assert found(path) == {}
    consumer.close()


def test_a_member_that_gets_on_is_not_stuck(tailrace_log, tailrace_clock, path):
    topic = tailrace_log.topic("orders")
    topic.extend([b"x"] * 50)
    consumer = tailrace_log.consumer("orders", "billing", commit="manual")
    consumer.poll(timeout=10)
    consumer.commit()
    tailrace_clock.advance("10m")
    assert found(path) == {}
    topic.append("y")
    assert found(path) == {}
    consumer.close()


def read_some(log: tailrace.Log, count: int, group: str = "billing") -> None:
    consumer = log.consumer("orders", group, commit="manual")
    records = []
    while len(records) < count:
        records += list(consumer.poll(max_records=count - len(records), timeout=10))
    consumer.commit()
    consumer.close()


def test_a_group_that_retention_overtook(tailrace_log, path):
    topic = tailrace_log.topic("orders", segment_bytes="4KiB")
    for _ in range(5):
        topic.extend([bytes(200)] * 20)
    read_some(tailrace_log, 10)
    topic.trim(before=40)
    told = found(path)
    assert set(told) == {"group-overtaken"}
    assert "30 records" in told["group-overtaken"].what
    assert told["group-overtaken"].severity == "error"
    shell(told["group-overtaken"].run)


def test_a_group_that_retention_is_about_to_overtake(tailrace_log, tailrace_clock, path):
    topic = tailrace_log.topic("orders", retain="1h")
    topic.extend([b"x"] * 20)
    read_some(tailrace_log, 10)
    tailrace_clock.advance("40m")
    assert found(path) == {}
    tailrace_clock.advance("15m")
    told = found(path)
    assert set(told) == {"group-nearly-overtaken"}
    shell(told["group-nearly-overtaken"].run)
    assert topic.settings["keep_unread"]
    assert found(path) == {}


def test_a_group_that_falls_behind(tailrace_log, tailrace_clock, path):
    topic = tailrace_log.topic("orders")
    topic.extend([b"x"] * 200)
    consumer = tailrace_log.consumer("orders", "billing", commit="manual")
    assert len(consumer.poll(max_records=100, timeout=10)) == 100
    consumer.commit()
    # It stores a cursor now and then, and every minute more comes than it reads.
    for _ in range(12):
        tailrace_clock.advance("1m")
        topic.extend([b"x"] * 100)
        assert len(consumer.poll(max_records=10, timeout=10)) == 10
        consumer.commit()
    told = found(path)
    assert set(told) == {"group-falling-behind"}
    assert "1,180 unread records" in told["group-falling-behind"].what
    shell(told["group-falling-behind"].run)
    consumer.close()


def test_a_group_that_keeps_up_with_a_lag_does_not_fall_behind(tailrace_log, tailrace_clock, path):
    topic = tailrace_log.topic("orders")
    topic.extend([b"x"] * 2_000)
    consumer = tailrace_log.consumer("orders", "billing", commit="manual")
    for _ in range(12):
        consumer.poll(max_records=100, timeout=10)
        consumer.commit()
        tailrace_clock.advance("1m")
        topic.extend([b"x"] * 100)
    assert found(path) == {}
    consumer.close()


def test_an_abandoned_group(tailrace_log, tailrace_clock, path):
    tailrace_log.topic("orders").extend([b"x"] * 20)
    read_some(tailrace_log, 10)
    assert found(path) == {}
    tailrace_clock.advance("8d")
    told = found(path)
    assert set(told) == {"group-abandoned"}
    assert "10 unread records" in told["group-abandoned"].what
    shell(told["group-abandoned"].run)


def test_a_group_that_holds_retention_back(tailrace_log, tailrace_clock, path):
    topic = tailrace_log.topic("orders", segment_bytes="4KiB", retain="1h", keep_unread=["billing"])
    for _ in range(5):
        topic.extend([bytes(200)] * 20)
    told = found(path)
    assert set(told) == {"awaited-group-missing"}
    read_some(tailrace_log, 10)
    assert found(path) == {}
    tailrace_clock.advance("2h")
    told = found(path)
    assert set(told) == {"retention-held-back"}
    assert "'billing' holds retention of 'orders' back" in told["retention-held-back"].what
    shell(told["retention-held-back"].run)
    tailrace_log.drop_group("billing")
    told = found(path)
    assert set(told) == {"awaited-group-missing"}
    shell(told["awaited-group-missing"].run)
    assert found(path) == {}


def test_a_topic_that_is_kept_until_read_by_nobody(tailrace_log, path):
    tailrace_log.topic("orders", retain="read").append("x")
    told = found(path)
    assert set(told) == {"read-by-nobody"}
    shell(told["read-by-nobody"].run)


def test_names_that_look_like_options(tailrace_log, path):
    tailrace_log.topic("-n", retain="read").append("x")
    told = found(path)
    assert " -- -n" in told["read-by-nobody"].run
    shell(told["read-by-nobody"].run)


def test_a_group_that_retention_by_size_is_about_to_overtake(tailrace_log, path):
    topic = tailrace_log.topic("orders", segment_bytes="4KiB", retain_bytes="64KiB")
    topic.extend([bytes(200)] * 20)
    read_some(tailrace_log, 10)
    for _ in range(5):
        topic.extend([bytes(200)] * 20)
    assert found(path) == {}
    for _ in range(8):
        topic.extend([bytes(200)] * 20)
    told = found(path)
    assert set(told) == {"group-nearly-overtaken"}
    assert "64KiB are kept" in told["group-nearly-overtaken"].what
    shell(told["group-nearly-overtaken"].run)
    assert found(path) == {}


def test_no_time_for_the_groups(tailrace_log, path, monkeypatch):
    tailrace_log.topic("orders").extend([b"x"] * 20)
    read_some(tailrace_log, 10)
    monkeypatch.setattr(settings, "TUNING", Tuning(doctor_groups_seconds=-1.0))
    told = found(path)
    assert set(told) == {"not-looked-at"}
    shell(told["not-looked-at"].run)
