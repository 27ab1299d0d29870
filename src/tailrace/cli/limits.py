"""Limits of the command line: one value each for a process, which tests replace with small ones."""

from __future__ import annotations

from typing import NamedTuple


class CliLimits(NamedTuple):
    """The limits of one call of the command."""

    # The maximum of a record, so that a longer line or file is refused before it fills the memory.
    entry_bytes_max: int = 64 << 20
    # One batch is one append, all or nothing: large enough to amortize a sync, small enough for memory.
    batch_bytes_max: int = 4 << 20
    batch_entries_max: int = 65_536
    # The maximum of a CSV row over several lines, so that a stray quote does not consume the rest of the file.
    row_bytes_max: int = 16 << 20
    # Seconds between two updates of a progress line.
    progress_seconds: float = 0.1


# The limits of this process.
LIMITS = CliLimits()
