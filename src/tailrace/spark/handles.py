"""Handles on logs that outlive a task or a batch: opened at the first use, closed when they were idle for a while.

Spark keeps its Python processes for the next task. To close a log is more than to let go of it (what the journal
vouches for is synced), so the next batch finds it open; a process that Spark leaves idle soon holds no lock any more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import tailrace
from tailrace.errors import NotALogError, RecoveryNeededError, TailraceError
from tailrace.names import IDENTITY_NAME

if TYPE_CHECKING:
    from tailrace.log import Log

IDLE_SECONDS = 5.0
TIMEOUT_SECONDS = 60.0


class _Stamp(NamedTuple):
    """What tells a log from another one that was made later at the same path."""

    device: int
    inode: int
    modified: int


class _Kept:
    """An open log, how many use it right now, and what will close it."""

    def __init__(self, log: Log, stamp: _Stamp | None) -> None:
        self.log = log
        self.stamp = stamp
        self.users = 0
        self.timer: threading.Timer | None = None


_mutex = threading.Lock()
_kept: dict[str, _Kept] = {}


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
        for path, kept in list(_kept.items()):
            if not kept.users:
                del _kept[path]
                _close(kept)


def _borrow(handle: Log) -> _Kept:
    path = handle.location
    with _mutex:
        kept = _kept.get(path)
        if kept is not None and kept.stamp != _stamp(path):
            # The directory was removed and another log is there now: whoever still uses the old one finishes with it.
            del _kept[path]
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
            kept = _kept[path] = _Kept(type(handle)(*arguments).opened(), stamp)
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
        if _kept.get(kept.log.location) is not kept:
            _close(kept)
            return
        kept.timer = threading.Timer(IDLE_SECONDS, _close_idle, (kept,))
        kept.timer.daemon = True
        kept.timer.start()


def _close_idle(kept: _Kept) -> None:
    with _mutex:
        path = kept.log.location
        if kept.users or _kept.get(path) is not kept or kept.timer is not threading.current_thread():
            return
        del _kept[path]
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
