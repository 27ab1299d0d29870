"""A log in a directory: one handle's share of the engine, and every operation on the log."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tailrace.disk import by_system, lacks_identity, storage_error
from tailrace.engine import background as worker
from tailrace.engine import engine as engines
from tailrace.engine.failures import typed_failures
from tailrace.engine.reentrancy import refuse_handler
from tailrace.errors import ClosedError, ReadOnlyError, StorageError, TailraceError
from tailrace.local.topic import LocalTopic
from tailrace.maintain.locations import not_opened, other_path
from tailrace.maintain.namespaces import (
    drop_namespace,
    finish_drops,
    is_there,
    namespace_path,
    namespaces_in,
    no_namespace,
)
from tailrace.settings import process_tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from os import PathLike

    from tailrace.backend import Progress
    from tailrace.disk import Mode
    from tailrace.engine.engine import Engine
    from tailrace.groups.consumer import Consumer
    from tailrace.local.transaction import LocalTransaction
    from tailrace.log import Log
    from tailrace.read.iteration import Iteration
    from tailrace.read.request import Request
    from tailrace.types import (
        BackupReport,
        Finding,
        GroupInfo,
        RepairReport,
        RestoreReport,
        Start,
        Stats,
        TopicInfo,
        VacuumReport,
        VerifyReport,
    )
    from tailrace.write.producer import Producer


class LocalLog:
    """A log in a directory, opened by one handle: for any thread, after a fork too; it can be pickled."""

    def __init__(self, path: str, mode: Mode, durable: float | None, exclusive: bool, io: str, timeout: float) -> None:
        self.location = path
        self.mode: Mode = mode
        self.durable = durable
        self.exclusive = exclusive
        self.io = io
        self.timeout = timeout
        # The engine while this handle is open and in use; None before the first use and after the close.
        self.live: Engine | None = None
        self.closed = False
        # Held by the thread that closes, so that another thread that closes waits for it.
        self.closing = threading.RLock()
        _handles.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling with mode "x" would fail, because the log exists; the copy opens the log at its first use.
        mode = "a" if self.mode == "x" else self.mode
        return LocalLog, (self.location, mode, self.durable, self.exclusive, self.io, self.timeout)

    # Open and close.

    @property
    def engine(self) -> Engine:
        """The engine, opened at the first use; raises ClosedError after close()."""
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

    def open(self) -> None:
        """Open the log now rather than at its first use."""
        self.live = self.engine

    def writing(self) -> Engine:
        """Return the engine, for a change; raise ReadOnlyError if this handle only reads."""
        engine = self.engine
        if self.mode == "r":
            raise ReadOnlyError("The log is open for reading only.")
        return engine

    def now_us(self) -> int:
        """Return the current time in microseconds, by the clock that gives records their time."""
        return (self.live or self.engine).files.now_us()

    def sync(self) -> None:
        """Bring everything that any process appended so far, at any level, to disk before this returns."""
        engine = self.writing()
        self._refuse_callback("Log.sync()")
        for producer in self.producers():
            producer.flush()
        engine.write(engine.store.sync)

    def close(self) -> None:
        """Bring everything appended to disk, end followers, release the log; a second call waits for the first."""
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
                # The first call was interrupted, and this one finishes it.
                self._release()

    def _release(self) -> None:
        """Release the engine; after an interrupt it is still there for the next call."""
        engine = self.live
        if engine is not None:
            try:
                engine.release(id(self))
            except Exception:
                self.live = None
                raise
            self.live = None

    def _close_users(self) -> None:
        """Close every consumer and producer, then again those that began meanwhile; raise the first error."""
        failed: Exception | None = None
        for last in (False, True):
            self.closed = last
            ends = [consumer.close for consumer in self.consumers()]
            for end in (*ends, *[producer.close for producer in self.producers()]):
                try:
                    end()
                except Exception as error:  # noqa: BLE001  # raised at the end, after all others are closed
                    failed = failed or error
        if failed is not None:
            raise failed

    def _refuse_callback(self, what: str) -> None:
        if producers := self.producers():
            from tailrace.write.producer import refuse_callback

            refuse_callback(producers, what)

    def __del__(self) -> None:
        engine = getattr(self, "live", None)
        if engine is not None and not engine.closed:
            # Closing waits for locks, which a finalizer must not do: the exit of the process or the next open closes
            # it.
            engine.handles.discard(id(self))
            warnings.warn(f"unclosed log {self.location!r}: use `with`, or close()", ResourceWarning, 1, self)

    def is_closed(self) -> bool:
        """Return whether close() was called."""
        return self.closed

    def producers(self) -> list[Producer]:
        """Return the producers of this handle that still run."""
        engine = self.live
        return [] if engine is None else [each for each in list(engine.producers) if each.topic.log.backend is self]

    def consumers(self) -> list[Consumer]:
        """Return the consumers of this handle that were not closed."""
        engine = self.live
        return [] if engine is None else [each for each in engines.listed(engine.consumers) if each.log.backend is self]

    # Topics and their records.

    def topic(self, name: str, given: Mapping[str, Any], altering: bool) -> LocalTopic:
        """Return one topic, which need not exist."""
        return LocalTopic(self, name, given, altering)

    def topics(self, match: str) -> list[TopicInfo]:
        """Return the topics whose name matches."""
        from tailrace.maintain.stats import topic_infos

        with self._typed("Listing the topics"):
            return topic_infos(self.engine, match)

    def iterate(self, request: Request, limit: int | None, follow: bool, timeout: float | None) -> Iteration:
        """Begin one pass over the records of a request; a follower ends when this handle is closed."""
        from tailrace.read.iteration import Iteration

        if self.io == "mmap":
            request = request._replace(mapped=True)
        return Iteration(self.engine, request, limit, follow, timeout, self.is_closed)

    def count(self, request: Request) -> int:
        """Return the number of records of a request, from footers and headers."""
        from tailrace.read.request import select

        engine = self.engine
        with typed_failures(engine, request.name):
            return sum(span.count() for span in select(engine, request) if span.next < span.stop)

    def transaction(self) -> LocalTransaction:
        """Begin a transaction."""
        from tailrace.local.transaction import LocalTransaction

        return LocalTransaction(self)

    # Groups.

    def consumer(self, log: Log, topics: str | Sequence[str], group: str, options: Mapping[str, Any]) -> Consumer:
        """Return a consumer of this log."""
        from tailrace.local.consumer import local_consumer

        return local_consumer(log, topics, group, **options)

    def groups(self) -> list[GroupInfo]:
        """Return every group."""
        from tailrace.groups import admin

        with self._typed("Looking at the groups"):
            return admin.infos(self.engine)

    def group(self, name: str) -> GroupInfo:
        """Return one group; raise GroupNotFoundError if there is none of that name."""
        from tailrace.groups import admin

        with self._typed("Looking at a group"):
            engine = self.engine
            return admin.info(engine, admin.existing_group(engine, name))

    def reset_group(
        self,
        group: str,
        to: Start | None,
        shift: int | None,
        topics: str | Sequence[str] | None,
        force: bool,
        dry_run: bool,
    ) -> dict[str, dict[int, int]]:
        """Move the cursors of a group, and return the new ones by topic and partition."""
        from tailrace.groups import admin

        engine = self.engine if dry_run else self.writing()
        with self._typed("Moving the cursors of a group"):
            changes = admin.reset(engine, group, to, shift=shift, topics=topics, force=force, dry_run=dry_run)
        return admin.by_topic(changes)

    def evict_member(self, group: str, member: str) -> None:
        """Revoke the partitions of a member."""
        from tailrace.groups import admin

        with self._typed("Evicting a member"):
            admin.evict(self.writing(), group, member)

    def drop_group(self, group: str, force: bool) -> None:
        """Remove a group with its cursors."""
        from tailrace.groups import admin

        with self._typed("Dropping a group"):
            admin.drop(self.writing(), group, force=force)

    # Namespaces: each is a separate log.

    def namespace(self, name: str) -> LocalLog:
        """Return the log of one namespace, opened."""
        if self.closed:
            raise ClosedError("The log is closed.")
        path = namespace_path(self.location, name)
        if not is_there(engines.FILES, path):
            if self.mode == "r" and not lacks_identity(engines.FILES, path):
                raise no_namespace(engines.FILES, self.location, name)
            if not is_there(engines.FILES, self.location):
                # Creates the log, or refuses a directory that is something else.
                outer = LocalLog(self.location, "a", None, False, self.io, self.timeout)
                outer.open()
                outer.close()
            if self.mode != "r":
                finish_drops(engines.FILES, self.location)
        inner = LocalLog(path, self.mode, self.durable, self.exclusive, self.io, self.timeout)
        inner.open()
        return inner

    def namespaces(self) -> list[str]:
        """Return the names of the namespaces."""
        return sorted(name for name, _ in namespaces_in(engines.FILES, self.engine.path))

    def drop_namespace(self, name: str) -> None:
        """Remove a namespace and its records; raise LockedError while any process has it, or one inside it, open."""
        files = self.writing().files
        with self._typed("Dropping a namespace"):
            drop_namespace(files, self.location, name)

    # Maintenance.

    def stats(self) -> Stats:
        """Return statistics of the log, over all its processes."""
        from tailrace.maintain.stats import stats

        with self._typed("Looking at the log"):
            return stats(self.engine)

    def verify(self, topics: str, progress: Progress | None) -> VerifyReport:
        """Read everything and report what is damaged."""
        from tailrace.maintain.verify import verify

        theirs: list[OSError] = []
        report = _reporter(progress, theirs)
        with self._typed("Verifying the log", theirs):
            return verify(self.engine, topics, report)

    def doctor(self) -> list[Finding]:
        """Return the log's present and coming problems."""
        from tailrace.maintain.doctor import examine

        return examine(self.engine.files, self.location)

    def backup(self, to: str | PathLike[str], allow_damage: bool, progress: Progress | None) -> BackupReport:
        """Copy the log as it is now into a directory, namespaces included."""
        from tailrace.maintain.backup.take import backup

        theirs: list[OSError] = []
        report = _reporter(progress, theirs)
        target = other_path(to, "backup")
        try:
            return backup(self, target, report, allow_damage=allow_damage)
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

    def repair(self, dry_run: bool, progress: Progress | None) -> RepairReport:
        """Repair the log: close what this handle has open, but not the handle, which opens the log again."""
        if self.closed:
            raise ClosedError("The log is closed.")
        if not dry_run:
            if self.mode == "r":
                raise ReadOnlyError("The log is open for reading only.")
            self._let_go()
        return repair_log(self.location, dry_run, progress)

    def _let_go(self) -> None:
        """Close what this handle has open, but not the handle; ignore errors, since the repair examines the log."""
        self._refuse_callback("Log.repair()")
        with self.closing:
            engine = self.live
            ends: list[Callable[[], None]] = [consumer.close for consumer in self.consumers()]
            ends += [producer.close for producer in self.producers()]
            self.live = None
            if engine is not None:
                ends.append(lambda: engine.release(id(self)))
            for end in ends:
                try:
                    end()
                except TailraceError:
                    # Records after the last stored cursors are read again, and the futures of a producer have the
                    # errors of what it could not send.
                    continue

    def vacuum(self, dry_run: bool) -> VacuumReport:
        """Remove what retention allows, and report for every segment why it was removed or kept."""
        from tailrace.maintain.vacuum import vacuum

        engine = self.engine if dry_run else self.writing()
        with self._typed("Vacuuming the log"):
            return vacuum(engine, dry_run=dry_run)

    @contextmanager
    def _typed(self, what: str, theirs: Sequence[OSError] = ()) -> Iterator[None]:
        """Convert errors of the operating system into ones that say what failed, except those in `theirs`."""
        try:
            yield
        except by_system() as error:
            if isinstance(error, TailraceError) or error in theirs:
                raise
            raise storage_error(error, what, self.location) from error


