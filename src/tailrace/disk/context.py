"""The context of a log: the state that its partitions, journal and readers share in one process."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeGuard

from tailrace.disk.failures import by_system, is_from_handler
from tailrace.disk.tails import LOG_FAILED_WORD
from tailrace.errors import (
    CorruptionError,
    DiskFullError,
    DurabilityError,
    LockedError,
    NotALogError,
    ReadOnlyError,
    StorageError,
    TailraceError,
)

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.gauges import Gauges
    from tailrace.disk.lock import DirectoryLock
    from tailrace.disk.tails import Tails
    from tailrace.settings import Tuning

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Abandonable(Protocol):
    """An object that can release its locks after any interrupt."""

    def abandon(self) -> None: ...


class Context:
    """One open directory: its files, its tails, and its timeout."""

    __slots__ = (
        "files", "gauges", "leaving", "log_id", "name_damage", "on_seal", "path", "replaceable", "tails", "timeout",
        "tuning",
    )  # fmt: skip

    def __init__(self, files: Files, path: str, log_id: bytes, tails: Tails, tuning: Tuning, timeout: float) -> None:
        self.files = files
        self.path = path
        self.log_id = log_id
        self.tails = tails
        self.tuning = tuning
        self.timeout = timeout
        self.gauges: Gauges | None = None
        # Whether the directory may be removed while it is open: a reader holds no lock that a drop would wait for.
        self.replaceable = False
        # Locks that are being released after an exception, with the objects that abandon them. Registered by a plain
        # store, which no interrupt can precede; a lock that is still here when its thread takes a lock was not
        # released.
        self.leaving: dict[DirectoryLock, Abandonable] = {}
        # Called after a segment was sealed, under its partition's lock; it must return at once.
        self.on_seal: Callable[[], None] | None = None
        # Adds the topic of a slot, and the unreadable records of its newest segment, to an error.
        self.name_damage: Callable[[int, CorruptionError], None] | None = None

    def is_gone(self) -> bool:
        """Return whether the file of the tails at this path is not the open one."""
        try:
            here, there = self.files.stat(self.tails.path), self.files.stat_open(self.tails.descriptor)
        except by_system():
            # An error here does not show that the log is gone.
            return False
        return here is None or (here.device, here.inode) != (there.device, there.inode)

    def check_here(self) -> None:
        """Raise NotALogError if the open files belong to another log by now, or to none."""
        if self.replaceable and self.is_gone():
            raise NotALogError(
                f"The log at {self.path} was removed or replaced while it was open.",
                hint="What was read before is whole; close it and open anew.",
            )

    def check_writable(self) -> None:
        """Raise DurabilityError if the journal failed twice."""
        if self.tails.words[LOG_FAILED_WORD]:  # rule: log_failed
            raise DurabilityError(f"The journal of {self.path} could not be synced, so the log is read-only.")

    def locked(self, descriptor: int, what: str, timeout: float) -> LockedError:
        """Return the error for a lock that was not free in time."""
        pid = self.files.lock_holder(descriptor)
        holder = f"process {pid}" if pid else "another process"
        return LockedError(f"{what} stayed locked by {holder} for {timeout:g} s.", pid=pid)


def is_untyped(error: BaseException) -> TypeGuard[OSError]:
    """Return whether an error came from the operating system and was not yet converted to one of ours."""
    return isinstance(error, OSError) and not isinstance(error, TailraceError) and not is_from_handler(error)


def storage_error(error: OSError, what: str, path: str | None = None) -> Exception:
    """Return the typed error for a failed operation that was not a sync: nothing of it was kept."""
    reason = error.strerror or str(error)
    # It is used at the start of a sentence, or in the middle of one.
    what, within = what[:1].upper() + what[1:], what[:1].lower() + what[1:]
    if error.errno in _FULL:
        return DiskFullError(f"The disk is full: {within} failed.", errno=error.errno, path=path)
    if error.errno == errno.EROFS:
        return ReadOnlyError(f"The file system is read-only: {within} failed.")
    if error.errno in _FORBIDDEN and isinstance(error.filename, str):
        # The operator needs the name of the file to change its permissions.
        failed = StorageError(f"{what} failed: {error.filename}: {reason}.", errno=error.errno, path=error.filename)
        failed.remedy = "ask for the right to it, or act as the user whom the files belong to"
        return failed
    if error.errno in _MISSING and isinstance(error.filename, str):
        # A file of the log itself is missing, and its name says more than the error of the disk.
        hint = "What was acknowledged before is unharmed; see what is missing, and what to do, with: tailrace doctor"
        message = f"{what} failed: {error.filename}: {reason}."
        return StorageError(message, errno=error.errno, path=error.filename, hint=hint)
    if error.errno in _NO_DESCRIPTORS:
        hint = "Nothing of this call was kept; raise the limit (ulimit -n) or close other files, then try again."
        return StorageError(f"{what} failed: {reason}.", errno=error.errno, path=path, hint=hint)
    return StorageError(f"{what} failed: {reason}.", errno=error.errno, path=path)
