"""Queries of a real Spark that are killed: a slice of what `python -m tests.rigs.spark.crashes` and `.kills` do."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from tests.rigs.spark import crashes, kills
from tests.spark import launch

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


def test_killed_at_points(tmp_path):
    some = scenarios("inline", "message-exit", "intent-jvm", "committed-raise")
    made = crashes.run(some, tmp_path)
    assert (made.fired, made.found, made.doubled, made.lost) == (len(some), made.rows, 0, 0)
    # The death of Java is the one that needs another start.
    assert made.starts == 2
    assert made.foreign


# The points above are those that matter; these kills hit any other moment.
@pytest.mark.long
def test_killed_at_random(tmp_path, seed):
    made = kills.run(2, tmp_path, seed, whom=("python", "java"))
    assert made.exact, made
    assert made.kills.total() == 2
    assert made.rows
    assert made.foreign
