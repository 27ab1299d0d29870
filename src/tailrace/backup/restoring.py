"""Restore: a new log out of a backup, with every byte compared with its checksum (docs/backup.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.backup.manifest import DATA, LOCK, MANIFEST, LogPart, PartitionPart, Segment, existing_manifest
from tailrace.backup.taking import refuse_overlap
from tailrace.disk.catalog import CATALOG_PLACE, CATALOG_SLOT, Catalog, SlotPlace
from tailrace.disk.copying import Settling, copy_file, sync_all
from tailrace.disk.files import remove_tree
from tailrace.disk.opening import (
    IDENTITY_NAME,
    RESTORING_NAME,
    make_directories,
    sync_name,
    write_identity,
    write_tails,
)
from tailrace.disk.recovery import Recovered, Recovery, Survey
from tailrace.disk.segment import segment_name
from tailrace.errors import CorruptionError, LockedError, NotALogError, OpenError
from tailrace.names import escape, is_internal, topic_directory
from tailrace.namespaces import NAMESPACES
from tailrace.types import Damage, RestoreReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.disk.files import Files


def restore(
    files: Files,
    backup: str,
    to: str,
    progress: Callable[[int, int], None] | None = None,
    *,
    allow_damage: bool = False,
) -> RestoreReport:
    """Make a new log in a directory out of a backup."""
    return _Restore(files, backup, to, progress, allow_damage).run()


class _Restore:
    def __init__(
        self, files: Files, backup: str, to: str, progress: Callable[[int, int], None] | None, allow_damage: bool
    ) -> None:
        self.files = files
        self.backup = backup
        self.to = to
        self.progress = progress
        self.allow_damage = allow_damage
        self.done = self.total = 0
        self.damage: list[Damage] = []
        self.settling = Settling(files)

    def run(self) -> RestoreReport:
        from datetime import UTC, datetime

        files = self.files
        began = files.monotonic()
        lock = self._lock()
        try:
            manifest = existing_manifest(files, self.backup)
            self._prepare()
            segments = [s for log in manifest.logs for part in log.partitions for s in part.segments]
            self.total = sum(segment.size for segment in segments)
            ids = [files.random_bytes(16) for _ in manifest.logs]
            for log, log_id in zip(manifest.logs, ids, strict=True):
                self._restore(log, log_id)
            # The log itself is the last: until it is one, nothing in it is taken for whole.
            for log, log_id in reversed([*zip(manifest.logs, ids, strict=True)]):
                self._finish(log, log_id)
        finally:
            if lock >= 0:
                files.close(lock)
        users = [
            (log, part)
            for log in manifest.logs
            for part in log.partitions
            if part.slot != CATALOG_SLOT and not is_internal(log.topics[part.topic_id])
        ]
        return RestoreReport(
            path=self.to,
            id=ids[0].hex(),
            topics=sum(not is_internal(name) for log in manifest.logs for name in log.topics.values()),
            partitions=len(users),
            namespaces=len(manifest.logs) - 1,
            records=sum(part.records for _, part in users),
            lost_records=sum(part.lost for _, part in users),
            bytes=self.total,
            files=len(segments),
            made=datetime.fromtimestamp(manifest.made_us / 1e6, UTC),
            damage=(*(damage for log in manifest.logs for damage in log.damage), *self.damage),
            seconds=files.monotonic() - began,
        )

    def _finish(self, log: LogPart, log_id: bytes) -> None:
        """Make it a log; the last of them takes the mark of a restore away."""
        files, path = self.files, self._path(log)
        try:
            write_identity(files, path, log_id, log.settings)
            if not log.namespace:
                # Should it come back after a cut, it says nothing beside an identity.
                files.remove_file(f"{self.to}/{RESTORING_NAME}")
        except OSError:
            # A name whose sync failed counts as synced: what is not surely a log must not be taken for one, nor stand
            # in the way of the next restore.
            if files.stat(f"{path}/{IDENTITY_NAME}") is not None:
                files.remove_file(f"{path}/{IDENTITY_NAME}")
            raise

    # Where it comes from, and where it goes.

    def _lock(self) -> int:
        """Keep a backup from being renewed meanwhile; one that cannot be locked is not written to either."""
        try:
            lock = self.files.open(f"{self.backup}/{LOCK}")
        except OSError:
            return -1
        if not self.files.lock(lock, shared=True):
            pid = self.files.lock_holder(lock)
            self.files.close(lock)
            raise LockedError(f"{self.backup} is being written by another backup (process {pid}).", pid=pid)
        return lock

    def _prepare(self) -> None:
        """Have an empty directory with a mark in it that says what it will be."""
        files, to = self.files, self.to
        stat = files.stat(to)
        if stat is not None and stat.directory and files.stat(f"{to}/{IDENTITY_NAME}") is not None:
            raise OpenError(f"{to} is a log already.", hint="Nothing was changed; name a new or empty directory.")
        refuse_overlap(files, self.backup, to, "backup")
        above = to
        while above := above.rpartition("/")[0]:
            if files.stat(f"{above}/{MANIFEST}") is not None:
                raise OpenError(f"{to} lies inside the backup {above}.", hint="Nothing was changed; name another one.")
        if stat is None:
            make_directories(files, to)
        elif not stat.directory:
            hint = "Nothing was written there; name a new or empty directory."
            raise NotALogError(f"{to} is a file, not a directory.", hint=hint)
        else:
            sync_name(files, to)
        names = files.list_directory(to)
        if names and RESTORING_NAME not in names:
            raise OpenError(
                f"{to} is not empty: it holds {names[0]!r}.", hint="Nothing was changed; name a new or empty directory."
            )
        for name in (name for name in names if name != RESTORING_NAME):
            # A restore that was killed left it; names whose sync failed are made anew.
            inner = files.stat(f"{to}/{name}")
            if inner is not None and inner.directory:
                remove_tree(files, f"{to}/{name}")
            else:
                files.remove_file(f"{to}/{name}")
        if names:
            files.remove_file(f"{to}/{RESTORING_NAME}")
        files.close(files.open(f"{to}/{RESTORING_NAME}", exclusive=True))
        files.sync_directory(to)

    def _path(self, log: LogPart) -> str:
        return "/".join([self.to, *(f"{NAMESPACES}/{escape(name)}" for name in log.namespace)])

    # One log.

    def _restore(self, log: LogPart, log_id: bytes) -> None:
        files, path = self.files, self._path(log)
        made = self._make_directories(log, path)
        try:
            for part in log.partitions:
                for segment in part.segments:
                    self._copy(log, part, segment, f"{path}/{_place(log, part).directory}/{segment_name(segment.base)}")
            self.settling.finish()
        finally:
            self.settling.close()
        sync_all(files.sync_directory, made)
        self._survey(log, log_id, path)

    def _make_directories(self, log: LogPart, path: str) -> list[str]:
        """Every directory of a log; all of those whose names have to be brought to disk."""
        files = self.files
        wanted = [path, f"{path}/journal", f"{path}/topics"]
        if log.namespace:
            wanted.insert(0, path.rpartition("/")[0])
        for part in log.partitions:
            directory = f"{path}/{_place(log, part).directory}"
            if part.slot != CATALOG_SLOT and not part.partition:
                wanted.append(directory.rpartition("/")[0])
            wanted.append(directory)
        for directory in wanted:
            files.make_directory(directory)
        return [path.rpartition(f"/{NAMESPACES}/")[0], *wanted] if log.namespace else wanted

    def _copy(self, log: LogPart, part: PartitionPart, segment: Segment, to: str) -> None:
        files = self.files
        source_path = f"{self.backup}/{DATA}/{log.id}/{segment.file_name(part.topic_id, part.partition)}"
        try:
            source = files.open(source_path)
        except FileNotFoundError:
            self._report(log, part, segment, source_path, "the file is missing")
            return
        try:
            target = files.open(to, exclusive=True)
            try:
                size, crc = copy_file(files, source, target, self._tell)
            except BaseException:
                files.close(target)
                raise
            self.settling.add(target, to, to, size)
        finally:
            files.close(source)
        if (size, crc) != (segment.size, segment.crc):
            what = f"it has {size} bytes, not {segment.size}" if size != segment.size else "its checksum is wrong"
            self._report(log, part, segment, source_path, what)

    def _tell(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done))

    def _report(self, log: LogPart, part: PartitionPart, segment: Segment, path: str, reason: str) -> None:
        topic = "the catalog" if part.slot == CATALOG_SLOT else log.topics[part.topic_id]
        first, last = segment.base, max(segment.base, segment.base + segment.span - 1)
        if not self.allow_damage or part.slot == CATALOG_SLOT:
            raise CorruptionError(
                f"The backup is damaged: {reason}",
                topic=topic,
                partition=part.partition,
                first=first,
                last=last,
                path=path,
                hint=f"{self.to} is not a log yet; take another copy of the backup and restore into it again, "
                "or allow damage (--allow-damage) to get the rest.",
            )
        self.damage.append(Damage(topic, part.partition, first, last, path, 0, reason))

    def _survey(self, log: LogPart, log_id: bytes, path: str) -> None:
        """Look at the new log as recovery does, compare it with the manifest, and write its tails."""
        catalog = Catalog()
        catalog.next_slot = log.next_slot
        promised = [Recovered(_place(log, part), part.state, None) for part in log.partitions]
        # First what the manifest promises: whatever is missing from that is named.
        write_tails(self.files, path, log_id, Survey(catalog, promised))
        survey = Recovery(self.files, path, log_id, write=False).run()
        found = {each.place.slot: each for each in survey.slots}
        damaged = {(damage.topic, damage.partition) for damage in (*log.damage, *self.damage)}
        for part in log.partitions:
            each = found.get(part.slot)
            topic = "the catalog" if part.slot == CATALOG_SLOT else log.topics[part.topic_id]
            if (topic, part.partition) in damaged:
                continue
            wrong = "it is not in the catalog" if each is None else each.damage
            if each is not None and (each.state.end, each.state.start) != (part.state.end, part.state.start):
                wrong = wrong or "its segments begin or end elsewhere than the manifest says"
            if wrong:
                raise CorruptionError(
                    f"The backup does not fit together: {wrong}",
                    topic=topic,
                    partition=part.partition,
                    first=part.state.start,
                    last=max(part.state.start, part.state.end - 1),
                    path=self.backup,
                )
        write_tails(self.files, path, log_id, survey, ready=True)


def _place(log: LogPart, part: PartitionPart) -> SlotPlace:
    if part.slot == CATALOG_SLOT:
        return CATALOG_PLACE
    directory = f"topics/{topic_directory(part.topic_id, log.topics[part.topic_id])}/{part.partition}"
    return SlotPlace(part.slot, part.topic_id, part.topic_id, part.partition, directory, 0, 0, 0.0)
