"""Writing: rows into a topic in one transaction, beside a sink that only writes them into Arrow files."""

from __future__ import annotations

import os
import shutil
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.spark_reads import _times
from benchmarks.spark_stage import FRAME_RECORDS, KEY_BYTES, PARTITIONS, VALUE_BYTES, SparkStage, fixed
from tailrace.bench.cases import RATE, Case, Goal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORK = "write from Spark"
TOPIC = "written"
RATIO_GOAL = 0.8
AGAINST = "arrow sink"
ON_DISK = "on disk"


def cases(stage: SparkStage) -> list[Case]:
    """Return cases with the same rows of a Parquet file, which Spark reads several times as fast as any sink here."""
    source = fill(stage)
    keyed, keyless = source.select("key", "value", "timestamp"), source.select("value", "timestamp")
    goal = (Goal("ratio", at_least=RATIO_GOAL),)
    return [
        _files(stage, "keys", keyed, AGAINST),
        _topic(stage, "keys, 4 partitions", keyed, 4, AGAINST, goal),
        _topic(stage, "keys, 16 partitions", keyed, 16, AGAINST),
        _files(stage, "no keys", keyless, f"{AGAINST}, no keys"),
        _topic(stage, "no keys, 4 partitions", keyless, 4, f"{AGAINST}, no keys"),
    ]


def fill(stage: SparkStage) -> DataFrame:
    """Write rows with distinct keys of 16 bytes, in as many pieces as the session has cores."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = stage.directory / "rows"
    folder.mkdir()
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("us", "UTC"))])
    values = fixed(os.urandom(VALUE_BYTES * FRAME_RECORDS), VALUE_BYTES)
    steps = stage.sizes.written_rows // (FRAME_RECORDS * PARTITIONS)
    for number in range(PARTITIONS):
        path = folder / f"{number}.parquet"
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as file:
            for step in range(steps):
                keys = fixed(os.urandom(KEY_BYTES * FRAME_RECORDS), KEY_BYTES)
                times = _times(step * FRAME_RECORDS, FRAME_RECORDS)
                file.write_table(pa.table([keys, values, times], schema=schema))
    return stage.spark.read.parquet(str(folder))


def _files(stage: SparkStage, how: str, rows: DataFrame, name: str) -> Case:
    def measure(_: float) -> list[float]:
        folder = stage.fresh("sink")
        folder.mkdir()
        start = perf_counter()
        rows.write.format("arrow_files").mode("append").save(str(folder))
        took = perf_counter() - start
        shutil.rmtree(folder)
        return [stage.sizes.written_rows / took]

    return Case(WORK, "Arrow files", how, ON_DISK, RATE, measure, name=name)


def _topic(
    stage: SparkStage, how: str, rows: DataFrame, partitions: int, against: str, goals: tuple[Goal, ...] = ()
) -> Case:
    def measure(_: float) -> list[float]:
        topic = stage.log.topic(TOPIC, partitions=partitions)
        start = perf_counter()
        rows.write.format("tailrace").mode("append").option("topic", TOPIC).save(stage.log.location)
        took = perf_counter() - start
        written = sum(bounds.latest for bounds in topic.offsets().values())
        topic.drop()
        if written != stage.sizes.written_rows:
            raise RuntimeError(f"{stage.sizes.written_rows} rows were written, and {written} are in the topic.")
        return [stage.sizes.written_rows / took]

    level = f"{ON_DISK}, all or nothing"
    return Case(WORK, "Tailrace", how, level, RATE, measure, against=against, goals=goals)
