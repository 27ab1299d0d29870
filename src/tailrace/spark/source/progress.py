"""Lag of streams: the progress of a query as Kafka's source would show it, and the records not read yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeGuard

from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

from tailrace import Log, bulk
from tailrace.errors import SettingsMismatchError
from tailrace.spark.handles import open_log
from tailrace.spark.source.offsets import IDENTITY, StreamOffsets, from_json, topics_in

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

Lag = dict[str, dict[int, int]]
_OFFSETS = ("startOffset", "endOffset", "latestOffset")


def progress(query: StreamingQuery | StreamingQueryProgress) -> StreamingQueryProgress | None:
    """Return the last progress of a query, or of a listener's event, with its logs as Kafka's source shows topics.

    Offsets have topics only, `metrics` holds the lag of the batch, and `description` names the topics. None while there
    was no progress.
    """
    found = query if isinstance(query, StreamingQueryProgress) else query.lastProgress
    if found is None:
        return None
    shown = json.loads(found.json)
    shown["sources"] = [_as_kafka(source) for source in shown["sources"]]
    return StreamingQueryProgress.fromJson(shown)


def lag(query: StreamingQuery | StreamingQueryProgress, log: Log | str | PathLike[str] | None = None) -> Lag:
    """Return how many records of each topic and partition a query has not read.

    The lag when its last batch was planned, or with `log` the current lag, in the partitions that this batch knew.
    Empty while nothing is known.
    """
    found = query if isinstance(query, StreamingQueryProgress) else query.lastProgress
    if found is None:
        return {}
    if log is None or isinstance(log, Log):
        return _waiting(found, log)
    with open_log(fspath(log), None) as opened:
        return _waiting(found, opened)


class ProgressListener(StreamingQueryListener):
    """Listener that calls a function with the progress of every batch of every query, as `progress` shows it.

    Add one with `spark.streams.addListener`, and remove it before the session is stopped.
    """

    def __init__(self, tell: Callable[[StreamingQueryProgress], None]) -> None:
        self.tell = tell

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (the names are Spark's)
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Pass the progress of a batch to the function."""
        shown = progress(event.progress)
        assert shown is not None
        self.tell(shown)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""


def _as_kafka(source: dict[str, Any]) -> dict[str, Any]:
    offsets = {name: _offset(source.get(name)) for name in _OFFSETS}
    end, latest = offsets["endOffset"], offsets["latestOffset"]
    if not _is_of_a_log(end):
        return source
    shown = {**source, **{name: topics_in(offset) for name, offset in offsets.items() if offset is not None}}
    shown["description"] = f"tailrace[{', '.join(shown['endOffset'])}]"
    waiting = [number for inner in _lag_at_plan(end, latest).values() for number in inner.values()]
    if waiting:
        # Texts, as in Spark's own metrics.
        shown["metrics"] = {
            "avgOffsetsBehindLatest": str(sum(waiting) / len(waiting)),
            "maxOffsetsBehindLatest": str(max(waiting)),
            "minOffsetsBehindLatest": str(min(waiting)),
        }
    return shown


def _waiting(found: StreamingQueryProgress, log: Log | None) -> Lag:
    """Return the lag of all sources of a query that are logs; of two that read the same, the larger one.

    With `log` only the sources that read it count.
    """
    made: Lag = {}
    ends = [(end, source) for source in found.sources if _is_of_a_log(end := _offset(source.endOffset))]
    if log is not None and ends:
        here = bulk.log_id(log)
        ends = [(end, source) for end, source in ends if from_json(end).log == here]
        if not ends:
            raise _other_log(log)
    for end, source in ends:
        lag_of_source = _lag_at_plan(end, _offset(source.latestOffset)) if log is None else _lag_now(end, log)
        for topic, inner in lag_of_source.items():
            known = made.setdefault(topic, {})
            for index, number in inner.items():
                known[index] = max(number, known.get(index, 0))
    return made


def _lag_at_plan(end: Mapping[str, Any], latest: Mapping[str, Any] | None) -> Lag:
    """Return the lag at the end of a batch when it was planned; unknown for one that was repeated after a crash."""
    read = topics_in(end)
    return {
        # Never negative, as it would be after a topic was dropped and created again.
        topic: {int(index): max(offset - read.get(topic, {}).get(index, 0), 0) for index, offset in inner.items()}
        for topic, inner in topics_in(latest or {}).items()
    }


def _lag_now(end: Mapping[str, Any], log: Log) -> Lag:
    reached: StreamOffsets = from_json(end)
    read = topics_in(end)
    made: Lag = {}
    for topic, bounds in bulk.Survey(log, read.__contains__).look().items():
        # The topic was dropped and created again, and nothing of the new one was read.
        begin = read[topic] if reached.ids.get(topic) == bounds.id else {}
        made[topic] = {
            index: max(durable - max(begin.get(str(index), 0), bounds.earliest[index]), 0)
            for index, durable in enumerate(bounds.durable)
            # With `assign` a query does not read all partitions.
            if str(index) in read[topic]
        }
    return made


def _other_log(log: Log) -> SettingsMismatchError:
    return SettingsMismatchError(
        f"The query does not read the log in {log.location}: its offsets are those of another one.",
        hint="Nothing was changed; give the log, or the namespace of it, that the query reads.",
    )


def _offset(value: Any) -> dict[str, Any] | None:
    """Return an offset of a progress, which is text in Python and JSON in the JVM; None if there is none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _is_of_a_log(offset: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    return offset is not None and any(name.startswith(IDENTITY) for name in offset)
