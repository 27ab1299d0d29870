"""Ten micro-batches: the cost of each beyond what Spark itself takes, with results discarded and copied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.spark_reads import _times
from benchmarks.spark_stage import FRAME_RECORDS, KEY_BYTES, PARTITIONS, VALUE_BYTES, SparkStage, fixed
from benchmarks.spark_streams import CHECKPOINT, batch_durations, run
from tailrace.bench.cases import MILLISECONDS, Case, Goal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORK = "one of ten micro-batches"
TOPIC, TARGET = "streamed", "copied"
BATCHES = 10
FIELDS = "key BINARY, value BINARY"
AGAINST = "Arrow files"
# Against a source and a sink that only pass Arrow files on.
GOAL, COPY_GOAL = 1.25, 1.5
THROWN_AWAY, COPIED = "thrown away", "copied"


def cases(stage: SparkStage) -> list[Case]:
    """Return the same rows from Parquet files, Arrow files and a topic, a tenth of them in each batch."""
    fill(stage)
    folder = stage.directory / TOPIC
    reader = stage.spark.readStream
    # A reader of Spark keeps earlier options, so each stream has one of its own.
    parquet = reader.schema(FIELDS).option("maxFilesPerTrigger", 1).parquet(str(folder / "parquet"))
    arrow = stage.spark.readStream.format("arrow_files").load(str(folder / "arrow")).select("key", "value")
    topic = (
        stage.spark.readStream.format("tailrace")
        .options(subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger=stage.sizes.streamed_rows // BATCHES)
        .load(stage.log.location)
        .select("key", "value")
    )
    return [
        _case("Spark", "Parquet", parquet, _nowhere(stage), name="parquet"),
        _case("Arrow files", "Python", arrow, _nowhere(stage), name="arrow"),
        _case("Tailrace", "topic", topic, _nowhere(stage), "arrow", (Goal("ratio", at_most=GOAL),)),
        _case("Spark", "Parquet to Parquet", parquet, _to_files(stage, "parquet"), name="parquet copy", copied=True),
        _case(
            "Arrow files", "Python to Python", arrow, _to_files(stage, "arrow_files"), name="arrow copy", copied=True
        ),
        _case(
            "Tailrace", "topic to topic", topic, _to_topic(stage), "arrow copy",
            (Goal("ratio", at_most=COPY_GOAL),), copied=True,
        ),
    ]  # fmt: skip


def fill(stage: SparkStage) -> None:
    """Write a file of each kind for a batch, and as many records into the partitions of a topic."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.spark_peers import arrow_schema

    folder = stage.directory / TOPIC
    for kind in ("parquet", "arrow"):
        (folder / kind).mkdir(parents=True)
    topic = stage.log.topic(TOPIC, partitions=PARTITIONS)
    count = stage.sizes.streamed_rows // BATCHES
    values = fixed(os.urandom(VALUE_BYTES * count), VALUE_BYTES)
    for number in range(BATCHES):
        keys = fixed(os.urandom(KEY_BYTES * count), KEY_BYTES)
        times = _times(number * count, count)
        table = pa.table({"key": keys, "value": values})
        pq.write_table(
            table, folder / "parquet" / f"{number}.parquet", compression="none", use_dictionary=False,
            row_group_size=-(-count // 2),
        )  # fmt: skip
        path = str(folder / "arrow" / f"{number}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, arrow_schema()) as written:
            for first in range(0, count, FRAME_RECORDS):
                size = min(FRAME_RECORDS, count - first)
                constants = [pa.repeat(pa.scalar(item, kind), size) for item, kind in (
                    (TOPIC, pa.string()), (0, pa.int32()), (0, pa.int32())
                )]  # fmt: skip
                offsets = pa.array(range(first, first + size), pa.int64())
                columns = [keys.slice(first, size), values.slice(first, size), *constants[:2], offsets,
                           times.slice(first, size), constants[2]]  # fmt: skip
                written.write_batch(pa.RecordBatch.from_arrays(columns, schema=arrow_schema()))
        share = -(-count // PARTITIONS)
        for partition in range(PARTITIONS):
            first = partition * share
            topic.extend(
                values.slice(first, share), keys=keys.slice(first, share), timestamps=times.slice(first, share),
                partition=partition, durable=False,
            )  # fmt: skip
    stage.log.sync()


Measure = Callable[["DataFrame"], list[float]]


def _nowhere(stage: SparkStage) -> Measure:
    return lambda frame: batch_durations(run(stage, frame), BATCHES)


def _to_files(stage: SparkStage, sink: str) -> Measure:
    def measure(frame: DataFrame) -> list[float]:
        folder = stage.fresh("copy")
        folder.mkdir()
        durations = batch_durations(run(stage, frame, sink=sink, path=str(folder)), BATCHES)
        shutil.rmtree(folder)
        return durations

    return measure


def _to_topic(stage: SparkStage) -> Measure:
    def measure(frame: DataFrame) -> list[float]:
        topic = stage.log.topic(TARGET, partitions=PARTITIONS)
        query = run(stage, frame, sink="tailrace", path=stage.log.location, topic=TARGET)
        written = sum(bounds.latest for bounds in topic.offsets().values())
        topic.drop()
        if written != stage.sizes.streamed_rows:
            raise RuntimeError(f"{stage.sizes.streamed_rows} rows were copied, and {written} are in the topic.")
        return batch_durations(query, BATCHES)

    return measure


def _case(
    system: str, how: str, frame: DataFrame, measure: Measure, against: str = "", goals: tuple[Goal, ...] = (),
    name: str = "", *, copied: bool = False,
) -> Case:  # fmt: skip
    level = f"{CHECKPOINT}, rows too" if copied else CHECKPOINT
    if copied and system == "Spark":
        level = f"{CHECKPOINT}, rows in the page cache"

    def run_once(_: float) -> list[float]:
        return measure(frame)

    what = COPIED if copied else THROWN_AWAY
    return Case(
        WORK,
        system,
        f"{how}, {what}",
        level,
        MILLISECONDS,
        run_once,
        name=name,
        against=against,
        goals=goals,
        told=AGAINST,
    )
