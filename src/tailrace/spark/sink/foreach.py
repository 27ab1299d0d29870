"""Batches of a stream that a function of foreachBatch writes: each once, as the sink writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import CaseInsensitiveDict

from tailrace.bulk import local_path
from tailrace.spark.handles import hinted
from tailrace.spark.sink.checkpoints import keep
from tailrace.spark.sink.options import UNWITNESSED, parse_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The last write of this process by log and application: the run of its query, and the batch.
_written: dict[tuple[str | None, str | None, str], tuple[str | None, int]] = {}


class Query(NamedTuple):
    """The query of a batch: its id, which is in the checkpoint, its run, and the checkpoint if it is local."""

    id: str
    run: str | None
    checkpoint: str | None


class BatchWriter:
    """Function that appends a batch of a query to a log, once; for foreachBatch, or a function that it calls."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        texts = {
            name: str(value).lower() if isinstance(value, bool) else os.fspath(value) if name == "path" else str(value)
            for name, value in options.items()
            if value is not None
        }
        with hinted():
            # Like Spark, which ignores case.
            parsed = parse_sink_options(CaseInsensitiveDict(texts), streaming=True)
        checkpoint = next((texts.pop(name) for name in [*texts] if name.lower() == "checkpointlocation"), None)
        self.checkpoint = None if checkpoint is None else local_path(checkpoint)
        # Distinguishes two writes of one batch.
        self.name = parsed.application or parsed.topic or ""
        location = parsed.location or os.environ.get("TAILRACE_LOG")
        # A log may be named in several ways, and the second write to it would still be treated as a repetition.
        self.place = (location and os.path.realpath(location), parsed.namespace or os.environ.get("TAILRACE_NAMESPACE"))
        self.options = {name: value for name, value in texts.items() if name.lower() != "txnappid"}
        self._root: Any = None
        self._query: Query | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_root": None, "_query": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the function on the server of Spark Connect, where the session of the query is active at this moment.

        The batches belong to another session, which has no query.
        """
        from pyspark.sql import SparkSession

        self.__dict__.update(state)
        self._root = SparkSession.getActiveSession()

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write a batch, or a DataFrame derived from it, under the number that foreachBatch gave."""
        query = self._remote(batch) if _is_remote(batch) else _local(batch, number)
        application = f"spark-stream:{query.id}:{self.name}"
        known = (*self.place, application)
        if _written.get(known) == (query.run, number):
            raise ValueError(_TWICE.format(number=number, name=self.name))
        # The source offsets of the batch are synced before its records.
        witness = keep(self.checkpoint or query.checkpoint, number)
        marks = {"txnAppId": application, "txnVersion": str(number), "txnWitness": witness or UNWITNESSED}
        batch.write.format("tailrace").mode("append").options(**self.options, **marks).save()
        _written[known] = query.run, number

    def _remote(self, batch: DataFrame) -> Query:
        """Return the query on Spark Connect, where a batch does not name it; its process serves one run of a query."""
        if self._query is None:
            sessions = [batch.sparkSession] if self._root is None else [self._root, batch.sparkSession]
            active = {str(query.id) for session in sessions for query in session.streams.active}
            query_id = None if self.checkpoint is None else _query_of(self.checkpoint)
            if query_id is None and len(active) != 1:
                raise ValueError(_WHICH)
            if query_id is not None and active and query_id not in active:
                raise ValueError(_OTHER.format(checkpoint=self.checkpoint, query=query_id))
            self._query = Query(query_id or active.pop(), None, None)
        return self._query


def _is_remote(batch: DataFrame) -> bool:
    return type(batch).__module__.startswith("pyspark.sql.connect.")


def _local(batch: DataFrame, number: int) -> Query:
    """Return the query whose thread runs this."""
    context = batch.sparkSession.sparkContext
    query = context.getLocalProperty("sql.streaming.queryId")
    if query is None:
        raise ValueError(_OUTSIDE)
    running = context.getLocalProperty("streaming.sql.batchId")
    if running is not None and running != str(number):
        raise ValueError(f"Batch {running} is written under the number {number}: give the one that foreachBatch gave.")
    run, checkpoint = _run_of(batch, query)
    return Query(query, run or context.getLocalProperty("spark.jobGroup.id"), checkpoint)


def _run_of(batch: DataFrame, query: str) -> tuple[str | None, str | None]:
    """Return the run of a query, and its checkpoint; None if Spark hides them, or it is not a local directory."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types

    session: Any = batch.sparkSession
    try:
        running = session._jsparkSession.sharedState().activeStreamingQueries()
        execution = running.get(session._jvm.java.util.UUID.fromString(query))
        if execution is None:
            return None, None
        return str(execution.runId()), local_path(str(execution.resolvedCheckpointRoot()))
    except Py4JError:
        # Not a public interface of Spark: without it only an older number is noticed, as with a remote checkpoint, and
        # the run is the job group, unless the function sets one of its own.
        return None, None


def _query_of(checkpoint: str) -> str | None:
    """Return the id of the query to which a checkpoint belongs; None if it is not a local directory."""
    try:
        with open(f"{checkpoint}/metadata", "rb") as written:
            return str(json.load(written)["id"])
    except (FileNotFoundError, NotADirectoryError):
        return None


_TWICE = (
    "Batch {number} is written a second time under the name {name!r}, and would be taken for a repetition: give each "
    'write of a batch a name of its own, as write_batch(..., txnAppId="errors"), or make one write of both.'
)
_OUTSIDE = (
    "Nothing says of which query this batch is: write_batch is for functions that foreachBatch calls, in the thread in "
    'which it calls them. A batch job is written by df.write.format("tailrace"), with txnAppId and txnVersion to be '
    "written once."
)
_WHICH = (
    "Through Spark Connect nothing says of which query a batch is when the session runs several, or when write_batch "
    "is called inside of the function: call it outside, and name the checkpoint of the query, "
    'write_batch(..., checkpointLocation="/data/checkpoint"), where the server sees it.'
)
_OTHER = (
    "The checkpoint {checkpoint} belongs to the query {query}, which does not run in this session: give write_batch "
    "the checkpointLocation of the query that calls it."
)
