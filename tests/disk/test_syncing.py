"""Syncs of many things at once: all of them, several at a time, and no thread left behind."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading

import pytest

import tailrace
from tailrace import bulk
from tailrace.disk import syncing
from tailrace.disk.files import Files
from tailrace.disk.syncing import sync_all
from tailrace.engine import engine as engines
from tailrace.errors import StorageError

MANY = syncing.TOGETHER_MIN


def workers() -> list[threading.Thread]:
    """The helpers that are left once each had the time to end: a helper that syncs nothing any more may still run."""
    helpers = [thread for thread in threading.enumerate() if thread.name == "tailrace-sync"]
    for thread in helpers:
        thread.join(60)
    return [thread for thread in helpers if thread.is_alive()]


def test_everything_is_synced_once_and_no_thread_is_left():
    done: list[int] = []
    for count in (0, 1, MANY - 1, MANY, 10 * MANY):
        sync_all(done.append, range(count))
        assert sorted(done) == [*range(count)]
        done.clear()
    assert workers() == []


def test_few_are_synced_in_their_order_by_the_caller():
    by: list[tuple[int, threading.Thread]] = []
    sync_all(lambda item: by.append((item, threading.current_thread())), range(MANY - 1))
    assert by == [(item, threading.current_thread()) for item in range(MANY - 1)]


def test_what_one_of_them_meets_is_raised_when_all_threads_are_done():
    began, more = threading.Event(), threading.Event()
    done: list[int] = []

    def sync(item: int) -> None:
        if item == 0:
            assert began.wait(60)
            more.set()
            raise OSError(errno.EIO, "the medium failed")
        began.set()
        assert more.wait(60)
        done.append(item)

    with pytest.raises(OSError, match="the medium failed"):
        sync_all(sync, range(1_000))
    assert workers() == []
    # What was begun was finished, and nothing else was begun.
    assert 1 <= len(done) < 999


@pytest.mark.parametrize("started", [1, 3])
def test_a_thread_whose_start_was_interrupted_begins_no_sync_afterwards(monkeypatch, started):
    """Thread.start waits for its thread, and an interrupt there leaves one that runs without being known."""
    begin = threading.Event()
    inside: list[int] = []
    late: list[int] = []
    over = threading.Event()
    original = threading.Thread.start
    starts = []

    def start(thread: threading.Thread) -> None:
        original(thread)
        starts.append(thread)
        if len(starts) == started:
            assert begin.wait(60)
            raise KeyboardInterrupt

    def sync(item: int) -> None:
        inside.append(item)
        begin.set()
        if over.wait(0.01):
            late.append(item)
        inside.remove(item)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            sync_all(sync, range(1_000))
    assert inside == []
    over.set()
    assert workers() == []
    assert late == []


def test_an_interrupt_waits_for_the_threads():
    began, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def sync(item: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert began.wait(60)
            go_on.set()
            raise KeyboardInterrupt
        began.set()
        assert go_on.wait(60)
        done.append(item)

    with pytest.raises(KeyboardInterrupt):
        sync_all(sync, range(1_000))
    assert workers() == []
    assert done


def test_without_threads_the_caller_does_it_all(monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    sync_all(done.append, range(MANY))
    assert done == [*range(MANY)]


# Where the engine uses it.


class Meeting(Files):
    """Lets the sync of a segment wait until another one is under way: in a single thread that never happens."""

    def __init__(self) -> None:
        super().__init__()
        self.met = threading.Barrier(2)
        self.fail: str | None = None
        self.names: dict[int, str] = {}
        self.watching = False

    def open(self, path: str, **how: bool) -> int:
        descriptor = super().open(path, **how)
        self.names[descriptor] = path
        return descriptor

    def sync_data(self, fd: int) -> None:
        path = self.names.get(fd, "")
        if self.watching and path.endswith(".seg"):
            if self.fail is not None and self.fail in path:
                raise OSError(errno.EIO, "the medium failed")
            if self.fail is None:
                self.met.wait(60)
        super().sync_data(fd)


@pytest.fixture
def disk(monkeypatch):
    files = Meeting()
    monkeypatch.setattr(engines, "FILES", files)
    return files


def parts(count: int, value: str) -> list[bulk.InlinePart]:
    return [bulk.InlinePart("wide", index, bulk.build([value])) for index in range(count)]


def test_a_commit_over_many_new_partitions_syncs_their_segments_together(disk, tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("wide", partitions=MANY)
        disk.watching = True
        bulk.commit(log, parts(MANY, "a"))
        disk.watching = False
        assert [record.text for record in log.topic("wide").read()] == ["a"] * MANY


def test_a_checkpoint_of_many_partitions_syncs_them_together(disk, tmp_path):
    log = tailrace.open(tmp_path / "log")
    log.topic("wide", partitions=MANY)
    bulk.commit(log, parts(MANY, "a"))
    disk.watching = True
    log.close()
    assert disk.met.n_waiting == 0
    disk.watching = False
    with tailrace.open(tmp_path / "log") as log:
        assert [record.text for record in log.topic("wide").read()] == ["a"] * MANY


def test_a_commit_whose_new_segments_cannot_be_synced_writes_nothing(disk, tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("wide", partitions=MANY)
        disk.watching, disk.fail = True, f"/{MANY // 2}/"
        with pytest.raises(StorageError):
            bulk.commit(log, parts(MANY, "a"))
        disk.watching = False
        assert workers() == []
        assert [*log.topic("wide").read()] == []
        # What the failed commit created is in nobody's way.
        bulk.commit(log, parts(MANY, "b"))
        assert [record.text for record in log.topic("wide").read()] == ["b"] * MANY


def test_a_log_that_is_closed_with_the_interpreter_is_synced(tmp_path):
    script = f"""
import tailrace
from tailrace import bulk
log = tailrace.open({str(tmp_path / "log")!r})
log.topic("wide", partitions={MANY})
bulk.commit(log, [bulk.InlinePart("wide", index, bulk.build(["a"])) for index in range({MANY})])
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    with tailrace.open(tmp_path / "log") as log:
        assert len([*log.topic("wide").read()]) == MANY
