"""Identities: the writes with a dedupe id that a partition holds, read from the headers of its newest frames."""

from __future__ import annotations

import threading
from bisect import bisect_left
from itertools import islice
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import DEDUPE_EPOCH, HEADER_BYTES, MAGIC, Attributes, crc32c, salt_chain
from tailrace.disk.partition import segment_bases
from tailrace.disk.segment import CHUNK_BYTES, PRODUCER, Read, read_footer, read_segment_header, reading, segment_name
from tailrace.disk.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
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
# With fewer ids, those of segments that left the window stay in memory.
PRUNED_IDS_MIN = 1_024


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


def read_identities(read: Read, place: Place, stop: int) -> tuple[list[tuple[int, int]], Place]:
    """Return the digest and the first offset of every write with a dedupe id, and the place after the last frame.

    Only headers are looked at, in one loop: with a million of them each step counts.
    """
    base, salt, position, offset, chain = place
    found: list[tuple[int, int]] = []
    data: bytes | memoryview = b""
    view, first, unpack, checksum = memoryview(data), position, _HEAD.unpack_from, crc32c
    while position + HEADER_BYTES <= stop:
        at = position - first
        if at + HEADER_BYTES > len(view):
            data = read(min(CHUNK_BYTES, stop - position), position)
            view, first, at = memoryview(data), position, 0
            if len(view) < HEADER_BYTES:
                break
        magic, length, relative, span, producer, epoch, sequence, link, crc = unpack(data, at)
        if (
            magic != MAGIC
            or link != chain
            or relative != offset
            or crc != checksum(view[at : at + _CHECKED_BYTES])
            or position + HEADER_BYTES + length > stop
        ):
            break
        if epoch == DEDUPE_EPOCH and producer and not sequence:
            found.append((producer, base + offset))
        position += HEADER_BYTES + length + 7 & ~7
        offset += span
        chain = crc
    return found, Place(base, salt, position, offset, chain)


class SegmentIds(NamedTuple):
    """What the headers and the footer of a segment say: its ids with their offsets, and the place after them."""

    base: int
    created: int
    ids: list[tuple[int, int]]
    after: Place


class IdentityWindow:
    """The dedupe ids of one partition within the window of its topic, as digests with their first offsets.

    A segment counts while its successor is younger than the window. What was published is read from headers alone, and
    never remembered from this process's own writes: a write that failed leaves nothing here. Every step may be repeated
    after an interrupt.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        # Taken after the partition's lock; reentrant, because a signal handler may append.
        self.mutex = threading.RLock()
        # By digest the offset of the newest write; several where two ids have one digest. Ordered by that offset.
        self.ids: dict[int, int | tuple[int, ...]] = {}
        # Up to where the headers were read; None before the first.
        self.place: Place | None = None
        # The base and the time of creation of the segments in the window, the oldest first.
        self.segments: list[tuple[int, int]] = []
        # The longest window with which segments were looked for.
        self.window_us = 0
        # At this number of ids those of segments that left the window are removed.
        self.prune_at = PRUNED_IDS_MIN

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
        state = partition.state
        place = self.place
        key = partition.descriptor_key
        with self.mutex:
            is_here = place is not None and (state.base, state.salt) == (place.base, place.salt) == key
            if place is not None and is_here and window_us <= self.window_us:
                if place.position < state.position:
                    read = reading(partition.files, partition.descriptor)
                    ids, after = read_identities(read, place, state.position)
                    if after.position != state.position:
                        raise self._damage("Stored records are damaged", partition.path, after.end)
                    self._add_ids(ids)
                    self.place = after
            else:
                self._follow(state, window_us)

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
            count += len(found.ids)
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
                raise self._damage("The header of a segment is damaged", path, base)
            salt, stop, table = header.salt, state.position, b""
            if (base, salt) != (state.base, state.salt):
                footer = read_footer(files, descriptor, salt)
                if footer is None:
                    raise self._damage("The footer of a segment is damaged", path, base)
                stop, table = footer.position, footer.producers
            # A rewrite since the last look moved the frames.
            if place is None or (place.base, place.salt) != (base, salt):
                place = Place(base, salt, SEGMENT_HEADER_BYTES, 0, salt_chain(salt))
            ids, after = read_identities(reading(files, descriptor), place, stop)
        finally:
            files.close(descriptor)
        if after.position != stop:
            raise self._damage("Stored records are damaged", path, after.end)
        if table:
            rows = PRODUCER.iter_unpack(table)
            ids += [(row[0], base + row[1] - row[2]) for row in rows if row[3] == DEDUPE_EPOCH]
            ids.sort(key=itemgetter(1))
        return SegmentIds(base, header.created, ids, after)

    def _add(self, found: SegmentIds | None) -> None:
        """Add the ids of a segment, then move the place; harmless if repeated."""
        if found is None:
            return
        if not self.segments or self.segments[-1][0] < found.base:
            self.segments = [*self.segments, (found.base, found.created)]
        self._add_ids(found.ids)
        self.place = found.after

    def _add_ids(self, found: list[tuple[int, int]]) -> None:
        ids = self.ids
        for digest, offset in found:
            known = ids.get(digest)
            if known is None:
                ids[digest] = offset
            elif known != offset:
                floor = self.segments[0][0]
                offsets = {offset, *((known,) if isinstance(known, int) else known)}
                # At the end, because the order is that of the newest offset.
                ids.pop(digest)
                left = sorted(each for each in offsets if each >= floor)
                ids[digest] = left[0] if len(left) == 1 else tuple(left)
        most = self.partition.context.tuning.dedupe_ids_max
        if len(ids) > most + most // 8:
            self.ids = dict(islice(ids.items(), len(ids) - most, None))
        elif len(ids) >= self.prune_at:
            floor = self.segments[0][0]
            self.ids = {
                digest: known
                for digest, known in [*ids.items()]
                if (known if isinstance(known, int) else known[-1]) >= floor
            }
            self.prune_at = max(PRUNED_IDS_MIN, 2 * len(self.ids))

    def _damage(self, message: str, path: str, first: int) -> CorruptionError:
        return CorruptionError(
            f"{message}, so it cannot be told which dedupe ids it holds",
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
    for frame in reader.frames(first, reader.partition.end, lost=True):
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
