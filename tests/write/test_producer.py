"""The producer: order, futures, back-pressure, errors, and what happens at the end."""

from __future__ import annotations

import concurrent.futures
import pickle
import threading
import time
from collections import defaultdict

import pytest

import tailrace
from tailrace import errors
from tailrace.disk.files import Files
from tests.full_disk import FullDisk


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        yield log


def texts(topic, **arguments):
    return [record.text for record in topic.read(**arguments)]


def test_records_arrive_in_order_and_are_on_disk_when_their_future_is_done(log):
    topic = log.topic("orders")
    with topic.producer() as sending:
        futures = [sending.append(f"v{number}") for number in range(10_000)]
        assert futures[-1].result(20) == (0, 9_999)
        assert topic.offsets()[0] == (0, 10_000, 10_000)
    assert [future.result() for future in futures] == [(0, number) for number in range(10_000)]
    assert texts(topic) == [f"v{number}" for number in range(10_000)]


def test_every_part_of_a_record_is_kept_whatever_comes_before_it(log):
    topic = log.topic("orders")
    with topic.producer(linger="1h") as sending:
        sending.append(b"plain")
        sending.append("keyed", key="k")
        sending.append("headed", headers={"h": "1"})
        sending.append(json={"timed": True}, timestamp=1_700_000_000_000_000)
        sending.append(None, key="gone")
        sending.append("last")
    records = list(topic.read())
    assert [(record.key, record.value, dict(record.headers)) for record in records] == [
        (None, b"plain", {}),
        (b"k", b"keyed", {}),
        (None, b"headed", {"h": b"1"}),
        (None, b'{"timed":true}', {}),
        (b"gone", None, {}),
        (None, b"last", {}),
    ]
    assert records[3].timestamp_us == 1_700_000_000_000_000
    assert abs(records[0].timestamp_us - time.time_ns() // 1_000) < 60_000_000


def test_each_thread_keeps_its_order_within_a_partition(log):
    topic = log.topic("orders", partitions=3)
    positions = {}

    def write(name):
        for number in range(2_000):
            key = f"{number % 5}" if number % 3 else None
            positions[f"{name} {number}"] = sending.append(f"{name} {number}", key=key)

    with topic.producer() as sending:
        threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    found = {record.text: (record.partition, record.offset) for record in topic.read()}
    assert found == {text: future.result() for text, future in positions.items()}
    seen = defaultdict(list)
    for record in topic.read():
        name, number = record.text.split()
        seen[record.partition, name].append(int(number))
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert all(bounds.latest == bounds.durable for bounds in topic.offsets().values())


def test_keyless_records_spread_over_partitions(log):
    topic = log.topic("orders", partitions=3)
    with topic.producer(linger=0) as sending:
        for _ in range(9):
            sending.append("x")
            sending.flush()
    assert [bounds.latest for bounds in topic.offsets().values()] == [3, 3, 3]


def test_lingering_gathers_and_flushing_ends_it(log):
    topic = log.topic("orders")
    with topic.producer(linger="1h") as sending:
        futures = [sending.append("x") for _ in range(3)]
        time.sleep(0.05)
        assert not any(future.done() for future in futures)
        assert futures[0].running()
        began = time.monotonic()
        sending.flush()
        assert time.monotonic() - began < 10
        assert all(future.done() for future in futures)
        sending.flush()
        sending.append(b"x" * (2 << 20))
        later = sending.append("this much is sent at once")
        assert later.result(20).offset == 4


def test_a_short_linger_sends_without_being_asked(log):
    with log.topic("orders").producer(linger="1ms") as sending:
        assert sending.append("x").result(20) == (0, 0)


# Back-pressure.


def test_a_full_buffer_makes_append_wait_and_loses_nothing(log):
    topic = log.topic("orders")
    most = 0
    with topic.producer(linger="1h", buffer_bytes="256KiB") as sending:
        for _ in range(100):
            sending.append(b"x" * 20_000)
            most = max(most, sending._buffered)
    assert most <= 256 << 10
    assert topic.offsets()[0].latest == 100


def test_a_record_larger_than_the_buffer_goes_alone(log):
    with log.topic("orders").producer(buffer_bytes="4KiB") as sending:
        futures = [sending.append(b"x" * 10_000) for _ in range(3)]
    assert [future.result().offset for future in futures] == [0, 1, 2]


class SlowDisk(Files):
    """The real disk, whose writes wait while it is stopped."""

    __slots__ = ("going", "waiting")

    def __init__(self):
        self.going = threading.Event()
        self.going.set()
        self.waiting = threading.Event()

    def write_all(self, fd, buffers, position):
        self.waiting.set()
        assert self.going.wait(20)
        return super().write_all(fd, buffers, position)

    def write(self, fd, data, position):
        self.waiting.set()
        assert self.going.wait(20)
        super().write(fd, data, position)


@pytest.fixture
def slow(monkeypatch):
    disk = SlowDisk()
    monkeypatch.setattr("tailrace.engine.engine.FILES", disk)
    yield disk
    disk.going.set()


def test_a_buffer_that_stays_full_is_an_error(tmp_path, slow):
    with tailrace.open(tmp_path / "shop", timeout="50ms") as log:
        topic = log.topic("orders", partitions=1)
        sending = topic.producer(buffer_bytes="1KiB")
        slow.going.clear()
        first = sending.append(b"x" * 900)
        with pytest.raises(errors.BusyError, match=r"stayed full for 0\.05 s"):
            sending.append(b"y" * 900)
        with pytest.raises(errors.BusyError, match=r"within 0\.02 s"):
            sending.flush("20ms")
        slow.going.set()
        sending.close()
        assert first.result() == (0, 0)
        assert topic.offsets()[0].latest == 1


def test_a_lock_that_is_not_to_be_had_reaches_the_futures(tmp_path):
    with tailrace.open(tmp_path / "shop", timeout="50ms") as log:
        topic = log.topic("orders", partitions=1)
        sending = topic.producer(linger=0)
        partition = log.engine.partition(log.engine.entry("orders"), 0)
        with partition.lock.mutex:
            failed = sending.append("lost")
            assert isinstance(failed.exception(20), errors.LockedError)
        with pytest.raises(errors.LockedError):
            sending.flush()
        assert sending.append("kept").result(20) == (0, 0)
        sending.close()
        assert texts(topic) == ["kept"]


# What goes wrong.


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, TypeError),
        ({"value": None}, TypeError),
        ({"value": 1}, TypeError),
        ({"value": "x", "key": 1}, TypeError),
        ({"value": "x", "timestamp": 1}, ValueError),
        ({"value": "x" * 101}, errors.RecordTooLargeError),
    ],
)
def test_a_wrong_record_is_refused_at_once_and_harms_no_other(log, arguments, error):
    topic = log.topic("orders", max_record_bytes=100)
    with topic.producer() as sending:
        sending.append("before")
        with pytest.raises(error):
            sending.append(**arguments)
        sending.append("after")
    assert texts(topic) == ["before", "after"]


