"""Ctrl-C that waits for a whole frame."""

from __future__ import annotations

import signal
import threading
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
