"""The minimal source and sink in Python: what Tailrace is compared with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

# The columns of Spark's Kafka source, which Tailrace's has too.
SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, timestampType INT"


def arrow_schema() -> pa.Schema:
    """Return the same columns in Arrow."""
    kinds = [pa.binary(), pa.binary(), pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"), pa.int32()]
    return pa.schema(zip((each.split()[0] for each in SCHEMA.split(", ")), kinds, strict=True))


class ArrowFiles(DataSource):
    """The format "arrow_files": a directory of Arrow files, one read or written per task."""

    @classmethod
    def name(cls) -> str:
        return "arrow_files"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return FilesReader(self.options["path"])

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return FilesWriter(self.options["path"])

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 (the name is Spark's)
        return FilesStreamReader(self.options["path"])

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return FilesStreamWriter(self.options["path"])


class FilesReader(DataSourceReader):
    """Reader that sends the batches of each file as they are."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self.folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with pa.memory_map(partition.value) as file:
            batches = pa.ipc.open_file(file)
            for index in range(batches.num_record_batches):
                yield batches.get_batch(index)


class FilesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader: each file is a batch of a stream, read by two tasks."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"file": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: no file is added."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"file": min(len(os.listdir(self.folder)), start["file"] + 1)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition((file, half)) for file in range(start["file"], end["file"]) for half in range(2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        file, half = partition.value
        with pa.memory_map(f"{self.folder}/{file}.arrow") as mapped:
            batches = pa.ipc.open_file(mapped)
            count = batches.num_record_batches
            for index in range(half * count // 2, (half + 1) * count // 2):
                yield batches.get_batch(index)


def write_file(folder: str, iterator: Iterator[Any]) -> WriterCommitMessage:
    """Write the batches of a task into one file, and wait for the disk as Tailrace's sink does."""
    context = TaskContext.get()
    assert context is not None
    file = writer = None
    for batch in iterator:
        if file is None:
            file = open(f"{folder}/{context.taskAttemptId()}.arrow", "wb", buffering=0)  # noqa: SIM115
            writer = pa.ipc.new_file(file, batch.schema)
        writer.write_batch(batch)
    if file is not None:
        writer.close()
        os.fsync(file.fileno())
        file.close()
        directory = os.open(folder, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    return WriterCommitMessage()


class FilesStreamWriter(DataSourceStreamArrowWriter):
    """Stream writer that writes the batches of each task as they are, again if a batch comes again."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_file(self.folder, iterator)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 (the name is Spark's)
        """Do nothing: the files are complete."""

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        """Do nothing."""


class FilesWriter(DataSourceArrowWriter):
    """Writer that writes the batches of each task as they are."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_file(self.folder, iterator)

    def commit(self, messages: Any) -> None:
        """Do nothing: the files are complete."""

    def abort(self, messages: Any) -> None:
        """Do nothing."""


class Ticks(DataSource):
    """The format "ticks": a stream of a number of batches of one row each, without any storage."""

    @classmethod
    def name(cls) -> str:
        return "ticks"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return TicksReader(int(self.options["count"]))


class TicksReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader that counts up."""

    def __init__(self, count: int) -> None:
        self.count = count

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: its end is known."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"at": min(self.count, start["at"] + 1)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(start["at"])] if start["at"] < end["at"] else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        row = [None, b".", "ticks", 0, partition.value, 0, 0]
        columns = [pa.array([item]).cast(field.type) for item, field in zip(row, arrow_schema(), strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema())
