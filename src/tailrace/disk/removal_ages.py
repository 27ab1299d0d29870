"""Removal ages: since when records of ranges of offsets are removed, as few ranges with a time each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter, le
from typing import NamedTuple

# Removals that are this close to each other, in time and in offsets, are one range.
STEP_US = 60_000_000


class AgeLimits(NamedTuple):
    """How exactly ages are known: tests replace it."""

    step_offsets: int = 1_024
    # More ranges are joined in pairs: a part of them then counts as older than it is, none as younger.
    ages_max: int = 1_024


LIMITS = AgeLimits()

_FIRST, _STOP = itemgetter(0), itemgetter(1)


class Age(NamedTuple):
    """A range of offsets, to the last exclusive, and the time of the oldest removal there in microseconds."""

    first: int
    stop: int
    since_us: int


class RemovalAges:
    """Since when there are removals in the offsets of a partition; it never changes, so any thread may keep it."""

    __slots__ = ("ages",)

    def __init__(self, ages: tuple[Age, ...] = ()) -> None:
        # Sorted; none overlaps the next one.
        self.ages = ages

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemovalAges) and self.ages == other.ages

    __hash__ = None  # type: ignore[assignment]

    def is_sorted(self) -> bool:
        """Return whether the ranges are what they are said to be; those of a damaged record may not be."""
        ages = self.ages
        return all(age.first < age.stop for age in ages) and all(map(le, map(_STOP, ages), map(_FIRST, ages[1:])))

    def oldest(self, first: int, stop: int) -> int | None:
        """Return since when there are removals in a range; None if there are none."""
        low = bisect_right(self.ages, first, key=_STOP)
        high = bisect_left(self.ages, stop, key=_FIRST)
        return min([age.since_us for age in self.ages[low:high]], default=None)

    def adding(self, removals: Iterable[Age]) -> RemovalAges:
        """Return the ages with further removals; what was removed before keeps its time."""
        ages = [*self.ages]
        for removal in removals:
            _insert(ages, removal)
            ages = _bounded(ages)
        return RemovalAges(tuple(ages))

    def outside(self, first: int, stop: int) -> RemovalAges:
        """Return the ages without those of a range."""
        low = bisect_right(self.ages, first, key=_STOP)
        high = bisect_left(self.ages, stop, key=_FIRST)
        if low >= high:
            return self
        before, after = self.ages[low], self.ages[high - 1]
        edges = (before._replace(stop=min(before.stop, first)), after._replace(first=max(after.first, stop)))
        kept = [age for age in edges if age.first < age.stop]
        return RemovalAges(tuple(_bounded([*self.ages[:low], *kept, *self.ages[high:]])))

    def between(self, start: int, end: int) -> RemovalAges:
        """Return the ages without what is below the start or at or above the end of a partition."""
        cut = [Age(max(age.first, start), min(age.stop, end), age.since_us) for age in self.ages]
        return RemovalAges(tuple([age for age in cut if age.first < age.stop]))


NO_AGES = RemovalAges()


def _insert(ages: list[Age], removal: Age) -> None:
    """Insert what no range covers yet of a removal."""
    first, stop, since = removal
    at = bisect_right(ages, first, key=_STOP)
    while first < stop:
        covered = ages[at] if at < len(ages) else None
        if covered is not None and covered.first <= first:
            first = covered.stop
        else:
            reached = stop if covered is None else min(stop, covered.first)
            before = ages[at - 1] if at else None
            if before is not None and first - before.stop <= LIMITS.step_offsets and _is_near(before, since):
                ages[at - 1] = Age(before.first, reached, min(before.since_us, since))
                at -= 1
            elif covered is not None and covered.first - reached <= LIMITS.step_offsets and _is_near(covered, since):
                ages[at] = Age(first, covered.stop, min(covered.since_us, since))
                at -= 1
            else:
                ages.insert(at, Age(first, reached, since))
            first = reached
        at += 1


def _is_near(age: Age, since: int) -> bool:
    return abs(since - age.since_us) < STEP_US


def _bounded(ages: list[Age]) -> list[Age]:
    """Join every range with the next one while there are too many; the older time counts."""
    while len(ages) > LIMITS.ages_max:
        pairs = [(ages[at], ages[min(at + 1, len(ages) - 1)]) for at in range(0, len(ages), 2)]
        ages = [Age(left.first, right.stop, min(left.since_us, right.since_us)) for left, right in pairs]
    return ages
