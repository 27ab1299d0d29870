"""Consumer options: where a reading starts and stops."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

import tailrace
from tailrace import errors
from tailrace.groups.options import (
    CommitInterval,
    parse_choice,
    parse_commit_interval,
    parse_max_processing,
    parse_topics,
)
from tests.consuming import cursor, fill, numbers, texts


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


class TestStop:
    def test_now_is_when_the_consumer_was_made(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g", stop="now") as consumer:
            fill(log, "t", 3, 3)
            assert numbers(consumer) == [0, 1, 2]
        with log.consumer("t", "g", stop="latest") as consumer:
            assert numbers(consumer) == [3, 4, 5]

    def test_an_offset(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", stop=3) as consumer:
            assert numbers(consumer) == [0, 1, 2]
        with log.consumer("t", "g", stop=3) as consumer:
            assert list(consumer) == []
        with log.consumer("t", "g", stop="4") as consumer:
            assert numbers(consumer) == [3]

    def test_an_offset_that_is_not_there_yet(self, log):
        fill(log, "t", 2)
        with log.consumer("t", "g", stop=4) as consumer:
            assert numbers(consumer.poll()) == [0, 1]
            assert len(consumer.poll(timeout=0)) == 0
            fill(log, "t", 9, 2)
            assert numbers(consumer) == [2, 3]

    def test_offsets_by_partition(self, log):
        topic = log.topic("t", partitions=3)
        for partition in range(3):
            topic.extend(["a", "b", "c"], partition=partition)
        with log.consumer("t", "g", stop={0: 1, 2: 2}) as consumer:
            found = sorted((record.partition, record.offset) for record in consumer)
        # A partition that is not named ends where it ends now.
        assert found == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]

    def test_a_time_that_was(self, log):
        base = 1_700_000_000_000_000
        log.topic("t").extend(list("abcd"), timestamps=[base + number * 1_000_000 for number in range(4)])
        with log.consumer("t", "g", stop=datetime.fromtimestamp(base / 1e6 + 2, UTC)) as consumer:
            assert texts(consumer) == ["a", "b"]
        with log.consumer("t", "g", stop="2023-11-14T22:13:23Z") as consumer:
            assert texts(consumer) == ["c"]
        with log.consumer("t", "g", stop="-1h") as consumer:
            assert texts(consumer) == ["d"]
        with log.consumer("t", "g", stop="-1h") as consumer:
            assert list(consumer) == []

    def test_a_time_that_comes(self, log):
        fill(log, "t", 2)
        with log.consumer("t", "g", stop=datetime.now(UTC) + timedelta(seconds=0.3)) as consumer:
            assert numbers(consumer.poll()) == [0, 1]
            fill(log, "t", 1, 2)
            began = time.monotonic()
            assert numbers(consumer) == [2]
            assert time.monotonic() - began < 5
        assert cursor(log) == 3

    @pytest.mark.parametrize(
        ("stop", "kind"),
        [("earliest", ValueError), ("soon", ValueError), (-1, ValueError), (1.5, TypeError), ({}, ValueError),
         (datetime(2026, 1, 1), ValueError), (5, ValueError), ({7: 1}, ValueError)],  # noqa: DTZ001
    )  # fmt: skip
    def test_wrong_stops(self, log, stop, kind):
        log.topic("t", partitions=2)
        with pytest.raises(kind, match="stop"):
            log.consumer("t", "g", stop=stop)
        assert log.groups() == []

    def test_partitions_that_are_added_later_are_not_part_of_it(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g", stop="now") as consumer:
            log.topic("t").alter(partitions=2)
            log.topic("t").append("late", partition=1)
            assert numbers(consumer) == [0, 1, 2]
        with log.consumer("t", "g", stop="now") as consumer:
            assert texts(consumer) == ["late"]


class TestStart:
    def test_a_fresh_group_begins_at_the_earliest_record(self, log):
        fill(log, "t", 5)
        log.topic("t").trim(2)
        with log.consumer("t", "g", stop="now") as consumer:
            assert numbers(consumer) == [2, 3, 4]
            assert consumer.lost == []

    def test_latest(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", start="latest") as consumer:
            fill(log, "t", 1, 5)
            assert numbers(consumer.poll()) == [5]

    def test_latest_is_remembered_though_nothing_was_read(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", start="latest") as consumer:
            assert len(consumer.poll(timeout=0)) == 0
        fill(log, "t", 1, 5)
        with log.consumer("t", "g", start="earliest", stop="now") as consumer:
            assert numbers(consumer) == [5]

    def test_an_offset_and_offsets(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", start=3, stop="now") as consumer:
            assert numbers(consumer) == [3, 4]
        topic = log.topic("two", partitions=2)
        for partition in range(2):
            topic.extend(["a", "b"], partition=partition)
        with log.consumer("two", "g", start={1: 1}, stop="now") as consumer:
            found = sorted((record.partition, record.offset) for record in consumer)
        assert found == [(0, 0), (0, 1), (1, 1)]

    def test_a_time(self, log):
        base = 1_700_000_000_000_000
        log.topic("t").extend(list("abcd"), timestamps=[base + number * 1_000_000 for number in range(4)])
        with log.consumer("t", "g", start=datetime.fromtimestamp(base / 1e6 + 2, UTC), stop="now") as consumer:
            assert texts(consumer) == ["c", "d"]

    def test_a_group_that_knows_its_place_is_not_asked_again(self, log):
        fill(log, "t", 6)
        with log.consumer("t", "g", start=1, stop="now") as consumer:
            assert numbers(consumer) == [1, 2, 3, 4, 5]
        log.topic("t").trim(4)
        # The same program starts again, after the offset that it names was removed.
        with log.consumer("t", "g", start=1, stop="now") as consumer:
            assert list(consumer) == []
        with pytest.raises(errors.OffsetOutOfRangeError) as caught:
            log.consumer("t", "fresh", start=1)
        assert (caught.value.earliest, caught.value.latest) == (4, 6)

    def test_a_member_that_comes_later_does_not_move_what_is_being_read(self, log):
        fill(log, "t", 6)
        with log.consumer("t", "g") as first:
            assert next(first).offset == 0
            with log.consumer("t", "g", start="latest") as second:
                assert len(second.poll(timeout=0)) == 0
                assert cursor(log) is None
        with log.consumer("t", "g", stop="now") as consumer:
            assert numbers(consumer) == [0, 1, 2, 3, 4, 5]

    @pytest.mark.parametrize(
        ("start", "kind"),
        [("soon", ValueError), ("now", ValueError), (-1, ValueError), (None, TypeError), (7, ValueError),
         ({9: 0}, ValueError), ({0: 99}, errors.OffsetOutOfRangeError)],
    )  # fmt: skip
    def test_wrong_starts(self, log, start, kind):
        log.topic("t", partitions=2)
        with pytest.raises(kind, match="start"):
            log.consumer("t", "g", start=start)

    def test_partitions_that_come_later_begin_at_their_earliest_record(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g", start="latest") as consumer:
            assert len(consumer.poll(timeout=0)) == 0
            log.topic("t").alter(partitions=2)
            log.topic("t").append("new", partition=1)
            assert texts(consumer.poll()) == ["new"]


@pytest.mark.parametrize(
    ("given", "interval"),
    [
        (1, CommitInterval(1, 0.0)),
        (500, CommitInterval(500, 0.0)),
        ("2s", CommitInterval(None, 2.0)),
        (timedelta(milliseconds=5), CommitInterval(None, 0.005)),
    ],
)
def test_an_interval_is_a_number_of_records_or_a_time(given, interval):
    assert parse_commit_interval(given) == interval


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (True, TypeError, "must not be a bool"),
        (1.5, TypeError, "must not be a float"),
        ("5", ValueError, "write 5 for records, or '5s'"),
        (0, ValueError, "commit_every"),
    ],
)
def test_what_is_no_interval(given, error, said):
    with pytest.raises(error, match=said):
        parse_commit_interval(given)


def test_topics_are_one_or_several_without_repetition():
    assert parse_topics("t") == ("t",)
    assert parse_topics(["t", "u.*", "t"]) == ("t", "u.*")
    with pytest.raises(ValueError, match="names no topic"):
        parse_topics([])
    with pytest.raises(TypeError, match="not by int"):
        parse_topics([1])
    with pytest.raises(TypeError, match="not dict"):
        parse_topics({"t": 1})
    with pytest.raises(errors.InvalidNameError, match="internal"):
        parse_topics("__group.g")


def test_the_time_without_a_poll():
    assert parse_max_processing(None) is None
    assert parse_max_processing("5m") == 300.0
    assert parse_max_processing("1s") == 1.0
    with pytest.raises(ValueError, match="the minimum is 1s"):
        parse_max_processing("999ms")


def test_a_choice_is_one_of_its_words():
    assert parse_choice("b", "what", ("a", "b", "c")) == "b"
    with pytest.raises(ValueError, match="what='d' is not known: write 'a', 'b' or 'c'"):
        parse_choice("d", "what", ("a", "b", "c"))
