"""Restore: creates a new log out of a backup, with every byte compared with its checksum (docs/backup.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.disk.catalog import CATALOG_PLACE, CATALOG_SLOT, Catalog, SlotPlace
from tailrace.disk.copy import Settling, copy_file
from tailrace.disk.failures import by_system
from tailrace.disk.files import remove_tree
from tailrace.disk.opening import RESTORING_NAME, make_directories, sync_name, write_identity, write_tails
from tailrace.disk.recovery import Recovered, RecoveredLog, Recovery
from tailrace.disk.segment import segment_name
from tailrace.disk.syncing import sync_all
from tailrace.errors import CorruptionError, LockedError, NotALogError, OpenError
from tailrace.maintain.backup.manifest import (
    DATA,
    LOCK,
    MANIFEST,
    BackupFile,
    LogPart,
    PartitionPart,
    existing_manifest,
)
from tailrace.maintain.backup.take import refuse_overlap
from tailrace.maintain.namespaces import NAMESPACES
from tailrace.names import IDENTITY_NAME, escape, is_internal, topic_directory
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
    """Create a new log in a directory out of a backup."""
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
        # Descriptors that hold the locks of the backup and of the new directory until the end.
        self.locks: list[int] = []

    def run(self) -> RestoreReport:
        from datetime import UTC, datetime

        files = self.files
        began = files.monotonic()
        try:
            self._lock_backup()
            manifest = existing_manifest(files, self.backup)
            self._prepare()
            segments = [s for log in manifest.logs for part in log.partitions for s in part.segments]
            self.total = sum(segment.size for segment in segments)
            ids = [files.random_bytes(16) for _ in manifest.logs]
            for log, log_id in zip(manifest.logs, ids, strict=True):
                self._restore(log, log_id)
            # The log itself is finished last: until it is a log, nothing in it counts as whole.
            for log, log_id in reversed([*zip(manifest.logs, ids, strict=True)]):
                self._finish(log, log_id)
        finally:
            while self.locks:
                files.close(self.locks.pop())
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
        """Write the identity, which makes it a log; the last of them removes the mark of a restore."""
        files, path = self.files, self._path(log)
        try:
            write_identity(files, path, log_id, log.settings)
            if not log.namespace:
                # If it reappears after a power cut, it has no meaning beside an identity.
                files.remove_file(f"{self.to}/{RESTORING_NAME}")
        except by_system():
            # After a failed directory fsync the kernel may consider the entry clean: a directory that is not surely a
            # log must not be taken for one, nor block the next restore.
            if files.stat(f"{path}/{IDENTITY_NAME}") is not None:
                files.remove_file(f"{path}/{IDENTITY_NAME}")
            raise

    # Source and target.

    def _lock_backup(self) -> None:
        """Lock the backup against a new one meanwhile; one that cannot be locked is not written to either."""
        try:
            self.locks.append(self.files.open(f"{self.backup}/{LOCK}"))
        except by_system():
            return
        if not self.files.lock(self.locks[-1], shared=True):
            pid = self.files.lock_holder(self.locks[-1])
            raise LockedError(f"{self.backup} is being written by another backup (process {pid}).", pid=pid)

    def _prepare(self) -> None:
        """Create an empty directory with a mark that a restore is running, locked until this restore ends."""
        files, to = self.files, self.to
        stat = files.stat(to)
        if stat is not None and stat.directory and files.stat(f"{to}/{IDENTITY_NAME}") is not None:
            raise self._refused("is a log already")
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
            raise self._refused(f"is not empty: it holds {names[0]!r}")
        made = self._take_mark()
        others = [name for name in files.list_directory(to) if name != RESTORING_NAME]
        if IDENTITY_NAME in others or (made and others):
            # Another process made it a log, or began to, since it was checked.
            if made:
                files.remove_file(f"{to}/{RESTORING_NAME}")
            raise self._refused("is a log already" if IDENTITY_NAME in others else f"holds {others[0]!r} by now")
        for name in others:
            # A killed restore left it; entries whose sync may have failed are created again.
            inner = files.stat(f"{to}/{name}")
            if inner is not None and inner.directory:
                remove_tree(files, f"{to}/{name}")
            else:
                files.remove_file(f"{to}/{name}")
        if not made:
            self._renew_mark()
        files.sync_directory(to)  # rule: restore's directory is named on disk

    def _take_mark(self) -> bool:
        """Lock the mark of a restore, and whether it had to be made: without it, a dead restore left the rest."""
        files, mark = self.files, f"{self.to}/{RESTORING_NAME}"
        while True:
            made = True
            try:
                self.locks.append(files.open(mark, exclusive=True))
            except FileExistsError:
                made = False
                try:
                    self.locks.append(files.open(mark, write=True))
                except FileNotFoundError:
                    continue
            lock = self.locks[-1]
            if not files.lock(lock):
                pid = files.lock_holder(lock)
                raise LockedError(
                    f"Another restore (process {pid}) is at work in {self.to}.",
                    pid=pid,
                    hint="Nothing was changed; wait for it, or name another directory.",
                )
            # The previous holder of the lock may have finished, or have created the mark again.
            there = files.stat(mark)
            if there is not None and there.inode == files.stat_open(lock).inode:
                return made
            files.close(self.locks.pop())

    def _renew_mark(self) -> None:
        """Replace the mark by a new file; at no moment is it missing or unlocked."""
        files, mark = self.files, f"{self.to}/{RESTORING_NAME}"
        self.locks.append(files.open(f"{mark}.new", exclusive=True))
        files.lock(self.locks[-1])
        files.rename(f"{mark}.new", mark)

    def _refused(self, why: str) -> OpenError:
        return OpenError(f"{self.to} {why}.", hint="Nothing was changed; name a new or empty directory.")

    def _path(self, log: LogPart) -> str:
        return "/".join([self.to, *(f"{NAMESPACES}/{escape(name)}" for name in log.namespace)])

    # One log.

    def _restore(self, log: LogPart, log_id: bytes) -> None:
        files, path = self.files, self._path(log)
        made = self._make_directories(log, path)
        before = len(self.damage)
        try:
            for part in log.partitions:
                for segment in part.segments:
                    self._copy(log, part, segment, f"{path}/{_place(log, part).directory}/{segment_name(segment.base)}")
            self.settling.finish()
        finally:
            self.settling.close()
        sync_all(files.sync_directory, made)  # rule: restored names are on disk
        self._survey(log, log_id, path, [*log.damage, *self.damage[before:]])

    def _make_directories(self, log: LogPart, path: str) -> list[str]:
        """Create every directory of a log, and return those whose entries have to be synced."""
        files = self.files
        wanted = [path, f"{path}/journal", f"{path}/topics"]
        if log.namespace:
            wanted.insert(0, path.rpartition("/")[0])
        for part in log.partitions:
            directory = f"{path}/{_place(log, part).directory}"
            if part.slot != CATALOG_SLOT:
                # With each partition: the slot of a dropped topic may put another one before the first of its topic.
                wanted.append(directory.rpartition("/")[0])
            wanted.append(directory)
        wanted = [*dict.fromkeys(wanted)]
        for directory in wanted:
            files.make_directory(directory)
        return [path.rpartition(f"/{NAMESPACES}/")[0], *wanted] if log.namespace else wanted

    def _copy(self, log: LogPart, part: PartitionPart, segment: BackupFile, to: str) -> None:
        files = self.files
        source_path = f"{self.backup}/{DATA}/{log.id}/{segment.file_name(part.topic_id, part.partition)}"
        try:
            source = files.open(source_path)
        except FileNotFoundError:
            self._report(log, part, _span(segment), source_path, "the file is missing")
            return
        try:
            target = files.open(to, exclusive=True)
            try:
                size, crc = copy_file(files, source, target, self._report_progress)
            except BaseException:
                files.close(target)
                raise
            self.settling.add(target, to, to, size)
        finally:
            files.close(source)
        if (size, crc) != (segment.size, segment.crc):
            what = f"it has {size} bytes, not {segment.size}" if size != segment.size else "its checksum is wrong"
            self._report(log, part, _span(segment), source_path, what)

    def _report_progress(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done))

    def _report(self, log: LogPart, part: PartitionPart, span: tuple[int, int], path: str, reason: str) -> None:
        """Report offsets that the new log will not have; raise CorruptionError unless damage is allowed."""
        topic, catalog = _topic(log, part), part.slot == CATALOG_SLOT
        if not self.allow_damage or catalog:
            raise CorruptionError(
                f"The backup is damaged: {reason}",
                topic=topic,
                partition=part.partition,
                first=span[0],
                last=max(span),
                path=path,
                hint=self._hint(allowing=not catalog),
            )
        self.damage.append(Damage(topic, part.partition, span[0], max(span), path, 0, reason))

    def _hint(self, *, allowing: bool) -> str:
        # Without a catalog it is unknown what the rest is.
        rest = ", or allow damage (--allow-damage) to get the rest." if allowing and not self.allow_damage else "."
        return f"{self.to} is not a log yet; take another copy of the backup and restore into it again{rest}"

    def _survey(self, log: LogPart, log_id: bytes, path: str, known: list[Damage]) -> None:
        """Survey the new log like recovery does, compare it with the manifest, and write its tails."""
        catalog = Catalog()
        catalog.next_slot = log.next_slot
        promised = [Recovered(_place(log, part), part.state, None) for part in log.partitions]
        # First the state that the manifest promises, so that whatever is missing from it is reported.
        write_tails(self.files, path, log_id, RecoveredLog(catalog, promised))
        try:
            survey = Recovery(self.files, path, log_id, write=False).run()
        except CorruptionError as error:
            error.hint = self._hint(allowing=False)
            raise
        found = {each.place.slot: each for each in survey.slots}
        damaged = {(damage.topic, damage.partition) for damage in known}
        for part in log.partitions:
            each = found.get(part.slot)
            if (_topic(log, part), part.partition) in damaged:
                continue
            wrong = "it is not in the catalog" if each is None else each.damage
            if each is not None and (each.state.end, each.state.start) != (part.state.end, part.state.start):
                wrong = wrong or "its segments begin or end elsewhere than the manifest says"
            if wrong:
                # The segments of the manifest were compared, so only ranges without segments in it are missing.
                for span in _gaps(part) or [(part.state.start, part.state.end - 1)]:
                    self._report(log, part, span, self.backup, f"it does not fit together, {wrong}")
        write_tails(self.files, path, log_id, survey, ready=True)


def _topic(log: LogPart, part: PartitionPart) -> str:
    return "the catalog" if part.slot == CATALOG_SLOT else log.topics[part.topic_id]


def _span(segment: BackupFile) -> tuple[int, int]:
    """Return the offsets of a segment, first and last."""
    return segment.base, segment.base + segment.span - 1


def _gaps(part: PartitionPart) -> list[tuple[int, int]]:
    """Return the ranges of a partition, first and last offset, that are in none of its segments."""
    gaps, following = [], part.state.start
    for first, last in [*(_span(segment) for segment in part.segments), (part.state.end, part.state.end)]:
        if first > following:
            gaps.append((following, first - 1))
        following = max(following, last + 1)
    return gaps


def _place(log: LogPart, part: PartitionPart) -> SlotPlace:
    if part.slot == CATALOG_SLOT:
        return CATALOG_PLACE
    directory = f"topics/{topic_directory(part.topic_id, log.topics[part.topic_id])}/{part.partition}"
    return SlotPlace(part.slot, part.topic_id, part.topic_id, part.partition, directory, 0, 0, 0.0)
