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

    __slots__ = ("error", "expect", "first", "frames", "leads", "partition", "turn")

    def __init__(self, partition: Partition, frames: Sequence[Prepared], expect: int | None) -> None:
        self.partition = partition
        self.frames = frames
        self.expect = expect
        self.first = -1
        self.error: BaseException | None = None
        self.leads = False
        self.turn: threading.Lock | None = None


class GroupCommit:
    """One queue a log and process: the leader commits the whole queue, then hands the lead to the first new waiter."""

    def __init__(self, commit: Callable[[list[Waiter]], None]) -> None:
        self.commit = commit
        self.guard = threading.Lock()
        self.queue: list[Waiter] = []
        self.leading = False

    def submit(self, partition: Partition, frames: Sequence[Prepared], expect: int | None) -> int:
        """Append and return the first offset once it is on disk."""
        waiter = Waiter(partition, frames, expect)
        with self.guard:
            if self.leading:
                waiter.turn = threading.Lock()
                waiter.turn.acquire()
            else:
                self.leading = waiter.leads = True
            self.queue.append(waiter)
        if waiter.turn is not None:
            try:
                waiter.turn.acquire()
            except BaseException:
                self._give_up(waiter)
                raise
        if waiter.leads:
            self._lead()
        if waiter.error is not None:
            raise waiter.error
        return waiter.first

    def _lead(self) -> None:
        """Commit what is queued, pass the lead on, then wake those whose records are on disk."""
        batch: list[Waiter] = []
        try:
            with self.guard:
                batch, self.queue = self.queue, []
            self.commit(batch)
        except BaseException as error:
            # Whether an interrupted commit was kept is not known here, so nobody is told that it was.
            for waiter in batch:
                if waiter.first < 0 and waiter.error is None:
                    waiter.error = error if isinstance(error, Exception) else _unknown(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._pass_on(batch)

    def _pass_on(self, batch: list[Waiter]) -> None:
        with self.guard:
            following = self.queue[0] if self.queue else None
            if following is None:
                self.leading = False
            else:
                following.leads = True
        if following is not None and following.turn is not None:
            following.turn.release()
        for waiter in batch:
            if waiter.turn is not None and not waiter.leads:
                waiter.turn.release()

    def _give_up(self, waiter: Waiter) -> None:
        """An interrupted waiter leaves the queue, or passes on the lead it was just given."""
        with self.guard:
            if waiter in self.queue:
                self.queue.remove(waiter)
        if waiter.leads:
            self._pass_on([])


def _unknown(error: BaseException) -> DurabilityError:
    return DurabilityError(
        f"The commit was interrupted by {type(error).__name__} in another thread; whether it was kept is not known.",
        hint="Read the end of the topic to see whether the record is there before you append it again.",
    )
