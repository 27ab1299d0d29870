"""The flusher: a thread that syncs appends that did not wait for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tailrace.disk.threads import OneThread


class Flusher:
    """Calls `flush` about every `interval` seconds, or earlier if an append requires it.

    The thread starts with the first append and is a daemon: correctness never depends on it, since the flushers of
    other processes and recovery sync what a closed or killed process left.
    """

    def __init__(self, interval: float, monotonic: Callable[[], float], flush: Callable[[], None]) -> None:
        self.interval = interval
        self.monotonic = monotonic
        self.flush = flush
        # Held while a flush runs, so that a fork never copies one halfway.
        self.guard = threading.Lock()
        self.changed = threading.Condition()
        self.deadline: float | None = None
        self.loop = OneThread(self._run, "tailrace-flusher")
        self.stopped = False

    def start(self) -> None:
        """Make sure that the thread runs."""
        if not self.stopped:
            self.loop.start()

    def within(self, seconds: float) -> None:
        """Flush within `seconds` at the latest."""
        deadline = self.monotonic() + seconds
        current = self.deadline
        if current is None or deadline < current:
            with self.changed:
                if self.deadline is None or deadline < self.deadline:
                    self.deadline = deadline
                    self.changed.notify()

    def stop(self) -> None:
        """End the thread; the caller flushes what is left."""
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.loop.join(10.0)

    def _run(self) -> None:
        while self._wait():
            with self.guard:
                self.flush()

    def _wait(self) -> bool:
        """Sleep until the next flush is due; return False if the flusher was stopped."""
        with self.changed:
            wait = self.interval if self.deadline is None else min(self.interval, self.deadline - self.monotonic())
            if wait > 0 and not self.stopped:
                self.changed.wait(wait)
            self.deadline = None
            return not self.stopped
