"""Identities: the writes with a dedupe id that a partition holds, read from the headers of its newest frames."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import DEDUPE_EPOCH, HEADER_BYTES, MAGIC, Attributes, crc32c, salt_chain
from tailrace.disk.partition import segment_bases
from tailrace.disk.reader import Frame
from tailrace.disk.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from tailrace.disk.segment import PRODUCER, Read, read_footer, read_segment_header, reading, segment_name, walk
from tailrace.disk.tails import HAS_SEGMENT
from tailrace.errors import CorruptionError

if TYPE_CHECKING:
    from tailrace.disk.frame import Header
    from tailrace.disk.partition import Partition
    from tailrace.disk.reader import Reader
    from tailrace.disk.tails import State

# Of a frame's header: magic, length of the body, base, span, producer, epoch, sequence, chain, CRC.
_HEAD = Struct("<I8xI8xQI20xQH2xI16xII")
_CHECKED_BYTES = HEADER_BYTES - 4
# With more unread records than this, the headers are read before the lock is taken.
BEHIND_RECORDS_MAX = 4_096
# How many bytes of headers and bodies are read at once, and the distance of the marks in the newest segment.
MARK_BYTES = 65_536
# With fewer ids, those of segments that left the window stay in memory.
PRUNED_IDS_MIN = 1_024


# Digests of writes with the offsets at which they begin, in the order of the offsets.
Ids = tuple[Sequence[int], Sequence[int]]


class Place(NamedTuple):
    """Where the next frame is: in which version of which segment, its position, relative offset and chain."""

    base: int
    salt: int
    position: int
    offset: int
    chain: int

    @property
    def end(self) -> int:
        """The offset of that frame in the partition."""
        return self.base + self.offset


class StoredPart(NamedTuple):
    """What is stored of an earlier write: its offsets, and the headers of its first record, None if it was removed."""

    offsets: range
    headers: bytes | None


def read_identities(read: Read, place: Place, stop: int) -> tuple[Ids, list[Place]]:
    """Return the digest and the first offset of every write with a dedupe id, and the places between chunks.

    The last place is the one after the last frame.
    Only headers are looked at, in one loop: with a million of them each step counts.
    """
    base, salt, position, offset, chain = place
    digests, offsets = array("Q"), array("q")
    places: list[Place] = []
    add_digest, add_offset, unpack, checksum = digests.append, offsets.append, _HEAD.unpack_from, crc32c
    while position + HEADER_BYTES <= stop:
        data = memoryview(read(min(MARK_BYTES, stop - position), position))
        last, most = len(data) - HEADER_BYTES, stop - position - HEADER_BYTES
        at = 0
        while at <= last:
            magic, length, relative, span, producer, epoch, sequence, link, crc = unpack(data, at)
            if (
                link != chain
                or crc != checksum(data[at : at + _CHECKED_BYTES])
                or magic != MAGIC
                or relative != offset
                or at + length > most
            ):
                return (digests, offsets), [*places, Place(base, salt, position + at, offset, chain)]
            if producer and epoch == DEDUPE_EPOCH and not sequence:
                add_digest(producer)
                add_offset(base + offset)
            at += HEADER_BYTES + length + 7 & ~7
            offset += span
            chain = crc
        if not at:
            break
        position += at
        places.append(Place(base, salt, position, offset, chain))
    return (digests, offsets), places or [place]


class SegmentIds(NamedTuple):
    """What the headers and the footer of a segment say: its ids with their offsets, and places, the last after them."""

    base: int
    created: int
    ids: Ids
    places: list[Place]


class IdentityWindow:
    """The dedupe ids of one partition within the window of its topic, as digests with their first offsets.

    A segment counts while its successor is younger than the window. What was published is read from headers alone; the
    process's own writes join after they were published, so that they need not be read. A write that failed leaves
    nothing here. Every step may be repeated after an interrupt.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        # Taken after the partition's lock; reentrant, because a signal handler may append.
        self.mutex = threading.RLock()
        # By digest the offset of the newest write; several where two ids have one digest. Ordered by that offset.
        self.ids: dict[int, int | tuple[int, ...]] = {}
        # Up to where the headers were read; None before the first.
        self.place: Place | None = None
        # Places in the newest segment, from which its records are found: it has no footer yet.
        self.marks: list[Place] = []
        # The base and the time of creation of the segments in the window, the oldest first.
        self.segments: list[tuple[int, int]] = []
        # The longest window with which segments were looked for.
        self.window_us = 0
        # At this number of ids those of segments that left the window are removed.
        self.prune_at = PRUNED_IDS_MIN
        # The first offset of the window when that was done last.
        self.pruned = 0

    def prepare(self, window_us: int) -> None:
        """Read most headers before the lock is taken, where they are many."""
        place = self.place
        if place is not None and window_us <= self.window_us and self.partition.end - place.end <= BEHIND_RECORDS_MAX:
            return
        block = self.partition.context.tails.read_block(self.partition.slot)
        if block is None or block[2] != self.partition.incarnation:
            return
        with self.mutex:
            try:
                self._follow(block[1], window_us)
            except CorruptionError:
                # Another process rolled or rewrote a segment meanwhile; the look under the lock decides.
                return

    def follow(self, window_us: int) -> None:
        """Read the headers of what was published since the last look; the caller holds the partition's lock."""
        partition = self.partition
        _, base, position, _, _, salt, *_ = partition.fields
        with self.mutex:
            place = self.place
            if place is None or (place.base, place.salt) != (base, salt) or window_us > self.window_us:
                self._follow(partition.state, window_us)
            elif place.position < position:
                self._read_on(place, position)

    def join(self, first: int, found: Ids) -> None:
        """Add the ids of a write group of this process, from its first offset to the end, once it is published.

        The caller holds the partition's lock.
        """
        end, base, position, chain, _, salt, *_ = self.partition.fields
        with self.mutex:
            place = self.place
            # After a roll the headers are read: the new segment is not in the window yet.
            if place is not None and (place.base, place.salt, place.end) == (base, salt, first):
                self._add_ids(found)
                self._move([Place(base, salt, position, end - base, chain)])

    def _read_on(self, place: Place, position: int) -> None:
        """Read the headers from a place in the newest segment up to a position."""
        partition = self.partition
        path = f"{partition.path}/{segment_name(place.base)}"
        here = partition.descriptor_key == (place.base, place.salt)
        descriptor = partition.descriptor if here else partition.files.open(path)
        try:
            ids, places = read_identities(reading(partition.files, descriptor), place, position)
        finally:
            if not here:
                partition.files.close(descriptor)
        if places[-1].position != position:
            raise self.damage(path, places[-1].end)
        self._add_ids(ids)
        self._move(places)

    def _move(self, places: list[Place]) -> None:
        """Move the place to the last of some, and keep marks of the newest segment."""
        marks = self.marks
        if not marks or (marks[0].base, marks[0].salt) != (places[0].base, places[0].salt):
            marks = self.marks = []
        for place in places:
            if not marks or place.position - marks[-1].position >= MARK_BYTES // 2:
                marks.append(place)
        self.place = places[-1]

    def mark_before(self, offset: int) -> Place | None:
        """Return a place in the newest segment from which a record is found soon; None for a sealed segment."""
        marks, place = self.marks, self.place
        if place is None or offset < place.base or not marks or marks[0].base != place.base:
            return None
        at = bisect_right(marks, offset, key=lambda mark: mark.end) - 1
        return marks[at] if at >= 0 else Place(place.base, place.salt, SEGMENT_HEADER_BYTES, 0, salt_chain(place.salt))

    def find(self, digest: int, window_us: int) -> list[int]:
        """Return the offsets at which writes with a digest begin, the newest first."""
        known = self.ids.get(digest)
        if known is None:
            return []
        floor = self._floor(window_us)
        offsets = (known,) if isinstance(known, int) else reversed(known)
        return [offset for offset in offsets if offset >= floor]

    def _floor(self, window_us: int) -> int:
        """Return the first offset of the window."""
        segments, oldest = self.segments, self.partition.files.now_us() - window_us
        while len(segments) > 1 and segments[1][1] <= oldest:
            segments = self.segments = segments[1:]
        return max(segments[0][0] if segments else 0, self.partition.start)

    def _follow(self, state: State, window_us: int) -> None:
        """Read up to a state: all segments of the window at first, then those from the last place on."""
        if not state.flags & HAS_SEGMENT:
            return
        partition, place = self.partition, self.place
        bases = segment_bases(partition.files, partition.path, state)
        if window_us > self.window_us:
            # The window of the topic became longer, so that older segments count as well.
            place = self.place = None
            self.ids, self.segments, self.window_us = {}, [], window_us
        if place is not None:
            for base in bases[bisect_left(bases, place.base) :]:
                # After a trim the segment of the place may be gone; those after it are read from their beginning.
                self._add(self._read(base, state))
            return
        oldest = partition.files.now_us() - window_us
        read: list[SegmentIds] = []
        count = 0
        for base in reversed(bases):
            if (read and read[-1].created <= oldest) or count >= partition.context.tuning.dedupe_ids_max:
                break
            found = self._read(base, state)
            if found is None:
                # Trimmed meanwhile, and so is all before it.
                break
            read.append(found)
            count += len(found.ids[0])
        for found in reversed(read):
            self._add(found)

    def _read(self, base: int, state: State) -> SegmentIds | None:
        """Return the ids of one segment, from the last place on if that is in it; None if it was trimmed."""
        partition, place = self.partition, self.place
        files, path = partition.files, f"{partition.path}/{segment_name(base)}"
        try:
            descriptor = files.open(path)
        except FileNotFoundError:
            return None
        try:
            header = read_segment_header(files, descriptor)
            if header is None or not header.belongs(partition.topic_id, partition.index, base):
                raise self.damage(path, base)
            salt, stop, table = header.salt, state.position, b""
            if (base, salt) != (state.base, state.salt):
                footer = read_footer(files, descriptor, salt)
                if footer is None:
                    raise self.damage(path, base)
                stop, table = footer.position, footer.producers
            # A rewrite since the last look moved the frames.
            if place is None or (place.base, place.salt) != (base, salt):
                place = Place(base, salt, SEGMENT_HEADER_BYTES, 0, salt_chain(salt))
            ids, places = read_identities(reading(files, descriptor), place, stop)
        finally:
            files.close(descriptor)
        if places[-1].position != stop:
            raise self.damage(path, places[-1].end)
        if table:
            rows = PRODUCER.iter_unpack(table)
            told = [(row[0], base + row[1] - row[2]) for row in rows if row[3] == DEDUPE_EPOCH]
            together = sorted([*told, *zip(*ids, strict=True)], key=itemgetter(1))
            ids = [digest for digest, _ in together], [offset for _, offset in together]
        return SegmentIds(base, header.created, ids, places)

    def _add(self, found: SegmentIds | None) -> None:
        """Add the ids of a segment, then move the place; harmless if repeated."""
        if found is None:
            return
        if not self.segments or self.segments[-1][0] < found.base:
            self.segments = [*self.segments, (found.base, found.created)]
        self._add_ids(found.ids)
        self._move(found.places)

    def _add_ids(self, found: Ids) -> None:
        ids, fresh = self.ids, dict(zip(*found, strict=True))
        if len(fresh) == len(found[0]) and ids.keys().isdisjoint(fresh):
            ids.update(fresh)
        else:
            for digest, offset in zip(*found, strict=True):
                self._add_id(digest, offset)
        most = self.partition.context.tuning.dedupe_ids_max
        if len(ids) > most + most // 8:
            self.ids = dict(islice(ids.items(), len(ids) - most, None))
        floor = self.segments[0][0]
        if len(self.ids) >= self.prune_at and floor > self.pruned:
            some = [*self.ids.items()]
            left = {each: known for each, known in some if (known if isinstance(known, int) else known[-1]) >= floor}
            self.ids, self.pruned, self.prune_at = left, floor, max(PRUNED_IDS_MIN, 2 * len(left))

    def _add_id(self, digest: int, offset: int) -> None:
        """Add one id, of which there may be earlier writes: repeats after a window, or another id of that digest."""
        known = self.ids.pop(digest, ())
        floor = self.segments[0][0]
        offsets = {offset, *((known,) if isinstance(known, int) else known)}
        left = sorted(each for each in offsets if each >= floor)
        # At the end, because the order is that of the newest offset.
        if left:
            self.ids[digest] = left[0] if len(left) == 1 else tuple(left)

    def damage(self, path: str, first: int) -> CorruptionError:
        """Return the error for a segment that cannot be read."""
        return CorruptionError(
            "A segment is damaged, so it cannot be told which dedupe ids it holds",
            partition=self.partition.index,
            first=first,
            path=path,
        )


