"""A lock on a directory: a process mutex in front of a flock, which no interrupt can leave behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from tailrace.disk.failures import by_system
from tailrace.disk.files import LOCK_NOW, UNLOCK
from tailrace.errors import BusyError, LockedError

if TYPE_CHECKING:
    from tailrace.disk.context import Context


class Reentered(BusyError):  # noqa: N818  # the word says it
    """A signal handler or finalizer wants a lock that its own thread holds."""

    hint = "Nothing of this call was written; let the handler set a flag, and write when the interrupted call is over."


# The functions that hold a lock from their first line to their last; `holding` may call the others.
REGIONS = frozenset({"_append", "inside", "release", "holding"})
_FOLDER = __file__.rpartition("/")[0]


def _regions() -> Iterator[FrameType]:
    """The regions that this thread is inside of, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in REGIONS and frame.f_code.co_filename.startswith(_FOLDER):
            yield frame
        frame = frame.f_back


def in_handler() -> bool:
    """Whether this is a signal handler that came into a call which holds locks; only the main thread has handlers."""
    return threading.get_ident() == threading.main_thread().ident and next(_regions(), None) is not None


def _interrupts(context: Context) -> bool:
    """Whether this is a signal handler or finalizer that came into a call of its own thread which holds locks of a log.

    Between that call and this one runs something that is not of this package.
    """
    came_in = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("tailrace."):
            came_in = True
        elif came_in and frame.f_code.co_name in REGIONS and module.startswith("tailrace.disk."):
            return getattr(frame.f_locals.get("self"), "context", None) is context
        frame = frame.f_back
    return False


def _is_nested(lock: DirectoryLock) -> bool:
    """Whether this thread holds locks further down its stack, so that it came here through a handler or finalizer.

    What `holding` calls itself never asks for a lock that it has already.
    """
    regions = list(_regions())
    names = [frame.f_code.co_name for frame in regions]
    if names[1:2] != ["holding"] or names[0] == "holding":
        return len(regions) > 1
    holder = regions[1].f_locals["self"]
    return len(regions) > 2 or lock is holder.lock or any(each.lock is lock for each in holder.entered)


def let_go(context: Context) -> None:
    """Release what earlier calls of this thread left locked, interrupted again and again while they let go.

    Before this thread waits for any other lock: whoever holds that one may be waiting for what was left.
    """
    if not context.leaving:
        return
    rightly: set[object] = set()
    for frame in _regions():
        for holder in (frame.f_locals.get("self"), frame.f_locals.get("partition")):
            rightly.add(holder if isinstance(holder, DirectoryLock) else getattr(holder, "lock", None))
            rightly.update([each.lock for each in getattr(holder, "entered", ())])
    for lock, owner in list(context.leaving.items()):
        # Another thread may have noted a lock that this one holds: its wait for it came to an end without it.
        if not lock.owned:
            lock.strike()
        elif lock not in rightly:
            owner.abandon()


def insist(abandon: Callable[[], object], error: BaseException) -> BaseException:
    """Let go, whatever interrupts it; the last exception that did, else the one given.

    Python looks for signals at backward jumps too, so a loop that tries again can be left by an interrupt that comes
    right behind another one. Each further loop around it asks for one more, at exactly its own jump.
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

    The mutex is an RLock because it notes its owner in the same step: after an interrupt between any two bytecodes the
    owner still knows that it has to let go. It is never held twice.
    """

    __slots__ = ("closing", "context", "descriptor", "files", "held", "leaving", "mutex", "path", "wanted")

    def __init__(self, context: Context, path: str) -> None:
        self.context = context
        self.files = context.files
        self.leaving = context.leaving
        self.path = path
        self.mutex = threading.RLock()
        self.held = False
        self.descriptor = -1
        self.closing = -1
        # Set by a thread that waits and that the others are to let pass: a mutex is not fair.
        self.wanted = False

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for the lock, at most as long as the handle's timeout unless another is given."""
        mine = self.mutex.acquire(False)
        if mine and self.descriptor >= 0 and not self.held and not self.leaving:
            self.held = True
            try:
                self.files.flock(self.descriptor, LOCK_NOW)  # rule: partition's lock
                return
            except BlockingIOError:
                # Another process has it; waiting notes once more who waits.
                self.held = False
        self._wait(mine, self.context.timeout if timeout is None else timeout)

    def _wait(self, mine: bool, timeout: float) -> None:
        """The long way: somebody has the lock, or its directory is not open."""
        context = self.context
        if _interrupts(context):
            # Whoever has the lock may be waiting for what the call beneath holds.
            timeout = 0.0
            if mine:
                self.mutex.release()
                if self.owned:
                    # It is that very call, which may still be waiting for other processes.
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
            # Left by a call of this thread that was interrupted again and again while it let go. What noted the lock
            # lets go of the rest that the call held, and of what it had cached.
            context.leaving.get(self, self).abandon()
            self.mutex.acquire()
        elif self in context.leaving and not _is_nested(self):
            # As above, but at most the mutex was left: it counts how often this thread has it.
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
        """Let go."""
        self.files.flock(self.descriptor, UNLOCK)
        self.held = False
        self.mutex.release()

    def abandon(self) -> bool:
        """Let go by closing, whatever was interrupted; False when this thread holds nothing. Safe to repeat."""
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
        """Take back a note of this lock when nobody has it; as long as somebody has, it may be the holder's own.

        A wait that ended without the lock was noted like any other exception. Appends go the long way round as long as
        anything is noted.
        """
        if self not in self.leaving:
            return
        try:
            if self.mutex.acquire(False):
                self._free()
        except KeyboardInterrupt as interrupt:
            # Others wait for this mutex, some of them with the journal lock in hand.
            raise insist(self._free, interrupt) from None

    def _free(self) -> None:
        """Let go of the mutex, however often this thread has it, together with the note that it has to."""
        if not self.owned:
            return
        # No interrupt comes between these two: Python looks for signals after a call, not before it.
        if self in self.leaving:
            del self.leaving[self]
        self.mutex._release_save()  # type: ignore[attr-defined]  # as threading.Condition does

    @property
    def owned(self) -> bool:
        """Whether this thread has the mutex."""
        return bool(self.mutex._is_owned())  # type: ignore[attr-defined]  # as threading.Condition does

    def forget(self) -> None:
        """In a forked child: close the inherited descriptor without unlocking, which would unlock the parent."""
        self.mutex = threading.RLock()
        self.held = False
        self.close()

    def _open(self) -> None:
        if self.closing >= 0:
            self.close()
        self.descriptor = self.context.files.open(self.path, directory=True)

    def close(self) -> None:
        """Close the descriptor; an interrupt between any two steps leaves what the next call needs to finish."""
        files = self.context.files
        if self.closing < 0:
            self.closing = self.descriptor
        self.descriptor = -1
        if self.closing >= 0:
            try:
                here, there = files.stat(self.path), files.stat_open(self.closing)
                # Only this lock opens its directory, so a descriptor of it is the one to close; after an interrupt
                # the number may be closed already, and even belong to another file.
                if here is None or (here.device, here.inode) == (there.device, there.inode):
                    files.close(self.closing)
            except by_system():
                pass
            self.closing = -1
