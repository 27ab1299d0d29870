"""What a signal handler raises while a call waits comes out of that call as it is, and the log goes on."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import tailrace
import tailrace.groups.consumer
from tailrace.disk.files import Files
from tests.rigs.faults.test_leftovers import locked

# All of them are OSErrors, as those of a disk are.
ERRORS = {
    "timeout": lambda: TimeoutError("the deadline has passed"),
    "connection": lambda: ConnectionResetError(errno.ECONNRESET, "reset by peer"),
    "interrupted": lambda: InterruptedError(errno.EINTR, "interrupted"),
    "a full disk": lambda: OSError(errno.ENOSPC, "somewhere else"),
}


def each(calls: Iterable[str]) -> list[tuple[str, str]]:
    """Every call with one error, and the first one with all of them."""
    first, *others = calls
    return [*((first, kind) for kind in ERRORS), *((call, "timeout") for call in others)]


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", timeout=60.0) as log:
        for name in ("left", "right"):
            log.topic(name).append("there")
        yield log


@contextmanager
def raising(error: BaseException) -> Iterator[None]:
    """Inside, SIGUSR1 raises this error in the main thread."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def signalled_in(file: str, function: str) -> Iterator[None]:
    """Send the signal as soon as the main thread has waited in a function for a moment."""
    main = threading.main_thread().ident
    ended = threading.Event()

    def is_there() -> bool:
        frame = sys._current_frames().get(main)
        while frame is not None:
            if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
                return True
            frame = frame.f_back
        return False

    def watch() -> None:
        seen = 0
        while seen < 5 and not ended.wait(0.01):
            seen = seen + 1 if is_there() else 0
        if not ended.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def held_by_another(log: tailrace.Log, topic: str) -> Iterator[None]:
    """The lock of a topic's only partition, as another process would hold it."""
    (directory,) = Path(log.location).glob(f"topics/*-{topic}/0")
    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def goes_on(log: tailrace.Log) -> None:
    """Nothing is locked, read-only or damaged."""
    for name in ("left", "right"):
        offset = log.topic(name).append("after").offset
        assert log.topic(name).get(offset).text == "after"
    with log.transaction() as transaction:
        transaction.append("left", "both")
        transaction.append("right", "both")
    assert not locked(log)
    assert log.verify().ok


def append(log: tailrace.Log, durable: bool = True) -> None:
    log.topic("left").append("interrupted", durable=durable)


def transact(log: tailrace.Log) -> None:
    with log.transaction() as transaction:
        transaction.append("left", "interrupted")
        transaction.append("right", "interrupted")


WAITING_FOR_A_LOCK: dict[str, Callable[[tailrace.Log], object]] = {
    "append": append,
    "append, not durable": lambda log: append(log, durable=False),
    "extend": lambda log: log.topic("left").extend(["interrupted"] * 3),
    "transaction": transact,
    "trim": lambda log: log.topic("left").trim(1),
}


@pytest.mark.parametrize(("call", "kind"), each(WAITING_FOR_A_LOCK))
def test_a_wait_for_a_lock(log, call, kind):
    error = ERRORS[kind]()
    waiting = signalled_in("disk/files.py", "_wait_for_lock")
    with held_by_another(log, "left"), raising(error), waiting, pytest.raises(type(error)) as caught:
        WAITING_FOR_A_LOCK[call](log)
    assert caught.value is error
    assert error.__cause__ is None
    goes_on(log)


@pytest.mark.parametrize("kind", ERRORS)
def test_a_wait_for_records(log, kind):
    error = ERRORS[kind]()
    scan = iter(log.topic("left").read("latest", follow=True))
    with raising(error), signalled_in("disk/watch.py", "wait"), pytest.raises(type(error)) as caught:
        next(scan)
    assert caught.value is error
    goes_on(log)


@pytest.mark.parametrize("kind", ["timeout", "a full disk"])
def test_a_poll_of_a_consumer(log, kind):
    error = ERRORS[kind]()
    with log.consumer("left", "billing") as consumer:
        assert [record.text for record in consumer.poll()] == ["there"]
        with raising(error), signalled_in("disk/watch.py", "wait"), pytest.raises(type(error)) as caught:
            consumer.poll(timeout=60)
        assert caught.value is error
        log.topic("left").append("more")
        assert [record.text for record in consumer.poll(timeout=60)] == ["more"]
    goes_on(log)


@pytest.mark.parametrize("kind", ["timeout", "a full disk"])
def test_a_flush_of_a_producer(log, kind):
    error = ERRORS[kind]()
    producer = log.topic("left").producer(linger=0)
    with held_by_another(log, "left"), raising(error), signalled_in("tailrace/write/producer.py", "flush"):
        future = producer.append("sent")
        with pytest.raises(type(error)) as caught:
            producer.flush()
    assert caught.value is error
    assert future.result(60).offset == 1
    producer.close()
    goes_on(log)


SYNCING: dict[str, Callable[[tailrace.Log], object]] = {
    "append": append,
    "extend": lambda log: log.topic("left").extend(["interrupted"] * 3),
    "transaction": transact,
    "sync": lambda log: (append(log, durable=False), log.sync()),
    "create": lambda log: log.topic("new", partitions=2),
    "alter": lambda log: log.topic("left").alter(partitions=2),
    "commit": lambda log: [*log.consumer("left", "billing", commit="before", stop="now")],
}


@pytest.mark.parametrize(("call", "kind"), each(SYNCING))
def test_a_wait_for_the_disk(log, monkeypatch, call, kind):
    """Most of all it must not be taken for a failed sync, after which a partition is read-only for ever."""
    error = ERRORS[kind]()
    sync = Files.sync_data
    main = threading.main_thread()
    waited: list[int] = []

    def slow(files: Files, descriptor: int) -> None:
        if threading.current_thread() is main and not waited:
            waited.append(descriptor)
            signal.raise_signal(signal.SIGUSR1)
        sync(files, descriptor)

    monkeypatch.setattr(Files, "sync_data", slow)
    with raising(error), pytest.raises(type(error)) as caught:
        SYNCING[call](log)
    assert waited
    assert caught.value is error
    assert error.__cause__ is None
    goes_on(log)


def test_a_sync_that_fails_is_a_failed_sync_still(log, monkeypatch):
    def failing(files: Files, descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Files, "sync_data", failing)
        with pytest.raises(tailrace.errors.DurabilityError):
            append(log)
