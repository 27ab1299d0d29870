"""The sink for batch jobs: tasks build frames, and the driver commits all of them in one transaction."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tailrace.bulk import InlinePart, StagedPart, local_path
from tailrace.spark.handles import handle_on, hinted, shared_log
from tailrace.spark.sink import outbox
from tailrace.spark.sink.columns import check_columns
from tailrace.spark.sink.commit import Mark, commit_batch
from tailrace.spark.sink.options import UNWITNESSED, parse_sink_options
from tailrace.spark.sink.rows import NO_TOPIC, TargetPartition, TaskRows
from tailrace.spark.sink.targets import Planned, find_targets
from tailrace.spark.sink.task import Staging

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class Message(WriterCommitMessage):
    """The message of a task to the driver: its frames, or where it staged them."""

    parts: tuple[InlinePart | StagedPart, ...] = ()
    places: frozenset[TargetPartition] = frozenset()
    topics: tuple[tuple[str, Planned], ...] = ()
    rows: int = 0
    query: str | None = None
    batch: int | None = None


class Sink:
    """The parts of a writer that batch jobs and streams share; created in the driver and pickled for every task."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool) -> None:
        self.streaming = streaming
        # A batch job has no checkpoint, also when it runs inside of a stream.
        checkpoint = options.get("checkpointLocation") if streaming else None
        self.checkpoint = None if checkpoint is None else local_path(checkpoint)
        with hinted():
            self.options = parse_sink_options(options, streaming=streaming)
        # A stream in complete mode requests an overwrite; its batches are appended all the same, as with Kafka.
        if overwrite and not streaming:
            raise ValueError(_NO_OVERWRITE)
        self.columns = check_columns(schema)
        if self.options.topic is None and self.columns.topic is None:
            raise ValueError(NO_TOPIC)
        if self.options.location is None and not os.environ.get("TAILRACE_LOG"):
            raise ValueError(_NO_LOG)
        with hinted():
            self.handle = handle_on(self.options.location, self.options.namespace, create=self.options.create_topics)
            with shared_log(self.handle) as log:
                self.targets = find_targets(log, self.options)
        # Rows without a key start on another partition each time, so that small jobs fill all of them.
        self.turn = random.getrandbits(16)

    def write(self, iterator: Iterator[Any]) -> Message:
        """Build frames of a task's rows; nothing is visible before the commit, and the log is not opened."""
        context = TaskContext.get()
        query = batch = None
        turn = self.turn
        if context is not None:
            turn += context.partitionId()
        if context is not None and self.streaming:
            # A batch job inside of foreachBatch has these properties too, and they do not apply to what it writes.
            query = context.getLocalProperty("sql.streaming.queryId")
            batch = context.getLocalProperty("streaming.sql.batchId")
        rows = TaskRows(self.columns, self.options.topic, self.targets, turn)
        staging = Staging(self.handle.location, outbox.lane_of(self.application(query) or self.options.topic or ""))
        try:
            with hinted():
                for some in iterator:
                    if rows.add(some):
                        staging.spill(rows)
                rows.sort()
                staging.finish(rows)
        except BaseException:
            staging.abandon()
            raise
        places = frozenset(staging.places)
        topics = tuple((topic, self.targets.planned(topic)) for topic in sorted({place.topic for place in places}))
        number = None if batch is None else int(batch)
        return Message(tuple(staging.parts), places, topics, rows.count, query, number)

    def application(self, query: str | None) -> str | None:
        """Return the name under which batches are counted; None if a repeated batch looks like a new one."""
        given = self.options.application
        if not self.streaming:
            return given
        return f"spark-stream:{query}" if given is None else f"spark-stream:{query}:{given}"

    def commit(self, messages: Sequence[Any], mark: Mark | None) -> bool:
        """Commit what all tasks wrote, in the driver, all or nothing; return False if it was committed before."""
        if any(message is None for message in messages):
            raise RuntimeError("A task left no message, so the batch is not whole and nothing of it was written.")
        # A task's message follows what it staged, so this keeps the order of each task.
        every = [part for message in messages for part in message.parts]
        parts = sorted(every, key=lambda part: isinstance(part, InlinePart))
        places = {place for message in messages for place in message.places}
        topics = {topic: planned for message in messages for topic, planned in message.topics}
        lane = outbox.lane_of((mark and mark.application) or self.options.topic or "")
        with hinted(), shared_log(self.handle) as log:
            return commit_batch(log, parts, places, topics, lane, mark)


class TailraceWriter(DataSourceArrowWriter):
    """Batch writer: appends the result of a job, all of it or nothing."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self.sink = Sink(options, schema, overwrite, streaming=False)

    def write(self, iterator: Iterator[Any]) -> Message:
        """Build frames of a task's rows."""
        return self.sink.write(iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """Append what all tasks wrote, in the driver, once for each txnVersion of a txnAppId."""
        self.sink.commit(messages, self._mark())

    def abort(self, messages: Sequence[Any]) -> None:
        """Do nothing: Spark also calls this after a commit that failed, which may have been decided.

        What the tasks staged is invisible, and is removed later.
        """

    def _mark(self) -> Mark | None:
        options = self.sink.options
        if options.application is None or options.version is None:
            return None
        if options.witness is None:
            return Mark(options.application, options.version)
        witness = None if options.witness == UNWITNESSED else options.witness
        return Mark(options.application, options.version, witness, streaming=True)


_NO_LOG = (
    'Say where the log is: .save("/data/shop"), or .option("path", "/data/shop"). In SQL a table does not pass its '
    "options on to a write: INSERT INTO t WITH (log = '/data/shop', topic = 'clicks') (key, value) SELECT ..."
)
_NO_OVERWRITE = (
    'mode("overwrite") would delete the records of a topic while others read them: use mode("append"). '
    "To start over, write to a new topic, or forget old records with: tailrace topic trim"
)
