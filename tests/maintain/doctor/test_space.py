"""Room on the disk: what is left, how fast it shrinks, and segments that are too small."""

from __future__ import annotations

import os
import subprocess

import pytest

import tailrace
from tailrace.disk.files import Files
from tailrace.maintain.doctor.commands import Commands
from tailrace.maintain.doctor.machine import Machine, Room
from tailrace.maintain.doctor.segments import Look
from tailrace.maintain.doctor.space import Growth, check_room, check_segments, expect, rate_of, seconds_left
from tests.doctoring import codes, diagnose, shell

COMMANDS = Commands("/data/shop", None, "/data/shop")


HOUR_US = 3_600 * 1_000_000


NOW_US = 2_000_000 * HOUR_US // 4


def kinds(findings) -> list[str]:
    return [each.code for each in findings]


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
