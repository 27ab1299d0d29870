"""The request: the arguments of a read, resolved for every topic and partition at the time of the read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.arguments import StartPoint, parse_count, parse_start
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TopicNotFoundError
from tailrace.limits import OFFSET_MAX
from tailrace.names import is_internal, is_pattern, match
from tailrace.read.merge import merged
from tailrace.read.span import Span, dropped, explained, offset_at
from tailrace.read.visibility import Visibility, visibility_of

if TYPE_CHECKING:
    from tailrace.disk import Reader, TopicEntry
    from tailrace.engine.engine import Engine
    from tailrace.types import Damage, Start

# Up to this many records `last` walks back over the frames; for more it checks the segments for missing offsets.
LAST_WALKED_MAX = 10_000

Offsets = Mapping[int, int]
# Finds the offset of a point that only the files of a partition can resolve.
Lookup = Callable[[StartPoint], int]


class Request(NamedTuple):
    """The arguments of a scan, checked as far as possible without the topics."""

    # Names, and patterns over names; together they denote a set of topics.
    topics: tuple[str, ...]
    start: StartPoint
    stop: StartPoint | None = None
    # An int is a number of records, a float is seconds.
    last: int | float | None = None
    partitions: tuple[int, ...] | None = None
    by_time: bool = False
    reverse: bool = False
    mapped: bool = False
    # By topic and partition the start and stop offsets, instead of `start` and `stop`; not for a single named topic.
    starts: Mapping[str, Offsets] | None = None
    stops: Mapping[str, Offsets] | None = None
    # Collects the damage that is skipped; None if damage is an error.
    skipped: list[Damage] | None = None

    @property
    def name(self) -> str:
        """The names and patterns as one text, for messages."""
        return ", ".join(self.topics)

    @property
    def single(self) -> str | None:
        """The topic that is requested by its name alone; None for patterns and for several names."""
        return self.topics[0] if len(self.topics) == 1 and not is_pattern(self.topics[0]) else None

    def of(self, entry: TopicEntry) -> Request:
        """Return the request for one of the topics."""
        if self.single == entry.name:
            return self
        start, stop, partitions = self.start, self.stop, self.partitions
        if self.starts is not None:
            start = _offsets_of(self.starts, entry.name) or StartPoint("earliest")
        if self.stops is not None:
            stop = _offsets_of(self.stops, entry.name)
        if partitions is not None:
            partitions = tuple(index for index in partitions if index < len(entry.slots))
        return self._replace(topics=(entry.name,), start=start, stop=stop, partitions=partitions)


def _offsets_of(places: Mapping[str, Offsets], topic: str) -> StartPoint | None:
    return StartPoint("offsets", 0, places[topic]) if topic in places else None


# Arguments.


def parse_place(
    place: Start | Mapping[tuple[str, int], int], name: str, what: str, now_us: int
) -> tuple[StartPoint, Mapping[str, Offsets] | None]:
    """Parse a start or a stop; for a pattern, the positions of another scan by topic."""
    if is_positions(place):
        places = parse_positions(place, name, what)  # type: ignore[arg-type]  # It is a mapping.
        return (StartPoint("earliest"), places) if is_pattern(name) else (StartPoint("offsets", 0, places[name]), None)
    # For anything else parse_start raises an error that says what it should be.
    return parse_start(place, what, now_us=now_us), None  # type: ignore[arg-type]


def is_positions(place: Any) -> bool:
    """Return whether a start or a stop is the positions of a scan, at least in part."""
    return isinstance(place, Mapping) and any(isinstance(key, tuple) for key in place)


def parse_positions(place: Mapping[Any, Any], name: str, what: str) -> dict[str, Offsets]:
    """Return the positions of a scan by topic: those of this topic, or of topics that the pattern matches."""
    mine: dict[str, dict[Any, int]] = {}
    for key, offset in place.items():
        if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str)):
            raise TypeError(f"{what} has the key {key!r}: write {{partition: offset}}, or the positions of a scan.")
        if match(name, key[0]) and not is_internal(key[0]):
            mine.setdefault(key[0], {})[key[1]] = offset
    if not mine:
        others = ", ".join(map(repr, sorted({key[0] for key in place})))
        none = f"none of a topic that matches {name!r}" if is_pattern(name) else f"none of {name!r}"
        raise ValueError(f"{what} has positions of {others} and {none}.")
    return {topic: parse_start(offsets, what).offsets for topic, offsets in mine.items()}


def parse_partitions(partition: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the partitions to read, in order; None for all of them."""
    if partition is None:
        return None
    if isinstance(partition, (str, bytes, bytearray, memoryview, Mapping, Set)):
        raise TypeError(f"partition must be an integer or a list of them, not {type(partition).__name__}.")
    many = partition if isinstance(partition, Iterable) else [partition]
    chosen = sorted({parse_count(each, "partition") for each in many})
    if not chosen:
        raise ValueError("partition=[] names no partition: leave it out to read all of them.")
    return tuple(chosen)


