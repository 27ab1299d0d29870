"""Latencies: stamps, their ages, and values that are sent one after another."""

from __future__ import annotations

import pytest

from tailrace.bench import latencies
from tailrace.bench.latencies import COUNT_MIN, SKIPPED, STAMP_BYTES, age_ns, receive, stamp


@pytest.mark.parametrize("size", [20, 21, 500])
def test_a_stamp_has_the_size_of_a_value_and_tells_its_age(size, monkeypatch):
    monkeypatch.setattr(latencies, "monotonic_ns", lambda: 1_000)
    made = stamp(size)
    assert len(made) == size
    monkeypatch.setattr(latencies, "monotonic_ns", lambda: 1_250)
    assert age_ns(made) == age_ns(made[:STAMP_BYTES]) == 250


class Echo:
    """A child that is ready, and then answers each value with an age that grows by a microsecond."""

    def __init__(self):
        self.events = []
        self.age = -1_000

    def answer(self):
        self.events.append("answer")
        self.age += 1_000
        return self.age

    def put(self, data):
        self.events.append(len(data))


def test_each_value_is_sent_after_the_one_before_has_arrived(monkeypatch):
    monkeypatch.setattr(latencies, "sleep", lambda _: None)
    child = Echo()
    found = receive(child, child.put, 0.0, 64)
    # The first receipts run cold code and are left out; the rest are microseconds.
    assert found == [float(number) for number in range(SKIPPED + 1, SKIPPED + COUNT_MIN + 1)]
    assert child.events == ["answer", *[64, "answer"] * (SKIPPED + COUNT_MIN)]


def test_it_goes_on_until_the_time_is_over(monkeypatch):
    slept = []
    monkeypatch.setattr(latencies, "sleep", slept.append)
    monkeypatch.setattr(latencies, "monotonic", lambda: float(len(slept)))
    child = Echo()
    assert len(receive(child, child.put, 100.0, 64)) == 100 - SKIPPED
    assert all(latencies.PAUSE_SECONDS[0] <= each <= latencies.PAUSE_SECONDS[1] for each in slept)
