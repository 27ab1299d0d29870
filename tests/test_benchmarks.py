"""The benchmarks run to their end at tiny sizes, say the durability of everything, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
from benchmarks import groups, peers, report
from benchmarks.cases import MICROSECONDS, RATE, Case, Goal, Result, percentile
from benchmarks.pace import Pace
from benchmarks.rounds import relate, run

ROOT = Path(__file__).parents[1]


def command(results: Path, *options: str) -> list[str]:
    tiny = ["--quick", "--seconds", "0.5", "--rounds", "1", "--results", str(results)]
    return [sys.executable, "-m", "benchmarks", "groups", *tiny, *options]


def measured(results: Path, *options: str) -> tuple[str, list[dict]]:
    """What a run printed, and the rows that it wrote."""
    done = subprocess.run(
        command(results, *options), check=False, cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    # The directory in which it worked is gone.
    assert sorted(path.name for path in results.iterdir()) == ["groups.json", "groups.svg"]
    ElementTree.parse(results / "groups.svg")
    return done.stdout, json.loads((results / "groups.json").read_text("utf-8"))["results"]


def case(name: str = "", **fields) -> Case:
    defaults = {"work": "work", "system": "Tailrace", "how": name, "level": "on disk", "unit": RATE}
    return Case(**{**defaults, "measure": lambda _: [1.0], "name": name, **fields})


# The whole command.


def test_what_needs_no_other_process_is_measured_beside_the_peers_that_are_there(tmp_path):
    text, rows = measured(tmp_path, "--only", "consume,commit", "--only", "process,join")
    assert {row["work"] for row in rows} >= {
        "consume by record",
        "consume by batch",
        "commit",
        "process",
        "join and leave",
    }
    assert all(row["median"] > 0 and row["durability"] and row["samples"] for row in rows)
    for kind in peers.installed():
        levels = [row["durability"] for row in rows if row["system"] == kind.label]
        assert levels
        assert any("kill" in level or "disk" in level for level in levels)
    for package in peers.missing():
        assert package in text
        assert peers.INSTALL in text
    assert "Goals met: " in text


def test_receipt_and_take_over_are_measured_between_processes(tmp_path):
    _, rows = measured(tmp_path, "--only", "receipt,takeover", "--alone")
    found = {row["work"]: row for row in rows if row["goals"]}
    assert found["append to receipt"]["samples"] >= 30
    assert found["take-over"]["samples"] == groups.QUICK_TAKEOVERS
    assert 0 < found["take-over"]["median"] <= found["take-over"]["p99"]


def test_a_terminated_run_leaves_no_directory_and_no_process(tmp_path):
    child = subprocess.Popen(command(tmp_path, "--only", "takeover", "--rounds", "50"), cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not psutil.Process(child.pid).children() and time.monotonic() < deadline:
            time.sleep(0.02)
        children = psutil.Process(child.pid).children()
        assert children
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(30) == 128 + signal.SIGTERM
    finally:
        child.kill()
        child.wait()
    assert list(tmp_path.iterdir()) == []
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


@pytest.mark.parametrize("options", [["--only", "nothing"], ["--seconds", "-1"], ["--rounds", "0.5"]])
def test_wrong_options_are_refused(options):
    with pytest.raises(SystemExit) as error:
        groups.parse(options)
    assert error.value.code == 2


def test_without_the_peers_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda _: None)
    assert peers.installed() == []
    assert peers.missing() == ["persist-queue", "litequeue", "huey", "diskcache"]
    listed = (ROOT / "pyproject.toml").read_text("utf-8").partition("\nbench = ")[2].partition("\n")[0]
    assert all(f'"{package}>=' in listed for package in peers.missing())


# Rounds and figures.


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


def test_goals_are_judged_by_their_figure():
    goals = (Goal("p50", at_most=150), Goal("p99", at_most=2_000), Goal("ratio", at_least=0.7))
    result = Result(case(unit=MICROSECONDS, goals=goals), [[100.0] * 99, [3_000.0] * 2])
    assert [(goal.figure, met) for goal, met in result.verdicts()] == [("p50", True), ("p99", False)]
    assert "p99 < 2,000: MISSED" in report.cells(result)[-1]
    assert report.verdict([result]).startswith("Goals met: 1 of 2. Missed: work, : p99 < 2,000, was 3,000")


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_a_percentile_is_a_value_that_was_measured(share, expected):
    assert percentile(range(100, 0, -1), share) == expected


def test_a_pace_learns_how_much_fits():
    pace = Pace(100, 5_000)
    assert pace.count(1.0) == 100
    assert pace.learn(100, 0.1) == 1_000
    assert pace.count(2.0) == 2_000
    assert pace.count(60.0) == 5_000
    assert pace.count(0.0) == 1
