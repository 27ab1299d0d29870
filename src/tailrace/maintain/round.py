"""Round: the store, the moment and the options of one run of the vacuum."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.disk.marks import NO_MARKS
from tailrace.disk.removal_ages import STEP_US
from tailrace.errors import CorruptionError, LockedError, StorageError, TopicNotFoundError
from tailrace.maintain.segments import inventory_of, rule_of
from tailrace.names import is_internal

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.marks import MarkTable
    from tailrace.disk.store import Store
    from tailrace.maintain.retention import Rule
    from tailrace.marks import Marks

# Errors that concern one partition only: the vacuum continues with the others.
PARTITION_ERRORS = (CorruptionError, LockedError, StorageError, TopicNotFoundError)

# Returns the marks of a partition; None if no record of its topic was ever deleted.
Marking = Callable[["TopicEntry", int], "Marks | None"]


class Round:
    """What every part of a run works with: with `full` all topics, else only those in which anything can be due."""

    def __init__(
        self,
        store: Store,
        marking: Marking,
        *,
        full: bool = False,
        dry_run: bool = False,
        timeout: float | None = None,
        only: int | None = None,
    ) -> None:
        self.store = store
        self.marking = marking
        self.full = full
        self.dry_run = dry_run
        # How long it waits for one partition; None: as long as the store does.
        self.timeout = timeout
        # The id of the only topic that it examines; None for all of them.
        self.only = only
        self.inventory = inventory_of(store)
        self.now_us = store.files.now_us()
        # What was removed, or expired, before this moment goes in the background too, however little it is.
        self.overdue_us = self.now_us - round(store.context.tuning.removal_seconds_max * 1e6)

    def topics(self) -> list[tuple[TopicEntry, Rule]]:
        """Return the topics to examine, and the rule of each."""
        if not self.full:
            return self.inventory.limited
        entries = [entry for entry in list(self.store.catalog.by_id.values()) if not is_internal(entry.name)]
        if self.only is not None:
            entries = [entry for entry in entries if entry.id == self.only]
        return [(entry, rule_of(entry)) for entry in sorted(entries, key=lambda entry: entry.name)]

    def is_overdue(self, marks: MarkTable, first: int, stop: int, expiry_low: int) -> bool:
        """Return whether a segment holds a record that was removed, or expired, too long ago.

        `expiry_low` is when its first record expires, in seconds rounded down.
        """
        if expiry_low and (expiry_low + 1) * 1_000_000 <= self.overdue_us:
            return True
        since = marks.marked_since(first, stop)
        # Removals within a step have the time of the first of them.
        return since is not None and since + STEP_US <= self.overdue_us

    def table(self, entry: TopicEntry, index: int) -> MarkTable:
        """Return the published marks of a partition; none if they cannot be read, so that nothing is taken out."""
        try:
            marks = self.marking(entry, index)
            return NO_MARKS if marks is None else marks.follow().table
        except PARTITION_ERRORS:
            return NO_MARKS
