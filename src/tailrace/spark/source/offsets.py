"""Offsets: where a query begins and ends in each partition, and how a stream writes down how far it came."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace import bulk
from tailrace.errors import OffsetOutOfRangeError, SettingsMismatchError, TopicNotFoundError
from tailrace.limits import TIME_US_MAX, TIME_US_MIN
from tailrace.names import topic_not_found
from tailrace.spark.option_values import is_number
from tailrace.spark.source.selection import EARLIEST, LATEST, refuse_latest_start

if TYPE_CHECKING:
    from tailrace.bulk import TopicBounds
    from tailrace.log import Log
    from tailrace.spark.source.options import SourceOptions
    from tailrace.spark.source.selection import Point, Selection

Place = tuple[str, int]
Positions = dict[Place, int]
Bounds = Mapping[str, "TopicBounds"]

# How the name begins under which a stream's offset says of which log and topics it is; no topic can be called so.
IDENTITY = "__tailrace "


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
    """Refuse topics and partitions that are named and do not exist; with `matched`, wildcards that match nothing.

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


# How a stream writes it down: as Kafka's source does, so that whatever reads the progress of a query understands it.
# Spark keeps nothing else for a Python source, and does not tell it where the checkpoint is. So what tells this log
# from others stands in the same object, as the name of a topic with one partition and no record: whatever is summed up
# or subtracted over the topics stays right.


class StreamOffsets(NamedTuple):
    """How far a stream came, and of which topics: a later topic of the same name is another one."""

    positions: Positions
    ids: dict[str, int]
    # Where the very first batch began: Spark does not keep it, and asks anew after a crash. It stays in all offsets
    # that follow, so that the start and the end of a batch have the same names.
    begin: Positions | None = None
    # Topics of another log may have the same names and ids. None: these offsets are of no log.
    log: str | None = None

    def to_json(self, left: Collection[Place] = ()) -> dict[str, Any]:
        """What goes into the checkpoint, with partitions that are no longer read apart from the others."""
        known: dict[str, Any] = {"log": self.log, "topics": dict(sorted(self.ids.items()))}
        if self.begin is not None:
            known["from"] = _nested({place: at for place, at in self.begin.items() if at})
        if left:
            known["left"] = _nested({place: at for place, at in self.positions.items() if place in left})
        name = IDENTITY + json.dumps(known, ensure_ascii=False, separators=(",", ":"))
        return {**_nested({place: at for place, at in self.positions.items() if place not in left}), name: {"0": 0}}


def from_json(stored: Any) -> StreamOffsets:
    """What the checkpoint says; without `log` when these are offsets as Kafka's source writes them."""
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
    """An offset without what says of which log it is: exactly as Kafka's source writes it."""
    return {topic: inner for topic, inner in stored.items() if not topic.startswith(IDENTITY)}


def foreign(stored: Any) -> SettingsMismatchError:
    """A checkpoint of another source: by its numbers alone the records of a log would be left out or read twice."""
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
    """A checkpoint of another source whose very first batch was not committed: Spark asks this source for its start."""
    error = foreign(stored)
    error.hint = (
        "Nothing was read. The first batch of the old query was not finished, and its checkpoint does not say where it "
        "began: start with a new checkpoint and the startingOffsets of the old query."
    )
    return error


def adopt(reached: StreamOffsets, bounds: Bounds, selection: Selection, log: str) -> StreamOffsets:
    """Offsets of Kafka as those of this log, which must have a record or its end at every one of them."""
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
    """The end of what there is as an offset that has everything that another one has, so that one can subtract them."""
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
    """The topics of some partitions, each once."""
    return list(dict.fromkeys(topic for topic, _ in places))
