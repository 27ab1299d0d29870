"""A process dies at any operation while others have the log open: they see all it was promised, and go on."""

from __future__ import annotations

import pytest


def test_kill_slice(trial):
    """Before, in the middle of and after an operation: I6, I7, I8, I9; I2, I3, I4, I5 and I11 throughout."""
    assert trial("kills", moments=16).faults


@pytest.mark.slow
def test_kills(trial):
    """Before, in the middle of and after an operation: I6, I7, I8, I9; I2, I3, I4, I5 and I11 throughout."""
    assert trial("kills", moments=18, length=20, states=8).faults