def test_a_failed_send_reaches_its_futures_and_the_end_of_with(tmp_path, monkeypatch):
    disk = FullDisk()
    monkeypatch.setattr("tailrace.engine.engine.FILES", disk)
    with tailrace.open(tmp_path / "shop") as log:
        topic = log.topic("orders")
        sending = topic.producer(linger="1h")
        good = sending.append("good")
        sending.flush()
        disk.full = True
        failed = [sending.append("lost"), sending.append("lost too")]
        with pytest.raises(errors.DiskFullError):
            sending.flush()
        disk.full = False
        assert good.result() == (0, 0)
        for future in failed:
            assert future.done()
            assert isinstance(future.exception(), errors.DiskFullError)
            with pytest.raises(errors.DiskFullError):
                future.result()
        later = sending.append("later")
        sending.flush()
        assert later.result() == (0, 1)
        disk.full = True
        waited = sending.append("lost as well")
        called = []
        waited.add_done_callback(called.append)
        with pytest.raises(errors.DiskFullError), sending:
            pass
        disk.full = False
        assert called == [waited]
        assert texts(topic) == ["good", "later"]


def test_an_exception_in_the_body_is_not_hidden_and_what_was_appended_is_sent(log):
    topic = log.topic("orders")

    def fail():
        with topic.producer(linger="1h") as sending:
            sending.append("x")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert texts(topic) == ["x"]


