"""The log: opens a directory; a handle on it has every operation on a log."""

from __future__ import annotations

import os
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from tailrace.arguments import parse_durable, parse_duration, parse_flag
from tailrace.errors import TailraceError
from tailrace.local.log import LocalLog, diagnose_log, repair_log, restore_log
from tailrace.maintain.locations import log_path
from tailrace.maintain.namespaces import NAMESPACE_VARIABLE, namespace_path
from tailrace.names import is_pattern, validate_group_name, validate_match, validate_topic_name
from tailrace.topics import Pattern, Topic, plain_settings
from tailrace.write.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta
    from os import PathLike

    from tailrace.backend import LogBackend
    from tailrace.engine.engine import Engine
    from tailrace.groups.consumer import Consumer
    from tailrace.records import Record
    from tailrace.types import (
        BackupReport,
        Durable,
        Duration,
        Finding,
        GroupInfo,
        RepairReport,
        RestoreReport,
        Settings,
        Start,
        Stats,
        TopicInfo,
        VacuumReport,
        VerifyReport,
    )

MODES = ("a", "r", "x")
IO = ("auto", "mmap", "pread")


def open(
    location: str | PathLike[str] | None = None,
    mode: Literal["a", "r", "x"] = "a",
    *,
    namespace: str | None = None,
    durable: Durable = True,
    exclusive: bool = False,
    io: Literal["auto", "mmap", "pread"] = "auto",
    timeout: Duration = 30.0,
) -> Log:
    """Open the log in a directory; mode "a" creates what is missing, "x" must create it, "r" only reads.

    Without a location it is $TAILRACE_LOG, without a namespace $TAILRACE_NAMESPACE. `durable` is the default level of
    writes: True is on disk on return, "50ms" within that time, False survives kill -9 but not a power cut.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not known: write 'a' to append, 'r' to read, 'x' to create.")
    if io not in IO:
        raise ValueError(f"io={io!r} is not known: write 'auto', 'mmap' or 'pread'.")
    if parse_flag(exclusive, "exclusive") and mode == "r":
        raise ValueError('exclusive=True refuses other writers, and mode "r" does not write: leave one of them out.')
    path = log_path(location)
    if namespace is None:
        namespace = os.environ.get(NAMESPACE_VARIABLE) or None
    backend = LocalLog(path, mode, parse_durable(durable), exclusive, io, parse_duration(timeout, "timeout"))
    if namespace is not None:
        return Log(backend.namespace(namespace))
    return Log(backend).opened()


def repair(
    location: str | PathLike[str] | None = None,
    *,
    namespace: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RepairReport:
    """Repair the log in a directory, whether it can be opened or not; no other process may have it open.

    Damaged parts are moved to quarantine, every whole record stays, and a placeholder names each range that is lost.
    With `dry_run` nothing is changed.
    """
    path = log_path(location)
    if namespace is None:
        namespace = os.environ.get(NAMESPACE_VARIABLE) or None
    if namespace is not None:
        path = namespace_path(path, namespace)
    return repair_log(path, parse_flag(dry_run, "dry_run"), progress)


class Log:
    """A handle on a log: any thread may use it, a forked child may continue with it, and it can be pickled."""

    def __init__(self, backend: LogBackend) -> None:
        # The log itself: in a directory that this process opens. Whether close() was called is also kept there.
        self.backend = backend

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<Log {self.location!r} mode {self.mode!r}{state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy is a handle of its own, which opens the log at its first use and is closed by itself.
        return Log, (copy(self.backend),)

    @property
    def location(self) -> str:
        """Where the log is: a path."""
        return self.backend.location

    @property
    def mode(self) -> Literal["a", "r", "x"]:
        """The mode that the log was opened with."""
        return self.backend.mode

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self.backend.closed

    # Topics.

    def topic(self, name: str, *, alter: bool = False, **settings: Unpack[Settings]) -> Topic:
        """Return a topic by its name, or a pattern to read; given settings create the topic, or must equal its own.

        With `alter` a topic that has other settings gets the given ones, as far as a topic can change.
        """
        # Raises ClosedError after close().
        self.backend.open()
        parse_flag(alter, "alter")
        if is_pattern(name):
            return Pattern(self, name, {**settings})
        topic = Topic(self, validate_topic_name(name), plain_settings({**settings}), alter)
        if settings:
            topic.backend.ensure()
        return topic

    def topics(self, match: str = "...") -> list[TopicInfo]:
        """Return the topics whose name matches: `*` is one level, a final `...` is the rest."""
        validate_match(match, "match")
        return self.backend.topics(match)

    def transaction(self, *, once: tuple[str, int] | None = None) -> Transaction:
        """Return a transaction: appends to several topics that become visible together, or not at all.

        With `once=(name, number)` it is committed only if no transaction of that name had this number or a higher one;
        else nothing of it is written, and its `repeated` is true.
        """
        return Transaction(self, once)

    # Groups.

    def consumer(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Start = "earliest",
        stop: Start | Literal["now"] | None = None,
        commit: Literal["after", "before", "manual"] = "after",
        commit_every: int | timedelta | str = "1s",
        on_lost: Literal["error", "earliest", "latest"] = "error",
        member: str | None = None,
        max_processing: Duration | None = "5m",
    ) -> Consumer:
        """Return a consumer: reads topics, by name or pattern, for a group, and shares them with its other members.

        `start` is where the group starts in partitions that it has never read; `stop` ends the reading. With
        commit="after" cursors are committed after records were processed, at the interval `commit_every`; with "before"
        they are on disk before records are returned, so that no record is delivered twice; "manual" leaves it to
        commit(). A consumer that does not poll for `max_processing` loses its partitions; None is no limit.
        """
        options = {
            "start": start, "stop": stop, "commit": commit, "commit_every": commit_every, "on_lost": on_lost,
            "member": member, "max_processing": max_processing,
        }  # fmt: skip
        return self.backend.consumer(self, topics, group, options)

    def groups(self) -> list[GroupInfo]:
        """Return every group: its topics, its members, its lag."""
        return self.backend.groups()

    def group(self, name: str) -> GroupInfo:
        """Return one group; raise GroupNotFoundError if there is none of that name."""
        return self.backend.group(validate_group_name(name))

    def reset_group(
        self,
        group: str,
        to: Start | None = None,
        *,
        shift: int | None = None,
        topics: str | Sequence[str] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> dict[str, dict[int, int]]:
        """Move a group's cursors to a point, or by a number of records; return the new ones by topic and partition.

        Active members would overwrite them, so it is refused while there are any; `force` evicts them.
        """
        return self.backend.reset_group(
            validate_group_name(group), to, shift, topics, parse_flag(force, "force"), parse_flag(dry_run, "dry_run")
        )

    def evict_member(self, group: str, member: str) -> None:
        """Revoke the partitions of a stuck member; the other members read them, and its later commits are refused."""
        self.backend.evict_member(validate_group_name(group), member)

    def drop_group(self, group: str, *, force: bool = False) -> None:
        """Remove a group with its cursors; refused while it has active members, unless forced."""
        self.backend.drop_group(validate_group_name(group), parse_flag(force, "force"))

    def process(
        self,
        source: str | Sequence[str],
        function: Callable[[Record], Any],
        into: str,
        *,
        group: str,
        stop: Start | Literal["now"] | None = None,
        batch: int = 8_192,
        on_error: Literal["raise", "skip", "dead-letter"] = "raise",
    ) -> int:
        """Read records for a group, call a function with each, and append its results to a topic, each exactly once.

        The function returns None to drop a record, bytes, str or a Record for one, a list for many; key, headers and
        time are kept. Output and cursors of a batch are one transaction, so a process that dies at any point repeats
        nothing and misses nothing. If the function raises, or its output cannot be stored, `on_error` decides: stop
        after the records before it, skip the record, or put it into the topic "<into>.dead". Without `stop` it runs for
        ever. Return the number of records that were processed.
        """
        from tailrace.groups.processing import process

        return process(self, source, function, into, group=group, stop=stop, batch=batch, on_error=on_error)

    # Namespaces: each is a separate log.

    def namespace(self, name: str) -> Log:
        """Return the log of one tenant, isolated from all others; no transaction spans two."""
        return Log(self.backend.namespace(name))

    def namespaces(self) -> list[str]:
        """Return the names of the namespaces."""
        return self.backend.namespaces()

    def drop_namespace(self, name: str) -> None:
        """Remove a namespace and its records; raise LockedError while any process has it, or one inside it, open."""
        self.backend.drop_namespace(name)

    # State.

    def stats(self) -> Stats:
        """Return statistics of the log, over all its processes."""
        return self.backend.stats()

    def verify(self, topics: str = "...", *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Read everything and report what is damaged; progress is called with bytes done and bytes in all."""
        validate_match(topics, "topics")
        return self.backend.verify(topics, progress)

    def doctor(self) -> list[Finding]:
        """Return the log's present and coming problems, why they matter, and the command to run; empty if none.

        It changes nothing, blocks no other process, and does not read every record: that is for verify().
        """
        return self.backend.doctor()

    @staticmethod
    def diagnose(location: str | PathLike[str] | None = None, *, namespace: str | None = None) -> list[Finding]:
        """Do the same for a directory that need not be a log or can be damaged; namespace "" is the log itself."""
        path = log_path(location, followed=False)
        if namespace is None:
            namespace = os.environ.get(NAMESPACE_VARIABLE) or None
        if namespace:
            path = namespace_path(path, namespace)
        return diagnose_log(path, namespace or None)

    def backup(
        self,
        to: str | PathLike[str],
        *,
        allow_damage: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> BackupReport:
        """Copy the log as it is now into a directory, namespaces included; files that are there already are not copied.

        Other processes can append meanwhile. A damaged log raises CorruptionError, unless `allow_damage` copies what
        can be read and names the ranges. Progress is called with bytes done and bytes in all.
        """
        return self.backend.backup(to, parse_flag(allow_damage, "allow_damage"), progress)

    @staticmethod
    def restore(
        backup: str | PathLike[str],
        to: str | PathLike[str],
        *,
        allow_damage: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> RestoreReport:
        """Make a new log from a backup, in a directory that does not exist or is empty; the log has a new id."""
        return restore_log(backup, to, parse_flag(allow_damage, "allow_damage"), progress)

    def repair(self, *, dry_run: bool = False, progress: Callable[[int, int], None] | None = None) -> RepairReport:
        """Repair the log: this handle closes its producers and consumers, and reopens the log at its next use.

        Damaged parts are moved to quarantine, every whole record stays, and a placeholder names each range that is
        lost. LockedError while any other handle or process has the log open. With `dry_run` nothing is changed.
        """
        return self.backend.repair(parse_flag(dry_run, "dry_run"), progress)

    def vacuum(self, *, dry_run: bool = False) -> VacuumReport:
        """Remove what retention allows, now, and report for every segment why it was removed or kept."""
        return self.backend.vacuum(parse_flag(dry_run, "dry_run"))

    def sync(self) -> None:
        """Bring everything that any process appended so far, at any level, to disk before this returns."""
        self.backend.sync()

    def close(self) -> None:
        """Bring everything appended to disk, end followers, release the log; a second call waits for the first."""
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except TailraceError as problem:
            if error is None:
                raise
            # The error that ended the block is raised; the error of the close becomes a note on it.
            error.add_note(f"Closing the log failed as well: {problem}")

    # For the package itself: a log in a directory.

    @property
    def engine(self) -> Engine:
        """The engine, opened at the first use of an unpickled handle; raises ClosedError after close()."""
        return self.backend.engine

    def writing(self) -> Engine:
        """Return the engine, for a change; raise ReadOnlyError if this handle only reads."""
        return self.backend.writing()

    def opened(self) -> Self:
        """Return the same handle, opened now rather than at its first use."""
        self.backend.open()
        return self
