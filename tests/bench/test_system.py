"""The system under test: topics for a measurement that are gone after it, and the records that it writes."""

from __future__ import annotations

import pytest

import tailrace
from tailrace.bench import system


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield log


def count(log):
    (topic,) = log.topics()
    return log.topic(topic.name).read().count()


@pytest.mark.parametrize(
    ("durable", "told"),
    [
        (True, "on disk"),
        (False, "page cache: survives kill, not power cut"),
        ("50ms", "page cache, on disk within 50ms"),
    ],
)
def test_a_level_in_words(durable, told):
    assert system.level(durable) == told


def test_a_topic_is_new_each_time_and_dropped_whatever_the_block_raises(log):
    with system.fresh_topic(log, 3) as first, system.fresh_topic(log) as second:
        assert first.name != second.name
        assert sorted(info.partitions for info in log.topics()) == [1, 3]
    with pytest.raises(ZeroDivisionError), system.fresh_topic(log):
        1 / 0
    assert log.topics() == []


@pytest.mark.parametrize("threads", [1, 2])
def test_records_are_appended_as_often_as_it_is_told(log, threads):
    with system.appended(log, b"x", False, threads) as run:
        run(6)
        assert count(log) == 6
    with system.extended(log, [b"x", b"y"], False, threads) as run:
        run(6)
        assert count(log) == 12


def test_a_producer_has_sent_everything_when_it_returns(log):
    with system.produced(log, b"x") as run:
        run(5)
        assert count(log) == 5


def test_a_topic_that_is_filled_takes_its_partitions_in_turn(log):
    topic = system.filled(log, "full", [b"a", b"b"], 5, 2)
    assert [bounds.latest for bounds in topic.offsets().values()] == [6, 4]
