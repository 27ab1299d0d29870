"""Plans: a read split into parts that are plain values; each is read from one file, without the log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from os import major
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.arguments import parse_count, parse_size, parse_start
from tailrace.disk import Files, by_system, lost_error, storage_error
from tailrace.disk.codec import CodecError
from tailrace.disk.columns import columns
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import read_header, salt_chain
from tailrace.disk.marks import NO_MARKS
from tailrace.disk.segment import (
    BASE_UNKNOWN,
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
from tailrace.read.request import Request, matching, open_spans, parse_partitions
from tailrace.read.visibility import Visibility, visible_parts

if TYPE_CHECKING:
    from tailrace.disk import SegmentInfo, Store
    from tailrace.disk.columns import FramePart
    from tailrace.disk.segment import Read, SegmentHeader
    from tailrace.engine.engine import Engine
    from tailrace.log import Log
    from tailrace.read.span import Span
    from tailrace.types import Size, Start

READ_BYTES_DEFAULT = 64 << 20
READ_AHEAD_BYTES = 4 << 20
# A part of at least this size is mapped instead of copied; the copy is a third of the time to read and send it.
MAPPED_BYTES_MIN = 1 << 20


class TopicBounds(NamedTuple):
    """For each partition of a topic its first offset, and the offset up to which it is safe on disk."""

    # Never reused, not even by a later topic of the same name.
    id: int
    earliest: list[int]
    durable: list[int]


class Survey:
    """Repeated reading of the bounds of some topics; names are matched again only when the catalog has changed."""

    def __init__(self, log: Log, wanted: Callable[[str], bool]) -> None:
        self._log = log
        self._wanted = wanted
        self._seen: tuple[Store, int] | None = None
        # For each topic its name, its id and the index of each partition's words in the tails.
        self._topics: list[tuple[str, int, list[int]]] = []

    @property
    def frozen(self) -> bool:
        """Whether the log was opened before it was recovered, so that it shows its contents of then: open it again."""
        return self._log.engine.frozen

    def look(self) -> dict[str, TopicBounds]:
        """Return the bounds of the wanted topics by name, never internal ones; costs a few loads from memory."""
        engine = self._log.engine
        while True:
            seen = (engine.store, engine.refresh().offset)
            try:
                if seen != self._seen:
                    self._topics = self._find(engine)
                    self._seen = seen
            except TopicNotFoundError:
                # Another thread dropped a topic after the names were read.
                continue
            words = seen[0].tails.words
            # START is loaded before SAFE, so that a trim or an append in between cannot make START exceed SAFE.
            found = {
                name: TopicBounds(topic_id, [words[at + START] for at in places], [words[at + SAFE] for at in places])
                for name, topic_id, places in self._topics
            }
            # The slots of a topic that was dropped meanwhile may belong to another topic by now.
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
    # The salt that the segment's header must have, so that another file of the same name is not taken for it.
    salt: int
    # The offset of the segment's first record.
    base: int
    # The position of the first frame, the offset of its first record, and the chain value that it must carry.
    position: int
    offset: int
    chain: int
    # Where the frames end, and the chain value that the next frame would carry; None if that is not known.
    stop_position: int
    stop_chain: int | None
    # The requested offsets within these frames.
    first: int
    stop: int
    # When the plan was made: every task shows what had not expired then, whatever its own clock says.
    moment: int
    # The salt of the first version of the segment: a later version has its records under the same offsets.
    origin: int = 0
    # The deleted offsets among them when the plan was made.
    removed: tuple[tuple[int, int], ...] = ()

    @property
    def bytes(self) -> int:
        """How many bytes of the file are read."""
        return self.stop_position - self.position


def plan(
    log: Log,
    topics: str | Sequence[str],
    start: Start = "earliest",
    stop: Start | None = None,
    partitions: int | Sequence[int] | None = None,
    target_bytes: Size = READ_BYTES_DEFAULT,
) -> list[ReadPart]:
    """Return parts that together hold every record of the topics from `start` up to `stop` that is safe on disk.

    A segment is split where its index allows, so that a part is about `target_bytes` long. The parts of a partition are
    consecutive in the list, without gaps between them.
    """
    engine = log.engine
    size = max(1, parse_size(target_bytes, "target_bytes"))
    now = engine.files.now_us()
    until = None if stop is None else parse_start(stop, "stop", now_us=now)
    begin, chosen = parse_start(start, now_us=now), parse_partitions(partitions)
    parts: list[ReadPart] = []
    for topic in [topics] if isinstance(topics, str) else topics:
        for span in open_spans(engine, [engine.entry(topic)], Request((topic,), begin, until, None, chosen)):
            span.stop = min(span.stop, span.partition.safe)
            if span.next < span.stop:
                # Looked at first: every file that is found afterwards has what these marks hide, or lacks it.
                marks = span.reader.marks = span.visibility.look()
                planned = _plan_span(engine, span, size, now)
                parts += planned if not marks else [
                    part._replace(removed=tuple(marks.within(part.first, part.stop))) for part in planned
                ]  # fmt: skip
    return parts


def _plan_span(engine: Engine, span: Span, size: int, now: int) -> Iterator[ReadPart]:
    newest = _plan_newest(engine, span, now)
    if newest is not None:
        yield newest
        return
    offset = span.next
    for info in _segments(span):
        if info.end > offset and info.base < span.stop:
            if info.base > offset:
                break
            index = _index_of(engine, span, info)
            yield from _plan_segment(span, info, index, offset, min(span.stop, info.end), size, now)
            offset = info.end
    if offset < span.stop:
        # Records are missing because of a trim or damage: reading them raises the error for it.
        for _ in span.forward(span.stop):
            pass


def _plan_newest(engine: Engine, span: Span, now: int) -> ReadPart | None:
    """Return the part of a span in an active segment with one index entry, from the state alone; None for others.

    Most partitions of a log with many are like this, and neither their directories nor their files need to be opened.
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
        now, state.salt,
    )  # fmt: skip


