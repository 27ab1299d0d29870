"""Watching a real file that other processes write to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.disk.files import Files
from tailrace.disk.watch import Watch


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "tails").write_bytes(bytes(4096))
    return str(tmp_path / "tails")


@pytest.fixture
def watch(path: str) -> Iterator[Watch]:
    watch = Files().watch(path)
    yield watch
    watch.close()


def test_a_write_is_seen_once_however_often_it_came(watch: Watch, path: str) -> None:
    assert not watch.wait(0)
    fd = os.open(path, os.O_RDWR)
    for position in range(100):
        os.pwrite(fd, b"x", position)
    os.close(fd)
    assert watch.wait(5)
    started = time.monotonic()
    assert not watch.wait(0.02)
    assert time.monotonic() - started >= 0.015


def test_another_process_wakes_a_waiting_one(watch: Watch, path: str) -> None:
    code = "import os, sys, time; fd = os.open(sys.argv[1], os.O_RDWR); time.sleep(0.1); os.pwrite(fd, b'x', 0)"
    writer = subprocess.Popen([sys.executable, "-c", code, path])
    started = time.monotonic()
    assert watch.wait(30)
    assert time.monotonic() - started < 10
    assert writer.wait(10) == 0


def test_a_store_into_a_mapping_is_no_event(watch: Watch, path: str) -> None:
    files = Files()
    fd = files.open(path, write=True)
    mapping = files.map(fd, 4096)
    mapping.words[0] = 1
    assert not watch.wait(0.02)
    files.write(fd, b"\0", 128)
    assert watch.wait(5)
    mapping.close()
    files.close(fd)


def test_another_thread_ends_a_wait(watch: Watch) -> None:
    threading.Timer(0.05, watch.wake).start()
    started = time.monotonic()
    assert watch.wait(30)
    assert time.monotonic() - started < 10
    assert not watch.wait(0)
    watch.wake()
    watch.wake()
    assert watch.wait(30), "a wake before the wait counts"
    assert not watch.wait(0)


def test_closing_is_repeatable_and_a_late_wake_is_harmless(path: str) -> None:
    before = set(os.listdir("/dev/fd"))
    watch = Watch(path)
    watch.close()
    watch.close()
    watch.wake()
    assert watch.wait(30)
    assert set(os.listdir("/dev/fd")) == before
    with pytest.raises(FileNotFoundError):
        Watch(path + "-missing")
    assert set(os.listdir("/dev/fd")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="kqueue has no such limit")
def test_without_an_event_queue_it_looks_every_millisecond(path: str) -> None:
    code = """
import os, resource, sys, time
from tailrace.disk.watch import Watch
Watch(sys.argv[1]).close()
used = os.open("/dev/null", os.O_RDONLY)
os.close(used)
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
watch = Watch(sys.argv[1])
started = time.monotonic()
looks = [watch.wait(30) for _ in range(20)]
print(all(looks), time.monotonic() - started < 5, time.monotonic() - started >= 0.015)
watch.wake()
print(watch.wait(30))
watch.close()
"""
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert run.stdout == "True True True\nTrue\n"


def test_what_ended_a_wait_may_be_noted_later(watch: Watch, path: str) -> None:
    files = Files()
    fd = files.open(path, write=True)
    assert not watch.clear()
    files.write(fd, b"x", 0)
    assert watch.wait(5, clear=False)
    # Nothing is lost meanwhile: neither this event nor one that comes before it is noted.
    assert watch.wait(5, clear=False)
    files.write(fd, b"x", 0)
    assert watch.clear()
    assert not watch.clear()
    assert not watch.wait(0.02)
    files.write(fd, b"x", 0)
    files.close(fd)
    assert watch.wait(5)
    assert not watch.clear()
