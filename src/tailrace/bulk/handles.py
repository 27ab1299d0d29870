"""Handles: a log as engines send it to their workers, and the identity of a log."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.log import Log


def handle(location: str, timeout: float) -> Log:
    """Return a handle on the log at a path that opens it for appending at its first use, in the process that uses it.

    It can be pickled. `timeout` is how many seconds the opening waits for locks.
    """
    from tailrace.local.log import LocalLog
    from tailrace.log import Log

    return Log(LocalLog(location, "a", 0.0, False, "auto", timeout))


def reopened(handle: Log) -> Log:
    """Return another handle on the same log, with the same options, and open it."""
    return copy(handle).opened()


def log_id(log: Log) -> str:
    """Return the id of a log in hexadecimal; a log that is created later at the same path has another one."""
    return log.engine.store.context.log_id.hex()
