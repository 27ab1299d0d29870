"""Faults with real processes: kills, interrupts, stops, flipped bytes; `python -m tests.rigs.faults` runs them long."""

from __future__ import annotations

from tailrace.groups import state

# What the members of the rig add to the records of their group, so that a proof can tell who wrote which.
NOTED = frozenset({"by", "epochs"})
state.KNOWN_CHANGES = state.KNOWN_CHANGES | NOTED
