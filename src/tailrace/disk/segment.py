"""The segment: one file of chained frames, with a footer once it is sealed (docs/format.md, section 3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain as concatenate
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import MAGIC as FRAME_MAGIC
from tailrace.disk.frame import Header, Prepared, body_fits, crc32c, read_header, salt_chain
from tailrace.errors import VersionError
from tailrace.limits import INDEX_ENTRIES_MAX, OFFSET_MAX

if TYPE_CHECKING:
    from tailrace.disk.files import Files

MAGIC = b"TRSEGMT1"
FOOTER_MAGIC = b"TRFOOTR1"
VERSION = 1
HEADER = Struct("<8sIIQQqQ12sI")
HEADER_BYTES = 64
# What stands for a base that a header does not say, as that of a staged segment.
UNSAID = -1
ENTRY = Struct("<QQqqII")
TRAILER = Struct("<8sIIQQQQqqIIII12sI")
TRAILER_BYTES = 96
CHUNK_BYTES = 262_144
_FRAME_MAGIC = FRAME_MAGIC.to_bytes(4, "little")
INDEX_STRETCH_BYTES = 65_536

# Reads (count, position); fewer bytes only at the end of the file.
Read = Callable[[int, int], "bytes | memoryview"]


class SegmentHeader(NamedTuple):
    """Whose segment this is, and the offset of its first record, as far as it says that."""

    topic_id: int
    partition: int
    salt: int
    created: int
    base: int = UNSAID

    def belongs(self, topic_id: int, partition: int, base: int) -> bool:
        """Whether the segment may stand there: a file that got its name by hand says another place."""
        # rule: segment's own place
        return (self.topic_id, self.partition) == (topic_id, partition) and (self.base < 0 or self.base == base)

    def misfit(self, topic_id: int, partition: int) -> str:
        """In words why it may not stand where it was found, in a partition."""
        if (self.topic_id, self.partition) != (topic_id, partition):
            return "belongs to another partition"
        return f"says that its first record is {self.base}: the file has the name of another"


class Found(NamedTuple):
    """A frame met by a walk: where its header lies in the file, and in the buffer that was read."""

    position: int
    header: Header
    buffer: memoryview
    at: int

    @property
    def body(self) -> memoryview:
        """The body as stored."""
        start = self.at + FRAME_HEADER_BYTES
        return self.buffer[start : start + self.header.body_length]


class Index:
    """Where frames lie: an entry for each stretch of at least 64 KiB, and what a footer says of the whole."""

    __slots__ = ("chain", "chains", "highs", "lows", "offsets", "position", "positions", "records", "salt", "span")

    def __init__(self, salt: int) -> None:
        self.salt = salt
        self.offsets: list[int] = []
        self.positions: list[int] = []
        self.lows: list[int] = []
        self.highs: list[int] = []
        self.chains: list[int] = []
        self.span = 0
        self.records = 0
        self.position = HEADER_BYTES
        self.chain = salt_chain(salt)

    @classmethod
    def of_whole(cls, salt: int, span: int, position: int, chain: int) -> Index:
        """An index with one entry for all frames, whatever their times: enough for a segment that is about to go."""
        index = cls(salt)
        index.add(span, span, 0, OFFSET_MAX, position - HEADER_BYTES, chain)
        return index

    def add(self, count: int, span: int, low: int, high: int, size: int, chain: int) -> None:
        """Take in the frame (or group of frames) that lies at `position`; `chain` is what follows from it."""
        position = self.position
        if self.positions and position - self.positions[-1] < INDEX_STRETCH_BYTES:
            if low < self.lows[-1]:
                self.lows[-1] = low
            if high > self.highs[-1]:
                self.highs[-1] = high
        else:
            self.offsets.append(self.span)
            self.positions.append(position)
            self.lows.append(low)
            self.highs.append(high)
            self.chains.append(self.chain)
        self.span += span
        self.records += count
        self.position = position + size
        self.chain = chain

    def add_frame(self, header: Header) -> None:
        """Take in the frame with this header, which lies at `position`."""
        self.add(header.count, header.span, header.min_time, header.max_time, header.size, header.crc)

    def add_placed(self, frames: Sequence[Prepared], buffers: Sequence[bytes]) -> None:
        """Take in frames that were just placed; in `buffers` a header is followed by its body and perhaps padding."""
        rest = iter(buffers)
        for frame in frames:
            head = next(rest)
            next(rest)
            if len(frame.body) & 7:
                next(rest)
            chain = int.from_bytes(head[FRAME_HEADER_BYTES - 4 :], "little")
            self.add(frame.count, frame.span, frame.min_time, frame.max_time, frame.size, chain)

    def copy(self) -> Index:
        """The same index, to be extended on its own."""
        other = Index(self.salt)
        for name in ("offsets", "positions", "lows", "highs", "chains"):
            setattr(other, name, [*getattr(self, name)])
        other.span, other.records, other.position, other.chain = self.span, self.records, self.position, self.chain
        return other

    def find(self, offset: int) -> int:
        """The entry whose stretch holds a relative offset below `span`."""
        return max(0, bisect_right(self.offsets, offset) - 1)

    def from_time(self, time: int) -> int | None:
        """The first entry that holds a record at or after a time."""
        return next((entry for entry, high in enumerate(self.highs) if high >= time), None)

    @property
    def min_time(self) -> int:
        """The smallest timestamp, 0 without records."""
        return min(self.lows, default=0)

    @property
    def max_time(self) -> int:
        """The largest timestamp, 0 without records."""
        return max(self.highs, default=0)

    def pack_footer(self) -> bytes:
        """The footer of a segment whose frames are all in this index."""
        rows = zip(self.offsets, self.positions, self.lows, self.highs, self.chains, strict=True)
        body = b"".join(ENTRY.pack(*row, 0) for row in rows)
        trailer = TRAILER.pack(
            FOOTER_MAGIC, VERSION, 0, self.salt, self.span, self.records, self.position, self.min_time, self.max_time,
            len(self.offsets), 0, self.chain, crc32c(body), bytes(12), 0,
        )[:-4]  # fmt: skip
        return body + trailer + crc32c(trailer).to_bytes(4, "little")


def pack_header(topic_id: int, partition: int, salt: int, created: int, base: int = UNSAID) -> bytes:
    """The 64 bytes a segment begins with; a staged one does not know its base."""
    # One more than the base, so that zeros say nothing.
    packed = HEADER.pack(MAGIC, VERSION, partition, topic_id, salt, created, base + 1, bytes(12), 0)[:-4]
    return packed + crc32c(packed).to_bytes(4, "little")


def parse_header(data: bytes) -> SegmentHeader | None:
    """The header, or None when it is short or does not check."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, partition, topic_id, salt, created, said, _, crc = HEADER.unpack_from(data)
    if magic != MAGIC or crc != crc32c(data[: HEADER_BYTES - 4]):  # rule: segment header's checksum
        return None
    if version != VERSION:
        raise VersionError(f"A segment has version {version}, which this version of Tailrace does not know.")
    return SegmentHeader(topic_id, partition, salt, created, said - 1)


