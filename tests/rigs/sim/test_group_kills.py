"""A member dies at any operation, or is interrupted: the others take over what it had, and nobody reads too little."""

from __future__ import annotations

import pytest


def test_group_kill_slice(trial):
    """Before, in the middle of and after an operation of each scenario."""
    assert trial("group-kills", moments=1, states=2).faults


def test_group_interrupt_slice(trial):
    """Ctrl-C: the member goes on with the same consumer."""
    assert trial("group-interrupts", moments=2, states=2).faults


@pytest.mark.slow
def test_group_kills(trial):
    assert trial("group-kills", moments=3, states=4, length=30).faults


@pytest.mark.slow
def test_group_interrupts(trial):
    assert trial("group-interrupts", shift=1, moments=5, states=4, length=30).faults
