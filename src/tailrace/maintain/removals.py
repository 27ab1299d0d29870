"""Removals: the segments at the beginning of a partition that retention releases, and notes on those it keeps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from tailrace.disk.admin import Admin, Cut
from tailrace.errors import DiskFullError, TailraceError
from tailrace.maintain.retention import Cursors, Rule, Verdict, Verdicts, plan, review
from tailrace.maintain.round import PARTITION_ERRORS
from tailrace.names import group_topic
from tailrace.types import SegmentNote

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.maintain.closing import Closing
    from tailrace.maintain.round import Round

# How many removals are recorded in the catalog together.
CUTS_MAX = 64

TRIMMED = "all of its records were trimmed"
NO_ROOM = "all of its records were trimmed; there is no room to begin the segment that follows it"

# Returns the cursors of the groups that read a topic.
Reading = Callable[["TopicEntry"], Cursors]


class Removals:
    """Removes segments during one round: what trims left, and what is due; with notes if the round is full."""

    def __init__(self, run: Round, closing: Closing, reading: Reading) -> None:
        self.round = run
        self.closing = closing
        self.reading = reading
        self.store = run.store
        self.inventory = run.inventory
        self.admin = Admin(run.store)
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
        # By topic and partition, the offset before which its segments are removed, so that they need no rewrite.
        self.going: dict[tuple[int, int], int] = {}

    def steps(self) -> Iterator[None]:
        """Yield after each step."""
        for entry in self.inventory.unswept():
            yield from self._finish_trims(entry)
        for entry, rule in self.round.topics():
            yield from self._topic(entry, rule)
        yield from self._remove()
        waiting, self.waiting = self.waiting or {}, None
        for topic_id, rule in waiting.items():
            found = self.store.refresh().by_id.get(topic_id)
            if found is not None:
                yield from self._topic(found, rule)
        yield from self._remove()

    # What a trim whose process died has left.

    def _finish_trims(self, entry: TopicEntry) -> Iterator[None]:
        unfinished = []
        for index, trim in entry.trims.items():
            partition = self.inventory.partition(entry, index)
            if partition is not None and not partition.failed and partition.start < trim:
                unfinished.append(Cut(entry, index, trim))
        if unfinished and not self.round.dry_run:
            self.admin.forget(unfinished)
            yield
        for index, trim in entry.trims.items():
            left = self.inventory.leftovers(entry, index, trim) if self.round.full else []
            if not self.round.dry_run:
                yield from self._sweep(entry, index)
            kept = [] if self.round.dry_run or not left else self.inventory.leftovers(entry, index, trim)
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
            while self.admin.sweep(partition, self.round.timeout):
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
        noted = self.round.full and not self._waits(entry)
        # A segment that was sealed just now has a footer; in a dry run its frames have to be read instead.
        inside = closed if self.round.dry_run else ()
        going: dict[int, list[Verdict]] = {}
        for verdict in self._verdicts(entry, rule, inside, trouble, cursors, noted=noted):
            going.setdefault(verdict.piece.partition, []).append(verdict)
        if going and rule.needs_cursors and not self.round.dry_run:
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
        if not self.round.full and rule.retain_bytes is None:
            pieces = [self.inventory.pieces(entry, index, index in inside, trouble) for index in indexes]
            return plan(rule, pieces, cursors, self.round.now_us, brief=True)
        ranked = [self.inventory.ranked(entry, index, index in inside, trouble) for index in indexes]
        going = []
        for verdicts in review(rule, ranked, cursors, self.round.now_us):
            going += verdicts[: verdicts.stays]
            if noted:
                self.kept.add_rest(entry.name, verdicts)
        return going

    def _close(self, entry: TopicEntry, index: int, rule: Rule, cursors: Cursors) -> bool:
        try:
            return self.closing.close(entry, index, rule, cursors)
        except DiskFullError:
            # What goes in this round may make room for a footer.
            if self.waiting is not None:
                self.waiting[entry.id] = rule
            return False

    def _waits(self, entry: TopicEntry) -> bool:
        """Return whether the topic is judged once more at the end."""
        return self.waiting is not None and entry.id in self.waiting

    def _sync_cursors(self, cursors: Cursors) -> str | None:
        """Sync the cursors that allow the removal: after a power cut no cursor may be before the removed records."""
        for group in cursors:
            entry = self.store.catalog.by_name.get(group_topic(group))
            partition = None if entry is None else self.inventory.partition(entry, 0)
            if partition is not None and partition.safe < partition.end:
                self.store.evict_idle([partition])
                try:
                    self.store.inside(partition, partition.settle, self.round.timeout)
                except PARTITION_ERRORS as error:
                    return f"the cursors of group {group} cannot be brought to disk: {error}"
        return None

    # Removing.

    def _remove(self) -> Iterator[None]:
        """Record the removals in the catalog, then remove the files."""
        cuts, self.cuts = self.cuts, []
        failed: dict[int, TailraceError] = {}
        if cuts and not self.round.dry_run:
            failed = self.admin.forget([cut for cut, _ in cuts])
            yield
        for cut, verdicts in cuts:
            if not self.round.dry_run:
                yield from self._sweep(cut.entry, cut.partition)
            partition = self.inventory.partition(cut.entry, cut.partition)
            start = 0 if partition is None else partition.start
            error = None if partition is None else failed.get(partition.slot)
            for verdict in verdicts if self.round.full else ():
                if self.round.dry_run or start >= verdict.piece.stop:
                    self.removed.append(_note(cut.entry.name, verdict))
                    self.records += verdict.piece.records
                elif not self._waits(cut.entry):
                    why = str(error or "its topic was changed meanwhile, or a commit has to be written there first")
                    self.kept.add(cut.entry.name, [verdict._replace(why=why)])


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


def _note(topic: str, verdict: Verdict) -> SegmentNote:
    piece = verdict.piece
    sealed = piece.sealed and not piece.closing
    return SegmentNote(topic, piece.partition, piece.first, piece.stop - 1, piece.bytes, sealed, verdict.why)
