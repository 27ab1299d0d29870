"""Interrupts at every moment: KeyboardInterrupt raised where a signal handler could raise it, one moment after another.

Python runs the handler of a signal where a function begins, after a call of a C function, and at a backward jump. A
profile function is called at the first two, and what it raises comes up there, so a write can be interrupted at each
of them in turn, without waiting for a signal to hit it. The third takes a real signal, made pending right before.
A trace function cannot take its place: from Python 3.12 on the events of single opcodes depend on what else traces or
profiles, and beside a profile function 3.13 has none at all.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from tests.collector import uncollected


class PendingSignal:
    """A signal to this thread that becomes pending where the interpreter does not look for signals.

    Reading the property calls raise() of the C library, with the number that `_as_parameter_` gives. To the interpreter
    that is no call, behind which it would look for signals, and raise() does not look by itself, as os.kill() and
    signal.raise_signal() do. So the handler runs at the next moment at which the interpreter looks, wherever that is.
    """

    _as_parameter_ = int(signal.SIGUSR1)
    pending = property(ctypes.PyDLL(None)["raise"])

    @contextmanager
    def handled_by(self, handler: Callable[[int, FrameType], None]) -> Iterator[None]:
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, before)


class Injector:
    """Interrupts one call at its n-th moment inside Tailrace, counted from a named function's first call if given.

    With `more`, so many further interrupts come up, each at the next moment at which there can be one.
    """

    def __init__(self, number: int, function: str | None = None, more: int = 0) -> None:
        self.number = number
        self.function = function
        self.more = more
        self.moments = 0
        self.place = ""
        self.next_places: list[str] = []
        self.signal = PendingSignal()

    def run(self, action: Callable[[], object]) -> bool:
        """Whether the call came to its end without an interrupt reaching the caller."""
        with uncollected(), self.signal.handled_by(self._next) if self.more else nullcontext():
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
            if self.more:
                self.signal.pending
            raise KeyboardInterrupt

    def _next(self, _number: int, frame: FrameType) -> None:
        # Behind the end of the call there is nothing left to interrupt.
        if len(self.next_places) < self.more and frame.f_globals.get("__name__", "").startswith("tailrace."):
            self.next_places.append(frame.f_code.co_qualname)
            self.signal.pending
            raise KeyboardInterrupt


def _finalizing(frame: FrameType | None) -> bool:
    """Whether a finalizer runs: what comes up there goes to nobody, so it interrupts nothing."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
