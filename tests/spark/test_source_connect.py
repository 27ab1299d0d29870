"""The source through Spark Connect: a client that talks to a server, in a process of its own."""

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
import json, sys
from pyspark.sql import SparkSession

path, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
try:
    frame = spark.read.format("tailrace").option("subscribe", "orders").load(path)
    batch = [[row.partition, row.offset, bytes(row.value).decode()] for row in frame.collect()]
    stream = spark.readStream.format("tailrace").option("subscribe", "orders").option("startingOffsets", "earliest")
    query = (
        stream.load(path).writeStream.format("memory").queryName("rows").option("checkpointLocation", checkpoint)
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    streamed = spark.table("rows").count()
    spark.sql(f"CREATE TABLE orders_log USING tailrace OPTIONS (log '{path}', subscribe 'orders')")
    asked = spark.sql("SELECT max(offset) FROM orders_log").first()[0]
    typed = spark.read.format("tailrace").option("subscribe", "clicks").option("valueFormat", "json")
    users = [row.user for row in typed.schema("user STRING").load(path).collect()]
    try:
        spark.read.format("tailrace").option("subscribed", "orders").load(path).collect()
        told = ""
    except Exception as error:
        told = str(error)
    print(json.dumps({"batch": batch, "streamed": streamed, "asked": asked, "users": users, "told": told}))
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
    (tmp_path / "program.py").write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", tmp_path / "program.py", tmp_path / "log", tmp_path / "checkpoint"],
        check=False, capture_output=True, text=True, timeout=280, cwd=tmp_path,
        # The last makes the server take any port that is free.
        env={
            **os.environ, **launch.environment(), "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", "SPARK_TESTING": "1",
        },
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3_000:]
    found = json.loads(run.stdout.strip().splitlines()[-1])
    assert found["batch"] == [[0, 0, "a"], [0, 1, "b"]]
    assert found["streamed"] == 2
    assert found["asked"] == 1
    assert found["users"] == ["ada", None]
    assert "did you mean subscribe?" in found["told"]
