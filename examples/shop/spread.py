"""The spread of many measurements: the middle, the slow end, the worst."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Spread(NamedTuple):
    """How long something took, in milliseconds."""

    samples: int
    p50: float
    p99: float
    max: float


def spread(values_us: Iterable[int]) -> Spread:
    """Return the spread of times in microseconds."""
    ordered = sorted(values_us)
    if not ordered:
        return Spread(0, 0.0, 0.0, 0.0)
    p50, p99 = (ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 99))
    return Spread(len(ordered), p50 / 1_000, p99 / 1_000, ordered[-1] / 1_000)
