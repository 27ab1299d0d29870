"""Reentrancy guard: rejects calls from a signal handler that interrupted a write in the same thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace.disk import Region, interrupted
from tailrace.errors import BusyError

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine


def refuse_handler(engine: Engine, what: str) -> None:
    """Raise BusyError in a signal handler that interrupted a write of its own thread to the same log.

    The call would wait for the write that it interrupted. Only the main thread runs signal handlers.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return
    for frame in interrupted(Region.WRITE):
        owner = frame.f_locals.get("engine") or frame.f_locals.get("self")
        if engine in (owner, getattr(owner, "engine", None)):
            raise BusyError(
                f"{what} was called in a signal handler that interrupted a write to the same log.",
                hint="Nothing was done, nothing is lost; set a flag there or raise SystemExit, and call it when"
                " the interrupted call is over.",
            )
