"""Reading: a topic with all its columns, beside the same rows in Arrow files."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.spark_stage import (
    EVENT_US,
    FIRST_US,
    FRAME_RECORDS,
    KEY_BYTES,
    PARTITIONS,
    VALUE_BYTES,
    SparkStage,
    fixed,
)
from tailrace.bench.cases import RATE, Case, Goal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORK = "read into Spark"
TOPIC, SMALL = "read", "read-small"
# A frame of an application that appends its records a few at a time.
SMALL_FRAME_RECORDS = 128
RATIO_GOAL, RATE_GOAL = 0.85, 3_000_000
AGAINST = "arrow files"
CHECKED = "checksums and offsets checked"


def cases(stage: SparkStage) -> list[Case]:
    """Return all columns of all rows, discarded by Spark; then more common queries."""
    fill(stage)
    rows = stage.sizes.rows
    value = "sum(length(value))"
    ratio, rate = Goal("ratio", at_least=RATIO_GOAL), Goal("median", at_least=RATE_GOAL)

    # A reader of Spark keeps earlier options, so each read has one of its own.
    def files() -> DataFrame:
        return stage.spark.read.format("arrow_files").load(str(stage.directory / TOPIC))

    def topic(name: str = TOPIC, **options: str) -> DataFrame:
        reader = stage.spark.read.format("tailrace").option("subscribe", name)
        return (reader.schema(options["schema"]) if options else reader).load(stage.log.location)

    check_same(files(), topic())
    return [
        _case("Arrow files", "all columns", lambda: throw_away(files()), rows, name=AGAINST),
        _case("Tailrace", "all columns", lambda: throw_away(topic()), rows, AGAINST, (ratio, rate)),
        _case("Arrow files", value, lambda: asked(files(), value), rows, name=f"{AGAINST}, {value}"),
        _case("Tailrace", value, lambda: asked(topic(), value), rows, f"{AGAINST}, {value}"),
        _case(
            "Tailrace", f'schema("value BINARY"), {value}', lambda: asked(topic(schema="value BINARY"), value), rows,
            f"{AGAINST}, {value}",
        ),
        _case(
            "Tailrace", f"all columns, frames of {SMALL_FRAME_RECORDS}", lambda: throw_away(topic(SMALL)), rows,
            AGAINST,
        ),
    ]  # fmt: skip


def fill(stage: SparkStage) -> None:
    """Fill the topic, and files with the same rows in batches as large as its frames."""
    import pyarrow as pa

    from benchmarks.spark_peers import arrow_schema

    folder = stage.directory / TOPIC
    folder.mkdir()
    topic = stage.log.topic(TOPIC, partitions=PARTITIONS)
    small = stage.log.topic(SMALL, partitions=PARTITIONS)
    schema = arrow_schema()
    # Random, so that nothing is small by accident; repeated, since making it takes longest.
    values = fixed(os.urandom(VALUE_BYTES * FRAME_RECORDS), VALUE_BYTES)
    keys = fixed(os.urandom(KEY_BYTES * FRAME_RECORDS), KEY_BYTES)
    steps = stage.sizes.rows // (FRAME_RECORDS * PARTITIONS)
    for partition in range(PARTITIONS):
        constants = [pa.repeat(pa.scalar(item, kind), FRAME_RECORDS) for item, kind in (
            (TOPIC, pa.string()), (partition, pa.int32()), (0, pa.int32())
        )]  # fmt: skip
        with pa.OSFile(str(folder / f"{partition}.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as written:
            for step in range(steps):
                first = step * FRAME_RECORDS
                offsets = pa.array(range(first, first + FRAME_RECORDS), pa.int64())
                times = _times(first, FRAME_RECORDS)
                topic.extend(values, keys=keys, timestamps=times, partition=partition, durable=False)
                columns = [keys, values, *constants[:2], offsets, times, constants[2]]
                written.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        _fill_small(small, partition, values, keys, stage.sizes.rows // PARTITIONS)
    stage.log.sync()


def _fill_small(topic: Any, partition: int, values: Any, keys: Any, records: int) -> None:
    """Append the same rows like an application that waits for each of its small batches."""
    for first in range(0, records, SMALL_FRAME_RECORDS):
        at = first % FRAME_RECORDS
        topic.extend(
            values.slice(at, SMALL_FRAME_RECORDS), keys=keys.slice(at, SMALL_FRAME_RECORDS),
            timestamps=_times(first, SMALL_FRAME_RECORDS), partition=partition, durable=False,
        )  # fmt: skip


def _times(first: int, count: int) -> Any:
    import pyarrow as pa

    start = FIRST_US + first * EVENT_US
    return pa.array(range(start, start + count * EVENT_US, EVENT_US), pa.int64()).cast(pa.timestamp("us", "UTC"))


def check_same(one: DataFrame, other: DataFrame) -> None:
    """Raise RuntimeError unless two sources have the same rows: only equal work is compared."""
    seen = [frame.selectExpr("count(*)", "sum(xxhash64(*) % 1000003)").first() for frame in (one, other)]
    if seen[0] != seen[1]:
        raise RuntimeError(f"The rows of the two sources differ: {seen[0]} and {seen[1]}.")


def throw_away(frame: DataFrame) -> None:
    """Read every column of every row."""
    frame.write.format("noop").mode("overwrite").save()


def asked(frame: DataFrame, what: str) -> None:
    """Compute one number of all rows."""
    frame.selectExpr(what).first()


def _case(
    system: str, how: str, work: Callable[[], None], rows: int, against: str = "", goals: tuple[Goal, ...] = (),
    name: str = "",
) -> Case:  # fmt: skip
    def measure(_: float) -> list[float]:
        start = perf_counter()
        work()
        return [rows / (perf_counter() - start)]

    level = CHECKED if system == "Tailrace" else "nothing checked"
    return Case(WORK, system, how, level, RATE, measure, name=name, against=against, goals=goals)
