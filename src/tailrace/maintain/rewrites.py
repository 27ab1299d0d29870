"""Rewrites: the segments that hold expired or deleted records, each replaced by a version without them."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tailrace.disk.dead_records import find_dead
from tailrace.disk.failures import by_system
from tailrace.disk.marks import NO_MARKS, Rewrite
from tailrace.disk.rewrite import finish_interrupted, remove_leftovers, rewrite
from tailrace.disk.tails import HAS_SEGMENT
from tailrace.errors import CorruptionError, DiskFullError, MissingExtraError, TailraceError
from tailrace.maintain.round import PARTITION_ERRORS
from tailrace.ranges import total, without
from tailrace.types import RewriteNote

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.partition import Partition
    from tailrace.disk.segment import Index
    from tailrace.maintain.closing import Closing
    from tailrace.maintain.retention import Rule, SegmentSpan
    from tailrace.maintain.round import Round
    from tailrace.marks import Marks
    from tailrace.ranges import Range

# What must be free beside what a rewrite writes: others write meanwhile.
ROOM_BYTES = 1 << 20
# A segment that cannot be read is tried again in the background after this time.
RETRY_US = 3_600_000_000


class Rewrites:
    """Rewrites segments during one round; in the background one segment, and requests another round for the rest."""

    def __init__(self, run: Round, closing: Closing) -> None:
        self.round = run
        self.closing = closing
        self.store = run.store
        self.inventory = run.inventory
        self.rewritten: list[RewriteNote] = []

    def finish(self) -> Iterator[None]:
        """Remove what dead rewrites left, and finish what they began: no other process has the vacuum lock."""
        for entry, rule in self.round.topics():
            for index in range(len(entry.slots)) if self.round.full or rule.expires or rule.mutable else ():
                partition = self.inventory.partition(entry, index)
                if partition is not None and (self.round.full or not self.inventory.cleared.get(partition.slot)):
                    try:
                        remove_leftovers(self.store.files, partition.path)
                    except by_system():
                        # The next round tries again.
                        continue
                    self.inventory.cleared[partition.slot] = True
        for slot in self.store.tails.interrupted_rewrites():
            partition = self.store.locate(slot)
            if partition is not None and not partition.failed:
                try:
                    yield from finish_interrupted(self.store, partition, self.round.timeout)
                except PARTITION_ERRORS:
                    # Its count stays odd: no segment of it is rewritten before this succeeds.
                    continue
                yield

    def steps(self, going: Mapping[tuple[int, int], int]) -> Iterator[bool | None]:
        """Yield after each step of rewriting the segments that hold expired or deleted records, True after a segment.

        Segments before the offsets in `going`, by topic and partition, are removed by the same round.
        """
        for entry, rule in self.round.topics():
            for index in range(len(entry.slots)) if self.round.full or rule.expires or rule.mutable else ():
                for piece, salt in self._rewritable(entry, index, rule):
                    if piece.stop <= going.get((entry.id, index), 0):
                        continue
                    partition = self.inventory.partition(entry, index)
                    if partition is None:
                        break
                    if not self.round.full and self.inventory.is_resting(partition, salt):
                        continue
                    try:
                        done = yield from self._rewrite_one(entry, partition, piece, salt)
                    except DiskFullError as error:
                        # Removals go on; rewrites need space themselves, and wait.
                        self._note_rewrite(entry, piece, piece.bytes, why=str(error))
                        return
                    except by_system(*PARTITION_ERRORS, MissingExtraError, OSError) as error:
                        if isinstance(error, (CorruptionError, MissingExtraError)):
                            self.inventory.rest(partition, salt, self.round.now_us + RETRY_US)
                        self._note_rewrite(entry, piece, piece.bytes, why=f"it cannot be rewritten: {error}")
                        continue
                    if done and not self.round.dry_run:
                        if not self.round.full:
                            if self.store.context.on_seal is not None:
                                self.store.context.on_seal()
                            return
                        yield True

    def _rewritable(self, entry: TopicEntry, index: int, rule: Rule) -> list[tuple[SegmentSpan, int]]:
        """Return the segments of a partition that may have to be rewritten, and the salt of each."""
        partition = self.inventory.partition(entry, index)
        state = None if partition is None else self.inventory.state(partition)
        if partition is None or state is None or partition.failed or not state.flags & HAS_SEGMENT:
            return []
        try:
            table = self.round.table(entry, index) if rule.mutable else NO_MARKS
            found = self.inventory.rewritable(partition, state, table)
            if partition.slot in self.closing.slots and (piece := self.inventory.active(partition, state)) is not None:
                found.append((piece, state.salt))
        except by_system(OSError, TailraceError):
            return []
        return found

    def _rewrite_one(
        self, entry: TopicEntry, partition: Partition, piece: SegmentSpan, salt: int
    ) -> Generator[None, None, bool]:
        """Rewrite one segment if it is worth it; return whether it was rewritten."""
        base = piece.first
        marks = self.round.marking(entry, piece.partition)
        table = NO_MARKS if marks is None else marks.follow().table
        removed: Sequence[Range] = table.within(base, piece.stop)
        overdue = not self.round.full and self.round.is_overdue(table, base, piece.stop, piece.expiry_low)
        if marks is not None and removed and not self.round.dry_run:
            # If this fails, as on a full disk, the version that is there may not be on disk, and its marks stay.
            yield from finish_interrupted(self.store, partition, self.round.timeout)  # rule: even count before the note
            removed = self._note_again(partition, base, marks, removed, thorough=self.round.full or overdue)
            if overdue and not self.round.is_overdue(marks.follow().table, base, piece.stop, piece.expiry_low):
                return False
        if self.round.full:
            index = None if piece.sealed else self._active_index(partition, base)
            # Where there is room for a whole copy, one dead record is reason enough.
            brief = not self.round.dry_run and self.store.files.free_bytes(self.store.path) >= piece.bytes + ROOM_BYTES
            dead = find_dead(partition, base, self.round.now_us, removed, index=index, brief=brief)
            if dead is None:
                if marks is not None and removed and not self.round.dry_run:
                    self._forget(partition, base, marks, removed)
                return False
            freed, count, expired = dead.bytes, dead.records, dead.expired
        elif overdue:
            freed, count, expired = 0, 0, 0
        else:
            enough = 2 * self.store.context.tuning.rewrite_bytes_min
            many = 2 * total(removed) >= piece.records and piece.bytes >= enough
            if not many and not self.inventory.is_worth_it(partition, base, salt, self.round.now_us):
                return False
            freed, count, expired = piece.bytes // 2, 0, 0
        if self.round.dry_run:
            self._note_rewrite(entry, piece, max(0, piece.bytes - freed), count, expired)
            return True
        if self.store.files.free_bytes(self.store.path) < piece.bytes - freed + ROOM_BYTES:
            raise DiskFullError("there is no room to rewrite it")
        state = self.inventory.state(partition)
        if state is not None and state.base == base:
            # The newest one is compared with the state by every process.
            self.store.evict_idle([partition])
            self.store.inside(partition, partition.begin_successor, self.round.timeout)
            yield
        made = yield from rewrite(self.store, partition, base, self.round.now_us, removed, timeout=self.round.timeout)
        if made is None:
            return False
        if marks is not None:
            # Also where it had no marks: readers that have the old version open learn of the new one.
            marks.note_rewrite(Rewrite(base, made.end, made.rewrites, self.round.now_us), removed)
        if overdue and not made.records:
            # Its bounds said otherwise: records that are not there any more.
            self.inventory.rest(partition, made.salt, 2 * self.round.now_us - self.round.overdue_us)
        self._note_rewrite(entry, piece, made.bytes_after, made.records, made.expired)
        return True

    def _note_again(
        self, partition: Partition, base: int, marks: Marks, marked: Sequence[Range], *, thorough: bool
    ) -> Sequence[Range]:
        """Repeat the note of a rewrite whose process died before it; return the marks of the segment that are left.

        With `thorough`, marks without a record are forgotten as well: of one that a transaction deleted once more, or
        of one that had expired and was deleted while its segment was rewritten.
        """
        reader = self.store.reader(partition)
        try:
            found = reader.version(base)
            known = marks.follow().table.rewrite_of(base)
            if found is None or not found[0]:
                return marked
            is_noted = known is not None and known.base == base and known.rewrites >= found[0]
            if is_noted and not thorough:
                return marked
            gone = without(marked, reader.present(marked))
            if is_noted and not gone:
                return marked
        finally:
            reader.close()
        marks.note_rewrite(Rewrite(base, found[1], found[0], 0 if known is None else known.moment_us), gone)
        return without(marked, gone)

    def _forget(self, partition: Partition, base: int, marks: Marks, marked: Sequence[Range]) -> None:
        """Forget marks of an intact segment without a record to take out: a repair gave up the marked records."""
        reader = self.store.reader(partition)
        try:
            found = reader.version(base)
        finally:
            reader.close()
        if found is not None:
            known = marks.follow().table.rewrite_of(base)
            marks.note_rewrite(Rewrite(base, found[1], found[0], 0 if known is None else known.moment_us), marked)

    def _active_index(self, partition: Partition, base: int) -> Index | None:
        reader = self.store.reader(partition)
        try:
            return reader.active_index(base)
        finally:
            reader.close()

    def _note_rewrite(
        self, entry: TopicEntry, piece: SegmentSpan, size: int, records: int = 0, expired: int = 0, why: str = ""
    ) -> None:
        if self.round.full:
            deleted = records - expired
            verbs = [(expired, "had expired"), (deleted, "was deleted" if deleted == 1 else "were deleted")]
            said = [f"{count:,} {verb}" for count, verb in verbs if count]
            if said:
                said[0] = said[0].replace(" ", f" of its {piece.records:,} records ", 1)
            why = why or " and ".join(said)
            last = piece.stop - 1
            self.rewritten.append(
                RewriteNote(
                    entry.name, piece.partition, piece.first, last, piece.bytes, size, records, expired, deleted, why
                )
            )
