"""The context of a log: what its partitions, journal and readers share in one process."""

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
    """Something that lets go of its locks, whatever was interrupted."""

    def abandon(self) -> None: ...


class Context:
    """One open directory: its files, its tails, and how long a wait may take."""

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
        # Whether the directory may go while it is open: whoever only reads holds no lock that a drop would meet.
        self.replaceable = False
        # Locks that are being released after an exception, with what abandons them. Noted by a plain store, which no
        # interrupt can come before; what is still here when its thread wants a lock was left behind.
        self.leaving: dict[DirectoryLock, Abandonable] = {}
        # Called after a segment was sealed, under its partition's lock; it returns at once.
        self.on_seal: Callable[[], None] | None = None
        # Puts the topic of a slot, and the records of its newest segment that cannot be read, into an error.
        self.name_damage: Callable[[int, CorruptionError], None] | None = None

    def is_gone(self) -> bool:
        """Whether the tails at this path are no longer the open ones."""
        try:
            here, there = self.files.stat(self.tails.path), self.files.stat_open(self.tails.descriptor)
        except by_system():
            # A path that cannot be looked at just now says nothing.
            return False
        return here is None or (here.device, here.inode) != (there.device, there.inode)

    def check_here(self) -> None:
        """Refuse to go on with files that belong to another log by now, or to none."""
        if self.replaceable and self.is_gone():
            raise NotALogError(
                f"The log at {self.path} was removed or replaced while it was open.",
                hint="What was read before is whole; close it and open anew.",
            )

    def check_writable(self) -> None:
        """Refuse to go on after the journal failed twice."""
        if self.tails.words[LOG_FAILED_WORD]:  # rule: log_failed
            raise DurabilityError(f"The journal of {self.path} could not be synced, so the log is read-only.")

    def locked(self, descriptor: int, what: str, timeout: float) -> LockedError:
        """The error for a lock that was not to be had in time."""
        pid = self.files.lock_holder(descriptor)
        holder = f"process {pid}" if pid else "another process"
        return LockedError(f"{what} stayed locked by {holder} for {timeout:g} s.", pid=pid)


def is_untyped(error: BaseException) -> TypeGuard[OSError]:
    """Whether an error came from the operating system and was not yet turned into one of ours."""
    return isinstance(error, OSError) and not isinstance(error, TailraceError) and not is_from_handler(error)


def storage_error(error: OSError, what: str, path: str | None = None) -> Exception:
    """The typed error for a failed operation that was not a sync: nothing of it was kept."""
    reason = error.strerror or str(error)
    # It stands at the beginning of a sentence, or in the middle of one.
    what, within = what[:1].upper() + what[1:], what[:1].lower() + what[1:]
    if error.errno in _FULL:
        return DiskFullError(f"The disk is full: {within} failed.", errno=error.errno, path=path)
    if error.errno == errno.EROFS:
        return ReadOnlyError(f"The file system is read-only: {within} failed.")
    if error.errno in _FORBIDDEN and isinstance(error.filename, str):
        # Which of many files it is, is what has to be known to change it.
        failed = StorageError(f"{what} failed: {error.filename}: {reason}.", errno=error.errno, path=error.filename)
        failed.remedy = "ask for the right to it, or act as the user whom the files belong to"
        return failed
    if error.errno in _MISSING and isinstance(error.filename, str):
        # Something of the log itself is gone, and which it is says more than the disk does.
        hint = "What was acknowledged before is unharmed; see what is missing, and what to do, with: tailrace doctor"
        message = f"{what} failed: {error.filename}: {reason}."
        return StorageError(message, errno=error.errno, path=error.filename, hint=hint)
    if error.errno in _NO_DESCRIPTORS:
        hint = "Nothing of this call was kept; raise the limit (ulimit -n) or close other files, then try again."
        return StorageError(f"{what} failed: {reason}.", errno=error.errno, path=path, hint=hint)
    return StorageError(f"{what} failed: {reason}.", errno=error.errno, path=path)
