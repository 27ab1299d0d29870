"""Closing: seals the active segments that keep due records from being removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.disk.failures import by_system
from tailrace.disk.marks import NO_MARKS
from tailrace.disk.segment import HEADER_BYTES
from tailrace.errors import DiskFullError, TailraceError
from tailrace.maintain.retention import should_close
from tailrace.maintain.round import PARTITION_ERRORS

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.partition import Partition
    from tailrace.disk.tails import State
    from tailrace.maintain.retention import Cursors, Rule, SegmentSpan
    from tailrace.maintain.round import Round


class Closing:
    """Seals active segments during one round."""

    def __init__(self, run: Round) -> None:
        self.round = run
        # The slots of the partitions whose active segment a dry run would seal.
        self.slots: set[int] = set()

    def close(self, entry: TopicEntry, index: int, rule: Rule, cursors: Cursors) -> bool:
        """Seal the active segment of a partition if it keeps due records; a dry run only returns whether it would.

        Raise DiskFullError if there is no room for its footer.
        """
        inventory = self.round.inventory
        partition = inventory.partition(entry, index)
        state = None if partition is None else inventory.state(partition)
        if partition is None or state is None or not state.active or state.position == HEADER_BYTES or partition.failed:
            return False
        if not self._is_due(entry, partition, state, rule, cursors):
            return False
        if self.round.dry_run:
            self.slots.add(partition.slot)
            return True
        return self._seal(partition, state.base)

    def _is_due(self, entry: TopicEntry, partition: Partition, state: State, rule: Rule, cursors: Cursors) -> bool:
        run = self.round
        try:
            piece = self._examine(partition, state, rule)
        except by_system(OSError, TailraceError):
            return False
        if piece is None:
            return False
        marks = run.table(entry, partition.index) if rule.mutable else NO_MARKS
        # In the background, single records of the active segment stay until it is full or one of them is overdue.
        partly = run.full or run.is_overdue(marks, state.base, state.end, piece.expiry_low)
        if partly and marks.touches(state.base, state.end):
            return True
        return should_close(rule, piece, cursors, run.now_us, partly=partly)

    def _examine(self, partition: Partition, state: State, rule: Rule) -> SegmentSpan | None:
        run = self.round
        inventory = run.inventory
        piece = inventory.active(partition, state)
        if piece is not None and rule.expires:
            # No record expires before its segment is created.
            partly = run.full or (piece.created <= run.overdue_us and not inventory.is_known_fresh(partition, state))
            low, high = inventory.expiry_of_active(partition, state, partly=partly)
            if partly and not run.full:
                inventory.note_fresh(partition, state, low, run.now_us - run.overdue_us)
            piece = piece._replace(expiry_low=low, expiry_high=high)
        return piece

    def _seal(self, partition: Partition, base: int) -> bool:
        """Seal a segment if it is still active; its frames are read before the lock is taken."""
        store = self.round.store
        reader = store.reader(partition)
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

        store.evict_idle([partition])
        try:
            store.inside(partition, seal, self.round.timeout)
        except DiskFullError:
            raise
        except PARTITION_ERRORS:
            # The next round tries again.
            return False
        return True
