"""The log: opening a directory, and everything that a handle on it can do."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from tailrace.arguments import parse_durable, parse_duration, parse_flag
from tailrace.disk.context import storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.opening import lacks_identity
from tailrace.engine import background as worker
from tailrace.engine import engine as engines
from tailrace.engine.reentrancy import refuse_handler
from tailrace.errors import (
    ClosedError,
    ReadOnlyError,
    StorageError,
    TailraceError,
)
from tailrace.maintain.locations import log_path, not_opened, other_path
from tailrace.maintain.namespaces import (
    NAMESPACE_VARIABLE,
    drop_namespace,
    finish_drops,
    is_there,
    namespace_path,
    namespaces_in,
    no_namespace,
)
from tailrace.names import (
    is_pattern,
    validate_group_name,
    validate_match,
    validate_topic_name,
)
from tailrace.settings import process_tuning
from tailrace.topics import Topic
from tailrace.write.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta
    from os import PathLike

    from tailrace.disk.opening import Mode
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
    from tailrace.write.producer import Producer

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

    Without a location it is $TAILRACE_LOG, without a namespace $TAILRACE_NAMESPACE. `durable` is the level of writes
    that say nothing else: True is on disk on return, "50ms" within that, False survives kill -9 but not a power cut.
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
    log = Log(path, mode, parse_durable(durable), exclusive, io, parse_duration(timeout, "timeout"))
    if namespace is not None:
        return log.namespace(namespace)
    return log.opened()


def repair(
    location: str | PathLike[str] | None = None,
    *,
    namespace: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RepairReport:
    """Repair the log in a directory, be it one that can be opened or not; nobody else may have it open.

    What is damaged goes into quarantine, every whole record stays, and a placeholder names each range that is lost.
    With `dry_run` nothing is changed.
    """
    path = log_path(location)
    if namespace is None:
        namespace = os.environ.get(NAMESPACE_VARIABLE) or None
    if namespace is not None:
        path = namespace_path(path, namespace)
    return _repair(path, dry_run, progress)


def _repair(path: str, dry_run: bool, progress: Callable[[int, int], None] | None) -> RepairReport:
    from tailrace.maintain.repair import repair as run

    if progress is not None and not callable(progress):
        raise TypeError(f"progress is called with two numbers, and {type(progress).__name__} cannot be called.")
    return run(engines.FILES, path, tuning=process_tuning(), dry_run=parse_flag(dry_run, "dry_run"), progress=progress)


class Log:
    """A handle on a log: any thread may use it, a forked child may go on with it, and it can be pickled."""

    def __init__(self, path: str, mode: Mode, durable: float | None, exclusive: bool, io: str, timeout: float) -> None:
        self.location = path
        self.mode = mode
        self.durable = durable
        self.exclusive = exclusive
        self.io = io
        self.timeout = timeout
        # The engine while this handle is open and was used; None before and after.
        self.live: Engine | None = None
        self.closed = False
        # Held by the thread that closes, so that another one waits until it has.
        self.closing = threading.RLock()
        _handles.add(self)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<Log {self.location!r} mode {self.mode!r}{state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever unpickles it must not fail because it exists already; it opens the log at its first use.
        mode = "a" if self.mode == "x" else self.mode
        return Log, (self.location, mode, self.durable, self.exclusive, self.io, self.timeout)

    # Topics.

    def topic(self, name: str, *, alter: bool = False, **settings: Unpack[Settings]) -> Topic:
        """A topic by its name, where given settings create it, or must be those it has; or a pattern to read.

        With `alter` a topic that has other settings gets the given ones, as far as a topic can change.
        """
        engine = self.engine
        parse_flag(alter, "alter")
        if is_pattern(name):
            from tailrace.topics import Pattern

            return Pattern(self, name, {**settings})
        topic = Topic(self, validate_topic_name(name), {**settings}, alter)
        if settings:
            topic.ensure(engine)
        return topic

    def topics(self, match: str = "...") -> list[TopicInfo]:
        """The topics whose name matches: `*` is one level, a final `...` is the rest."""
        from tailrace.maintain.stats import topic_infos

        validate_match(match, "match")
        with self._reading("Listing the topics"):
            return topic_infos(self.engine, match)

    def transaction(self) -> Transaction:
        """Appends to several topics that become visible together, or not at all."""
        return Transaction(self)

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
    ) -> Consumer:
        """Read for a group what it has not read yet: topics by name or pattern, shared with the group's other members.

        `start` is where a group begins in partitions that it has never read; `stop` ends the reading. With
        commit="after" cursors are stored for what was processed, every so many records or so often; with "before" they
        are on disk before records are handed out, so that none ever comes twice; "manual" leaves it to commit().
        """
        from tailrace.groups.consumer import Consumer

        return Consumer(
            self, topics, group, start=start, stop=stop, commit=commit, commit_every=commit_every, on_lost=on_lost,
            member=member,
        )  # fmt: skip

    def groups(self) -> list[GroupInfo]:
        """Every group: what it reads, who reads for it, how far behind it is."""
        from tailrace.groups import admin as groups

        with self._reading("Looking at the groups"):
            return groups.infos(self.engine)

    def group(self, name: str) -> GroupInfo:
        """One group; GroupNotFoundError when there is none of that name."""
        from tailrace.groups import admin as groups

        with self._reading("Looking at a group"):
            engine = self.engine
            return groups.info(engine, groups.existing_group(engine, validate_group_name(name)))

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
        """Move a group's cursors to a place, or by a number of records; the new ones by topic and partition.

        Members that are at work would overwrite them, so it is refused while there are any; `force` evicts them.
        """
        from tailrace.groups import admin as groups

        engine = self.engine if parse_flag(dry_run, "dry_run") else self.writing()
        with self._reading("Moving the cursors of a group"):
            changes = groups.reset(
                engine, validate_group_name(group), to, shift=shift, topics=topics, force=parse_flag(force, "force"),
                dry_run=dry_run,
            )  # fmt: skip
        return groups.by_topic(changes)

    def evict_member(self, group: str, member: str) -> None:
        """Take the partitions of a stuck member away; the others read on, and what it commits later is refused."""
        from tailrace.groups import admin as groups

        with self._reading("Evicting a member"):
            groups.evict(self.writing(), validate_group_name(group), member)

    def drop_group(self, group: str, *, force: bool = False) -> None:
        """Forget a group with its cursors; refused while it has members at work, unless forced."""
        from tailrace.groups import admin as groups

        with self._reading("Dropping a group"):
            groups.drop(self.writing(), validate_group_name(group), force=parse_flag(force, "force"))

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
        """Read records for a group, call a function with each, append what it makes to a topic: each exactly once.

        The function gives None to drop a record, bytes, str or a Record for one, a list for many; key, headers and
        time are kept. Output and cursors are one transaction a batch, so a process that dies anywhere repeats nothing
        and misses nothing. Where the function raises, or its output cannot be stored, `on_error` says whether that ends
        it behind what precedes the record, skips the record, or puts it into the topic "<into>.dead". It goes on for
        ever without `stop`; how many records were processed.
        """
        from tailrace.groups.processing import process

        return process(self, source, function, into, group=group, stop=stop, batch=batch, on_error=on_error)

    # Namespaces: each is a whole log of its own.

    def namespace(self, name: str) -> Log:
        """The log of one tenant, isolated from all others; no transaction spans two."""
        if self.closed:
            raise ClosedError("The log is closed.")
        path = namespace_path(self.location, name)
        if not is_there(engines.FILES, path):
            if self.mode == "r" and not lacks_identity(engines.FILES, path):
                raise no_namespace(engines.FILES, self.location, name)
            if not is_there(engines.FILES, self.location):
                # Makes the log, or refuses a directory that is something else.
                Log(self.location, "a", None, False, self.io, self.timeout).opened().close()
            if self.mode != "r":
                finish_drops(engines.FILES, self.location)
        return Log(path, self.mode, self.durable, self.exclusive, self.io, self.timeout).opened()

    def namespaces(self) -> list[str]:
        """The names of the namespaces."""
        return sorted(name for name, _ in namespaces_in(engines.FILES, self.engine.path))

    def drop_namespace(self, name: str) -> None:
        """Forget a namespace with everything in it; LockedError while any process has it open, or one inside it."""
        files = self.writing().files
        with self._reading("Dropping a namespace"):
            drop_namespace(files, self.location, name)

    # State.

    def stats(self) -> Stats:
        """The log in numbers, over all its processes."""
        from tailrace.maintain.stats import stats

        with self._reading("Looking at the log"):
            return stats(self.engine)

    def verify(self, topics: str = "...", *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Read everything and report what is damaged; progress is called with bytes done and bytes in all."""
        from tailrace.maintain.verify import verify

        validate_match(topics, "topics")
        theirs: list[OSError] = []
        tell = _careful(progress, theirs)
        with self._reading("Verifying the log", theirs):
            return verify(self.engine, topics, tell)

    def doctor(self) -> list[Finding]:
        """What is wrong with the log or will be, why it matters, and the command to run; empty when all is well.

        It changes nothing, makes nobody wait, and does not read everything: that is for verify().
        """
        from tailrace.maintain.doctor import examine

        return examine(self.engine.files, self.location)

    @staticmethod
    def diagnose(location: str | PathLike[str] | None = None, *, namespace: str | None = None) -> list[Finding]:
        """The same of a directory that need not be a log, nor one that can be opened; "" is the log itself."""
        from tailrace.maintain.doctor import examine

        path = log_path(location, followed=False)
        if namespace is None:
            namespace = os.environ.get(NAMESPACE_VARIABLE) or None
        if namespace:
            path = namespace_path(path, namespace)
        return examine(engines.FILES, path, namespace=namespace or None)

    def backup(
        self,
        to: str | PathLike[str],
        *,
        allow_damage: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> BackupReport:
        """Copy the log as it is now into a directory, namespaces included; what is there already is not copied again.

        Others go on appending meanwhile. A damaged log is a CorruptionError, unless `allow_damage` copies what there
        is and names the ranges. Progress is called with bytes done and bytes in all.
        """
        from tailrace.maintain.backup.take import backup

        theirs: list[OSError] = []
        tell = _careful(progress, theirs)
        target = other_path(to, "backup")
        try:
            return backup(self, target, tell, allow_damage=parse_flag(allow_damage, "allow_damage"))
        except by_system() as error:
            if isinstance(error, TailraceError) or error in theirs:
                raise
            failed = storage_error(error, f"Backing up {self.location} into {target}", target)
            if isinstance(failed, StorageError):
                failed.hint = (
                    f"The log is not changed, and a backup that was there before is whole; {failed.remedy}, "
                    "then back up into the same directory again."
                )
            raise failed from error

    @staticmethod
    def restore(
        backup: str | PathLike[str],
        to: str | PathLike[str],
        *,
        allow_damage: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> RestoreReport:
        """Make a new log out of a backup, in a directory that does not exist or is empty; the log has a new id."""
        from tailrace.maintain.backup.restore import restore

        source, target = other_path(backup, "backup"), other_path(to, "new log")
        theirs: list[OSError] = []
        tell = _careful(progress, theirs)
        try:
            return restore(engines.FILES, source, target, tell, allow_damage=parse_flag(allow_damage, "allow_damage"))
        except by_system() as error:
            if isinstance(error, TailraceError) or error in theirs:
                raise
            failed = storage_error(error, f"restoring a log into {target}", target)
            if isinstance(failed, StorageError):
                failed.hint = (
                    f"The backup is not changed, and {target} is not a log yet; {failed.remedy}, then restore into the "
                    "same directory again: it starts over."
                )
            raise failed from error

    def repair(self, *, dry_run: bool = False, progress: Callable[[int, int], None] | None = None) -> RepairReport:
        """Repair the log: this handle ends its producers and consumers, and opens the log anew at its next use.

        What is damaged goes into quarantine, every whole record stays, and a placeholder names each range that is lost.
        LockedError while anybody else has the log open. With `dry_run` nothing is changed.
        """
        if self.closed:
            raise ClosedError("The log is closed.")
        if not parse_flag(dry_run, "dry_run"):
            if self.mode == "r":
                raise ReadOnlyError("The log is open for reading only.")
            self._let_go()
        return _repair(self.location, dry_run, progress)

    def _let_go(self) -> None:
        """Close what this handle has open, though not the handle; what cannot be stored is what a repair looks at."""
        self._refuse_callback("Log.repair()")
        with self.closing:
            engine = self.live
            ends: list[Callable[[], None]] = [consumer.close for consumer in self._consumers()]
            ends += [producer.close for producer in self._producers()]
            self.live = None
            if engine is not None:
                ends.append(lambda: engine.release(id(self)))
            for end in ends:
                try:
                    end()
                except TailraceError:
                    # Cursors that were not stored are read again from those that are, and what a producer could not
                    # send its futures tell.
                    continue

    def vacuum(self, *, dry_run: bool = False) -> VacuumReport:
        """Remove what the settings of the topics let go, now, and say of every segment why it went or stays."""
        from tailrace.maintain.vacuum import vacuum

        engine = self.engine if parse_flag(dry_run, "dry_run") else self.writing()
        with self._reading("Vacuuming the log"):
            return vacuum(engine, dry_run=dry_run)

    def sync(self) -> None:
        """Everything appended so far, by anyone and at any level, is on disk when this returns."""
        engine = self.writing()
        self._refuse_callback("Log.sync()")
        for producer in self._producers():
            producer.flush()
        engine.write(engine.store.sync)

    def close(self) -> None:
        """Bring everything appended to disk, end followers, give everything back; a second call waits for the first."""
        self._refuse_callback("Log.close()")
        if self.live is not None:
            refuse_handler(self.live, "Log.close()")
        with self.closing:
            if not self.closed:
                try:
                    self._close_users()
                finally:
                    self.closed = True
                    self._release()
            elif self.live is not None:
                # The first call was interrupted.
                self._release()

    def _release(self) -> None:
        """Give the engine back; after an interrupt it is still there for the next call."""
        engine = self.live
        if engine is not None:
            try:
                engine.release(id(self))
            except Exception:
                self.live = None
                raise
            self.live = None

    def _close_users(self) -> None:
        """End every consumer and producer, raise the first error; those begun meanwhile see `closed`, or are met."""
        failed: Exception | None = None
        for last in (False, True):
            self.closed = last
            ends = [consumer.close for consumer in self._consumers()]
            for end in (*ends, *[producer.close for producer in self._producers()]):
                try:
                    end()
                except Exception as error:  # noqa: BLE001  # raised at the end: nothing keeps the others from theirs
                    failed = failed or error
        if failed is not None:
            raise failed

    def _refuse_callback(self, what: str) -> None:
        if producers := self._producers():
            from tailrace.write.producer import refuse_callback

            refuse_callback(producers, what)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except TailraceError as problem:
            if error is None:
                raise
            # What ended the block comes first; that the close failed too is said beside it.
            error.add_note(f"Closing the log failed as well: {problem}")

    def __del__(self) -> None:
        engine = getattr(self, "live", None)
        if engine is not None and not engine.closed:
            # Closing waits for locks, which a finalizer must not do: the exit of the process or the next open does it.
            engine.handles.discard(id(self))
            warnings.warn(f"unclosed log {self.location!r}: use `with`, or close()", ResourceWarning, 1, self)

    # What topics, producers and transactions ask for.

    @property
    def engine(self) -> Engine:
        """The engine, opened at the first use of an unpickled handle; ClosedError after close()."""
        engine = self.live
        if engine is None:
            if self.closed:
                raise ClosedError("The log is closed.")
            try:
                engine = self.live = engines.acquire(
                    engines.FILES, self.location, self.mode, exclusive=self.exclusive, timeout=self.timeout,
                    tuning=process_tuning(), handle=id(self),
                )  # fmt: skip
            except ReadOnlyError as error:
                error.hint = 'Nothing was written; ask for permission to write there, or open it with mode "r" to read.'
                raise
            except by_system() as error:
                if isinstance(error, TailraceError):
                    raise
                raise not_opened(error, self.location) from error
        return engine

    def opened(self) -> Self:
        """The same handle, opened now rather than at its first use."""
        self.live = self.engine
        return self

    def writing(self) -> Engine:
        """The engine, for a change; ReadOnlyError when this handle only reads."""
        engine = self.engine
        if self.mode == "r":
            raise ReadOnlyError("The log is open for reading only.")
        return engine

    @contextmanager
    def _reading(self, what: str, theirs: Sequence[OSError] = ()) -> Iterator[None]:
        """Let no error of the operating system out that does not say what failed, except those of the caller's own."""
        try:
            yield
        except by_system() as error:
            if isinstance(error, TailraceError) or error in theirs:
                raise
            raise storage_error(error, what, self.location) from error

    def _producers(self) -> list[Producer]:
        """The producers of this handle that still run."""
        engine = self.live
        return [] if engine is None else [each for each in list(engine.producers) if each.topic.log is self]

    def _consumers(self) -> list[Consumer]:
        """The consumers of this handle that were not closed."""
        engine = self.live
        return [] if engine is None else [each for each in engines.listed(engine.consumers) if each.log is self]

    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self.closed


_handles: weakref.WeakSet[Log] = weakref.WeakSet()


def _is_vacuum_wanted(engine: Engine) -> bool:
    from tailrace.maintain.vacuum import is_wanted

    return is_wanted(engine)


def _vacuum_steps(engine: Engine) -> Iterator[None]:
    from tailrace.maintain.vacuum import steps

    return steps(engine)


# What engines do from time to time; imported when there is an engine that does it.
worker.chores = worker.Chores(_is_vacuum_wanted, _vacuum_steps)


def _forget_closing() -> None:
    """In a forked child: a thread that was closing a handle is not there to finish."""
    for log in list(_handles):
        log.closing = threading.RLock()
        log.closed = log.closed and log.live is None


os.register_at_fork(after_in_child=_forget_closing)


def _careful(progress: Callable[[int, int], None] | None, theirs: list[OSError]) -> Callable[[int, int], None]:
    """A caller's function, with the errors that it raises itself kept apart from ours."""
    if progress is not None and not callable(progress):
        raise TypeError(f"progress is called with two numbers, and {type(progress).__name__} cannot be called.")

    def tell(done: int, total: int) -> None:
        try:
            if progress is not None:
                progress(done, total)
        except by_system() as error:
            theirs.append(error)
            raise

    return tell
