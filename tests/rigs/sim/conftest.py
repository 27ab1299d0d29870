"""What the engine's crash tests share: a slice of a trial, and limits that are small enough to simulate."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.meaning import record_meaning
from tests.rigs.sim.engine import small_limits
from tests.rigs.sim.group_bench import GroupBench
from tests.rigs.sim.group_members import small_groups
from tests.rigs.sim.machine import Plan, Tally
from tests.rigs.sim.trials import TRIALS

HERE = Path(__file__).parent


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A process that is killed closes nothing, and its objects are found by the garbage collector of this one."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture
def bench() -> Iterator[GroupBench]:
    """Members of groups on a simulated disk, every limit small."""
    with small_groups():
        made = GroupBench()
        yield made
        made.close()


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    """Let no later test meet what the processes of this one left.

    What earlier tests of other kinds left in memory is not looked at again each time: that would be most of the work.
    """
    gc.freeze()
    yield
    gc.collect()
