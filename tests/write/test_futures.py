"""Futures of appends: those of the standard library, and cheap until a caller waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time

import pytest

import tailrace
from tailrace.write.futures import PendingPosition


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        yield log


def test_futures_are_those_of_the_standard_library(log):
    with log.topic("orders").producer(linger="20ms") as sending:
        futures = [sending.append(str(number)) for number in range(5)]
        assert all(isinstance(future, concurrent.futures.Future) for future in futures)
        done, pending = concurrent.futures.wait(futures, timeout=20)
        assert (len(done), len(pending)) == (5, 0)
        assert sorted(future.result() for future in concurrent.futures.as_completed(futures, 20)) == [
            (0, number) for number in range(5)
        ]
        called = []
        waiting = sending.append("x")
        waiting.add_done_callback(lambda future: called.append(future.result()))
        assert waiting.exception(20) is None
        sending.flush()
        waiting.add_done_callback(lambda future: called.append(future.result()))
        deadline = time.monotonic() + 10
        while len(called) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert called == [(0, 5), (0, 5)]
        assert not waiting.cancel()
        assert not waiting.cancelled()
        assert "finished" in repr(waiting)


def test_futures_can_be_awaited(log):
    async def write():
        futures = [asyncio.wrap_future(sending.append(str(number))) for number in range(5)]
        return await asyncio.gather(*futures)

    with log.topic("orders").producer() as sending:
        assert asyncio.run(write()) == [(0, number) for number in range(5)]


def test_waiting_for_a_future_may_time_out(log):
    with log.topic("orders").producer(linger="1h") as sending:
        future = sending.append("x")
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(0.02)
        with pytest.raises(concurrent.futures.TimeoutError):
            future.exception(0.02)
    assert future.result(0) == (0, 0)


def test_a_future_costs_little_until_somebody_waits(log):
    with log.topic("orders").producer(linger="1h") as sending:
        future = sending.append("x")
        assert "_condition" not in future.__dict__
        assert isinstance(future, PendingPosition)
        with pytest.raises(AttributeError):
            future.nothing
