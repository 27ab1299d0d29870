"""Faults with real processes: kills, interrupts, stops and flipped bytes; `python -m tests.faults` runs them long."""
