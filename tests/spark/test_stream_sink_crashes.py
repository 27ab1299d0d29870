"""Queries of a real Spark that are killed: a slice of what `python -m tests.spark.crashes` and `.kills` do."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from tests.spark import crashes, kills, launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # Each starts Java processes of its own, so they must not run beside the tests of the shared session.
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(launch.missing() is not None, reason=str(launch.missing())),
]


def scenarios(mode, *names):
    """The named ones among all scenarios of a mode."""
    chosen = [each for each in crashes.SCENARIOS if each.name in {f"{mode}-{name}" for name in names}]
    assert len(chosen) == len(names)
    return chosen


SLICE = [
    scenarios("inline", "message-exit", "intent-jvm", "committed-raise"),
    scenarios("adopted", "task-exit", "first-jvm"),
]


@pytest.mark.parametrize("some", SLICE, ids=lambda some: some[0].mode)
def test_killed_at_points(some, tmp_path):
    made = crashes.run(some, tmp_path)
    assert (made.fired, made.found, made.doubled, made.lost) == (len(some), made.rows, 0, 0)
    # The death of Java is the one that needs another start.
    assert made.starts == 2
    assert made.foreign


def test_killed_at_random(tmp_path, seed):
    made = kills.run(2, tmp_path, seed, whom=("python", "java"))
    assert made.exact, made
    assert made.kills.total() == 2
    assert made.rows
    assert made.foreign
