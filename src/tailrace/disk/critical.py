"""Critical regions: functions that hold locks, a place in a queue or a user's write, found on a thread's stack.

A signal handler or a finalizer runs in the middle of a call of its own thread, and must not wait for what that call
holds. Whether it would is read from the stack: a function that was left by an interrupt is certainly not on it, while
an entry in a table might remain. A decorator marks a function as a region.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from types import CodeType, FrameType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class Region(Enum):
    """What a thread has or waits for from the first line of a region to its last."""

    # Locks of partitions, or the journal lock.
    LOCKS = "locks"
    # The lead of a group commit, or a place in its queue.
    QUEUE = "queue"
    # A write on behalf of a user: other threads may wait for it to end.
    WRITE = "write"


_regions: dict[CodeType, Region] = {}


def critical_region(kind: Region) -> Callable[[Function], Function]:
    """Register a function as a region of a kind; the function itself is not changed."""

    def register(function: Function) -> Function:
        _regions[function.__code__] = kind
        return function

    return register


def regions(kind: Region, frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the regions of a kind that a stack is inside of, the innermost first."""
    while frame is not None:
        if _regions.get(frame.f_code) is kind:
            yield frame
        frame = frame.f_back


def interrupted(kind: Region) -> Iterator[FrameType]:
    """Yield the regions of a kind that a handler or finalizer of this thread interrupted, the innermost first.

    Between such a region and this call runs code that is not of this package.
    """
    came_in = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("tailrace."):
            came_in = True
        elif came_in and _regions.get(frame.f_code) is kind:
            yield frame
        frame = frame.f_back


def in_handler() -> bool:
    """Return whether this is a signal handler that interrupted a call with locks: the main thread runs all handlers."""
    if threading.get_ident() != threading.main_thread().ident:
        return False
    return next(regions(Region.LOCKS, sys._getframe(1)), None) is not None
