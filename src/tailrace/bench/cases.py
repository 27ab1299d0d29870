"""A case: one measurement of one system, and its goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import NamedTuple

RATE = "records/s"
MICROSECONDS = "us"
MILLISECONDS = "ms"
SIZE = "bytes/record"


class Goal(NamedTuple):
    """A bound for one figure of a case: its median, its ratio, its lead or its 99th percentile."""

    figure: str
    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, value: float) -> bool:
        """Return whether a figure meets the bound."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value < self.at_most)

    def text(self) -> str:
        """Return the bound as text: `ratio >= 0.7`."""
        if self.at_least is not None:
            return f"{self.figure} >= {self.at_least:,.10g}"
        return f"{self.figure} < {self.at_most:,.10g}"


@dataclass(frozen=True)
class Case:
    """One line of the table.

    `measure` works for about the given number of seconds and returns the values of one round: one value for a rate, one
    per operation for a duration.
    """

    work: str
    system: str
    how: str
    level: str
    unit: str
    measure: Callable[[float], list[float]]
    # The name by which other cases refer to this one, and the name of the case that this one's ratio is against.
    name: str = ""
    against: str = ""
    goals: tuple[Goal, ...] = ()
    # Whether a process of its own does the work: it is cold in every round, so there is nothing to warm up.
    apart: bool = False
    # A description of what the ratio is against, for people.
    told: str = ""
    # Whether the result is the same in every round, so that one is enough.
    once: bool = False
    # Whether others of the same work are compared with this system: a lead is against the best of these.
    peer: bool = False


@dataclass
class Result:
    """The values of all rounds of a case."""

    case: Case
    rounds: list[list[float]] = field(default_factory=list)
    ratio: float | None = None
    # The ratio to the best peer of the same work.
    lead: float | None = None

    @property
    def values(self) -> list[float]:
        """The values of all rounds."""
        return [value for values in self.rounds for value in values]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def p99(self) -> float:
        """The 99th percentile over all rounds; meaningless for rates, which are few."""
        return percentile(self.values, 0.99)

    @property
    def has_spread(self) -> bool:
        """Whether a percentile is meaningful: for durations, which are many."""
        return self.case.unit in (MICROSECONDS, MILLISECONDS)

    def of_round(self, number: int) -> float:
        return median(self.rounds[0 if self.case.once else number])

    def figure(self, name: str) -> float | None:
        """Return a figure by the name that goals use."""
        if name == "ratio":
            return self.ratio
        if name == "lead":
            return self.lead
        return self.p99 if name == "p99" else self.median

    def verdicts(self) -> list[tuple[Goal, bool]]:
        """Return each goal, and whether it was met."""
        found = [(goal, self.figure(goal.figure)) for goal in self.case.goals]
        return [(goal, goal.is_met(value)) for goal, value in found if value is not None]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
