"""Every error Tailrace raises on purpose: one tree, a stable code and a hint for each.

TailraceError
 +- OpenError: NotALogError, VersionError, LockedError (also BlockingIOError), ReadOnlyError, ClosedError, ForkedError,
 |             ThreadError, RecoveryNeededError
 +- DataError: CorruptionError, SchemaError
 +- TopicError: TopicNotFoundError (also LookupError), TopicExistsError, SettingsMismatchError, InvalidNameError,
 |              RecordTooLargeError
 +- PositionError: OffsetOutOfRangeError < RecordGoneError, OffsetMismatchError
 +- OwnershipError: PartitionLostError, GroupNotFoundError (also LookupError), GroupBusyError, ImmutableError
 +- StorageError (also OSError): DiskFullError, DurabilityError, CommittedNotVisibleError
 +- LimitError, BusyError, MissingExtraError

A wrong argument is a plain TypeError or ValueError.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class TailraceError(Exception):
    """Anything that went wrong inside Tailrace; `code` never changes, `hint` says what is safe and what to do next."""

    code: str = "error"
    hint: str = "Nothing was changed by this call."

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # The fields are keyword arguments, which the default pickling of exceptions would drop.
        return _rebuild, (type(self), self.message), dict(self.__dict__)

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "message": str(self), "hint": self.hint}


def _rebuild(kind: type[TailraceError], message: str) -> TailraceError:
    return kind(message)


class OpenError(TailraceError):
    """The log cannot be opened, or this handle can no longer be used."""

    code = "open"


class NotALogError(OpenError):
    """The path is not a log: missing, a file, or a directory of something else."""

    code = "not-a-log"
    hint = "Nothing was written there; name the directory of a log, or an empty or new directory to create one."


class VersionError(OpenError):
    """The log was written by a newer version of Tailrace."""

    code = "version"
    hint = "Nothing was changed; upgrade with: pip install --upgrade tailrace"


class LockedError(OpenError, BlockingIOError):
    """Another process holds the log, and the wait for it ended."""

    code = "locked"
    hint = "Nothing was changed; close the other process or open with a longer timeout=."

    def __init__(
        self,
        message: str,
        *,
        pid: int | None = None,
        host: str | None = None,
        since: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.pid = pid
        self.host = host
        self.since = since


class ReadOnlyError(OpenError):
    """A write through a handle that was opened for reading, or to a read-only file system."""

    code = "read-only"
    hint = 'Nothing was written; open the log with mode "a" to write.'


class ClosedError(OpenError):
    """The handle was closed before this call."""

    code = "closed"
    hint = "What was appended before the close is on disk; open the log again to continue."


class ForkedError(OpenError):
    """An iterator, a producer, a consumer or a transaction was carried over a fork."""

    code = "forked"
    hint = "The parent's object is unharmed; make a new one in the child from its Log or Topic."


class ThreadError(OpenError):
    """Two threads used an object that serves one thread at a time."""

    code = "thread"
    hint = (
        "Nothing was lost; give each thread its own iterator, consumer or transaction "
        "(Log, Topic and Producer may be shared)."
    )


class RecoveryNeededError(OpenError):
    """The log was not closed cleanly and cannot be recovered through a read-only handle."""

    code = "recovery-needed"
    hint = 'Nothing is lost; open the log once with mode "a", which recovers it, then read again.'


class DataError(TailraceError):
    """Stored data cannot be returned as it was written."""

    code = "data"


class CorruptionError(DataError):
    """Stored bytes are damaged: the records `first` to `last` (inclusive) of one partition cannot be read.

    `repaired` says that a repair has given them up already, so that nothing is left to repair.
    """

    code = "corruption"
    hint = "Records outside the named range are readable; run: tailrace repair --dry-run"

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        first: int | None = None,
        last: int | None = None,
        path: str | None = None,
        repaired: bool = False,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.repaired = repaired
        self.topic = topic
        self.partition = partition
        self.first = first
        self.last = last
        self.path = path

    def __str__(self) -> str:
        where = []
        if self.topic is not None:
            where.append(self.topic if self.partition is None else f"{self.topic}[{self.partition}]")
        elif self.partition is not None:
            where.append(f"partition {self.partition}")
        if self.first is not None:
            last = "the end" if self.last is None else str(self.last)
            where.append(f"offsets {self.first} to {last}")
        if self.path is not None:
            where.append(f"file {self.path}")
        return f"{self.message} ({', '.join(where)})" if where else self.message


class SchemaError(DataError):
    """A value does not fit the schema of its topic: the record `index` of the call, in the field `field`.

    The field is a path such as items[2].price; None if the whole value is wrong, or no JSON. `failures` has all values
    of the call that do not fit, at most 1,000, as (index, field, reason).
    """

    code = "schema"
    hint = "Nothing of this call was written; correct the value, or change the schema with Topic.alter(schema=)."

    def __init__(
        self,
        message: str,
        *,
        index: int | None = None,
        field: str | None = None,
        failures: tuple[tuple[int, str | None, str], ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.index = index
        self.field = field
        self.failures = failures


class TopicError(TailraceError):
    """A topic, its settings or a record do not fit together."""

    code = "topic"


class TopicNotFoundError(TopicError, LookupError):
    """The topic does not exist, or was dropped."""

    code = "topic-not-found"
    hint = "Nothing was created; list the topics with: tailrace topic ls"

    def __init__(
        self, message: str, *, topic: str | None = None, suggestion: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic
        self.suggestion = suggestion


class TopicExistsError(TopicError):
    """A topic of that name exists already."""

    code = "topic-exists"
    hint = "The topic was not changed; open it without settings, or change it with alter()."

    def __init__(self, message: str, *, topic: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic


class SettingsMismatchError(TopicError):
    """The requested settings are not those of the topic; `diff` maps each name to (have, want)."""

    code = "settings-mismatch"
    hint = "The topic was not changed; give it these settings with topic(..., alter=True), or open it without settings."

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        diff: Mapping[str, tuple[Any, Any]] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic
        self.diff: dict[str, tuple[Any, Any]] = dict(diff or {})


class InvalidNameError(TopicError):
    """A name that no topic or namespace may have."""

    code = "invalid-name"
    hint = "Nothing was created; a name is 1 to 255 bytes of UTF-8 in levels parted by single dots, such as orders.eu."


class RecordTooLargeError(TopicError):
    """A record is larger than its topic or the format allows."""

    code = "record-too-large"
    hint = "Nothing of this call was written; split the value, or raise max_record_bytes with alter() (64 MiB at most)."

    def __init__(
        self, message: str, *, size: int | None = None, maximum: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.size = size
        self.maximum = maximum


class PositionError(TailraceError):
    """An offset is not what the caller expected."""

    code = "position"


class OffsetOutOfRangeError(PositionError):
    """The offset is before the `earliest` record or after the `latest` end of the partition."""

    code = "offset-out-of-range"
    hint = "Nothing was skipped; start from an offset between earliest and latest, see Topic.offsets()."

    def __init__(
        self, message: str, *, earliest: int | None = None, latest: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.earliest = earliest
        self.latest = latest


class RecordGoneError(OffsetOutOfRangeError):
    """The partition had a record at this offset, which is hidden or removed; `reason` is "expired" or "deleted"."""

    code = "record-gone"
    hint = "Nothing was skipped; the records before and after it can be read, see Topic.read()."

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        earliest: int | None = None,
        latest: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, earliest=earliest, latest=latest, hint=hint)
        self.reason = reason


class OffsetMismatchError(PositionError):
    """The record would not have got the offset that `expect_offset=` named, so it was not written."""

    code = "offset-mismatch"
    hint = "Nothing of this call was written; read what came in between, then try again from the actual offset."

    def __init__(
        self, message: str, *, expected: int | None = None, actual: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.expected = expected
        self.actual = actual


class OwnershipError(TailraceError):
    """A partition or a group that is not the caller's: another member owns it, or it does not exist."""

    code = "ownership"


