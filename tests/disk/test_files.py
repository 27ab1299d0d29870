"""The real files: short writes, locks among real processes, mappings."""

from __future__ import annotations

import array
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.disk import files as module
from tailrace.disk.files import BOOT_ID_VARIABLE, BUFFERS_MAX, WAITERS_IDLE_MAX, Files
from tests.rigs.faults.inject import Injector

HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


class Holder:
    """Another process that holds the lock of a file until told or killed."""

    def __init__(self, path: str) -> None:
        command = [sys.executable, "-c", HOLDER, path]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def release(self) -> None:
        self.process.communicate("go\n", timeout=10)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "file").touch()
    return str(tmp_path / "file")


@pytest.fixture
def holder(path: str) -> Iterator[Holder]:
    holder = Holder(path)
    yield holder
    holder.kill()


def test_write_and_read_anywhere_in_a_file(files: Files, path: str) -> None:
    fd = files.open(path, write=True)
    files.write(fd, b"world", 6)
    files.write(fd, bytearray(b"hello "), 0)
    assert files.read(fd, 11, 0) == b"hello world"
    assert files.read(fd, 100, 6) == b"world"
    assert files.read(fd, 5, 50) == b""
    files.write(fd, memoryview(array.array("Q", [1, 2])), 0)
    assert files.read(fd, 16, 0) == b"\1" + bytes(7) + b"\2" + bytes(7)
    assert files.write_all(fd, [b"ab", bytearray(b""), memoryview(b"cd")] * BUFFERS_MAX, 1) == 4 * BUFFERS_MAX
    assert files.read(fd, 4 * BUFFERS_MAX, 1) == b"abcd" * BUFFERS_MAX
    assert files.write_all(fd, [], 0) == 0
    files.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.read(fd, 1, 0)


