"""The segment: one file of chained frames, with a footer once it is sealed (docs/format.md, section 3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain as concatenate
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import MAGIC as FRAME_MAGIC
from tailrace.disk.frame import (
    PLAIN,
    Header,
    Prepared,
    body_fits,
    crc32c,
    expiry_bounds,
    later_expiry,
    read_header,
    salt_chain,
)
from tailrace.errors import VersionError
from tailrace.limits import INDEX_ENTRIES_MAX, OFFSET_MAX
from tailrace.names import REWRITE_SUFFIX

if TYPE_CHECKING:
    from tailrace.disk.files import Files

MAGIC = b"TRSEGMT1"
FOOTER_MAGIC = b"TRFOOTR1"
VERSION = 1
HEADER = Struct("<8sIIQQqQQII")
HEADER_BYTES = 64
# The base of a segment whose header does not have one, such as a staged segment.
BASE_UNKNOWN = -1
# How often a segment was rewritten, if a repair cannot tell because its header is lost: more often than any marks say,
# so that its records can be read.
REWRITES_UNKNOWN = 1 << 30
ENTRY = Struct("<QQqqII")
TRAILER = Struct("<8sIIQQQQqqIIIIIIII")
# An entry of the producer table: producer id, last relative offset, sequence of that record, epoch.
PRODUCER = Struct("<QQIHxx")
TRAILER_BYTES = 96
CHUNK_BYTES = 262_144
_FRAME_MAGIC = FRAME_MAGIC.to_bytes(4, "little")
INDEX_STRETCH_BYTES = 65_536
# A flag of a footer: every offset without a record was removed on purpose, so no frame is a placeholder for lost ones.
NOTHING_LOST = 1
# How much of a sealed segment's end is read at once: the trailer and an index of up to a hundred entries.
FOOTER_READ_BYTES = 4_096

# Reads `count` bytes at a position; returns fewer only at the end of the file.
Read = Callable[[int, int], "bytes | memoryview"]


class SegmentHeader(NamedTuple):
    """The owner of a segment, and the offset of its first record if the header has it."""

    topic_id: int
    partition: int
    salt: int
    created: int
    base: int = BASE_UNKNOWN
    # The salt of its first version, and how often it was rewritten since.
    origin: int = 0
    rewrites: int = 0

    def belongs(self, topic_id: int, partition: int, base: int) -> bool:
        """Return whether the segment belongs there: a file that was renamed by hand names another partition or base."""
        # rule: segment's own place
        return (self.topic_id, self.partition) == (topic_id, partition) and (self.base < 0 or self.base == base)

    def misfit(self, topic_id: int, partition: int) -> str:
        """Return a phrase for why the segment does not belong where it was found."""
        if (self.topic_id, self.partition) != (topic_id, partition):
            return "belongs to another partition"
        return f"says that its first record is {self.base}: the file has the name of another"


class Trailer(NamedTuple):
    """The end of a footer: the totals of its segment."""

    span: int
    records: int
    frames_end: int
    min_time: int
    max_time: int
    # The number of index entries, and of producers after them.
    entries: int
    producers: int
    chain: int
    # The bounds of the expiry in seconds; both 0 if no record expires.
    expiry_low: int = 0
    expiry_high: int = 0
    flags: int = 0


class Found(NamedTuple):
    """A frame found by a walk: its position in the file, and its index in the buffer that was read."""

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
    """The index of a segment: an entry for each stretch of at least 64 KiB of frames, and the totals for the footer."""

    __slots__ = (
        "chain", "chains", "expiries", "expiry_high", "expiry_low", "flags", "highs", "included", "lows", "offsets",
        "position", "positions", "producers", "records", "salt", "span", "stretch_end", "stretch_records",
    )  # fmt: skip

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
        # Where the stretch of the newest entry ends; the next frame from there on begins another.
        self.stretch_end = 0
        # The records before that stretch.
        self.stretch_records = 0
        # For each entry the upper bound of the expiry of its records; None while no record expires.
        self.expiries: list[int] | None = None
        # The bounds of the expiry of all records.
        self.expiry_low = self.expiry_high = 0
        # The attributes of the last frame if these bounds, and those of its stretch, include them.
        self.included: bytes | None = None
        # Those of the footer.
        self.flags = 0
        # The producer table of the footer, as stored: what the headers of the frames do not say.
        self.producers = b""

    @classmethod
    def of_whole(cls, salt: int, span: int, position: int, chain: int) -> Index:
        """Return an index with one entry for all frames and all times: enough for a segment that will be removed."""
        index = cls(salt)
        index.add(span, span, 0, OFFSET_MAX, position - HEADER_BYTES, chain)
        return index

    def add(self, count: int, span: int, low: int, high: int, size: int, chain: int, attributes: bytes = PLAIN) -> None:
        """Add the frame (or group of frames) at `position`; `chain` is the chain value after it."""
        position = self.position
        if position < self.stretch_end:
            if low < self.lows[-1]:
                self.lows[-1] = low
            if high > self.highs[-1]:
                self.highs[-1] = high
        else:
            self.stretch_end = position + INDEX_STRETCH_BYTES
            self.offsets.append(self.span)
            self.positions.append(position)
            self.lows.append(low)
            self.highs.append(high)
            self.chains.append(self.chain)
            self.stretch_records = self.records
            self.included = None
        if attributes is not self.included and (attributes is not PLAIN or self.expiries is not None):
            self._add_expiry(count, *expiry_bounds(attributes))
            self.included = attributes if count else None
        self.span += span
        self.records += count
        self.position = position + size
        self.chain = chain

    def _add_expiry(self, count: int, low: int, high: int) -> None:
        """Include the expiry of `count` more records, which are not added yet, in the bounds."""
        expiries = self.expiries
        if expiries is None:
            if not high:
                return
            expiries = self.expiries = []
        expiries += [0] * (len(self.offsets) - len(expiries))
        if not count:
            # A placeholder: what it stands for neither expires nor lives on.
            return
        expiries[-1] = later_expiry(expiries[-1], high) if self.records > self.stretch_records else high
        self.expiry_high = later_expiry(self.expiry_high, high) if self.records else high
        if low:
            self.expiry_low = min(self.expiry_low, low) if self.expiry_low else low

    def add_frame(self, header: Header) -> None:
        """Add the frame with this header, which is at `position`."""
        attributes = PLAIN if header.attributes == PLAIN else header.attributes
        self.add(header.count, header.span, header.min_time, header.max_time, header.size, header.crc, attributes)

    def add_placed(self, frames: Sequence[Prepared], buffers: Sequence[bytes]) -> None:
        """Add frames that were just placed; in `buffers` each header is followed by its body and perhaps padding."""
        rest = iter(buffers)
        for frame in frames:
            head = next(rest)
            next(rest)
            if len(frame.body) & 7:
                next(rest)
            chain = int.from_bytes(head[FRAME_HEADER_BYTES - 4 :], "little")
            self.add(frame.count, frame.span, frame.min_time, frame.max_time, frame.size, chain, frame.attributes)

    def copy(self) -> Index:
        """Return a copy that can be extended independently."""
        other = Index(self.salt)
        for name in ("offsets", "positions", "lows", "highs", "chains"):
            setattr(other, name, [*getattr(self, name)])
        for name in (
            "span", "records", "position", "chain", "stretch_end", "stretch_records", "expiry_low", "expiry_high",
            "flags", "producers",
        ):  # fmt: skip
            setattr(other, name, getattr(self, name))
        other.expiries = None if self.expiries is None else [*self.expiries]
        return other

    def matches(self, footer: Index) -> bool:
        """Return whether the index of all frames of a segment is the one in its footer."""
        # The frames do not say what the flags and the producer table say, and a footer does not have the records of
        # its last stretch.
        return all(getattr(self, name) == getattr(footer, name) for name in _FOOTER_SLOTS)

    def find(self, offset: int) -> int:
        """Return the entry whose stretch holds a relative offset below `span`."""
        return max(0, bisect_right(self.offsets, offset) - 1)

    def from_time(self, time: int) -> int | None:
        """Return the first entry that holds a record at or after a time."""
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
        """Return the footer of a segment whose frames are all in this index."""
        expiries = [0] * len(self.offsets) if self.expiries is None else self.expiries
        rows = zip(self.offsets, self.positions, self.lows, self.highs, self.chains, expiries, strict=True)
        body = b"".join(ENTRY.pack(*row) for row in rows) + self.producers
        trailer = TRAILER.pack(
            FOOTER_MAGIC, VERSION, self.flags, self.salt, self.span, self.records, self.position, self.min_time,
            self.max_time, len(self.offsets), len(self.producers) // PRODUCER.size, self.chain, crc32c(body),
            self.expiry_low, self.expiry_high, 0, 0,
        )[:-4]  # fmt: skip
        return body + trailer + crc32c(trailer).to_bytes(4, "little")


_NOT_IN_FRAMES = frozenset({"flags", "included", "producers", "stretch_records"})
_FOOTER_SLOTS = tuple(name for name in Index.__slots__ if name not in _NOT_IN_FRAMES)


def pack_header(
    topic_id: int,
    partition: int,
    salt: int,
    created: int,
    base: int = BASE_UNKNOWN,
    origin: int = 0,
    rewrites: int = 0,
) -> bytes:
    """Return the 64 bytes of the header of a segment; a staged segment has no base yet.

    Without an origin it is the first version of its segment.
    """
    # Stored as base + 1, so that zero means that there is none.
    packed = HEADER.pack(
        MAGIC, VERSION, partition, topic_id, salt, created, base + 1, origin or salt, rewrites, 0
    )[:-4]  # fmt: skip
    return packed + crc32c(packed).to_bytes(4, "little")


def parse_header(data: bytes) -> SegmentHeader | None:
    """Return the header; None if it is too short or its checksum is wrong."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, partition, topic_id, salt, created, said, origin, rewrites, crc = HEADER.unpack_from(data)
    if magic != MAGIC or crc != crc32c(data[: HEADER_BYTES - 4]):  # rule: segment header's checksum
        return None
    if version != VERSION:
        raise VersionError(f"A segment has version {version}, which this version of Tailrace does not know.")
    return SegmentHeader(topic_id, partition, salt, created, said - 1, origin, rewrites)