def read_segment_header(files: Files, descriptor: int) -> SegmentHeader | None:
    """The header of an open segment."""
    return parse_header(files.read(descriptor, HEADER_BYTES, 0))


def read_footer(files: Files, descriptor: int, salt: int) -> Index | None:
    """The index in a sealed segment's footer, or None when there is no whole footer of this segment."""
    size = files.stat_open(descriptor).size
    if size < HEADER_BYTES + TRAILER_BYTES:
        return None
    trailer = files.read(descriptor, TRAILER_BYTES, size - TRAILER_BYTES)
    # rule: footer's checksum
    if len(trailer) < TRAILER_BYTES or crc32c(trailer[:-4]) != int.from_bytes(trailer[-4:], "little"):
        return None
    (magic, version, _, own_salt, span, records, frames_end, _, _, entries, producers, chain, body_crc, _, _) = (
        TRAILER.unpack(trailer)
    )
    if magic != FOOTER_MAGIC or own_salt != salt:
        return None
    if version != VERSION:
        raise VersionError(f"A segment's footer has version {version}, which this version of Tailrace does not know.")
    body_bytes = size - TRAILER_BYTES - frames_end
    if entries > INDEX_ENTRIES_MAX or body_bytes != entries * ENTRY.size + producers * 24 or frames_end < HEADER_BYTES:
        return None
    if records > span or span > OFFSET_MAX:
        return None
    body = files.read(descriptor, body_bytes, frames_end)
    if crc32c(body) != body_crc:  # rule: footer index's checksum
        return None
    index = Index(salt)
    columns = list(zip(*ENTRY.iter_unpack(body[: entries * ENTRY.size]), strict=True))
    if columns:
        index.offsets, index.positions, index.lows, index.highs, index.chains = (list(c) for c in columns[:5])
        # A search in numbers that do not rise ends nowhere, or never.
        for numbers, low, stop in ((index.offsets, 0, span), (index.positions, HEADER_BYTES, frames_end)):
            if numbers[0] < low or numbers[-1] >= stop or numbers != sorted(numbers):
                return None
    index.span, index.records, index.position, index.chain = span, records, frames_end, chain
    return index


