"""A member is stopped at any operation: the others go on without it, and it stores nothing for what it lost."""

from __future__ import annotations

import pytest


def test_group_stop_slice(trial):
    """SIGSTOP before an operation of each scenario; some are continued late, some are killed where they stand."""
    assert trial("group-stops", moments=2, states=2).faults


@pytest.mark.slow
def test_group_stops(trial):
    assert trial("group-stops", shift=1, moments=8, states=3, length=30).faults
