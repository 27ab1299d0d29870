"""Statistics: a log and its topics in numbers, cheap enough to be read every second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, proxy

from tailrace import names
from tailrace.arguments import parse_duration
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import read_header
from tailrace.disk.gauges import collect
from tailrace.disk.journal import ENTRIES_AT, JournalFile, journal_numbers
from tailrace.disk.segment import (
    HEADER_BYTES,
    lost_ranges,
    read_footer,
    read_segment_header,
    segment_name,
)
from tailrace.disk.segment_facts import Key
from tailrace.disk.tails import BLOCK_A, BLOCK_B, BLOCK_FLAGS, END, REWRITES_SHIFT, SLOTS_WORD, START
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TopicNotFoundError, VersionError
from tailrace.names import is_internal
from tailrace.records import to_datetime
from tailrace.settings import TopicSettings, unknown_settings
from tailrace.types import JournalInfo, Latency, Stats, TopicInfo

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.files import Files
    from tailrace.disk.gauges import Histogram
    from tailrace.disk.partition import Partition
    from tailrace.disk.segment_facts import SegmentFacts
    from tailrace.disk.store import Store
    from tailrace.disk.tails import State
    from tailrace.engine.engine import Engine
    from tailrace.types import Settings

# A rate is measured over at least this time, so that two calls in a row do not show noise.
RATE_SECONDS_MIN = 1.0
# The disk is nearly full when less than a twentieth of it is free, or less than this, whichever is smaller;
NEARLY_FULL_BYTES = 1 << 30
# or when it will be full within this time at the rate of the last seconds.
NEARLY_FULL_SECONDS = 3_600.0
# The first call has no earlier sample: it counts the records of this many seconds.
RECENT_SECONDS = 10


def stats(engine: Engine) -> Stats:
    """Return the statistics of the whole log, over all its processes."""
    store = engine.store
    gauges = store.context.gauges
    if gauges is not None:
        gauges.beat()
    survey = _survey_of(store)
    entries = [entry for entry in engine.refresh().by_name.values() if not is_internal(entry.name)]
    sizes = [size for entry in entries for size in survey.sizes(entry)]
    totals = collect(engine.files, f"{store.path}/stats")
    free, disk = engine.files.free_bytes(store.path), engine.files.disk_bytes(store.path)
    full_in = _full_in(free, totals.bytes_per_second, [(entry, survey.sizes(entry)) for entry in entries])
    return Stats(
        path=store.path,
        id=store.context.log_id.hex(),
        topics=len(entries),
        partitions=sum(len(entry.slots) for entry in entries),
        records=sum(size.records for size in sizes),
        bytes=sum(size.bytes for size in sizes),
        appended_records=totals.appended_records,
        appended_bytes=totals.appended_bytes,
        records_per_second=totals.records_per_second,
        bytes_per_second=totals.bytes_per_second,
        fsyncs=totals.syncs,
        append_latency=_latency(totals.append_histogram),
        fsync_latency=_latency(totals.sync_histogram),
        oldest=_earliest(sizes),
        newest=_latest(sizes),
        journal=survey.journal(),
        processes=totals.processes,
        free_bytes=free,
        disk_bytes=disk,
        full_in=full_in,
        nearly_full=free < min(disk // 20, NEARLY_FULL_BYTES)
        or (full_in is not None and full_in < NEARLY_FULL_SECONDS),
        lost_records=sum(size.lost for size in sizes),
    )


def _full_in(free: int, rate: float, topics: Iterable[tuple[TopicEntry, list[Size]]]) -> float | None:
    """Return the seconds until the disk is full at a rate in bytes per second; None if limits stop the growth first."""
    if rate <= 0:
        return None
    growth = longest = 0.0
    for entry, sizes in topics:
        settings = entry.settings
        retain, limit = settings.get("retain", "forever"), settings.get("retain_bytes")
        segments = len(entry.slots) * entry.segment_bytes
        if settings.get("keep_unread") or (limit is None and retain in ("forever", "read")):
            growth = float("inf")
            break
        if limit is not None:
            growth += max(0, limit + segments - sum(size.bytes for size in sizes))
        else:
            # Such a topic keeps the records of its retention time, and a segment that is not yet due.
            seconds = parse_duration(retain)
            longest = max(longest, seconds + min(seconds, entry.segment_age))
    return free / rate if growth + rate * longest > free else None


def topic_infos(engine: Engine, match: str = "...") -> list[TopicInfo]:
    """Return the topics that a pattern matches, by name, without internal ones."""
    survey = _survey_of(engine.store)
    found = []
    for name, entry in sorted(engine.refresh().by_name.items()):
        if is_internal(name) or not names.match(match, name):
            continue
        sizes = survey.sizes(entry)
        settings, derived = survey.settings(entry)
        found.append(
            TopicInfo(
                name=name,
                partitions=len(entry.slots),
                records=sum(size.records for size in sizes),
                bytes=sum(size.bytes for size in sizes),
                rate=survey.rate(entry, sum(size.end for size in sizes)),
                oldest=_earliest(sizes),
                newest=_latest(sizes),
                settings=settings,
                lost_records=sum(size.lost for size in sizes),
                derived=derived,
                unknown=unknown_settings(entry.settings),
                schema_version=(entry.settings.get("schema") or {}).get("version", 0),
            )
        )
    return found


class Size(NamedTuple):
    """The measures of one partition: its offsets, the bytes of its segments, the times of its first and last frame."""

    start: int = 0
    end: int = 0
    bytes: int = 0
    oldest: int | None = None
    newest: int | None = None
    # The number of offsets whose records a repair gave up, and of those whose records rewrites removed.
    lost: int = 0
    removed: int = 0

    @property
    def records(self) -> int:
        """The number of records."""
        return self.end - self.start - self.lost - self.removed


# For each segment, by base and salt, the offsets (first and last) of its placeholders.
Holes = dict[tuple[int, int], list[tuple[int, int]]]


class PartitionSurvey:
    """The measures of a store's partitions, cached; a partition is measured again when its start or end has changed."""

    def __init__(self, store: Store) -> None:
        # A proxy, because a strong reference would keep the store alive as long as its survey.
        self.store: Store = proxy(store)
        self.files: Files = store.files
        # By slot: the topic and the counts of rewrites in both state blocks for which a measure is valid, and it.
        self.known: dict[int, tuple[tuple[int, int, int], Size]] = {}
        self.holes: dict[int, Holes] = {}
        self.samples: dict[int, list[tuple[float, int]]] = {}
        self.parsed: dict[int, tuple[TopicEntry, TopicSettings]] = {}
        self.journal_file: JournalFile | None = None
        self.ends: list[int] = []
        self.starts: list[int] = []
        self.rewrites: list[tuple[int, int]] = []

    def load(self) -> None:
        """Load the end and the start of every slot at once."""
        tails = self.store.tails
        slots = tails.words[SLOTS_WORD]
        tails.holds(max(slots - 1, 0))
        self.ends, self.starts = tails.column(END, slots), tails.column(START, slots)
        # The count is the upper part of a word of each state block.
        counts = [tails.column(block + BLOCK_FLAGS, slots) for block in (BLOCK_A, BLOCK_B)]
        self.rewrites = [(a >> 32 + REWRITES_SHIFT, b >> 32 + REWRITES_SHIFT) for a, b in zip(*counts, strict=True)]

    def sizes(self, entry: TopicEntry) -> list[Size]:
        """Return the measures of those partitions of a topic that ever had records."""
        found = []
        for slot in entry.slots:
            if slot >= len(self.ends) or not self.ends[slot]:
                continue
            start, end = self.starts[slot], self.ends[slot]
            key = (entry.id, *self.rewrites[slot])
            known, size = self.known.get(slot, ((0, 0, 0), Size()))
            if (known, size.start, size.end) != (key, start, end) or (key[1] | key[2]) & 1:
                if known[0] != entry.id:
                    self.holes.pop(slot, None)
                size = self._measure(slot, start, end, size if known == key else Size())
                self.known[slot] = (key, size)
            found.append(size)
        return found

    def _measure(self, slot: int, start: int, end: int, before: Size) -> Size:
        partition = self.store.locate(slot)
        block = self.store.tails.read_block(slot)
        if partition is None or block is None or block[2] != partition.incarnation:
            return Size(start, end)
        state = block[1]
        try:
            facts = self._facts(partition, state)
            first = facts.base(0) if facts.total else state.base
            oldest = before.oldest
            if oldest is None or start != before.start:
                oldest = self._oldest(partition, first, start)
            newest = self._newest(partition, state.base, state.last)
            if newest is None:
                # A vacuum that rewrites the newest segment begins another one, which is empty.
                counts = facts.records_before
                row = next((row for row in reversed(range(len(counts) - 1)) if counts[row] < counts[row + 1]), None)
                newest = None if row is None else self._newest(partition, facts.base(row), 0)
            ranges = [(max(low, start), min(high, end - 1)) for low, high in self._lost(partition, state, facts)]
        except (FileNotFoundError, VersionError):
            # It is being trimmed or dropped; the next call measures it.
            return Size(start, end)
        lost = sum(last - first + 1 for first, last in ranges if first <= last)
        # A footer does not tell removed from lost records, which are known from the placeholders.
        begin = next((base for base in facts.listed if base >= start), end)
        counted = sum(last - first + 1 for first, last in ranges if begin <= first <= last and first < state.base)
        removed = max(0, facts.missing(start) - counted)
        return Size(start, end, self._sealed_bytes(partition, facts) + state.position, oldest, newest, lost, removed)

    def _facts(self, partition: Partition, state: State) -> SegmentFacts:
        cache = self.store.indexes.facts
        return cache.load(partition, cache.look(partition, Key.of(partition, state)))

    def _sealed_bytes(self, partition: Partition, facts: SegmentFacts) -> int:
        """Return the size of the sealed segments, without those below the start, which may be removed at any moment."""
        size = facts.bytes_before[-1] - facts.bytes_before[0]
        stats = [self.files.stat(f"{partition.path}/{segment_name(facts.base(row))}") for row in facts.odd]
        return size + sum(stat.size for stat in stats if stat is not None)

    def _lost(self, partition: Partition, state: State, facts: SegmentFacts) -> list[tuple[int, int]]:
        """Return the offsets (first and last) of the placeholders; a segment is opened once for this."""
        before = self.holes.get(partition.slot, {})
        found: Holes = {}
        for row in facts.short:
            key = (facts.base(row), facts.salts[row])
            found[key] = before[key] if key in before else self._holes(partition, key[0])
        if not state.active:
            # A repair seals every segment that it writes, so an active segment has no placeholders.
            key = (state.base, state.salt)
            found[key] = before[key] if key in before else self._holes(partition, key[0])
        self.holes[partition.slot] = found
        return [each for ranges in found.values() for each in ranges]

    def _holes(self, partition: Partition, base: int) -> list[tuple[int, int]]:
        descriptor = self.files.open(f"{partition.path}/{segment_name(base)}")
        try:
            return [(base + first, base + last) for first, last in lost_ranges(self.files, descriptor)]
        finally:
            self.files.close(descriptor)

    def _oldest(self, partition: Partition, base: int, start: int) -> int | None:
        """Return the smallest time in the first frame, or in its index entry if a trim cut into the segment."""
        descriptor = self.files.open(f"{partition.path}/{segment_name(base)}")
        try:
            header = read_segment_header(self.files, descriptor)
            index = None
            if header is not None and start > base:
                index = read_footer(self.files, descriptor, header.salt)
            if index is not None and index.offsets:
                return index.lows[index.find(start - base)]
            frame = read_header(self.files.read(descriptor, FRAME_HEADER_BYTES, HEADER_BYTES))
            return None if frame is None else frame.min_time
        finally:
            self.files.close(descriptor)

    def _newest(self, partition: Partition, base: int, last: int) -> int | None:
        """Return the largest time in the last frame, or in the footer if recovery stored no last frame."""
        descriptor = self.files.open(f"{partition.path}/{segment_name(base)}")
        try:
            if last:
                frame = read_header(self.files.read(descriptor, FRAME_HEADER_BYTES, last))
                return None if frame is None else frame.max_time
            header = read_segment_header(self.files, descriptor)
            index = None if header is None else read_footer(self.files, descriptor, header.salt)
            return index.highs[-1] if index is not None and index.highs else None
        finally:
            self.files.close(descriptor)

    def rate(self, entry: TopicEntry, end: int) -> float:
        """Return the records per second since an earlier call in this process; at the first call, by the timestamps."""
        now = self.files.monotonic()
        samples = self.samples.setdefault(entry.id, [])
        while len(samples) > 1 and now - samples[1][0] >= RATE_SECONDS_MIN:
            del samples[0]
        if not samples or now - samples[-1][0] >= RATE_SECONDS_MIN:
            samples.append((now, end))
        began, first = samples[0]
        if now - began < RATE_SECONDS_MIN:
            return self._recent(entry) / RECENT_SECONDS
        return max(0, end - first) / (now - began)

    def _recent(self, entry: TopicEntry) -> int:
        """Return how many records have a timestamp within the last RECENT_SECONDS."""
        since = self.files.now_us() - RECENT_SECONDS * 1_000_000
        count = 0
        for slot in entry.slots:
            known, size = self.known.get(slot, ((0, 0, 0), Size()))
            partition = self.store.locate(slot)
            if known[0] == entry.id and partition is not None and size.newest is not None and size.newest >= since:
                reader = self.store.reader(partition)
                try:
                    count += max(0, size.end - reader.offset_at(since))
                except (CorruptionError, OffsetOutOfRangeError, TopicNotFoundError):
                    # Listings skip what cannot be read: reading the topic and verify() report damage, and after a
                    # vacuum or a drop the next call no longer sees the records.
                    continue
                finally:
                    reader.close()
        return count

    def settings(self, entry: TopicEntry) -> tuple[Settings, tuple[str, ...]]:
        """Return the known settings of a topic as a copy for the caller, and which of them are derived from others."""
        known, found = self.parsed.get(entry.id, (None, None))
        if known is not entry or found is None:
            # A listing names a topic of a newer version too, or it would pass for one that does not exist.
            unknown = unknown_settings(entry.settings)
            stored = {name: value for name, value in entry.settings.items() if name not in unknown}
            found = TopicSettings.from_json({**stored, "partitions": len(entry.slots)})
            self.parsed[entry.id] = (entry, found)
        return found.to_user(), found.derived

    def journal(self) -> JournalInfo:
        """Return the size of the journal; entries that an earlier call read are not read again."""
        directory = f"{self.store.path}/journal"
        numbers = journal_numbers(self.files, directory)
        if not numbers:
            return JournalInfo()
        file = self.journal_file
        if file is None or file.number != numbers[-1]:
            file = self.journal_file = JournalFile(self.files, directory, numbers[-1], self.store.context.log_id)
        used = 0
        try:
            file.open()
        except FileNotFoundError:
            return JournalInfo()
        try:
            file.refresh()
            if file.generation is not None:
                used = file.place.position - ENTRIES_AT
        finally:
            file.close()
        stats = [self.files.stat(JournalFile(self.files, directory, number, b"").path) for number in numbers]
        return JournalInfo(len(numbers), sum(stat.size for stat in stats if stat is not None), used)


_surveys: WeakKeyDictionary[Store, PartitionSurvey] = WeakKeyDictionary()


def _survey_of(store: Store) -> PartitionSurvey:
    survey = _surveys.get(store)
    if survey is None:
        survey = _surveys.setdefault(store, PartitionSurvey(store))
    survey.load()
    return survey


def _latency(histogram: Histogram) -> Latency:
    p50, p90, p99 = (round(histogram.percentile(q)) for q in (50, 90, 99))
    return Latency(histogram.samples, p50, p90, p99, round(histogram.maximum))


def _earliest(sizes: Iterable[Size]) -> datetime | None:
    oldest = min((size.oldest for size in sizes if size.oldest is not None and size.start < size.end), default=None)
    return None if oldest is None else to_datetime(oldest)


def _latest(sizes: Iterable[Size]) -> datetime | None:
    newest = max((size.newest for size in sizes if size.newest is not None and size.start < size.end), default=None)
    return None if newest is None else to_datetime(newest)
