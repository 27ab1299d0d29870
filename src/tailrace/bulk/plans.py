"""Plans: a read cut into parts that are plain values, each to be read from one file alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from os import major
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.arguments import parse_count, parse_size, parse_start
from tailrace.disk.codec import CodecError
from tailrace.disk.columns import FramePart, columns
from tailrace.disk.context import storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.files import Files
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import read_header, salt_chain
from tailrace.disk.reader import lost_error
from tailrace.disk.segment import (
    HEADER_BYTES,
    INDEX_STRETCH_BYTES,
    Index,
    read_footer,
    read_segment_header,
    segment_name,
    walk,
)
from tailrace.disk.tails import SAFE, START
from tailrace.engine.engine import name_damage
from tailrace.errors import CorruptionError, NotALogError, OffsetOutOfRangeError, TailraceError, TopicNotFoundError
from tailrace.limits import FRAME_RECORDS_MAX
from tailrace.names import IDENTITY_NAME
from tailrace.read.arrow import batch_to_arrow, schema_of
from tailrace.read.arrow import reader as arrow_reader
from tailrace.read.batch import Batch
from tailrace.read.iteration import BATCH_BYTES_MAX
from tailrace.read.merge import RUN_RECORDS_MIN, joined
from tailrace.read.scan import parse_partitions
from tailrace.read.span import Request, matching, resolve

if TYPE_CHECKING:
    from tailrace.disk.reader import SegmentInfo
    from tailrace.disk.segment import Read
    from tailrace.disk.store import Store
    from tailrace.engine.engine import Engine
    from tailrace.log import Log
    from tailrace.read.span import Span
    from tailrace.types import Size, Start

READ_BYTES_DEFAULT = 64 << 20
READ_AHEAD_BYTES = 4 << 20
# A part at least so long is not copied at all, which is a third of the time that it takes to read and send it.
MAPPED_BYTES_MIN = 1 << 20


class TopicBounds(NamedTuple):
    """Where the partitions of one topic begin, and up to where they are safe on disk, each by partition."""

    # No other topic ever has it, not even a later one of the same name.
    id: int
    earliest: list[int]
    durable: list[int]


class Survey:
    """Where some topics stand, asked again and again: names are looked at only when topics came, went or changed."""

    def __init__(self, log: Log, wanted: Callable[[str], bool]) -> None:
        self._log = log
        self._wanted = wanted
        self._seen: tuple[Store, int] | None = None
        # Name, id and the words of each partition in the tails.
        self._topics: list[tuple[str, int, list[int]]] = []

    @property
    def frozen(self) -> bool:
        """Whether the log shows what it held when it was opened, because nobody recovered it since: open it anew."""
        return self._log.engine.frozen

    def look(self) -> dict[str, TopicBounds]:
        """The wanted topics by name, internal ones never; a few loads from memory for each partition."""
        engine = self._log.engine
        while True:
            seen = (engine.store, engine.refresh().offset)
            try:
                if seen != self._seen:
                    self._topics = self._find(engine)
                    self._seen = seen
            except TopicNotFoundError:
                # Dropped by another thread since the names were read.
                continue
            words = seen[0].tails.words
            # In this order, so that no trim or append in between makes them look out of order.
            found = {
                name: TopicBounds(topic_id, [words[at + START] for at in places], [words[at + SAFE] for at in places])
                for name, topic_id, places in self._topics
            }
            # The words of a topic that was dropped meanwhile may be another's by now.
            if engine.refresh().offset == seen[1]:
                return found

    def _find(self, engine: Engine) -> list[tuple[str, int, list[int]]]:
        return [
            (entry.name, entry.id, [engine.partition(entry, index).word for index in range(len(entry.slots))])
            for entry in matching(engine, ("...",))
            if self._wanted(entry.name)
        ]


class ReadPart(NamedTuple):
    """A range of frames in one segment file, in plain values: it can be pickled and read on another machine."""

    topic: str
    partition: int
    path: str
    # What the segment's header must say, so that another file of the same name is not taken for it.
    salt: int
    # The offset of the segment's first record.
    base: int
    # Where the first frame lies, the offset of its first record, and the chain that it must carry.
    position: int
    offset: int
    chain: int
    # Where the frames end, and the chain that the next one would carry; None when that is not known.
    stop_position: int
    stop_chain: int | None
    # The offsets that are wanted of these frames.
    first: int
    stop: int

    @property
    def bytes(self) -> int:
        """How much of the file is read."""
        return self.stop_position - self.position


def plan(
    log: Log,
    topics: str | Sequence[str],
    start: Start = "earliest",
    stop: Start | None = None,
    partitions: int | Sequence[int] | None = None,
    target_bytes: Size = READ_BYTES_DEFAULT,
) -> list[ReadPart]:
    """Parts that together hold every record of the topics from `start` up to `stop`, as far as it is safe on disk.

    A segment is split where its index allows, so that a part is about `target_bytes` long. Parts of one partition
    follow one another in the list, and join.
    """
    engine = log.engine
    size = max(1, parse_size(target_bytes, "target_bytes"))
    now = engine.files.now_us()
    until = None if stop is None else parse_start(stop, "stop", now_us=now)
    request = Request("", parse_start(start, now_us=now), until, None, parse_partitions(partitions))
    parts: list[ReadPart] = []
    for topic in [topics] if isinstance(topics, str) else topics:
        for span in resolve(engine, engine.entry(topic), request._replace(topic=topic)):
            span.stop = min(span.stop, span.partition.safe)
            if span.next < span.stop:
                parts += _plan_span(engine, span, size)
    return parts


def _plan_span(engine: Engine, span: Span, size: int) -> Iterator[ReadPart]:
    newest = _plan_newest(engine, span)
    if newest is not None:
        yield newest
        return
    offset = span.next
    for info in _segments(span):
        if info.end > offset and info.base < span.stop:
            if info.base > offset:
                break
            index = _index_of(engine, span, info)
            yield from _plan_segment(span, info, index, offset, min(span.stop, info.end), size)
            offset = info.end
    if offset < span.stop:
        # A trim or damage: reading says which.
        for _ in span.forward(span.stop):
            pass


def _plan_newest(engine: Engine, span: Span) -> ReadPart | None:
    """The part of a span that lies in a newest segment with a single index entry, from its state; None for others.

    Of many partitions most are like this, and neither their directories nor their files need to be opened.
    """
    state = span.reader.state()
    if state is None or not state.active or span.next < state.base or span.stop > state.end:
        return None
    path = f"{span.partition.path}/{segment_name(state.base)}"
    if state.position - HEADER_BYTES > INDEX_STRETCH_BYTES or engine.files.stat(path) is None:
        return None
    return ReadPart(
        span.topic, span.partition.index, path, state.salt, state.base, HEADER_BYTES, state.base,
        salt_chain(state.salt), state.position, state.chain if span.stop == state.end else None, span.next, span.stop,
    )  # fmt: skip


def _segments(span: Span) -> Iterator[SegmentInfo]:
    """The segments that may hold a span, oldest first; those before and behind it are not opened."""
    reader = span.reader
    # Before the directory is listed, so that a new segment is in the list if its records are below the end.
    end = span.partition.end
    reader.newest_base(end)
    bases = reader.bases
    try:
        for at in range(max(0, bisect_right(bases, span.next) - 1), len(bases)):
            if bases[at] >= span.stop:
                break
            info = reader.info(bases[at], min(bases[at + 1], end) if at + 1 < len(bases) else end)
            if info is not None:
                yield info
    finally:
        reader.close()


def _index_of(engine: Engine, span: Span, info: SegmentInfo) -> Index:
    """A copy of a segment's index, without entries when it has none that can be trusted."""
    indexes = engine.store.indexes
    path = span.partition.path
    with indexes.mutex:
        known = indexes.sealed.get((path, info.base, info.salt)) if info.sealed else indexes.active.get(path)
        if known is not None and known.salt == info.salt:
            return _copied(known)
    if info.sealed:
        descriptor = engine.files.open(info.path)
        try:
            found = read_footer(engine.files, descriptor, info.salt)
        finally:
            engine.files.close(descriptor)
        if found is not None:
            return found
    bare = Index(info.salt)
    bare.span, bare.position = info.end - info.base, max(info.bytes, HEADER_BYTES)
    return bare


