"""The driver of the cluster tests: one application that runs what it is told, line by line.

    python -m tests.rigs.spark.cluster_jobs MASTER WORK SETTINGS

Each line of the standard input is a job in JSON, each answer a line of the standard output that begins with `#`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.rigs.spark.cluster_tasks import WatchedSource

SETTLE_SECONDS = 120.0


def start(master: str, settings: dict[str, str]) -> Any:
    """A session as the documents say; the format "tailrace" is found by Spark itself."""
    import tailrace.spark

    spark = tailrace.spark.session("tailrace on a cluster", master, settings)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(WatchedSource)
    return spark


def settle(spark: Any) -> None:
    """Wait until both executors are there and free: one that comes in place of a dead one, and one that must get rid of
    an attempt that was not chosen, take their time."""
    context = spark.sparkContext
    deadline = time.monotonic() + SETTLE_SECONDS
    # The driver is in this list too.
    while context._jsc.sc().getExecutorMemoryStatus().size() < 3:
        if time.monotonic() > deadline:
            raise TimeoutError("an executor is missing")
        time.sleep(0.1)
    # Such tasks begin only when there is room for all of them at once.
    context.parallelize(range(2), 2).barrier().mapPartitions(list).count()


def where() -> Any:
    """A function for queries that says on which executor a row is; it runs in the task that read or writes the row."""
    from pyspark.sql.functions import udf

    @udf("string")
    def place(_: Any) -> str:
        from tests.rigs.spark.cluster_tasks import here

        found = here()
        return f"{found['host']} {found['worker_pid']}"

    return place


def read(spark: Any, log: str, topic: str, tasks: int, **options: str) -> dict[str, Any]:
    """Read a topic whole: counts and sums by executor, and how many partitions the plan has."""
    rows = spark.read.format("tailrace").options(subscribe=topic, minPartitions=tasks, **options).load(log)
    found = rows.selectExpr("CAST(value AS STRING) AS text", "partition").withColumn("place", where()("partition"))
    groups = found.groupBy("place").agg({"text": "sum", "*": "count"}).collect()
    return {
        "tasks": rows.rdd.getNumPartitions(),
        "places": {row["place"]: [row["count(1)"], int(row["sum(text)"])] for row in groups},
    }


def append(spark: Any, log: str, topic: str, first: int, stop: int, tasks: int, size: int) -> dict[str, Any]:
    """A batch job: numbers, each with the executor that wrote it."""
    numbers = spark.range(first, stop, 1, tasks).withColumn("place", where()("id"))
    rows = numbers.selectExpr(
        f"lpad(CAST(id AS STRING), {size}, '0') AS value", "CAST(id AS STRING) AS key",
        "map('place', CAST(place AS BINARY)) AS headers",
    )  # fmt: skip
    rows.write.format("tailrace").mode("append").option("topic", topic).save(log)
    return {}


def copy(
    spark: Any, log: str, source: str, target: str, to: str, checkpoint: str, size: int, per_batch: int, tasks: int,
    sink: str = "tailrace", **options: str,
) -> dict[str, Any]:  # fmt: skip
    """A stream from topic to topic until everything that is there was copied."""
    asked = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": per_batch}
    rows = spark.readStream.format("tailrace").options(**asked, minPartitions=tasks).load(log)
    rows = rows.selectExpr("key", f"lpad(CAST(value AS STRING), {size}, '0') AS value")
    write = rows.writeStream.format(sink).options(topic=target, checkpointLocation=checkpoint, **options)
    query = write.trigger(availableNow=True).start(to)
    query.awaitTermination()
    done = [each for each in query.recentProgress if each["numInputRows"]]
    return {"batches": len(done), "rows": sum(each["numInputRows"] for each in done)}


def sees(spark: Any, path: str) -> dict[str, Any]:
    """Which executors see a path."""
    from pyspark.sql.functions import udf

    @udf("boolean")
    def seen(_: Any) -> bool:
        return Path(path).exists()

    rows = spark.range(0, 4, 1, 4).select(where()("id"), seen("id")).collect()
    return {"seen": {place.split()[0]: found for place, found in rows}}


JOBS = {"read": read, "append": append, "copy": copy, "sees": sees}


def main() -> None:
    master, work, settings = sys.argv[1:]
    began = time.monotonic()
    Path(work).mkdir(parents=True, exist_ok=True)
    spark = start(master, json.loads(settings))
    answer(started=time.monotonic() - began)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            # Each set of tasks looks at this anew: a second attempt soon, or none however slow the machine is.
            multiplier = "1.1" if asked.pop("speculate", False) else "1000000"
            spark.sparkContext._jsc.sc().conf().set("spark.speculation.multiplier", multiplier)
            settle(spark)
            answer(**JOBS[asked.pop("job")](spark, **asked))
        except Exception as error:  # noqa: BLE001  # the one who asked decides what that means
            answer(error=str(error))
    spark.stop()


def answer(**found: Any) -> None:
    print("#", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
