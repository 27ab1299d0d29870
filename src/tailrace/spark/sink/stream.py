"""The sink for streams: each batch of a query is appended exactly once, whichever process dies in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from tailrace.spark.sink.batch import Message, Sink
from tailrace.spark.sink.checkpoints import keep
from tailrace.spark.sink.commit import Mark

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TailraceStreamWriter(DataSourceStreamArrowWriter):
    """Stream writer: appends each batch of a query once.

    A batch is identified by its number and the id of its query, which is stored in the checkpoint. Spark passes the id
    to the tasks alone, so the driver gets it from their messages.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self.sink = Sink(options, schema, overwrite, streaming=True)

    def write(self, iterator: Iterator[Any]) -> Message:
        """Build frames of a task's rows."""
        return self.sink.write(iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 (the name is Spark's)
        """Append what all tasks wrote, in the driver, unless this batch of this query was appended before."""
        application = self.sink.application(_query(messages, batchId)) or ""
        # The source offsets of the batch are synced before its records.
        witness = keep(self.sink.checkpoint, batchId)
        self.sink.commit(messages, Mark(application, batchId, witness, streaming=True))

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        """Do nothing: Spark also calls this after a commit that failed, which may have been decided.

        What the tasks staged is invisible, and is removed later; the batch comes again when the query is restarted.
        """


def _query(messages: Sequence[Any], batch: int) -> str:
    queries = {message.query for message in messages if message is not None}
    batches = {message.batch for message in messages if message is not None}
    if len(queries) != 1 or None in queries or batches != {batch}:
        raise RuntimeError(
            f"Spark did not say which batch of which query it writes ({sorted(map(str, queries))}, "
            f"{sorted(map(str, batches))} for batch {batch}), so nothing was written: it could not be known again."
        )
    found: str = queries.pop()
    return found
