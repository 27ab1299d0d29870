"""Latencies: how long after an append another process has the record."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic, monotonic_ns, sleep
from typing import Any

from tailrace.bench.children import Child

# Between two values, so that the receiver is back in its wait; drawn at random from the length of a poll, so that
# nothing falls into step.
PAUSE_SECONDS = (0.0001, 0.0011)
# The first receipts of a fresh process are of cold code.
SKIPPED = 20
COUNT_MIN = 30
# Whoever has no way to wait for another process is asked this often.
POLL_SECONDS = 0.001
STAMP_BYTES = 20


def stamp(value_bytes: int) -> bytes:
    """A value that says when it was made, by a clock that all processes of the machine share."""
    return f"{monotonic_ns():020d}".encode().ljust(value_bytes, b".")


def age_ns(data: bytes) -> int:
    """How long ago a stamp was made."""
    return monotonic_ns() - int(data[:STAMP_BYTES])


def receive(child: Child, put: Callable[[bytes], Any], seconds: float, value_bytes: int) -> list[float]:
    """Microseconds from stamp to receipt: one value after another, each when the one before has arrived."""
    deadline = monotonic() + seconds
    latencies: list[float] = []
    # It says first that it is ready.
    child.answer()
    while len(latencies) < SKIPPED + COUNT_MIN or monotonic() < deadline:
        sleep(random.uniform(*PAUSE_SECONDS))
        put(stamp(value_bytes))
        latencies.append(child.answer() / 1e3)
    return latencies[SKIPPED:]
