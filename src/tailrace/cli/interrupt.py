"""What ends a command from outside: a Ctrl-C that waits for a whole frame, and a reader of stdout that leaves."""

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
    """Inside, Ctrl-C waits for the end of the block, which may look at `asked`; a second one does not wait."""

    def __enter__(self) -> Self:
        self.asked = False
        # Only the main thread may set handlers, and only it gets KeyboardInterrupt.
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)
        if self.asked and error is None:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


class _Departed(BaseException):
    """The reader has left; no OSError, which the library would take for a failure of the disk."""


@contextmanager
def ended_by_departure() -> Iterator[None]:
    """Inside, BrokenPipeError comes as soon as the reader of stdout leaves, though there may be nothing to write.

    Without it a command that waits for records behind `| head -3` would go on until one more is written.
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
    """A thread that waits for the reader of a pipe to leave, and then tells the main thread by a signal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._heard = False
        self._over, self._end = os.pipe()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="tailrace-departure")

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGPIPE, self._hear)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.close(self._end)
        self._thread.join()
        os.close(self._over)
        signal.signal(signal.SIGPIPE, self._before)

    def _watch(self) -> None:
        from select import POLLIN, poll

        look = poll()
        # Errors and hang-ups are told unasked.
        look.register(self._descriptor, 0)
        look.register(self._over, POLLIN)
        told = [number for number, _ in look.poll()]
        look.unregister(self._descriptor)
        while self._over not in told and not self._heard:
            # A signal right before the main thread falls asleep does not wake it; the next one does.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)
            told = [number for number, _ in look.poll(_AGAIN_MILLISECONDS)]

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self._heard:
            self._heard = True
            raise _Departed


def _pipe() -> int | None:
    """The descriptor of stdout when it is something whose other end can be closed."""
    from stat import S_ISFIFO, S_ISSOCK

    try:
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return None
    return descriptor if S_ISFIFO(mode) or S_ISSOCK(mode) else None
