"""Open logs of a process: one cache, shared by the queries that read and the tasks and batches that write.

Spark keeps its Python processes for the next task. Closing a log for writing syncs what only the journal holds, so the
log stays open for the next batch, and a process that Spark leaves idle closes it after some seconds. A log that is open
for reading holds no lock and stays open as long as the process.
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
from tailrace.spark import limits

if TYPE_CHECKING:
    from tailrace import Log

logger = logging.getLogger("tailrace.spark")

TIMEOUT_SECONDS = 60.0


class _Stamp(NamedTuple):
    """What distinguishes a log from another one that was created later at the same path."""

    device: int
    inode: int
    modified: int


class _Kept:
    """An open log, the number of its current users, and the timer that will close it."""

    def __init__(self, log: Log, stamp: _Stamp | None) -> None:
        self.log = log
        self.stamp = stamp
        self.users = 0
        self.timer: threading.Timer | None = None


_mutex = threading.Lock()
# By the location of a log, as it was named, and the mode in which it is open.
Key = tuple[str | None, str | None, Literal["a", "r"]]
_kept: dict[Key, _Kept] = {}


# The location of the log that a path, a namespace and the environment name.
_locations: dict[tuple[str | None, ...], tuple[str, _Stamp | None]] = {}


def handle_on(path: str | None, namespace: str | None, *, create: bool) -> Log:
    """Return a handle that can be pickled and is opened where it is used.

    Raise NotALogError if the log is missing and `create` is false. A name is resolved once: later calls only check that
    the same log still exists.
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
    return bulk.handle(location, TIMEOUT_SECONDS)


def _check_there(path: str | None, namespace: str | None) -> None:
    try:
        tailrace.open(path, "r", namespace=namespace).close()
    except RecoveryNeededError:
        # The log exists, and opening it for writing recovers it.
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
            # Another log replaced it, or it was recovered since.
            del _kept[key]
            _close(kept)
            kept = None
        if kept is None:
            log = open_log(location, namespace)
            kept = _kept[key] = _Kept(log, _stamp(log.location))
        return kept.log


def open_log(location: str | None, namespace: str | None, *, write: bool = False) -> Log:
    """Open a log that is not shared; a missing log is never created."""
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
    """Return whether a log still shows its state at opening, since no process has recovered it after a power cut."""
    return bulk.Survey(log, lambda name: False).frozen


@contextmanager
def shared_log(handle: Log) -> Iterator[Log]:
    """Yield the open log of a pickled handle, shared by all users in this process."""
    kept = _borrow(handle)
    try:
        yield kept.log
    finally:
        _give_back(kept)


def close_all() -> None:
    """Close the logs that have no user."""
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
            # The directory was removed and another log is there now; users of the old one finish with it.
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
            kept = _kept[key] = _Kept(bulk.reopened(handle), stamp)
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
        kept.timer = threading.Timer(limits.LIMITS.idle_seconds, _close_idle, (kept,))
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
        # Committed records are on disk; the next process that opens the log meets the same failure and reports it.
        return


def _stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(f"{path}/{IDENTITY_NAME}")
    except OSError:
        return None
    return _Stamp(found.st_dev, found.st_ino, found.st_mtime_ns)


class hinted:  # noqa: N801 (read as a word: with hinted())
    """Context manager that makes an error readable for the author of a query: Spark shows only the text of a traceback.

    So the hint becomes part of the text, and the frames of this package, which mean nothing to a user, are left out.
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