def _copied(index: Index) -> Index:
    made = Index(index.salt)
    for name in ("offsets", "positions", "lows", "highs", "chains"):
        setattr(made, name, list(getattr(index, name)))
    made.span, made.records, made.position, made.chain = index.span, index.records, index.position, index.chain
    return made


def _plan_segment(span: Span, info: SegmentInfo, index: Index, first: int, stop: int, size: int) -> Iterator[ReadPart]:
    """Cut the frames that hold [first, stop) of one segment where index entries stand."""
    base = info.base
    places: list[tuple[int, int, int | None]] = [
        *zip(
            index.offsets or [0],
            index.positions or [HEADER_BYTES],
            index.chains or [salt_chain(info.salt)],
            strict=True,
        )
    ]
    places.append((index.span, index.position, index.chain if index.offsets else None))
    at = index.find(first - base) if index.offsets else 0
    while first < stop:
        offset, position, chain = places[at]
        assert chain is not None
        at += 1
        while at < len(places) - 1 and places[at][0] + base < stop and places[at + 1][1] - position <= size:
            at += 1
        after, stop_position, stop_chain = places[at]
        upper = min(stop, base + after)
        yield ReadPart(
            span.topic, span.partition.index, info.path, info.salt, base, position, base + offset, chain,
            stop_position, stop_chain if upper == base + after else None, max(first, base + offset), upper,
        )  # fmt: skip
        first = upper


