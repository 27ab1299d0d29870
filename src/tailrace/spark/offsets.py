"""Offsets: where a query begins and ends in each partition, and how a stream writes down how far it came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace import bulk
from tailrace.errors import OffsetOutOfRangeError, TopicNotFoundError
from tailrace.limits import TIME_US_MAX, TIME_US_MIN
from tailrace.names import topic_not_found
from tailrace.spark.places import EARLIEST, LATEST, TOPIC_IDS, refuse_latest_start

if TYPE_CHECKING:
    from tailrace.bulk import TopicBounds
    from tailrace.log import Log
    from tailrace.spark.options import SourceOptions
    from tailrace.spark.places import Point, Selection

Place = tuple[str, int]
Positions = dict[Place, int]
Bounds = Mapping[str, "TopicBounds"]

# Beside the topics of a stream's offset: where its very first batch began.
FROM = "__from"
LOG = "__log"


# Which partitions.


def places_of(bounds: Bounds, selection: Selection) -> list[Place]:
    """The partitions that a query reads of the topics that are there."""
    found: list[Place] = []
    for topic in sorted(bounds):
        count = len(bounds[topic].durable)
        chosen = selection.partitions.get(topic, range(count))
        found += [(topic, index) for index in chosen if index < count]
    return found


def check_present(log: Log, bounds: Bounds, selection: Selection, *, matched: bool) -> None:
    """Refuse topics and partitions that are named and do not exist; with `matched`, patterns that match nothing."""
    for name in selection.exact:
        if name not in bounds:
            raise topic_not_found(name, bulk.Survey(log, lambda _: True).look())
        count = len(bounds[name].durable)
        for index in selection.partitions.get(name, ()):
            if index >= count:
                have = "one partition, 0" if count == 1 else f"{count} partitions, 0 to {count - 1}"
                raise ValueError(f"assign names partition {index} of {name!r}, which has {have}.")
    if matched and not bounds:
        raise TopicNotFoundError(
            f"No topic matches {selection}.",
            topic=str(selection),
            hint="Nothing was read; `tailrace topic ls` lists them.",
        )


# Where to begin and to end.


def starts(log: Log, options: SourceOptions, bounds: Bounds, *, streaming: bool) -> Positions:
    """Where a query begins in every partition; records that are gone are an error, or are left out."""
    point = options.start
    places = places_of(bounds, options.selection)
    if point is not None and not streaming:
        refuse_latest_start(point)
    if point is None:
        return {place: (_durable if streaming else _earliest)(bounds, place) for place in places}
    found = _positions(log, point, bounds, places)
    for place, offset in found.items():
        earliest, durable = _earliest(bounds, place), _durable(bounds, place)
        if earliest <= offset <= durable:
            continue
        if options.fail_on_data_loss:
            raise _outside(point, place, offset, earliest, durable)
        found[place] = min(max(offset, earliest), durable)
    return found


def stops(log: Log, options: SourceOptions, bounds: Bounds) -> Positions:
    """Where a batch ends in every partition, which is exclusive and never above what is safe on disk."""
    point = options.stop
    places = places_of(bounds, options.selection)
    if point is None:
        return {place: _durable(bounds, place) for place in places}
    found = _positions(log, point, bounds, places)
    for place, offset in found.items():
        durable = _durable(bounds, place)
        if offset > durable:
            if options.fail_on_data_loss:
                raise _outside(point, place, offset, _earliest(bounds, place), durable)
            found[place] = durable
    return found


def check_order(begin: Positions, end: Positions, options: SourceOptions) -> None:
    """Refuse offsets in the wrong order, which somebody wrote down; times in the wrong order just read nothing."""
    start, stop = options.start, options.stop
    if start is None or stop is None or (start.kind, stop.kind) != ("offsets", "offsets"):
        return
    for place, offset in begin.items():
        if offset > end[place]:
            raise ValueError(
                f"{stop.option} ({end[place]}) is before {start.option} ({offset}) for {place[0]}[{place[1]}]."
            )


def _positions(log: Log, point: Point, bounds: Bounds, places: list[Place]) -> Positions:
    if point.kind in ("offsets", "times"):
        _check_complete(point, places)
    found: Positions = {}
    for topic, index in places:
        earliest, durable = bounds[topic].earliest[index], bounds[topic].durable[index]
        given = point.by_partition.get(topic, {}).get(index, 0)
        if point.kind == "offsets":
            found[topic, index] = {EARLIEST: earliest, LATEST: durable}.get(given, given)
        elif point.kind in ("time", "times"):
            time = point.time if point.kind == "time" else given * 1_000
            found[topic, index] = _at(log, point, (topic, index), time, earliest, durable)
        else:
            found[topic, index] = earliest if point.kind == "earliest" else durable
    return found


def _check_complete(point: Point, places: list[Place]) -> None:
    """As with Kafka: whoever names offsets names all of them, so that none is forgotten."""
    named = {(topic, index) for topic, inner in point.by_partition.items() for index in inner}
    missing, extra = sorted(set(places) - named), sorted(named - set(places))
    if extra:
        raise ValueError(f"{point.option} names {_told(extra)}, which this query does not read.")
    if missing:
        hint = "; -2 is earliest, -1 is latest" if point.kind == "offsets" else ""
        raise ValueError(f"{point.option} says nothing of {_told(missing)}: name every partition that is read{hint}.")


def _told(places: list[Place]) -> str:
    shown = ", ".join(f"{topic}[{index}]" for topic, index in places[:3])
    return shown if len(places) <= 3 else f"{shown} and {len(places) - 3} more"


def _at(log: Log, point: Point, place: Place, time: int, earliest: int, durable: int) -> int:
    """The first record at or after a time, as far as it is safe."""
    if time < TIME_US_MIN:
        found = earliest
    else:
        found = durable if time > TIME_US_MAX else log.topic(place[0]).offset_at(time, place[1])
    if found >= durable and point.strategy == "error":
        raise ValueError(
            f"{point.option}: {place[0]}[{place[1]}] has no record at or after {time // 1_000} ms. "
            "Set startingOffsetsByTimestampStrategy to latest to begin at the end there."
        )
    return min(max(found, earliest), durable)


def _earliest(bounds: Bounds, place: Place) -> int:
    return bounds[place[0]].earliest[place[1]]


def _durable(bounds: Bounds, place: Place) -> int:
    return bounds[place[0]].durable[place[1]]


def _outside(point: Point, place: Place, offset: int, earliest: int, durable: int) -> OffsetOutOfRangeError:
    why = f"the earliest record is {earliest}" if offset < earliest else f"the next record will be {durable}"
    return OffsetOutOfRangeError(
        f"{point.option} names offset {offset} of {place[0]}[{place[1]}], where there is none: {why}.",
        earliest=earliest,
        latest=durable,
        hint="Nothing was read; name another offset, or set failOnDataLoss to false to read what is there.",
    )


# How a stream writes it down: as Kafka's, and beside it which topics these are.


class Reached(NamedTuple):
    """How far a stream came, and of which topics: a later topic of the same name is another one."""

    positions: Positions
    ids: dict[str, int]
    # Where the very first batch began, told by its end: Spark does not keep it, and asks anew after a crash.
    begin: Positions | None = None
    # Topics of another log may have the same names and ids.
    log: str | None = None

    def to_json(self) -> dict[str, Any]:
        """What goes into the checkpoint."""
        made: dict[str, Any] = {**_nested(self.positions), TOPIC_IDS: dict(sorted(self.ids.items()))}
        if self.begin is not None:
            made[FROM] = _nested(self.begin)
        if self.log is not None:
            made[LOG] = {"id": self.log}
        return made


def from_json(stored: Mapping[str, Any]) -> Reached:
    """What the checkpoint says."""
    begin = stored.get(FROM)
    ids = {topic: int(number) for topic, number in stored.get(TOPIC_IDS, {}).items()}
    return Reached(_flat(stored), ids, None if begin is None else _flat(begin), stored.get(LOG, {}).get("id"))


def _nested(positions: Positions) -> dict[str, dict[str, int]]:
    made: dict[str, dict[str, int]] = {}
    for (topic, index), offset in sorted(positions.items()):
        made.setdefault(topic, {})[str(index)] = offset
    return made


def _flat(stored: Mapping[str, Any]) -> Positions:
    return {
        (topic, int(index)): int(offset)
        for topic, inner in stored.items()
        if topic not in (TOPIC_IDS, FROM, LOG)
        for index, offset in inner.items()
    }


def topics_of(places: Iterable[Place]) -> list[str]:
    """The topics of some partitions, each once."""
    return list(dict.fromkeys(topic for topic, _ in places))
