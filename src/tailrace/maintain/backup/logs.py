"""Copying of one log: the segments of one point in time into a backup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.disk.catalog import CATALOG_SLOT
from tailrace.disk.copy import Settling, copy_segment, identify
from tailrace.disk.opening import COPIED_FROM
from tailrace.disk.segment import lost_ranges, read_footer
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TopicNotFoundError
from tailrace.maintain.backup.manifest import BackupFile, LogPart, PartitionPart
from tailrace.maintain.backup.target import part_name
from tailrace.types import Damage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.disk.backup_point import LogSnapshot, SegmentCopy, Standing
    from tailrace.disk.catalog import SlotPlace
    from tailrace.disk.store import Store

# Ends the reason of a damage if the replaced copy was better than the current segment.
WAS_WHOLE = "; an earlier backup here had it whole, and was replaced"


class Vanished(Exception):  # noqa: N818  # a state to act on, never shown to a user
    """A segment that could not be linked is gone: start over."""


# By log, topic, partition and base: the files of the previous backup.
Old = dict[tuple[str, int, int, int], BackupFile]


class Copying:
    """The copy of one log's segments of one point in time into the backup."""

    def __init__(
        self,
        store: Store,
        directory: str,
        taken: LogSnapshot,
        old: Old,
        report_progress: Callable[[int], None],
        *,
        linked: bool,
        last: bool,
        allow_damage: bool,
        earlier: tuple[Damage, ...] = (),
    ) -> None:
        self.files = store.files
        self.store = store
        self.directory = directory
        self.log_id = store.context.log_id.hex()
        self.taken = taken
        self.old = old
        self.report_progress = report_progress
        # Whether links keep every segment: then a missing one is damage, otherwise a reason to start over.
        self.linked = linked
        # Whether this is the last attempt: what still does not fit is damage.
        self.last = last
        self.allow_damage = allow_damage
        # The damage that the previous backup lists.
        self.earlier = earlier
        self.damage: list[Damage] = []
        self.copied_files = 0
        self.settling = Settling(self.files)

    @property
    def bytes(self) -> int:
        """Bytes to copy."""
        pieces = (piece for standing in self.taken.partitions for piece in standing.pieces)
        return sum(piece.size for piece in pieces if piece.known is None)

    def run(self, namespace: tuple[str, ...]) -> LogPart:
        taken = self.taken
        try:
            parts = [self._partition(standing) for standing in taken.partitions]
            self.settling.finish()
        finally:
            self.settling.close()
        return LogPart(
            self.log_id,
            namespace,
            {name: value for name, value in self.store.settings.items() if name != COPIED_FROM},
            {entry.id: entry.name for entry in taken.topics.values()},
            taken.next_slot,
            tuple(parts),
            tuple(self.damage),
        )

    def _partition(self, standing: Standing) -> PartitionPart:
        place, state = standing.place, standing.state
        directory = f"{self.store.path}/{place.directory}"
        if standing.cleared:
            self._refuse_cleared(standing)
        start = state.start if place.slot == CATALOG_SLOT else min(max(place.trim, state.start), state.end)
        bases = [piece.wanted.base for piece in standing.pieces]
        # The oldest segments of the catalog may be gone without a record of it: recovery looks for a snapshot there.
        following = bases[0] if bases and place.slot == CATALOG_SLOT else place.trim
        segments = []
        for piece, stop in zip(standing.pieces, [*bases[1:], state.end], strict=False):
            if piece.wanted.base > following:
                self._report(standing, following, piece.wanted.base - 1, directory, "segments are missing")
            segment = self._piece(standing, piece, stop)
            following = stop
            if segment is not None:
                segments.append(segment)
        if following < state.end:
            self._report(standing, following, state.end - 1, directory, "segments are missing")
        if standing.failed:
            reason = "a sync failed here, and the journal has the only good copy of a commit"
            self._report(standing, state.end, None, directory, reason)
        kept = state._replace(start=start, synced=state.position, synced_chain=state.chain, safe=state.end)
        return PartitionPart(place.topic_id, place.partition, place.slot, kept, tuple(segments))

    def _piece(self, standing: Standing, piece: SegmentCopy, stop: int) -> BackupFile | None:
        """Copy one segment unless the backup has it, and return its entry."""
        topic_id, partition, base, _ = piece.wanted
        if piece.known is not None:
            return self._kept(standing, self.old[self.log_id, topic_id, partition, base], stop)
        try:
            source = self.files.open(piece.path)
        except FileNotFoundError:
            if not self.linked:
                raise Vanished from None
            self._report(standing, base, stop - 1, piece.path, "the segment is missing")
            return None
        try:
            identity = identify(self.files, source, piece.wanted)
            if identity is None and not self.linked and not self.last:
                raise Vanished
            if piece.salt and identity is not None and identity.salt != piece.salt:
                # Rewritten since: records of it may be gone whose removal is not part of this snapshot.
                raise Vanished
            old = self.old.get((self.log_id, topic_id, partition, base))
            if old is not None and identity == old[1:4]:
                return self._kept(standing, old, stop)
            return self._copy(standing, piece, stop, source)
        finally:
            self.files.close(source)

    def _kept(self, standing: Standing, old: BackupFile, stop: int) -> BackupFile:
        """Return the entry of a segment that the backup has; report if the segment after it is missing from the log."""
        end = old.base + old.span
        if end != stop:
            self._report_segment(standing, end if end < stop else old.base, stop, f"it ends at {end}, not at {stop}")
        return old

    def _copy(self, standing: Standing, piece: SegmentCopy, stop: int, source: int) -> BackupFile:
        files = self.files
        topic_id, partition, base, _ = piece.wanted
        new = f"{self.directory}/{part_name(topic_id, partition, base)}"
        if files.stat(new) is not None:
            files.remove_file(new)
        target = files.open(new, exclusive=True)
        try:
            copied = copy_segment(files, source, target, piece.wanted, self.report_progress)
        except BaseException:
            files.close(target)
            raise
        wrong = copied.wrong
        if wrong is None and base + copied.span != stop:
            wrong = f"it ends at {base + copied.span}, not at {stop}"
        span = copied.span if wrong is None else stop - base
        sealed = wrong is None and piece.wanted.active is None
        lost = lost_ranges(files, source) if sealed else []
        ranges = tuple((base + first, base + last) for first, last in lost)
        footer = read_footer(files, source, copied.identity.salt) if sealed else None
        missing = 0 if footer is None else footer.span - footer.records
        removed = max(0, missing - sum(last - first + 1 for first, last in lost))
        segment = BackupFile(base, *copied.identity, copied.crc, span, wrong is None, ranges, removed)
        self.settling.add(target, new, f"{self.directory}/{segment.file_name(topic_id, partition)}", segment.size)
        self.copied_files += 1
        if wrong is not None:
            self._report_segment(standing, base, stop, wrong)
        return segment

    # Damage.

    def _report_segment(self, standing: Standing, base: int, stop: int, reason: str) -> None:
        """Report the records of a segment that does not fit which a reader cannot read."""
        path = f"{self.store.path}/{standing.place.directory}"
        partition = self.store.locate(standing.place.slot)
        found = False
        if partition is not None:
            reader = self.store.reader(partition)
            offset = max(base, partition.start)
            try:
                while offset < stop:
                    try:
                        for frame in reader.frames(offset, stop):
                            offset = frame.offset + frame.header.span
                        break
                    except CorruptionError as error:
                        first = offset if error.first is None else error.first
                        last = stop - 1 if error.last is None else min(error.last, stop - 1)
                        self._report(standing, first, last, error.path or path, f"{error.message}: {reason}")
                        found = True
                        offset = max(last, offset) + 1
            except (OffsetOutOfRangeError, TopicNotFoundError):
                pass
            finally:
                reader.close()
        if not found:
            self._report(standing, base, max(base, stop - 1), path, reason)

    def _refuse_cleared(self, standing: Standing) -> None:
        """Raise for a partition whose slot was cleared: its segments do not show which frames were published."""
        raise CorruptionError(
            "The log is damaged, and was not backed up: the slot of this partition in the tails was cleared",
            topic=self.taken.topics[standing.place.topic_id].name,
            partition=standing.place.partition,
            first=standing.place.trim,
            path=self.store.tails.path,
            hint="The previous backup, if there is one, is whole; run: tailrace repair, which finds the records again.",
        )

    def _report(self, standing: Standing, first: int, last: int | None, path: str, reason: str) -> None:
        place = standing.place
        entry = self.taken.topics.get(place.topic_id)
        topic = "the catalog" if entry is None else entry.name
        replaced = self._has_whole(place, first, first if last is None else last)
        if not self.allow_damage or place.slot == CATALOG_SLOT:
            allowed = "or allow damage (--allow-damage) to copy what there is"
            if replaced:
                allowed += ", for which whole records of the previous backup are given up: keep a copy of it"
            raise CorruptionError(
                f"The log is damaged, and was not backed up: {reason}",
                topic=topic,
                partition=place.partition,
                first=first,
                last=last,
                path=path,
                hint=f"The previous backup, if there is one, is whole; run: tailrace repair, {allowed}.",
            )
        damage = Damage(topic, place.partition, first, last, path, 0, reason)
        reported = Damage(topic, place.partition, first, last, path, 0, reason + WAS_WHOLE)
        self.damage.append(reported if replaced or reported in self.earlier else damage)

    def _has_whole(self, place: SlotPlace, first: int, last: int) -> bool:
        """Return whether the previous backup has any of these records, which the new one will not have."""
        return any(
            key[:3] == (self.log_id, place.topic_id, place.partition)
            and old.base <= last
            and first < old.base + old.span
            for key, old in self.old.items()
        )
