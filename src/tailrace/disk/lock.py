"""A lock on a directory: a mutex of the process, then a flock; no interrupt can leave either of them held."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.disk.critical import Region, interrupted, regions
from tailrace.disk.failures import by_system
from tailrace.disk.files import LOCK_NOW, UNLOCK
from tailrace.errors import BusyError, LockedError

if TYPE_CHECKING:
    from tailrace.disk.context import Context


class Reentered(BusyError):  # noqa: N818  # the word says it
    """A signal handler or finalizer needs a lock that its own thread holds."""

    hint = "Nothing of this call was written; let the handler set a flag, and write when the interrupted call is over."


def _interrupts(context: Context) -> bool:
    """Return whether a handler or finalizer of this thread interrupted a call that holds locks of this log."""
    frame = next(interrupted(Region.LOCKS), None)
    return frame is not None and getattr(frame.f_locals.get("self"), "context", None) is context


def _is_nested(lock: DirectoryLock) -> bool:
    """Return whether this thread holds locks further down its stack, so that a handler or finalizer is running.

    Code that the holder of the journal lock calls itself never takes a lock that it already has.
    """
    stack = list(regions(Region.LOCKS, sys._getframe(1)))
    holders = [getattr(frame.f_locals.get("self"), "entered", None) for frame in stack]
    if holders[1:2] in ([], [None]) or holders[0] is not None:
        return len(stack) > 1
    holder = stack[1].f_locals["self"]
    return len(stack) > 2 or lock is holder.lock or any(each.lock is lock for each in holder.entered)


def let_go(context: Context) -> None:
    """Release the locks of earlier calls of this thread that repeated interrupts kept from releasing them.

    Called before this thread waits for any other lock: the holder of that one may be waiting for these.
    """
    if not context.leaving:
        return
    rightly: set[object] = set()
    for frame in regions(Region.LOCKS, sys._getframe(1)):
        for holder in (frame.f_locals.get("self"), frame.f_locals.get("partition")):
            rightly.add(holder if isinstance(holder, DirectoryLock) else getattr(holder, "lock", None))
            rightly.update([each.lock for each in getattr(holder, "entered", ())])
    for lock, owner in list(context.leaving.items()):
        # Another thread may have registered a lock that this one holds: its wait ended without the lock.
        if not lock.owned:
            lock.strike()
        elif lock not in rightly:
            owner.abandon()


def insist(abandon: Callable[[], object], error: BaseException) -> BaseException:
    """Call `abandon` until no interrupt ends it; return the last interrupt, else the given error.

    Python checks for signals at backward jumps too, so an interrupt right after another one can leave a retry loop.
    Each enclosing loop is left only by one more interrupt, at exactly its own jump.
    """
    while True:
        try:
            while True:
                try:
                    abandon()
                    return error
                except KeyboardInterrupt as interrupt:
                    error = interrupt
        except KeyboardInterrupt as interrupt:
            error = interrupt


class DirectoryLock:
    """Held from `acquire` to `release`; after any exception in between call `abandon`, which closes the descriptor.

    The mutex is an RLock because it records its owner in the same step: after an interrupt between any two bytecodes
    the owner still knows that it must release it. It is never held twice.
    """

    __slots__ = ("closing", "context", "descriptor", "flock", "held", "leaving", "mutex", "path", "wanted")

    def __init__(self, context: Context, path: str) -> None:
        self.context = context
        # Bound once: an attribute lookup at every call would cost a tenth of the system call.
        self.flock: Callable[[int, int], None] = context.files.flock
        self.leaving = context.leaving
        self.path = path
        self.mutex = threading.RLock()
        self.held = False
        self.descriptor = -1
        self.closing = -1
        # Set by a waiting thread that the others must let pass: a mutex is not fair.
        self.wanted = False

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for the lock, at most for the handle's timeout unless another is given."""
        mine = self.mutex.acquire(False)
        if mine and self.descriptor >= 0 and not self.held and not self.leaving:
            self.held = True
            try:
                flock = self.flock
                flock(self.descriptor, LOCK_NOW)  # rule: partition's lock
                return
            except BlockingIOError:
                # Another process has it; `_wait` tries again with a timeout.
                self.held = False
        self._wait(mine, self.context.timeout if timeout is None else timeout)

    def _wait(self, mine: bool, timeout: float) -> None:
        """Wait for a lock that another thread or process has, or whose directory is not open."""
        context = self.context
        if _interrupts(context):
            # The holder of the lock may be waiting for locks of the interrupted call.
            timeout = 0.0
            if mine:
                self.mutex.release()
                if self.owned:
                    # The holder is the interrupted call, which may still be waiting for other processes.
                    raise Reentered(f"{self.path} is being written to by this very thread, in a call further up.")
                mine = self.mutex.acquire(False)
            if not mine:
                raise Reentered(f"{self.path} is being written to by another thread: a handler does not wait for it.")
        if not mine:
            if context.leaving:
                let_go(context)
            began = context.files.monotonic()
            if not self.mutex.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
                raise LockedError(
                    f"{self.path} stayed locked by another thread of this process for {timeout:g} s.",
                    pid=context.files.process_id(),
                )
            timeout = max(0.0, timeout - (context.files.monotonic() - began))
        if self.held:
            if _is_nested(self):
                self.mutex.release()
                raise Reentered(f"{self.path} is being written to by this very thread, in a call further up.")
            # Held by an earlier call of this thread that repeated interrupts kept from releasing it. The registered
            # owner also releases the other locks of that call, and discards what it had cached.
            context.leaving.get(self, self).abandon()
            self.mutex.acquire()
        elif self in context.leaving and not _is_nested(self):
            # As above, but at most the mutex is held: it counts how often this thread has it.
            self.abandon()
            self.mutex.acquire()
        self.held = True
        if context.leaving:
            context.leaving.pop(self, None)
            let_go(context)
        if self.descriptor < 0:
            self._open()
        if not context.files.lock(self.descriptor, timeout=timeout):  # rule: partition's lock, waited for
            error = context.locked(self.descriptor, self.path, timeout)
            self.close()
            raise error

    def release(self) -> None:
        """Release the lock."""
        flock = self.flock
        flock(self.descriptor, UNLOCK)
        self.held = False
        self.mutex.release()

    def abandon(self) -> bool:
        """Release the lock by closing it, after any interrupt; return False if this thread does not hold it."""
        if not self.owned:
            self.strike()
            return False
        while True:
            try:
                self.close()  # rule: lock closed after an exception
                break
            except KeyboardInterrupt:
                continue
        self.held = False
        self._free()
        return True

    def strike(self) -> None:
        """Remove this lock from `leaving` if no thread has it; otherwise the entry may be the holder's own.

        A wait that ended without the lock was registered like any other exception. Appends take the slow path while any
        lock is registered.
        """
        if self not in self.leaving:
            return
        try:
            if self.mutex.acquire(False):
                self._free()
        except KeyboardInterrupt as interrupt:
            # Other threads wait for this mutex, some of them while they hold the journal lock.
            raise insist(self._free, interrupt) from None

    def _free(self) -> None:
        """Release the mutex, however often this thread has it, and remove the lock from `leaving`."""
        if not self.owned:
            return
        # No interrupt comes between these two: Python checks for signals after a call, not before it.
        if self in self.leaving:
            del self.leaving[self]
        self.mutex._release_save()  # type: ignore[attr-defined]  # as threading.Condition does

    @property
    def owned(self) -> bool:
        """Whether this thread has the mutex."""
        return bool(self.mutex._is_owned())  # type: ignore[attr-defined]  # as threading.Condition does

    def forget(self) -> None:
        """Close the inherited descriptor in a forked child without unlocking, which would unlock the parent."""
        self.mutex = threading.RLock()
        self.held = False
        self.close()

    def _open(self) -> None:
        if self.closing >= 0:
            self.close()
        self.descriptor = self.context.files.open(self.path, directory=True)

    def close(self) -> None:
        """Close the descriptor; an interrupt between any two steps leaves enough state for the next call to finish."""
        files = self.context.files
        if self.closing < 0:
            self.closing = self.descriptor
        self.descriptor = -1
        if self.closing >= 0:
            try:
                here, there = files.stat(self.path), files.stat_open(self.closing)
                # Only this lock opens its directory, so a descriptor of it is the one to close; after an interrupt the
                # descriptor may be closed already, and its number may belong to another file.
                if here is None or (here.device, here.inode) == (there.device, there.inode):
                    files.close(self.closing)
            except by_system():
                pass
            self.closing = -1
