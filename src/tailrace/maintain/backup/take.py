"""Backup: a consistent copy of a log in use; a later backup copies only new segments (docs/backup.md)."""

from __future__ import annotations

import errno
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.backup_point import ANY, Moment
from tailrace.disk.catalog import CATALOG_SLOT
from tailrace.disk.context import is_untyped
from tailrace.disk.failures import by_system
from tailrace.disk.opening import LOOK_AGAIN_SECONDS, broken_links, make_directories, read_identity, sync_name
from tailrace.errors import CorruptionError, LockedError, NotALogError, OpenError, ReadOnlyError, StorageError
from tailrace.maintain.backup.logs import Copying, Old, Vanished
from tailrace.maintain.backup.manifest import (
    DATA,
    LOCK,
    MANIFEST,
    MANIFEST_NEW,
    LogPart,
    Manifest,
    encode,
    read_manifest,
)
from tailrace.maintain.backup.target import NAME_ANOTHER, PART, refuse_foreign, refuse_foreign_data, remove, unnamed
from tailrace.maintain.namespaces import is_there, nameless_in, namespace_path
from tailrace.names import IDENTITY_NAME, is_internal
from tailrace.types import BackupReport

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from tailrace.disk.backup_point import LogSnapshot
    from tailrace.disk.copy import Identity
    from tailrace.disk.files import Files
    from tailrace.disk.store import Store
    from tailrace.engine.engine import Engine
    from tailrace.local.log import LocalLog
    from tailrace.types import Damage

# How often a backup starts over because segments were removed that could not be linked.
ATTEMPTS_MAX = 5


class BackupSource(NamedTuple):
    """One log to copy: the log itself, or a namespace in it. `run` keeps its store open for a call."""

    namespace: tuple[str, ...]
    location: str
    store: Store
    run: Callable[[Callable[[], LogSnapshot]], LogSnapshot]


def backup(
    log: LocalLog, to: str, progress: Callable[[int, int], None] | None = None, *, allow_damage: bool = False
) -> BackupReport:
    """Bring a backup in a directory up to the current state of the log, namespaces included."""
    sources = _sources(log, ())
    try:
        return Backup(to, progress, allow_damage).run(sources)
    finally:
        sources.close()


def _sources(log: LocalLog, namespace: tuple[str, ...]) -> Generator[BackupSource, None, None]:
    """Yield a log and the namespaces in it, each open for as long as it is copied."""
    engine = log.writing()
    # Checked before anything is copied, and again when the namespaces to copy are listed.
    _refuse_hidden(engine.files, log.location)
    yield BackupSource(namespace, log.location, engine.store, partial(_run_alone, engine))
    _refuse_hidden(engine.files, log.location)
    for name in log.namespaces():
        if not is_there(engine.files, namespace_path(log.location, name)):
            # Dropped while another one was copied: opening it would create it again.
            continue
        try:
            inner = log.namespace(name)
        except NotALogError:
            # Dropped at this moment.
            continue
        with closing(inner):
            yield from _sources(inner, (*namespace, name))


def _run_alone(engine: Engine, take: Callable[[], LogSnapshot]) -> LogSnapshot:
    """Take a snapshot under the vacuum lock: from its first link to its end no segment is rewritten or removed."""
    held: list[int] = []
    try:
        if not engine.worker.hold(engine.timeout, held):  # rule: backup holds the vacuum lock
            raise engine.worker.held_by()
        return engine.write(take)
    finally:
        engine.worker.let_go(held)


def _refuse_hidden(files: Files, location: str) -> None:
    """Raise for namespaces that exist and are not listed: without them the backup would discard their copies as old."""
    for name, inner in nameless_in(files, location):
        raise CorruptionError(
            f"The namespace {name!r} is damaged, and the log was not backed up: its identity is missing",
            path=f"{inner}/{IDENTITY_NAME}",
            hint="The previous backup, if there is one, is as it was; have it written again with: tailrace repair",
        )
    for link in broken_links(files, location):
        raise CorruptionError(
            "A symbolic link to namespaces leads nowhere, and the log was not backed up",
            path=link,
            hint="The previous backup, if there is one, is as it was; mount what the link leads to, or remove the "
            "link if it is not needed any more, then back up again.",
        )


