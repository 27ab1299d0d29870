"""Signal handlers that write, read or close in the middle of a call of their own thread: refused, or whole."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

import tailrace
from tailrace import Position
from tailrace.disk.lock import DirectoryLock
from tailrace.disk.partition import Partition
from tailrace.disk.segment import Index
from tailrace.errors import BusyError
from tests.rigs.faults.inject import Injector
from tests.rigs.faults.test_leftovers import locked


@pytest.fixture
def log(tmp_path):
    log = tailrace.open(tmp_path / "log", timeout=8.0)
    for name in ("left", "right", "plain"):
        log.topic(name).append("there")
    log.engine.store.flusher.stop()
    yield log
    log.close()


@contextmanager
def handling(handle: Callable[[], object]) -> Iterator[list[BaseException]]:
    """What a handler of SIGUSR1 ran into."""
    caught: list[BaseException] = []

    def handler(*_: object) -> None:
        try:
            handle()
        except BaseException as error:  # noqa: BLE001  # looked at by the test
            caught.append(error)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield caught
    finally:
        signal.signal(signal.SIGUSR1, before)


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: Callable[..., object] | None = None) -> None:
    """Raise the signal when this is called next, before it does anything."""
    inner = getattr(owner, name)

    def signalled(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, inner)
        signal.raise_signal(signal.SIGUSR1)
        if after is not None:
            after(*arguments)
        return inner(*arguments, **named)

    monkeypatch.setattr(owner, name, signalled)


def texts(log: tailrace.Log, topic: str) -> list[str]:
    return [record.text for record in log.topic(topic).read()]


def transact(log: tailrace.Log) -> None:
    with log.transaction() as transaction:
        transaction.append("plain", "handler")
        transaction.append("left", "handler")


WRITES: dict[str, Callable[[tailrace.Log], object]] = {
    "append": lambda log: log.topic("left").append("handler"),
    "append, not durable": lambda log: log.topic("left").append("handler", durable=False),
    "transaction": transact,
    "drop": lambda log: log.topic("left").drop(),
    "trim": lambda log: log.topic("left").trim(1),
}


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("kind", WRITES)
def test_a_handler_does_not_let_go_of_what_the_call_beneath_it_holds(log, monkeypatch, kind, durable):
    """Another process would write where the call beneath is about to."""
    held: list[bool] = []
    once(monkeypatch, Partition, "write", lambda partition, *_: held.append(partition.lock.held and bool(locked(log))))
    with handling(lambda: WRITES[kind](log)) as caught:
        assert log.topic("left").append("beneath", durable=durable).offset == 1
    assert [type(error).__mro__[1] for error in caught] == [BusyError]
    assert held == [True]
    assert not locked(log)
    assert log.topic("left").append("on").offset == 2
    assert texts(log, "left") == ["there", "beneath", "on"]
    assert log.verify().ok


def test_a_handler_does_not_take_the_lock_that_the_call_beneath_it_waits_for(log, monkeypatch):
    """It has the mutex already, while another process has the lock itself."""
    store = log.engine.store
    left = store.partition(log.engine.entry("left").slots[0])
    flock, tries = left.files.flock, []

    def contended(descriptor: int, operation: int) -> None:
        """The first try of both calls meets another process."""
        if len(tries) < 2 and descriptor == left.lock.descriptor:
            tries.append(operation)
            raise BlockingIOError
        flock(descriptor, operation)

    monkeypatch.setattr(left.lock, "flock", contended)
    once(monkeypatch, DirectoryLock, "_wait")
    with handling(lambda: transact(log)) as caught:
        assert log.topic("left").append("beneath", durable=False).offset == 1
    assert len(tries) == 2
    assert [type(error).__mro__[1] for error in caught] == [BusyError]
    assert not locked(log)
    assert log.topic("left").append("on").offset == 2
    assert texts(log, "left") == ["there", "beneath", "on"]
    assert log.verify().ok


def test_a_handler_does_not_wait_for_another_thread_while_its_own_holds_a_lock(log, monkeypatch):
    """That one may be waiting for what the call beneath holds."""
    store = log.engine.store
    plain = store.partition(log.engine.entry("plain").slots[0])
    holds, over = threading.Event(), threading.Event()

    def hold() -> None:
        holds.set()
        over.wait(10)

    thread = threading.Thread(target=lambda: store.inside(plain, hold))
    thread.start()
    holds.wait(10)
    once(monkeypatch, Partition, "write")
    began = time.monotonic()
    with handling(lambda: log.topic("plain").append("handler")) as caught:
        log.topic("left").append("beneath")
    assert time.monotonic() - began < 6.0
    over.set()
    thread.join()
    assert [type(error).__mro__[1] for error in caught] == [BusyError]
    log.topic("plain").append("on")
    assert texts(log, "plain") == ["there", "on"]


@pytest.mark.parametrize("end", ["reads too", "raises"])
def test_a_handler_in_the_middle_of_an_index_leaves_it_right(log, monkeypatch, end):
    """Both would add the same frames to what all threads share, and every read behind it would be called damaged."""
    topic = log.topic("left")
    for number in range(50):
        topic.append(f"{number:05d}" * 2_000, durable=False)
    topic.get(3)
    for number in range(50, 65):
        topic.append(f"{number:05d}" * 2_000, durable=False)
    add, calls = Index.add, []

    def added(index: Index, *arguments: Any) -> None:
        calls.append(index)
        add(index, *arguments)
        if len(calls) == 10:
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(Index, "add", added)

    def handle() -> None:
        if end == "raises":
            raise KeyboardInterrupt
        assert topic.get(62).text[:5] == "00061"

    before = signal.signal(signal.SIGUSR1, lambda *_: handle())
    try:
        assert topic.get(60).text[:5] == "00059"
        assert end == "reads too"
    except KeyboardInterrupt:
        assert end == "raises"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(calls) > 10 or end == "raises"
    for number in range(65, 140):
        topic.append(f"{number:05d}" * 2_000, durable=False)
    for offset in range(140, 0, -1):
        assert topic.get(offset).text[:5] == f"{offset - 1:05d}"


@pytest.mark.parametrize("kind", ["the log", "a producer", "a flush"])
def test_nothing_is_closed_by_a_handler_in_the_middle_of_a_write(log, monkeypatch, kind):
    """It would wait for the threads of producers, and those for what the call beneath holds."""
    producer = log.topic("right").producer()
    futures = [producer.append("sent")]
    ends = {"the log": log.close, "a producer": producer.close, "a flush": producer.flush}
    once(monkeypatch, Partition, "write")
    began = time.monotonic()
    with handling(ends[kind]) as caught:
        log.topic("left").append("beneath")
    assert time.monotonic() - began < 6.0
    assert [type(error) for error in caught] == [BusyError]
    assert "interrupted call is over" in getattr(caught[0], "hint", "")
    futures.append(producer.append("on"))
    producer.close()
    assert [future.result().offset for future in futures] == [1, 2]
    assert texts(log, "left") == ["there", "beneath"]


def test_a_handler_is_refused_by_a_producer_that_it_came_into(log, monkeypatch):
    """It would wait for its own thread for ever."""
    producer = log.topic("right").producer()
    producer.append("first").result()
    once(monkeypatch, type(producer), "_begin")
    with handling(lambda: producer.append("handler")) as caught:
        future = producer.append("beneath")
    assert [type(error) for error in caught] == [BusyError]
    assert future.result().offset == 2
    producer.close()
    assert texts(log, "right") == ["there", "first", "beneath"]


@pytest.mark.parametrize("call", ["result", "exception"])
def test_a_handler_does_not_wait_for_what_waits_for_its_own_thread(log, monkeypatch, call):
    """The sender of the producer waits for the lock of the partition, and the call beneath has it."""
    producer = log.topic("left").producer()
    futures = []

    def wait() -> None:
        futures.append(producer.append("handler"))
        getattr(futures[0], call)(timeout=20)

    once(monkeypatch, Partition, "write")
    began = time.monotonic()
    with handling(wait) as caught:
        log.topic("left").append("beneath")
    assert time.monotonic() - began < 6.0
    assert [type(error) for error in caught] == [BusyError]
    assert f"{call}() was called in a signal handler" in str(caught[0])
    assert futures[0].result().offset == 2
    producer.close()


def test_a_handler_that_came_into_the_making_of_a_future(log, monkeypatch):
    """A future becomes one that can be waited for under a lock, and its own thread has that."""
    producer = log.topic("right").producer(linger="300ms")
    future = producer.append("sent")
    once(monkeypatch, Future, "__init__")
    with handling(lambda: future.result(timeout=20)) as caught:
        called: list[Future[Position]] = []
        future.add_done_callback(called.append)
    assert [type(error) for error in caught] == [BusyError]
    assert future.result().offset == 1
    producer.close()
    assert called == [future]


@pytest.mark.parametrize("sent", [False, True])
def test_an_interrupt_while_a_future_is_made_leaves_one_that_is_settled(log, sent):
    producer = log.topic("right").producer(linger="30ms")
    number, end = 0, False
    while not end:
        number += 1
        future = producer.append("sent")
        if sent:
            producer.flush()
        injector = Injector(number)
        end = injector.run(lambda: future.add_done_callback(lambda _: None))  # noqa: B023  # called at once
        called = threading.Event()
        future.add_done_callback(lambda _: called.set())  # noqa: B023
        assert called.wait(20), injector.place
        assert future.result(timeout=20).offset == number
        assert future.exception(timeout=20) is None
    producer.close()
    assert number > 4


def test_a_handler_may_close_what_its_thread_does_not_write_to(log):
    with handling(log.close) as caught:
        for record in log.topic("left").read():
            assert record.text == "there"
            signal.raise_signal(signal.SIGUSR1)
            break
    assert not caught
    assert log.closed
