"""The selection of a query: which topics, and from where to where."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from tailrace.arguments import StartPoint, parse_time
from tailrace.bulk import now_us
from tailrace.names import did_you_mean, is_internal, is_pattern, match, validate_pattern, validate_topic_name
from tailrace.spark.option_values import choice_of, is_number, object_of, text_of

EARLIEST = -2
LATEST = -1
OFFSETS_EXAMPLE = """'{"orders": {"0": 100, "1": -2}}' (-2 is earliest, -1 is latest)"""
TIMES_EXAMPLE = """'{"orders": {"0": 1763200000000}}' (milliseconds)"""
ASSIGN_EXAMPLE = """'{"orders": [0, 1]}'"""

ByPartition = Mapping[str, Mapping[int, int]]


class Selection(NamedTuple):
    """The topics to read: names and wildcards, or a regular expression, or single partitions."""

    kind: Literal["subscribe", "subscribePattern", "assign"]
    names: tuple[str, ...] = ()
    expression: str = ""
    partitions: Mapping[str, tuple[int, ...]] = {}

    def wants(self, topic: str) -> bool:
        """Return whether a topic of that name is read."""
        if self.kind == "subscribePattern":
            return re.fullmatch(self.expression, topic) is not None
        return any(match(name, topic) if is_pattern(name) else name == topic for name in self.names)

    def includes(self, place: tuple[str, int]) -> bool:
        """Return whether a partition is read if it exists."""
        topic, index = place
        return self.wants(topic) and index in self.partitions.get(topic, (index,))

    @property
    def exact(self) -> list[str]:
        """The topics that are named in full, and so must exist."""
        return [name for name in self.names if not is_pattern(name)]

    def __str__(self) -> str:
        return self.expression or ", ".join(self.names)


class Point(NamedTuple):
    """Where to start or to end: the same everywhere, or by topic and partition."""

    # The option as the user wrote it, for errors.
    option: str
    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    # Microseconds.
    time: int = 0
    by_partition: ByPartition = {}
    # What happens if a partition has no record at or after a time.
    strategy: Literal["error", "latest"] = "latest"

    def of(self, place: tuple[str, int]) -> StartPoint:
        """Return the place in one partition, which must be named where the point goes by partition."""
        if self.kind == "earliest" or self.kind == "latest":
            return StartPoint(self.kind)
        if self.kind == "time":
            return StartPoint("time", self.time)
        given = self.by_partition[place[0]][place[1]]
        if self.kind == "times":
            return StartPoint("time", given * 1_000)
        if given in (EARLIEST, LATEST):
            return StartPoint("earliest" if given == EARLIEST else "latest")
        return StartPoint("offset", given)


# Topics.


def parse_selection(options: Mapping[str, str]) -> Selection:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if text_of(options, name) is not None]
    if len(given) != 1:
        if given:
            raise ValueError(f"{' and '.join(given)} are given: a query has one of them.")
        hint = ""
        if topic := text_of(options, "topic"):
            hint = f' (topic={topic!r} is where a query writes to: to read it, write .option("subscribe", {topic!r}))'
        elif not any(True for _ in options):
            hint = (
                " (Spark keeps the options of a table with columns to itself: leave the columns out, use CREATE "
                "TEMPORARY VIEW, or write SELECT ... FROM name WITH (log = '...', subscribe = '...').)"
            )
        raise ValueError(
            'Say which topics to read: .option("subscribe", "orders"), or several as "orders, sensors.*", '
            f"or a regular expression as subscribePattern, or partitions as assign.{hint}"
        )
    text = text_of(options, given[0]) or ""
    if given[0] == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not names:
            raise ValueError(f"subscribe={text!r} names no topic.")
        return Selection("subscribe", tuple(map(_topic, names)))
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            hint = " (wildcards such as sensors.* go into subscribe)" if text.startswith("*") else ""
            raise ValueError(f"subscribePattern={text!r} is no regular expression: {error}{hint}.") from None
        return Selection("subscribePattern", expression=text)
    return _assigned(text)


def _topic(name: str) -> str:
    if is_internal(name):
        raise ValueError(f"The topic {name!r} is internal and cannot be read.")
    return validate_pattern(name) if is_pattern(name) else validate_topic_name(name)


def _assigned(text: str) -> Selection:
    found: dict[str, tuple[int, ...]] = {}
    for topic, listed in object_of(text, "assign", ASSIGN_EXAMPLE).items():
        if not isinstance(listed, list) or not listed or not all(is_number(each, 0) for each in listed):
            raise ValueError(f"assign names no list of partitions for {topic!r}: write {ASSIGN_EXAMPLE}.")
        found[_exact_topic(topic, "assign")] = tuple(sorted(set(listed)))
    if not found:
        raise ValueError(f"assign={text!r} names no partition: write {ASSIGN_EXAMPLE}.")
    return Selection("assign", tuple(found), partitions=found)


def _exact_topic(name: str, option: str) -> str:
    if is_pattern(name):
        raise ValueError(f"{option} names the pattern {name!r}: it takes topics by their full names.")
    return _topic(name)


# Start and end.


def parse_start(options: Mapping[str, str]) -> Point | None:
    strategy: Literal["error", "latest"] = "error"
    if choice_of(options, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest":
        strategy = "latest"
    since = text_of(options, "since")
    point = _point(options, "starting", strategy)
    if since is None:
        return point
    if point is not None:
        raise ValueError(f"since and {point.option} both say where to begin: leave one of them out.")
    return Point("since", "time", parse_time(since, "since", now_us=now_us()))


def parse_stop(options: Mapping[str, str]) -> Point | None:
    point = _point(options, "ending", "latest")
    if point is not None and point.kind == "earliest":
        raise ValueError("endingOffsets=earliest would read nothing: write latest, or offsets as JSON.")
    if point is not None and point.kind == "offsets":
        _refuse_place(point, EARLIEST, "-2 (earliest)")
    return point


def _refuse_place(point: Point, place: int, kind: str) -> None:
    for topic, offsets in point.by_partition.items():
        for partition, offset in offsets.items():
            if offset == place:
                raise ValueError(f"{point.option} gives {kind} for {topic}[{partition}], which is not possible there.")


def refuse_latest_start(point: Point) -> None:
    """Raise ValueError for a batch that starts at the end: it would read nothing, most likely by mistake."""
    if point.kind == "latest":
        raise ValueError("startingOffsets=latest is for streams: a batch that begins at the end reads nothing.")
    _refuse_place(point, LATEST, "-1 (latest)")


def _point(options: Mapping[str, str], which: str, strategy: Literal["error", "latest"]) -> Point | None:
    """Parse one of Kafka's three ways to name a place: a time, else times by partition, else offsets."""
    names = (f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets")
    time, times, offsets = (text_of(options, name) for name in names)
    if time is not None:
        if not re.fullmatch(r"\d{1,16}", time):
            raise ValueError(f"{names[0]}={time!r} is no time: write milliseconds since 1970, such as 1763200000000.")
        return Point(names[0], "time", int(time) * 1_000, strategy=strategy)
    if times is not None:
        found = _by_partition(times, names[1], TIMES_EXAMPLE, 0)
        return Point(names[1], "times", by_partition=found, strategy=strategy)
    if offsets is None:
        return None
    if offsets.lower() in ("earliest", "latest"):
        return Point(names[2], "earliest" if offsets.lower() == "earliest" else "latest")
    if not offsets.startswith("{"):
        near = did_you_mean(offsets.lower(), ("earliest", "latest"))
        question = f"did you mean {near}?" if near else f"write earliest, latest, or JSON such as {OFFSETS_EXAMPLE}."
        raise ValueError(f"{names[2]}={offsets!r} is not known: {question}")
    return Point(names[2], "offsets", by_partition=_by_partition(offsets, names[2], OFFSETS_EXAMPLE, EARLIEST))


def _by_partition(text: str, option: str, example: str, minimum: int) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, given in object_of(text, option, example).items():
        if topic.startswith("__"):
            # The identity in a stream's offsets, which may be copied here.
            continue
        if not isinstance(given, dict):
            raise ValueError(f"{option} says {json.dumps(given)} for {topic!r}, not partitions: write {example}.")
        inner: dict[int, int] = {}
        for partition, number in given.items():
            if not re.fullmatch(r"\d{1,9}", partition):
                raise ValueError(f"{option} names {partition!r} as a partition of {topic!r}: write {example}.")
            if not is_number(number, minimum):
                raise ValueError(f"{option} says {json.dumps(number)} for {topic}[{partition}]: write {example}.")
            inner[int(partition)] = number
        found[_exact_topic(topic, option)] = inner
    return found
