"""The surroundings of a log: the clock, the file system, permissions and limits."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

import tailrace
from tailrace.maintain.doctor.commands import Commands
from tailrace.maintain.doctor.machine import Mount, Room
from tailrace.maintain.doctor.segments import Look
from tailrace.maintain.doctor.surroundings import UNSUPPORTED, check_clock, check_limits, check_mount, check_read_only
from tests.doctoring import codes, only, shell
from tests.processes import run

COMMANDS = Commands("/data/shop", None, "/data/shop")


HOUR_US = 3_600 * 1_000_000


NOW_US = 2_000_000 * HOUR_US // 4


def kinds(findings) -> list[str]:
    return [each.code for each in findings]


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


@pytest.fixture(autouse=True)
def _small_journals(monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "256KiB")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "log"


def fill(path: Path, topic: str = "orders", *, segments: int = 3, **settings) -> None:
    """A topic of one partition with several segments."""
    with tailrace.open(path) as log:
        made = log.topic(topic, segment_bytes="16KiB", **settings)
        for number in range(segments):
            made.extend([b"%06d" % (number * 100 + each) + bytes(140) for each in range(100)])


def segments(path: Path, topic: str = "orders") -> list[Path]:
    return sorted(path.glob(f"topics/*-{topic}/0/*.seg"))


def as_nobody(path: Path) -> list[str]:
    """The codes that a user without any rights gets."""
    program = """
    import os, sys, tailrace
    # The interpreter's own files may be root's alone: everything is imported before the rights are given up.
    tailrace.Log.diagnose(sys.argv[1])
    if os.getuid() == 0:
        os.setgid(65534); os.setuid(65534)
    for each in tailrace.Log.diagnose(sys.argv[1]):
        print(each.code)
    """
    return run(program, path).split()


def test_permissions(path):
    fill(path)
    for above in (path.parent, *path.parent.parents):
        if above.stat().st_uid == os.getuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o055)
    path.chmod(0o700)
    if os.getuid() == 0:
        assert as_nobody(path) == ["unreadable"]
        path.chmod(0o755)
        assert "no-write-permission" in as_nobody(path)
    else:
        path.chmod(0o000)
        assert "unreadable" in as_nobody(path)
        path.chmod(0o555)
        assert "no-write-permission" in as_nobody(path)
        path.chmod(0o755)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_mixed_owners(path):
    fill(path)
    os.chown(path / "tails", 65534, -1)
    found = only(path, "mixed-owners")
    assert str(path / "tails") in found.what
    shell(found.run.removeprefix("sudo "))
    assert codes(path) == []
