"""A Spark driver: a stream turns clicks into sessions, each exactly once, and SQL answers the questions of the day."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from examples.shop import sessions
from examples.shop.diary import Diary
from examples.shop.questions import REVENUE, VISITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

GROUP = "sessions"
SITE = Path(__file__).parent / "_site"
MASTER = "local[2]"
POLL_SECONDS = 0.05
SHOWN = "yyyy-MM-dd'T'HH:mm:ss"
SESSION = f"""to_json(struct(
    customer, date_format(began, "{SHOWN}") AS began, date_format(ended, "{SHOWN}") AS ended, clicks, ids
))"""
FINISH = b"finish\n"
# Spark gives a Python process ten seconds to start, which on a busy machine is not always enough.
NOT_STARTED = "failed to connect back"
STARTS_MAX = 5


class Orders(threading.Thread):
    """Reader of the parent's orders on standard input: to finish, or, when it ends, to exit at once."""

    def __init__(self) -> None:
        super().__init__(name="orders", daemon=True)
        self.finish = threading.Event()

    def run(self) -> None:
        # Not through sys.stdin, whose lock this thread would hold when the process wants to end.
        while said := os.read(0, len(FINISH)):
            if said == FINISH:
                self.finish.set()
        # Java ends as soon as its own standard input does, together with its Python processes.
        os._exit(0)


def main(arguments: list[str]) -> int:
    path, directory, scratch, life = arguments
    orders = Orders()
    orders.start()
    diary = Diary(Path(directory, "diary.jsonl"), int(life))
    # Before Spark starts, because its Python processes inherit the environment of this one.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH", "")]))
    from pyspark.errors import StreamingQueryException

    import tailrace.spark

    spark = tailrace.spark.session("tea shop", MASTER, settings(scratch))
    diary.enter("started", int(life))
    for attempt in range(1, STARTS_MAX + 1):
        query = start(spark, path, str(Path(directory, "checkpoint")))
        try:
            follow(query, diary, orders)
            break
        except StreamingQueryException as error:
            if NOT_STARTED not in str(error) or attempt == STARTS_MAX:
                raise
    diary.enter("answers", answers(spark, path))
    threading.Event().wait()
    return 0


def settings(scratch: str) -> dict[str, str]:
    """Return the settings for Spark to start quickly, to stay small, and to leave nothing outside of a directory."""
    return {
        "spark.driver.memory": "1g",
        # The quick compiler only: the other one pays off after minutes.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={scratch}",
        "spark.local.dir": scratch,
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
    }


def start(spark: SparkSession, path: str, checkpoint: str) -> StreamingQuery:
    """Start the stream, or continue it where the checkpoint says."""
    from pyspark.sql import functions as f

    clicks = (
        spark.readStream.format("tailrace")
        .schema("id LONG, at TIMESTAMP, _key BINARY")
        .options(subscribe=sessions.SOURCE, valueFormat="json", startingOffsets="earliest", groupId=GROUP)
        .load(path)
    )
    found = (
        clicks.selectExpr("id", "at", "CAST(_key AS STRING) AS customer")
        .withWatermark("at", f"{sessions.LATE_MAX.total_seconds():.0f} seconds")
        .groupBy("customer", f.session_window("at", f"{sessions.PAUSE.total_seconds():.0f} seconds"))
        .agg(
            f.min("at").alias("began"),
            f.max("at").alias("ended"),
            f.count("id").alias("clicks"),
            f.sum("id").alias("ids"),
        )
    )
    return (
        found.selectExpr("customer AS key", f"{SESSION} AS value")
        .writeStream.format("tailrace")
        .options(topic=sessions.TARGET, checkpointLocation=checkpoint)
        .start(path)
    )


def follow(query: StreamingQuery, diary: Diary, orders: Orders) -> None:
    """Enter every batch into the diary, until the end is requested and everything that was written is in sessions."""
    entered = -1
    while query.isActive and not orders.finish.wait(POLL_SECONDS):
        entered = enter(query, diary, entered)
    with ThreadPoolExecutor(1) as pool:
        caught_up = pool.submit(query.processAllAvailable)
        while not caught_up.done():
            sleep(POLL_SECONDS)
            entered = enter(query, diary, entered)
        caught_up.result()
    # The progress of a batch is reported a moment after its end.
    sleep(POLL_SECONDS)
    enter(query, diary, entered)
    query.stop()


def enter(query: StreamingQuery, diary: Diary, entered: int) -> int:
    """Enter the batches that ended since, and return the number of the last one."""
    last = query.lastProgress
    if last is None or last["batchId"] <= entered:
        return entered
    for progress in query.recentProgress:
        # A progress without new data is no batch.
        if progress["batchId"] > entered and "addBatch" in progress["durationMs"]:
            entered = progress["batchId"]
            diary.batch(progress, datetime.fromisoformat(progress["timestamp"]).timestamp())
    return entered


def answers(spark: SparkSession, path: str) -> dict[str, tuple[float, list[list[Any]]]]:
    """Return by question the seconds and the rows of the answer."""
    view(spark, path, "orders", "product STRING, cents LONG")
    view(spark, path, "sessions", "began STRING, clicks LONG")
    found = {}
    for name, query in (("revenue", REVENUE), ("visits", VISITS)):
        began = perf_counter()
        rows = [list(row) for row in spark.sql(query).collect()]
        found[name] = (perf_counter() - began, rows)
    return found


def view(spark: SparkSession, path: str, topic: str, schema: str) -> None:
    rows: DataFrame = (
        spark.read.format("tailrace").schema(schema).options(subscribe=topic, valueFormat="json").load(path)
    )
    rows.createOrReplaceTempView(topic)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
