"""Interruptions of a command: Ctrl-C deferred until a frame is whole, and a reader of stdout that closes the pipe."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

_AGAIN_MILLISECONDS = 50


class Hold:
    """Defers Ctrl-C to the end of its block, which may check `interrupted`; a second one acts at once."""

    def __enter__(self) -> Self:
        self.interrupted = False
        # Only the main thread may set signal handlers, and only it receives KeyboardInterrupt.
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)
        if self.interrupted and error is None:
            raise KeyboardInterrupt

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True


class _Departed(BaseException):
    """The reader closed the pipe; not an OSError, which the library would take for a failure of the disk."""


@contextmanager
def ended_by_departure() -> Iterator[None]:
    """Raise BrokenPipeError in the block as soon as the reader of stdout closes it, even if nothing is being written.

    Otherwise `tailrace read -f | head -3` would wait for one more record after head has exited.
    """
    descriptor = _pipe()
    if descriptor is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    departure = _Departure(descriptor)
    try:
        with departure:
            yield
    except _Departed:
        raise BrokenPipeError from None


class _Departure:
    """A thread that waits until the reader of a pipe closes it, then notifies the main thread by a signal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._handled = False
        self._over, self._end = os.pipe()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="tailrace-departure")

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGPIPE, self._on_closed_pipe)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.close(self._end)
        self._thread.join()
        os.close(self._over)
        signal.signal(signal.SIGPIPE, self._before)

    def _watch(self) -> None:
        from select import POLLIN, poll

        look = poll()
        # poll() reports errors and hang-ups even with an empty event mask.
        look.register(self._descriptor, 0)
        look.register(self._over, POLLIN)
        events = [number for number, _ in look.poll()]
        look.unregister(self._descriptor)
        while self._over not in events and not self._handled:
            # A signal that arrives just before the main thread blocks does not wake it, so signals repeat until one is
            # handled.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)
            events = [number for number, _ in look.poll(_AGAIN_MILLISECONDS)]

    def _on_closed_pipe(self, number: int, frame: FrameType | None) -> None:
        if not self._handled:
            self._handled = True
            raise _Departed


def _pipe() -> int | None:
    """Return the descriptor of stdout if it is a pipe or a socket, whose other end can be closed."""
    from stat import S_ISFIFO, S_ISSOCK

    try:
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return None
    return descriptor if S_ISFIFO(mode) or S_ISSOCK(mode) else None
