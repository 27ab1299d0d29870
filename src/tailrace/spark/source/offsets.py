"""Offsets: where a query starts and ends in each partition, and their form in the checkpoint of a stream."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace import bulk
from tailrace.errors import OffsetOutOfRangeError, SettingsMismatchError, TopicNotFoundError
from tailrace.limits import TIME_US_MAX, TIME_US_MIN
from tailrace.names import topic_not_found
from tailrace.spark.option_values import is_number
from tailrace.spark.source.selection import refuse_latest_start

if TYPE_CHECKING:
    from tailrace import Log
    from tailrace.arguments import StartPoint
    from tailrace.bulk import TopicBounds
    from tailrace.spark.source.options import SourceOptions
    from tailrace.spark.source.selection import Point, Selection

Place = tuple[str, int]
Positions = dict[Place, int]
Bounds = Mapping[str, "TopicBounds"]

# Prefix of the name under which a stream's offset identifies its log and topics; no topic can have such a name.
IDENTITY = "__tailrace "


# Partitions.


def places_of(bounds: Bounds, selection: Selection) -> list[Place]:
    """Return the partitions that a query reads of the topics that exist."""
    found: list[Place] = []
    for topic in sorted(bounds):
        count = len(bounds[topic].durable)
        chosen = selection.partitions.get(topic, range(count))
        found += [(topic, index) for index in chosen if index < count]
    return found


def check_present(log: Log, bounds: Bounds, selection: Selection, *, matched: bool) -> None:
    """Raise for named topics and partitions that do not exist; with `matched`, also for wildcards that match none.

    A regular expression that matches nothing gives no rows, as with Spark's Kafka source.
    """
    for name in selection.exact:
        if name not in bounds:
            raise topic_not_found(name, bulk.Survey(log, lambda _: True).look())
        count = len(bounds[name].durable)
        for index in selection.partitions.get(name, ()):
            if index >= count:
                have = "one partition, 0" if count == 1 else f"{count} partitions, 0 to {count - 1}"
                raise ValueError(f"assign names partition {index} of {name!r}, which has {have}.")
    if matched and not bounds and selection.kind == "subscribe":
        raise TopicNotFoundError(
            f"No topic matches {selection}.",
            topic=str(selection),
            hint="Nothing was read; `tailrace topic ls` lists them.",
        )


# Start and end.


def starts(log: Log, options: SourceOptions, bounds: Bounds, *, streaming: bool) -> Positions:
    """Return where a query starts in every partition; removed records are an error, or are skipped."""
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
    """Return where a batch ends in every partition: exclusive, and never above the durable end."""
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
    """Raise ValueError for explicit offsets in the wrong order; times in the wrong order just read nothing."""
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
    return {place: _position(log, point, bounds, place) for place in places}


def _position(log: Log, point: Point, bounds: Bounds, place: Place) -> int:
    """Return the offset of a point in one partition, at most the durable end."""
    topic, index = place
    earliest, durable = _earliest(bounds, place), _durable(bounds, place)
    requested = point.of(place)
    time = requested.value

    def look(_: StartPoint) -> int:
        if not TIME_US_MIN <= time <= TIME_US_MAX:
            return earliest if time < TIME_US_MIN else durable
        return log.topic(topic).offset_at(time, index)

    found = bulk.resolve_point(requested, index, earliest, durable, look)
    # The point was resolved for this partition alone, so it names an offset in it.
    assert found is not None
    if requested.kind == "time" and found >= durable and point.strategy == "error":
        raise ValueError(
            f"{point.option}: {topic}[{index}] has no record at or after {time // 1_000} ms. "
            "Set startingOffsetsByTimestampStrategy to latest to begin at the end there."
        )
    return found


def _check_complete(point: Point, places: list[Place]) -> None:
    """Raise ValueError unless every partition is named, as with Kafka, so that none is forgotten."""
    named = {(topic, index) for topic, inner in point.by_partition.items() for index in inner}
    missing, extra = sorted(set(places) - named), sorted(named - set(places))
    if extra:
        raise ValueError(f"{point.option} names {_listed(extra)}, which this query does not read.")
    if missing:
        hint = "; -2 is earliest, -1 is latest" if point.kind == "offsets" else ""
        raise ValueError(f"{point.option} says nothing of {_listed(missing)}: name every partition that is read{hint}.")


def _listed(places: list[Place]) -> str:
    shown = ", ".join(f"{topic}[{index}]" for topic, index in places[:3])
    return shown if len(places) <= 3 else f"{shown} and {len(places) - 3} more"


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
        hint="Nothing was read; name another offset, or set failOnDataLoss to false to read what remains.",
    )


# The form in a checkpoint is that of Kafka's source, so that tools which read the progress of a query understand it.
# Spark stores nothing else for a Python source, and does not pass it the location of the checkpoint. So the identity of
# the log is in the same object, as the name of a topic with one partition and no record: sums and differences over the
# topics stay right.


class StreamOffsets(NamedTuple):
    """How far a stream has read, and of which topics: a later topic of the same name has another id."""

    positions: Positions
    ids: dict[str, int]
    # Where the very first batch started: Spark does not store it, and requests it again after a crash. It stays in all
    # later offsets, so that the start and the end of a batch have the same names.
    begin: Positions | None = None
    # Topics of another log may have the same names and ids. None: these offsets belong to no log.
    log: str | None = None

    def to_json(self, left: Collection[Place] = ()) -> dict[str, Any]:
        """Return the object for the checkpoint, with partitions that are no longer read kept apart."""
        known: dict[str, Any] = {"log": self.log, "topics": dict(sorted(self.ids.items()))}
        if self.begin is not None:
            known["from"] = _nested({place: at for place, at in self.begin.items() if at})
        if left:
            known["left"] = _nested({place: at for place, at in self.positions.items() if place in left})
        name = IDENTITY + json.dumps(known, ensure_ascii=False, separators=(",", ":"))
        return {**_nested({place: at for place, at in self.positions.items() if place not in left}), name: {"0": 0}}


def from_json(stored: Any) -> StreamOffsets:
    """Parse the object of a checkpoint; `log` is None for offsets as Kafka's source writes them."""
    positions: Positions = {}
    known: dict[str, Any] = {}
    for topic, inner in stored.items() if isinstance(stored, dict) else [("", None)]:
        if topic.startswith(IDENTITY):
            known = json.loads(topic.removeprefix(IDENTITY))
            continue
        if not isinstance(inner, dict) or not all(each.isdecimal() and is_number(inner[each], 0) for each in inner):
            raise foreign(stored)
        positions.update(_flat({topic: inner}))
    positions.update(_flat(known.get("left", {})))
    begin = _flat(known["from"]) if "from" in known else None
    return StreamOffsets(positions, known.get("topics", {}), begin, known.get("log"))


