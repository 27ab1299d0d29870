"""What the engine's crash tests share: a slice of a trial, and limits that are small enough to simulate."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.meaning import record_meaning
from tests.sim.engine import small_limits
from tests.sim.machine import Plan, Tally
from tests.sim.trials import TRIALS


@pytest.fixture
def small() -> Iterator[None]:
    """Adoption, snapshots and growth at small sizes."""
    with small_limits():
        yield


@pytest.fixture
def trial(seed: int, small: None) -> Callable[..., Tally]:
    """Run a slice of a trial under the seed of this run; it fails with every problem found."""

    def run(name: str, **options: int) -> Tally:
        tally = TRIALS[name](Plan(seed + options.pop("shift", 0), **options))
        record_meaning(crash_states=tally.states, acknowledged=tally.acknowledged, acknowledged_lost=tally.lost)
        assert not tally.problems, f"seed {seed}, {len(tally.problems)} problems:\n" + "\n".join(tally.problems)
        assert tally.states, "nothing was tried"
        return tally

    return run
