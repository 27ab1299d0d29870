"""How fast the sink is, beside one that only writes files, on one machine in one session.

    python -m tests.spark.sink_speed [ROWS] [ROUNDS]      rows/s of jobs over the same Parquet file, then ms of commits

The minimal sink writes the batches of each task into one Arrow file and syncs it. Both read rows of 16 bytes key, 100
bytes value and a timestamp. Ratios are of neighbours in time, since the machine may have other work.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from tests.spark import launch

BATCH_ROWS = 100_000


class FileWriter(DataSourceArrowWriter):
    """Writes what comes into one file a task."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def write(self, iterator: Any) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        file = writer = None
        for batch in iterator:
            if writer is None:
                file = pa.OSFile(f"{self.folder}/{context.taskAttemptId()}.arrow", "wb")
                writer = pa.ipc.new_file(file, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return WriterCommitMessage()

    def commit(self, messages: Any) -> None:
        """Nothing: the files are there."""

    def abort(self, messages: Any) -> None:
        """Nothing."""


class FileSink(DataSource):
    """The format "files"."""

    @classmethod
    def name(cls) -> str:
        return "files"

    def writer(self, schema: Any, overwrite: bool) -> FileWriter:
        return FileWriter(self.options["path"])


def make_input(path: Path, rows: int) -> None:
    """Random bytes, so that nothing is small by accident."""
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("us", "UTC"))])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as file:
        for first in range(0, rows, BATCH_ROWS):
            count = min(BATCH_ROWS, rows - first)
            keys = fixed(os.urandom(16 * count), 16)
            times = pa.array(range(1_763_200_000_000_000 + first, 1_763_200_000_000_000 + first + count))
            columns = [keys, fixed(os.urandom(100 * count), 100), times.cast(schema.types[2])]
            file.write_table(pa.table(columns, schema=schema), row_group_size=BATCH_ROWS)


def fixed(data: bytes, width: int) -> pa.Array:
    offsets = pa.array(range(0, len(data) + 1, width), pa.int32())
    return pa.Array.from_buffers(pa.binary(), len(data) // width, [None, offsets.buffers()[1], pa.py_buffer(data)])


def jobs(rows: int, rounds: int, work: Path) -> None:
    import tailrace

    make_input(work / "input.parquet", rows)
    (work / "files").mkdir()
    spark = launch.start(
        work,
        **{"spark.driver.memory": "2g", "spark.driver.extraJavaOptions": "", "spark.sql.files.maxPartitionBytes": "1g"},
    )
    spark.dataSource.register(FileSink)
    source = spark.read.parquet(str(work / "input.parquet"))
    kinds = {"files": ("files", "key, value, timestamp", 0), "keyless": ("tailrace", "value, timestamp", 4)}
    kinds |= {f"keyed, {count} partitions": ("tailrace", "key, value, timestamp", count) for count in (1, 4, 16)}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for kind, (name, columns, partitions) in kinds.items():
            with tailrace.open(work / "log") as log:
                if partitions:
                    log.topic("out", partitions=partitions)
                place = str(work / "files") if name == "files" else log.location
                write = source.selectExpr(*columns.split(", ")).write.format(name).mode("append")
                began = time.perf_counter()
                (write if name == "files" else write.option("topic", "out")).save(place)
                if number:
                    seconds[kind].append(time.perf_counter() - began)
                if partitions:
                    assert sum(bounds.latest for bounds in log.topic("out").offsets().values()) == rows
                    log.topic("out").drop()
            for file in (work / "files").iterdir():
                file.unlink()
    spark.stop()
    print(f"{rows:,} rows, {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for kind, taken in seconds.items():
        ratios = [base / own for base, own in zip(seconds["files"], taken, strict=True)]
        best = min(seconds["files"]) / min(taken)
        told = f"of files: median {statistics.median(ratios):.2f}, best {best:.2f}"
        print(f"{kind:22} best {rows / min(taken) / 1e6:5.2f} M rows/s, {told}")


def commits(work: Path) -> None:
    """The time of a commit alone, of two tasks over sixteen partitions, without Spark."""
    import tailrace
    from tests.spark.tasks import Job

    with tailrace.open(work / "commits") as log:
        log.topic("a", partitions=16)
        for size in (1_000, 10_000, 100_000, 1_000_000):
            rows = max(16, 16 * size // 100 // 2)
            values = fixed(os.urandom(100 * rows), 100)
            keys = fixed(os.urandom(16 * rows), 16)
            table = pa.table({"value": values, "key": keys})
            taken = []
            for number in range(15):
                job = Job("value binary, key binary", path=log.location, topic="a", query=f"q{size}")
                messages = job.tasks([table, table], number)
                began = time.perf_counter()
                job.commit(messages, number)
                taken.append(1_000 * (time.perf_counter() - began))
            print(
                f"commit, {size:>9,} bytes a partition: median {statistics.median(taken):.1f} ms, best {min(taken):.1f}"
            )


def main() -> None:
    rows = int(sys.argv[1]) if sys.argv[1:] else 4_000_000
    rounds = int(sys.argv[2]) if sys.argv[2:] else 5
    with tempfile.TemporaryDirectory() as work:
        jobs(rows, rounds, Path(work))
        commits(Path(work))


if __name__ == "__main__":
    main()
