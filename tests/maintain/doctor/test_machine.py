"""The doctor on the machine of a log: its processes and their locks, its mounts, its limits of time."""

from __future__ import annotations

import os
import time

import tailrace
from tailrace import settings
from tailrace.disk.watch import Watch
from tailrace.maintain.doctor.machine import Machine, Mount, parse_locks, parse_mounts
from tailrace.maintain.doctor.surroundings import check_limits
from tailrace.settings import Tuning
from tests.doctoring import only, shell


def kinds(findings) -> list[str]:
    return [each.code for each in findings]


# File systems.


def test_the_longest_mount_counts():
    text = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,data=ordered\n"
        "30 22 0:50 / /data rw shared:5 - nfs4 server:/x rw,vers=4.2\n"
        "31 30 8:2 / /data/my\\040disk ro,noatime - xfs /dev/sdb rw\n"
    )
    assert parse_mounts(text, "/home/x") == Mount("ext4", "/", frozenset({"rw", "relatime", "data=ordered"}))
    assert parse_mounts(text, "/database") == Mount("ext4", "/", frozenset({"rw", "relatime", "data=ordered"}))
    mount = parse_mounts(text, "/data/shop")
    assert mount is not None
    assert mount.type == "nfs4"
    mount = parse_mounts(text, "/data/my disk/log")
    assert mount is not None
    assert (mount.type, "ro" in mount.options) == ("xfs", True)
    here = Machine().mount("/proc/self")
    assert here is not None
    assert here.type == "proc"


# Locks, processes, limits.


def test_locks_and_those_who_wait():
    text = (
        "1: FLOCK  ADVISORY  WRITE 100 08:01:55 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 101 08:01:55 0 EOF\n"
        "2: POSIX  ADVISORY  WRITE 102 08:01:56 0 EOF\n"
        "3: FLOCK  ADVISORY  READ 103 08:01:57 0 EOF\n"
        "4: FLOCK  ADVISORY  READ 0 08:01:57 0 EOF\n"
    )
    assert [tuple(lock) for lock in parse_locks(text)] == [
        ("08:01", 55, 100, True, False),
        ("08:01", 55, 101, True, True),
        ("08:01", 57, 103, False, False),
    ]


def test_a_process_is_known_by_its_command():
    process = Machine().process(os.getpid())
    assert process is not None
    assert "python" in process.command or "pytest" in process.command
    assert not process.stopped
    assert 0 < process.age < time.clock_gettime(time.CLOCK_BOOTTIME)
    assert Machine().process(2**22 + 1) is None


def test_event_queues_are_counted(tmp_path):
    used, most = Machine().event_queues() or (0, 0)
    watches = [Watch(str(tmp_path)) for _ in range(3)]
    try:
        now, _ = Machine().event_queues() or (0, 0)
        assert now >= 3
        assert abs(now - used) < most
    finally:
        for watch in watches:
            watch.close()
    assert kinds(check_limits(1, 1_024, (120, 128))) == ["inotify-few"]
    assert kinds(check_limits(1, 1_024, (100, 128))) == []


# The rest on plain values.


def test_too_many_namespaces_for_the_time(tmp_path, monkeypatch):
    with tailrace.open(tmp_path / "log") as log:
        for name in ("a", "b"):
            log.namespace(name).close()
    monkeypatch.setattr(settings, "TUNING", Tuning(doctor_namespaces_seconds=-1.0))
    found = only(tmp_path / "log", "not-looked-at")
    assert "2 namespaces" in found.what
    shell(found.run)
