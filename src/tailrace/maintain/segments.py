"""Inventory: the segments of a store as retention needs them, cached between two rounds."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, overload
from weakref import WeakKeyDictionary, proxy

from tailrace.disk.dead_records import half_expired_us
from tailrace.disk.failures import by_system
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import read_header
from tailrace.disk.layout import is_expired
from tailrace.disk.partition import segment_bases
from tailrace.disk.segment import read_footer, segment_name
from tailrace.disk.segment_facts import UNSETTLED, Key, SegmentFacts
from tailrace.disk.tails import HAS_SEGMENT
from tailrace.engine.engine import topic_settings
from tailrace.errors import TailraceError, TopicNotFoundError, VersionError
from tailrace.maintain.retention import LAST_US, Ranked, Rule, SegmentSpan
from tailrace.names import is_internal, marked_topic

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.marks import MarkTable
    from tailrace.disk.partition import Partition
    from tailrace.disk.store import Store
    from tailrace.disk.tails import State


# For how many segments of a partition it is remembered when a rewrite is worth it.
WORTH_MAX = 4_096


class ActiveSegment(NamedTuple):
    """An active segment: its base, when it was created, and the time of its first frame."""

    base: int
    created: int
    oldest: int


class SealedSpans(Sequence[SegmentSpan]):
    """The segments of a partition: those with known facts, each made when it is accessed, then the others."""

    def __init__(self, partition: int, facts: SegmentFacts, start: int, others: list[SegmentSpan]) -> None:
        self.partition = partition
        self.facts = facts
        self.start = start
        self.others = others

    def __len__(self) -> int:
        return len(self.facts) + len(self.others)

    @overload
    def __getitem__(self, at: int) -> SegmentSpan: ...

    @overload
    def __getitem__(self, at: slice) -> list[SegmentSpan]: ...

    def __getitem__(self, at: int | slice) -> SegmentSpan | list[SegmentSpan]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        if at >= len(self.facts):
            return self.others[at - len(self.facts)]
        return row_span(self.partition, self.facts, at, self.start, None)


def row_span(partition: int, facts: SegmentFacts, row: int, start: int, trouble: str | None) -> SegmentSpan:
    """Return a segment with known facts, without its offsets below the start."""
    base, stop = facts.base(row), facts.ends[row]
    first = max(base, start)
    records = facts.records(row) if first == base else stop - first
    return SegmentSpan(
        partition, first, stop, facts.bytes(row), records, facts.lows[row], facts.highs[row], True, facts.created[row],
        False, trouble, *facts.expiry(row),
    )  # fmt: skip


class Inventory:
    """The segments of a store that this process has examined; without changes another round reads no file."""

    def __init__(self, store: Store) -> None:
        # A proxy, because a strong reference would keep the store alive as long as its inventory.
        self.store: Store = proxy(store)
        # The offset in the catalog for which the next three are valid.
        self.offset = -1
        self.owners: dict[int, int] = {}
        self.limited: list[tuple[TopicEntry, Rule]] = []
        self.trimmed: list[TopicEntry] = []
        # By slot, the start below which no file is left.
        self.swept: dict[int, int] = {}
        self.opened: dict[int, ActiveSegment] = {}
        # By slot, whether what dead rewrites left was removed; and for each salt of a segment from when on a rewrite is
        # worth it.
        self.cleared: dict[int, bool] = {}
        self.worth: dict[int, dict[int, int]] = {}
        # By slot, for each salt of a segment until when it is not examined again: nothing was to be taken out of it, or
        # it is damaged. And by slot the base of the active segment, and until when no record of it is overdue.
        self.resting: dict[int, dict[int, int]] = {}
        self.fresh: dict[int, tuple[int, int]] = {}

    # Topics.

    def follow(self) -> bool:
        """Update the topics from the catalog, and return whether retention may have anything to do."""
        catalog = self.store.refresh()
        if self.offset != catalog.offset:
            offset, entries = catalog.offset, list(catalog.by_id.values())
            marked = {topic for entry in entries if (topic := marked_topic(entry.name)) is not None}
            self.limited = [(entry, rule_of(entry)) for entry in entries if _is_limited(entry) or entry.id in marked]
            self.trimmed = [entry for entry in entries if entry.trims]
            owners = {slot: entry.id for entry in entries for slot in entry.slots}
            for known in (self.swept, self.opened, self.cleared, self.worth, self.resting, self.fresh):
                for slot in list(known):
                    if slot not in owners or owners[slot] != self.owners.get(slot):
                        known.pop(slot, None)
            self.offset, self.owners = offset, owners
        return bool(self.limited or self.unswept() or self.is_catalog_long())

    def unswept(self) -> list[TopicEntry]:
        """Return the topics with a recorded trim whose files this process has not seen removed."""
        swept = self.swept
        return [
            entry
            for entry in self.trimmed
            if any(swept.get(entry.slots[index], 0) < trim for index, trim in entry.trims.items())
        ]

    def is_catalog_long(self) -> bool:
        """Return whether the catalog has segments before its newest snapshot."""
        store = self.store
        block = store.tails.read_block(store.catalog_partition.slot)
        return block is not None and store.catalog_partition.start < block[1].base < block[1].end

    # Partitions.

    def partition(self, entry: TopicEntry, index: int) -> Partition | None:
        """Return a partition; None if its topic was dropped."""
        try:
            return self.store.partition(entry.slots[index], entry.id)
        except TopicNotFoundError:
            return None

    def state(self, partition: Partition) -> State | None:
        """Return the newest state block; a torn one is read again, because a writer may be storing it right now."""
        for _ in range(3):
            block = self.store.tails.read_block(partition.slot)
            if block is not None:
                return block[1] if block[2] == partition.incarnation else None
        return None

    # Segments.

    def pieces(self, entry: TopicEntry, index: int, inside: bool, trouble: str | None) -> Iterator[SegmentSpan]:
        """Yield the segments of a partition that hold records, the oldest first, each read when it is reached.

        With `inside` the frames of the active segment are read, and it is shown as it will be once it is sealed.
        `trouble` is a reason that applies to all of them.
        """
        partition = self.partition(entry, index)
        state = None if partition is None else self.state(partition)
        if partition is None or state is None or not state.flags & HAS_SEGMENT:
            return
        start = partition.start
        if partition.failed:
            trouble = "the partition is read-only: it is damaged, or a sync failed there"
        cache = self.store.indexes.facts
        try:
            facts = cache.recall(partition, Key.of(partition, state))
            # A segment with a larger base than that of the state is being created.
            bases = facts.listed[facts.skip : bisect_right(facts.listed, state.base)]
        except by_system() as error:
            facts, bases = SegmentFacts(Key.of(partition, None), array("q"), UNSETTLED), array("q", (start,))
            trouble = f"its directory cannot be read: {error.strerror}"
        bases.append(state.end)
        for row, (base, stop) in enumerate(pairwise(bases)):
            if stop <= start or base == stop:
                continue
            if len(facts) <= row < facts.total:
                # The number of known rows doubles, so that a round that stops at the oldest segment reads few footers.
                facts = cache.load(partition, facts, 2 * row + 1)
            if row < facts.total and facts.ends[row] == stop and row not in facts.odd:
                yield row_span(partition.index, facts, row, start, trouble)
                continue
            piece = self._look(partition, state, base, stop, inside)
            if piece is not None:
                if trouble is not None:
                    piece = piece._replace(trouble=trouble)
                first = max(base, start)
                yield piece._replace(first=first, records=piece.records if first == base else piece.stop - first)

    def ranked(self, entry: TopicEntry, index: int, inside: bool, trouble: str | None) -> Ranked:
        """Return all segments of `pieces`, ranked; no object is made for each segment if all of them are intact."""
        partition = self.partition(entry, index)
        state = None if partition is None else self.state(partition)
        if partition is None or state is None or partition.failed or trouble is not None:
            return Ranked.of(self.pieces(entry, index, inside, trouble))
        cache = self.store.indexes.facts
        try:
            facts = cache.load(partition, cache.recall(partition, Key.of(partition, state)))
        except by_system():
            return Ranked.of(self.pieces(entry, index, inside, trouble))
        joined = facts.total and facts.ends[facts.total - 1] == state.base and facts.has_base(state.base)
        if not joined or facts.odd or facts.breaks:
            return Ranked.of(self.pieces(entry, index, inside, trouble))
        newest = None if state.base == state.end else self._look(partition, state, state.base, state.end, inside)
        rows = SealedSpans(partition.index, facts, facts.key.start, [] if newest is None else [newest])
        reached, sizes = facts.reached, facts.bytes_before
        if newest is not None:
            last = newest.newest if newest.sealed and newest.trouble is None else LAST_US
            reached = reached + array("q", (max(reached[-1], last),))
            sizes = sizes + array("q", (sizes[-1] + newest.bytes,))
        return Ranked(rows, reached, sizes)

    def leftovers(self, entry: TopicEntry, index: int, trim: int) -> list[SegmentSpan]:
        """Return the segments of a partition that hold only trimmed records, and whose files still exist."""
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
            # They cannot be examined now; the next round finds them.
            return []
        return found

    def _look(self, partition: Partition, state: State, base: int, stop: int, inside: bool) -> SegmentSpan | None:
        """Return one segment without known facts; `trouble` has the reason if it cannot be read."""
        active = base == state.base and state.active
        try:
            if active and not inside:
                piece = self.active(partition, state)
                if piece is not None:
                    return piece
            return self._look_inside(partition, base, stop, inside and active)
        except by_system(OSError, TailraceError) as error:
            return SegmentSpan(
                partition.index, base, stop, 0, stop - base, 0, LAST_US, trouble=f"it cannot be read: {error}"
            )

    def active(self, partition: Partition, state: State) -> SegmentSpan | None:
        """Return the active segment, without reading its frames after the first; None if it is gone."""
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
        # The zeros that are preallocated after the last frame take up space as well.
        stat = self.store.files.stat(f"{partition.path}/{segment_name(state.base)}")
        size = state.position if stat is None else stat.size
        records = state.end - state.base
        return SegmentSpan(
            partition.index, state.base, state.end, size, records, opened.oldest, LAST_US, False, opened.created
        )  # fmt: skip

    def expiry_of_active(self, partition: Partition, state: State, *, partly: bool) -> tuple[int, int]:
        """Return the bounds of the expiry of an active segment; zeros if its newest record has not expired.

        With `partly` the frames are read in any case; what was read before is not read again.
        """
        files = self.store.files
        if not partly:
            descriptor = files.open(f"{partition.path}/{segment_name(state.base)}")
            try:
                last = read_header(files.read(descriptor, FRAME_HEADER_BYTES, state.last))
            finally:
                files.close(descriptor)
            if last is None or not is_expired(last.expiry[1], files.now_us()):
                return 0, 0
        reader = self.store.reader(partition)
        try:
            info = reader.info(state.base, state.end)
        finally:
            reader.close()
        return (0, 0) if info is None else (info.expiry_low, info.expiry_high)

    def is_known_fresh(self, partition: Partition, state: State) -> bool:
        """Return whether no record of the active segment can be overdue, by what was read of it before."""
        base, until_us = self.fresh.get(partition.slot, (-1, 0))
        return base == state.base and self.store.files.now_us() < until_us

    def note_fresh(self, partition: Partition, state: State, expiry_low: int, delay_us: int) -> None:
        """Note when the first record of the active segment expires: it is overdue after a delay.

        Records that are appended from now on expire later than now.
        """
        now_us = self.store.files.now_us()
        first_us = min((expiry_low + 1) * 1_000_000, now_us) if expiry_low else now_us
        self.fresh[partition.slot] = (state.base, first_us + delay_us)

    def rest(self, partition: Partition, salt: int, until_us: int) -> None:
        """Leave a segment alone until a moment."""
        known = self.resting.setdefault(partition.slot, {})
        if len(known) > WORTH_MAX:
            known.clear()
        known[salt] = until_us

    def is_resting(self, partition: Partition, salt: int) -> bool:
        """Return whether a segment is left alone for now."""
        return self.store.files.now_us() < self.resting.get(partition.slot, {}).get(salt, 0)

    def rewritable(self, partition: Partition, state: State, marks: MarkTable) -> list[tuple[SegmentSpan, int]]:
        """Return the sealed segments that may hold an expired or deleted record, the oldest first, and their salts."""
        now_us, start = self.store.files.now_us(), partition.start
        cache = self.store.indexes.facts
        facts = cache.load(partition, cache.recall(partition, Key.of(partition, state)))
        found = []
        for row in range(len(facts)) if marks or facts.may_hide(now_us) else ():
            low, base, end = facts.expiry_lows[row], facts.base(row), facts.ends[row]
            if row in facts.odd or end <= start:
                continue
            if (low and now_us >= low * 1_000_000) or marks.touches(base, end):
                piece = row_span(partition.index, facts, row, start, None)._replace(first=facts.base(row))
                found.append((piece, facts.salts[row]))
        if not state.active and state.base < state.end and state.end > start:
            newest = self._look_inside(partition, state.base, state.end, active=False)
            if newest is not None and (
                (newest.expiry_low and now_us >= newest.expiry_low * 1_000_000)
                or marks.touches(state.base, state.end)
            ):
                found.append((newest, state.salt))
        return found

    def is_worth_it(self, partition: Partition, base: int, salt: int, now_us: int) -> bool:
        """Return whether enough of a sealed segment has expired for a rewrite in the background."""
        known = self.worth.setdefault(partition.slot, {})
        if salt not in known:
            files = self.store.files
            descriptor = files.open(f"{partition.path}/{segment_name(base)}")
            try:
                index = read_footer(files, descriptor, salt)
            finally:
                files.close(descriptor)
            if len(known) > WORTH_MAX:
                known.clear()
            moment = None if index is None else half_expired_us(index, self.store.context.tuning.rewrite_bytes_min)
            known[salt] = LAST_US if moment is None else moment
        return now_us >= known[salt]

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
            active, trouble, info.expiry_low, info.expiry_high,
        )  # fmt: skip


def rule_of(entry: TopicEntry) -> Rule:
    """Return the rule of a topic; the settings of a topic without limits are not parsed."""
    try:
        rule = Rule.of(topic_settings(entry)) if _is_limited(entry) else Rule()
        return rule._replace(mutable=True) if entry.settings.get("mutable") else rule
    except VersionError:
        # This version cannot interpret the settings of a newer one, so it removes nothing.
        return Rule()


def _is_limited(entry: TopicEntry) -> bool:
    """Return whether anything can be due in a topic; internal topics have no limits."""
    settings = entry.settings
    limited = settings.get("retain", "forever") != "forever" or settings.get("retain_bytes") is not None
    return (limited or settings.get("ttl") is not None) and not is_internal(entry.name)


_inventories: WeakKeyDictionary[Store, Inventory] = WeakKeyDictionary()


def inventory_of(store: Store) -> Inventory:
    """Return the inventory of a store, the same object at every call."""
    inventory = _inventories.get(store)
    if inventory is None:
        inventory = _inventories.setdefault(store, Inventory(store))
    return inventory
