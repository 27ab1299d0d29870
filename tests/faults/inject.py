"""Interrupts at every moment: KeyboardInterrupt raised where a signal handler could raise it, one moment after another.

Python runs the handler of a signal where a function begins, after a call of a C function, and at a backward jump. A
profile function is called at the first two, and what it raises comes up there, so a write can be interrupted at each
of them in turn, without waiting for a signal to hit it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from tests.collector import uncollected


class Injector:
    """Interrupts one call at its n-th moment inside Tailrace, counted from a named function's first call if given."""

    def __init__(self, number: int, function: str | None = None) -> None:
        self.number = number
        self.function = function
        self.moments = 0
        self.place = ""

    def run(self, action: Callable[[], object]) -> bool:
        """Whether the call came to its end without an interrupt reaching the caller."""
        with uncollected():
            sys.setprofile(self._look)
            try:
                action()
            except KeyboardInterrupt:
                return False
            finally:
                sys.setprofile(None)
        return True

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or not frame.f_globals.get("__name__", "").startswith("tailrace"):
            return
        if not self.moments and self.function not in (None, frame.f_code.co_qualname):
            return
        self.moments += 1
        if self.moments >= self.number and not self.place and not _finalizing(frame):
            what = f" after {getattr(argument, '__name__', argument)}" if event == "c_return" else ""
            self.place = f"{frame.f_code.co_qualname}{what}"
            raise KeyboardInterrupt


def _finalizing(frame: FrameType | None) -> bool:
    """Whether a finalizer runs: what comes up there goes to nobody, so it interrupts nothing."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
