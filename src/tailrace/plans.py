"""Plans: a read cut into parts that are plain values, each to be read from one file alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.arrow import reader as arrow_reader
from tailrace.batch import Batch
from tailrace.cursor import BATCH_BYTES_MAX
from tailrace.disk.codec import CodecError
from tailrace.disk.columns import Part, columns
from tailrace.disk.files import Files
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import read_header, salt_chain
from tailrace.disk.home import storage_error
from tailrace.disk.segment import HEADER_BYTES, Index, read_footer, read_segment_header, reading, walk
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TailraceError
from tailrace.limits import FRAME_RECORDS_MAX
from tailrace.merge import parts_to_arrow
from tailrace.options import parse_size, parse_start
from tailrace.scan import parse_partitions
from tailrace.spans import Request, resolve

if TYPE_CHECKING:
    from tailrace.disk.reader import SegmentInfo
    from tailrace.engine import Engine
    from tailrace.log import Log
    from tailrace.spans import Span
    from tailrace.types import Size, Start

READ_BYTES_DEFAULT = 64 << 20


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
    offset = span.next
    for info in span.reader.segments():
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
    for parts in _gathered(_frames(part)):
        yield Batch(parts)


def read_arrow(part: ReadPart) -> Any:
    """The records of a part as a pyarrow.RecordBatchReader."""
    return arrow_reader(map(parts_to_arrow, _gathered(_frames(part))))


def _gathered(parts: Iterable[Part]) -> Iterator[list[Part]]:
    gathered: list[Part] = []
    count = size = 0
    for part in parts:
        gathered.append(part)
        count += part.stop - part.first
        size += part.columns.value_blob.nbytes + part.columns.key_blob.nbytes
        del part
        if count >= FRAME_RECORDS_MAX or size >= BATCH_BYTES_MAX:
            yield gathered
            gathered, count, size = [], 0, 0
    if gathered:
        yield gathered


def _frames(part: ReadPart) -> Iterator[Part]:
    files = Files()
    try:
        descriptor = files.open(part.path)
    except FileNotFoundError:
        raise OffsetOutOfRangeError(
            f"The offsets {part.first} to {part.stop - 1} of {part.topic}[{part.partition}] are gone: "
            f"there is no file {part.path}.",
            hint="Nothing was skipped; they were trimmed after the plan was made, so plan again.",
        ) from None
    except OSError as error:
        raise storage_error(error, "Reading a part", part.path) from error
    try:
        header = read_segment_header(files, descriptor)
        if header is None or header.salt != part.salt:
            raise _damaged("The segment is not the one that was planned", part, part.first, part.stop - 1)
        offset, position, chain = part.offset, part.position, part.chain
        source = reading(files, descriptor)
        for found in walk(source, position, offset - part.base, chain, part.stop_position, bodies=True):
            first, offset, chain = offset, offset + found.header.span, found.header.crc
            position = found.position + found.header.size
            try:
                column = columns(found.header, found.body, first)
            except CodecError as error:
                raise _damaged(f"Stored records cannot be decoded: {error}", part, first, offset - 1) from error
            low, high = column.index_at(part.first), column.index_at(part.stop)
            if low < high:
                yield Part(part.topic, part.partition, column, low, high)
            if offset >= part.stop:
                break
        if offset < part.stop:
            lost = read_header(files.read(descriptor, FRAME_HEADER_BYTES, position))
            last = offset + lost.span - 1 if lost is not None and lost.chain == chain else part.stop - 1
            raise _damaged("Stored records are damaged", part, offset, min(last, part.stop - 1))
        if part.stop_chain is not None and chain != part.stop_chain:
            raise _damaged("The frames do not join those that follow", part, part.first, part.stop - 1)
    except OSError as error:
        if isinstance(error, TailraceError):
            raise
        raise storage_error(error, "Reading a part", part.path) from error
    finally:
        files.close(descriptor)


def _damaged(message: str, part: ReadPart, first: int, last: int) -> CorruptionError:
    return CorruptionError(message, topic=part.topic, partition=part.partition, first=first, last=last, path=part.path)
