"""Orders, each with what is known about its customer: a stream of orders joined to a topic of customers.

    python -m examples.pipelines.orders --log /tmp/shop --sample 10000 --once

Reads `orders`, whose values look like {"id": 7, "customer": "c-42", "sku": "tea", "eur": 4.2}, and `customers`, keyed
by customer, of which the last record counts: {"name": "Ada", "country": "UK"}. Writes to `orders.enriched`, keyed by
customer, and what is no order to `orders.rejected`, as it came, with headers that say why and from where.
"""

from __future__ import annotations

import sys

from examples.pipelines import samples
from examples.pipelines.command import Pipeline
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody calls it so)
from pyspark.sql.streaming.readwriter import DataStreamWriter

import tailrace.spark

RECORD = "_key BINARY, _value BINARY, _topic STRING, _partition INT, _offset LONG, _timestamp TIMESTAMP"


def pipeline(spark: SparkSession, log: str) -> DataStreamWriter:
    """Return the query, ready to be started."""
    orders = (
        spark.readStream.format("tailrace")
        .schema(f"id LONG, customer STRING, sku STRING, eur DOUBLE, {RECORD}")
        .option("valueFormat", "json")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .option("groupId", "orders")
        .load(log)
    )

    write = tailrace.spark.write_batch(log, createTopics=True, partitions=4)

    # Not an ordinary join of the two: a DataFrame of customers is a snapshot, and a query that runs for weeks would
    # never see a new one. Not a join of two streams either: it would keep every customer and every order in its state,
    # and pair an order with all records of a customer. So each batch of orders reads the customers again.
    def enrich(batch: DataFrame, number: int) -> None:
        records = enriched(batch, latest_customers(batch.sparkSession, log))
        # Spark may run a batch again after a crash. The log recognizes it by its number and by the id of the query,
        # which is kept in the checkpoint, and appends nothing: both topics have a batch whole, and once.
        write(records, number)

    return orders.writeStream.foreachBatch(enrich)


def latest_customers(spark: SparkSession, log: str) -> DataFrame:
    """Return the last record of each customer; one whose last record is a tombstone has nulls, like an unknown one."""
    customers = (
        spark.read.format("tailrace")
        .schema("name STRING, country STRING, _key BINARY, _offset LONG, _corrupt_record STRING")
        .option("valueFormat", "json")
        .option("subscribe", "customers")
        .load(log)
    )
    # All records of a key are in one partition, so the last one has the highest offset. (A topic that gets more
    # partitions later moves keys: order by _timestamp then.)
    last = F.max_by(F.struct("name", "country"), "_offset").alias("last")
    known = customers.where("_corrupt_record IS NULL AND _key IS NOT NULL").groupBy("_key").agg(last)
    return known.select(F.col("_key").cast("string").alias("customer"), "last.*")


def enriched(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """Return one row per order, with the columns of a record and the topic it goes to."""
    is_order = F.col("id").isNotNull() & F.col("customer").isNotNull()
    order = F.to_json(F.struct("id", "sku", "eur", "customer", "name", "country"))
    place = F.format_string("%s[%d]@%d", "_topic", "_partition", "_offset")
    why = F.create_map(F.lit("reason"), F.lit("not an order"), F.lit("source"), place)
    return orders.join(F.broadcast(customers), "customer", "left").select(
        F.when(is_order, "orders.enriched").otherwise("orders.rejected").alias("topic"),
        F.when(is_order, F.col("customer").cast("binary")).otherwise(F.col("_key")).alias("key"),
        F.when(is_order, order.cast("binary")).otherwise(F.col("_value")).alias("value"),
        F.when(~is_order, why).alias("headers"),
        F.col("_timestamp").alias("timestamp"),
    )


ORDERS = Pipeline(
    "orders",
    pipeline,
    reads=("orders", "customers"),
    writes=("orders.enriched", "orders.rejected"),
    sample=samples.orders,
)

if __name__ == "__main__":
    sys.exit(ORDERS.main(__doc__))
