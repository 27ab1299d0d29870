"""The segments of a log, examined within a time limit: whether they join, their sizes and ages, a sample of records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import read_header, salt_chain
from tailrace.disk.segment import (
    HEADER_BYTES,
    NOTHING_LOST,
    read_footer,
    read_segment_header,
    reading,
    segment_base,
    segment_name,
    walk,
)
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, StorageError, TopicNotFoundError, VersionError
from tailrace.maintain.doctor.look import partition_name
from tailrace.names import STAGED_SUFFIX
from tailrace.types import Damage

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.partition import Partition
    from tailrace.disk.segment import Index
    from tailrace.disk.store import Store
    from tailrace.disk.tails import State
    from tailrace.engine.engine import Engine

# For the whole survey; verify reads everything.
SURVEY_SECONDS = 3.0
# How many of the newest segments of a partition are examined, and how many records are sampled.
SEGMENTS_MAX = 64
PLACES_MAX = 4


class Look(NamedTuple):
    """One segment: its creation time, the time of its last write as far as known, and its size."""

    topic: str
    partition: int
    base: int
    bytes: int
    created: int
    newest: int | None
    active: bool

    @property
    def name(self) -> str:
        return partition_name(self.topic, self.partition)


class SegmentSurvey(NamedTuple):
    """The observations of all segments."""

    looks: tuple[Look, ...] = ()
    damage: tuple[Damage, ...] = ()
    # Ranges that a repair replaced by placeholders.
    lost: tuple[Damage, ...] = ()
    # Partitions without records and without a directory.
    missing: tuple[str, ...] = ()
    # What has a newer version, as text.
    newer: tuple[str, ...] = ()
    # Number of segments by topic.
    counts: dict[str, int] = {}
    # Paths of staged segments.
    staged: tuple[str, ...] = ()


def survey(engine: Engine) -> SegmentSurvey:
    """Examine every partition, failed ones first, as long as there is time."""
    return _Survey(engine).run()


class _Survey:
    def __init__(self, engine: Engine) -> None:
        self.store: Store = engine.store
        self.files: Files = engine.files
        self.catalog = engine.refresh()
        self.looks: list[Look] = []
        self.damage: list[Damage] = []
        self.lost: list[Damage] = []
        self.missing: list[str] = []
        self.newer: list[str] = []
        self.counts: dict[str, int] = {}
        self.staged: list[str] = []

    def run(self) -> SegmentSurvey:
        deadline = self.files.monotonic() + SURVEY_SECONDS
        todo = list(self._partitions())
        # A random order, so that partitions that are left out this time may come first the next time.
        seed = int.from_bytes(self.files.random_bytes(4), "little")
        todo.sort(key=lambda each: (not each[1].failed, hash((seed, each[1].slot))))
        for topic, partition in todo:
            if self.files.monotonic() > deadline:
                break
            try:
                self._look(topic, partition)
            except FileNotFoundError:
                # Removed or dropped at this moment.
                continue
        return SegmentSurvey(
            tuple(self.looks), tuple(self.damage), tuple(self.lost), tuple(self.missing), tuple(self.newer),
            self.counts, tuple(self.staged),
        )  # fmt: skip

    def _partitions(self) -> Iterator[tuple[str, Partition]]:
        for entry in list(self.catalog.by_name.values()):
            for slot in entry.slots:
                partition = self.store.locate(slot)
                if partition is not None:
                    yield entry.name, partition

    def _look(self, topic: str, partition: Partition) -> None:
        block = self.store.tails.read_block(partition.slot)
        state = block[1] if block is not None and block[2] == partition.incarnation else None
        start, end = partition.start, partition.end
        try:
            names = self.files.list_directory(partition.path)
        except FileNotFoundError:
            # A drop marks a partition dead before it removes the directory: a live one has lost it.
            names = None
        bases = sorted(base for name in names or () if (base := segment_base(name)) is not None and base < end)
        if not partition.alive:
            if not self.store.is_dropped(partition.slot, partition.incarnation):
                self._report(topic, partition, None, None, self.store.tails.path, "its slot in the tails was cleared")
            return
        if names is None and end > start:
            self._report(topic, partition, start, end - 1, partition.path, "its directory is missing")
            return
        if names is None:
            self.missing.append(partition_name(topic, partition.index))
            return
        self.staged += [f"{partition.path}/{name}" for name in names if name.endswith(STAGED_SUFFIX)]
        self.counts[topic] = self.counts.get(topic, 0) + len(bases)
        known = len(self.damage) + len(self.newer)
        # Without any segment everything up to the end is missing.
        first = bases[0] if bases else end
        if first > start and not self._gone(partition, first):
            self._report(topic, partition, start, first - 1, partition.path, "a segment is missing")
        for base, stop in list(pairwise([*bases, end]))[-SEGMENTS_MAX:]:
            if stop > start:
                self._segment(topic, partition, state, base, stop)
        if len(self.damage) + len(self.newer) == known:
            self._sample(topic, partition, start, end)

    def _segment(self, topic: str, partition: Partition, state: State | None, base: int, stop: int) -> None:
        path = f"{partition.path}/{segment_name(base)}"
        active = state is not None and state.base == base and state.active
        descriptor = self.files.open(path)
        try:
            size = self.files.stat_open(descriptor).size
            header = read_segment_header(self.files, descriptor)
            if header is None:
                # An active segment may be in creation.
                if not active or size > HEADER_BYTES:
                    self._report(topic, partition, base, stop - 1, path, "the header is damaged")
                return
            if not header.belongs(partition.topic_id, partition.index, base):
                wrong = f"the header {header.misfit(partition.topic_id, partition.index)}"
                self._report(topic, partition, base, stop - 1, path, wrong)
                return
            footer = read_footer(self.files, descriptor, header.salt)
            newest = footer.max_time if footer is not None else None
            if footer is None and active and state is not None and state.last:
                frame = read_header(self.files.read(descriptor, FRAME_HEADER_BYTES, state.last))
                newest = None if frame is None else frame.max_time
            if footer is not None and footer.records < footer.span and not footer.flags & NOTHING_LOST:
                self._find_lost(topic, partition, path, base, descriptor, footer)
        except VersionError as error:
            self.newer.append(f"{path}: {error.message}")
            return
        finally:
            self.files.close(descriptor)
        if active and state is not None:
            # The zeros ahead of its frames are not records.
            size = min(size, state.position)
        self.looks.append(Look(topic, partition.index, base, size, header.created, newest, active))
        # The newest segment may have been sealed or have grown meanwhile.
        if state is None or base >= state.base or self._gone(partition, stop):
            return
        if footer is None:
            self._report(topic, partition, base, stop - 1, path, "the footer is damaged")
        elif base + footer.span < stop:
            first = base + footer.span
            missing = f"{partition.path}/{segment_name(first)}"
            self._report(topic, partition, first, stop - 1, missing, "the segment is missing")
        elif base + footer.span > stop:
            self._report(topic, partition, stop - 1, stop - 1, path, "it reaches into the next one")

    def _find_lost(
        self, topic: str, partition: Partition, path: str, base: int, descriptor: int, footer: Index
    ) -> None:
        """Find the placeholders of a segment whose footer counts fewer records than offsets, by its frame headers."""
        chain, stop = salt_chain(footer.salt), footer.position
        for found in walk(reading(self.files, descriptor), HEADER_BYTES, 0, chain, stop, bodies=False):
            if found.header.lost:
                first = base + found.header.base
                last = first + found.header.span - 1
                self.lost.append(Damage(topic, partition.index, first, last, path, found.position, "lost"))

    def _is_lost(self, topic: str, partition: Partition, offset: int) -> bool:
        return any(
            (each.topic, each.partition) == (topic, partition.index) and (each.first or 0) <= offset <= (each.last or 0)
            for each in self.lost
        )

    def _sample(self, topic: str, partition: Partition, start: int, end: int) -> None:
        """Read the records at both ends, and at a few places in between."""
        if start >= end:
            return
        places = {start, end - 1}
        while len(places) < min(PLACES_MAX, end - start):
            places.add(start + int.from_bytes(self.files.random_bytes(8), "little") % (end - start))
        reader = self.store.reader(partition)
        try:
            known = -1
            for place in sorted(places):
                if place <= known:
                    # Within a range that was reported already.
                    continue
                try:
                    for frame in reader.frames(place, place + 1):
                        reader.columns(frame)
                except CorruptionError as error:
                    first, last = error.first if error.first is not None else place, error.last
                    known = end if last is None else last
                    if self._is_lost(topic, partition, first):
                        continue
                    self._report(topic, partition, first, last, error.path or partition.path, error.message)
        except (OffsetOutOfRangeError, TopicNotFoundError):
            return
        except VersionError as error:
            self.newer.append(f"{partition.path}: {error.message}")
        except StorageError as error:
            self._report(topic, partition, None, None, error.path or partition.path, error.message)
        finally:
            reader.close()

    def _gone(self, partition: Partition, stop: int) -> bool:
        """Return whether the records up to an offset were removed meanwhile."""
        return not partition.alive or partition.start >= stop

    def _report(
        self, topic: str, partition: Partition, first: int | None, last: int | None, path: str, reason: str
    ) -> None:
        found = Damage(topic, partition.index, first, last, path, 0, reason)
        if found not in self.damage:
            self.damage.append(found)
