"""Three members, a writer and an operator take turns at every operation, in a seeded order; some of them die."""

from __future__ import annotations

import pytest


def test_group_live_slice(trial):
    """No deadlock; every record of a group is judged when it is published; all is read in the end."""
    trial("group-live", moments=6, states=3)


@pytest.mark.slow
def test_group_live(trial):
    assert trial("group-live", moments=14, states=4, length=20).faults
