"""Group commit: the queue of threads that wait for the disk at the same time and share one sync."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any

from tailrace.disk.critical import Region, critical_region, in_handler, regions
from tailrace.errors import DurabilityError, TailraceError

if TYPE_CHECKING:
    from tailrace.disk.frame import Prepared
    from tailrace.disk.partition import Partition


class RecipeChanged(Exception):  # noqa: N818  # a state to act on, never shown to a user
    """The catalog changed after frames were built from it: nothing was written, build them again."""


class WriteAlone(Exception):  # noqa: N818  # a state to act on, never shown to a user
    """A write cannot be part of a journalled commit of several threads; nothing was written.

    Its check refused it, which must not fail the others, or made its frames, whose size must be known before the locks.
    """


class WriteGroup:
    """The writes of one partition that are published together, as a check under the partition's lock sees them."""

    __slots__ = ("end", "overlay", "published")

    def __init__(self, end: int) -> None:
        # The offset that the next record of the group gets.
        self.end = end
        # State that checks leave for later checks of the same group, each under a key of its own. No other thread or
        # process sees it before the group is published, and if the group fails it is discarded with this object.
        self.overlay: dict[object, Any] = {}
        # Called under the partition's lock once the group is published, unless it is a journalled commit. An interrupt
        # may prevent it.
        self.published: list[Callable[[], None]] = []


# Called under the partition's lock: raises to refuse the write; returns the frames to write, or None for those given.
# It may be called again before the write, and changes nothing but the overlay of its group.
Check = Callable[[WriteGroup], Sequence["Prepared"] | None]


class Waiter:
    """One append that waits for the disk, on a lock of its own, so that no other thread is woken with it."""

    __slots__ = ("check", "error", "expect", "first", "frames", "left", "partition", "recipe", "thread", "turn")

    def __init__(
        self,
        partition: Partition,
        frames: Sequence[Prepared],
        expect: int | None = None,
        check: Check | None = None,
        recipe: int | None = None,
    ) -> None:
        self.partition = partition
        self.frames = frames
        self.expect = expect
        self.check = check
        self.recipe = recipe
        self.thread = get_ident()
        self.first = -1
        self.error: BaseException | None = None
        self.turn: threading.Lock | None = None
        # Whether its call has ended, by return or exception: then it is neither committed nor made the leader.
        self.left = False

    @property
    def span(self) -> int:
        """The number of offsets it takes."""
        return self.frames[0].span if len(self.frames) == 1 else sum([frame.span for frame in self.frames])

    def wake(self) -> None:
        """Wake its thread; may be repeated."""
        if self.turn is not None and self.turn.locked():
            try:
                self.turn.release()
            except RuntimeError:
                return


# Partition, frames, expected offset, whether to sync, check, recipe, the time, None, when the append began; returns the
# first offset.
CommitOne = Callable[
    ["Partition", Sequence["Prepared"], int | None, bool, Check | None, int | None, int, None, float | None], int
]


