"""The rig of long tests finds them, runs them in the order of its seed while there is time, and reports failures."""

from __future__ import annotations

import pytest

from tests.rigs import long


@pytest.fixture
def commands(monkeypatch):
    """Each command that the rig would start, with an exit code of 1 for tests that are named so."""
    started = []

    class Done:
        def __init__(self, command, env, **_):
            started.append((command[-1], env["TAILRACE_SEED"]))
            self.returncode = int("bad" in command[-1])

    monkeypatch.setattr(long.subprocess, "run", Done)
    return started


def test_each_runs_under_the_seed_and_failures_are_kept_apart(commands):
    assert long.run(["a.py::good", "a.py::bad", "b.py::good"], 7, 60.0) == (["a.py::good", "b.py::good"], ["a.py::bad"])
    assert commands == [("a.py::good", "7"), ("a.py::bad", "7"), ("b.py::good", "7")]


def test_one_runs_without_time_for_it(commands):
    assert long.run(["a.py::good", "b.py::good"], 7, -1.0) == (["a.py::good"], [])
    assert len(commands) == 1


def test_they_are_found_by_their_mark():
    found = long.find(["tests/disk/test_admin.py"])
    assert found == ["tests/disk/test_admin.py::test_slots_of_dropped_topics_are_used_again[2000]"]
