"""Cases: goals, percentiles and the verdicts on them."""

from __future__ import annotations

import pytest
from benchmarks import report

from tailrace.bench.cases import MICROSECONDS, RATE, Case, Goal, Result, percentile


def case(name: str = "", **fields) -> Case:
    defaults = {"work": "work", "system": "Tailrace", "how": name, "level": "on disk", "unit": RATE}
    return Case(**{**defaults, "measure": lambda _: [1.0], "name": name, **fields})


def test_goals_are_judged_by_their_figure():
    goals = (Goal("p50", at_most=150), Goal("p99", at_most=2_000), Goal("ratio", at_least=0.7))
    result = Result(case(unit=MICROSECONDS, goals=goals), [[100.0] * 99, [3_000.0] * 2])
    assert [(goal.figure, met) for goal, met in result.verdicts()] == [("p50", True), ("p99", False)]
    assert "p99 < 2,000: MISSED" in report.cells(result)[-1]
    assert report.verdict([result]).startswith("Goals met: 1 of 2. Missed: work, : p99 < 2,000, was 3,000")
    table = report.goal_table([result, Result(case(goals=(Goal("ratio", at_least=2),)), [[1.0]])])
    assert "| 3,000 us | p99 < 2,000 | **missed** |" in table
    # A ratio for which there was nothing to compare with is no verdict.
    assert table.count("\n") == 3


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_a_percentile_is_a_value_that_was_measured(share, expected):
    assert percentile(range(100, 0, -1), share) == expected


def test_a_goal_is_a_bound_on_one_side():
    least, most = Goal("ratio", at_least=0.7), Goal("p99", at_most=2_000)
    assert [least.is_met(value) for value in (0.69, 0.7)] == [False, True]
    # An upper bound is not reached.
    assert [most.is_met(value) for value in (1_999.9, 2_000)] == [True, False]
    assert (least.text(), most.text()) == ("ratio >= 0.7", "p99 < 2,000")


def test_the_figures_of_a_result():
    result = Result(case(unit=MICROSECONDS), [[1.0, 2.0, 3.0], [10.0]], 0.5, 1.5)
    assert (result.values, result.median, result.p99) == ([1.0, 2.0, 3.0, 10.0], 2.5, 10.0)
    names = ("ratio", "lead", "p99", "p50")
    assert [result.figure(name) for name in names] == [0.5, 1.5, 10.0, 2.5]
    assert (result.of_round(0), result.of_round(1)) == (2.0, 10.0)
    assert result.has_spread
    assert not Result(case(unit=RATE)).has_spread


def test_a_case_that_is_measured_once_has_the_same_value_in_every_round():
    assert Result(case(once=True), [[7.0]]).of_round(3) == 7.0
