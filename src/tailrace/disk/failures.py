"""The origin of an error: the operating system, or a signal handler that interrupted the call."""

from __future__ import annotations

import signal
import sys
from functools import partial
from types import CodeType, FrameType
from typing import Any, TypeVar, overload

Kind = TypeVar("Kind", bound=BaseException)


@overload
def by_system() -> tuple[type[OSError], ...]: ...


@overload
def by_system(*kinds: type[Kind]) -> tuple[type[Kind], ...]: ...


def by_system(*kinds: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Return what an `except` catches: these kinds (OSError unless given), or nothing if a signal handler raised it.

    A handler raises inside of whatever call its signal interrupted, and its own error may be an OSError: TimeoutError
    is one. Taken for a failure of the disk it would be translated, or make a partition read-only; it is an interrupt
    like Ctrl-C, and must pass through in the same way. So every `except` of an OSError in this package calls this.
    """
    error = sys.exception()
    if error is not None and is_from_handler(error):
        return ()
    return kinds or (OSError,)


def is_from_handler(error: BaseException) -> bool:
    """Return whether an error was raised in a signal handler, as its traceback shows.

    Python calls a handler with the frame that it interrupted, from that very frame; no other function is called so. A
    handler that has deleted its argument is recognized as long as it is the one of its signal.
    """
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        called = entry.tb_next.tb_frame
        if _was_given(called, entry.tb_frame) or _handles(called):
            return True
        entry = entry.tb_next
    return False


def _handles(called: FrameType) -> bool:
    """Return whether a function outside of this package is the current handler of a signal."""
    if called.f_globals.get("__name__", "").startswith("tailrace."):
        # Checked first, because looking up every signal costs more than most system calls.
        return False
    return any(_code_of(signal.getsignal(number)) is called.f_code for number in signal.valid_signals())


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a function, of a method, of what a partial calls, or of a callable object."""
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if callable(handler) and not hasattr(function, "__code__"):
        function = type(handler).__call__
    return getattr(function, "__code__", None)


def _was_given(called: FrameType, caller: FrameType) -> bool:
    """Return whether a function has the frame that called it among its arguments."""
    code = called.f_code
    # Flag 4: it takes any number of arguments.
    count = code.co_argcount + code.co_kwonlyargcount + (code.co_flags & 4 > 0)
    values = [called.f_locals.get(name) for name in code.co_varnames[:count]]
    return any(value is caller or (type(value) is tuple and any(each is caller for each in value)) for value in values)


class Tolerating:
    """Like contextlib.suppress(OSError): an error of the system ends the block, an error of a signal handler passes."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, OSError) and not is_from_handler(error)
