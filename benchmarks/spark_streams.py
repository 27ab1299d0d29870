"""Streams: the cost of a nearly empty batch, and a job over events that are JSON."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.spark_stage import EVENT_US, FIRST_US, FRAME_RECORDS, PARTITIONS, USERS, SparkStage
from tailrace.bench.cases import MILLISECONDS, RATE, Case, Goal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

BATCHES_WORK, JSON_WORK = "a batch of one row", "windows over JSON events"
TICKS, EVENTS = "ticks", "events"
# Against a source that only counts, and against from_json.
BATCH_GOAL, JSON_GOAL = 1.2, 1.8
BATCH_RECORDS = 1_000_000
FIELDS = "user STRING, page STRING, amount DOUBLE, time TIMESTAMP"
CHECKPOINT = "checkpoint on disk"


def cases(stage: SparkStage) -> list[Case]:
    """Return streams that end with the existing records."""
    return [*batch_cases(stage), *json_cases(stage)]


def batch_cases(stage: SparkStage) -> list[Case]:
    """Return the cases with as many batches as there are records."""
    count = stage.sizes.batches
    topic = stage.log.topic(TICKS, partitions=1)
    for number in range(count):
        topic.append(str(number), durable=False)
    stage.log.sync()
    # A reader of Spark keeps earlier options, so each stream has one of its own.
    ticks = stage.spark.readStream.format("ticks").option("count", count).load()
    records = (
        stage.spark.readStream.format("tailrace")
        .options(subscribe=TICKS, startingOffsets="earliest", maxOffsetsPerTrigger=1)
        .load(stage.log.location)
    )
    goal = (Goal("ratio", at_most=BATCH_GOAL),)

    def measured(frame: DataFrame) -> Callable[[float], list[float]]:
        return lambda _: batch_durations(run(stage, frame), count)

    return [
        Case(BATCHES_WORK, "a source that counts", "noop sink", CHECKPOINT, MILLISECONDS, measured(ticks), name=TICKS),
        Case(
            BATCHES_WORK, "Tailrace", "noop sink", CHECKPOINT, MILLISECONDS, measured(records), against=TICKS,
            goals=goal,
        ),
    ]  # fmt: skip


def run(
    stage: SparkStage, frame: DataFrame, mode: str = "append", sink: str = "noop", **options: Any
) -> StreamingQuery:
    """Run a query to the current end; without a sink its results are discarded."""
    path = str(stage.fresh("checkpoint"))
    writer = frame.writeStream.format(sink).outputMode(mode).option("checkpointLocation", path).options(**options)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def batch_durations(query: StreamingQuery, count: int) -> list[float]:
    """Return the milliseconds of each batch but the first, for which Spark compiles the query."""
    found = [progress for progress in query.recentProgress if progress["numInputRows"]]
    if len(found) != count:
        raise RuntimeError(f"There were {len(found)} batches with rows where there should be {count}.")
    return [float(progress["durationMs"]["triggerExecution"]) for progress in found[1:]]


def json_cases(stage: SparkStage) -> list[Case]:
    """Return the cases for sums per user in windows of ten seconds, with a watermark."""
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    _fill_events(stage)
    options = {"subscribe": EVENTS, "startingOffsets": "earliest"}
    limit = {"maxOffsetsPerTrigger": BATCH_RECORDS}

    def reader(**more: Any) -> Any:
        made: Any = stage.spark.readStream.options(**limit) if "stream" in more else stage.spark.read
        return made.format("tailrace").options(**options)

    def parsed(**more: Any) -> DataFrame:
        frame: DataFrame = reader(**more).option("valueFormat", "json").schema(FIELDS).load(stage.log.location)
        return frame

    def by_spark(schema: str = "", **more: Any) -> DataFrame:
        source = reader(**more)
        frame: DataFrame = (source.schema(schema) if schema else source).load(stage.log.location)
        return frame.select(F.from_json(F.col("value").cast("string"), FIELDS).alias("event")).select("event.*")

    def windows(frame: DataFrame) -> DataFrame:
        grouped = frame.groupBy(F.window("time", "10 seconds"), "user")
        paid = F.count_if(F.col("page") == "/pay")
        return grouped.agg(F.count("*").alias("events"), F.sum("amount").alias("amount"), paid.alias("paid"))

    _check_windows(stage, windows(parsed()), windows(by_spark()))

    def measured(frame: DataFrame) -> Callable[[float], list[float]]:
        job = windows(frame.withWatermark("time", "1 minute"))

        def measure(_: float) -> list[float]:
            start = perf_counter()
            query = run(stage, job, "update")
            took = perf_counter() - start
            seen = sum(progress["numInputRows"] for progress in query.recentProgress)
            if seen != stage.sizes.events:
                raise RuntimeError(f"The job saw {seen} of {stage.sizes.events} events.")
            return [stage.sizes.events / took]

        return measure

    level = f"{CHECKPOINT}, state too"
    goal = (Goal("ratio", at_least=JSON_GOAL),)
    return [
        Case(
            JSON_WORK, "Tailrace", "from_json over value", level, RATE, measured(by_spark(stream=True)),
            name="from_json",
        ),
        Case(
            JSON_WORK, "Tailrace", 'from_json, schema("value BINARY")', level, RATE,
            measured(by_spark("value BINARY", stream=True)), against="from_json",
        ),
        Case(
            JSON_WORK, "Tailrace", "valueFormat=json", level, RATE, measured(parsed(stream=True)), against="from_json",
            goals=goal,
        ),
    ]  # fmt: skip


def _fill_events(stage: SparkStage) -> None:
    topic = stage.log.topic(EVENTS, partitions=PARTITIONS)
    for step in range(stage.sizes.events // FRAME_RECORDS):
        first = step * FRAME_RECORDS
        values = [event(number) for number in range(first, first + FRAME_RECORDS)]
        topic.extend(values, partition=step % PARTITIONS, durable=False)
    stage.log.sync()


def event(number: int) -> str:
    """Return an event of about 100 bytes."""
    micros = FIRST_US + number * EVENT_US
    seconds, rest = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds % 3_600, 60)
    hour, day = seconds // 3_600 % 24, 15 + (seconds - FIRST_US // 1_000_000) // 86_400
    page = "/pay" if number % 17 == 0 else f"/shop/{number * 104729 % 1_000}"
    return (
        f'{{"user": "user-{number * 7919 % USERS}", "page": "{page}", '
        f'"amount": {number % 10_000 / 100}, "time": "2025-11-{day:02}T{hour:02}:{minutes:02}:{second:02}.'
        f'{rest // 1_000:03}Z"}}'
    )


def _check_windows(stage: SparkStage, one: DataFrame, other: DataFrame) -> None:
    """Raise RuntimeError unless both jobs compute the same sums."""
    found = [
        frame.selectExpr("count(*)", "sum(events)", "sum(cast(amount AS decimal(20, 2)))", "sum(paid)").first()
        for frame in (one, other)
    ]
    if found[0] != found[1] or found[0] is None or found[0][1] != stage.sizes.events:
        raise RuntimeError(f"The windows of the two jobs differ: {found[0]} and {found[1]}.")
