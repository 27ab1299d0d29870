"""Rounds: all cases take turns in each round, so that a disturbance of the machine affects all of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from math import inf
from statistics import median
from time import monotonic

from tailrace.bench.cases import Case, Result

# The first round warms up files and code and estimates the pace of each case; its values are discarded.
WARM_UP_SHARE = 0.25


def run(
    cases: Sequence[Case],
    rounds: int,
    seconds: float,
    limit: float = inf,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Measure all cases for `seconds` in all, and relate them to each other round by round.

    No round is started that would not end within `limit`, in elapsed seconds; the first one always is.
    """
    begun = monotonic()
    slice_seconds = seconds / max(1, rounds * len(cases))
    results = [Result(case) for case in cases]
    # Frozen objects are not scanned by the collections between two cases, which are then quick.
    gc.collect()
    gc.freeze()
    for number in range(-1, rounds):
        if number > 0 and (monotonic() - begun) / number * (number + 1) > limit:
            break
        label = "warm-up" if number < 0 else f"round {number + 1} of {rounds}"
        # Every second round runs in reverse, so that no case always follows the same one.
        for result in results if number % 2 else results[::-1]:
            case = result.case
            if (number < 0 and (case.apart or case.once)) or (case.once and result.rounds):
                continue
            progress(f"{label}: {case.work}, {case.system}, {case.how}")
            gc.collect()
            values = case.measure(slice_seconds * (WARM_UP_SHARE if number < 0 else 1))
            if number >= 0:
                result.rounds.append(values)
    gc.unfreeze()
    relate(results)
    return results


def relate(results: Sequence[Result]) -> None:
    """Set the ratio of each case to the one that it is against, and its lead over the best peer of the same work."""
    named = {result.case.name: result for result in results if result.case.name}
    for result in results:
        other = named.get(result.case.against)
        if other is not None:
            result.ratio = _ratio(result, other)
        peers = [each for each in results if each.case.peer and each.case.work == result.case.work]
        if peers and not result.case.peer:
            result.lead = min(_ratio(result, peer) for peer in peers)


def _ratio(result: Result, other: Result) -> float:
    """Return the median of the ratios within the rounds."""
    rounds = range(min(len(result.rounds), len(other.rounds)))
    return median([result.of_round(number) / other.of_round(number) for number in rounds])
