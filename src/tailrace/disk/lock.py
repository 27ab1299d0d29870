"""A lock on a directory: a process mutex in front of a flock, which no interrupt can leave behind."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

from tailrace.errors import LockedError

if TYPE_CHECKING:
    from tailrace.disk.home import Home


class Reentered(RuntimeError):  # noqa: N818  # the word says it
    """A signal handler or finalizer wants a lock that its own thread holds."""


# The functions that hold a lock from their first line to their last; `holding` may call the others.
REGIONS = frozenset({"_append", "inside", "release", "holding"})


def _is_nested() -> bool:
    """Whether this thread holds locks further down its stack, so that it came here through a handler or finalizer."""
    frame: FrameType | None = sys._getframe(1)
    folder = __file__.rpartition("/")[0]
    regions = []
    while frame is not None:
        if frame.f_code.co_name in REGIONS and frame.f_code.co_filename.startswith(folder):
            regions.append(frame.f_code.co_name)
        frame = frame.f_back
    own = 2 if regions[1:2] == ["holding"] and regions[0] != "holding" else 1
    return len(regions) > own


class DirectoryLock:
    """Held from `acquire` to `release`; after any exception in between call `abandon`, which closes the descriptor.

    The mutex is an RLock because it notes its owner in the same step: after an interrupt between any two bytecodes the
    owner still knows that it has to let go. It is never held twice.
    """

    __slots__ = ("closing", "descriptor", "held", "home", "mutex", "path")

    def __init__(self, home: Home, path: str) -> None:
        self.home = home
        self.path = path
        self.mutex = threading.RLock()
        self.held = False
        self.descriptor = -1
        self.closing = -1

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for the lock, at most as long as the handle's timeout unless another is given."""
        home = self.home
        timeout = home.timeout if timeout is None else timeout
        if not self.mutex.acquire(blocking=False):
            began = home.files.monotonic()
            if not self.mutex.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
                raise LockedError(
                    f"{self.path} stayed locked by another thread of this process for {timeout:g} s.",
                    pid=home.files.process_id(),
                )
            timeout = max(0.0, timeout - (home.files.monotonic() - began))
        if self.held:
            if _is_nested():
                self.mutex.release()
                raise Reentered(f"{self.path} is locked by the very thread that wants it")
            # Left by a call of this thread that was interrupted again and again while it let go.
            self.abandon()
            self.mutex.acquire()
        self.held = True
        if self.descriptor < 0:
            self._open()
        if not home.files.lock(self.descriptor, timeout=timeout):
            error = home.locked(self.descriptor, self.path, timeout)
            self.close()
            raise error

    def release(self) -> None:
        """Let go."""
        self.home.files.unlock(self.descriptor)
        self.held = False
        self.mutex.release()

    def abandon(self) -> bool:
        """Let go by closing, whatever was interrupted; False when this thread holds nothing. Safe to repeat."""
        if not self.mutex._is_owned():  # type: ignore[attr-defined]  # as threading.Condition does
            return False
        while True:
            try:
                self.close()
                break
            except KeyboardInterrupt:
                continue
        self.held = False
        try:
            while True:
                self.mutex.release()
        except RuntimeError:
            return True

    def forget(self) -> None:
        """In a forked child: close the inherited descriptor without unlocking, which would unlock the parent."""
        self.mutex = threading.RLock()
        self.held = False
        self.close()

    def _open(self) -> None:
        if self.closing >= 0:
            self.close()
        self.descriptor = self.home.files.open(self.path, directory=True)

    def close(self) -> None:
        """Close the descriptor; an interrupt between any two steps leaves what the next call needs to finish."""
        files = self.home.files
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
            except OSError:
                pass
            self.closing = -1
