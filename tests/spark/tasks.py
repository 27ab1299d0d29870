"""The sink without Spark: a job of the driver and its tasks in one process, with everything pickled between them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from tailrace.spark import TailraceSource
from tests.spark.ddl import struct

ROWS_PER_BATCH = 1_000


class Job:
    """One write, or one batch of a stream; `query` makes it a stream."""

    def __init__(self, ddl: str, *, query: str | None = None, overwrite: bool = False, **options: Any) -> None:
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
        self.options = texts
        self.schema: StructType = struct(ddl)
        self.query = query
        self.overwrite = overwrite
        self.writer: Any = None

    def plan(self) -> Any:
        """What the driver makes and sends to the tasks."""
        source = TailraceSource(CaseInsensitiveDict(self.options))
        if self.query is None:
            return source.writer(self.schema, self.overwrite)
        return source.streamWriter(schema=self.schema, overwrite=self.overwrite)

    def task(self, rows: pa.Table, number: int = 0, batch: int = 0) -> Any:
        """Run one task; its message as it arrives at the driver."""
        if self.writer is None:
            self.writer = self.plan()
        far = pickle.loads(pickle.dumps(self.writer))
        with context(number, self.query, batch):
            message = far.write(iter(rows.to_batches(max_chunksize=ROWS_PER_BATCH)))
        return pickle.loads(pickle.dumps(message))

    def tasks(self, tables: Sequence[pa.Table], batch: int = 0) -> list[Any]:
        """Run a task for each table."""
        return [self.task(table, number, batch) for number, table in enumerate(tables)]

    def commit(self, messages: list[Any], batch: int = 0) -> None:
        """The end of a job; a stream makes a new writer for it, a batch job takes the one it has."""
        if self.query is None:
            pickle.loads(pickle.dumps(self.writer)).commit(messages)
        else:
            self.plan().commit(messages, batch)

    def abort(self, messages: list[Any], batch: int = 0) -> None:
        if self.query is None:
            pickle.loads(pickle.dumps(self.writer)).abort(messages)
        else:
            self.plan().abort(messages, batch)

    def run(self, *tables: pa.Table, batch: int = 0) -> None:
        """Everything, from the plan to the commit."""
        self.writer = None
        self.commit(self.tasks(tables, batch), batch)


class context:  # noqa: N801  # reads as what it is: with context(...)
    """What a task asks Spark about itself."""

    def __init__(self, number: int, query: str | None, batch: int) -> None:
        self.made = TaskContext._getOrCreate()
        self.made._partitionId = number
        self.made._attemptNumber = 0
        self.made._localProperties = {}
        if query is not None:
            self.made._localProperties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}

    def __enter__(self) -> None:
        TaskContext._setTaskContext(self.made)

    def __exit__(self, *exc: object) -> None:
        TaskContext._setTaskContext(None)