def topics_in(stored: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return an offset without the identity of its log, exactly as Kafka's source writes it."""
    return {topic: inner for topic, inner in stored.items() if not topic.startswith(IDENTITY)}


def foreign(stored: Any) -> SettingsMismatchError:
    """Return the error for a checkpoint of another source: its offsets would skip or repeat records of this log."""
    text = json.dumps(stored)
    shown = text if len(text) <= 120 else f"{text[:117]}..."
    return SettingsMismatchError(
        f"The checkpoint of this query was not made by reading this log: it says {shown}, and not of which log.",
        hint=(
            "Nothing was read. If these are offsets of Kafka, and the records were copied so that each has the same "
            "offset here, start the query with startFromKafkaOffsets set to true. Otherwise start it with a new "
            "checkpoint, and with startingOffsets or startingTimestamp where the old query ended."
        ),
    )


def unfinished(stored: Any) -> SettingsMismatchError:
    """Return the error for a foreign checkpoint whose first batch was not committed, so that its start is unknown."""
    error = foreign(stored)
    error.hint = (
        "Nothing was read. The first batch of the old query was not finished, and its checkpoint does not say where it "
        "began: start with a new checkpoint and the startingOffsets of the old query."
    )
    return error


def adopt(reached: StreamOffsets, bounds: Bounds, selection: Selection, log: str) -> StreamOffsets:
    """Return offsets of Kafka as those of this log; raise unless each is within its partition here."""
    present = set(places_of(bounds, selection))
    for place, offset in sorted(reached.positions.items()):
        name = f"{place[0]}[{place[1]}]"
        if place not in present:
            why = "this log has no such partition" if selection.includes(place) else "this query does not read it"
            raise SettingsMismatchError(
                f"startFromKafkaOffsets: the checkpoint names {name}, and {why}.",
                topic=place[0],
                hint="Nothing was read; copy every topic of the old query, and change what a query reads only later.",
            )
        earliest, durable = _earliest(bounds, place), _durable(bounds, place)
        if not earliest <= offset <= durable:
            raise OffsetOutOfRangeError(
                f"startFromKafkaOffsets: the checkpoint is at offset {offset} of {name}, whose records are those from "
                f"{earliest} to before {durable}: it was not copied under the same offsets, or not as far.",
                earliest=earliest,
                latest=durable,
                hint="Nothing was read; copy the rest, or start with a new checkpoint and startingOffsets.",
            )
    return StreamOffsets(
        reached.positions, {topic: bounds[topic].id for topic in topics_of(reached.positions)}, log=log
    )


def beside(latest: StreamOffsets, end: Mapping[str, Any]) -> dict[str, Any]:
    """Return the latest offsets with every topic and partition of `end` added, so that the two can be subtracted."""
    made = _nested(latest.positions)
    for topic, inner in end.items():
        shown = made.setdefault(topic, {})
        for index, offset in inner.items():
            shown.setdefault(index, offset)
    return made


def _nested(positions: Positions) -> dict[str, dict[str, int]]:
    made: dict[str, dict[str, int]] = {}
    for (topic, index), offset in sorted(positions.items()):
        made.setdefault(topic, {})[str(index)] = offset
    return made


def _flat(nested: Mapping[str, Mapping[str, int]]) -> Positions:
    return {(topic, int(index)): offset for topic, inner in nested.items() for index, offset in inner.items()}


def topics_of(places: Iterable[Place]) -> list[str]:
    """Return the topics of some partitions, each once."""
    return list(dict.fromkeys(topic for topic, _ in places))