def read_segment_header(files: Files, descriptor: int) -> SegmentHeader | None:
    """Return the header of an open segment; None if it is not valid."""
    return parse_header(files.read(descriptor, HEADER_BYTES, 0))


def read_trailer(files: Files, descriptor: int, size: int, salt: int) -> tuple[Trailer, bytes, bytes] | None:
    """Return the trailer of a sealed segment, and the bytes of its index and of its producer table.

    None if they are damaged or of another segment.

    `size` is the size of the file. The whole footer is checked, so the trailer can be trusted.
    """
    if size < HEADER_BYTES + TRAILER_BYTES:
        return None
    # One read covers a short index as well.
    first = max(HEADER_BYTES, size - FOOTER_READ_BYTES)
    read = files.read(descriptor, size - first, first)
    trailer = read[-TRAILER_BYTES:]
    # rule: footer's checksum
    if len(read) < size - first or crc32c(trailer[:-4]) != int.from_bytes(trailer[-4:], "little"):
        return None
    magic, version, flags, own_salt, *numbers = TRAILER.unpack(trailer)
    if magic != FOOTER_MAGIC or own_salt != salt:
        return None
    if version != VERSION:
        raise VersionError(f"A segment's footer has version {version}, which this version of Tailrace does not know.")
    found = Trailer._make((*numbers[:8], *numbers[9:11], flags))
    body_crc, key_id = numbers[8], numbers[11]
    if flags & ~NOTHING_LOST or key_id:
        raise _newer_footer("is encrypted" if key_id else f"has the flags {flags:#x}")
    body_bytes = size - TRAILER_BYTES - found.frames_end
    if (
        found.entries > INDEX_ENTRIES_MAX
        or body_bytes != found.entries * ENTRY.size + found.producers * PRODUCER.size
        or found.frames_end < HEADER_BYTES
        or found.records > found.span
        or found.span > OFFSET_MAX
        or found.expiry_low > found.expiry_high
        or bool(found.expiry_low) != bool(found.expiry_high)
    ):
        return None
    if found.frames_end >= first:
        body = read[found.frames_end - first : -TRAILER_BYTES]
    else:
        body = files.read(descriptor, body_bytes, found.frames_end)
    if crc32c(body) != body_crc:  # rule: footer index's checksum
        return None
    body, producers = body[: found.entries * ENTRY.size], body[found.entries * ENTRY.size :]
    if body:
        words = memoryview(body).cast("Q")
        # A binary search needs increasing numbers, and checksums do not prove that they are.
        for at, low, stop in ((0, 0, found.span), (1, HEADER_BYTES, found.frames_end)):
            rising = words[at :: ENTRY.size // 8].tolist()
            if rising[0] < low or rising[-1] >= stop or rising != sorted(rising):
                return None
    return found, body, producers


def read_footer(files: Files, descriptor: int, salt: int) -> Index | None:
    """Return the index in a sealed segment's footer; None if it has no valid footer of its own."""
    read = read_trailer(files, descriptor, files.stat_open(descriptor).size, salt)
    if read is None:
        return None
    trailer, body, producers = read
    index = Index(salt)
    columns = list(zip(*ENTRY.iter_unpack(body), strict=True))
    if columns:
        index.offsets, index.positions, index.lows, index.highs, index.chains = (list(c) for c in columns[:5])
        index.stretch_end = index.positions[-1] + INDEX_STRETCH_BYTES
        index.expiries = list(columns[5]) if trailer.expiry_high else None
    index.span, index.records, index.position, index.chain = (
        trailer.span, trailer.records, trailer.frames_end, trailer.chain,
    )  # fmt: skip
    index.expiry_low, index.expiry_high = trailer.expiry_low, trailer.expiry_high
    index.flags, index.producers = trailer.flags, producers
    return index


def _newer_footer(what: str) -> VersionError:
    return VersionError(
        f"The footer of a segment says that it {what}: it was written by a newer version of Tailrace, and this one "
        "does not know how to read it."
    )


def lost_ranges(files: Files, descriptor: int) -> list[tuple[int, int]]:
    """Return the relative offsets (first and last) of the placeholders that a repair left in an open segment.

    A repair seals the segments that it writes, and their footers have fewer records than offsets: of any other segment
    only the trailer is read. The footer of a rewritten segment tells whether it has placeholders for lost records.
    """
    size = files.stat_open(descriptor).size
    trailer = files.read(descriptor, TRAILER_BYTES, size - TRAILER_BYTES) if size > TRAILER_BYTES else b""
    if len(trailer) < TRAILER_BYTES or not trailer.startswith(FOOTER_MAGIC):
        return []
    flags, _, span, records = TRAILER.unpack(trailer)[2:6]
    header = read_segment_header(files, descriptor) if span != records and not flags & NOTHING_LOST else None
    footer = None if header is None else read_footer(files, descriptor, header.salt)
    if footer is None:
        return []
    chain, stop = salt_chain(footer.salt), footer.position
    walked = walk(reading(files, descriptor), HEADER_BYTES, 0, chain, stop, bodies=False)
    return [(found.header.base, found.header.base + found.header.span - 1) for found in walked if found.header.lost]


def find_magic(read: Read, position: int, stop: int) -> int:
    """Return the next multiple of 8 from a position on at which there is a frame's magic; -1 if there is none."""
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
    """Return the size of the footer of this index."""
    return len(index.offsets) * ENTRY.size + len(index.producers) + TRAILER_BYTES


def reading(files: Files, descriptor: int) -> Read:
    """Return the function by which a walk reads an open file."""
    return lambda count, position: files.read(descriptor, count, position)


def walk(read: Read, position: int, offset: int, chain: int, stop: int, *, bodies: bool) -> Iterator[Found]:
    """Yield the valid frames from `position` on, by chain, relative offset and checksums, up to `stop`.

    With `bodies` the bodies are read and checked as well; without, large ones are skipped. With a negative `offset` the
    walk begins at the first frame's own.
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
    """Add the frames between the index's position and `stop`; return False if not all of them are valid."""
    for found in walk(read, index.position, index.span, index.chain, stop, bodies=False):
        index.add_frame(found.header)
    return index.position == stop


def whole_groups(found: Iterator[Found]) -> Iterator[list[Found]]:
    """Yield the write groups of frames; an incomplete group at the end is dropped."""
    group: list[Found] = []
    for frame in found:
        group.append(frame)
        if not frame.header.more:  # rule: whole groups
            yield group
            group = []


def flatten(groups: Iterator[list[Found]]) -> Iterator[Found]:
    """Yield the frames of write groups."""
    return concatenate.from_iterable(groups)


def segment_name(base: int) -> str:
    """Return the file name of a segment by the offset of its first record."""
    return f"{base:020d}.seg"


def segment_base(name: str) -> int | None:
    """Return the offset in a segment's file name; None for other files."""
    if len(name) == 24 and name.endswith(".seg") and name[:20].isdigit() and name.isascii():
        return int(name[:20])
    return None


def is_unfinished_rewrite(name: str) -> bool:
    """Return whether a file name is that of a new version of a segment that is not in its place yet."""
    return name.endswith(REWRITE_SUFFIX) and segment_base(name.removesuffix(REWRITE_SUFFIX)) is not None


def listed_bases(names: Sequence[str]) -> list[int]:
    """Return the offsets in the names of segments, sorted; thousands of names take about a millisecond."""
    digits = [name[:20] for name in names if name[20:] == ".seg"]
    joined = "".join(digits)
    if joined.isdigit() and joined.isascii():
        found = [*map(int, digits)]
    else:
        found = [base for name in names if (base := segment_base(name)) is not None]
    return sorted(base for base in found if base <= OFFSET_MAX)
