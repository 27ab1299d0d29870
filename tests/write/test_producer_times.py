"""The times of a producer's records: each has that of its own append, whatever it is sent together with."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

import tailrace
from tailrace.disk.files import Files
from tailrace.disk.frame import DELTA_MAX, prepare, time_column
from tailrace.testing import Clock, Faults
from tailrace.testing.files import FaultyFiles

LONG = 30.0
NOON_US = int(datetime(2030, 6, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
MINUTE_US = 60_000_000
DAY_US = 86_400_000_000

SHAPES = [
    {},
    {"partitions": 3},
    {"compress": "zstd"},
    {"partitions": 3, "compress": "zstd"},
]


def times(topic):
    """The time of each record by its text."""
    return {record.text: record.timestamp_us for record in topic.read()}


def moment(time_us):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)


@pytest.mark.parametrize("settings", SHAPES)
def test_a_record_has_a_time_between_the_beginning_and_the_end_of_its_append(tmp_path, rng, settings):
    now_us = Files().now_us
    around = {}
    with tailrace.open(tmp_path / "shop") as log:
        topic = log.topic("orders", **settings)
        with topic.producer(linger="1h") as sending:
            for number in range(3_000):
                key = rng.choice([None, None, "a", "b", "c"])
                before = now_us()
                sending.append(str(number), key=key)
                around[str(number)] = before, now_us()
        found = times(topic)
    assert found.keys() == around.keys()
    assert all(low <= found[text] <= high for text, (low, high) in around.items())


def test_reading_from_a_time_takes_what_was_appended_since_then(tmp_path):
    now_us = Files().now_us
    with tailrace.open(tmp_path / "shop") as log:
        topic = log.topic("orders")
        with topic.producer(linger="1h") as sending:
            sending.append("before")
            middle = moment(now_us() + 1)
            while moment(now_us()) < middle:
                pass
            sending.append("after")
        assert [record.text for record in topic.read(start=middle)] == ["after"]
        assert [record.text for record in topic.read(stop=middle)] == ["before"]
        assert topic.offset_at(middle) == 1


def test_appends_of_several_threads_are_stored_in_the_order_of_their_times(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        topic = log.topic("orders")

        def write():
            for number in range(3_000):
                sending.append(str(number))

        with topic.producer() as sending:
            sending._clock_ns = count(NOON_US * 1_000, 1_000).__next__
            threads = [threading.Thread(target=write) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LONG)
        assert [record.timestamp_us for record in topic.read()] == [NOON_US + number for number in range(9_000)]


# With a clock that is set.


def test_the_time_of_a_single_record_and_of_records_at_one_moment(tailrace_log, tailrace_clock):
    tailrace_clock.freeze(NOON_US)
    topic = tailrace_log.topic("orders")
    with topic.producer(linger="1h") as sending:
        sending.append("alone")
        sending.flush()
        tailrace_clock.advance("1s")
        sending.append("one")
        sending.append("two")
    assert times(topic) == {"alone": NOON_US, "one": NOON_US + 1_000_000, "two": NOON_US + 1_000_000}


@pytest.mark.parametrize("given", [datetime(1960, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), NOON_US + DAY_US,
                                   datetime(9999, 1, 1, tzinfo=UTC)])  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_time_that_is_given_stands_beside_those_of_the_clock(tailrace_log, tailrace_clock, given, place):
    tailrace_clock.freeze(NOON_US)
    topic = tailrace_log.topic("orders")
    expected = {}
    with topic.producer(linger="1h") as sending:
        for number in range(3):
            tailrace_clock.advance("1ms")
            expected[str(number)] = tailrace_clock.now_us
            sending.append(str(number), timestamp=given if number == place else None)
    given_us = given if isinstance(given, int) else round(given.timestamp()) * 1_000_000
    assert times(topic) == {**expected, str(place): given_us}


@pytest.mark.parametrize("settings", SHAPES)
def test_whatever_the_clock_does_times_are_found(tailrace_log, tailrace_clock, rng, settings):
    """The clock stands, goes on, and steps back, by less and by more than a column of 32 bits holds."""
    tailrace_clock.freeze(NOON_US)
    topic = tailrace_log.topic("orders", **settings)
    appended = {}
    with topic.producer(linger="1h") as sending:
        for number in range(400):
            step = rng.choice([0, 0, 1, 1_000, MINUTE_US, -1, -MINUTE_US, 2 * DELTA_MAX, -2 * DELTA_MAX])
            if rng.random() < 0.2:
                tailrace_clock.set(tailrace_clock.now_us + step)
            appended[str(number)] = tailrace_clock.now_us
            sending.append(str(number), key=rng.choice([None, "a", "b", "c"]))
            if rng.random() < 0.02:
                sending.flush()
    assert times(topic) == appended
    parts = {index: list(topic.read(partition=index)) for index in range(topic.partitions)}
    for time_us in {*rng.sample(sorted(appended.values()), 20), NOON_US - DAY_US, NOON_US + 365 * DAY_US}:
        for index, records in parts.items():
            first = next((record.offset for record in records if record.timestamp_us >= time_us), len(records))
            assert topic.offset_at(moment(time_us), index) == first
            assert list(topic.read(start=moment(time_us), partition=index)) == records[first:]


@pytest.mark.parametrize("settings", SHAPES)
def test_merged_by_time_records_come_in_the_order_of_their_appends(tailrace_log, tailrace_clock, rng, settings):
    tailrace_clock.freeze(NOON_US)
    topic = tailrace_log.topic("orders", **settings)
    with topic.producer(linger="1h") as sending:
        for number in range(300):
            tailrace_clock.advance(0.001)
            sending.append(str(number), key=rng.choice("abc"))
    assert [record.text for record in topic.read(order="time")] == [str(number) for number in range(300)]


def test_a_segment_is_kept_as_long_as_its_youngest_record(tailrace_log, tailrace_clock):
    tailrace_clock.freeze(NOON_US)
    topic = tailrace_log.topic("orders", retain="30m")
    with topic.producer(linger="1h") as sending:
        sending.append("oldest")
        sending.flush()
        sending.append("old")
        tailrace_clock.advance("40m")
        sending.append("young")
    tailrace_clock.advance("10m")
    tailrace_log.vacuum()
    assert "young" in times(topic)
    tailrace_clock.advance("21m")
    tailrace_log.vacuum()
    assert times(topic) == {}


def test_the_clock_of_files_is_read_in_nanoseconds():
    clock = Clock()
    clock.freeze(NOON_US)
    assert FaultyFiles(clock, Faults()).clock_ns()() == NOON_US * 1_000
    assert Files().clock_ns() is time.time_ns


# Interrupts.


class Interrupted(list):
    """A column that is interrupted when something is added, once."""

    def append(self, item):
        self.__class__ = Calm
        raise KeyboardInterrupt


class Calm(list):
    """The same afterwards."""


@pytest.mark.parametrize("column", ["values", "stamps"])
@pytest.mark.parametrize("key", [None, "k"])
def test_an_interrupt_in_the_middle_leaves_the_times_where_they_belong(tailrace_log, tailrace_clock, column, key):
    tailrace_clock.freeze(NOON_US)
    topic = tailrace_log.topic("orders")
    expected = {}

    def append(text, key=None):
        tailrace_clock.advance("1s")
        sending.append(text, key=key)
        expected[text] = tailrace_clock.now_us

    with topic.producer(linger="1h") as sending:
        # The largest value is known after the first send, and then there is a short way.
        append("first")
        sending.flush()
        append("second")
        setattr(sending._group, column, Interrupted(getattr(sending._group, column)))
        with pytest.raises(KeyboardInterrupt):
            append("interrupted", key)
        assert type(getattr(sending._group, column)) is Calm
        # Another thread is not kept out by a lock that was left behind.
        thread = threading.Thread(target=append, args=("third",), daemon=True)
        thread.start()
        thread.join(LONG)
        assert not thread.is_alive()
        append("fourth")
    assert times(topic) == expected


def test_an_interrupt_while_the_lock_is_waited_for_takes_nothing(tailrace_log, monkeypatch):
    """It is another thread's lock, and stays with it."""
    topic = tailrace_log.topic("orders")
    with topic.producer(linger="1h") as sending:
        sending.append("first")
        sending.flush()
        mutex = sending._mutex

        class Waiting:
            """The lock as a thread sees it that is interrupted before it has it."""

            release = staticmethod(mutex.release)
            _is_owned = staticmethod(mutex._is_owned)

            @staticmethod
            def acquire():
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(sending, "_mutex", Waiting)
            with pytest.raises(KeyboardInterrupt):
                sending.append("interrupted")
        sending.append("second")
    assert list(times(topic)) == ["first", "second"]


# Columns.


def test_a_column_of_times_is_the_same_wherever_they_are_counted_from(rng):
    for _ in range(300):
        spread = rng.choice([0, 1, 1_000, DELTA_MAX, DELTA_MAX + 1, 1 << 40])
        since = rng.choice([0, 1, -5, NOON_US])
        moments = [NOON_US + rng.randint(0, spread) for _ in range(rng.randint(1, 20))]
        if rng.random() < 0.5:
            moments.sort()
        counted = [moment - since for moment in moments]
        assert time_column(counted, since) == time_column(moments)
        values = [b"x"] * len(moments)
        assert prepare(values, None, None, counted, 0, since) == prepare(values, None, None, moments)
    assert prepare([b"x"], None, None, 7, 0, 3) == prepare([b"x"], None, None, 10)
