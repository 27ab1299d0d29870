"""Operations that fail and a full disk, under members of a group: they say so, go on, and lose nothing."""

from __future__ import annotations

import pytest


def test_group_fail_slice(trial):
    """Every call may fail once with EIO, ENOSPC or EINTR."""
    assert trial("group-fails", moments=1, states=2).faults


def test_group_full_slice(trial):
    """When space is freed, all members go on as if nothing had happened."""
    assert trial("group-full", moments=2, states=2).faults


@pytest.mark.slow
@pytest.mark.parametrize(("name", "moments"), [("group-fails", 3), ("group-full", 6)])
def test_group_faults(trial, name, moments):
    assert trial(name, shift=1, moments=moments, states=4, length=30).faults
