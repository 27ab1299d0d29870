"""The streaming source: reads what was added since the last batch, and only durable records."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tailrace import bulk
from tailrace.errors import OffsetOutOfRangeError, TopicNotFoundError
from tailrace.spark import limits
from tailrace.spark.handles import hinted, open_log
from tailrace.spark.source.offsets import (
    Bounds,
    Place,
    Positions,
    StreamOffsets,
    adopt,
    beside,
    check_present,
    foreign,
    from_json,
    places_of,
    starts,
    topics_of,
    unfinished,
)
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.plan import TailracePartition, plan_tasks
from tailrace.spark.source.read import read_parts
from tailrace.spark.source.schema import layout_of

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    raise ImportError('Streams from a log need pyspark 4.2 or newer: pip install "pyspark>=4.2"') from None

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tailrace import Log

logger = logging.getLogger("tailrace.spark")

# How often planning is repeated when records are removed between the survey and the plan.
LOOKS_MAX = 5
ROWS_MAX = (1 << 63) - 1


class TailraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of one query: runs in its own process on the driver, and a copy of it reads in each executor."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        with hinted():
            self.options = parse_options(options)
            self.layout = layout_of(schema, self.options)
            if self.options.stop is not None:
                raise ValueError(f"{self.options.stop.option} is for batches: a stream has no end.")
        self._clear()

    def _clear(self) -> None:
        """Reset the state that belongs to the process on the driver alone."""
        self._log: Log | None = None
        self._survey: bulk.Survey | None = None
        self._opened = 0.0
        # Where a query with the trigger available-now ends.
        self._target: StreamOffsets | None = None
        self._recorded: Positions | None = None
        self._triggered = float("-inf")
        # The last survey and its result: an idle stream calls it a hundred times a second.
        self._ended: tuple[Bounds, StreamOffsets] | None = None
        # Where the last survey found nothing new.
        self._idle: tuple[dict[str, Any], Bounds] | None = None
        # The last end of a batch that was returned, and the latest offsets that were reported with it.
        self._answered: dict[str, Any] | None = None
        self._shown: tuple[Bounds, dict[str, Any] | None, dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "layout": self.layout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.options, self.layout = state["options"], state["layout"]
        self._clear()

    # Called by Spark in this order; the names are its own.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts."""
        with hinted():
            bounds = self._look()
            log = self._log
            assert log is not None
            check_present(log, bounds, self.options.selection, matched=False)
            begin = starts(log, self.options, bounds, streaming=True)
            return StreamOffsets(begin, _ids(bounds, begin), begin, self._log_id()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum size of a batch."""
        if self.options.max_offsets is None and self.options.min_offsets is None:
            return ReadAllAvailable()
        return ReadMaxRows(self.options.max_offsets or ROWS_MAX)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the current end, which is where this query stops."""
        with hinted():
            bounds = self._look()
            self._target = self._ends(bounds)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; `start` itself if there is nothing new."""
        with hinted():
            self._answered = self._next(start, limit)
            return self._answered

    def _next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        bounds = self._look()
        if self._idle == (start, bounds):
            return start
        stored = from_json(start)
        reached = self._as_own_offsets(stored, start, bounds)
        begin = self._continue_at(reached, bounds)
        self._record(reached)
        end = self._target or self._ends(bounds)
        # A partition never goes back, unless its records are gone.
        ends = {place: max(offset, begin.get(place, 0)) for place, offset in end.positions.items()}
        if not isinstance(limit, ReadAllAvailable):
            if self._is_too_little(begin, ends):
                return start
            if isinstance(limit, ReadMaxRows):
                ends = limited(begin, ends, limit.max_rows)
        ids = end.ids
        left: Positions = {}
        if reached.log == end.log:
            wanted = self.options.selection.includes
            left = {place: at for place, at in reached.positions.items() if not wanted(place)}
        if left:
            # A query may select a partition again later, and then continues at the stored offset.
            ends = {**left, **ends}
            ids = {**{topic: reached.ids[topic] for topic in topics_of(left) if topic in reached.ids}, **ids}
        # Offsets of Kafka are replaced at once, also when there is nothing new.
        if ends == reached.positions and ids == reached.ids and end.log == stored.log:
            self._idle = (start, bounds)
            return start
        self._triggered = time.monotonic()
        first = reached.positions if reached.begin is None else reached.begin
        return StreamOffsets(ends, ids, first, end.log).to_json(left)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the current end of the topics, from which the lag of a query is computed."""
        with hinted():
            bounds = self._look()
            if self._shown is None or self._shown[:2] != (bounds, self._answered):
                ends = self._ends(bounds)
                latest = ends.to_json() if self._answered is None else beside(ends, self._answered)
                self._shown = (bounds, self._answered, latest)
            return self._shown[2]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one batch, the same whenever it is repeated."""
        with hinted():
            until, reached = self._batch(start, end)
            for look in range(LOOKS_MAX):
                try:
                    return self._plan(reached, until)
                except OffsetOutOfRangeError:
                    # Removed at this moment, or for good: the next survey decides.
                    if (self.options.fail_on_data_loss and look) or look == LOOKS_MAX - 1:
                        raise
            return []

    def _batch(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[StreamOffsets, StreamOffsets]:
        """Return the end of a batch, and its start."""
        until, reached = from_json(end), from_json(start)
        if until.log is None:
            if reached.log is not None:
                raise unfinished(end)
            bounds = self._look()
            return self._as_own_offsets(until, end, bounds), self._as_own_offsets(reached, start, bounds)
        if until.begin is not None and reached.begin != until.begin:
            # The first batch: the start that Spark passes was computed again since, or is that of Kafka.
            reached = StreamOffsets(until.begin, until.ids, log=until.log)
        return until, reached

    def _plan(self, reached: StreamOffsets, until: StreamOffsets) -> list[TailracePartition]:
        begin = self._continue_at(reached, self._look(), until)
        ranges = {place: (begin[place], stop) for place, stop in until.positions.items() if place in begin}
        assert self._log is not None
        return plan_tasks(self._log, ranges, self.options.min_partitions, self.options.max_records)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the records of one task; without tasks Spark passes an empty partition of its own."""
        parts = partition.parts if isinstance(partition, TailracePartition) else ()
        return read_parts(parts, self.layout, self.options.fail_on_data_loss)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the start of the next call of latestOffset() shows the progress, also if no batch follows."""

    def stop(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
        self._log = self._survey = None

    # The log.

    def _look(self) -> Bounds:
        """Return the current bounds of the topics that are read."""
        now = time.monotonic()
        if self._survey is not None and now - self._opened > limits.LIMITS.reopen_seconds and self._survey.frozen:
            self.stop()
        if self._survey is None:
            options = self.options
            # Write access is needed only for a group's cursors.
            self._log = open_log(options.location, options.namespace, write=options.group is not None)
            self._survey = bulk.Survey(self._log, options.selection.wants)
            self._opened = now
        return self._survey.look()

    def _ends(self, bounds: Bounds) -> StreamOffsets:
        if self._ended is None or self._ended[0] != bounds:
            places = places_of(bounds, self.options.selection)
            ends = {place: bounds[place[0]].durable[place[1]] for place in places}
            self._ended = (bounds, StreamOffsets(ends, _ids(bounds, places), log=self._log_id()))
        return self._ended[1]

    def _log_id(self) -> str:
        assert self._log is not None
        return bulk.log_id(self._log)

    def _as_own_offsets(self, reached: StreamOffsets, stored: dict[str, Any], bounds: Bounds) -> StreamOffsets:
        """Return the offsets as those of this log; offsets of Kafka are adopted only if an option allows that."""
        if reached.log is not None:
            return reached
        if not self.options.from_kafka:
            raise foreign(stored)
        return adopt(reached, bounds, self.options.selection, self._log_id())

    def _record(self, reached: StreamOffsets) -> None:
        """Store how far the query has read in the cursors of its group, if that changed."""
        if self.options.group is None or reached.positions == self._recorded:
            return
        assert self._log is not None
        selection = self.options.selection
        positions = {place: at for place, at in reached.positions.items() if selection.includes(place)}
        bulk.record_progress(
            self._log,
            self.options.group,
            positions,
            # A group cannot have a regular expression, so it gets the topics that matched.
            selection.names or topics_of(positions),
        )
        self._recorded = reached.positions

    # Size and start of a batch.

    def _is_too_little(self, begin: Positions, ends: Positions) -> bool:
        """Return whether to wait for more records; a query that ends, or has waited long enough, does not."""
        least = self.options.min_offsets
        if least is None or self._target is not None:
            return False
        waited = time.monotonic() - self._triggered
        return waited < self.options.max_delay and sum(ends[place] - begin.get(place, 0) for place in ends) < least

    def _continue_at(self, reached: StreamOffsets, bounds: Bounds, until: StreamOffsets | None = None) -> Positions:
        """Return where to continue in every partition; removed records are an error, or are skipped and logged.

        With `until` only the partitions of one batch count; otherwise all that are read.
        """
        places = set(places_of(bounds, self.options.selection))
        wanted = sorted(places | reached.positions.keys()) if until is None else sorted(until.positions)
        begin: Positions = {}
        here = self._log_id()
        other = reached.log != here
        changed = until is not None and until.log != here
        for place in wanted:
            topic, index = place
            known = reached.ids.get(topic)
            if known is not None and other:
                known = -1
            if place not in places or (until is not None and (until.ids.get(topic) != bounds[topic].id or changed)):
                # A partition that the query no longer selects is not missed.
                if self.options.selection.includes(place):
                    self._report_loss(place, None, until)
                continue
            first = reached.positions.get(place, 0)
            if known is not None and known != bounds[topic].id:
                self._report_loss(place, None, until)
                first = 0
            earliest, durable = bounds[topic].earliest[index], bounds[topic].durable[index]
            if first < earliest:
                self._report_loss(place, (first, earliest), until)
            elif first > durable:
                self._report_loss(place, (first, durable), until)
            begin[place] = min(max(first, earliest), durable)
        return begin

    def _report_loss(self, place: Place, gone: tuple[int, int] | None, until: StreamOffsets | None) -> None:
        """Raise an error for records that the query should read and that are gone, or log it if that is allowed."""
        topic, index = place
        name = f"{topic}[{index}]"
        hint = (
            "Nothing was skipped; start the query with failOnDataLoss set to false to continue with the rest, "
            "or with a new checkpoint."
        )
        if gone is None:
            error: Exception = TopicNotFoundError(
                f"The topic {topic!r} was dropped, or its log was created again, and with it what this query had not "
                f"read of {name}.",
                topic=topic,
                hint=hint,
            )
        elif gone[0] < gone[1]:
            error = OffsetOutOfRangeError(
                f"The records {gone[0]} to {gone[1] - 1} of {name} are gone: retention or a trim removed them before "
                f"this query read them. The earliest record is {gone[1]}.",
                earliest=gone[1],
                hint=hint,
            )
        else:
            error = OffsetOutOfRangeError(
                f"{name} ends at {gone[1]}, but this query has read up to {gone[0]}: the log is an older copy.",
                latest=gone[1],
                hint=hint,
            )
        if self.options.fail_on_data_loss:
            raise error
        if until is not None:
            # Once per batch, not at every call of latestOffset.
            logger.warning("%s The query continues (failOnDataLoss is false).", error)


class Refused(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a query that cannot run: every call raises the reason.

    An error raised while Spark creates the reader of a stream would be replaced by an error of the process that does
    it.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise self.error.with_traceback(None)

    initialOffset = latestOffset = getDefaultReadLimit = reportLatestOffset = _refuse  # noqa: N815
    prepareForTriggerAvailableNow = partitions = read = _refuse  # noqa: N815


def limited(begin: Positions, ends: Positions, most: int) -> Positions:
    """Return ends for about `most` records over all partitions, shared in proportion to what waits in each.

    Like Spark's Kafka source: a partition with few records gets at least one, so that none starves.
    """
    waiting = {place: end - begin.get(place, 0) for place, end in ends.items()}
    total = sum(waiting.values())
    if total <= most:
        return ends
    return {
        place: end if waiting[place] <= 0 else min(end, begin.get(place, 0) + max(1, most * waiting[place] // total))
        for place, end in ends.items()
    }


def _ids(bounds: Bounds, places: Any) -> dict[str, int]:
    return {topic: bounds[topic].id for topic in topics_of(places)}
