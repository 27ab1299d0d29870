"""Clicks, parsed and sorted: valid ones to `clicks.clean`, unreadable ones to `clicks.rejected`.

Only temporary views and sinks: a table would need a catalog that outlives the run, and a log is one already.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
LOG = str(spark.conf.get("spark.shop.log"))  # spark-pipeline.yml says it
IN_ORDER = "user IS NOT NULL AND at IS NOT NULL"


@dp.temporary_view
def clicks() -> DataFrame:
    """Return the topic as a stream of columns; those that begin with `_` belong to the record."""
    return (
        spark.readStream.format("tailrace")
        .schema("user STRING, page STRING, at TIMESTAMP, _key BINARY, _value BINARY, _timestamp TIMESTAMP")
        .option("valueFormat", "json")
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .load(LOG)
    )


dp.create_sink("clean", "tailrace", {"log": LOG, "topic": "clicks.clean", "createTopics": "true", "partitions": "4"})
dp.create_sink("rejected", "tailrace", {"log": LOG, "topic": "clicks.rejected", "createTopics": "true"})


@dp.append_flow(target="clean")
def keep() -> DataFrame:
    """Return valid clicks in one form: lower case names, times in UTC, a page always."""
    click = "named_struct('user', lower(user), 'page', coalesce(page, '/'), 'at', at)"
    value = f"to_json({click}, map('timeZone', 'UTC')) AS value"
    return spark.readStream.table("clicks").where(IN_ORDER).selectExpr("lower(user) AS key", value, "at AS timestamp")


@dp.append_flow(target="rejected")
def reject() -> DataFrame:
    """Return unreadable values as they came, for a person to look at."""
    unreadable = spark.readStream.table("clicks").where(f"NOT ({IN_ORDER})")
    return unreadable.selectExpr("_key AS key", "_value AS value", "_timestamp AS timestamp")
