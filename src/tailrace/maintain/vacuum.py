"""Vacuum: removes the segments that retention releases, in short steps, and reports why the others are kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from tailrace.disk.admin import Admin, Cut
from tailrace.disk.failures import by_system
from tailrace.disk.marks import NO_MARKS, Rewrite, total, without
from tailrace.disk.rewrite import DEAD_BYTES_MIN, find_dead, finish_interrupted, remove_leftovers, rewrite
from tailrace.disk.segment import HEADER_BYTES
from tailrace.disk.tails import HAS_SEGMENT
from tailrace.errors import (
    CorruptionError,
    DiskFullError,
    LockedError,
    MissingExtraError,
    StorageError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace.maintain.retention import Cursors, Rule, SegmentSpan, Verdict, Verdicts, plan, review, should_close
from tailrace.maintain.segments import inventory_of, rule_of
from tailrace.marks import find_marks
from tailrace.names import group_topic, is_internal
from tailrace.types import RewriteNote, SegmentNote, VacuumReport

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.marks import MarkTable
    from tailrace.disk.partition import Partition
    from tailrace.disk.segment import Index
    from tailrace.disk.store import Store
    from tailrace.engine.engine import Engine
    from tailrace.marks import Marks

# How many removals are recorded in the catalog together.
CUTS_MAX = 64
# How long a background round waits for one partition: a stopped writer there must not delay the others.
PARTITION_TIMEOUT_SECONDS = 0.5
# How long a vacuum by hand releases its lock between two segments that it rewrites.
TURN_SECONDS = 0.002
# What must be free beside what a rewrite writes: others write meanwhile.
ROOM_BYTES = 1 << 20
# Errors that concern one partition only: the vacuum continues with the others.
PARTITION_ERRORS = (CorruptionError, LockedError, StorageError, TopicNotFoundError)

TRIMMED = "all of its records were trimmed"
NO_ROOM = "all of its records were trimmed; there is no room to begin the segment that follows it"

Reading = Callable[["TopicEntry"], Cursors]
# Returns the marks of a partition; None if no record of its topic was ever deleted.
Marking = Callable[["TopicEntry", int], "Marks | None"]


def vacuum(engine: Engine, *, dry_run: bool = False) -> VacuumReport:
    """Remove every segment that is due in any topic, and return a report on all segments."""
    began = engine.files.monotonic()
    run = Vacuum(engine.store, partial(_reading, engine), partial(_marks, engine), full=True, dry_run=dry_run)
    if dry_run:
        for _ in run.steps():
            continue
    else:
        _hold_through(engine, run.steps())
    return VacuumReport(
        sum(note.bytes for note in run.removed),
        run.records,
        len(run.removed),
        tuple(run.removed),
        run.kept,
        dry_run,
        engine.files.monotonic() - began,
        tuple(run.rewritten),
    )


def rewrite_topic(engine: Engine, entry: TopicEntry) -> list[RewriteNote]:
    """Take all deleted and expired records of one topic out of its segments; return a note on each that was tried."""
    run = Vacuum(engine.store, partial(_reading, engine), partial(_marks, engine), full=True, only=entry.id)
    _hold_through(engine, run.rewriting())
    return run.rewritten


def _hold_through(engine: Engine, pending: Generator[bool | None, None, None]) -> None:
    """Run steps under the vacuum lock."""
    held: list[int] = []
    over = object()
    try:
        while True:
            if not engine.worker.hold(engine.timeout, held):
                raise engine.worker.held_by()
            while (step := engine.write(lambda: next(pending, over))) is None:
                continue
            if step is over:
                break
            # Between two segments that are rewritten, a backup that waits for the lock gets its turn.
            engine.worker.let_go(held)
            held.clear()
            engine.files.sleep(TURN_SECONDS)
    finally:
        # An unfinished rewrite is removed before another process can get the lock.
        pending.close()
        engine.worker.let_go(held)


def steps(engine: Engine) -> Generator[bool | None, None, None]:
    """Return the steps of a background round: it examines only topics with limits, and makes no report."""
    made = Vacuum(engine.store, partial(_reading, engine), partial(_marks, engine), timeout=PARTITION_TIMEOUT_SECONDS)
    return made.steps()


def is_wanted(engine: Engine) -> bool:
    """Return whether a round could find anything to do; costs next to nothing while the catalog does not change."""
    store = engine.live
    return store is not None and inventory_of(store).follow()


def _reading(engine: Engine, entry: TopicEntry) -> Cursors:
    from tailrace.groups.admin import reading_groups

    return reading_groups(engine, entry)


def _marks(engine: Engine, entry: TopicEntry, index: int) -> Marks | None:
    return find_marks(engine, entry.id, index)


class Notes(Sequence[SegmentNote]):
    """Notes on segments; those on kept segments, which may be very many, are made when they are accessed."""

    def __init__(self) -> None:
        # For each part the topic, its verdicts and the index of the first one to include; then the notes before each
        # part.
        self.parts: list[tuple[str, Sequence[Verdict], int]] = []
        self.before = [0]

    def add_rest(self, topic: str, verdicts: Verdicts) -> None:
        """Add the verdicts on the segments that are kept in a partition."""
        self._add(topic, verdicts, verdicts.stays)

    def add(self, topic: str, verdicts: Iterable[Verdict]) -> None:
        """Add single verdicts."""
        self._add(topic, [*verdicts], 0)

    def _add(self, topic: str, verdicts: Sequence[Verdict], first: int) -> None:
        if first < len(verdicts):
            self.parts.append((topic, verdicts, first))
            self.before.append(self.before[-1] + len(verdicts) - first)

    def __len__(self) -> int:
        return self.before[-1]

    @overload
    def __getitem__(self, at: int) -> SegmentNote: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[SegmentNote, ...]: ...

    def __getitem__(self, at: int | slice) -> SegmentNote | tuple[SegmentNote, ...]:
        if isinstance(at, slice):
            return tuple(self[each] for each in range(*at.indices(len(self))))
        at = range(len(self))[at]
        part = bisect_right(self.before, at) - 1
        topic, verdicts, first = self.parts[part]
        return _note(topic, verdicts[first + at - self.before[part]])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled as a tuple of notes: the verdicts hold the facts of every segment.
        return tuple, (tuple(self),)


class Vacuum:
    """One run over a store: with `full` over every topic and with notes, else over topics with limits only.

    `steps` yields after each short step, so that the thread that runs it can stop in between; it yields True where the
    vacuum lock may be released. A run in the background rewrites one segment, and requests another run for the rest.
    """

    def __init__(
        self,
        store: Store,
        reading: Reading,
        marking: Marking = lambda entry, index: None,
        *,
        full: bool = False,
        dry_run: bool = False,
        timeout: float | None = None,
        only: int | None = None,
    ) -> None:
        # The id of the only topic that it looks at; None for all of them.
        self.only = only
        self.store = store
        self.admin = Admin(store)
        self.reading = reading
        self.marking = marking
        self.full = full
        self.dry_run = dry_run
        self.timeout = timeout
        self.inventory = inventory_of(store)
        self.now_us = store.files.now_us()
        self.removed: list[SegmentNote] = []
        self.kept = Notes()
        self.records = 0
        # The reason why the partition that was swept last keeps files; empty if it keeps none.
        self.trouble = ""
        # The removals that are not recorded yet; they are recorded CUTS_MAX at a time.
        self.cuts: list[tuple[Cut, list[Verdict]]] = []
        # By id: topics with a due segment for whose footer there was no room. They are judged once more at the end,
        # after other segments have gone, and what stays of them is noted then; None at that time.
        self.waiting: dict[int, Rule] | None = {}
        self.rewritten: list[RewriteNote] = []
        # The slots of the partitions whose active segment a dry run would seal.
        self.closing: set[int] = set()
        # By topic and partition, the offset before which its segments are removed, so that they need no rewrite.
        self.going: dict[tuple[int, int], int] = {}

    def steps(self) -> Generator[bool | None, None, None]:
        """Yield after each step of the whole run."""
        inventory = self.inventory
        inventory.follow()
        if not self.dry_run:
            yield from self._finish_rewrites()
        for entry in inventory.unswept():
            yield from self._finish_trims(entry)
        for entry, rule in self._topics():
            yield from self._topic(entry, rule)
        yield from self._remove()
        waiting, self.waiting = self.waiting or {}, None
        for topic_id, rule in waiting.items():
            found = self.store.refresh().by_id.get(topic_id)
            if found is not None:
                yield from self._topic(found, rule)
        yield from self._remove()
        # Last, because it needs space that the removals may have freed.
        yield from self._rewrite()
        if not self.dry_run and self.admin.sweep_marks():
            yield None
        if self.full and not self.dry_run:
            self.admin.sweep_dropped()
            yield None
        if not self.dry_run and inventory.is_catalog_long():
            self.admin.sweep_catalog()
            yield None

    def rewriting(self) -> Generator[bool | None, None, None]:
        """Yield after each step of a run that removes no segment, and only takes records out of those there are."""
        yield from self._finish_rewrites()
        for entry, rule in self._topics():
            for index in range(len(entry.slots)):
                if self._close(entry, index, rule, {}):
                    yield None
        yield from self._rewrite()

    def _topics(self) -> list[tuple[TopicEntry, Rule]]:
        if not self.full:
            return self.inventory.limited
        entries = [entry for entry in list(self.store.catalog.by_id.values()) if not is_internal(entry.name)]
        if self.only is not None:
            entries = [entry for entry in entries if entry.id == self.only]
        return [(entry, rule_of(entry)) for entry in sorted(entries, key=lambda entry: entry.name)]

    # What a trim whose process died has left.

    def _finish_trims(self, entry: TopicEntry) -> Iterator[None]:
        unfinished = []
        for index, trim in entry.trims.items():
            partition = self.inventory.partition(entry, index)
            if partition is not None and not partition.failed and partition.start < trim:
                unfinished.append(Cut(entry, index, trim))
        if unfinished and not self.dry_run:
            self.admin.forget(unfinished)
            yield
        for index, trim in entry.trims.items():
            left = self.inventory.leftovers(entry, index, trim) if self.full else []
            if not self.dry_run:
                yield from self._sweep(entry, index)
            kept = [] if self.dry_run or not left else self.inventory.leftovers(entry, index, trim)
            self.kept.add(entry.name, [Verdict(piece, False, self.trouble) for piece in kept])
            bases = {piece.first for piece in kept}
            gone = [piece for piece in left if piece.first not in bases]
            self.removed += [_note(entry.name, Verdict(piece, True, TRIMMED)) for piece in gone]

    def _sweep(self, entry: TopicEntry, index: int) -> Iterator[None]:
        """Remove the files below the start of a partition."""
        partition = self.inventory.partition(entry, index)
        if partition is None or partition.failed:
            return
        start = partition.start
        self.trouble = NO_ROOM
        try:
            while self.admin.sweep(partition, self.timeout):
                yield
        except PARTITION_ERRORS as error:
            # No reader opens these files any more; the next round removes them.
            self.trouble = str(error)
            return
        state = self.inventory.state(partition)
        if state is None or not state.base < state.end <= start:
            self.inventory.swept[partition.slot] = start
        yield

    # One topic.

    def _topic(self, entry: TopicEntry, rule: Rule) -> Iterator[None]:
        cursors: Cursors = {}
        trouble = None
        if rule.needs_cursors:
            try:
                cursors = self.reading(entry)
            except PARTITION_ERRORS as error:
                trouble = f"what its groups have read cannot be found out: {error}"
        closed: set[int] = set()
        for index in range(len(entry.slots)):
            if self._close(entry, index, rule, cursors):
                closed.add(index)
                yield
        noted = self.full and not self._waits(entry)
        # A segment that was sealed just now has a footer; in a dry run its frames have to be read instead.
        inside = closed if self.dry_run else ()
        going: dict[int, list[Verdict]] = {}
        for verdict in self._verdicts(entry, rule, inside, trouble, cursors, noted=noted):
            going.setdefault(verdict.piece.partition, []).append(verdict)
        if going and rule.needs_cursors and not self.dry_run:
            trouble = self._sync_cursors(cursors)
            if trouble is not None:
                unsettled = [each._replace(why=trouble) for those in going.values() for each in those]
                self.kept.add(entry.name, unsettled if noted else [])
                return
            yield
        for index, those in going.items():
            self.cuts.append((Cut(entry, index, those[-1].piece.stop), those))
            self.going[entry.id, index] = those[-1].piece.stop
            if len(self.cuts) >= CUTS_MAX:
                yield from self._remove()

    def _verdicts(
        self,
        entry: TopicEntry,
        rule: Rule,
        inside: Container[int],
        trouble: str | None,
        cursors: Cursors,
        *,
        noted: bool,
    ) -> list[Verdict]:
        """Return the verdicts on the segments to remove from a topic; with `noted`, note those that are kept."""
        indexes = range(len(entry.slots))
        if not self.full and rule.retain_bytes is None:
            pieces = [self.inventory.pieces(entry, index, index in inside, trouble) for index in indexes]
            return plan(rule, pieces, cursors, self.now_us, brief=True)
        ranked = [self.inventory.ranked(entry, index, index in inside, trouble) for index in indexes]
        going = []
        for verdicts in review(rule, ranked, cursors, self.now_us):
            going += verdicts[: verdicts.stays]
            if noted:
                self.kept.add_rest(entry.name, verdicts)
        return going

    def _close(self, entry: TopicEntry, index: int, rule: Rule, cursors: Cursors) -> bool:
        """Seal the active segment of a partition if it keeps due records; a dry run only returns whether it would."""
        partition = self.inventory.partition(entry, index)
        state = None if partition is None else self.inventory.state(partition)
        if partition is None or state is None or not state.active or state.position == HEADER_BYTES or partition.failed:
            return False
        try:
            piece = self.inventory.active(partition, state)
            if piece is not None and rule.expires:
                low, high = self.inventory.expiry_of_active(partition, state, partly=self.full)
                piece = piece._replace(expiry_low=low, expiry_high=high)
        except by_system(OSError, TailraceError):
            return False
        if piece is None:
            return False
        # Deleted records of the active segment stay until it is full, or a vacuum is requested.
        marked = self.full and rule.mutable and self._table(entry, index).touches(state.base, state.end)
        if not marked and not should_close(rule, piece, cursors, self.now_us, partly=self.full):
            return False
        if self.dry_run:
            self.closing.add(partition.slot)
            return True
        try:
            return self._seal(partition, state.base)
        except DiskFullError:
            # What goes in this round may make room for a footer.
            if self.waiting is not None:
                self.waiting[entry.id] = rule
            return False

    def _waits(self, entry: TopicEntry) -> bool:
        """Return whether the topic is judged once more at the end."""
        return self.waiting is not None and entry.id in self.waiting

    def _seal(self, partition: Partition, base: int) -> bool:
        """Seal a segment if it is still active; its frames are read before the lock is taken.

        Raise DiskFullError if there is no room for its footer.
        """
        reader = self.store.reader(partition)
        try:
            index = reader.active_index(base)
        except by_system(OSError, TailraceError):
            return False
        finally:
            reader.close()

        def seal() -> None:
            if partition.state.base == base:
                if index is not None:
                    partition.adopt_index(index)
                partition.seal()

        self.store.evict_idle([partition])
        try:
            self.store.inside(partition, seal, self.timeout)
        except DiskFullError:
            raise
        except PARTITION_ERRORS:
            # The next round tries again.
            return False
        return True

    def _sync_cursors(self, cursors: Cursors) -> str | None:
        """Sync the cursors that allow the removal: after a power cut no cursor may be before the removed records."""
        for group in cursors:
            entry = self.store.catalog.by_name.get(group_topic(group))
            partition = None if entry is None else self.inventory.partition(entry, 0)
            if partition is not None and partition.safe < partition.end:
                self.store.evict_idle([partition])
                try:
                    self.store.inside(partition, partition.settle, self.timeout)
                except PARTITION_ERRORS as error:
                    return f"the cursors of group {group} cannot be brought to disk: {error}"
        return None

    # Removing.

    def _remove(self) -> Iterator[None]:
        """Record the removals in the catalog, then remove the files."""
        cuts, self.cuts = self.cuts, []
        failed: dict[int, TailraceError] = {}
        if cuts and not self.dry_run:
            failed = self.admin.forget([cut for cut, _ in cuts])
            yield
        for cut, verdicts in cuts:
            if not self.dry_run:
                yield from self._sweep(cut.entry, cut.partition)
            partition = self.inventory.partition(cut.entry, cut.partition)
            start = 0 if partition is None else partition.start
            error = None if partition is None else failed.get(partition.slot)
            for verdict in verdicts if self.full else ():
                if self.dry_run or start >= verdict.piece.stop:
                    self.removed.append(_note(cut.entry.name, verdict))
                    self.records += verdict.piece.records
                elif not self._waits(cut.entry):
                    why = str(error or "its topic was changed meanwhile, or a commit has to be written there first")
                    self.kept.add(cut.entry.name, [verdict._replace(why=why)])

    # Rewriting.

    def _finish_rewrites(self) -> Iterator[None]:
        """Remove what dead rewrites left, and finish what they began: no other process has the vacuum lock."""
        for entry, rule in self._topics():
            for index in range(len(entry.slots)) if self.full or rule.expires or rule.mutable else ():
                partition = self.inventory.partition(entry, index)
                if partition is not None and (self.full or not self.inventory.cleared.get(partition.slot)):
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
                    yield from finish_interrupted(self.store, partition, self.timeout)
                except PARTITION_ERRORS:
                    # Its count stays odd: no segment of it is rewritten before this succeeds.
                    continue
                yield

    def _rewrite(self) -> Iterator[bool | None]:
        """Rewrite segments that hold expired or deleted records."""
        for entry, rule in self._topics():
            for index in range(len(entry.slots)) if self.full or rule.expires or rule.mutable else ():
                for piece, salt in self._rewritable(entry, index, rule):
                    partition = self.inventory.partition(entry, index)
                    if partition is None:
                        break
                    try:
                        done = yield from self._rewrite_one(entry, partition, piece, salt)
                    except DiskFullError as error:
                        # Removals go on; rewrites need space themselves, and wait.
                        self._note_rewrite(entry, piece, piece.bytes, why=str(error))
                        return
                    except by_system(*PARTITION_ERRORS, MissingExtraError, OSError) as error:
                        self._note_rewrite(entry, piece, piece.bytes, why=f"it cannot be rewritten: {error}")
                        continue
                    if done and not self.dry_run:
                        if not self.full:
                            if self.store.context.on_seal is not None:
                                self.store.context.on_seal()
                            return
                        yield True

    def _table(self, entry: TopicEntry, index: int) -> MarkTable:
        """Return the published marks of a partition; none if they cannot be read, so that nothing is taken out."""
        try:
            marks = self.marking(entry, index)
            return NO_MARKS if marks is None else marks.follow().table
        except PARTITION_ERRORS:
            return NO_MARKS

    def _rewritable(self, entry: TopicEntry, index: int, rule: Rule) -> list[tuple[SegmentSpan, int]]:
        """Return the segments of a partition that may have to be rewritten, and the salt of each."""
        partition = self.inventory.partition(entry, index)
        state = None if partition is None else self.inventory.state(partition)
        if partition is None or state is None or partition.failed or not state.flags & HAS_SEGMENT:
            return []
        try:
            table = self._table(entry, index) if rule.mutable else NO_MARKS
            found = self.inventory.rewritable(partition, state, table)
            if partition.slot in self.closing and (piece := self.inventory.active(partition, state)) is not None:
                found.append((piece, state.salt))
        except by_system(OSError, TailraceError):
            return []
        return [each for each in found if each[0].stop > self.going.get((entry.id, index), 0)]

    def _rewrite_one(
        self, entry: TopicEntry, partition: Partition, piece: SegmentSpan, salt: int
    ) -> Generator[None, None, bool]:
        """Rewrite one segment if it is worth it; return whether it was rewritten."""
        base = piece.first
        marks = self.marking(entry, piece.partition)
        removed = [] if marks is None else marks.follow().table.within(base, piece.stop)
        if marks is not None and removed and not self.dry_run:
            # If this fails, as on a full disk, the version that is there may not be on disk, and its marks stay.
            yield from finish_interrupted(self.store, partition, self.timeout)  # rule: even count before the note
            removed = self._note_again(partition, base, marks, removed)
        if self.full:
            index = None if piece.sealed else self._active_index(partition, base)
            # Where there is room for a whole copy, one dead record is reason enough.
            brief = not self.dry_run and self.store.files.free_bytes(self.store.path) >= piece.bytes + ROOM_BYTES
            dead = find_dead(partition, base, self.now_us, removed, index=index, brief=brief)
            if dead is None:
                return False
            freed, count, expired = dead.bytes, dead.records, dead.expired
        else:
            many = 2 * total(removed) >= piece.records and piece.bytes >= 2 * DEAD_BYTES_MIN
            if not many and not self.inventory.is_worth_it(partition, base, salt, self.now_us):
                return False
            freed, count, expired = piece.bytes // 2, 0, 0
        if self.dry_run:
            self._note_rewrite(entry, piece, max(0, piece.bytes - freed), count, expired)
            return True
        if self.store.files.free_bytes(self.store.path) < piece.bytes - freed + ROOM_BYTES:
            raise DiskFullError("there is no room to rewrite it")
        state = self.inventory.state(partition)
        if state is not None and state.base == base:
            # The newest one is compared with the state by every process.
            self.store.evict_idle([partition])
            self.store.inside(partition, partition.begin_successor, self.timeout)
            yield
        made = yield from rewrite(self.store, partition, base, self.now_us, removed, timeout=self.timeout)
        if made is None:
            return False
        if marks is not None:
            # Also where it had no marks: readers that have the old version open learn of the new one.
            marks.note_rewrite(Rewrite(base, made.end, made.rewrites), removed)
        self._note_rewrite(entry, piece, made.bytes_after, made.records, made.expired)
        return True

    def _note_again(
        self, partition: Partition, base: int, marks: Marks, marked: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Repeat the note of a rewrite whose process died before it; return the marks of the segment that are left.

        A vacuum by hand also forgets marks without a record: of one that a transaction deleted once more, or of one
        that had expired and was deleted while its segment was rewritten.
        """
        reader = self.store.reader(partition)
        try:
            found = reader.version(base)
            known = marks.follow().table.rewrite_of(base)
            if found is None or not found[0]:
                return marked
            is_noted = known is not None and known.base == base and known.rewrites >= found[0]
            if is_noted and not self.full:
                return marked
            gone = without(marked, reader.present(marked))
            if is_noted and not gone:
                return marked
        finally:
            reader.close()
        marks.note_rewrite(Rewrite(base, found[1], found[0]), gone)
        return without(marked, gone)

    def _active_index(self, partition: Partition, base: int) -> Index | None:
        reader = self.store.reader(partition)
        try:
            return reader.active_index(base)
        finally:
            reader.close()

    def _note_rewrite(
        self, entry: TopicEntry, piece: SegmentSpan, size: int, records: int = 0, expired: int = 0, why: str = ""
    ) -> None:
        if self.full:
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


def _note(topic: str, verdict: Verdict) -> SegmentNote:
    piece = verdict.piece
    sealed = piece.sealed and not piece.closing
    return SegmentNote(topic, piece.partition, piece.first, piece.stop - 1, piece.bytes, sealed, verdict.why)
