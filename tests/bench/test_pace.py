"""Pace: how many operations fit into a slice of time."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

from tailrace.bench import pace
from tailrace.bench.pace import Pace, lasting, rated, timed


def test_a_rate_is_taken_in_pieces_and_its_first_operation_is_not_timed():
    counts: list[int] = []

    @contextmanager
    def work():
        yield counts.append

    measure = rated(work, records=10, most=400, first=4, step=2, pieces=2)
    assert len(measure(1.0)) == 1
    assert counts == [1, 2]
    counts.clear()
    assert len(measure(1.0)) == 2
    assert counts == [1, 200, 200]


def test_a_pace_learns_how_much_fits():
    made = Pace(100, 5_000)
    assert made.count(1.0) == 100
    assert made.learn(100, 0.1) == 1_000
    assert made.count(2.0) == 2_000
    assert made.count(60.0) == 5_000
    assert made.count(0.0) == 1


def test_workers_that_share_a_count_get_as_much_each():
    counts: list[int] = []
    measure = rated(lambda: nullcontext(counts.append), first=1, step=3, pieces=1)
    measure(0.0)
    assert counts == [1, 3]
    measure(0.0)
    assert counts[2:] == [1, 3]


def test_how_long_each_operation_lasts():
    counts: list[int] = []
    measure = lasting(lambda: nullcontext(counts.append), most=7, first=4)
    took = measure(1.0)
    assert counts == [1] * 5
    assert len(took) == 4
    assert all(each > 0 for each in took)
    assert len(measure(1.0)) == 7


def test_a_call_is_timed(monkeypatch):
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(pace, "perf_counter", lambda: next(clock))
    assert timed(lambda: None) == 2.5
