"""Background thread: runs retention and vacuum from time to time, in one process of a log at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk import OneThread, by_system
from tailrace.errors import LockedError

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine

# Time limit of the last round of a process that closes the log.
LAST_ROUND_SECONDS = 1.0
STOP_SECONDS = 10.0
# How long that round waits to learn whether another process holds the journal lock.
PROBE_SECONDS = 0.05


class Chores(NamedTuple):
    """The work of a round: a free check whether there is any, and its steps, each of them short."""

    wanted: Callable[[Engine], bool]
    steps: Callable[[Engine], Generator[object, None, None]]


# Set by the facade, which knows settings and groups; the layers below it do not.
chores: Chores | None = None


class Background:
    """Runs a round of chores about every `vacuum_seconds`, and at once after a segment was sealed.

    The thread starts when there is work and is a daemon: other processes do the rest of a killed process, and the next
    round completes a step that was interrupted.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # Held while a step runs, so that a fork never copies one halfway.
        self.guard = threading.Lock()
        self.changed = threading.Condition()
        self.loop = OneThread(self._run, "tailrace-vacuum")
        self.stopped = False
        # Whether a segment was sealed since the last round.
        self.poked = False
        # Descriptors through which this process holds the vacuum lock.
        self.locks: set[int] = set()

    # From other threads.

    def beat(self) -> None:
        """Start the thread if there is work; called about twice a second."""
        if self.loop.thread is None and not self.stopped and self._is_wanted():
            self.loop.start()

    def poke(self) -> None:
        """Request a round soon; called under a partition's lock."""
        self.poked = True
        if self.loop.thread is not None:
            with self.changed:
                self.changed.notify()

    def stop(self) -> None:
        """End the thread after its current step."""
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.loop.join(STOP_SECONDS)

    def finish(self) -> None:
        """End the thread, and do a last round if a segment was sealed: short-lived processes bound the disk too."""
        self.stop()
        store = self.engine.live
        if self.poked and store is not None and store.writable and store.context.tuning.background:
            self.poked = False
            if self._is_wanted() and self._is_journal_free():
                self._round(self.engine.files.monotonic() + LAST_ROUND_SECONDS)

    def forget(self) -> None:
        """In a forked child: close inherited descriptors without unlocking, which would unlock the parent."""
        self.stopped = True
        while self.locks:
            self.engine.files.close(self.locks.pop())

    # The vacuum lock.

    def hold(self, timeout: float, held: list[int]) -> bool:
        """Take the lock that one process holds at a time; return False if it was not free. Call `let_go` in any case.

        The descriptor is in the caller's list before it is locked, so that an interrupt cannot leave it locked
        unnoticed.
        """
        files = self.engine.files
        descriptor = files.open(f"{self.engine.path}/topics", directory=True)
        held.append(descriptor)
        self.locks.add(descriptor)
        return files.lock(descriptor, timeout=timeout)

    def let_go(self, held: list[int]) -> None:
        """Release the lock; unlock before the close, because a child forked meanwhile may have the descriptor too."""
        for descriptor in held:
            # A forked child has closed it already.
            if descriptor in self.locks:
                self.locks.discard(descriptor)
                self.engine.files.unlock(descriptor)
                self.engine.files.close(descriptor)

    def held_by(self) -> LockedError:
        """Return the error for a caller that waited for the lock without success."""
        files = self.engine.files
        descriptor = files.open(f"{self.engine.path}/topics", directory=True)
        try:
            pid = files.lock_holder(descriptor)
        finally:
            files.close(descriptor)
        holder = f"process {pid}" if pid else "another process"
        return LockedError(f"The vacuum of {self.engine.path} is being done by {holder}.", pid=pid)

    def _is_journal_free(self) -> bool:
        """Return whether the journal lock is free: a close must not wait for a stopped process that holds it."""
        files = self.engine.files
        try:
            descriptor = files.open(f"{self.engine.path}/journal", directory=True)
            try:
                return files.lock(descriptor, timeout=PROBE_SECONDS)
            finally:
                files.close(descriptor)
        except by_system():
            return False

    # The thread.

    def _run(self) -> None:
        took = 0.0
        while self._wait(took):
            began = self.engine.files.monotonic()
            self.poked = False
            if self._is_wanted():
                self._round(None)
            took = self.engine.files.monotonic() - began

    def _wait(self, rest: float) -> bool:
        """Sleep until the next round; return False if stopped. Rest at least as long as the last round took."""
        interval: float = self.engine.tuning.vacuum_seconds
        with self.changed:
            if not self.stopped and rest > 0:
                self.changed.wait_for(lambda: self.stopped, min(rest, interval))
            if not self.stopped and not self.poked:
                self.changed.wait(interval)
            return not self.stopped

    def _is_wanted(self) -> bool:
        if chores is None:
            return False
        try:
            return chores.wanted(self.engine)
        except Exception:  # noqa: BLE001  # It runs in background threads, which have no caller to raise to.
            self._failed()
            return False

    def _round(self, deadline: float | None) -> None:
        """Do one round, unless another process does one; a failure is counted, and the next round tries again."""
        engine = self.engine
        held: list[int] = []
        try:
            with self.guard:
                mine = self.hold(0.0, held)
            if not mine or chores is None:
                return
            steps = chores.steps(engine)
            more = True
            try:
                while more and (deadline is not None or not self.stopped):
                    with self.guard:
                        more = engine.write(lambda: next(steps, self)) is not self
                    more = more and (deadline is None or engine.files.monotonic() < deadline)
            finally:
                # What an unfinished step left is removed before another process can get the lock.
                with self.guard:
                    steps.close()
        except Exception:  # noqa: BLE001  # As above: there is no caller to raise to.
            self._failed()
        finally:
            try:
                self.let_go(held)
            except by_system():
                self._failed()

    def _failed(self) -> None:
        store = self.engine.live
        gauges = None if store is None else store.context.gauges
        if gauges is not None:
            gauges.failed()