class Backup:
    """One backup into one directory."""

    def __init__(self, to: str, progress: Callable[[int, int], None] | None = None, allow_damage: bool = False) -> None:
        self.to = to
        self.progress = progress
        self.allow_damage = allow_damage
        self.files: Files
        self.done = self.total = 0
        self.copied_files = 0
        self.held_seconds = 0.0
        self.old: Old = {}
        # By log: the damage that the previous backup lists.
        self.earlier: dict[str, tuple[Damage, ...]] = {}
        self.lock = -1

    def run(self, sources: Iterator[BackupSource]) -> BackupReport:
        """Copy each of the sources, the log itself first, and install the copy as the backup."""
        source = next(sources)
        self.files = source.store.files
        began = self.files.monotonic()
        own = source.store.context.log_id.hex()
        try:
            self._prepare(source.location, own)
        except by_system() as error:
            if error.errno == errno.EROFS and is_untyped(error):
                raise self._not_writable(error) from error
            raise
        try:
            before = read_manifest(self.files, self.to)
            self._refuse_others(before, own)
            if before is not None:
                self._remember(before)
            self._clean(before)
            logs = (self._copy(source), *map(self._copy, sources))
            if before is not None:
                self._refuse_lacking(source.location, before, logs)
            manifest = Manifest(self.files.now_us(), logs)
            self._install(manifest)  # rule: manifest before the sweep
            self._sweep(manifest)
        finally:
            self.files.close(self.lock)
        return self._report(manifest, self.files.monotonic() - began)

    # The directory of the backup.

    def _prepare(self, location: str, own: str) -> None:
        """Create the directory, refuse one that cannot hold a backup, and lock it."""
        files = self.files
        refuse_overlap(files, location, self.to)
        for above in _ancestors(self.to)[1:]:
            if files.stat(f"{above}/{MANIFEST}") is not None and files.stat(f"{above}/{DATA}") is not None:
                hint = "Nothing was changed; name a directory outside of it."
                raise OpenError(f"{self.to} lies inside the backup {above}.", hint=hint)
        stat = files.stat(self.to)
        if stat is None:
            make_directories(files, self.to)
        elif not stat.directory:
            raise NotALogError(f"{self.to} is a file, not a directory.", hint=NAME_ANOTHER)
        elif files.stat(f"{self.to}/{MANIFEST}") is None:
            sync_name(files, self.to)
        names = refuse_foreign(files, self.to)
        if LOCK not in names:
            # Nothing is written into a directory that is not a backup, not even a lock.
            refuse_foreign_data(files, self.to, names, own)
        self.lock = files.open(f"{self.to}/{LOCK}", create=True)
        if not files.lock(self.lock):
            pid = files.lock_holder(self.lock)
            files.close(self.lock)
            raise LockedError(f"{self.to} is in use by another backup or restore (process {pid}).", pid=pid)
        try:
            refuse_foreign_data(files, self.to, refuse_foreign(files, self.to), own)
        except BaseException:
            files.close(self.lock)
            raise

    def _not_writable(self, error: OSError) -> ReadOnlyError:
        return ReadOnlyError(
            f"The file system of {self.to} is read-only: {error.strerror}.",
            hint="The log is not changed, and a backup that was there before is whole; "
            "make the file system of the backup writable, or name another directory.",
        )

    def _refuse_others(self, before: Manifest | None, own: str) -> None:
        if before is not None and before.logs[0].id != own:
            raise OpenError(
                f"{self.to} is the backup of another log: its id is {before.logs[0].id}, this one's is {own}.",
                hint="Nothing was changed; a restored or copied log has an id of its own, so name another directory.",
            )

    def _refuse_lacking(self, location: str, before: Manifest, logs: Sequence[LogPart]) -> None:
        """Raise rather than remove the copies of a namespace that was not dropped: something is still in its place.

        It may be the empty directory to which a disk is not mounted, or what a deletion left.
        """
        copied = {log.namespace for log in logs}
        lacking = [log for log in before.logs if log.namespace not in copied]
        if not any(_is_left(self.files, location, log) for log in lacking):
            return
        # A process that creates it again after a drop needs only a moment.
        self.files.sleep(LOOK_AGAIN_SECONDS)
        for log in lacking:
            if _is_left(self.files, location, log):
                raise CorruptionError(
                    f"The namespace {'/'.join(log.namespace)!r} is in the previous backup, and what is in its place "
                    "now is not it, so the log was not backed up",
                    path=_way(location, log.namespace)[-1],
                    hint="The previous backup is as it was; mount the disk of the namespace or bring it back, or drop "
                    "it if it is not needed any more, then back up again.",
                )

    def _remember(self, before: Manifest) -> None:
        """Record the files that need not be copied again: those that exist as the manifest says."""
        for log in before.logs:
            self.earlier[log.id] = log.damage
            for part in log.partitions:
                for segment in part.segments:
                    path = f"{self.to}/{DATA}/{log.id}/{segment.file_name(part.topic_id, part.partition)}"
                    stat = self.files.stat(path)
                    if segment.whole and stat is not None and stat.size == segment.size:
                        self.old[log.id, part.topic_id, part.partition, segment.base] = segment

    def _clean(self, before: Manifest | None) -> None:
        """Remove what a killed backup left: the lock excludes any other backup.

        A directory that no manifest names is created again: the sync of its entry may have failed.
        """
        files = self.files
        data = f"{self.to}/{DATA}"
        if before is None and files.stat(data) is not None:
            remove(files, *unnamed(files, self.to, {}))
            files.remove_directory(data)
        if files.make_directory(data):
            files.sync_directory(self.to)  # rule: removal of the manifest on disk
        if before is None:
            return
        named = before.names()
        found, directories = unnamed(files, self.to, named)
        remove(files, [path for path in found if path.endswith(PART)], [])
        whole = [path for path in found if not path.endswith(PART)]
        if whole or directories:
            # The manifest on disk may be the one before this, which names them: after a failed directory fsync the
            # kernel may consider the new entry clean, so it is written again.
            for log in named:
                files.make_directory(f"{data}/{log}")
            self._install(before)  # rule: doubtful manifest written again
            remove(files, whole, directories)

    def _install(self, manifest: Manifest) -> None:
        """Write the manifest; with its rename the new backup becomes the backup."""
        files = self.files
        for log in manifest.logs:
            files.sync_directory(f"{self.to}/{DATA}/{log.id}")  # rule: names of copied files
        files.sync_directory(f"{self.to}/{DATA}")  # rule: names of copied logs
        new = f"{self.to}/{MANIFEST_NEW}"
        if files.stat(new) is not None:
            # After a failed sync the kernel may consider the same file clean.
            files.remove_file(new)
        descriptor = files.open(new, exclusive=True)
        try:
            files.write(descriptor, encode(manifest), 0)
            files.sync_data(descriptor)  # rule: manifest on disk before its name
        finally:
            files.close(descriptor)
        files.rename(new, f"{self.to}/{MANIFEST}")
        files.sync_directory(self.to)  # rule: name of the manifest

    def _sweep(self, manifest: Manifest) -> None:
        """Remove the files that the manifest on disk does not name."""
        try:
            remove(self.files, *unnamed(self.files, self.to, manifest.names()))
        except by_system() as error:
            raise StorageError(
                f"The backup in {self.to} is new and whole, but what it no longer needs could not be removed: "
                f"{error.filename or self.to}: {error.strerror or error}.",
                errno=error.errno,
                path=error.filename or self.to,
                hint="The log is not changed, and nothing has to be copied again; look at the disk and its "
                "permissions: the next backup into this directory removes the rest.",
            ) from error

    # The logs.

    def _copy(self, source: BackupSource) -> LogPart:
        store = source.store
        log_id = store.context.log_id.hex()
        directory = f"{self.to}/{DATA}/{log_id}"
        self.files.make_directory(directory)

        def known(topic_id: int, partition: int, base: int, identity: Identity) -> bool:
            found = self.old.get((log_id, topic_id, partition, base))
            return found is not None and (identity is ANY or identity == found[1:4])

        for attempt in range(ATTEMPTS_MAX):
            moment = Moment(store, known)
            try:
                taken = source.run(moment.take)
                self.held_seconds = max(self.held_seconds, taken.held_seconds)
                copying = Copying(
                    store,
                    directory,
                    taken,
                    self.old,
                    self.report_progress,
                    linked=moment.linking,
                    last=attempt == ATTEMPTS_MAX - 1,
                    allow_damage=self.allow_damage,
                    earlier=self.earlier.get(log_id, ()),
                )
                self.total = self.done + copying.bytes
                part = copying.run(source.namespace)
                self.copied_files += copying.copied_files
                return part
            except Vanished:
                continue
            finally:
                moment.close()
        raise StorageError(
            f"Segments of {source.location} were removed faster than they could be copied.",
            hint="No damage was found, and the previous backup, if there is one, is whole; there were no hard links "
            "to keep the segments, so try again when less is removed.",
        )

    def report_progress(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done))

    def _report(self, manifest: Manifest, seconds: float) -> BackupReport:
        records = lost = size = files = partitions = topics = 0
        for log in manifest.logs:
            for part in log.partitions:
                files += len(part.segments)
                size += sum(segment.size for segment in part.segments)
                if part.slot != CATALOG_SLOT and not is_internal(log.topics[part.topic_id]):
                    records += part.records
                    lost += part.lost
                    partitions += 1
            topics += sum(not is_internal(name) for name in log.topics.values())
        return BackupReport(
            path=self.to,
            id=manifest.logs[0].id,
            topics=topics,
            partitions=partitions,
            namespaces=len(manifest.logs) - 1,
            records=records,
            lost_records=lost,
            bytes=size,
            files=files,
            copied_bytes=self.done,
            copied_files=self.copied_files,
            damage=tuple(damage for log in manifest.logs for damage in log.damage),
            journal_held_ms=self.held_seconds * 1e3,
            seconds=seconds,
        )


