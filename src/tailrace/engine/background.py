"""Background thread: runs retention and vacuum from time to time, in one process of a log at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.failures import by_system
from tailrace.disk.threads import OneThread
from tailrace.errors import LockedError

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine

# How long the last round of a process that closes the log may take.
LAST_ROUND_SECONDS = 1.0
STOP_SECONDS = 10.0
# How long that round waits to see whether anybody holds up the journal lock.
PROBE_SECONDS = 0.05


class Chores(NamedTuple):
    """What there is to do: whether anything is, at no cost, and the steps of a round, each of them short."""

    wanted: Callable[[Engine], bool]
    steps: Callable[[Engine], Iterator[None]]


# Set by the facade, which knows settings and groups; below it nobody does.
chores: Chores | None = None


class Background:
    """Runs a round of chores about every `vacuum_seconds`, and at once after a segment was sealed.

    The thread starts when there is something to do and is a daemon: a killed process leaves the rest to the others, and
    whatever a step leaves half done is finished by the next round.
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
        """Have a thread if there is anything to do; called about twice a second."""
        if self.loop.thread is None and not self.stopped and self._is_wanted():
            self.loop.start()

    def poke(self) -> None:
        """Ask for a round soon; called under a partition's lock."""
        self.poked = True
        if self.loop.thread is not None:
            with self.changed:
                self.changed.notify()

    def stop(self) -> None:
        """End the thread after the step it is in."""
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.loop.join(STOP_SECONDS)

    def finish(self) -> None:
        """End the thread, and do a last round if a segment was sealed: short-lived processes keep the disk bounded."""
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
        """Take the lock that one process has at a time; False when it was not to be had. In any case call `let_go`.

        The descriptor is in the caller's list before it is locked, so that no interrupt can leave a lock behind.
        """
        files = self.engine.files
        descriptor = files.open(f"{self.engine.path}/topics", directory=True)
        held.append(descriptor)
        self.locks.add(descriptor)
        return files.lock(descriptor, timeout=timeout)

    def let_go(self, held: list[int]) -> None:
        """Give the lock back; unlocked first, because a child that was forked meanwhile may have the descriptor too."""
        for descriptor in held:
            # A forked child has closed it already.
            if descriptor in self.locks:
                self.locks.discard(descriptor)
                self.engine.files.unlock(descriptor)
                self.engine.files.close(descriptor)

    def held_by(self) -> LockedError:
        """The error for somebody who waited for the lock in vain."""
        files = self.engine.files
        descriptor = files.open(f"{self.engine.path}/topics", directory=True)
        try:
            pid = files.lock_holder(descriptor)
        finally:
            files.close(descriptor)
        holder = f"process {pid}" if pid else "another process"
        return LockedError(f"The vacuum of {self.engine.path} is being done by {holder}.", pid=pid)

    def _is_journal_free(self) -> bool:
        """Whether nobody sits on the journal lock: a close must not wait for a process that was stopped."""
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
        """Sleep until the next round; False when the worker was stopped. Half of the time at least it rests."""
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
        except Exception:  # noqa: BLE001  # It runs in threads that belong to nobody who could be told.
            self._failed()
            return False

    def _round(self, deadline: float | None) -> None:
        """One round, if no other process is at one; what fails is counted, and tried again by the next."""
        engine = self.engine
        held: list[int] = []
        try:
            with self.guard:
                mine = self.hold(0.0, held)
            if not mine or chores is None:
                return
            steps = chores.steps(engine)
            more = True
            while more and (deadline is not None or not self.stopped):
                with self.guard:
                    more = engine.write(lambda: next(steps, self)) is not self
                more = more and (deadline is None or engine.files.monotonic() < deadline)
        except Exception:  # noqa: BLE001  # As above: nobody called this.
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
