"""Sessions: what each visitor did between two pauses of half an hour, out of a topic of clicks.

    python -m examples.pipelines.sessions --log /tmp/shop --sample 10000 --once

Reads `clicks`, whose values look like {"user": "ada", "page": "/tea", "at": "2026-11-16T09:30:00Z"}, and writes to
`sessions`, keyed by user. Each session is written once, as soon as no click can belong to it any more.
"""

from __future__ import annotations

import sys

from examples.pipelines import samples
from examples.pipelines.command import Pipeline
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody calls it so)
from pyspark.sql.streaming.readwriter import DataStreamWriter

PAUSE = "30 minutes"
# How late a click may arrive. A larger value loses fewer late clicks, and sessions come later by as much.
LATENESS = "10 minutes"


def pipeline(spark: SparkSession, log: str) -> DataStreamWriter:
    """Return the query, ready to be started."""
    clicks = (
        spark.readStream.format("tailrace")
        .schema("user STRING, page STRING, at TIMESTAMP, _corrupt_record STRING")
        .option("valueFormat", "json")
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        # The maximum of clicks in memory at once, also when a year of them is waiting.
        .option("maxOffsetsPerTrigger", 1_000_000)
        # Shows the query to `tailrace group show sessions`, with its lag.
        .option("groupId", "sessions")
        .load(log)
    )
    return (
        sessions(clicks)
        .writeStream.format("tailrace")
        .outputMode("append")
        .option("topic", "sessions")
        .option("createTopics", True)
        .option("partitions", 4)
        .option("path", log)
    )


def sessions(clicks: DataFrame) -> DataFrame:
    """Return one row per session, with the columns of a record."""
    readable = F.col("user").isNotNull() & F.col("at").isNotNull()
    session = F.session_window("at", PAUSE).alias("session")
    told = F.struct("user", F.col("session.start").alias("from"), "until", "clicks", "pages")
    return (
        # A value that is no click never stops the query: it is counted, shown with the batch, and stays in its topic.
        clicks.observe("clicks", F.count_if(~readable).alias("unreadable"))
        .where(readable)
        .withWatermark("at", LATENESS)
        .groupBy("user", session)
        .agg(F.count("*").alias("clicks"), F.max("at").alias("until"), F.size(F.collect_set("page")).alias("pages"))
        .select(
            F.col("user").alias("key"),
            F.to_json(told, {"timeZone": "UTC"}).alias("value"),
            # The time of the record is that of the last click, so that reading by time finds sessions by theirs.
            F.col("until").alias("timestamp"),
        )
    )


SESSIONS = Pipeline("sessions", pipeline, reads=("clicks",), writes=("sessions",), sample=samples.clicks)

if __name__ == "__main__":
    sys.exit(SESSIONS.main(__doc__))