def lost_ranges(files: Files, descriptor: int) -> list[tuple[int, int]]:
    """The relative offsets (first and last) for which a repair left placeholders in an open segment.

    A repair seals what it writes, and the footer counts records apart from offsets: of any other segment no more than
    the trailer is read.
    """
    size = files.stat_open(descriptor).size
    trailer = files.read(descriptor, TRAILER_BYTES, size - TRAILER_BYTES) if size > TRAILER_BYTES else b""
    if len(trailer) < TRAILER_BYTES or not trailer.startswith(FOOTER_MAGIC):
        return []
    span, records = TRAILER.unpack(trailer)[4:6]
    header = read_segment_header(files, descriptor) if span != records else None
    footer = None if header is None else read_footer(files, descriptor, header.salt)
    if footer is None:
        return []
    chain, stop = salt_chain(footer.salt), footer.position
    walked = walk(reading(files, descriptor), HEADER_BYTES, 0, chain, stop, bodies=False)
    return [(found.header.base, found.header.base + found.header.span - 1) for found in walked if found.header.lost]


def find_magic(read: Read, position: int, stop: int) -> int:
    """The next multiple of 8 from a position on at which a frame's magic stands, -1 when there is none."""
    position = position + 7 & ~7
    while position < stop:
        chunk = bytes(read(min(CHUNK_BYTES, stop - position), position))
        if not chunk:
            return -1
        at = chunk.find(_FRAME_MAGIC)
        while at >= 0:
            if at % 8 == 0:
                return position + at
            at = chunk.find(_FRAME_MAGIC, at + 1)
        position += len(chunk) - len(chunk) % 8 or 8
    return -1


def footer_bytes(index: Index) -> int:
    """How long the footer of this index is."""
    return len(index.offsets) * ENTRY.size + TRAILER_BYTES


def reading(files: Files, descriptor: int) -> Read:
    """How a walk reads an open file."""
    return lambda count, position: files.read(descriptor, count, position)


def walk(read: Read, position: int, offset: int, chain: int, stop: int, *, bodies: bool) -> Iterator[Found]:
    """Frames from `position` on that fit: chain, relative offset, checksums; ends at `stop` or before the first misfit.

    With `bodies` the bodies are read and checked as well; without, large ones are stepped over. A negative `offset`
    takes the first frame's own.
    """
    buffer, first = memoryview(b""), position
    while position + FRAME_HEADER_BYTES <= stop:
        at = position - first
        if at + FRAME_HEADER_BYTES > len(buffer):
            buffer = memoryview(read(min(CHUNK_BYTES, stop - position), position))
            first, at = position, 0
        header = read_header(buffer, at)
        if header is None or header.chain != chain or position + header.length > stop:  # rule: frames chained
            return
        if header.base != offset:  # rule: offset in a frame
            if offset >= 0 or header.base > OFFSET_MAX:
                return
            offset = header.base
        if bodies:
            if at + FRAME_HEADER_BYTES + header.body_length > len(buffer):
                buffer = memoryview(read(max(min(CHUNK_BYTES, stop - position), header.size), position))
                first, at = position, 0
            if not body_fits(buffer, at, header):
                return
        yield Found(position, header, buffer, at)
        position += header.size
        offset += header.span
        chain = header.crc


def extend_index(read: Read, index: Index, stop: int) -> bool:
    """Take in the frames between the index's position and `stop`; False when they do not all fit."""
    for found in walk(read, index.position, index.span, index.chain, stop, bodies=False):
        index.add_frame(found.header)
    return index.position == stop


def whole_groups(found: Iterator[Found]) -> Iterator[list[Found]]:
    """Frames gathered into the groups they were written in; an unfinished group at the end is dropped."""
    group: list[Found] = []
    for frame in found:
        group.append(frame)
        if not frame.header.more:  # rule: whole groups
            yield group
            group = []


def flatten(groups: Iterator[list[Found]]) -> Iterator[Found]:
    """The frames of whole groups."""
    return concatenate.from_iterable(groups)


def segment_name(base: int) -> str:
    """The file name of a segment by the offset of its first record."""
    return f"{base:020d}.seg"


def segment_base(name: str) -> int | None:
    """The offset in a segment's file name, None for other files."""
    if len(name) == 24 and name.endswith(".seg") and name[:20].isdigit() and name.isascii():
        return int(name[:20])
    return None