def read(part: ReadPart) -> Iterator[Batch]:
    """The records of a part, from its file alone; every frame is checked, and that the range is whole."""
    for parts in gathered(frames_of(part), FRAME_RECORDS_MAX):
        yield Batch(parts)


def read_arrow(part: ReadPart, columns: Sequence[str] | None = None, batch_records: int = FRAME_RECORDS_MAX) -> Any:
    """The records of a part as a pyarrow.RecordBatchReader; with `columns` only those are made, in that order.

    Frames are joined until a batch has `batch_records` or more; those that have as many are not copied.
    """
    names = None if columns is None else tuple(columns)
    if names is not None:
        schema_of(names)
    count = parse_count(batch_records, "batch_records", minimum=1)
    return arrow_reader((to_arrow(parts, names) for parts in gathered(frames_of(part), count)), names)


def to_arrow(parts: Sequence[FramePart], names: tuple[str, ...] | None) -> Any:
    """One batch; small frames are joined first, as an array for each would cost more than the copy."""
    if sum(part.stop - part.first for part in parts) < RUN_RECORDS_MIN * len(parts):
        parts = [joined(*place, [*some]) for place, some in groupby(parts, attrgetter("topic", "partition"))]
    return batch_to_arrow(parts, names)


def gathered(parts: Iterable[FramePart], enough: int) -> Iterator[list[FramePart]]:
    """Decoded frames, also of several partitions, in lists that have enough records for a batch."""
    gathered: list[FramePart] = []
    count = size = 0
    for part in parts:
        records = part.stop - part.first
        if gathered and records >= enough:
            # A large one is not copied for the sake of small ones before it.
            yield gathered
            gathered, count, size = [], 0, 0
        gathered.append(part)
        count += records
        size += part.columns.value_blob.nbytes + part.columns.key_blob.nbytes
        del part
        if count >= enough or size >= BATCH_BYTES_MAX:
            yield gathered
            gathered, count, size = [], 0, 0
    if gathered:
        yield gathered


