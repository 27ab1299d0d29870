"""How far streams are behind: the progress of a query as Kafka's source would show it, and the records that wait."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeGuard

from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

from tailrace import bulk
from tailrace.errors import SettingsMismatchError
from tailrace.log import Log
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
    """The last progress of a query, or a progress that a listener got, with its logs as Kafka's source shows topics.

    Offsets have topics alone, `metrics` says how far behind the batch was, and `description` names the topics.
    None as long as there was no progress.
    """
    found = query if isinstance(query, StreamingQueryProgress) else query.lastProgress
    if found is None:
        return None
    told = json.loads(found.json)
    told["sources"] = [_as_kafka(source) for source in told["sources"]]
    return StreamingQueryProgress.fromJson(told)


def lag(query: StreamingQuery | StreamingQueryProgress, log: Log | str | PathLike[str] | None = None) -> Lag:
    """How many records of each topic and partition a query has not read, and waits for.

    It is that of when its last batch was planned, or with `log` that of now, in the partitions that this batch knew.
    Empty as long as nothing is known.
    """
    found = query if isinstance(query, StreamingQueryProgress) else query.lastProgress
    if found is None:
        return {}
    if log is None or isinstance(log, Log):
        return _waiting(found, log)
    with open_log(fspath(log), None) as opened:
        return _waiting(found, opened)


class ProgressListener(StreamingQueryListener):
    """Calls a function with the progress of every batch of every query, as `progress` shows it.

    Add one with `spark.streams.addListener`, and remove it before the session is stopped.
    """

    def __init__(self, tell: Callable[[StreamingQueryProgress], None]) -> None:
        self.tell = tell

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (the names are Spark's)
        """Nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Tell the progress of a batch."""
        shown = progress(event.progress)
        assert shown is not None
        self.tell(shown)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing."""


def _as_kafka(source: dict[str, Any]) -> dict[str, Any]:
    offsets = {name: _offset(source.get(name)) for name in _OFFSETS}
    end, latest = offsets["endOffset"], offsets["latestOffset"]
    if not _is_of_a_log(end):
        return source
    shown = {**source, **{name: topics_in(offset) for name, offset in offsets.items() if offset is not None}}
    shown["description"] = f"tailrace[{', '.join(shown['endOffset'])}]"
    waiting = [number for inner in _behind(end, latest).values() for number in inner.values()]
    if waiting:
        # Texts, as Spark has them.
        shown["metrics"] = {
            "avgOffsetsBehindLatest": str(sum(waiting) / len(waiting)),
            "maxOffsetsBehindLatest": str(max(waiting)),
            "minOffsetsBehindLatest": str(min(waiting)),
        }
    return shown


def _waiting(found: StreamingQueryProgress, log: Log | None) -> Lag:
    """The lag of all sources of a query that are logs; of two that read the same, the one that is further behind.

    With `log` it is that of the sources which read it.
    """
    made: Lag = {}
    ends = [(end, source) for source in found.sources if _is_of_a_log(end := _offset(source.endOffset))]
    if log is not None and ends:
        here = log.engine.store.context.log_id.hex()
        ends = [(end, source) for end, source in ends if from_json(end).log == here]
        if not ends:
            raise _other_log(log)
    for end, source in ends:
        behind = _behind(end, _offset(source.latestOffset)) if log is None else _behind_now(end, log)
        for topic, inner in behind.items():
            known = made.setdefault(topic, {})
            for index, number in inner.items():
                known[index] = max(number, known.get(index, 0))
    return made


def _behind(end: Mapping[str, Any], latest: Mapping[str, Any] | None) -> Lag:
    """What was behind the end of a batch when it was planned; unknown for one that was repeated after a crash."""
    read = topics_in(end)
    return {
        # Never less than nothing, as after a topic was dropped and made again.
        topic: {int(index): max(offset - read.get(topic, {}).get(index, 0), 0) for index, offset in inner.items()}
        for topic, inner in topics_in(latest or {}).items()
    }


def _behind_now(end: Mapping[str, Any], log: Log) -> Lag:
    reached: StreamOffsets = from_json(end)
    read = topics_in(end)
    made: Lag = {}
    for topic, bounds in bulk.Survey(log, read.__contains__).look().items():
        # Of a topic that was dropped and made again nothing was read.
        begin = read[topic] if reached.ids.get(topic) == bounds.id else {}
        made[topic] = {
            index: max(durable - max(begin.get(str(index), 0), bounds.earliest[index]), 0)
            for index, durable in enumerate(bounds.durable)
            # With `assign` a query does not read all of them.
            if str(index) in read[topic]
        }
    return made


def _other_log(log: Log) -> SettingsMismatchError:
    return SettingsMismatchError(
        f"The query does not read the log in {log.location}: its offsets are those of another one.",
        hint="Nothing was changed; give the log, or the namespace of it, that the query reads.",
    )


def _offset(told: Any) -> dict[str, Any] | None:
    """An offset of a progress, which is text in Python and JSON in the JVM; None when there is none."""
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return None
    return told if isinstance(told, dict) else None


def _is_of_a_log(offset: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    return offset is not None and any(name.startswith(IDENTITY) for name in offset)