def test_short_writes_and_reads_are_continued(files: Files, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = files.open(path, write=True)
    monkeypatch.setattr(module, "_pwrite", lambda fd, data, at: os.pwrite(fd, memoryview(data).cast("B")[:7], at))
    monkeypatch.setattr(module, "_pwritev", lambda fd, data, at: os.pwrite(fd, b"".join(data)[:5], at))
    monkeypatch.setattr(module, "_pread", lambda fd, count, at: os.pread(fd, min(count, 3), at))
    text = bytes(range(100))
    files.write(fd, text, 0)
    assert files.read(fd, 200, 0) == text
    files.write(fd, memoryview(array.array("Q", range(20))), 0)
    assert files.read(fd, 160, 0) == array.array("Q", range(20)).tobytes()
    assert files.write_all(fd, [text[:3], text[3:4], b"", text[4:50], text[50:]], 2) == 100
    assert files.read(fd, 100, 2) == text
    monkeypatch.setattr(module, "_pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="No space left"):
        files.write(fd, text, 0)


def test_a_write_that_meets_a_limit_halfway_is_an_error(path: str) -> None:
    code = """
import resource, sys
from tailrace.disk.files import Files
files = Files()
fd = files.open(sys.argv[1], write=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for write in (lambda: files.write(fd, bytes(150), 0), lambda: files.write_all(fd, [bytes(75), bytes(75)], 0)):
    try:
        write()
    except OSError as error:
        print(error.errno, files.stat_open(fd).size)
"""
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert run.stdout == f"{errno.EFBIG} 100\n" * 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_device_is_an_error(files: Files) -> None:
    fd = files.open("/dev/full", write=True)
    with pytest.raises(OSError, match="No space left"):
        files.write(fd, b"x", 0)
    with pytest.raises(OSError, match="No space left"):
        files.write_all(fd, [b"x", b"y"], 0)
    files.close(fd)


@pytest.mark.parametrize("how", ["create", "exclusive", "write"])
def test_an_interrupted_opening_keeps_no_descriptor(files: Files, tmp_path: Path, how: str) -> None:
    """What is opened and never returned nobody can close."""
    number, opened = 0, []
    while not opened:
        number += 1
        path = f"{tmp_path}/{number}"
        if how == "write":
            Path(path).touch()
        before = os.listdir("/proc/self/fd")
        injector = Injector(number)
        injector.run(lambda: opened.append(files.open(path, **{how: True})))  # noqa: B023  # called at once
        if not opened:
            assert os.listdir("/proc/self/fd") == before, injector.place
    files.close(opened[0])
    assert number > 1


def test_a_directory_that_goes_away_while_it_is_made(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/d"
    os.mkdir(path)
    removed = []

    def isdir(asked: str) -> bool:
        if not removed:
            os.rmdir(path)
            removed.append(path)
        return Path(asked).is_dir()

    monkeypatch.setattr(os.path, "isdir", isdir)
    assert files.make_directory(path)
    assert removed
    assert Path(path).is_dir()
    os.symlink(f"{tmp_path}/nowhere", f"{tmp_path}/link")
    with pytest.raises(FileExistsError):
        files.make_directory(f"{tmp_path}/link")


def test_names(files: Files, tmp_path: Path) -> None:
    root = str(tmp_path)
    assert files.make_directory(f"{root}/d")
    assert not files.make_directory(f"{root}/d")
    with pytest.raises(FileExistsError):
        files.make_directory(f"{root}/d", exist_ok=False)
    files.close(files.open(f"{root}/d/b", create=True))
    files.close(files.open(f"{root}/d/a", exclusive=True))
    with pytest.raises(FileExistsError):
        files.open(f"{root}/d/a", exclusive=True)
    with pytest.raises(FileExistsError):
        files.make_directory(f"{root}/d/a")
    assert files.list_directory(f"{root}/d") == ["a", "b"]
    files.rename(f"{root}/d/a", f"{root}/d/b")
    files.sync_directory(f"{root}/d")
    assert files.list_directory(f"{root}/d") == ["b"]
    with pytest.raises(OSError, match="not empty"):
        files.remove_directory(f"{root}/d")
    with pytest.raises(NotADirectoryError):
        files.open(f"{root}/d/b", directory=True)
    assert files.stat(f"{root}/d/b/c") is None
    files.remove_file(f"{root}/d/b")
    files.remove_directory(f"{root}/d")
    assert files.stat(f"{root}/d") is None
    for missing in (files.sync_directory, files.list_directory, files.remove_file, files.open, files.watch):
        with pytest.raises(FileNotFoundError):
            missing(f"{root}/d")
    stat = files.stat(root)
    assert stat is not None
    assert stat.directory
    fd = files.open(root, directory=True)
    assert files.stat_open(fd) == stat
    assert not os.get_inheritable(fd)
    files.close(fd)
    assert files.free_bytes(root) > 0


def test_sizes(files: Files, path: str) -> None:
    fd = files.open(path, write=True)
    files.write(fd, b"abc", 0)
    files.reserve(fd, 2, 8190)
    assert files.stat_open(fd).size == 8192
    assert files.read(fd, 5, 0) == b"abc\0\0"
    files.reserve(fd, 0, 0)
    files.truncate(fd, 2)
    files.sync_data(fd)
    files.sync_everything()
    stat = files.stat(path)
    assert stat == files.stat_open(fd)
    assert stat is not None
    assert (stat.size, stat.directory) == (2, False)
    files.close(fd)


def test_the_boot_id_is_stable_and_can_be_given(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BOOT_ID_VARIABLE, raising=False)
    own = files.boot_id()
    assert len(own) == 16
    assert own == files.boot_id()
    monkeypatch.setenv(BOOT_ID_VARIABLE, "after the cut")
    given = files.boot_id()
    assert len(given) == 16
    assert given not in (own, bytes(16))


def test_clock_identity_and_randomness(files: Files) -> None:
    assert abs(files.now_us() / 1e6 - time.time()) < 5
    assert files.process_id() == os.getpid()
    assert files.random_bytes(16) != files.random_bytes(16)
    started = files.monotonic()
    files.sleep(0.002)
    assert files.monotonic() - started >= 0.002


def test_two_descriptors_exclude_each_other_unless_shared(files: Files, path: str) -> None:
    first, second = files.open(path), files.open(path)
    assert files.lock(first)
    assert not files.lock(second)
    assert not files.lock(second, shared=True)
    files.unlock(first)
    assert files.lock(first, shared=True)
    assert files.lock(second, shared=True)
    assert not files.lock(first)
    files.close(second)
    assert files.lock(first)
    files.close(first)


def test_a_lock_held_elsewhere_names_its_holder_and_times_out(files: Files, path: str, holder: Holder) -> None:
    fd = files.open(path)
    assert not files.lock(fd)
    if sys.platform == "linux":
        assert files.lock_holder(fd) == holder.process.pid
    for timeout in (0.0001, 0.05):
        started = time.monotonic()
        assert not files.lock(fd, timeout=timeout)
        assert timeout <= time.monotonic() - started < 2
        files.close(fd)
        fd = files.open(path)
    files.close(fd)


def test_a_killed_process_frees_its_lock_for_one_who_waits(files: Files, path: str, holder: Holder) -> None:
    fd = files.open(path)
    threading.Timer(0.1, holder.process.kill).start()
    started = time.monotonic()
    assert files.lock(fd, timeout=30.0)
    assert time.monotonic() - started < 5
    other = files.open(path)
    assert not files.lock(other), "the lock stays with the descriptor after the helper closed its own"
    files.close(fd)
    assert files.lock(other)
    files.close(other)


def test_an_abandoned_wait_leaves_no_lock_behind(files: Files, path: str, holder: Holder) -> None:
    fd = files.open(path)
    assert not files.lock(fd, timeout=0.01)
    files.close(fd)
    holder.release()
    other = files.open(path)
    assert files.lock(other, timeout=10.0)
    files.close(other)


def test_an_interrupted_wait_leaves_no_lock_behind(files: Files, path: str, holder: Holder) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    fd = files.open(path)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            files.lock(fd, timeout=30.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
        files.close(fd)
    holder.release()
    other = files.open(path)
    assert files.lock(other, timeout=10.0)
    files.close(other)


def test_a_fork_during_a_wait_does_not_keep_the_lock(files: Files, path: str, holder: Holder) -> None:
    fd = files.open(path)
    got: list[bool] = []
    waiter = threading.Thread(target=lambda: got.append(files.lock(fd, timeout=30.0)))
    waiter.start()
    while not module._duplicates:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        os.close(fd)
        time.sleep(60)
        os._exit(0)
    try:
        holder.release()
        waiter.join(10)
        assert got == [True]
        files.close(fd)
        other = files.open(path)
        deadline = time.monotonic() + 5
        while not (free := files.lock(other)) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert free, "the child's copy of the helper's descriptor holds the lock"
        files.close(other)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_contended_locks_exclude_and_reuse_their_helpers(files: Files, path: str) -> None:
    inside = 0
    most = 0
    turns = 0

    def work() -> None:
        nonlocal inside, most, turns
        fd = files.open(path)
        for _ in range(20):
            assert files.lock(fd, timeout=60.0)
            inside += 1
            most = max(most, inside)
            time.sleep(0.0005)
            turns += 1
            inside -= 1
            files.unlock(fd)
        files.close(fd)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, turns) == (1, 120)
    time.sleep(0.05)
    helpers = [thread for thread in threading.enumerate() if thread.name == "tailrace-lock-waiter"]
    assert len(helpers) <= WAITERS_IDLE_MAX + 1
    assert not module._duplicates


def test_an_error_in_a_helper_reaches_the_caller(files: Files, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = files.open(path), files.open(path)
    assert files.lock(first)
    real = module._flock

    def flock(fd: int, operation: int) -> None:
        if operation == module._EXCLUSIVE:
            raise OSError(errno.ENOLCK, "no locks available")
        real(fd, operation)

    monkeypatch.setattr(module, "_flock", flock)
    with pytest.raises(OSError, match="no locks available"):
        files.lock(second, timeout=5.0)
    files.close(first)
    files.close(second)


def test_waiting_still_works_when_no_thread_can_start(path: str) -> None:
    code = """
import atexit, os, sys, threading
from tailrace.disk.files import Files
files = Files()
first, second = files.open(sys.argv[1]), files.open(sys.argv[1])
def at_the_end():
    assert files.lock(first)
    print(files.lock(second, timeout=0.05))
    files.close(first)
    print(files.lock(second, timeout=0.05))
atexit.register(at_the_end)
"""
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert run.stdout == "False\nTrue\n"
    assert run.stderr == ""


def test_a_mapping_is_shared_with_another_process_and_with_reads(files: Files, path: str) -> None:
    fd = files.open(path, write=True)
    files.write(fd, bytes(4096), 0)
    mapping = files.map(fd, 4096)
    mapping.words[1] = 0x0102030405060708
    mapping.view[100:103] = b"abc"
    code = """
import sys
from tailrace.disk.files import Files
files = Files()
mapping = files.map(files.open(sys.argv[1], write=True), 4096)
assert mapping.words[1] == 0x0102030405060708
mapping.words[2] = 77
print(bytes(mapping.view[100:103]))
"""
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert run.stdout == "b'abc'\n"
    assert mapping.words[2] == 77
    assert files.read(fd, 8, 8) == bytes(range(8, 0, -1))
    living = mapping.view[100:103]
    mapping.close()
    assert bytes(living) == b"abc"
    with pytest.raises(ValueError, match="released"):
        mapping.words[1]
    with pytest.raises(OSError, match="shorter than the 4097 bytes"):
        files.map(fd, 4097)
    files.close(fd)


def test_read_only_mappings(files: Files, path: str) -> None:
    fd = files.open(path, write=True)
    assert files.map_read(fd, 0).nbytes == 0
    files.write(fd, b"0123456789abcdef", 0)
    view = files.map_read(fd, 10)
    reader = files.open(path)
    words = files.map(reader, 16, write=False).words
    files.close(fd)
    files.close(reader)
    assert bytes(view) == b"0123456789"
    assert words[0] == int.from_bytes(b"01234567", "little")
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1
    with pytest.raises(TypeError, match="read-only"):
        words[0] = 1
