"""Rounds: the turns of the cases, and the figures that relate them."""

from __future__ import annotations

import time

from benchmarks import report

from tailrace.bench.cases import RATE, Case, Goal, Result
from tailrace.bench.runner import relate, run


def case(name: str = "", **fields) -> Case:
    defaults = {"work": "work", "system": "Tailrace", "how": name, "level": "on disk", "unit": RATE}
    return Case(**{**defaults, "measure": lambda _: [1.0], "name": name, **fields})


def test_every_case_has_its_turn_in_every_round_and_the_order_turns():
    turns = []
    cases = [case(name, measure=lambda _, name=name: turns.append(name) or [1.0]) for name in "abc"]
    results = run([*cases, case("d", measure=lambda _: turns.append("d") or [2.0], apart=True)], 2, 0.1)
    assert "".join(turns) == "abc" + "dcba" + "abcd"
    assert [len(result.rounds) for result in results] == [2, 2, 2, 2]


def test_no_round_is_begun_that_would_not_end_in_time():
    results = run([case("a", measure=lambda _: time.sleep(0.02) or [1.0])], 50, 1.0, 0.1)
    assert 1 <= len(results[0].rounds) < 10


def test_a_ratio_is_the_median_of_the_ratios_within_rounds():
    one, other = Result(case("one")), Result(case("other", against="one"))
    one.rounds, other.rounds = [[10.0], [100.0], [1.0]], [[5.0], [80.0], [2.0]]
    relate([other, one])
    assert other.ratio == 0.8
    assert one.ratio is None


def test_a_lead_is_over_the_best_of_the_other_systems_of_the_same_work():
    own = Result(case("own", goals=(Goal("lead", at_least=1),)), [[10.0], [20.0], [30.0]])
    slow, fast = (Result(case(name, peer=True), rounds) for name, rounds in [("a", [[5.0]] * 3), ("b", [[16.0]] * 3)])
    elsewhere = Result(case("c", peer=True, work="other"), [[1000.0]] * 3)
    relate([own, slow, fast, elsewhere])
    assert own.lead == 20 / 16
    assert (slow.lead, fast.lead, elsewhere.lead) == (None, None, None)
    assert "1.25 x the best peer | lead >= 1 | met |" in report.goal_table([own])


def test_a_case_that_is_measured_once_has_one_round_and_no_warm_up():
    calls: list[float] = []
    (result,) = run([case("a", measure=lambda seconds: calls.append(seconds) or [1.0], once=True)], 3, 0.3)
    assert (len(calls), result.rounds) == (1, [[1.0]])


def test_the_time_is_divided_among_cases_and_rounds_and_the_warm_up_is_short():
    slices: list[float] = []
    told: list[str] = []
    measured = [case(name, measure=lambda seconds: slices.append(seconds) or [1.0]) for name in "ab"]
    run(measured, 2, 8.0, progress=told.append)
    assert slices == [0.5, 0.5, 2.0, 2.0, 2.0, 2.0]
    assert told[0] == "warm-up: work, Tailrace, a"
    assert told[-1] == "round 2 of 2: work, Tailrace, b"