def _is_left(files: Files, location: str, log: LogPart) -> bool:
    """Return whether anything but another log is in the place of a namespace that was backed up before."""
    for path in _way(location, log.namespace):
        if files.stat(path) is None:
            return files.is_link(path)
    try:
        identity = read_identity(files, path)
    except (CorruptionError, NotALogError):
        return True
    # A namespace that was dropped and created again has another id.
    return identity is None or identity[0].hex() == log.id


def _way(location: str, namespace: tuple[str, ...]) -> list[str]:
    """Return the directories on the path to a namespace, the last of which is its own."""
    found = [location]
    for name in namespace:
        path = namespace_path(found[-1], name)
        found += [path.rpartition("/")[0], path]
    return found


def refuse_overlap(files: Files, source: str, other: str, what: str = "log") -> None:
    """Raise if a directory cannot be created, is inside of a log, or contains the log or backup to copy."""
    for above in reversed(_ancestors(other)[1:]):
        stat = files.stat(above)
        if stat is not None and not stat.directory:
            hint = "Nothing was changed; name a directory that exists, or one that can be made."
            raise NotALogError(f"{other} cannot be made: {above} is a file, not a directory.", hint=hint)
    for above in _ancestors(other):
        if files.stat(f"{above}/{IDENTITY_NAME}") is not None:
            where = "is a log itself" if above == other else f"lies inside the log {above}"
            raise OpenError(f"{other} {where}.", hint="Nothing was changed; name a directory outside of it.")
    here = files.stat(other)
    for above in _ancestors(source):
        stat = files.stat(above)
        if here is not None and stat is not None and (here.device, here.inode) == (stat.device, stat.inode):
            message = (
                f"{other} is the {what} itself." if above == source else f"The {what} {source} lies inside {other}."
            )
            raise OpenError(message, hint=f"Nothing was changed; name a directory beside the {what}.")


def _ancestors(path: str) -> list[str]:
    """Return a path and the directories above it."""
    found = [path]
    while path := path.rpartition("/")[0]:
        found.append(path)
    return found