# Topics and partitions.


def matching(engine: Engine, topics: Sequence[str]) -> list[TopicEntry]:
    """Return the topics that any of the names and patterns denotes, by name; internal topics are left out."""
    by_name = engine.refresh().by_name
    plain = {topic for topic in topics if not is_pattern(topic)}
    found = {name: entry for name in plain if (entry := by_name.get(name)) is not None}
    if wild := [topic for topic in topics if topic not in plain]:
        # A copy, because another thread may apply new catalog records meanwhile.
        every = list(by_name.items())
        found.update({name: entry for name, entry in every if any(match(pattern, name) for pattern in wild)})
    return [found[name] for name in sorted(found) if not is_internal(name)]


def present(engine: Engine, request: Request) -> list[TopicEntry]:
    """Return the existing topics of a request, by name."""
    if request.single is None:
        return matching(engine, request.topics)
    entry = engine.find(request.single)
    return [] if entry is None else [entry]


def select(engine: Engine, request: Request) -> list[Span]:
    """Return the spans of the existing topics; raise TopicNotFoundError if there is none, or a named one is missing."""
    if request.single is not None:
        return open_spans(engine, [engine.entry(request.single)], request)
    for name in request.topics:
        if not is_pattern(name):
            engine.entry(name)
    entries = present(engine, request)
    if not entries:
        raise TopicNotFoundError(f"No topic matches {request.name!r}.", topic=request.name)
    check_partitions(entries, request)
    return open_spans(engine, entries, settled(entries, request))


def check_partitions(entries: Sequence[TopicEntry], request: Request) -> None:
    """Raise ValueError for partitions that none of the matching topics has."""
    widest = max(entries, key=lambda entry: len(entry.slots))
    for index in request.partitions or ():
        if index >= len(widest.slots):
            have = f"{widest.name!r} has the most, {len(widest.slots)}"
            raise ValueError(f"No topic that matches {request.name!r} has a partition {index}: {have}.")


def settled(entries: Sequence[TopicEntry], request: Request) -> Request:
    """Return the request of several topics with each offset assigned to its topic; raise if that is ambiguous."""
    if (starts := _given("start", request.start, entries, request)) is not None:
        request = request._replace(start=StartPoint("earliest"), starts=starts)
    if request.stop is not None and (stops := _given("stop", request.stop, entries, request)) is not None:
        request = request._replace(stop=None, stops=stops)
    return request


def _given(
    what: str, point: StartPoint, entries: Sequence[TopicEntry], request: Request
) -> Mapping[str, Offsets] | None:
    """Return offsets that were given without their topic by topic; None if the point is not an offset."""
    if point.kind not in ("offset", "offsets"):
        return None
    places = [(entry.name, index) for entry in entries for index in _indexes(entry, request)]
    if point.kind == "offset":
        if len(places) == 1:
            return {places[0][0]: {places[0][1]: point.value}}
        said, offset, found = f"{point.value} is an offset in one partition", point.value, f"{len(places)} partitions"
    else:
        if len(entries) == 1:
            return {entries[0].name: point.offsets}
        offset = next(iter(point.offsets.values()))
        said, found = f"{dict(point.offsets)} has offsets in one topic", f"{len(entries)} topics"
    matched = f"{found} match" if entries else "no topic matches"
    name, index = places[0] if places else ("orders.eu", 0)
    raise ValueError(
        f"{what}={said}, and {matched} {request.name!r}: write {what}={{({name!r}, {index}): {offset}, ...}}."
    )


def _indexes(entry: TopicEntry, request: Request) -> Sequence[int]:
    every = range(len(entry.slots))
    return every if request.partitions is None else [index for index in request.partitions if index in every]


def _chosen(entry: TopicEntry, request: Request) -> Sequence[int]:
    """Return the partitions to read of one topic; raise ValueError for those that it does not have."""
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