class PartitionLostError(OwnershipError):
    """The consumer no longer owns the partition, so it can commit nothing for it; `partitions` lists what was lost."""

    code = "partition-lost"
    hint = (
        "Nothing of this call was stored, and the new owner reads on from the last stored cursor; "
        "read again to join the group."
    )

    def __init__(
        self, message: str, *, group: str | None = None, partitions: tuple[tuple[str, int], ...] = (),
        hint: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, hint=hint)
        self.group = group
        self.partitions = partitions


class GroupNotFoundError(OwnershipError, LookupError):
    """There is no group of that name."""

    code = "group-not-found"
    hint = "Nothing was changed; a group is created by its first consumer, and listed by: tailrace group ls"

    def __init__(
        self, message: str, *, group: str | None = None, suggestion: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.group = group
        self.suggestion = suggestion


class GroupBusyError(OwnershipError):
    """Members of the group are at work, so its cursors are theirs; `members` lists them."""

    code = "group-busy"
    hint = "Nothing was changed; stop the members first, or evict them with: tailrace group evict"

    def __init__(
        self, message: str, *, group: str | None = None, members: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.group = group
        self.members = members


class ImmutableError(OwnershipError):
    """A record was to be deleted from a topic that is not mutable."""

    code = "immutable"
    hint = (
        "Nothing was deleted; copy the records to a topic created with mutable=True, "
        "or remove the oldest ones with Topic.trim()."
    )

    def __init__(self, message: str, *, topic: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic


class StorageError(TailraceError, OSError):
    """The operating system refused a read or a write; `errno` and `path` say which."""

    code = "storage"
    hint = "What was acknowledged before is unharmed; look at the disk and its permissions, then try again."
    # What to do before trying again.
    remedy: str = "look at the disk and its permissions"

    def __init__(
        self, message: str, *, errno: int | None = None, path: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        if errno is not None:
            self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError keeps errno outside of __dict__.
        return _rebuild, (type(self), self.message), {**self.__dict__, "errno": self.errno}


class DiskFullError(StorageError):
    """There is no room for the write."""

    code = "disk-full"
    hint = "Nothing of this call was kept and reading still works; free some space, then try again."
    remedy = "free some space"


class DurabilityError(StorageError):
    """A sync to disk failed, so nothing after the last acknowledged write can be promised."""

    code = "durability"
    hint = (
        "Nothing of this call was acknowledged and reading still works; check the disk, "
        "then see what to do with: tailrace doctor"
    )


class CommittedNotVisibleError(StorageError):
    """The write is on disk and will stay, but could not be made visible yet."""

    code = "committed-not-visible"
    hint = "Do not write it again: it is on disk, and appears when there is space again or after the log has recovered."


class LimitError(TailraceError):
    """A named maximum was reached."""

    code = "limit"
    hint = "Nothing of this call was written; docs/limits.md names every maximum."


class BusyError(TailraceError):
    """A buffer or a lock stayed taken for longer than the wait allowed."""

    code = "busy"
    hint = "Nothing of this call was written; try again, or allow a longer wait."


class MissingExtraError(TailraceError):
    """An optional package is needed for this call."""

    code = "missing-extra"
    hint = "Nothing was changed; install the extra that the message names, then try again."

    def __init__(self, message: str, *, extra: str | None = None, hint: str | None = None) -> None:
        if hint is None and extra is not None:
            hint = f'Nothing was changed; run: pip install "tailrace[{extra}]"'
        super().__init__(message, hint=hint)
        self.extra = extra
