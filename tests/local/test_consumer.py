"""A consumer of a log in this process: its arguments are checked before anything is made, and the log closes it."""

from __future__ import annotations

import pytest

import tailrace
from tailrace import errors
from tailrace.local.consumer import local_consumer


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        log.topic("orders").extend(["a", "b", "c"])
        yield log


def test_it_has_the_defaults_of_the_log(log):
    with local_consumer(log, "orders", "g") as made, log.consumer("orders", "h") as asked:
        assert made._session.options == asked._session.options
        assert [record.text for record in made.poll()] == ["a", "b", "c"]


def test_it_belongs_to_the_engine_until_it_is_closed(log):
    consumer = local_consumer(log, "orders", "g")
    assert consumer in log.engine.consumers
    consumer.close()
    assert consumer not in log.engine.consumers


def test_stored_cursors_go_before_the_start(log):
    with local_consumer(log, "orders", "g") as consumer:
        next(consumer)
        next(consumer)
        consumer.commit()
    with local_consumer(log, "orders", "g", start="latest") as consumer:
        assert [record.text for record in consumer.poll()] == ["c"]


@pytest.mark.parametrize(
    ("group", "options", "error"),
    [
        ("", {}, errors.InvalidNameError),
        ("g", {"commit": "sometimes"}, ValueError),
        ("g", {"start": 99}, errors.OffsetOutOfRangeError),
        ("g", {"max_processing": "1ms"}, ValueError),
    ],
)
def test_wrong_arguments_make_nothing(log, group, options, error):
    with pytest.raises(error):
        local_consumer(log, "orders", group, **options)
    assert log.groups() == []
    assert not log.engine.consumers


def test_a_log_that_only_reads_has_none(log):
    with tailrace.open(log.location, "r") as reading, pytest.raises(errors.ReadOnlyError):
        local_consumer(reading, "orders", "g")
