"""Many partitions with a few rows each: the cost of a job that writes all of them, or reads them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.spark_reads import throw_away
from benchmarks.spark_stage import KEY_BYTES, ROWS_EACH, VALUE_BYTES, SparkStage, fixed
from benchmarks.spark_streams import CHECKPOINT, run
from tailrace.bench.cases import MILLISECONDS, Case, Goal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORK = "a job over many partitions"
TOPIC, TARGET = "wide", "wide-written"
FIELDS = "key BINARY, value BINARY"
AGAINST = "Arrow files"
# Against the same rows in two Arrow files.
READ_GOAL, WRITE_GOAL = 2.0, 6.0
ON_DISK = "on disk"


def cases(stage: SparkStage) -> list[Case]:
    """Return one job each, from its start to its end; the stream is started, does one batch and stops."""
    fill(stage)
    folder = stage.directory / TOPIC
    count = stage.sizes.many_partitions
    how = f"{count * ROWS_EACH:,} rows"

    def rows() -> DataFrame:
        return stage.spark.read.schema(FIELDS).parquet(str(folder))

    def batch() -> None:
        throw_away(stage.spark.read.format("tailrace").option("subscribe", TOPIC).load(stage.log.location))

    def stream() -> None:
        reader = stage.spark.readStream.format("tailrace").options(subscribe=TOPIC, startingOffsets="earliest")
        run(stage, reader.load(stage.log.location))

    def written() -> DataFrame:
        return stage.spark.readStream.schema(FIELDS).parquet(str(folder))

    each = f"{count:,} partitions"
    read, write = (Goal("ratio", at_most=READ_GOAL),), (Goal("ratio", at_most=WRITE_GOAL),)
    arrow = str(stage.directory / "wide-arrow")
    return [
        _case("Spark", f"read {how} of Parquet", "nothing checked", lambda: throw_away(rows())),
        _case(
            "Arrow files", f"read {how}", "nothing checked",
            lambda: throw_away(stage.spark.read.format("arrow_files").load(arrow)), name="wide arrow",
        ),
        _case("Tailrace", f"read {how} of {each}", "checksums and offsets checked", batch, "wide arrow", read),
        _case("Tailrace", "read them as a stream", CHECKPOINT, stream),
        _case("Spark", f"write {how} as Parquet", "page cache", _to_files(stage, rows, "parquet")),
        _case("Arrow files", f"write {how}", ON_DISK, _to_files(stage, rows, "arrow_files"), name="wide sink"),
        _topic(stage, f"write {how} to {each}", lambda: _write(stage, rows()), "wide sink", write),
        _topic(
            stage, "write them as a stream",
            lambda: run(stage, written(), sink="tailrace", path=stage.log.location, topic=TARGET),
        ),
    ]  # fmt: skip


def fill(stage: SparkStage) -> None:
    """Write the rows into two files of each kind, and into the partitions of a topic."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.spark_peers import arrow_schema

    folder, arrow = stage.directory / TOPIC, stage.directory / "wide-arrow"
    folder.mkdir()
    arrow.mkdir()
    partitions = stage.sizes.many_partitions
    half = partitions * ROWS_EACH // 2
    schema = arrow_schema()
    for number in range(2):
        keys, values = (fixed(os.urandom(width * half), width) for width in (KEY_BYTES, VALUE_BYTES))
        pq.write_table(pa.table({"key": keys, "value": values}), folder / f"{number}.parquet", compression="none")
        columns = [keys, values, *(pa.nulls(half, field.type) for field in [*schema][2:])]
        with pa.OSFile(str(arrow / f"{number}.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as written:
            written.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    topic = stage.log.topic(TOPIC, partitions=partitions)
    for partition in range(partitions):
        first = partition * ROWS_EACH % half
        topic.extend(
            values.slice(first, ROWS_EACH), keys=keys.slice(first, ROWS_EACH), partition=partition, durable=False
        )
    stage.log.sync()


def _to_files(stage: SparkStage, rows: Callable[[], DataFrame], sink: str) -> Callable[[], None]:
    def work() -> None:
        folder = stage.fresh("wide-sink")
        folder.mkdir()
        rows().write.format(sink).mode("append").save(str(folder))
        shutil.rmtree(folder)

    return work


def _write(stage: SparkStage, rows: DataFrame) -> None:
    rows.write.format("tailrace").mode("append").option("topic", TARGET).save(stage.log.location)


def _topic(
    stage: SparkStage, how: str, work: Callable[[], object], against: str = "", goals: tuple[Goal, ...] = ()
) -> Case:
    """Return a job into a new topic, which is created and dropped outside of the measurement."""

    def measure(_: float) -> list[float]:
        topic = stage.log.topic(TARGET, partitions=stage.sizes.many_partitions)
        start = perf_counter()
        work()
        took = perf_counter() - start
        found, expected = sum(bounds.latest for bounds in topic.offsets().values()), ROWS_EACH * len(topic.offsets())
        topic.drop()
        if found != expected:
            raise RuntimeError(f"{expected} rows were written, and {found} are in the topic.")
        return [took * 1e3]

    return Case(
        WORK,
        "Tailrace",
        how,
        f"{ON_DISK}, exactly once",
        MILLISECONDS,
        measure,
        against=against,
        goals=goals,
        told=AGAINST,
    )


def _case(
    system: str, how: str, level: str, work: Callable[[], None], against: str = "", goals: tuple[Goal, ...] = (),
    name: str = "",
) -> Case:  # fmt: skip
    def measure(_: float) -> list[float]:
        start = perf_counter()
        work()
        return [(perf_counter() - start) * 1e3]

    return Case(WORK, system, how, level, MILLISECONDS, measure, name=name, against=against, goals=goals, told=AGAINST)