def test_closing_sends_everything_and_ends_the_thread(log):
    topic = log.topic("orders")
    sending = topic.producer(linger="1h")
    sending.append("x")
    thread = sending.loop.thread
    assert thread in threading.enumerate()
    assert thread.name.startswith("tailrace-producer")
    sending.close()
    sending.close()
    assert thread not in threading.enumerate()
    assert texts(topic) == ["x"]
    assert "closed" in repr(sending)
    for use in (lambda: sending.append("x"), sending.__enter__):
        with pytest.raises(errors.ClosedError):
            use()
    topic.producer().close()


def test_closing_the_log_closes_its_producers(tmp_path):
    with tailrace.open(tmp_path / "shop") as other:
        log = tailrace.open(tmp_path / "shop")
        mine, theirs = log.topic("orders").producer(linger="1h"), other.topic("orders").producer(linger="1h")
        mine.append("mine")
        theirs.append("theirs")
        log.close()
        assert texts(other.topic("orders")) == ["mine"]
        theirs.flush()
        assert texts(other.topic("orders")) == ["mine", "theirs"]


def test_a_topic_that_is_dropped_or_grows_is_followed(log):
    topic = log.topic("orders")
    with topic.producer(linger="1h") as sending:
        sending.append("old")
        sending.flush()
        log.topic("orders").drop()
        new = sending.append("new")
        sending.flush()
        assert new.result() == (0, 0)
        assert texts(topic) == ["new"]
        topic.alter(partitions=8)
        sending.append("x")
        sending.flush()
        futures = [sending.append("x", key=str(number)) for number in range(50)]
        sending.flush()
        assert len({future.result().partition for future in futures}) > 4
        # Buffered for a partition that its successor does not have.
        futures = [sending.append("x", key=str(number)) for number in range(50)]
        log.topic("orders").drop()
        log.topic("orders", partitions=2)
        sending.flush()
        assert {future.result().partition for future in futures} == {0, 1}
        assert topic.read().count() == 50


@pytest.mark.parametrize("arguments", [{"linger": -1}, {"buffer_bytes": 0}, {"buffer_bytes": "1TiB"}])
def test_wrong_settings_are_refused(log, arguments):
    with pytest.raises(ValueError):
        log.topic("orders").producer(**arguments)


def test_producers_and_futures_do_not_pickle(log):
    with log.topic("orders").producer() as sending:
        future = sending.append("x")
        for each in (sending, future):
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(each)


def test_making_a_producer_creates_nothing(log):
    log.topic("orders").producer().close()
    assert log.topics() == []


# Ends that meet: flushing, syncing and closing from several threads, and from callbacks.


def in_thread(action):
    """Call something in another thread; what it returns or raises is in the future."""
    future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_flushing_after_the_close_returns_at_once(log):
    topic = log.topic("orders")
    sending = topic.producer(linger="1h")
    sending.append("x")
    sending.close()
    in_thread(sending.flush).result(10)
    idle = topic.producer()
    idle.close()
    in_thread(idle.flush).result(10)
    in_thread(log.sync).result(10)
    assert texts(topic) == ["x"]


def test_syncing_beside_producers_that_close_never_hangs(log):
    topic = log.topic("orders")
    for number in range(50):
        sending = topic.producer(linger="1h")
        sending.append(str(number))
        closing, syncing, flushing = in_thread(sending.close), in_thread(log.sync), in_thread(sending.flush)
        for ending in (closing, syncing, flushing):
            ending.result(20)
    assert texts(topic) == [str(number) for number in range(50)]


def test_everybody_who_closes_a_producer_waits_until_it_is_sent(tmp_path, slow):
    with tailrace.open(tmp_path / "shop") as log:
        topic = log.topic("orders", partitions=1)
        sending = topic.producer(linger="1h")
        future = sending.append("x")
        slow.going.clear()
        slow.waiting.clear()
        first = in_thread(sending.close)
        assert slow.waiting.wait(10)
        others = [in_thread(sending.close), in_thread(sending.flush)]
        done, _ = concurrent.futures.wait([first, *others], timeout=0.1)
        assert not done
        slow.going.set()
        for ending in (first, *others):
            ending.result(10)
        assert future.result(0) == (0, 0)