def _segments(span: Span) -> Iterator[SegmentInfo]:
    """Yield the segments that may hold records of a span, the oldest first, without opening any others."""
    reader = span.reader
    # The end is read before the directory is listed, so that the list has every segment with records below it.
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
    """Return a copy of a segment's index; without entries if there is no index that can be trusted."""
    indexes = engine.store.indexes
    path = span.partition.path
    with indexes.mutex:
        known = indexes.sealed.get((path, info.base, info.salt)) if info.sealed else indexes.active.get(path)
        if known is not None and known.salt == info.salt:
            return known.copy()
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


def _plan_segment(
    span: Span, info: SegmentInfo, index: Index, first: int, stop: int, size: int, now: int
) -> Iterator[ReadPart]:
    """Yield parts for the frames of one segment that hold [first, stop), split at index entries."""
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
            stop_position, stop_chain if upper == base + after else None, max(first, base + offset), upper, now,
            info.origin,
        )  # fmt: skip
        first = upper


def read(part: ReadPart) -> Iterator[Batch]:
    """Yield the records of a part, from its file alone; checks every frame, and that no offset is missing."""
    for parts in gathered(read_frames(part), FRAME_RECORDS_MAX):
        yield Batch(parts)


def read_arrow(part: ReadPart, columns: Sequence[str] | None = None, batch_records: int = FRAME_RECORDS_MAX) -> Any:
    """Return the records of a part as a pyarrow.RecordBatchReader; `columns` selects and orders the columns.

    Frames are joined until a batch has `batch_records` or more; frames that have that many are not copied.
    """
    names = None if columns is None else tuple(columns)
    if names is not None:
        schema_of(names)
    count = parse_count(batch_records, "batch_records", minimum=1)
    return arrow_reader((to_arrow(parts, names) for parts in gathered(read_frames(part), count)), names)


def to_arrow(parts: Sequence[FramePart], names: tuple[str, ...] | None) -> Any:
    """Return one Arrow batch; small frames are joined first, because an array for each costs more than the copy."""
    if sum(part.stop - part.first for part in parts) < RUN_RECORDS_MIN * len(parts):
        parts = [joined(*place, [*some]) for place, some in groupby(parts, attrgetter("topic", "partition"))]
    return batch_to_arrow(parts, names)


