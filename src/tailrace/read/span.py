"""Spans: what a scan reads of each partition, from an offset up to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailrace.arguments import StartPoint
from tailrace.disk.columns import Columns, FramePart, Newest
from tailrace.disk.failures import by_system
from tailrace.disk.segment import CHUNK_BYTES, segment_name
from tailrace.disk.tails import END
from tailrace.engine.engine import name_damage
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TailraceError, TopicNotFoundError
from tailrace.limits import OFFSET_MAX
from tailrace.names import is_internal, is_pattern, match
from tailrace.read.merge import merged
from tailrace.types import Damage

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.partition import Partition
    from tailrace.disk.reader import Piece, Reader
    from tailrace.engine.engine import Engine

# Beyond so many partitions a reader keeps no file open between two of its turns: a process has about a thousand.
READERS_OPEN_MAX = 64
# What such a reader takes in one turn; the chunk that the first frame lies in is in memory anyway.
TURN_PIECES_MAX = 64
TURN_BYTES_MAX = CHUNK_BYTES
# Up to so many records `last` walks back over the frames; for more it asks the segments whether any offset is missing.
LAST_WALKED_MAX = 10_000


class Request(NamedTuple):
    """What a scan was asked for, checked as far as that goes without the topic."""

    # A name, or a pattern over names.
    topic: str
    start: StartPoint
    stop: StartPoint | None = None
    # An int counts records, a float is seconds.
    last: int | float | None = None
    partitions: tuple[int, ...] | None = None
    by_time: bool = False
    reverse: bool = False
    mapped: bool = False
    # Of a pattern: by topic and partition where to begin and to stop, instead of `start` and `stop`.
    starts: Mapping[str, Mapping[int, int]] | None = None
    stops: Mapping[str, Mapping[int, int]] | None = None
    # Where damage is noted that is left out; None when it is an error.
    skipped: list[Damage] | None = None

    def of(self, entry: TopicEntry) -> Request:
        """The request of one of the topics that the pattern matches."""
        if self.topic == entry.name:
            return self
        start, stop, partitions = self.start, self.stop, self.partitions
        if self.starts is not None:
            start = _offsets_of(self.starts, entry.name) or StartPoint("earliest")
        if self.stops is not None:
            stop = _offsets_of(self.stops, entry.name)
        if partitions is not None:
            partitions = tuple(index for index in partitions if index < len(entry.slots))
        return self._replace(topic=entry.name, start=start, stop=stop, partitions=partitions)


class Span:
    """The records of one partition from `first` up to `stop`; `next` moves as they are handed out."""

    __slots__ = (
        "begun",
        "closes_between_reads",
        "first",
        "from_earliest",
        "next",
        "partition",
        "reader",
        "skipped",
        "stop",
        "topic",
        "until",
        "word",
    )  # fmt: skip

    def __init__(self, topic: str, partition: Partition, reader: Reader, first: int, stop: int) -> None:
        self.topic = topic
        self.partition = partition
        self.reader = reader
        self.first = self.next = first
        self.stop = stop
        # The time at which a follower stops; None when it is an offset, or never.
        self.until: int | None = None
        # Whether it begins at whatever is the earliest record, so that a trim may move it before the first record.
        self.from_earliest = False
        self.begun = False
        # Whether it keeps no file open between two turns.
        self.closes_between_reads = False
        # Where damage is noted that is left out; None when it is an error.
        self.skipped: list[Damage] | None = None
        # Where the partition's end stands among the words of the tails.
        self.word = partition.word + END

    def forward(self, stop: int) -> Iterator[FramePart]:
        """Parts from `next` up to an offset, frame by frame."""
        while self.next < stop:
            try:
                for column, after in (
                    self._turn(stop) if self.closes_between_reads else self.reader.pieces(self.next, stop)
                ):
                    part = self._cut(column, after, self.next, stop)
                    if part is not None:
                        self.begun = True
                        yield part
                    self.next = min(after, stop)
            except OffsetOutOfRangeError:
                earliest = self.partition.start
                if self.begun or not self.from_earliest or earliest <= self.next:
                    raise
                self.next = earliest
            except CorruptionError as error:
                self.next = min(self._leave_out(error, self.next)[1] + 1, stop)
            except TopicNotFoundError:
                raise dropped(self.topic) from None

    def newest(self, stop: int) -> FramePart | None:
        """All that is left up to an offset, when the reader stands there and has it in one small read, else None."""
        run = self.reader.newest(self.next, stop)
        if run is None:
            return None
        self.begun = True
        self.next = stop
        return Newest(self.topic, self.partition.index, run, 0, run.count)

    def _turn(self, stop: int) -> Iterable[Piece]:
        """The next few pieces, with the file closed behind them."""
        pieces: list[Piece] = []
        size = 0
        try:
            for piece in self.reader.pieces(self.next, stop):
                pieces.append(piece)
                size += piece[0].weight
                if len(pieces) >= TURN_PIECES_MAX or size >= TURN_BYTES_MAX:
                    break
        except TailraceError:
            # What was read before the damage is handed out first; the next turn begins at it.
            if not pieces:
                raise
        finally:
            self.reader.close()
        return pieces

    def backward(self) -> Iterator[FramePart]:
        """The parts of `forward`, the last first; each still counts upwards."""
        stop = self.stop
        while stop > self.next:
            try:
                for column, after in self.reader.pieces_reverse(self.next, stop):
                    part = self._cut(column, after, self.next, self.stop)
                    if self.closes_between_reads:
                        # The pieces of a stretch are in memory.
                        self.reader.close()
                    if part is not None:
                        yield part
                return
            except OffsetOutOfRangeError:
                # What was trimmed meanwhile is no longer among the records from the earliest on.
                if not self.from_earliest:
                    raise
                return
            except CorruptionError as error:
                stop = min(self._leave_out(error, self.next)[0], stop - 1)
            except TopicNotFoundError:
                raise dropped(self.topic) from None

    def _leave_out(self, error: CorruptionError, offset: int) -> tuple[int, int]:
        """Note the range (inclusive) that damage is left out for; where it is an error, raise it."""
        error = explained(error, self.topic, self.reader)
        first, last = error.first, error.last
        if self.skipped is None or first is None or last is None or last < offset:
            raise error from error.__cause__
        damage = Damage(self.topic, self.partition.index, first, last, error.path or "", 0, error.message)
        if damage not in self.skipped:
            self.skipped.append(damage)
        return first, last

    def _cut(self, column: Columns, after: int, start: int, stop: int) -> FramePart | None:
        first = column.index_at(start) if column.base_offset < start else 0
        last = column.count if after <= stop else column.index_at(stop)
        return FramePart(self.topic, self.partition.index, column, first, last) if first < last else None

    def count(self) -> int:
        """How many records there are, read from footers and headers where no offset is missing."""
        if self.skipped is not None:
            # A footer counts what was written, not what can still be read.
            return sum(part.stop - part.first for part in self.forward(self.stop))
        total = 0
        start, stop = self.next, self.stop
        for info in self.reader.segments():
            low, high = max(start, info.base), min(stop, info.end)
            if low >= high:
                continue
            total += self._read_count(start, low)
            if info.records == info.end - info.base:
                total += high - low
            elif (low, high) == (info.base, info.end) and info.sealed:
                total += info.records
            else:
                total += self._read_count(low, high)
            start = high
        total += self._read_count(start, stop)
        self.reader.close()
        return total

    def _read_count(self, start: int, stop: int) -> int:
        """How many records are read from an offset up to another; where no segment holds them, this says why."""
        piece = Span(self.topic, self.partition, self.reader, start, stop)
        piece.from_earliest = self.from_earliest and start == self.first
        return sum(part.stop - part.first for part in piece.forward(stop))


def matching(engine: Engine, patterns: Sequence[str]) -> list[TopicEntry]:
    """The topics that any of the names and patterns stands for, by name; internal ones never do."""
    by_name = engine.refresh().by_name
    plain = {pattern for pattern in patterns if not is_pattern(pattern)}
    found = {name: entry for name in plain if (entry := by_name.get(name)) is not None}
    if wild := [pattern for pattern in patterns if pattern not in plain]:
        # A copy, because another thread may take in what the catalog got meanwhile.
        every = list(by_name.items())
        found.update({name: entry for name, entry in every if any(match(pattern, name) for pattern in wild)})
    return [found[name] for name in sorted(found) if not is_internal(name)]


def resolve(engine: Engine, entry: TopicEntry, request: Request) -> list[Span]:
    """The spans of a topic as it stands now: every end is taken once, here."""
    return resolve_each(engine, [entry], request)


def resolve_each(engine: Engine, entries: Sequence[TopicEntry], request: Request) -> list[Span]:
    """The spans of all these topics, in their order."""
    spans = []
    for entry in entries:
        asked = request.of(entry)
        spans += [open_span(engine, entry, index, asked) for index in _chosen(entry, asked)]
    many = len(spans) > READERS_OPEN_MAX
    if isinstance(request.last, int):
        for span in spans:
            span.closes_between_reads = many
        keep_last(spans, request.last)
    for span in spans:
        # One after the other needs one file at a time; `one_by_one` closes each behind itself.
        span.closes_between_reads = many and request.by_time
        span.first = span.next
    return spans


def one_by_one(spans: Sequence[Span], streams: Sequence[Iterator[FramePart]], *, many: bool) -> Iterator[FramePart]:
    """The parts of one stream after the other; of many spans each gives its file back before the next begins."""
    for span, stream in zip(spans, streams, strict=True):
        yield from stream
        if many:
            span.reader.close()


def open_span(engine: Engine, entry: TopicEntry, index: int, request: Request) -> Span:
    """One partition, from where the request says."""
    try:
        partition = engine.partition(entry, index)
    except TopicNotFoundError:
        raise dropped(entry.name) from None
    reader = engine.store.reader(partition, mapped=request.mapped)
    start, end = partition.start, partition.end
    span = Span(entry.name, partition, reader, start, end)
    span.skipped = request.skipped
    skip = span.skipped is not None
    try:
        point = request.start
        if isinstance(request.last, float):
            time = engine.files.now_us() - round(request.last * 1e6)
            span.next = min(max(offset_at(reader, time, skip), start), end)
        elif point.kind == "earliest" or (point.kind == "offsets" and index not in point.offsets):
            span.from_earliest = True
        else:
            span.next = _place(point, index, reader, start, end, skip)
            if not start <= span.next <= end:
                raise _out_of_range(entry.name, index, span.next, start, end)
        if request.stop is not None:
            point = request.stop
            if point.kind != "offsets" or index in point.offsets:
                span.stop = min(_place(point, index, reader, start, end, skip), end)
    except CorruptionError as error:
        raise explained(error, entry.name, reader) from error.__cause__
    except TopicNotFoundError:
        raise dropped(entry.name) from None
    reader.close()
    return span


def keep_last(spans: Sequence[Span], count: int) -> None:
    """Move the beginnings up, so that only so many records are left: the newest of all partitions by time."""
    if len(spans) == 1 and count > LAST_WALKED_MAX and spans[0].skipped is None:
        (span,) = spans
        guess = Span(span.topic, span.partition, span.reader, max(span.next, span.stop - count), span.stop)
        if guess.count() == guess.stop - guess.next:
            span.next, span.from_earliest = guess.next, span.from_earliest and guess.next == span.next
            return
    noted = [span.skipped for span in spans]
    for span in spans:
        if span.skipped is not None:
            # What is looked at here need not be among what is read then.
            span.skipped = []
    _move_up(spans, count)
    for span, skipped in zip(spans, noted, strict=True):
        span.skipped = skipped


def _move_up(spans: Sequence[Span], count: int) -> None:
    lows = {(span.topic, span.partition.index): span.stop for span in spans}
    left = count
    parts = merged([span.backward() for span in spans], reverse=True) if count else iter(())
    for part in parts:
        taken = min(left, part.stop - part.first)
        lows[part.topic, part.partition] = part.columns.offset(part.stop - taken)
        left -= taken
        if not left:
            break
    if left:
        return
    for span in spans:
        span.next, span.from_earliest = lows[span.topic, span.partition.index], False


def gaps(reader: Reader) -> list[tuple[int, int]]:
    """The ranges of offsets for which there should be a segment and is none."""
    partition = reader.partition
    # Before the segments are listed, so that a new one is among them if its records are.
    expected, end = partition.start, partition.end
    found = []
    for info in reader.segments():
        if info.base > expected:
            found.append((expected, info.base))
        expected = max(expected, info.end)
    if expected < end:
        found.append((expected, end))
    # A trim meanwhile took segments away that nobody misses.
    start = partition.start
    return [(max(first, start), stop) for first, stop in found if stop > start]


def offset_at(reader: Reader, time: int, skip: bool = False) -> int:
    """The first offset at or after a time; where a segment is missing before it, the first that is missing."""
    found = reader.offset_at(time, skip=skip)
    partition = reader.partition
    if found < partition.end and (found not in reader.bases or (found == partition.start and found == reader.bases[0])):
        return found
    return next((first for first, stop in gaps(reader) if stop == found), found)


def explained(error: CorruptionError, topic: str, reader: Reader) -> CorruptionError:
    """The same error with the topic in it; where a whole segment is missing it names that, and all of its range."""
    offset = error.first
    if offset is not None:
        try:
            for first, stop in gaps(reader):
                if first <= offset < stop:
                    error.message = "A segment is missing"
                    error.first, error.last = first, stop - 1
                    # Where a trim cut into the missing segment, nothing tells its name.
                    known = first > reader.partition.start or not first
                    error.path = f"{reader.partition.path}/{segment_name(first)}" if known else reader.partition.path
        except by_system(OSError, TailraceError):
            # What was found first is what the caller learns.
            pass
    return name_damage(error, topic)


def dropped(topic: str) -> TopicNotFoundError:
    """The error for a topic that goes away under a reader."""
    return TopicNotFoundError(f"The topic {topic!r} was dropped.", topic=topic)


def _offsets_of(places: Mapping[str, Mapping[int, int]], topic: str) -> StartPoint | None:
    return StartPoint("offsets", 0, places[topic]) if topic in places else None


def _chosen(entry: TopicEntry, request: Request) -> Sequence[int]:
    count = len(entry.slots)
    chosen: Sequence[int] = range(count) if request.partitions is None else request.partitions
    points = [("start", request.start)] + ([("stop", request.stop)] if request.stop else [])
    named = {*chosen, *(index for _, point in points for index in point.offsets)}
    for index in sorted(named):
        if index >= count:
            have = "one partition, 0" if count == 1 else f"{count} partitions, 0 to {count - 1}"
            raise ValueError(f"There is no partition {index}: the topic {entry.name!r} has {have}.")
    for what, point in points:
        if point.kind == "offset" and len(chosen) > 1:
            example = ", ".join(f"{index}: {point.value}" for index in chosen[:2])
            raise ValueError(
                f"{what}={point.value} is an offset in one partition, and {len(chosen)} partitions of {entry.name!r} "
                f"are read: write {what}={{{example}, ...}}, or name one with partition=."
            )
    return chosen


def _place(point: StartPoint, index: int, reader: Reader, start: int, end: int, skip: bool) -> int:
    if point.kind == "time":
        return min(max(offset_at(reader, point.value, skip), start), end)
    if point.kind == "offsets":
        return point.offsets[index]
    return {"earliest": start, "latest": end}.get(point.kind, point.value)


def _out_of_range(topic: str, index: int, offset: int, start: int, end: int) -> OffsetOutOfRangeError:
    why = f"the earliest record is {start}" if offset < start else f"the next record will be {end}"
    return OffsetOutOfRangeError(
        f"There is no offset {min(offset, OFFSET_MAX)} in {topic}[{index}]: {why}.", earliest=start, latest=end
    )
