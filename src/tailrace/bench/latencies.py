"""Latencies: the time from an append to the receipt in another process."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic, monotonic_ns, sleep
from typing import Any

from tailrace.bench.children import Child

# Pause between two values, so that the receiver waits again; random over the length of a poll, so that the two do not
# synchronize.
PAUSE_SECONDS = (0.0001, 0.0011)
# The first receipts of a new process run cold code.
SKIPPED = 20
COUNT_MIN = 30
# Interval at which a system without a way to wait for another process is polled.
POLL_SECONDS = 0.001
STAMP_BYTES = 20


def stamp(value_bytes: int) -> bytes:
    """Return a value with the current time of a clock that all processes of the machine share."""
    return f"{monotonic_ns():020d}".encode().ljust(value_bytes, b".")


def age_ns(data: bytes) -> int:
    """Return how long ago a stamp was made, in nanoseconds."""
    return monotonic_ns() - int(data[:STAMP_BYTES])


def receive(child: Child, put: Callable[[bytes], Any], seconds: float, value_bytes: int) -> list[float]:
    """Return microseconds from stamp to receipt, of values sent one by one, each after the one before has arrived."""
    deadline = monotonic() + seconds
    latencies: list[float] = []
    # The first answer says that the child is ready.
    child.answer()
    while len(latencies) < SKIPPED + COUNT_MIN or monotonic() < deadline:
        sleep(random.uniform(*PAUSE_SECONDS))
        put(stamp(value_bytes))
        latencies.append(child.answer() / 1e3)
    return latencies[SKIPPED:]
