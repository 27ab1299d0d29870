"""The marks of a topic: a state topic with the removed offsets of each of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

from tailrace.disk import CATALOG_END_WORD
from tailrace.disk.marks import (
    NO_MARKS,
    SNAPSHOT_RANGES_MAX,
    MarkTable,
    Rewrite,
    pack_remove,
    pack_rewritten,
)
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TopicNotFoundError
from tailrace.names import marked_topic, marks_topic
from tailrace.ranges import normalized, total, without
from tailrace.state_topic import NewRecords, StateTopic, TopicState, find_state_topic, open_state_topic

if TYPE_CHECKING:
    from tailrace.disk import Partition, TopicEntry, Write
    from tailrace.disk.columns import Columns
    from tailrace.engine.engine import Engine
    from tailrace.ranges import Range


class MarkState(TopicState):
    """The marks of one partition; `table` is replaced by every change, so a reader may keep it."""

    def __init__(self, start: Callable[[], int], table: MarkTable = NO_MARKS) -> None:
        super().__init__()
        # Returns where the partition begins: what is below needs no marks.
        self.start = start
        self.table = table

    @property
    def entries(self) -> int:
        """The number of records of a snapshot."""
        return 1 + len(self.table) // SNAPSHOT_RANGES_MAX

    def take(self, columns: Columns, first: int, stop: int) -> None:
        """Apply some records of a frame."""
        self.table = self.table.applied(columns.values(first, stop), columns.times_list(first, stop))

    def snapshot(self, alive: Container[int]) -> NewRecords:
        """Return the marks that are not below the start of the partition."""
        kept = self.table.between(self.start(), max(self.table.end, self.start()))
        return NewRecords(kept.snapshot())

    def copy(self) -> MarkState:
        """Return a copy that does not change with this state."""
        made = MarkState(self.start, self.table)
        made.offset = self.offset
        return made


class Marks(StateTopic[MarkState]):
    """The marks of one partition of a topic as this process knows them; any thread may use them."""

    def __init__(self, engine: Engine, entry: TopicEntry, index: int = 0) -> None:
        topic = engine.store.refresh().by_id.get(marked_topic(entry.name) or 0)
        if topic is None:
            raise TopicNotFoundError("The topic was dropped.")
        # The partition whose offsets are marked.
        self.marked = engine.partition(topic, index)
        super().__init__(engine, entry, index)

    def empty(self) -> MarkState:
        """Return the state without marks."""
        marked = self.marked
        return MarkState(lambda: marked.start)

    @property
    def records_max(self) -> int:
        """The tuned number of records that the marks may have."""
        return self.engine.tuning.mark_records_max

    def left(self, state: MarkState, ranges: Sequence[Range]) -> Sequence[Range]:
        """Return which of these offsets are not removed: no mark, not below the start, and there is such a record.

        A mark alone does not tell: the rewrite of a segment takes it away with the record.
        """
        start = self.marked.start
        unmarked = without(state.table.unmarked(ranges), [(0, start)])
        reader = self.engine.store.reader(self.marked)
        try:
            # A rewritten segment is looked through record by record.
            return normalized(reader.present(unmarked))  # rule: removed without a mark
        finally:
            reader.close()

    def remove(self, ranges: Sequence[Range], end: int) -> int:
        """Mark offsets below the end of the partition, which are on disk; return how many were not removed yet."""
        count = 0

        def make(state: MarkState) -> NewRecords | None:
            nonlocal count
            left = self.left(state, ranges)
            count = total(left)
            # rule: published marks only
            return NewRecords([pack_remove(end, left)]) if left else None

        self.append_made(make, durable=True)  # rule: marks synced before the answer
        return count

    def write_removal(
        self, ranges: Sequence[Range], end: int, check: Callable[[MarkState], None] | None = None
    ) -> Write:
        """Return the same as one part of a transaction; a check may refuse it under the lock of the marks."""
        return self.write_records(NewRecords([pack_remove(end, ranges)]), [check])

    def note_rewrite(self, segment: Rewrite, gone: Sequence[Range]) -> None:
        """Forget the marks of a segment whose newest version, which is on disk, lacks the offsets in `gone`.

        Marks that were made after the rewrite had read them stay, and so do those of records that it kept.
        """

        def make(state: MarkState) -> NewRecords | None:
            # rule: marks that stay after a rewrite
            stays = without(state.table.within(segment.base, segment.stop), gone)
            return NewRecords([pack_rewritten(segment, stays)])

        self.append_made(make, durable=True)


def find_marks(engine: Engine, topic_id: int, index: int) -> Marks | None:
    """Return the marks of a partition; None if no record of its topic was ever removed."""
    return find_state_topic(engine, Marks, marks_topic(topic_id), index)


def open_marks(engine: Engine, topic_id: int, index: int) -> Marks:
    """Return the marks of a partition; those of its topic are created if there are none."""
    return open_state_topic(engine, Marks, marks_topic(topic_id), index, beside=topic_id)


def settle(engine: Engine, topic: str, partition: Partition, ranges: Sequence[Range]) -> int:
    """Bring the records that are to be removed to disk, and return the end of their partition.

    Otherwise a power cut could give a marked offset to a new record, which the mark would hide. The caller holds no
    lock, neither of this partition nor of the marks.
    """
    stop, end = ranges[-1][1], partition.end
    if stop > end:  # rule: offsets above the end refused
        raise OffsetOutOfRangeError(
            f"There is no record {max(end, ranges[-1][0])} in {topic}[{partition.index}] to delete: it ends at {end}.",
            earliest=partition.start,
            latest=end,
            hint="Nothing was deleted; name offsets of records that were appended.",
        )
    if stop > partition.safe:
        store = engine.store
        store.evict_idle([partition])
        engine.write(lambda: store.inside(partition, partition.settle))  # rule: settle before the mark
    return end


class MarksOfReader:
    """The marks of one partition for one reader, which compares one word each time it looks."""

    __slots__ = ("catalog_end", "engine", "index", "marks", "topic", "topic_id")

    def __init__(self, engine: Engine, topic: str, topic_id: int, index: int) -> None:
        self.engine = engine
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.marks: Marks | None = None
        self.catalog_end = -1

    def look(self) -> MarkTable:
        """Return the current marks; raise CorruptionError if they cannot be read, so that nothing is shown."""
        try:
            if self.marks is None:
                # The first removal creates the marks, and moves the end of the catalog.
                end = self.engine.store.tails.words[CATALOG_END_WORD]
                if end == self.catalog_end:  # rule: catalog looked at while there are no marks
                    return NO_MARKS
                self.marks = find_marks(self.engine, self.topic_id, self.index)
                self.catalog_end = end
                if self.marks is None:
                    if self.topic_id not in self.engine.store.catalog.by_id:
                        raise TopicNotFoundError(f"The topic {self.topic!r} was dropped.", topic=self.topic)
                    return NO_MARKS
            return self.marks.follow().table
        except CorruptionError as error:
            raise CorruptionError(
                f"It is not known which records of {self.topic}[{self.index}] are deleted: {error.message}",
                topic=self.topic,
                partition=self.index,
                path=error.path,
                hint="No record is shown until its marks can be read; run: tailrace repair",
            ) from error
