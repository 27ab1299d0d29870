"""Backup: a consistent copy of a living log, which costs only what is new the second time (docs/backup.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.backup.logs import PART, Copying, Old, Vanished
from tailrace.backup.manifest import DATA, LOCK, MANIFEST, MANIFEST_NEW, LogPart, Manifest, encode, read_manifest
from tailrace.disk.catalog import CATALOG_SLOT
from tailrace.disk.copying_moment import ANY, Moment
from tailrace.disk.files import remove_tree
from tailrace.disk.opening import IDENTITY_NAME, make_directories, sync_name
from tailrace.errors import LockedError, NotALogError, OpenError, StorageError
from tailrace.names import is_internal
from tailrace.types import BackupReport

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from tailrace.disk.copying import Identity
    from tailrace.disk.copying_moment import Taken
    from tailrace.disk.files import Files
    from tailrace.disk.store import Store
    from tailrace.log import Log

# How often a backup starts over because segments were removed that could not be linked.
ATTEMPTS_MAX = 5
OWN_NAMES = frozenset({MANIFEST, MANIFEST_NEW, DATA, LOCK})


class Source(NamedTuple):
    """One log to be copied: the log itself, or a namespace in it. `run` keeps its store open for a call."""

    namespace: tuple[str, ...]
    location: str
    store: Store
    run: Callable[[Callable[[], Taken]], Taken]


def backup(
    log: Log, to: str, progress: Callable[[int, int], None] | None = None, *, allow_damage: bool = False
) -> BackupReport:
    """Bring a backup in a directory up to the log as it is now, namespaces included."""
    sources = _sources(log, ())
    try:
        return Backup(to, progress, allow_damage).run(sources)
    finally:
        sources.close()


def _sources(log: Log, namespace: tuple[str, ...]) -> Generator[Source, None, None]:
    """A log and the namespaces in it, each open for as long as it is copied."""
    engine = log.writing()
    yield Source(namespace, log.location, engine.store, engine.write)
    for name in log.namespaces():
        try:
            inner = log.namespace(name)
        except NotALogError:
            # Dropped in this moment.
            continue
        with inner:
            yield from _sources(inner, (*namespace, name))


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
        self.lock = -1

    def run(self, sources: Iterator[Source]) -> BackupReport:
        """Copy each of the sources, the log itself first, and install what was copied as the backup."""
        source = next(sources)
        self.files = source.store.files
        began = self.files.monotonic()
        self._prepare(source.location)
        try:
            before = read_manifest(self.files, self.to)
            self._refuse_others(before, source.store.home.log_id.hex())
            if before is not None:
                self._remember(before)
            self._clean(before)
            logs = (self._copy(source), *map(self._copy, sources))
            manifest = Manifest(self.files.now_us(), logs)
            self._install(manifest)
            self._sweep(manifest)
        finally:
            self.files.close(self.lock)
        return self._report(manifest, self.files.monotonic() - began)

    # The directory of the backup.

    def _prepare(self, location: str) -> None:
        """Make the directory, refuse one that cannot hold a backup, and lock it."""
        files = self.files
        refuse_overlap(files, location, self.to)
        stat = files.stat(self.to)
        if stat is None:
            make_directories(files, self.to)
        elif not stat.directory:
            raise NotALogError(f"{self.to} is a file, not a directory.", hint=_NAME_ANOTHER)
        elif files.stat(f"{self.to}/{MANIFEST}") is None:
            sync_name(files, self.to)
        foreign = [name for name in files.list_directory(self.to) if name not in OWN_NAMES]
        if foreign:
            raise NotALogError(f"{self.to} is not a backup: it holds {foreign[0]!r}.", hint=_NAME_ANOTHER)
        self.lock = files.open(f"{self.to}/{LOCK}", create=True)
        if not files.lock(self.lock):
            pid = files.lock_holder(self.lock)
            files.close(self.lock)
            raise LockedError(f"{self.to} is in use by another backup or restore (process {pid}).", pid=pid)

    def _refuse_others(self, before: Manifest | None, own: str) -> None:
        if before is not None and before.logs[0].id != own:
            raise OpenError(
                f"{self.to} is the backup of another log: its id is {before.logs[0].id}, this one's is {own}.",
                hint="Nothing was changed; a restored or copied log has an id of its own, so name another directory.",
            )

    def _remember(self, before: Manifest) -> None:
        """What need not be copied again: files that are there as the manifest says."""
        for log in before.logs:
            for part in log.partitions:
                for segment in part.segments:
                    path = f"{self.to}/{DATA}/{log.id}/{segment.file_name(part.topic_id, part.partition)}"
                    stat = self.files.stat(path)
                    if segment.whole and stat is not None and stat.size == segment.size:
                        self.old[log.id, part.topic_id, part.partition, segment.base] = segment

    def _clean(self, before: Manifest | None) -> None:
        """Remove what a killed backup left half written; whole files stay until another manifest is on disk.

        A directory that no manifest names is made anew: the sync of its name may have failed.
        """
        files = self.files
        data = f"{self.to}/{DATA}"
        if before is None and files.stat(data) is not None:
            remove_tree(files, data)
        if files.make_directory(data):
            files.sync_directory(self.to)
        named = before.names() if before is not None else {}
        for name in files.list_directory(data):
            if name not in named:
                remove_tree(files, f"{data}/{name}")
                continue
            for inner in files.list_directory(f"{data}/{name}"):
                if inner.endswith(PART):
                    files.remove_file(f"{data}/{name}/{inner}")

    def _install(self, manifest: Manifest) -> None:
        """From the rename on the new backup is the backup."""
        files = self.files
        for log in manifest.logs:
            files.sync_directory(f"{self.to}/{DATA}/{log.id}")
        files.sync_directory(f"{self.to}/{DATA}")
        new = f"{self.to}/{MANIFEST_NEW}"
        if files.stat(new) is not None:
            # After a failed sync the same file may count as synced.
            files.remove_file(new)
        descriptor = files.open(new, exclusive=True)
        try:
            files.write(descriptor, encode(manifest), 0)
            files.sync_data(descriptor)
        finally:
            files.close(descriptor)
        files.rename(new, f"{self.to}/{MANIFEST}")
        files.sync_directory(self.to)

    def _sweep(self, manifest: Manifest) -> None:
        """Remove what the manifest on disk does not name."""
        files = self.files
        named = manifest.names()
        data = f"{self.to}/{DATA}"
        for name in files.list_directory(data):
            if name not in named:
                remove_tree(files, f"{data}/{name}")
                continue
            for inner in files.list_directory(f"{data}/{name}"):
                if inner not in named[name]:
                    files.remove_file(f"{data}/{name}/{inner}")

    # The logs.

    def _copy(self, source: Source) -> LogPart:
        store = source.store
        log_id = store.home.log_id.hex()
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
                    self.tell,
                    strict=moment.linking or attempt == ATTEMPTS_MAX - 1,
                    allow_damage=self.allow_damage,
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
            hint="The backup of before is whole; the file system has no hard links, so try again when less is removed.",
        )

    def tell(self, count: int) -> None:
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


_NAME_ANOTHER = "Nothing was written there; name a new or empty directory, or an earlier backup of this log."


def refuse_overlap(files: Files, source: str, other: str, what: str = "log") -> None:
    """Refuse a directory that cannot be made, one inside of a log, and one that the log or backup to copy lies in."""
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
    """A path and the directories above it."""
    found = [path]
    while path := path.rpartition("/")[0]:
        found.append(path)
    return found