# Offsets.


def resolve_point(point: StartPoint, index: int, start: int, end: int, look: Lookup) -> int | None:
    """Return the offset of a point in one partition; None if it names offsets of other partitions only.

    `start` and `end` are the bounds of the partition as the caller sees them. A given offset is returned unchanged,
    even if it is outside of them: the caller decides whether that is an error.
    """
    if point.kind == "offset":
        return point.value
    if point.kind == "offsets":
        return point.offsets.get(index)
    if point.kind == "earliest":
        return start
    if point.kind == "latest":
        return end
    return min(max(look(point), start), end)


def lookup(reader: Reader, visibility: Visibility, *, skip: bool = False) -> Lookup:
    """Return a function that resolves a point with a reader of its partition; with `skip` it ignores damage."""
    return lambda point: (
        offset_at(reader, point.value, visibility, skip) if point.kind == "time" else _active_start(reader)
    )


def _active_start(reader: Reader) -> int:
    """Return the first offset of the active segment; the end if no segment takes appends."""
    end = reader.partition.end
    state = reader.state()
    if state is None:
        # It was overwritten during each attempt, or the topic was dropped, which the read then reports.
        return reader.newest_base(end)
    return state.base if state.active else state.end


def open_spans(engine: Engine, entries: Sequence[TopicEntry], request: Request) -> list[Span]:
    """Return the spans of these topics, in order; every end is loaded once, here."""
    spans = []
    for entry in entries:
        for_topic = request.of(entry)
        spans += [open_span(engine, entry, index, for_topic) for index in _chosen(entry, for_topic)]
    many = len(spans) > engine.tuning.readers_open_max
    if isinstance(request.last, int):
        for span in spans:
            span.closes_between_reads = many
        keep_last(spans, request.last)
    for span in spans:
        # Reading them one after the other needs one file at a time; `one_by_one` closes each after its last part.
        span.closes_between_reads = many and request.by_time
        span.first = span.next
    return spans


def open_span(engine: Engine, entry: TopicEntry, index: int, request: Request) -> Span:
    """Return the span of one partition, from the start of the request."""
    try:
        partition = engine.partition(entry, index)
    except TopicNotFoundError:
        raise dropped(entry.name) from None
    reader = engine.store.reader(partition, mapped=request.mapped)
    start, end = partition.start, partition.end
    visibility = visibility_of(engine, entry.name, partition)
    span = Span(entry.name, partition, reader, start, end, visibility)
    span.skipped = request.skipped
    look = lookup(reader, visibility, skip=span.skipped is not None)
    point = request.start
    if isinstance(request.last, float):
        point = StartPoint("time", engine.files.now_us() - round(request.last * 1e6))
    try:
        offset = resolve_point(point, index, start, end, look)
        if offset is None or point.kind == "earliest":
            span.from_earliest = True
        elif start <= offset <= end:
            span.next = offset
        else:
            raise _out_of_range(entry.name, index, offset, start, end)
        if request.stop is not None and (stop := resolve_point(request.stop, index, start, end, look)) is not None:
            span.stop = min(stop, end)
    except CorruptionError as error:
        raise explained(error, entry.name, reader) from error.__cause__
    except TopicNotFoundError:
        raise dropped(entry.name) from None
    reader.close()
    return span


def _out_of_range(topic: str, index: int, offset: int, start: int, end: int) -> OffsetOutOfRangeError:
    why = f"the earliest record is {start}" if offset < start else f"the next record will be {end}"
    return OffsetOutOfRangeError(
        f"There is no offset {min(offset, OFFSET_MAX)} in {topic}[{index}]: {why}.", earliest=start, latest=end
    )


def keep_last(spans: Sequence[Span], count: int) -> None:
    """Move the starts of the spans up, so that only the newest `count` records of all partitions by time are left."""
    if len(spans) == 1 and count > LAST_WALKED_MAX and spans[0].skipped is None:
        (span,) = spans
        low = max(span.next, span.stop - count)
        guess = Span(span.topic, span.partition, span.reader, low, span.stop, span.visibility)
        if guess.count() == guess.stop - guess.next:
            span.next, span.from_earliest = guess.next, span.from_earliest and guess.next == span.next
            return
    noted = [span.skipped for span in spans]
    for span in spans:
        if span.skipped is not None:
            # Frames examined here need not be among those that are read later.
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