_handles: weakref.WeakSet[LocalLog] = weakref.WeakSet()


def _forget_closing() -> None:
    """In a forked child: reset handles that another thread was closing, because that thread does not exist here."""
    for log in list(_handles):
        log.closing = threading.RLock()
        log.closed = log.closed and log.live is None


os.register_at_fork(after_in_child=_forget_closing)


def _is_vacuum_wanted(engine: Engine) -> bool:
    from tailrace.maintain.vacuum import is_wanted

    return is_wanted(engine)


def _vacuum_steps(engine: Engine) -> Generator[object, None, None]:
    from tailrace.maintain.vacuum import steps

    return steps(engine)


# The periodic work of engines; its modules are imported when an engine runs it.
worker.chores = worker.Chores(_is_vacuum_wanted, _vacuum_steps)


def repair_log(path: str, dry_run: bool, progress: Progress | None) -> RepairReport:
    """Repair the log in a directory, whether it can be opened or not."""
    from tailrace.maintain.repair import repair

    check_progress(progress)
    return repair(engines.FILES, path, tuning=process_tuning(), dry_run=dry_run, progress=progress)


def restore_log(
    backup: str | PathLike[str], to: str | PathLike[str], allow_damage: bool, progress: Progress | None
) -> RestoreReport:
    """Make a new log from a backup."""
    from tailrace.maintain.backup.restore import restore

    source, target = other_path(backup, "backup"), other_path(to, "new log")
    theirs: list[OSError] = []
    report = _reporter(progress, theirs)
    try:
        return restore(engines.FILES, source, target, report, allow_damage=allow_damage)
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


def diagnose_log(path: str, namespace: str | None) -> list[Finding]:
    """Return the problems of a directory that need not be a log."""
    from tailrace.maintain.doctor import examine

    return examine(engines.FILES, path, namespace=namespace)


def check_progress(progress: Progress | None) -> None:
    """Raise TypeError for a progress that cannot be called."""
    if progress is not None and not callable(progress):
        raise TypeError(f"progress is called with two numbers, and {type(progress).__name__} cannot be called.")


def _reporter(progress: Progress | None, theirs: list[OSError]) -> Progress:
    """Return a function that calls the caller's own, and records the OSErrors that it raises in `theirs`."""
    check_progress(progress)

    def report(done: int, total: int) -> None:
        try:
            if progress is not None:
                progress(done, total)
        except by_system() as error:
            theirs.append(error)
            raise

    return report
