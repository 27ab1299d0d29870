"""The doctor on what a log lives in: room, file systems, limits, the clock; and its checks on plain values."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

import tailrace
from tailrace import settings
from tailrace.disk.files import Files
from tailrace.disk.watch import Watch
from tailrace.maintain.doctor.commands import Commands, quote
from tailrace.maintain.doctor.kinds import KINDS, finding, worst_first
from tailrace.maintain.doctor.look import Journal, Slot, Words, lasting
from tailrace.maintain.doctor.machine import Machine, Mount, Room, parse_locks, parse_mounts
from tailrace.maintain.doctor.segments import Look
from tailrace.maintain.doctor.space import Growth, check_room, check_segments, expect, rate_of, seconds_left
from tailrace.maintain.doctor.state import check_journal, check_lost
from tailrace.maintain.doctor.surroundings import UNSUPPORTED, check_clock, check_limits, check_mount, check_read_only
from tailrace.settings import Tuning
from tailrace.types import Damage
from tests.doctoring import codes, diagnose, only, shell
from tests.processes import run

COMMANDS = Commands("/data/shop", None, "/data/shop")
HOUR_US = 3_600 * 1_000_000
NOW_US = 2_000_000 * HOUR_US // 4


def kinds(findings) -> list[str]:
    return [each.code for each in findings]


# The clock.


def test_a_clock_that_was_set_back(tailrace_log, tailrace_clock, tmp_path):
    tailrace_clock.advance("2h")
    tailrace_log.topic("orders").append("x")
    assert codes(tmp_path / "log") == []
    tailrace_clock.advance(0)
    tailrace_clock.set("-2h")
    found = only(tmp_path / "log", "clock-behind")
    assert "orders[0]" in found.what
    shell(found.run)


def test_a_clock_that_jumped_and_came_back(tailrace_log, tailrace_clock, tmp_path):
    topic = tailrace_log.topic("orders", segment_bytes="4KiB")
    tailrace_clock.advance("2h")
    topic.extend([bytes(1_000)] * 4)
    tailrace_clock.set("-1h")
    topic.extend([bytes(1_000)] * 4)
    tailrace_clock.advance("3h")
    found = only(tmp_path / "log", "clock-jumped")
    assert "set back by 1h" in found.what
    shell(found.run)


def test_records_from_the_future(tailrace_log, tailrace_clock, tmp_path):
    tailrace_log.topic("orders").append("x", timestamp=tailrace_clock.now_us + 2 * 24 * HOUR_US)
    found = only(tmp_path / "log", "future-records")
    assert "2d from now" in found.what
    shell(found.run)


def test_small_differences_are_no_jumps():
    looks = [Look("a", 0, 0, 1, NOW_US, None, False), Look("a", 0, 5, 1, NOW_US - 1_000_000, None, True)]
    assert kinds(check_clock(looks, [("a[0]", NOW_US + 1_000_000)], NOW_US - 2_000_000, COMMANDS)) == []


# Room.


def test_a_full_disk(tailrace_log, tailrace_faults, tmp_path):
    tailrace_log.topic("orders").append("x")
    tailrace_faults.fill_disk()
    found = next(each for each in tailrace_log.doctor() if each.code == "disk-full")
    assert found.severity == "error"
    tailrace_faults.free_disk()
    shell(found.run)
    assert codes(tmp_path / "log") == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts file systems")
def test_a_small_file_system_in_memory(tmp_path):
    point = tmp_path / "mounted"
    point.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=64M,nr_inodes=60", "tailrace-test", str(point)]
    if subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        with tailrace.open(point / "log") as log:
            log.topic("orders").append("x")
            (point / "ballast").write_bytes(bytes(Files().free_bytes(str(point)) - 2_500_000))
            found = {each.code: each for each in log.doctor()}
            assert {"not-durable", "disk-nearly-full"} <= set(found)
            (point / "more").write_bytes(bytes(Files().free_bytes(str(point)) - 100_000))
            assert "disk-full" in kinds(log.doctor())
            number = 0
            while os.statvfs(point).f_favail > 2:
                (point / f"file{number}").touch()
                number += 1
            found = {each.code: each for each in log.doctor()}
            assert found["inodes-few"].severity == "warning"
        for code in ("not-durable", "inodes-few", "disk-full"):
            shell(found[code].run)
        subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True)
        found = {each.code: each for each in tailrace.Log.diagnose(point / "log")}
        assert found["read-only-mount"].severity == "error"
        shell(found["read-only-mount"].run)
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_room_on_plain_values():
    def check(free: int, left: float | None = None, files: int = 10**6, size: int = 10**12) -> list[str]:
        return kinds(check_room(Room(free, size, files, 10**6, False), left, 1e6, COMMANDS))

    assert check(10**11) == []
    assert check(10**5) == ["disk-full"]
    assert check(10**9) == ["disk-nearly-full"]
    assert check(10**6 * 5, size=10**7 * 2) == []
    assert check(10**11, 6 * 86_400) == ["disk-full-soon"]
    assert check(10**11, 8 * 86_400) == []
    assert check(10**11, files=500) == ["inodes-few"]
    (found,) = check_room(Room(10**11, 10**12, 0, 0, False), 86_400 * 2.5, 1e6, COMMANDS)
    assert "in 2.5d" in found.what


def test_days_left_take_retention_into_account():
    unlimited, sized, aged = Growth(None, None), Growth(1_000, None), Growth(None, 10.0)
    assert seconds_left(10_000, 0.0, [unlimited]) is None
    assert seconds_left(10_000, 100.0, [unlimited]) == 100.0
    assert seconds_left(10_000, 100.0, [sized, aged]) is None
    assert seconds_left(10_000, 100.0, [sized, aged, unlimited]) == 100.0
    assert seconds_left(1_500, 100.0, [sized, aged]) == 15.0


def test_the_rate_is_that_of_the_last_day():
    # Two days of 100 bytes a second, in segments of six hours.
    looks = [
        Look("a", 0, n, 2_160_000, NOW_US - (8 - n) * 6 * HOUR_US, NOW_US - (7 - n) * 6 * HOUR_US, n == 7)
        for n in range(8)
    ]
    assert rate_of(looks, NOW_US) == pytest.approx(100.0, rel=0.01)
    # One burst in a new log says nothing about days, unless the disk is full within the hour.
    assert rate_of([Look("a", 0, 0, 36_000, NOW_US - HOUR_US // 60, None, True)], NOW_US) == pytest.approx(10.0)
    assert rate_of([], NOW_US) == 0.0
    unlimited = [Growth(None, None)]
    assert expect(10**6, 1.0, 100.0, unlimited) == (1.0, 10**6)
    assert expect(10**5, 1.0, 100.0, unlimited) == (100.0, 10**3)


def test_a_disk_that_will_be_full(tailrace_log, tailrace_clock, tmp_path, monkeypatch):
    tailrace_log.topic("orders").extend([bytes(1_000)] * 3_000)
    tailrace_clock.advance("2h")
    found = diagnose(tmp_path / "log")
    assert found == []
    # As much room as three days of this rate need.
    real = Machine().room(str(tmp_path))
    rate = 3_000_000 / 7_200
    monkeypatch.setattr(
        Machine, "room", lambda self, path: real._replace(free_bytes=round(rate * 3 * 86_400), bytes=10**9)
    )
    (found,) = [each for each in tailrace_log.doctor() if each.code == "disk-full-soon"]
    assert "418B/s" in found.what
    assert "in 2.99d" in found.what
    tailrace_log.topic("orders").alter(retain="1h")
    assert "disk-full-soon" not in kinds(tailrace_log.doctor())


def test_many_small_segments():
    looks = [Look("a", 0, n, 20_000, NOW_US, NOW_US, False) for n in range(64)]
    (found,) = check_segments(looks, {"a": 5_000, "b": 5_000}, COMMANDS)
    assert found.code == "small-segments"
    assert "topic alter a segment_bytes=default segment_age=default" in found.run
    assert kinds(check_segments(looks, {"a": 64}, COMMANDS)) == []


def test_the_command_for_small_segments_works(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("a", segment_bytes="4KiB").append("x")
    looks = [Look("a", 0, 0, 20_000, NOW_US, NOW_US, False)]
    (found,) = check_segments(looks, {"a": 5_000}, Commands(str(tmp_path / "log")))
    shell(found.run)


# File systems.


@pytest.mark.parametrize(
    ("kind", "options", "code"),
    [
        ("ext4", {"rw"}, None),
        ("xfs", {"rw"}, None),
        ("nfs4", {"rw"}, "unsupported-file-system"),
        ("cifs", {"rw"}, "unsupported-file-system"),
        ("fuse.sshfs", {"rw"}, "unsupported-file-system"),
        ("fuse.something", {"rw"}, "unknown-file-system"),
        ("tmpfs", {"rw"}, "not-durable"),
        ("overlay", {"rw"}, "container-layer"),
        ("ext4", {"ro"}, "read-only-mount"),
        ("ext4", {"rw", "nobarrier"}, "no-barriers"),
        ("ext4", {"rw", "barrier=0"}, "no-barriers"),
        ("ext4", {"rw", "data=writeback"}, "writeback-mode"),
    ],
)
def test_file_systems(kind, options, code):
    found = kinds(check_mount(Mount(kind, "/data", frozenset(options)), COMMANDS))
    assert found == ([] if code is None else [code])
    assert check_mount(None, COMMANDS) is not None
    assert "nfs" in UNSUPPORTED


def test_a_read_only_file_system_without_a_mount():
    room = Room(1, 1, 1, 1, True)
    assert kinds(check_read_only(room, None, COMMANDS)) == ["read-only-mount"]
    assert kinds(check_read_only(room, Mount("ext4", "/", frozenset({"ro"})), COMMANDS)) == []


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


def test_few_descriptors(tmp_path):
    (found,) = check_limits(200, 256, None)
    assert found.code == "few-descriptors"
    assert kinds(check_limits(200, 1_024, None)) == []
    if os.getuid() == 0:
        shell(found.run.removeprefix("sudo "))
    program = """
    import resource, sys, tailrace
    resource.setrlimit(resource.RLIMIT_NOFILE, (70, 70))
    with tailrace.open(sys.argv[1]) as log:
        log.topic("orders", partitions=30).append("x")
        print(*[each.code for each in log.doctor()])
    """
    assert "few-descriptors" in run(program, tmp_path / "log").split()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 70


# The rest on plain values.


def test_what_lasts_is_what_two_looks_have_in_common():
    stuck = Slot(1, "a[0]", 10, 5, 7, 0, 0, 0)
    moving = Slot(2, "b[0]", 10, 5, 0, 0, 0, 1)
    before = Words(True, True, True, False, 7, (stuck, moving), ("c[0]",))
    after = before._replace(slots=(stuck, moving._replace(end=11)), unresolved=8, mismatches=())
    found = lasting(before, after)
    assert found == after._replace(slots=(stuck,), unresolved=0)
    assert lasting(before, None) is None


def test_many_journal_files():
    assert kinds(check_journal(None, Journal(5, 10**8), COMMANDS)) == ["journal-many"]
    assert kinds(check_journal(None, Journal(4, 10**8), COMMANDS)) == []


def test_lost_ranges_are_a_note():
    lost = [Damage("orders", 0, 5, 9, "x.seg", 0, "lost"), Damage("orders", 0, 20, 29, "x.seg", 0, "lost")]
    (found,) = check_lost(lost, COMMANDS)
    assert (found.code, found.severity, found.damage) == ("lost-range", "note", False)
    assert "offsets 5 to 9, 20 to 29" in found.what


def test_the_worst_comes_first_and_once():
    some = [finding(code, "x", "y") for code in ("quarantine", "log-failed", "lock-held", "log-failed")]
    assert kinds(worst_first(some)) == ["log-failed", "lock-held", "quarantine"]
    assert {kind.severity for kind in KINDS.values()} == {"error", "warning", "note"}


def test_too_many_namespaces_for_the_time(tmp_path, monkeypatch):
    with tailrace.open(tmp_path / "log") as log:
        for name in ("a", "b"):
            log.namespace(name).close()
    monkeypatch.setattr(settings, "TUNING", Tuning(doctor_namespaces_seconds=-1.0))
    found = only(tmp_path / "log", "not-looked-at")
    assert "2 namespaces" in found.what
    shell(found.run)


def test_words_are_quoted():
    assert quote("a b") == "'a b'"
    odd = quote("a\x01b")
    assert shell(f"printf %s {odd} | od -An -tx1").split() == ["61", "01", "62"]
    assert Path(shell(f"printf %s {quote('/tmp/ü')}")) == Path("/tmp/ü")
