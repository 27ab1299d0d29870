"""Segments as retention sees them: what a store holds, remembered between two looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, proxy

from tailrace.disk.failures import by_system
from tailrace.disk.partition import segment_bases
from tailrace.disk.segment import segment_name
from tailrace.disk.tails import HAS_SEGMENT
from tailrace.engine.engine import topic_settings
from tailrace.errors import TailraceError, TopicNotFoundError
from tailrace.maintain.retention import LAST_US, Rule, SegmentSpan
from tailrace.names import is_internal

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.partition import Partition
    from tailrace.disk.store import Store
    from tailrace.disk.tails import State


class ActiveSegment(NamedTuple):
    """An active segment: its base, when it was created, and the time of its first frame."""

    base: int
    created: int
    oldest: int


class Inventory:
    """What a process knows of the segments of a store, so that a look with nothing new reads no file."""

    def __init__(self, store: Store) -> None:
        # Weak, or what is remembered of a store would keep it for ever.
        self.store: Store = proxy(store)
        # The catalog up to which the next two hold.
        self.offset = -1
        self.limited: list[tuple[TopicEntry, Rule]] = []
        self.trimmed: list[TopicEntry] = []
        # By slot, the start below which no file is left.
        self.swept: dict[int, int] = {}
        # By slot: the newest segment and the start for which the list of segments holds, and that list.
        self.listed: dict[int, tuple[int, int, list[int]]] = {}
        self.sealed: dict[int, dict[int, SegmentSpan]] = {}
        self.opened: dict[int, ActiveSegment] = {}

    # Topics.

    def follow(self) -> bool:
        """Follow the catalog; whether there is anything that retention could have to do with."""
        catalog = self.store.refresh()
        if self.offset != catalog.offset:
            offset, entries = catalog.offset, list(catalog.by_id.values())
            self.limited = [(entry, rule_of(entry)) for entry in entries if _is_limited(entry)]
            self.trimmed = [entry for entry in entries if entry.trims]
            for known in (self.swept, self.listed, self.sealed, self.opened):
                for slot in list(known):
                    if slot not in catalog.by_slot:
                        known.pop(slot, None)
            self.offset = offset
        return bool(self.limited or self.unswept() or self.is_catalog_long())

    def unswept(self) -> list[TopicEntry]:
        """Topics with a recorded removal of which this process has not seen the end."""
        swept = self.swept
        return [
            entry
            for entry in self.trimmed
            if any(swept.get(entry.slots[index], 0) < trim for index, trim in entry.trims.items())
        ]

    def is_catalog_long(self) -> bool:
        """Whether the catalog has segments before its newest snapshot."""
        store = self.store
        block = store.tails.read_block(store.catalog_partition.slot)
        return block is not None and store.catalog_partition.start < block[1].base < block[1].end

    # Partitions.

    def partition(self, entry: TopicEntry, index: int) -> Partition | None:
        """A partition, None when its topic was dropped."""
        try:
            return self.store.partition(entry.slots[index])
        except TopicNotFoundError:
            return None

    def state(self, partition: Partition) -> State | None:
        """The newest state block; a writer may be storing one right now, so a torn one is read again."""
        for _ in range(3):
            block = self.store.tails.read_block(partition.slot)
            if block is not None:
                return block[1] if block[2] == partition.incarnation else None
        return None

    # Segments.

    def pieces(self, entry: TopicEntry, index: int, inside: bool, trouble: str | None) -> Iterator[SegmentSpan]:
        """The segments of a partition that hold records, the oldest first, each read when it is asked for.

        With `inside` the active one is looked into, and shown as it will be once it is closed. `trouble` is that of
        all of them.
        """
        partition = self.partition(entry, index)
        state = None if partition is None else self.state(partition)
        if partition is None or state is None or not state.flags & HAS_SEGMENT:
            return
        start = partition.start
        if partition.failed:
            trouble = "the partition is read-only: it is damaged, or a sync failed there"
        known = self.sealed.setdefault(partition.slot, {})
        try:
            bases = self._bases(partition, state, start, known)
        except by_system() as error:
            bases, trouble = [start], f"its directory cannot be read: {error.strerror}"
        for base, stop in pairwise([*bases, state.end]):
            if stop <= start or base == stop:
                continue
            piece = known.get(base) or self._look(partition, state, base, stop, inside)
            if piece is None:
                continue
            if trouble is not None:
                piece = piece._replace(trouble=trouble)
            first = max(base, start)
            yield piece._replace(first=first, records=piece.records if first == base else piece.stop - first)

    def leftovers(self, entry: TopicEntry, index: int, trim: int) -> list[SegmentSpan]:
        """The segments of a partition that hold trimmed records alone, and whose files are still there."""
        partition = self.partition(entry, index)
        state = None if partition is None else self.state(partition)
        if partition is None or state is None or partition.failed:
            return []
        files, start = self.store.files, max(partition.start, trim)
        found = []
        try:
            for base, stop in pairwise([*segment_bases(files, partition.path, state), state.end]):
                stat = files.stat(f"{partition.path}/{segment_name(base)}")
                if base < stop <= start and stat is not None:
                    sealed = base < state.base or not state.active
                    found.append(SegmentSpan(index, base, stop, stat.size, stop - base, 0, LAST_US, sealed))
        except by_system():
            # They cannot be looked at now, and are found by the next round.
            return []
        return found

    def _look(self, partition: Partition, state: State, base: int, stop: int, inside: bool) -> SegmentSpan | None:
        """One segment; sealed ones are remembered, and one that cannot be read is in trouble."""
        active = base == state.base and state.active
        try:
            if active and not inside:
                piece = self.active(partition, state)
                if piece is not None:
                    return piece
            piece = self._look_inside(partition, base, stop, inside and active)
        except by_system(OSError, TailraceError) as error:
            return SegmentSpan(
                partition.index, base, stop, 0, stop - base, 0, LAST_US, trouble=f"it cannot be read: {error}"
            )
        if piece is not None and piece.trouble is None and not active:
            self.sealed[partition.slot][base] = piece
        return piece

    def _bases(self, partition: Partition, state: State, start: int, known: dict[int, SegmentSpan]) -> Sequence[int]:
        """The segments up to the newest that the state names; a newer name is of one that is being created."""
        newest, first, bases = self.listed.get(partition.slot, (-1, -1, []))
        if (newest, first) != (state.base, start):
            bases = segment_bases(self.store.files, partition.path, state)
            for base in known.keys() - set(bases):
                del known[base]
            self.listed[partition.slot] = (state.base, start, bases)
        return bases

    def active(self, partition: Partition, state: State) -> SegmentSpan | None:
        """The active segment, as far as that goes without reading it."""
        opened = self.opened.get(partition.slot)
        if opened is None or opened.base != state.base:
            reader = self.store.reader(partition)
            try:
                info = reader.info(state.base, state.end, walked=False)
                oldest = reader.first_time()
            finally:
                reader.close()
            if info is None or oldest is None:
                return None
            opened = self.opened[partition.slot] = ActiveSegment(state.base, info.created, oldest)
        # Zeros ahead of the last frame take up space as well.
        stat = self.store.files.stat(f"{partition.path}/{segment_name(state.base)}")
        size = state.position if stat is None else stat.size
        records = state.end - state.base
        return SegmentSpan(
            partition.index, state.base, state.end, size, records, opened.oldest, LAST_US, False, opened.created
        )  # fmt: skip

    def _look_inside(self, partition: Partition, base: int, stop: int, active: bool) -> SegmentSpan | None:
        reader = self.store.reader(partition)
        try:
            info = reader.info(base, stop)
        finally:
            reader.close()
        if info is None:
            return None
        trouble = None
        if not info.sealed and not active:
            trouble = "it is damaged; run: tailrace verify"
        elif info.end != stop:
            trouble = f"it is damaged: it ends at {info.end}, and the next begins at {stop}; run: tailrace verify"
        return SegmentSpan(
            partition.index, base, stop, info.bytes, info.records, info.min_time, info.max_time, True, info.created,
            closing=active, trouble=trouble,
        )  # fmt: skip


def rule_of(entry: TopicEntry) -> Rule:
    """What may go of a topic; the settings of one without a limit are not even parsed."""
    return Rule.of(topic_settings(entry)) if _is_limited(entry) else Rule()


def _is_limited(entry: TopicEntry) -> bool:
    """Whether anything can be due in a topic; internal topics have no limits."""
    settings = entry.settings
    limited = settings.get("retain", "forever") != "forever" or settings.get("retain_bytes") is not None
    return limited and not is_internal(entry.name)


_inventories: WeakKeyDictionary[Store, Inventory] = WeakKeyDictionary()


def inventory_of(store: Store) -> Inventory:
    """The inventory of a store, the same at every call."""
    inventory = _inventories.get(store)
    if inventory is None:
        inventory = _inventories.setdefault(store, Inventory(store))
    return inventory