class GroupCommit:
    """One queue per log and process: the leader commits the whole queue and passes the lead to the first new waiter."""

    def __init__(
        self,
        commit: Callable[[list[Waiter]], None],
        commit_one: CommitOne,
        let_go: Callable[[], None] | None = None,
        count_wait: Callable[[float], None] | None = None,
    ) -> None:
        self.commit = commit
        self.commit_one = commit_one
        # Counts how long an append waited that another function than `commit_one` wrote.
        self.count_wait = count_wait
        # Releases the locks that this thread left: the leader may be waiting for one of them.
        self.let_go = let_go
        # Reentrant: a signal handler may append while its own thread is in here.
        self.guard = threading.RLock()
        self.queue: list[Waiter] = []
        # A waiter, or another object for a thread that leads alone.
        self.leader: object = None
        # The thread that leads, from the moment it was chosen.
        self.leading_thread = 0
        # The leader whose thread was not in the queue code at the last check.
        self.suspect: object = None
        # The threads that wait or lead; an interrupted one may stay here until it waits again.
        self.inside: set[int] = set()
        # The waiters that each leader has taken and not yet woken.
        self.batches: dict[Waiter, list[Waiter]] = {}

    def submit(
        self,
        partition: Partition,
        frames: Sequence[Prepared],
        expect: int | None = None,
        check: Check | None = None,
        recipe: int | None = None,
        now_us: int = 0,
        began: float | None = None,
    ) -> int:
        """Append, and return the first offset once it is on disk.

        `now_us` is the time, 0 if the caller did not read it. `began` is when the caller began to wait, unless it
        counts its wait itself.
        """
        if self.leading_thread == get_ident():
            if not self._is_left():
                # A signal handler or finalizer in the leader's thread: waiting for the lead would never end.
                return self.commit_one(partition, frames, expect, True, check, recipe, now_us, None, began)
            self._pass_on(self.leader)
        if self.leader is None:
            first = self._lead_alone(partition, frames, expect, check, recipe, now_us, began)
            if first is not None:
                return first
        if self.let_go is not None:
            self.let_go()
        if in_handler() or (get_ident() in self.inside and _is_inside(sys._getframe())):
            # A handler or finalizer: the leader may be waiting for the locks of the call that it interrupted; and if
            # that call waits for its turn, the lead would go to it, and it cannot take the lead before this call
            # returns.
            return self.commit_one(partition, frames, expect, True, check, recipe, now_us, None, began)
        waiter = Waiter(partition, frames, expect, check, recipe)
        self._wait_or_lead(waiter)
        if waiter.error is not None:
            raise waiter.error
        if waiter.first < 0:
            # The leader was interrupted again while it woke the others: without an offset the append is not
            # acknowledged.
            raise _unknown(KeyboardInterrupt())
        if began is not None and self.count_wait is not None:
            self.count_wait(began)
        return waiter.first

    @critical_region(Region.QUEUE)
    def _lead_alone(
        self,
        partition: Partition,
        frames: Sequence[Prepared],
        expect: int | None,
        check: Check | None,
        recipe: int | None,
        now_us: int,
        began: float | None,
    ) -> int | None:
        """Commit at once if no other thread leads, and return the first offset; None if another thread leads."""
        first: int | None = None
        interrupted: BaseException | None = None
        lead: list[int] = []
        try:
            with self.guard:
                leads = self.leader is None
                if leads:
                    self.leading_thread = get_ident()
                    self.leader = lead
            if leads:
                first = self.commit_one(partition, frames, expect, True, check, recipe, now_us, None, began)
        finally:
            # Inside a `try` from its first instruction on: an interrupt only delays it.
            while True:
                try:
                    self._pass_on(lead)
                    break
                except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  # raised below, once it is done
                    interrupted = error
        if interrupted is not None:
            raise interrupted
        return first

    @critical_region(Region.QUEUE)
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
            # A plain store, which no interrupt can precede: an interrupt later may prevent its removal from the queue.
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
        """Commit the queue."""
        try:
            with self.guard:
                batch += [waiter for waiter in self.queue if not waiter.left]
                self.queue = []
            self.commit(batch)
        except BaseException as error:
            # A commit ended by anything but an error of ours may or may not have been kept; and what a signal handler
            # raised belongs to its own thread.
            ours = isinstance(error, TailraceError)
            for waiter in batch:
                if waiter.first < 0 and waiter.error is None:
                    waiter.error = error if ours else _unknown(error)
            if not ours:
                raise

    def _retire(self, waiter: Waiter, batch: list[Waiter]) -> None:
        """Leave the queue and pass on the lead, then wake the served waiters; may be repeated."""
        if waiter.first >= 0 and self.leader is not waiter and not batch:
            # Served by another leader, which took it out of the queue.
            self.inside.discard(waiter.thread)
            return
        with self.guard:
            if waiter in self.queue:
                self.queue.remove(waiter)
        self._pass_on(waiter)
        self._wake_served(waiter, batch)
        # Last: a handler that appends before this must not wait for other threads, which may wait for its locks.
        self.inside.discard(waiter.thread)

    def _wake_served(self, leader: Waiter, batch: Sequence[Waiter]) -> None:
        for served in batch:
            if served is not leader:
                served.wake()
        self.batches.pop(leader, None)

    def _pass_on(self, leader: object) -> None:
        """Make the first in the queue the leader, if this one led, and wake the leader; may be repeated."""
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
        """Finish what an interrupted leader left; the flusher calls it, since no other thread wakes its waiters."""
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
            # The frames of a running thread may look as if it had left: only a leader seen twice in a row has left.
            self.suspect = leader
        following = self.leader
        if isinstance(following, Waiter):
            # The previous leader may have been interrupted before it woke this one.
            following.wake()

    def _is_left(self) -> bool:
        """Return whether the leader's thread left without passing on the lead, after repeated interrupts."""
        return not _is_inside(sys._current_frames().get(self.leading_thread)) and self.leader is not None


def _is_inside(frame: FrameType | None) -> bool:
    """Return whether a thread, by its innermost frame, leads or waits for its turn."""
    return next(regions(Region.QUEUE, frame), None) is not None


def _unknown(error: BaseException) -> DurabilityError:
    return DurabilityError(
        f"The commit was interrupted by {type(error).__name__} in another thread; whether it was kept is not known.",
        hint="Read the end of the topic to see whether the record is there before you append it again.",
    )
