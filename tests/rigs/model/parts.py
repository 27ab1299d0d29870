"""The examples of a machine in parts, each of which is a test with a time of its own.

A test that takes too long is stopped in the middle of an example, and Hypothesis reports that as something else. So a
test holds no more examples than a busy machine gets through by far, and a failure is made smaller for a moment only.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import RuleBasedStateMachine

PARTS = 4
# Hypothesis would take five minutes, and the limit of a test is two: the failure itself would never be told.
SHRINKING_SECONDS_MAX = 20


def in_parts(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> list[Any]:
    """Test cases that run so many examples in all; no two of them the same ones."""
    engine.MAX_SHRINKING_SECONDS = SHRINKING_SECONDS_MAX
    cases = []
    for number in range(PARTS):
        part = type(f"{machine.__name__}{number}", (machine,), {})
        case: Any = seed(f"{os.environ.get('TAILRACE_SEED', '0')}:{number}")(part).TestCase
        case.settings = settings_of(max(1, examples // PARTS), steps)
        cases.append(case)
    return cases


def settings_of(examples: int, steps: int) -> settings:
    """The settings of a machine: so many sequences of at most so many calls."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        # Explaining a failure traces every line of both engine and simulator, which takes minutes.
        phases=[phase for phase in Phase if phase is not Phase.explain],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
