"""The source and write_batch through Spark Connect: a client that talks to a server, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

import tailrace
from tests.spark import launch

PROGRAM = """
import json, os, sys, time
import tailrace.spark
from pyspark.sql import SparkSession
from tailrace.spark import write_batch

path, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
try:
    frame = spark.read.format("tailrace").option("subscribe", "orders").load(path)
    batch = [[row.partition, row.offset, bytes(row.value).decode()] for row in frame.collect()]
    heard = []
    listener = tailrace.spark.ProgressListener(lambda progress: heard.append(progress.sources[0].endOffset))
    spark.streams.addListener(listener)
    stream = spark.readStream.format("tailrace").option("subscribe", "orders").option("startingOffsets", "earliest")
    query = (
        stream.load(path).writeStream.format("memory").queryName("rows").option("checkpointLocation", checkpoint)
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    streamed = spark.table("rows").count()
    end = time.monotonic() + 60
    while not heard and time.monotonic() < end:
        time.sleep(0.05)
    spark.streams.removeListener(listener)
    lag = [tailrace.spark.lag(query), tailrace.spark.lag(query, path)]
    metrics = tailrace.spark.progress(query).sources[0].metrics
    spark.sql(f"CREATE TABLE orders_log USING tailrace OPTIONS (log '{path}', subscribe 'orders')")
    asked = spark.sql("SELECT max(offset) FROM orders_log").first()[0]
    typed = spark.read.format("tailrace").option("subscribe", "clicks").option("valueFormat", "json")
    users = [row.user for row in typed.schema("user STRING").load(path).collect()]
    try:
        spark.read.format("tailrace").option("subscribed", "orders").load(path).collect()
        told = ""
    except Exception as error:
        told = str(error)

    # Batches of foreachBatch: one that comes again is known by the id of its query, however that is found.
    def copy(function):
        words = spark.readStream.format("tailrace").options(subscribe="words", startingOffsets="earliest").load(path)
        write = words.select("value").writeStream.foreachBatch(function).outputMode("update")
        write.option("checkpointLocation", checkpoint + "-copy").trigger(availableNow=True).start().awaitTermination()

    alone = write_batch(path, topic="copy", createTopics=True)
    beside = write_batch(path, topic="copy", checkpointLocation=checkpoint + "-copy")

    def function(batch, number):
        beside(batch.where("value IS NOT NULL"), number)

    copy(alone)
    with tailrace.open(path) as log:
        log.topic("words").append("three")
    for name in ("0", ".0.crc"):
        os.remove(f"{checkpoint}-copy/commits/{name}")
    rate = spark.readStream.format("rate").load().writeStream.format("noop")
    other = rate.option("checkpointLocation", checkpoint + "-other").trigger(processingTime="1 hour").start()
    try:
        copy(alone)
        which = ""
    except Exception as error:
        which = str(error)
    copy(function)
    other.stop()
    with tailrace.open(path, "r") as log:
        copied = [record.text for record in log.topic("copy").read()]
    found = {"batch": batch, "streamed": streamed, "asked": asked, "users": users, "told": told}
    found |= {"copied": copied, "which": which}
    print(json.dumps({**found, "lag": lag, "metrics": metrics, "heard": heard}))
finally:
    spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_batch_and_stream_over_connect(tmp_path):
    reason = launch.missing()
    if reason is not None:
        pytest.skip(reason)
    for module in ("grpc", "grpc_status", "pandas", "zstandard"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f'Spark Connect needs {module}: pip install "pyspark[connect]"')
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders", partitions=1).extend(["a", "b"])
        log.topic("clicks", partitions=1).extend(['{"user": "ada"}', "oops"])
        log.topic("words", partitions=1).extend(["one", "two"])
    (tmp_path / "program.py").write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", tmp_path / "program.py", tmp_path / "log", tmp_path / "checkpoint"],
        check=False, capture_output=True, text=True, timeout=280, cwd=tmp_path,
        # The last makes the server take any port that is free.
        env={**os.environ, **launch.environment(), "SPARK_TESTING": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3_000:]
    found = json.loads(run.stdout.strip().splitlines()[-1])
    assert found["batch"] == [[0, 0, "a"], [0, 1, "b"]]
    assert found["streamed"] == 2
    assert found["asked"] == 1
    assert found["lag"] == [{"orders": {"0": 0}}] * 2
    assert json.loads(found["heard"][0]) == {"orders": {"0": 2}}
    assert found["metrics"]["maxOffsetsBehindLatest"] == "0"
    assert found["users"] == ["ada", None]
    assert "did you mean subscribe?" in found["told"]
    assert found["copied"] == ["one", "two", "three"]
    assert "name the checkpoint of the query, write_batch(..., checkpointLocation=" in found["which"]
