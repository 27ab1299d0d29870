"""A single background thread, however often its start failed or was interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable


class OneThread:
    """A daemon thread that runs a function once; any thread may call `start` repeatedly.

    A system with too many threads starts no more, and an interrupt inside of Thread.start leaves one that runs, or one
    that never will. So a thread counts from when its start returned or it runs, whichever comes first, and a second one
    ends at once.
    """

    __slots__ = ("_name", "_run", "_running", "thread")

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run = run
        self._name = name
        # The first one counts; an append to a list is atomic.
        self._running: list[threading.Thread] = []
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Make sure that the thread runs; raise RuntimeError if the system starts none."""
        if self.thread is None:
            thread = threading.Thread(target=self._begin, name=self._name, daemon=True)
            thread.start()
            self._is_first(thread)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread, unless it is this one or there is none."""
        thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _begin(self) -> None:
        if self._is_first(threading.current_thread()):
            self._run()

    def _is_first(self, thread: threading.Thread) -> bool:
        self._running.append(thread)
        self.thread = self._running[0]
        return self.thread is thread
