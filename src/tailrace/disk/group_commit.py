"""Group commit: threads that wait for the disk at the same time share one sync."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING

from tailrace.disk.lock import in_handler
from tailrace.errors import DurabilityError, TailraceError

if TYPE_CHECKING:
    from tailrace.disk.frame import Prepared
    from tailrace.disk.partition import Partition


class Waiter:
    """One append that waits for the disk; it waits on a lock of its own, so that waking it wakes nobody else."""

    __slots__ = ("error", "expect", "first", "frames", "left", "partition", "thread", "turn")

    def __init__(self, partition: Partition, frames: Sequence[Prepared], expect: int | None) -> None:
        self.partition = partition
        self.frames = frames
        self.expect = expect
        self.thread = get_ident()
        self.first = -1
        self.error: BaseException | None = None
        self.turn: threading.Lock | None = None
        # Whether its call is over, however it ended: then it is neither committed nor given the lead.
        self.left = False

    @property
    def span(self) -> int:
        """How many offsets it takes."""
        return self.frames[0].span if len(self.frames) == 1 else sum([frame.span for frame in self.frames])

    def wake(self) -> None:
        """Let its thread go on; may be repeated."""
        if self.turn is not None and self.turn.locked():
            try:
                self.turn.release()
            except RuntimeError:
                return


class GroupCommit:
    """One queue a log and process: the leader commits the whole queue, then hands the lead to the first new waiter."""

    def __init__(
        self,
        commit: Callable[[list[Waiter]], None],
        commit_one: Callable[[Partition, Sequence[Prepared], int | None, bool], int],
        let_go: Callable[[], None] | None = None,
    ) -> None:
        self.commit = commit
        self.commit_one = commit_one
        # Releases what this thread left locked: whoever leads may be waiting for just that.
        self.let_go = let_go
        # Reentrant: a signal handler may append while its own thread is in here.
        self.guard = threading.RLock()
        self.queue: list[Waiter] = []
        # A waiter, or the frames of one that leads alone.
        self.leader: object = None
        # The thread that leads, from the moment it was chosen.
        self.leading_thread = 0
        # Who seemed to have left the lead behind at the last look.
        self.suspect: object = None
        # The threads that wait or lead; one that got away by an interrupt may stay in here until it waits again.
        self.inside: set[int] = set()
        # What each leader has taken and not yet woken.
        self.batches: dict[Waiter, list[Waiter]] = {}

    def submit(self, partition: Partition, frames: Sequence[Prepared], expect: int | None) -> int:
        """Append and return the first offset once it is on disk."""
        if self.leading_thread == get_ident():
            if not self._is_left():
                # A signal handler or finalizer of the leader itself: waiting for the lead would be for ever.
                return self.commit_one(partition, frames, expect, True)
            self._pass_on(self.leader)
        if self.leader is None:
            first = self._lead_alone(partition, frames, expect)
            if first is not None:
                return first
        if self.let_go is not None:
            self.let_go()
        if in_handler() or (get_ident() in self.inside and _is_inside(sys._getframe())):
            # A handler or finalizer: whoever leads may be waiting for the locks of the call beneath this one; and if
            # that one waits for its turn, the lead would be given to it, which cannot take it before this one is done.
            return self.commit_one(partition, frames, expect, True)
        waiter = Waiter(partition, frames, expect)
        self._wait_or_lead(waiter)
        if waiter.error is not None:
            raise waiter.error
        if waiter.first < 0:
            # The leader was interrupted again while it told the others: not told is not acknowledged.
            raise _unknown(KeyboardInterrupt())
        return waiter.first

    def _lead_alone(self, partition: Partition, frames: Sequence[Prepared], expect: int | None) -> int | None:
        """Commit at once what nobody else waits with; None when somebody leads by now."""
        first: int | None = None
        interrupted: BaseException | None = None
        try:
            with self.guard:
                leads = self.leader is None
                if leads:
                    self.leading_thread = get_ident()
                    self.leader = frames
            if leads:
                first = self.commit_one(partition, frames, expect, True)
        finally:
            # Inside a `try` from its first instruction on: an interrupt only delays it.
            while True:
                try:
                    self._pass_on(frames)
                    break
                except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  # raised below, once it is done
                    interrupted = error
        if interrupted is not None:
            raise interrupted
        return first

    def _wait_or_lead(self, waiter: Waiter) -> None:
        batch: list[Waiter] = []
        interrupted: BaseException | None = None
        try:
            with self.guard:
                self.inside.add(waiter.thread)
                if self.leader is None:
                    self.leading_thread = waiter.thread
                    self.leader = waiter
                else:
                    waiter.turn = threading.Lock()
                    waiter.turn.acquire()
                self.queue.append(waiter)
            if waiter.turn is not None:
                waiter.turn.acquire()
            if self.leader is waiter:
                self.batches[waiter] = batch
                self._lead(batch)
        finally:
            # A plain store, which no interrupt can come before: those that follow may keep it from leaving the line.
            waiter.left = True
            # Inside a `try` from its first instruction on: an interrupt only delays it.
            while True:
                try:
                    self._retire(waiter, batch)
                    break
                except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  # raised below, once it is done
                    interrupted = error
        if interrupted is not None:
            raise interrupted

    def _lead(self, batch: list[Waiter]) -> None:
        """Commit what is queued."""
        try:
            with self.guard:
                batch += [waiter for waiter in self.queue if not waiter.left]
                self.queue = []
            self.commit(batch)
        except BaseException as error:
            # Of a commit that anything but the disk cut short, nobody knows whether it was kept; and what a signal
            # handler raised is for its own thread.
            ours = isinstance(error, TailraceError)
            for waiter in batch:
                if waiter.first < 0 and waiter.error is None:
                    waiter.error = error if ours else _unknown(error)
            if not ours:
                raise

    def _retire(self, waiter: Waiter, batch: list[Waiter]) -> None:
        """Leave the line and pass on the lead, then wake those who were served; may be repeated."""
        if waiter.first >= 0 and self.leader is not waiter and not batch:
            # Served by another, which took it out of the queue.
            self.inside.discard(waiter.thread)
            return
        with self.guard:
            if waiter in self.queue:
                self.queue.remove(waiter)
        self._pass_on(waiter)
        self._wake_served(waiter, batch)
        # Last: a handler that appends before this must not wait for others, some of whom wait for what it holds.
        self.inside.discard(waiter.thread)

    def _wake_served(self, leader: Waiter, batch: Sequence[Waiter]) -> None:
        for served in batch:
            if served is not leader:
                served.wake()
        self.batches.pop(leader, None)

    def _pass_on(self, leader: object) -> None:
        """Let the first in the queue lead, if this one did, and wake whoever leads; may be repeated."""
        with self.guard:
            if self.leader is leader:
                while self.queue and self.queue[0].left:
                    self.queue.pop(0)
                self.leading_thread = self.queue[0].thread if self.queue else 0
                self.leader = self.queue[0] if self.queue else None
            following = self.leader
        if isinstance(following, Waiter):
            following.wake()

    def look(self) -> None:
        """Do what a leader left undone: called now and then, since nobody else would wake those who wait for it."""
        for served_by, batch in list(self.batches.items()):
            if served_by.left:
                self._wake_served(served_by, batch)
        leader = self.leader
        if leader is None or not self._is_left():
            self.suspect = None
        elif self.suspect is leader:
            self.suspect = None
            self._pass_on(leader)
        else:
            # The frames of a thread at work may seem to end too early: only one that is met twice was left.
            self.suspect = leader
        following = self.leader
        if isinstance(following, Waiter):
            # Whoever passed the lead on may have been interrupted before this.
            following.wake()

    def _is_left(self) -> bool:
        """Whether the lead was left behind: interrupted again and again, its thread got away without passing it on."""
        return not _is_inside(sys._current_frames().get(self.leading_thread)) and self.leader is not None


# Whoever leads, or waits for its turn, is in one of these.
_LEADING = frozenset({GroupCommit._lead_alone.__code__, GroupCommit._wait_or_lead.__code__})


def _is_inside(frame: FrameType | None) -> bool:
    """Whether a thread, by its innermost frame, leads or waits for its turn."""
    while frame is not None:
        if frame.f_code in _LEADING:
            return True
        frame = frame.f_back
    return False


def _unknown(error: BaseException) -> DurabilityError:
    return DurabilityError(
        f"The commit was interrupted by {type(error).__name__} in another thread; whether it was kept is not known.",
        hint="Read the end of the topic to see whether the record is there before you append it again.",
    )
