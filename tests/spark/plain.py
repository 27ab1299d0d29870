"""The source without Spark: what the driver and the executors call, in one process, with everything pickled between."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from tailrace.spark import TailraceSource
from tests.spark.ddl import struct


def source(**options: Any) -> TailraceSource:
    """A source as Spark makes one: texts for values, upper and lower case not told apart."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return TailraceSource(CaseInsensitiveDict(texts))


def schema_of(ddl: str | None, made: TailraceSource) -> StructType:
    return made.schema() if ddl is None else struct(ddl)


def read_tasks(reader: Any, tasks: list[Any], schema: StructType) -> pa.Table:
    """What the executors make of the tasks; every batch must be as Spark demands it."""
    expected = to_arrow_schema(schema, timezone="UTC")
    far = pickle.loads(pickle.dumps(reader))
    batches = []
    for task in tasks:
        for batch in far.read(pickle.loads(pickle.dumps(task))):
            assert expected.equals(batch.schema), (expected, batch.schema)
            batch.validate(full=True)
            batches.append(batch)
    return pa.Table.from_batches(batches, expected)


def batch(ddl: str | None = None, **options: Any) -> pa.Table:
    """All rows of a batch query."""
    made = source(**options)
    schema = schema_of(ddl, made)
    reader = made.reader(schema)
    return read_tasks(reader, reader.partitions(), schema)


def tasks(ddl: str | None = None, **options: Any) -> list[Any]:
    """The tasks of a batch query."""
    made = source(**options)
    return made.reader(schema_of(ddl, made)).partitions()


class Stream:
    """A streaming query as Spark runs one: offsets are written down before a batch runs, and read again from there.

    `offsets` and `commits` are the checkpoint; a new Stream over the same ones is a restart.
    """

    def __init__(self, offsets: list[str], commits: list[int], ddl: str | None = None, **options: Any) -> None:
        made = source(**options)
        self.schema = schema_of(ddl, made)
        self.reader = pickle.loads(pickle.dumps(made.streamReader(self.schema)))
        self.offsets = offsets
        self.commits = commits
        self.limit: ReadLimit = self.reader.getDefaultReadLimit()

    def start(self) -> dict[str, Any]:
        """Where the next batch starts: the end of the last one that was committed."""
        if self.commits:
            return json.loads(self.offsets[self.commits[-1]])
        return json.loads(json.dumps(self.reader.initialOffset()))

    def poll(self) -> bool:
        """Ask for something new, and write down where a batch would end; False when there is nothing."""
        if len(self.offsets) > len(self.commits):
            return True
        start = self.start()
        end = json.dumps(self.reader.latestOffset(start, self.limit))
        if self.commits and end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def run(self) -> pa.Table:
        """The rows of the batch that was written down last."""
        end = json.loads(self.offsets[-1])
        return read_tasks(self.reader, list(self.reader.partitions(self.start(), end)), self.schema)

    def commit(self) -> None:
        self.commits.append(len(self.offsets) - 1)

    def batch(self) -> pa.Table | None:
        """One whole batch; None when there is nothing new."""
        if not self.poll():
            return None
        rows = self.run()
        self.commit()
        return rows

    def everything(self) -> list[tuple[str, int, int]]:
        """Places of all records until there is nothing new."""
        found = []
        while (rows := self.batch()) is not None:
            found += places(rows)
        return found

    def stop(self) -> None:
        self.reader.stop()


def places(rows: pa.Table) -> list[tuple[str, int, int]]:
    """Topic, partition and offset of every row."""
    columns = [rows.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    return list(zip(*columns, strict=True))


def fill(topic, count, partition=0, size=10, first=0):
    values = [f"{number:0{size}d}" for number in range(first, first + count)]
    topic.extend(values, keys=[f"k{number}" for number in range(count)], partition=partition)


def expected(topic, *ranges):
    return [(topic, partition, offset) for partition, offsets in ranges for offset in offsets]
