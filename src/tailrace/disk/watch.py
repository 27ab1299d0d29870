"""Watch: waiting until some process writes to a file."""

from __future__ import annotations

import errno
import os
import select
import struct
import sys
import threading

POLL_SECONDS = 0.001
EVENT_BYTES_MAX = 65_536  # Events of one file are 16 bytes each; what is left in the queue is read next time.


class Watch:
    """Wakes when a file is written to, or woken by Files.wake; a store into a mapping is no event.

    With `closes` it also wakes when a process closes a file of that directory that it had open for writing, also
    by its exit, and records that in `parted`; on a system without such an event, nothing is recorded.

    One thread waits and closes; any thread may `wake` it, before or after. When this user has no event queue left
    (inotify gives 128), `wait` takes a millisecond at most and returns that something may have happened.
    """

    def __init__(self, path: str, closes: str | None = None) -> None:
        # Guards the descriptors against a wake that arrives after they were closed and their numbers were reused.
        self._mutex = threading.Lock()
        self._closed = False
        self._queue = _Queue(path, closes)

    def wait(self, timeout: float, *, clear: bool = True) -> bool:
        """Return True if something happened since the last wait, else False after `timeout` seconds.

        Unless `clear`, the caller calls clear() before it waits again, and checks its condition in between: so it gets
        what woke it one system call sooner.
        """
        if self._closed:
            return True
        queue = self._queue
        happened = queue.wait(timeout if queue.watching else min(timeout, POLL_SECONDS)) or not queue.watching
        if clear:
            queue.clear()
        return happened

    def clear(self) -> bool:
        """Consume the events that ended the last wait, and return whether there were any."""
        return not self._closed and self._queue.clear()

    def parted(self) -> bool:
        """Return whether a file of the directory was closed since the last call, as far as waits have noticed."""
        parted, self._queue.parted = self._queue.parted, False
        return parted

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with self._mutex:
            if not self._closed:
                self._queue.wake()

    def close(self) -> None:
        """Close the descriptors; called again after an interrupt it closes the rest."""
        with self._mutex:
            self._closed = True
            self._queue.close()


if sys.platform == "darwin":
    _EVENT_ONLY = 0x8000
    _FILTER_USER = -10
    _NOTE_TRIGGER = 0x01000000

    class _Queue:
        """A kqueue with the file's writes and one user event."""

        watching = True

        def __init__(self, path: str, closes: str | None) -> None:
            # kqueue has no event for a close; a caller that needs one polls.
            self.parted = False
            self._fd = os.open(path, _EVENT_ONLY | os.O_CLOEXEC)
            self._open = [self._fd]
            try:
                self._queue = select.kqueue()
                flags = select.KQ_EV_ADD | select.KQ_EV_CLEAR
                writes = select.kevent(self._fd, select.KQ_FILTER_VNODE, flags, select.KQ_NOTE_WRITE)
                self._queue.control([writes, select.kevent(0, _FILTER_USER, flags)], 0)
            except BaseException:
                os.close(self._fd)
                raise

        def wait(self, timeout: float) -> bool:
            return bool(self._queue.control(None, 2, max(timeout, 0.0)))

        def clear(self) -> bool:
            # An event is removed when it is delivered.
            return False

        def wake(self) -> None:
            self._queue.control([select.kevent(0, _FILTER_USER, 0, _NOTE_TRIGGER)], 0)

        def close(self) -> None:
            self._queue.close()
            _close_all(self)

else:
    _IN_ACCESS = 0x1  # The event that Files.wake raises; real writes raise IN_MODIFY.
    _IN_MODIFY = 0x2
    _IN_CLOSE_WRITE = 0x8
    # A file that was removed before it was closed is no sign of a death: a member that leaves removes its own first.
    _IN_EXCL_UNLINK = 0x04000000
    _EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name after it
    _EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM)

    class _Queue:
        """An inotify instance with one watch or two, and an eventfd for wakes."""

        def __init__(self, path: str, closes: str | None) -> None:
            self.parted = False
            self._looks = closes is not None
            self._wakes = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            try:
                self._events = _inotify(
                    (path, _IN_ACCESS | _IN_MODIFY), *([(closes, _IN_CLOSE_WRITE | _IN_EXCL_UNLINK)] if closes else [])
                )
            except BaseException:
                os.close(self._wakes)
                raise
            # The wakes first: closing the other takes milliseconds, in which an interrupt is likely.
            self._open = [self._wakes, self._events] if self._events >= 0 else [self._wakes]
            self.watching = self._events >= 0
            self._ready: list[tuple[int, int]] = []
            self._poll = select.poll()
            self._poll.register(self._wakes, select.POLLIN)
            if self._events >= 0:
                self._poll.register(self._events, select.POLLIN)

        def wait(self, timeout: float) -> bool:
            self._ready = self._poll.poll(max(timeout, 0.0) * 1000)
            return bool(self._ready)

        def clear(self) -> bool:
            ready, self._ready = self._ready, []
            for fd, _ in ready:
                if fd == self._events:
                    events = os.read(fd, EVENT_BYTES_MAX)
                    if self._looks and not self.parted:
                        self.parted = _has_close(events)
                else:
                    os.eventfd_read(fd)
            return bool(ready)

        def wake(self) -> None:
            os.eventfd_write(self._wakes, 1)

        def close(self) -> None:
            _close_all(self)

    def _has_close(events: bytes) -> bool:
        position = 0
        while position < len(events):
            _, mask, _, length = _EVENT.unpack_from(events, position)
            if mask & _IN_CLOSE_WRITE:
                return True
            position += _EVENT.size + length
        return False

    def _inotify(*watches: tuple[str, int]) -> int:
        """Return a descriptor that is readable after an event of any path; -1 if the system has none left."""
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        fd: int = library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if fd < 0:
            number = ctypes.get_errno()
            path = ""
        else:
            for path, mask in watches:
                if library.inotify_add_watch(fd, os.fsencode(path), mask) < 0:
                    number = ctypes.get_errno()
                    break
            else:
                return fd
            os.close(fd)
        if number in _EXHAUSTED:
            return -1
        raise OSError(number, os.strerror(number), path)


def _close_all(queue: _Queue) -> None:
    """Close every descriptor once, all of them in C: no interrupt falls between two of them."""
    closing = map(os.close, queue._open)
    queue._open = []
    _ = [*closing]
