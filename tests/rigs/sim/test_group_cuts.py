"""The power goes, at any operation of members of a group: no stored cursor is lost, none is ahead of the log.

Outputs and cursors of one transaction are there together or not at all; whoever goes on reads exactly what is left.
"""

from __future__ import annotations

import pytest


def test_group_cut_slice(trial):
    """Commits, transactions, rebalances, snapshots, resets, evictions and drops, a few operations of each."""
    trial("group-cuts", moments=4, states=8)


def test_group_recovery_slice(trial):
    """Recovery itself is cut off, again and again."""
    assert trial("group-recoveries", moments=1, states=3).faults


@pytest.mark.slow
def test_group_cuts(trial):
    trial("group-cuts", moments=8, states=8, length=30)


@pytest.mark.slow
def test_group_recoveries(trial):
    assert trial("group-recoveries", shift=1, moments=5, states=4, length=30).faults