def identity_window(partition: Partition) -> IdentityWindow:
    """Return the window of a partition: every call in this process returns the same object."""
    # One step, so that two threads get the same one.
    return partition.identities or vars(partition).setdefault("identities", IdentityWindow(partition))


def stored_part(reader: Reader, digest: int, first: int) -> StoredPart | None:
    """Return what is stored of a write with a dedupe id that begins at an offset; None if it is not there.

    Records that were removed since count as stored as long as the footer of their segment has the digest.
    """
    headers: bytes | None = None
    stop = first
    told = None
    for frame in _frames_from(reader, first):
        if stop == first:
            told = _told(reader, digest, first)
        if not _belongs(frame.header, frame.offset, digest, first):
            break
        if headers is None:
            headers = reader.columns(frame).headers(0)
        stop = frame.offset + frame.header.span
        if told is not None:
            break
    if told is not None:
        stop = told
    return None if stop == first else StoredPart(range(first, stop), headers)


def _frames_from(reader: Reader, first: int) -> Iterator[Frame]:
    """Yield the frames from an offset on; without building an index of the newest segment, which takes seconds."""
    partition = reader.partition
    window = identity_window(partition)
    mark, place = window.mark_before(first), window.place
    if mark is None or place is None:
        yield from reader.frames(first, partition.end, lost=True)
        return
    files = partition.files
    descriptor = files.open(f"{partition.path}/{segment_name(mark.base)}")
    try:
        read, start = reading(files, descriptor), mark
        for found in walk(read, mark.position, mark.offset, mark.chain, place.position, bodies=False):
            if mark.base + found.header.base >= first:
                break
            after, header = found.position + found.header.size, found.header
            start = Place(mark.base, mark.salt, after, header.base + header.span, header.crc)
        for found in walk(read, start.position, start.offset, start.chain, place.position, bodies=True):
            yield Frame(found.header, found.body, mark.base + found.header.base)
            start = Place(mark.base, mark.salt, found.position, found.header.base + found.header.span, 0)
        if start.end < place.end:
            raise window.damage(partition.path, start.end)
    finally:
        files.close(descriptor)


def _belongs(header: Header, offset: int, digest: int, first: int) -> bool:
    """Return whether a frame at an offset is of the write with a digest that begins at `first`."""
    if header.placeholder:
        return False
    identity = Attributes.unpack(header.attributes)
    return (identity.producer_id, identity.producer_epoch, offset - identity.sequence) == (digest, DEDUPE_EPOCH, first)


def _told(reader: Reader, digest: int, first: int) -> int | None:
    """Return the end of a write by the producer table of the segment that a reader has open; None if it has none."""
    segment = reader.segment
    if segment is None or segment.index is None:
        return None
    for row in PRODUCER.iter_unpack(segment.index.producers):
        if row[0] == digest and row[3] == DEDUPE_EPOCH and segment.base + row[1] - row[2] == first:
            return segment.base + int(row[1]) + 1
    return None
