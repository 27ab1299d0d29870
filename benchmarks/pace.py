"""Pace: how many operations fit into a slice of time, learned from the slice before."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter


class Pace:
    """Begins with a few operations, then does as many as the time allows, within bounds."""

    def __init__(self, first: int, most: int) -> None:
        self.first = first
        self.most = most
        self.per_second = 0.0

    def count(self, seconds: float) -> int:
        """How many operations take about so long."""
        if not self.per_second:
            return min(self.first, self.most)
        return max(1, min(self.most, int(self.per_second * seconds)))

    def learn(self, count: int, seconds: float) -> float:
        """Note how long operations took; how many a second that is."""
        self.per_second = count / seconds
        return self.per_second


def timed(work: Callable[[], object]) -> float:
    """How many seconds a call takes."""
    start = perf_counter()
    work()
    return perf_counter() - start