def gathered(parts: Iterable[FramePart], enough: int) -> Iterator[list[FramePart]]:
    """Yield decoded frames, of one or several partitions, in lists of at least `enough` records."""
    gathered: list[FramePart] = []
    count = size = 0
    for part in parts:
        records = part.stop - part.first
        if gathered and records >= enough:
            # A large frame starts a list of its own, so that it is not copied to be joined with small ones.
            yield gathered
            gathered, count, size = [], 0, 0
        gathered.append(part)
        count += records
        size += part.columns.weight
        del part
        if count >= enough or size >= BATCH_BYTES_MAX:
            yield gathered
            gathered, count, size = [], 0, 0
    if gathered:
        yield gathered


def read_frames(part: ReadPart) -> Iterator[FramePart]:
    """Yield the decoded frames of a part, from its file alone; checks every frame, and that no offset is missing."""
    files = Files()
    try:
        descriptor = files.open(part.path)
    except FileNotFoundError:
        raise _missing(files, part) from None
    except by_system() as error:
        raise storage_error(error, "Reading a part", part.path) from error
    try:
        header = read_segment_header(files, descriptor)
        if header is None:
            raise _damaged("The header of a segment is damaged", part, part.first, part.stop - 1)
        if header.salt != part.salt:
            part = _moved(files, descriptor, header, part)
        offset, position, chain = part.offset, part.position, part.chain
        source = _reading(files, descriptor, part)
        visibility = Visibility(lambda: part.moment, NO_MARKS.adding(part.removed) if part.removed else None)
        for found in walk(source, position, offset - part.base, chain, part.stop_position, bodies=True):
            first, offset, chain = offset, offset + found.header.span, found.header.crc
            position = found.position + found.header.size
            if offset <= part.first:
                # A part begins at an index entry, which may be before the first requested offset.
                continue
            if found.header.lost:
                raise name_damage(lost_error(found.header, found.body, first, part.partition, part.path), part.topic)
            try:
                column = columns(found.header, found.body, first)
            except CodecError as error:
                raise _damaged(f"Stored records cannot be decoded: {error}", part, first, offset - 1) from error
            yield from visible_parts(part.topic, part.partition, column, offset, part.first, part.stop, visibility)
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


def _moved(files: Files, descriptor: int, header: SegmentHeader, part: ReadPart) -> ReadPart:
    """Return where a part is in a later version of its segment: rewritten, without records that expired since."""
    if header.base not in (BASE_UNKNOWN, part.base):
        raise _damaged("The segment is not the one that was planned", part, part.first, part.stop - 1)
    index = read_footer(files, descriptor, header.salt)
    same = header.origin == (part.origin or part.salt)
    if index is None or not index.offsets or not same or part.stop > part.base + index.span:
        raise OffsetOutOfRangeError(
            f"The offsets {part.first} to {part.stop - 1} of {part.topic}[{part.partition}] are not where they were: "
            f"{part.path} is another segment now; plan again.",
            hint="Nothing was skipped; the segment was replaced after the plan was made, so plan again.",
        )
    entry = index.find(part.first - part.base)
    return part._replace(
        salt=header.salt, position=index.positions[entry], offset=part.base + index.offsets[entry],
        chain=index.chains[entry], stop_position=index.position, stop_chain=None,
    )  # fmt: skip


def _missing(files: Files, part: ReadPart) -> TailraceError:
    """Return the error for a part without its file: either the file was removed, or this machine cannot see the log.

    The two need different errors: a reader that skips removed records would otherwise skip everything.
    """
    # The path below the log is topics/<topic>/<partition>/<segment>.
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
    """Return the function that reads a part: by a mapping if it is large and on a local disk, else in large reads.

    The mapping ends where the part ends, below everything that sealing a segment may cut off. On a network file system
    the file may be truncated under a mapping, which kills the process; such file systems have no major device number.
    """
    stop = part.stop_position
    if part.bytes >= MAPPED_BYTES_MIN and major(files.stat_open(descriptor).device):
        try:
            view = files.map_read(descriptor, stop)
        except by_system():
            # The file may have become shorter: reading it reports what is missing.
            pass
        else:
            return lambda count, position: view[position:]
    return lambda count, position: files.read(descriptor, max(count, min(READ_AHEAD_BYTES, stop - position)), position)


def _damaged(message: str, part: ReadPart, first: int, last: int) -> CorruptionError:
    return CorruptionError(message, topic=part.topic, partition=part.partition, first=first, last=last, path=part.path)
