"""Faults with real processes: kills, interrupts, stops, flipped bytes; `python -m tests.rigs.faults` runs them long."""
