"""Alerts: a user whose payments fail three times within ten minutes, told while it happens.

    python -m examples.pipelines.alerts --log /tmp/shop --sample 10000 --once

Reads `payments`, whose values look like {"user": "ada", "eur": 4.2, "ok": false, "at": "2026-11-16T09:30:00Z"}, and
writes to `alerts`, keyed by user, with headers to route by: one alert for a user and ten minutes.
"""

from __future__ import annotations

import sys

from examples.pipelines import samples
from examples.pipelines.command import Pipeline
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody calls it so)
from pyspark.sql.streaming.readwriter import DataStreamWriter

import tailrace
import tailrace.spark

FAILURES = 3
WINDOW = "10 minutes"
# How late a payment may arrive; the counts of a window are kept for as long after its end.
LATENESS = "5 minutes"


def pipeline(spark: SparkSession, log: str) -> DataStreamWriter:
    """Return the query, ready to be started."""
    with tailrace.open(log) as opened:
        if not opened.topics("alerts"):
            # It is read before the first alert is written, so it must exist.
            opened.topic("alerts", retain="90d")
    payments = (
        spark.readStream.format("tailrace")
        .schema("user STRING, eur DOUBLE, ok BOOLEAN, at TIMESTAMP, _corrupt_record STRING")
        .option("valueFormat", "json")
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
        .option("groupId", "alerts")
        .load(log)
    )

    write = tailrace.spark.write_batch(log, topic="alerts")

    # In append mode an alert would wait until its window is over. In update mode a batch has every window that it
    # changed: the third failure is reported at once. The fourth must not be, so earlier alerts are looked up.
    def tell(batch: DataFrame, number: int) -> None:
        new = alerts(batch).join(told(batch.sparkSession, log), "id", "left_anti").drop("id")
        # A batch that Spark runs again after a crash is recognized by its query, whose id is in the checkpoint, and
        # number.
        write(new, number)

    return failures(payments).writeStream.outputMode("update").foreachBatch(tell)


def failures(payments: DataFrame) -> DataFrame:
    """Return how many payments of a user failed in each window, and their sum."""
    readable = F.col("user").isNotNull() & F.col("ok").isNotNull() & F.col("at").isNotNull()
    return (
        payments.observe("payments", F.count_if(~readable).alias("unreadable"))
        .where(readable & ~F.col("ok"))
        .withWatermark("at", LATENESS)
        .groupBy("user", F.window("at", WINDOW).alias("window"))
        .agg(F.count("*").alias("failed"), F.round(F.sum("eur"), 2).alias("eur"))
    )


def alerts(failures: DataFrame) -> DataFrame:
    """Return one row for every count that is an alert, with the columns of a record and the id of the alert."""
    identity = F.format_string("%s@%d", "user", F.unix_timestamp("window.start"))
    alert = F.struct("id", "user", "failed", "eur", "window")
    severity = F.when(F.col("failed") >= 3 * FAILURES, "high").otherwise("low")
    return (
        failures.where(F.col("failed") >= FAILURES)
        .withColumn("id", identity)
        .select(
            "id",
            F.col("user").alias("key"),
            F.to_json(alert, {"timeZone": "UTC"}).alias("value"),
            F.create_map(F.lit("rule"), F.lit("failed-payments"), F.lit("severity"), severity).alias("headers"),
        )
    )


def told(spark: SparkSession, log: str) -> DataFrame:
    """Return the ids of all alerts in the topic."""
    return (
        spark.read.format("tailrace")
        .schema("id STRING")
        .option("valueFormat", "json")
        .option("subscribe", "alerts")
        .load(log)
    )


ALERTS = Pipeline("alerts", pipeline, reads=("payments",), writes=("alerts",), sample=samples.payments)

if __name__ == "__main__":
    sys.exit(ALERTS.main(__doc__))
