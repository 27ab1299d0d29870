"""Open logs: one handle a directory for reading, kept as long as the process, which serves many queries."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

import tailrace
from tailrace import bulk
from tailrace.errors import TailraceError
from tailrace.names import IDENTITY_NAME

if TYPE_CHECKING:
    from tailrace.log import Log

logger = logging.getLogger("tailrace.spark")

_mutex = threading.Lock()
_open: dict[tuple[str | None, str | None], tuple[Log, tuple[int, ...]]] = {}


def reading(location: str | None, namespace: str | None) -> Log:
    """The log of a directory, opened at the first call; only reading it is needed, not being allowed to write."""
    with _mutex:
        known = _open.get((location, namespace))
        if known is not None:
            if known[1] == _identity(known[0]) and not is_frozen(known[0]):
                return known[0]
            # Another log lies there by now, or this one was recovered since.
            known[0].close()
        log = open_log(location, namespace)
        _open[location, namespace] = (log, _identity(log))
        return log


def open_log(location: str | None, namespace: str | None, *, write: bool = False) -> Log:
    """A handle of one's own; a log that does not exist is never created."""
    try:
        log = tailrace.open(location, "r", namespace=namespace)
    except TypeError:
        if location is not None:
            raise
        raise ValueError('Say which log to read: .load("/data/log"), or .option("path", "/data/log").') from None
    if not write:
        return log
    place = log.location
    log.close()
    return tailrace.open(place, "a")


def is_frozen(log: Log) -> bool:
    """Whether it shows what was there when it was opened, because nobody has recovered it since a power cut."""
    return bulk.Survey(log, lambda name: False).frozen


class hinted:  # noqa: N801 (read as a word: with hinted())
    """Let an error be read by whoever made the query: Spark shows the text of a traceback, and nothing else of it.

    So the hint becomes part of the text, and the way through this package, which tells a user nothing, is left out.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, TailraceError):
            if error.hint not in getattr(error, "__notes__", ()):
                error.add_note(error.hint)
        elif type(error) is not ValueError:
            return
        logger.debug("A query was refused.", exc_info=error)
        raise error.with_traceback(None) from None


def _identity(log: Log) -> tuple[int, ...]:
    """What tells one directory from a later one of the same name."""
    try:
        stat = os.stat(f"{log.location}/{IDENTITY_NAME}")
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns
