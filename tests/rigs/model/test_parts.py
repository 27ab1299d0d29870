"""A failure of a machine is told as it is, within the time of a test."""

from __future__ import annotations

import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.rigs.model import parts


class Slow(RuleBasedStateMachine):
    """Fails after a few steps, each of which takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: set[int] = set()

    @rule(numbers=st.lists(st.integers(0, 2**40), max_size=8))
    def step(self, numbers: list[int]) -> None:
        time.sleep(0.005)
        self.numbers.update(numbers)
        # Some example of a hundred has as many, whatever the seed.
        assert len(self.numbers) < 6, "what is wrong"


def test_a_failure_is_told_before_the_test_is_stopped(monkeypatch):
    """Made as small as it gets, it would take longer than a test may."""
    monkeypatch.setattr(parts, "SHRINKING_SECONDS_MAX", 1)
    monkeypatch.setattr(parts.engine, "MAX_SHRINKING_SECONDS", parts.engine.MAX_SHRINKING_SECONDS)
    case = parts.in_parts(Slow, examples=400, steps=10)[0]
    with pytest.raises(AssertionError, match="what is wrong"):
        run_state_machine_as_test(Slow, settings=settings(case.settings, database=None))
