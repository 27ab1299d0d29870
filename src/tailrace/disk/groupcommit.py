"""Group commit: threads that wait for the disk at the same time share one sync."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tailrace.errors import DurabilityError

if TYPE_CHECKING:
    from tailrace.disk.frame import Prepared
    from tailrace.disk.partition import Partition


class Waiter:
    """One append that waits for the disk; it waits on a lock of its own, so that waking it wakes nobody else."""

    __slots__ = ("error", "expect", "first", "frames", "partition", "turn")

    def __init__(self, partition: Partition, frames: Sequence[Prepared], expect: int | None) -> None:
        self.partition = partition
        self.frames = frames
        self.expect = expect
        self.first = -1
        self.error: BaseException | None = None
        self.turn: threading.Lock | None = None

    def wake(self) -> None:
        """Let its thread go on; may be repeated."""
        if self.turn is not None:
            try:
                self.turn.release()
            except RuntimeError:
                return


class GroupCommit:
    """One queue a log and process: the leader commits the whole queue, then hands the lead to the first new waiter."""

    def __init__(self, commit: Callable[[list[Waiter]], None]) -> None:
        self.commit = commit
        # Reentrant: a signal handler may append while its own thread is in here.
        self.guard = threading.RLock()
        self.queue: list[Waiter] = []
        self.leader: Waiter | None = None
        self.leading_thread = 0

    def submit(self, partition: Partition, frames: Sequence[Prepared], expect: int | None) -> int:
        """Append and return the first offset once it is on disk."""
        waiter = Waiter(partition, frames, expect)
        if self.leading_thread == threading.get_ident():
            # A signal handler or finalizer of the leader itself: waiting for the lead would be for ever.
            self.commit([waiter])
        else:
            self._wait_or_lead(waiter)
        if waiter.error is not None:
            raise waiter.error
        if waiter.first < 0:
            # The leader was interrupted again while it told the others: not told is not acknowledged.
            raise _unknown(KeyboardInterrupt())
        return waiter.first

    def _wait_or_lead(self, waiter: Waiter) -> None:
        batch: list[Waiter] = []
        interrupted: KeyboardInterrupt | None = None
        try:
            self._stand_in_line(waiter)
            if waiter.turn is not None:
                waiter.turn.acquire()
            if self.leader is waiter:
                self._lead(batch)
        finally:
            # Inside a `try` from its first instruction on: an interrupt only delays it.
            while True:
                try:
                    self._retire(waiter, batch)
                    break
                except KeyboardInterrupt as error:
                    interrupted = error
        if interrupted is not None:
            raise interrupted

    def _stand_in_line(self, waiter: Waiter) -> None:
        with self.guard:
            if self.leader is None:
                self.leader = waiter
            else:
                waiter.turn = threading.Lock()
                waiter.turn.acquire()
            self.queue.append(waiter)

    def _lead(self, batch: list[Waiter]) -> None:
        """Commit what is queued."""
        try:
            self.leading_thread = threading.get_ident()
            with self.guard:
                batch += self.queue
                self.queue = []
            self.commit(batch)
        except BaseException as error:
            # Whether an interrupted commit was kept is not known here, so nobody is told that it was.
            for waiter in batch:
                if waiter.first < 0 and waiter.error is None:
                    waiter.error = error if isinstance(error, Exception) else _unknown(error)
            if not isinstance(error, Exception):
                raise

    def _retire(self, waiter: Waiter, batch: list[Waiter]) -> None:
        """Leave the line and pass on the lead, then wake those who were served; may be repeated."""
        with self.guard:
            if waiter in self.queue:
                self.queue.remove(waiter)
            if self.leader is waiter:
                self.leading_thread = 0
                self.leader = self.queue[0] if self.queue else None
            following = self.leader
        if following is not None:
            following.wake()
        for served in batch:
            if served is not waiter:
                served.wake()


def _unknown(error: BaseException) -> DurabilityError:
    return DurabilityError(
        f"The commit was interrupted by {type(error).__name__} in another thread; whether it was kept is not known.",
        hint="Read the end of the topic to see whether the record is there before you append it again.",
    )
