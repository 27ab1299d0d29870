"""Segment facts: the contents of every footer of a partition, cached in columns.

Whatever is answered without reading records uses them: counts, offsets by time, statistics, retention. A lookup
compares the key of the partition and the time stamp of its directory; the rest is a binary search or a difference of
two sums, so the cost does not grow with the number of segments (docs/decisions/segment-facts.md).
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from tailrace import settings
from tailrace.disk.failures import by_system
from tailrace.disk.segment import listed_bases, read_segment_header, read_trailer, segment_name
from tailrace.disk.tails import REWRITES, REWRITES_SHIFT
from tailrace.errors import VersionError
from tailrace.limits import OFFSET_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.disk.files import Files
    from tailrace.disk.partition import Partition
    from tailrace.disk.tails import State
    from tailrace.settings import Tuning

# Stands for the largest time of a segment without known times.
TIME_UNKNOWN = (1 << 63) - 1
UNSETTLED = -1
# The weight of a partition in the cache, in addition to one for each segment.
PARTITION_WEIGHT = 16


# Shared empty columns, which most partitions have; they are never changed.
_NONE, _NO_SALTS, _ZERO, _NO_BOUNDS = array("q"), array("Q"), array("q", (0,)), array("I")


class Key(NamedTuple):
    """The state of a partition for which facts are valid.

    A sealed segment changes only by a rewrite, and rewrites are counted, so it is enough to know which segments there
    are. The key is read before any file.
    """

    incarnation: int
    newest: int
    start: int
    # Odd while a rewrite is running, or after one that was interrupted: facts read then are not cached.
    rewrites: int = 0

    @classmethod
    def of(cls, partition: Partition, state: State | None) -> Key:
        """Return the key of a partition in a state; without a state no segment is known to be sealed."""
        newest, flags = (UNSETTLED, 0) if state is None else (state.base, state.flags)
        return cls(partition.incarnation, newest, partition.start, (flags & REWRITES) >> REWRITES_SHIFT)


class SegmentFact(NamedTuple):
    """The facts of one sealed segment: from its header, its footer and the size of its file."""

    end: int
    bytes: int
    records: int
    min_time: int
    max_time: int
    created: int
    salt: int
    # The bounds of the expiry in seconds; both 0 if no record expires.
    expiry_low: int = 0
    expiry_high: int = 0


class SegmentFacts:
    """The segments of a partition: the bases of all, and the facts of the sealed ones before the newest.

    Facts are rows in the order of the offsets; the known rows are the first ones. An object that other threads can see
    is never changed, a change makes another one, so using it needs no lock. A segment without a valid footer of its own
    is `odd`: its row has no facts, and callers examine its file instead.
    """

    __slots__ = (
        "breaks",
        "bytes_before",
        "created",
        "ends",
        "expiry_from",
        "expiry_highs",
        "expiry_lows",
        "highs",
        "key",
        "listed",
        "lows",
        "odd",
        "reached",
        "records_before",
        "salts",
        "short",
        "skip",
        "stamp",
        "total",
    )  # fmt: skip

    def __init__(self, key: Key, listed: array[int], stamp: int) -> None:
        self.key = key
        # The directory's time stamp when it was listed; UNSETTLED if a later change may not have changed it.
        self.stamp = stamp
        # The bases of all segments, by their names. Rows begin after the segments whose records are all trimmed.
        self.listed = listed
        self.skip = max(0, bisect_right(listed, key.start) - 1)
        # The number of rows once all are known.
        self.total = max(0, bisect_left(listed, key.newest) - self.skip)
        self.ends = self.lows = self.highs = self.created = _NONE
        self.salts = _NO_SALTS
        # The bounds of the expiry of each row, and the smallest of them; 0 if no record expires.
        self.expiry_lows = self.expiry_highs = _NO_BOUNDS
        self.expiry_from = 0
        # The largest time up to and including a row; unlike the times it never decreases, so it can be searched.
        self.reached = _NONE
        # Running sums before each row; one entry more than there are rows.
        self.bytes_before = self.records_before = _ZERO
        # Rows without facts; rows that do not end where the next begins; rows with fewer records than offsets.
        self.odd: tuple[int, ...] = ()
        self.breaks: tuple[int, ...] = ()
        self.short: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return how many rows are known."""
        return len(self.ends)

    @property
    def weight(self) -> int:
        """The weight of the facts in the cache, bounded by `segment_facts_max`."""
        return len(self.listed) + PARTITION_WEIGHT

    # Rows.

    def base(self, row: int) -> int:
        """Return the first offset of a row."""
        return self.listed[self.skip + row]

    def bytes(self, row: int) -> int:
        """Return the size of a row's file."""
        return self.bytes_before[row + 1] - self.bytes_before[row]

    def records(self, row: int) -> int:
        """Return how many records a row has."""
        return self.records_before[row + 1] - self.records_before[row]

    def expiry(self, row: int) -> tuple[int, int]:
        """Return the bounds of the expiry of a row's records."""
        return self.expiry_lows[row], self.expiry_highs[row]

    def missing(self, start: int) -> int:
        """Return how many offsets of the rows from an offset on have no record; a row that it cuts is left out."""
        short = [row for row in self.short if self.base(row) >= start]
        return sum([self.ends[row] - self.base(row) - self.records(row) for row in short])

    def may_hide(self, now_us: int) -> bool:
        """Return whether a record of any row may have expired."""
        return bool(self.expiry_from) and now_us >= self.expiry_from * 1_000_000

    def row_of(self, offset: int) -> int:
        """Return the row that holds an offset, by the bases alone: -1 before the first row, the last row after all."""
        return bisect_right(self.listed, offset, self.skip, self.skip + len(self)) - self.skip - 1

    def has_base(self, offset: int) -> bool:
        """Return whether a segment begins at an offset."""
        at = bisect_left(self.listed, offset)
        return at < len(self.listed) and self.listed[at] == offset

    def from_time(self, time: int) -> int:
        """Return the first row up to which a record is at or after a time; the number of rows if there is none."""
        return bisect_left(self.reached, time)

    # Copies with changes.

    def extended(self, facts: Iterable[SegmentFact | None]) -> SegmentFacts:
        """Return a copy with more rows; None stands for an odd row."""
        made = self._copy(self.key, self.listed, self.stamp, 0, len(self))
        odd, breaks, short = [*self.odd], [*self.breaks], [*self.short]
        reached = made.reached[-1] if made.reached else -TIME_UNKNOWN
        for fact in facts:
            row = len(made.ends)
            base = made.base(row)
            if row and made.ends[-1] != base:
                breaks.append(row - 1)
            if fact is None:
                odd.append(row)
                at = self.skip + row + 1
                fact = SegmentFact(self.listed[at] if at < len(self.listed) else base, 0, 0, 0, TIME_UNKNOWN, 0, 0)
            elif fact.records < fact.end - base:
                short.append(row)
            reached = max(reached, fact.max_time)
            made.ends.append(fact.end)
            made.lows.append(fact.min_time)
            made.highs.append(fact.max_time)
            made.created.append(fact.created)
            made.salts.append(fact.salt)
            made.expiry_lows.append(fact.expiry_low)
            made.expiry_highs.append(fact.expiry_high)
            if fact.expiry_low:
                made.expiry_from = min(made.expiry_from or fact.expiry_low, fact.expiry_low)
            made.reached.append(reached)
            made.bytes_before.append(made.bytes_before[-1] + fact.bytes)
            made.records_before.append(made.records_before[-1] + fact.records)
        made.odd, made.breaks, made.short = tuple(odd), tuple(breaks), tuple(short)
        return made

    def updated(self, key: Key, listed: array[int], stamp: int) -> SegmentFacts:
        """Return the facts for another key and listing, with the rows whose segments are still the first ones."""
        # rule: count of rewrites in the key of facts
        if (key.incarnation, key.rewrites) != (self.key.incarnation, self.key.rewrites):
            return SegmentFacts(key, listed, stamp)
        if (key, stamp) == (self.key, self.stamp) and listed == self.listed:
            return self
        bare = SegmentFacts(key, listed, stamp)
        first = bisect_left(self.listed, listed[bare.skip]) - self.skip if listed else -1
        count = min(len(self) - first, bare.total)
        if first < 0 or count <= 0:
            return bare
        before, after = self.listed[self.skip + first :][:count], listed[bare.skip :][:count]
        if before != after:
            count = next(at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
        return self._copy(key, listed, stamp, first, first + count)

    def _copy(self, key: Key, listed: array[int], stamp: int, first: int, stop: int) -> SegmentFacts:
        """Return a copy of the rows from `first` up to `stop`, under another key."""
        made = SegmentFacts(key, listed, stamp)
        for name in ("ends", "lows", "highs", "created", "salts", "reached", "expiry_lows", "expiry_highs"):
            setattr(made, name, getattr(self, name)[first:stop])
        # That of rows which went may stay: it only makes lookups examine single rows.
        made.expiry_from = self.expiry_from
        made.bytes_before = self.bytes_before[first : stop + 1]
        made.records_before = self.records_before[first : stop + 1]
        made.odd = tuple(row - first for row in self.odd if first <= row < stop)
        # Whether the last row ends where the next begins is checked when the next row is known.
        made.breaks = tuple(row - first for row in self.breaks if first <= row < stop - 1)
        made.short = tuple(row - first for row in self.short if first <= row < stop)
        if first:
            _recompute_reached(made.reached, made.highs)
        return made


def _recompute_reached(reached: array[int], highs: array[int]) -> None:
    """Recompute the running maxima after rows before them were removed, up to the first row where they agree."""
    most = -TIME_UNKNOWN
    for row, high in enumerate(highs):
        most = max(most, high)
        if reached[row] == most:
            return
        reached[row] = most


class FactsCache:
    """The facts of the partitions of a store; evicts the least recently used ones above `segment_facts_max`."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        self.tuning = tuning or settings.TUNING
        # Reentrant, because a signal handler may read while its thread holds the mutex.
        self.mutex = threading.RLock()
        self.known: dict[str, SegmentFacts] = {}
        self.weight = 0

    def look(self, partition: Partition, key: Key) -> SegmentFacts:
        """Return the current facts of a partition, with the rows that are known already.

        The caller read the key before, so every segment up to the newest one in the key is listed.
        """
        known = self.known.get(partition.path)
        # A file that was removed by hand changes the directory's time stamp, but not the state.
        if known is None or known.key != key or known.stamp != partition.files.modified_us(partition.path):
            return self.list(partition, key)
        return self._keep(partition.path, known)

    def recall(self, partition: Partition, key: Key) -> SegmentFacts:
        """Return the facts by the key alone: no file is touched unless records were appended or trimmed."""
        known = self.known.get(partition.path)
        return self.list(partition, key) if known is None or known.key != key else self._keep(partition.path, known)

    def list(self, partition: Partition, key: Key) -> SegmentFacts:
        """List the segments of a partition again, and keep the facts of those that still exist."""
        files, path = partition.files, partition.path
        now = files.now_us()
        stamp = files.modified_us(path)
        listed = array("q", listed_bases(files.list_directory(path)))
        if not 0 <= stamp <= now - self.tuning.stamp_us:
            stamp = UNSETTLED
        known = self.known.get(path)
        if known is None:
            return self._keep(path, SegmentFacts(key, listed, stamp))
        return self._keep(path, known.updated(key, listed, stamp))

    def load(self, partition: Partition, facts: SegmentFacts, rows: int | None = None) -> SegmentFacts:
        """Return the facts with at least `rows` known rows, or all of them; only unknown rows are read."""
        wanted = facts.total if rows is None else min(rows, facts.total)
        if wanted <= len(facts):
            return facts
        files, path, owner = partition.files, partition.path, (partition.topic_id, partition.index)
        found: list[SegmentFact | None] = []
        sure = None
        for row in range(len(facts), wanted):
            try:
                found.append(_fact(files, path, facts.base(row), owner))
            except by_system():
                # The file may be readable later, so this row and those after it are not cached.
                sure = len(found) if sure is None else sure
                found.append(None)
        kept = self._keep(path, facts.extended(found[:sure]))
        return kept if sure is None else kept.extended(found[sure:])

    def _keep(self, path: str, facts: SegmentFacts) -> SegmentFacts:
        most = self.tuning.segment_facts_max
        with self.mutex:
            before = self.known.pop(path, None)
            self.weight -= 0 if before is None else before.weight
            if facts.key.rewrites & 1:  # rule: nothing remembered while a name is in doubt
                return facts
            self.weight += facts.weight
            self.known[path] = facts
            while self.weight > most and len(self.known) > 1:
                self.weight -= self.known.pop(next(iter(self.known))).weight
        return facts


def _fact(files: Files, path: str, base: int, owner: tuple[int, int]) -> SegmentFact | None:
    """Return the facts of one sealed segment; None if it is missing or has no valid footer of its own."""
    try:
        descriptor = files.open(f"{path}/{segment_name(base)}")
        try:
            header = read_segment_header(files, descriptor)
            if header is None or not header.belongs(*owner, base):
                return None
            size = files.stat_open(descriptor).size
            read = read_trailer(files, descriptor, size, header.salt)
        finally:
            files.close(descriptor)
    except (FileNotFoundError, VersionError):
        # A caller that reaches the row examines the file and reports what is wrong with it.
        return None
    if read is None:
        return None
    trailer = read[0]
    # Without index entries its times are unknown, so a search by time must not skip it.
    latest = trailer.max_time if trailer.entries else TIME_UNKNOWN
    end = min(base + trailer.span, OFFSET_MAX)
    return SegmentFact(
        end, size, trailer.records, trailer.min_time, latest, header.created, header.salt, trailer.expiry_low,
        trailer.expiry_high,
    )  # fmt: skip
