"""The request: the spans of everything that a scan asks for, be it one topic or all that a pattern matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.arguments import StartPoint, parse_start
from tailrace.errors import TopicNotFoundError
from tailrace.names import is_internal, is_pattern, match
from tailrace.read.span import Request, Span, matching, resolve, resolve_each

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.engine.engine import Engine

Offsets = Mapping[int, int]


def select(engine: Engine, request: Request) -> list[Span]:
    """The spans of what is there now; TopicNotFoundError when that is nothing."""
    if not is_pattern(request.topic):
        return resolve(engine, engine.entry(request.topic), request)
    entries = matching(engine, [request.topic])
    if not entries:
        raise TopicNotFoundError(f"No topic matches {request.topic!r}.", topic=request.topic)
    check_partitions(entries, request)
    return resolve_each(engine, entries, settled(entries, request))


def check_partitions(entries: Sequence[TopicEntry], request: Request) -> None:
    """Refuse partitions that none of the matching topics has."""
    widest = max(entries, key=lambda entry: len(entry.slots))
    for index in request.partitions or ():
        if index >= len(widest.slots):
            have = f"{widest.name!r} has the most, {len(widest.slots)}"
            raise ValueError(f"No topic that matches {request.topic!r} has a partition {index}: {have}.")


def settled(entries: Sequence[TopicEntry], request: Request) -> Request:
    """The request of a pattern with every offset given to its topic, which only works where it can mean one alone."""
    if (starts := _given("start", request.start, entries, request)) is not None:
        request = request._replace(start=StartPoint("earliest"), starts=starts)
    if request.stop is not None and (stops := _given("stop", request.stop, entries, request)) is not None:
        request = request._replace(stop=None, stops=stops)
    return request


def _given(
    what: str, point: StartPoint, entries: Sequence[TopicEntry], request: Request
) -> Mapping[str, Offsets] | None:
    """Offsets that were given without their topic, with it; None when the place is none in a partition."""
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
        f"{what}={said}, and {matched} {request.topic!r}: write {what}={{({name!r}, {index}): {offset}, ...}}."
    )


def _indexes(entry: TopicEntry, request: Request) -> Sequence[int]:
    every = range(len(entry.slots))
    return every if request.partitions is None else [index for index in request.partitions if index in every]


def is_positions(place: Any) -> bool:
    """Whether a start or a stop is the positions of a scan, at least in part."""
    return isinstance(place, Mapping) and any(isinstance(key, tuple) for key in place)


def parse_positions(place: Mapping[Any, Any], name: str, what: str) -> dict[str, Offsets]:
    """The positions of a scan by topic, as far as they are of this topic, or of one that the pattern matches."""
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
