"""Statistics: a log and its topics in numbers, cheap enough to be asked for every second."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
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
    segment_base,
    segment_name,
)
from tailrace.disk.tails import END, SLOTS_WORD, START
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TopicNotFoundError, VersionError
from tailrace.names import is_internal
from tailrace.records import to_datetime
from tailrace.settings import TopicSettings
from tailrace.types import JournalInfo, Latency, Stats, TopicInfo

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.files import Files
    from tailrace.disk.gauges import Histogram
    from tailrace.disk.partition import Partition
    from tailrace.disk.store import Store
    from tailrace.engine.engine import Engine
    from tailrace.types import Settings

# A rate is taken over at least so long, so that two calls in a row do not show noise.
RATE_SECONDS_MIN = 1.0
# The disk is nearly full when less than a twentieth of it is free, or less than this, whichever is smaller;
NEARLY_FULL_BYTES = 1 << 30
# or when it will be full so soon at the rate of the last seconds.
NEARLY_FULL_SECONDS = 3_600.0
# The first call has nothing to compare with: it counts the records of so long.
RECENT_SECONDS = 10


def stats(engine: Engine) -> Stats:
    """The whole log in numbers, over all its processes."""
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
    """Seconds until the disk is full at a rate of bytes a second; None when limits of the topics stop it before."""
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
            # Of what is appended from now on no more is kept than what comes in so long, a segment more included.
            seconds = parse_duration(retain)
            longest = max(longest, seconds + min(seconds, entry.segment_age))
    return free / rate if growth + rate * longest > free else None


def topic_infos(engine: Engine, match: str = "...") -> list[TopicInfo]:
    """The topics that a pattern matches, by name; internal ones are not shown."""
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
            )
        )
    return found


class Size(NamedTuple):
    """One partition: its offsets, the bytes of its segments, and the times of its first and last frame."""

    start: int = 0
    end: int = 0
    bytes: int = 0
    oldest: int | None = None
    newest: int | None = None
    # How many of the offsets a repair gave up.
    lost: int = 0

    @property
    def records(self) -> int:
        """How many records it holds."""
        return self.end - self.start - self.lost


# The offsets (first and last) of the placeholders in a segment, under its base and the inode of its file.
Holes = dict[tuple[int, int], list[tuple[int, int]]]


class Sealed(NamedTuple):
    """The segments of a partition before the newest, those below its start left out: they may be gone any moment."""

    first: int
    newest: int
    bytes: int
    holes: Holes


class PartitionSurvey:
    """What was found out about a store's partitions: asked again only where an end has moved."""

    def __init__(self, store: Store) -> None:
        # Weak, or what is remembered of a store would keep it for ever.
        self.store: Store = proxy(store)
        self.files: Files = store.files
        self.known: dict[int, tuple[int, Size]] = {}
        self.sealed: dict[int, Sealed] = {}
        self.samples: dict[int, list[tuple[float, int]]] = {}
        self.parsed: dict[int, tuple[TopicEntry, TopicSettings]] = {}
        self.journal_file: JournalFile | None = None
        self.ends: list[int] = []
        self.starts: list[int] = []

    def load(self) -> None:
        """Take every end and start at once."""
        tails = self.store.tails
        slots = tails.words[SLOTS_WORD]
        tails.holds(max(slots - 1, 0))
        self.ends, self.starts = tails.column(END, slots), tails.column(START, slots)

    def sizes(self, entry: TopicEntry) -> list[Size]:
        """The partitions of a topic that hold anything."""
        found = []
        for slot in entry.slots:
            if slot >= len(self.ends) or not self.ends[slot]:
                continue
            start, end = self.starts[slot], self.ends[slot]
            incarnation, size = self.known.get(slot, (0, Size()))
            if (incarnation, size.start, size.end) != (entry.id, start, end):
                size = self._measure(slot, start, end, size if incarnation == entry.id else Size())
                self.known[slot] = (entry.id, size)
            found.append(size)
        return found

    def _measure(self, slot: int, start: int, end: int, before: Size) -> Size:
        partition = self.store.locate(slot)
        block = self.store.tails.read_block(slot)
        if partition is None or block is None or block[2] != partition.incarnation:
            return Size(start, end)
        state = block[1]
        try:
            sealed = self.sealed.get(slot)
            if sealed is None or sealed.newest != state.base or start != before.start:
                sealed = self.sealed[slot] = self._list(partition, state.base, start, sealed)
            # A repair seals what it writes, so that a segment which takes appends has no placeholders.
            holes = sealed.holes if state.active else {**sealed.holes, **self._look(partition, [state.base], sealed)}
            oldest = before.oldest
            if oldest is None or start != before.start:
                oldest = self._oldest(partition, sealed.first, start)
            newest = self._newest(partition, state.base, state.last)
        except (FileNotFoundError, VersionError):
            # Trimmed or dropped in this moment; the next call sees it.
            return Size(start, end)
        ranges = [(max(first, start), min(last, end - 1)) for found in holes.values() for first, last in found]
        lost = sum(last - first + 1 for first, last in ranges if first <= last)
        return Size(start, end, sealed.bytes + state.position, oldest, newest, lost)

    def _list(self, partition: Partition, newest: int, start: int, before: Sealed | None) -> Sealed:
        names = self.files.list_directory(partition.path)
        bases = sorted(base for name in names if (base := segment_base(name)) is not None and base <= newest)
        kept = [base for base, following in pairwise(bases) if following > start]
        stats = [self.files.stat(f"{partition.path}/{segment_name(base)}") for base in kept]
        size = sum(stat.size for stat in stats if stat is not None)
        return Sealed(min(kept, default=newest), newest, size, self._look(partition, kept, before))

    def _look(self, partition: Partition, bases: Iterable[int], before: Sealed | None) -> Holes:
        """The placeholders in sealed segments; those that were looked at before are not opened again."""
        found: Holes = {}
        for base in bases:
            path = f"{partition.path}/{segment_name(base)}"
            stat = self.files.stat(path)
            if stat is None:
                # Removed in this moment, or missing, which is damage and no loss that a repair has named.
                continue
            known = before.holes.get((base, stat.inode)) if before is not None else None
            found[base, stat.inode] = self._holes(path, base) if known is None else known
        return found

    def _holes(self, path: str, base: int) -> list[tuple[int, int]]:
        descriptor = self.files.open(path)
        try:
            return [(base + first, base + last) for first, last in lost_ranges(self.files, descriptor)]
        finally:
            self.files.close(descriptor)

    def _oldest(self, partition: Partition, base: int, start: int) -> int | None:
        """The smallest time of the first frame kept, or of its stretch when a trim cut into the segment."""
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
        """The largest time of the last frame; recovery may know no last frame, but then there is a footer."""
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
        """Records appended a second since an earlier call in this process; at the first, by the newest timestamps."""
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
        """How many records have a timestamp of the last ten seconds."""
        since = self.files.now_us() - RECENT_SECONDS * 1_000_000
        count = 0
        for slot in entry.slots:
            incarnation, size = self.known.get(slot, (0, Size()))
            partition = self.store.locate(slot)
            if incarnation == entry.id and partition is not None and size.newest is not None and size.newest >= since:
                reader = self.store.reader(partition)
                try:
                    count += max(0, size.end - reader.offset_at(since))
                except (CorruptionError, OffsetOutOfRangeError, TopicNotFoundError):
                    # A listing shows what it can; reading the topic and verify() name the damage, and what a vacuum
                    # or a drop removes in this moment is not there next time.
                    continue
                finally:
                    reader.close()
        return count

    def settings(self, entry: TopicEntry) -> tuple[Settings, tuple[str, ...]]:
        """The settings of a topic, for the caller to keep, and which of them follow from others."""
        known, found = self.parsed.get(entry.id, (None, None))
        if known is not entry or found is None:
            found = TopicSettings.from_json({**entry.settings, "partitions": len(entry.slots)})
            self.parsed[entry.id] = (entry, found)
        return found.to_user(), found.derived

    def journal(self) -> JournalInfo:
        """The journal's files; entries seen by an earlier call are not read again."""
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
