"""Pace: the number of operations that fit into a slice of time, learned from the slice before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter

# Number of pieces into which a turn is cut.
PIECES = 5


class Pace:
    """Estimate that starts with a few operations, then uses as many as the time allows, within bounds."""

    def __init__(self, first: int, most: int) -> None:
        self.first = first
        self.most = most
        self.per_second = 0.0

    def count(self, seconds: float) -> int:
        """Return how many operations take about `seconds`."""
        if not self.per_second:
            return min(self.first, self.most)
        return max(1, min(self.most, int(self.per_second * seconds)))

    def learn(self, count: int, seconds: float) -> float:
        """Record how long operations took, and return the rate per second."""
        self.per_second = count / seconds
        return self.per_second


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds a call takes."""
    start = perf_counter()
    work()
    return perf_counter() - start


# Yields a function that does a given number of operations; setup and cleanup of the block are not timed.
Work = Callable[[], AbstractContextManager[Callable[[int], object]]]


def rated(
    work: Work, records: int = 1, most: int = 1_000_000, first: int = 2, step: int = 1, pieces: int = PIECES
) -> Callable[[float], list[float]]:
    """Return a measurement of the rate of records through operations of `records` each.

    The count of operations is a multiple of `step`, the number of workers that share them. It is done in pieces, each
    with a rate of its own: a short disturbance by other processes spoils one of them and not the median.
    """
    pace = Pace(max(first, step), max(most, step))

    def measure(seconds: float) -> list[float]:
        count = max(step, pace.count(seconds) // pieces // step * step)
        number = pieces if pace.per_second else 1
        with work() as do:
            # The first operation creates files and fills caches.
            do(1)
            took = [timed(lambda: do(count)) for _ in range(number)]
        pace.learn(count * number, sum(took))
        return [count * records / each for each in took]

    return measure


def lasting(work: Work, most: int = 100_000, first: int = 2) -> Callable[[float], list[float]]:
    """Return a measurement of the microseconds that each operation takes."""
    pace = Pace(first, most)

    def measure(seconds: float) -> list[float]:
        count = pace.count(seconds)
        took = []
        with work() as do:
            do(1)
            for _ in range(count):
                start = perf_counter()
                do(1)
                took.append((perf_counter() - start) * 1e6)
        pace.learn(count, sum(took) / 1e6)
        return took

    return measure
