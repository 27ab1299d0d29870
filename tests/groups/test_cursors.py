"""Cursors: their lag, and that they stay below what is on disk."""

from __future__ import annotations

import time

import pytest

import tailrace
from tests.consuming import fill


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


class TestLag:
    def test_in_records_and_seconds(self, log):
        now = time.time()
        log.topic("t").extend(list("abc"), timestamps=[int((now - 60 + number * 10) * 1e6) for number in range(3)])
        with log.consumer("t", "g") as consumer:
            lag = consumer.lag()
            assert lag.records == 3
            assert 59 < lag.seconds < 70
            assert lag.partitions[("t", 0)] == (lag.records, pytest.approx(lag.seconds))
            next(consumer)
            lag = consumer.lag()
            assert lag.records == 2
            assert 49 < lag.seconds < 60
            assert lag.to_json()["partitions"][0]["lag_records"] == 2
            consumer.poll()
            assert consumer.lag() == (0, 0.0, {("t", 0): (0, 0.0)})

    def test_counts_what_comes(self, log):
        log.topic("t", partitions=2)
        with log.consumer("t", "g") as consumer:
            assert consumer.lag().records == 0
            for partition in range(2):
                log.topic("t").extend(["a", "b"], partition=partition)
            assert consumer.lag().records == 4
            assert consumer.lag().partitions[("t", 1)][0] == 2

    def test_does_not_count_what_was_removed(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g") as consumer:
            consumer.peek()
            log.topic("t").trim(6)
            assert consumer.lag().records == 4
