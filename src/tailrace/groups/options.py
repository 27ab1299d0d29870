"""Consumer options: topics, start and stop, when to commit; checked, and resolved to offsets."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

from tailrace.arguments import StartPoint, format_duration, parse_count, parse_duration, parse_start
from tailrace.disk import by_system
from tailrace.errors import InvalidNameError, OffsetOutOfRangeError, TailraceError, TopicNotFoundError
from tailrace.names import is_internal, is_pattern, validate_pattern, validate_topic_name
from tailrace.read.request import lookup, matching, resolve_point
from tailrace.read.span import dropped
from tailrace.read.visibility import visibility_of

if TYPE_CHECKING:
    from datetime import timedelta

    from tailrace.disk import Partition, TopicEntry
    from tailrace.engine.engine import Engine
    from tailrace.groups.state import Place
    from tailrace.types import Start

Commit = Literal["after", "before", "manual"]
OnLost = Literal["error", "earliest", "latest"]
Result = TypeVar("Result")

# With less than this, members of a busy machine would lose partitions while they process records.
MAX_PROCESSING_SECONDS_MIN = 1.0
MAX_PROCESSING_DEFAULT = "5m"


class CommitInterval(NamedTuple):
    """When cursors are stored: after a number of records, or after a time in seconds."""

    records: int | None
    seconds: float


class ConsumerOptions(NamedTuple):
    """The arguments of a consumer, except its log and group."""

    topics: tuple[str, ...]
    start: StartPoint
    stop: StartPoint | None
    commit: Commit
    every: CommitInterval
    on_lost: OnLost
    member: str | None
    # Seconds without a poll after which the partitions are lost; None: no limit.
    max_processing: float | None


def parse_options(
    now_us: int, topics: Any, start: Any, stop: Any, commit: Any, commit_every: Any, on_lost: Any, member: Any,
    max_processing: Any,
) -> ConsumerOptions:  # fmt: skip
    """Return the arguments of Log.consumer, checked; times are relative to `now_us`."""
    if isinstance(stop, str) and stop == "now":
        stop = "latest"
    options = ConsumerOptions(
        parse_topics(topics),
        parse_start(start, now_us=now_us),
        None if stop is None else parse_start(stop, "stop", now_us=now_us),
        cast("Commit", parse_choice(commit, "commit", ("after", "before", "manual"))),
        parse_commit_interval(commit_every),
        cast("OnLost", parse_choice(on_lost, "on_lost", ("error", "earliest", "latest"))),
        None if member is None else _member_name(member),
        parse_max_processing(max_processing),
    )
    if options.stop is not None and options.stop.kind == "earliest":
        raise ValueError('stop="earliest" would read nothing: write "now", an offset or a time.')
    return options


def parse_topics(topics: Any) -> tuple[str, ...]:
    """Return names and patterns as a tuple, from one or several."""
    many = [topics] if isinstance(topics, str) else topics
    if isinstance(many, (bytes, bytearray, Mapping)) or not isinstance(many, Iterable):
        raise TypeError(f"topics must be a name, a pattern or a list of them, not {type(topics).__name__}.")
    found = tuple(dict.fromkeys(_topic(name) for name in many))
    if not found:
        raise ValueError("topics=[] names no topic: write a name, a pattern or a list of them.")
    return found


def _topic(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f'A topic is named by a str such as "orders" or "sensors.*", not by {type(name).__name__}.')
    if is_internal(name):
        raise InvalidNameError(f"The topic {name!r} is internal, and no group reads it.")
    return validate_pattern(name) if is_pattern(name) else validate_topic_name(name)


def parse_commit_interval(every: int | timedelta | str) -> CommitInterval:
    """Return when to commit: an int counts records, texts and timedeltas are time."""
    example = 'write a count of records as an integer, or a time as "1s" or a timedelta'
    if isinstance(every, (bool, float)):
        raise TypeError(f"commit_every must not be a {type(every).__name__}: {example}.")
    if isinstance(every, int):
        return CommitInterval(parse_count(every, "commit_every", minimum=1), 0.0)
    if isinstance(every, str) and every.isdecimal():
        raise ValueError(f"commit_every={every!r} has no unit: write {every} for records, or {every + 's'!r}.")
    return CommitInterval(None, parse_duration(every, "commit_every"))


def parse_max_processing(value: Any) -> float | None:
    """Return the time that a member may go without a poll, in seconds; None for no limit."""
    if value is None:
        return None
    seconds = parse_duration(value, "max_processing")
    if seconds < MAX_PROCESSING_SECONDS_MIN:
        shortest = format_duration(MAX_PROCESSING_SECONDS_MIN)
        raise ValueError(f"max_processing={value!r} is too short: the minimum is {shortest}, and None is no limit.")
    return seconds


def parse_choice(value: Any, what: str, choices: tuple[str, ...]) -> str:
    """Return the value, which must be one of several words."""
    if value not in choices:
        listed = " or ".join((", ".join(map(repr, choices[:-1])), repr(choices[-1])))
        raise ValueError(f"{what}={value!r} is not known: write {listed}.")
    return str(value)


def _member_name(member: Any) -> str:
    if not isinstance(member, str):
        raise TypeError(f"member must be a str, not {type(member).__name__}.")
    if not 0 < len(member.encode()) <= 100 or not all(letter.isalnum() or letter in "-_.@:" for letter in member):
        raise ValueError(f"member={member!r} must be 1 to 100 letters, digits, or any of - _ . @ : in UTF-8.")
    return member


class ReadRange(NamedTuple):
    """The first and last offsets of one consumer, as far as they are known when it is made."""

    starts: dict[Place, int]
    # None without a stop; a partition that was created later is not in it, and is not read.
    stops: dict[Place, int] | None
    until: int | None


def resolve_range(engine: Engine, options: ConsumerOptions, known: Container[Place]) -> ReadRange:
    """Return the offsets that "latest", "now" and times stand for, as of the moment when the consumer is made.

    Partitions in `known` have a cursor in the group and start there, whatever `start` is.
    """
    entries = matching(engine, options.topics)
    if options.stop is not None:
        for name in options.topics:
            # A topic that does not exist now is not read by a bounded reading: most likely its name is misspelt.
            if not is_pattern(name):
                engine.entry(name)
        if not entries:
            listed = ", ".join(map(repr, options.topics))
            raise TopicNotFoundError(f"No topic matches {listed}.", topic=options.topics[0])
    starts: dict[Place, int] = {}
    stop = options.stop
    # An unbounded reading waits for a named topic that does not exist yet.
    named = options.topics if stop is not None else ()
    if options.start.kind != "earliest":
        starts = _places(engine, entries, options.start, "start", known, named)
    if stop is None or stop.kind == "time":
        return ReadRange(starts, None, None if stop is None else stop.value)
    return ReadRange(starts, _places(engine, entries, stop, "stop", (), named), None)


def _places(
    engine: Engine,
    entries: list[TopicEntry],
    point: StartPoint,
    what: str,
    known: Container[Place],
    named: Container[str],
) -> dict[Place, int]:
    chosen = offsets_of(point, partitions_of(entries), what)

    def look(entry: TopicEntry) -> list[tuple[Place, int]]:
        found = []
        for index in range(len(entry.slots)):
            if (entry.id, index) in known:
                continue
            partition = engine.partition(entry, index)
            offset = chosen(entry.name, index, engine, partition)
            if offset is None and what == "stop":
                offset = partition.end
            if offset is not None:
                found.append(((entry.id, index), offset))
        return found

    return dict(of_each(engine, entries, look, named))


def partitions_of(entries: Iterable[TopicEntry]) -> list[tuple[str, int]]:
    """Return the partitions of topics, by name."""
    return [(entry.name, index) for entry in entries for index in range(len(entry.slots))]


def of_each(
    engine: Engine,
    entries: Iterable[TopicEntry],
    look: Callable[[TopicEntry], list[Result]],
    named: Container[str] = (),
) -> list[Result]:
    """Return the results of `look` for each topic, without topics dropped meanwhile; raise for one that was named.

    The catalog shows a drop before anything else does, so a topic that is in it after the look existed during it.
    """
    found: list[Result] = []
    for entry in entries:
        some: list[Result] = []
        try:
            some = look(entry)
        except by_system(TailraceError, OSError):
            if entry.id in engine.refresh().by_id:
                raise
        if entry.id in engine.refresh().by_id:
            found += some
        elif entry.name in named:
            raise dropped(entry.name)
    return found


def offsets_of(
    point: StartPoint, partitions: list[tuple[str, int]], what: str
) -> Callable[[str, int, Engine, Partition], int | None]:
    """Return a function that finds the offset of a point in a partition; None for a partition that it does not name."""
    topics = sorted({topic for topic, _ in partitions})
    if point.kind == "offset" and len(partitions) > 1:
        raise ValueError(
            f"{what}={point.value} is an offset in one partition, and {len(partitions)} are read: "
            f"write {what}={{partition: offset}}, or a time."
        )
    if point.kind == "offsets":
        if len(topics) > 1:
            raise ValueError(f"{what}={{partition: offset}} is for one topic, and {len(topics)} are read.")
        for index in point.offsets:
            if topics and (topics[0], index) not in partitions:
                raise ValueError(f"{what} names partition {index}, which is not among those read of {topics[0]!r}.")

    def find(topic: str, index: int, engine: Engine, partition: Partition) -> int | None:
        start, end = partition.start, partition.end
        reader = engine.store.reader(partition)
        try:
            look = lookup(reader, visibility_of(engine, topic, partition))
            offset = resolve_point(point, index, start, end, look)
        finally:
            reader.close()
        if what != "stop" and offset is not None and not start <= offset <= end:
            raise OffsetOutOfRangeError(
                f"{what}={offset} is not in {topic}[{index}], which holds {start} up to {end}.",
                earliest=start,
                latest=end,
            )
        return offset

    return find


def parse_target(to: Start, now_us: int) -> StartPoint:
    """Return the point to seek or reset to."""
    return parse_start(to, "to", now_us=now_us)
