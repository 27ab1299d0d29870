"""Operations that fail, a full disk, interrupts, and one thing after another."""

from __future__ import annotations

import pytest


def test_fail_slice(trial):
    """Every call may fail once with EIO, ENOSPC or EINTR: I6, I7, I8 and I9 after the next cut."""
    assert trial("fails", moments=14).faults


def test_full_slice(trial):
    """A full disk loses nothing, and after space is freed every partition takes appends: I7, I8, I9."""
    assert trial("full", moments=25).faults


def test_nested_slice(trial):
    """Fail, kill, cut; two and three deaths; recoveries that are cut off: I6, I7, I8, I9."""
    assert trial("nested", moments=12).faults


def test_interrupt_slice(trial):
    """Ctrl-C anywhere: no lock is left, a record is whole or absent, and the process goes on: I7, I8, I11."""
    assert trial("interrupts", moments=12).faults


@pytest.mark.slow
@pytest.mark.parametrize(("name", "moments"), [("fails", 18), ("full", 40), ("nested", 18), ("interrupts", 15)])
def test_faults(trial, name, moments):
    """The same over more of a longer run: I2 to I9 and I11."""
    assert trial(name, shift=1, moments=moments, length=20).faults
