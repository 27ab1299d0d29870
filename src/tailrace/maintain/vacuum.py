"""The vacuum: removes the segments that retention lets go, step by step, and says why the rest stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tailrace.disk.admin import Admin, Cut
from tailrace.disk.failures import by_system
from tailrace.disk.segment import HEADER_BYTES
from tailrace.errors import CorruptionError, LockedError, StorageError, TailraceError, TopicNotFoundError
from tailrace.maintain.retention import Cursors, Rule, Verdict, closes, plan
from tailrace.maintain.segments import inventory_of, rule_of
from tailrace.names import group_topic, is_internal
from tailrace.types import SegmentNote, VacuumReport

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.partition import Partition
    from tailrace.disk.store import Store
    from tailrace.engine.engine import Engine

# Removals that are recorded together.
CUTS_MAX = 64
# How long a round by itself waits for one partition: a stopped writer there must not hold up the others.
PATIENCE_SECONDS = 0.5
# What may befall one partition and is no reason to leave the others alone.
ORDINARY = (CorruptionError, LockedError, StorageError, TopicNotFoundError)

TRIMMED = "all of its records were trimmed"
NO_ROOM = "all of its records were trimmed; there is no room to begin the segment that follows it"

Reading = Callable[["TopicEntry"], Cursors]


def vacuum(engine: Engine, *, dry_run: bool = False) -> VacuumReport:
    """Remove whatever is due in every topic, now, and report on every segment."""
    began = engine.files.monotonic()
    run = Vacuum(engine.store, partial(_reading, engine), full=True, dry_run=dry_run)
    pending = run.steps()
    if dry_run:
        for _ in pending:
            continue
    else:
        held: list[int] = []
        try:
            if not engine.worker.hold(engine.timeout, held):
                raise engine.worker.held_by()
            while engine.write(lambda: next(pending, run)) is not run:
                continue
        finally:
            engine.worker.let_go(held)
    return VacuumReport(
        sum(note.bytes for note in run.removed),
        run.records,
        len(run.removed),
        tuple(run.removed),
        tuple(run.kept),
        dry_run,
        engine.files.monotonic() - began,
    )


def steps(engine: Engine) -> Iterator[None]:
    """A round of the worker: only what can be due is looked at, and nothing is noted."""
    return Vacuum(engine.store, partial(_reading, engine), timeout=PATIENCE_SECONDS).steps()


def is_wanted(engine: Engine) -> bool:
    """Whether a round could find anything to do; as good as free while nothing changes in the catalog."""
    store = engine.live
    return store is not None and inventory_of(store).follow()


def _reading(engine: Engine, entry: TopicEntry) -> Cursors:
    from tailrace.groups.admin import reading_groups

    return reading_groups(engine, entry)


class Vacuum:
    """One run over a store; with `full` over every topic and with notes, else over those in which something can be due.

    `steps` is cut into short ones, so that whoever runs it can stop in between.
    """

    def __init__(
        self, store: Store, reading: Reading, *, full: bool = False, dry_run: bool = False, timeout: float | None = None
    ) -> None:
        self.store = store
        self.admin = Admin(store)
        self.reading = reading
        self.full = full
        self.dry_run = dry_run
        self.timeout = timeout
        self.inventory = inventory_of(store)
        self.now_us = store.files.now_us()
        self.removed: list[SegmentNote] = []
        self.kept: list[SegmentNote] = []
        self.records = 0
        # Why the last partition that was swept keeps files, if it does.
        self.trouble = ""
        # What goes, until there is enough to be recorded together.
        self.cuts: list[tuple[Cut, list[Verdict]]] = []

    def steps(self) -> Iterator[None]:
        """All of it, step by step."""
        inventory = self.inventory
        inventory.follow()
        for entry in inventory.unswept():
            yield from self._finish_trims(entry)
        for entry, rule in self._topics():
            yield from self._topic(entry, rule)
        yield from self._remove()
        if self.full and not self.dry_run:
            self.admin.sweep_dropped()
            yield
        if not self.dry_run and inventory.is_catalog_long():
            self.admin.sweep_catalog()
            yield

    def _topics(self) -> list[tuple[TopicEntry, Rule]]:
        if not self.full:
            return self.inventory.limited
        entries = [entry for entry in list(self.store.catalog.by_id.values()) if not is_internal(entry.name)]
        return [(entry, rule_of(entry)) for entry in sorted(entries, key=lambda entry: entry.name)]

    # What a dead trim left.

    def _finish_trims(self, entry: TopicEntry) -> Iterator[None]:
        behind = []
        for index, trim in entry.trims.items():
            partition = self.inventory.partition(entry, index)
            if partition is not None and not partition.failed and partition.start < trim:
                behind.append(Cut(entry, index, trim))
        if behind and not self.dry_run:
            self.admin.forget(behind)
            yield
        for index, trim in entry.trims.items():
            left = self.inventory.leftovers(entry, index, trim) if self.full else []
            if not self.dry_run:
                yield from self._sweep(entry, index)
            kept = [] if self.dry_run or not left else self.inventory.leftovers(entry, index, trim)
            self.kept += [_note(entry, Verdict(piece, False, self.trouble)) for piece in kept]
            bases = {piece.first for piece in kept}
            self.removed += [_note(entry, Verdict(piece, True, TRIMMED)) for piece in left if piece.first not in bases]

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
        except ORDINARY as error:
            # The files stay where nobody reads them, until the next round.
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
        if rule.asks_groups:
            try:
                cursors = self.reading(entry)
            except ORDINARY as error:
                trouble = f"what its groups have read cannot be found out: {error}"
        closed: set[int] = set()
        for index in range(len(entry.slots)):
            if self._close(entry, index, rule, cursors):
                closed.add(index)
                yield
        # What was really closed has a footer by now; a dry run has to look into it.
        inside = closed if self.dry_run else ()
        pieces = [self.inventory.pieces(entry, index, index in inside, trouble) for index in range(len(entry.slots))]
        verdicts = plan(rule, pieces, cursors, self.now_us, brief=not self.full)
        self.kept += [_note(entry, verdict) for verdict in verdicts if not verdict.goes] if self.full else []
        going: dict[int, list[Verdict]] = {}
        for verdict in verdicts:
            if verdict.goes:
                going.setdefault(verdict.piece.partition, []).append(verdict)
        if going and rule.asks_groups and not self.dry_run:
            trouble = self._settle(cursors)
            if trouble is not None:
                self.kept += [_note(entry, each._replace(why=trouble)) for those in going.values() for each in those]
                return
            yield
        for index, those in going.items():
            self.cuts.append((Cut(entry, index, those[-1].piece.stop), those))
            if len(self.cuts) >= CUTS_MAX:
                yield from self._remove()

    def _close(self, entry: TopicEntry, index: int, rule: Rule, cursors: Cursors) -> bool:
        """Seal the active segment of a partition where it keeps due records; a dry run only says so."""
        partition = self.inventory.partition(entry, index)
        state = None if partition is None else self.inventory.state(partition)
        if partition is None or state is None or not state.active or state.position == HEADER_BYTES or partition.failed:
            return False
        try:
            piece = self.inventory.active(partition, state)
        except by_system():
            return False
        if piece is None or not closes(rule, piece, cursors, self.now_us):
            return False
        return self.dry_run or self._seal(partition, state.base)

    def _seal(self, partition: Partition, base: int) -> bool:
        """Seal a segment if it is still the active one; nobody waits while its frames are looked at."""
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
        except ORDINARY:
            # Without room for a footer it waits for the next round.
            return False
        return True

    def _settle(self, cursors: Cursors) -> str | None:
        """Bring the cursors to disk that let records go: after a power cut none may be behind what was removed."""
        for group in cursors:
            entry = self.store.catalog.by_name.get(group_topic(group))
            partition = None if entry is None else self.inventory.partition(entry, 0)
            if partition is not None and partition.safe < partition.end:
                self.store.evict_idle([partition])
                try:
                    self.store.inside(partition, partition.settle, self.timeout)
                except ORDINARY as error:
                    return f"the cursors of group {group} cannot be brought to disk: {error}"
        return None

    # Removing.

    def _remove(self) -> Iterator[None]:
        """Record what goes, then remove it."""
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
                    self.removed.append(_note(cut.entry, verdict))
                    self.records += verdict.piece.records
                else:
                    why = str(error or "its topic was changed meanwhile, or a commit has to be written there first")
                    self.kept.append(_note(cut.entry, verdict._replace(why=why)))


def _note(entry: TopicEntry, verdict: Verdict) -> SegmentNote:
    piece = verdict.piece
    sealed = piece.sealed and not piece.closing
    return SegmentNote(entry.name, piece.partition, piece.first, piece.stop - 1, piece.bytes, sealed, verdict.why)