def frames_of(part: ReadPart) -> Iterator[FramePart]:
    """The decoded frames of a part, from its file alone; every one is checked, and that the range is whole."""
    files = Files()
    try:
        descriptor = files.open(part.path)
    except FileNotFoundError:
        raise _missing(files, part) from None
    except by_system() as error:
        raise storage_error(error, "Reading a part", part.path) from error
    try:
        header = read_segment_header(files, descriptor)
        if header is None or header.salt != part.salt:
            raise _damaged("The segment is not the one that was planned", part, part.first, part.stop - 1)
        offset, position, chain = part.offset, part.position, part.chain
        source = _reading(files, descriptor, part)
        for found in walk(source, position, offset - part.base, chain, part.stop_position, bodies=True):
            first, offset, chain = offset, offset + found.header.span, found.header.crc
            position = found.position + found.header.size
            if offset <= part.first:
                # A part begins where the index has an entry, which may lie before what is wanted of it.
                continue
            if found.header.lost:
                raise name_damage(lost_error(found.header, found.body, first, part.partition, part.path), part.topic)
            try:
                column = columns(found.header, found.body, first)
            except CodecError as error:
                raise _damaged(f"Stored records cannot be decoded: {error}", part, first, offset - 1) from error
            low, high = column.index_at(part.first), column.index_at(part.stop)
            if low < high:
                yield FramePart(part.topic, part.partition, column, low, high)
            if offset >= part.stop:
                break
        if offset < part.stop:
            lost = read_header(files.read(descriptor, FRAME_HEADER_BYTES, position))
            last = offset + lost.span - 1 if lost is not None and lost.chain == chain else part.stop - 1
            raise _damaged("Stored records are damaged", part, offset, min(last, part.stop - 1))
        if part.stop_chain is not None and chain != part.stop_chain:
            raise _damaged("The frames do not join those that follow", part, part.first, part.stop - 1)
    except by_system() as error:
        if isinstance(error, TailraceError):
            raise
        raise storage_error(error, "Reading a part", part.path) from error
    finally:
        files.close(descriptor)


def _missing(files: Files, part: ReadPart) -> TailraceError:
    """Why the file of a part is not there: it was removed since, or this machine does not see the log at all.

    The two must not be taken for one another: whoever leaves out what was removed would leave out everything.
    """
    # Above it are the directories of the partition, of the topic and of all topics.
    location = part.path.rsplit("/", 4)[0]
    if files.stat(f"{location}/{IDENTITY_NAME}") is None:
        return NotALogError(
            f"There is no log at {location} on {files.host_name()}, which was to read {part.topic}[{part.partition}].",
            hint="Nothing was skipped; let that machine see the directory under the same path, "
            "or run the work on the machine of the log.",
        )
    return OffsetOutOfRangeError(
        f"The offsets {part.first} to {part.stop - 1} of {part.topic}[{part.partition}] are gone: "
        f"there is no file {part.path}.",
        hint="Nothing was skipped; they were trimmed after the plan was made, so plan again.",
    )


def _reading(files: Files, descriptor: int, part: ReadPart) -> Read:
    """How a part is read: a large one on a disk of this machine through memory, others many frames at a time.

    What is mapped ends where the part does, which lies below everything that is cut off when a segment is sealed. On a
    network file system a file may go away under a mapping, and that kills the process; those have no major number.
    """
    stop = part.stop_position
    if part.bytes >= MAPPED_BYTES_MIN and major(files.stat_open(descriptor).device):
        try:
            view = files.map_read(descriptor, stop)
        except by_system():
            # Shorter than it was, perhaps: reading it says what is missing.
            pass
        else:
            return lambda count, position: view[position:]
    return lambda count, position: files.read(descriptor, max(count, min(READ_AHEAD_BYTES, stop - position)), position)


def _damaged(message: str, part: ReadPart, first: int, last: int) -> CorruptionError:
    return CorruptionError(message, topic=part.topic, partition=part.partition, first=first, last=last, path=part.path)
