"""Reentrancy guard: rejects calls from a signal handler that interrupted a write in the same thread."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from tailrace.errors import BusyError

if TYPE_CHECKING:
    from types import FrameType

    from tailrace.engine.engine import Engine

# What waits for others while it writes, or holds what others wait for.
_WRITING = frozenset(
    {
        "Topic.append", "Topic.extend", "Transaction._commit", "Producer.append", "Producer._append",
        "Producer.flush", "Producer.close",
    }
)  # fmt: skip


def refuse_handler(engine: Engine, what: str) -> None:
    """BusyError in a signal handler that came into a write of its own thread to the same log: it would wait for itself.

    Between that write and this call runs something that is not of this package. Only the main thread has handlers.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return
    came_in = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("tailrace."):
            came_in = True
        elif came_in and frame.f_code.co_qualname in _WRITING:
            owner = frame.f_locals.get("engine") or frame.f_locals.get("self")
            if engine in (owner, getattr(owner, "engine", None)):
                raise BusyError(
                    f"{what} was called in a signal handler that came into a write to the same log.",
                    hint="Nothing was done, nothing is lost; set a flag there or raise SystemExit, and call it when"
                    " the interrupted call is over.",
                )
        frame = frame.f_back