def test_closing_a_log_waits_for_a_producer_that_another_thread_closes(tmp_path, slow):
    log = tailrace.open(tmp_path / "shop")
    topic = log.topic("orders", partitions=1)
    sending = topic.producer(linger="1h")
    futures = [sending.append(str(number)) for number in range(3)]
    slow.going.clear()
    slow.waiting.clear()
    first = in_thread(sending.close)
    assert slow.waiting.wait(10)
    closing = [in_thread(log.close), in_thread(log.close)]
    done, _ = concurrent.futures.wait(closing, timeout=0.1)
    assert not done
    slow.going.set()
    for ending in (first, *closing):
        ending.result(10)
    assert [future.result(0) for future in futures] == [(0, 0), (0, 1), (0, 2)]
    assert log.closed
    with tailrace.open(tmp_path / "shop", "r") as log:
        assert texts(log.topic("orders")) == ["0", "1", "2"]


def test_one_failing_producer_does_not_keep_a_log_from_closing_the_others(tmp_path, monkeypatch):
    disk = FullDisk()
    monkeypatch.setattr("tailrace.engine.engine.FILES", disk)
    log = tailrace.open(tmp_path / "shop")
    orders, clicks = log.topic("orders", partitions=1), log.topic("clicks", partitions=1)
    failing = [topic.producer(linger="1h") for topic in (orders, clicks)]
    futures = [sending.append("lost") for sending in failing]
    disk.full = True
    with pytest.raises(errors.DiskFullError):
        log.close()
    disk.full = False
    assert [type(future.exception(0)) for future in futures] == [errors.DiskFullError] * 2
    assert log.closed
    assert not any(sending.loop.thread.is_alive() for sending in failing)


def test_a_producer_asked_for_while_its_log_closes_is_refused(tmp_path):
    log = tailrace.open(tmp_path / "shop")
    topic = log.topic("orders")
    log.close()
    with pytest.raises(errors.ClosedError):
        topic.producer()


@pytest.mark.parametrize("call", ["flush", "sync", "close", "result", "exception"])
def test_a_callback_that_would_wait_for_itself_is_told(log, call):
    topic = log.topic("orders")
    told = concurrent.futures.Future()
    with topic.producer(linger="20ms") as sending:
        actions = {
            "flush": sending.flush, "sync": log.sync, "close": log.close,
            "result": lambda: sending.append("later").result(10),
            "exception": lambda: sending.append("later").exception(10),
        }  # fmt: skip

        def callback(_):
            try:
                actions[call]()
            except errors.ThreadError as error:
                told.set_result(error)

        sending.append("x").add_done_callback(callback)
        error = told.result(10)
        assert "callback" in str(error)
        assert "another thread" in error.hint
        assert sending.append("y").result(10) == (0, 1 + (call in ("result", "exception")))
    assert not log.closed


def test_a_callback_may_close_its_producer(log):
    topic = log.topic("orders")
    sending = topic.producer(linger="20ms")
    closed = threading.Event()

    def callback(_):
        sending.close()
        closed.set()

    sending.append("x").add_done_callback(callback)
    assert closed.wait(10)
    sending.loop.thread.join(10)
    assert not sending.loop.thread.is_alive()
    assert sending not in log.engine.producers
    with pytest.raises(errors.ClosedError):
        sending.append("y")
    sending.close()
    assert texts(topic) == ["x"]


def test_a_callback_that_finds_the_buffer_full_does_not_wait_for_itself(log):
    topic = log.topic("orders")
    told = concurrent.futures.Future()
    with topic.producer(linger="20ms", buffer_bytes="1KiB") as sending:

        def callback(_):
            try:
                sending.append(b"y" * 900)
            except errors.BusyError as error:
                told.set_result(error)

        sending.append(b"x" * 900).add_done_callback(callback)
        assert "full" in str(told.result(10))


def test_a_callback_that_ends_its_thread_does_not_end_the_sending(log, monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    with log.topic("orders").producer(linger="20ms") as sending:
        sending.append("x").add_done_callback(lambda _: exit())
        sending.flush("10s")
        assert sending.append("y").result(10) == (0, 1)
    assert [arguments.exc_type for arguments in seen] == [SystemExit]
