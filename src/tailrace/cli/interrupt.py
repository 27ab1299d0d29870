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


@contextmanager
def ended_by_departure() -> Iterator[None]:
    """Inside, BrokenPipeError comes as soon as the reader of stdout leaves, though there may be nothing to write.

    Without it a command that waits for records behind `| head -3` would go on until one more is written.
    """
    descriptor = _pipe()
    if descriptor is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPIPE, _departed)
    over, end = os.pipe()
    watcher = threading.Thread(target=_watch, args=(descriptor, over), daemon=True, name="tailrace-departure")
    watcher.start()
    try:
        yield
    finally:
        os.close(end)
        watcher.join()
        os.close(over)
        signal.signal(signal.SIGPIPE, before)


def _pipe() -> int | None:
    """The descriptor of stdout when it is something whose other end can be closed."""
    from stat import S_ISFIFO, S_ISSOCK

    try:
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return None
    return descriptor if S_ISFIFO(mode) or S_ISSOCK(mode) else None


def _watch(descriptor: int, over: int) -> None:
    from select import POLLIN, poll

    look = poll()
    # Errors and hang-ups are told unasked.
    look.register(descriptor, 0)
    look.register(over, POLLIN)
    told = [number for number, _ in look.poll()]
    if over not in told:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)


def _departed(number: int, frame: FrameType | None) -> None:
    raise BrokenPipeError
