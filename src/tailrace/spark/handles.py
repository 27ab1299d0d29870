"""Open logs of a process: one cache, for the queries that read and for the tasks and batches that write.

Spark keeps its Python processes for the next task. Closing a log for writing syncs what only the journal holds, so the
next batch finds it open, and a process that Spark leaves idle closes it after some seconds. A log that is open for
reading holds no lock and stays open as long as the process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

import tailrace
from tailrace import bulk
from tailrace.errors import NotALogError, RecoveryNeededError, TailraceError
from tailrace.names import IDENTITY_NAME

if TYPE_CHECKING:
    from tailrace.log import Log

logger = logging.getLogger("tailrace.spark")

IDLE_SECONDS = 5.0
TIMEOUT_SECONDS = 60.0


class _Stamp(NamedTuple):
    """What tells a log from another one that was made later at the same path."""

    device: int
    inode: int
    modified: int


class _Kept:
    """An open log, the number of its users right now, and the timer that will close it."""

    def __init__(self, log: Log, stamp: _Stamp | None) -> None:
        self.log = log
        self.stamp = stamp
        self.users = 0
        self.timer: threading.Timer | None = None


_mutex = threading.Lock()
# By where a log lies, as it was named, and how it is open.
Key = tuple[str | None, str | None, Literal["a", "r"]]
_kept: dict[Key, _Kept] = {}


# Where the log lies that a path, a namespace and the environment stand for.
_locations: dict[tuple[str | None, ...], tuple[str, _Stamp | None]] = {}


def handle_on(path: str | None, namespace: str | None, *, create: bool) -> Log:
    """A handle that can be pickled and is opened where it is used; NotALogError when there is no log and none is made.

    A name is looked up once: after that it costs no more than to ask whether the same log is still there.
    """
    key = (path, namespace, os.environ.get("TAILRACE_LOG"), os.environ.get("TAILRACE_NAMESPACE"), os.getcwd())
    location, stamp = _locations.get(key, ("", None))
    if stamp is None or _stamp(location) != stamp:
        if not create:
            _check_there(path, namespace)
        with tailrace.open(path, namespace=namespace) as log:
            location = log.location
        stamp = _stamp(location)
        _locations[key] = location, stamp
    from tailrace.log import Log

    return Log(location, "a", 0.0, False, "auto", TIMEOUT_SECONDS)


def _check_there(path: str | None, namespace: str | None) -> None:
    try:
        tailrace.open(path, "r", namespace=namespace).close()
    except RecoveryNeededError:
        # It is there, and opening it for writing recovers it.
        return
    except NotALogError as error:
        error.hint = (
            "Nothing was written; name the directory of a log, "
            'or let the sink create it and the topic: .option("createTopics", "true")'
        )
        raise


def reading(location: str | None, namespace: str | None) -> Log:
    """Return the log of a directory for reading, opened at the first call; no right to write to it is needed."""
    key: Key = (location, namespace, "r")
    with _mutex:
        kept = _kept.get(key)
        if kept is not None and (kept.stamp is None or kept.stamp != _stamp(kept.log.location) or is_frozen(kept.log)):
            # Another log is there by now, or this one was recovered since.
            del _kept[key]
            _close(kept)
            kept = None
        if kept is None:
            log = open_log(location, namespace)
            kept = _kept[key] = _Kept(log, _stamp(log.location))
        return kept.log


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


@contextmanager
def lent(handle: Log) -> Iterator[Log]:
    """The open log that a pickled handle stands for, shared by everybody in this process."""
    kept = _borrow(handle)
    try:
        yield kept.log
    finally:
        _give_back(kept)


def close_all() -> None:
    """Close what nobody uses."""
    with _mutex:
        for key, kept in list(_kept.items()):
            if not kept.users:
                del _kept[key]
                _close(kept)


def _borrow(handle: Log) -> _Kept:
    path = handle.location
    key: Key = (path, None, "a")
    with _mutex:
        kept = _kept.get(key)
        if kept is not None and kept.stamp != _stamp(path):
            # The directory was removed and another log is there now: the users of the old one finish with it.
            del _kept[key]
            if not kept.users:
                _close(kept)
            kept = None
        if kept is None:
            stamp = _stamp(path)
            if stamp is None:
                raise NotALogError(
                    f"There is no longer a log at {path}.", hint="Nothing was written; look for it there."
                )
            _, arguments = handle.__reduce__()
            kept = _kept[key] = _Kept(type(handle)(*arguments).opened(), stamp)
        if kept.timer is not None:
            kept.timer.cancel()
            kept.timer = None
        kept.users += 1
        return kept


def _give_back(kept: _Kept) -> None:
    with _mutex:
        kept.users -= 1
        if kept.users:
            return
        if _kept.get((kept.log.location, None, "a")) is not kept:
            _close(kept)
            return
        kept.timer = threading.Timer(IDLE_SECONDS, _close_idle, (kept,))
        kept.timer.daemon = True
        kept.timer.start()


def _close_idle(kept: _Kept) -> None:
    with _mutex:
        key: Key = (kept.log.location, None, "a")
        if kept.users or _kept.get(key) is not kept or kept.timer is not threading.current_thread():
            return
        del _kept[key]
        _close(kept)


def _close(kept: _Kept) -> None:
    if kept.timer is not None:
        kept.timer.cancel()
    try:
        kept.log.close()
    except (TailraceError, OSError):
        # What was committed is on disk; whoever opens the log next meets the same failure and can be told.
        return


def _stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(f"{path}/{IDENTITY_NAME}")
    except OSError:
        return None
    return _Stamp(found.st_dev, found.st_ino, found.st_mtime_ns)


class hinted:  # noqa: N801 (read as a word: with hinted())
    """Make an error readable for the author of the query: Spark shows the text of a traceback, and nothing else of it.

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
