"""Streams of a real Spark that write to a log: every batch once, whatever is repeated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import tailrace
from tailrace import bulk
from tests import processes
from tests.spark import launch

APPEND_ALL_THE_TIME = """
    import sys, tailrace
    with tailrace.open(sys.argv[1], durable="50ms") as log:
        topic = log.topic("a")
        number = 1_000_000
        print("ready", flush=True)
        while not sys.stdin.closed and number < 3_000_000:
            topic.extend([str(number + at) for at in range(10)], keys=[str(number + at) for at in range(10)])
            number += 10
            import select
            if select.select([sys.stdin], [], [], 0.001)[0]:
                break
        print(number, flush=True)
"""


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        opened.topic("a", partitions=4)
        yield opened


@pytest.fixture
def inputs(tmp_path):
    """A directory of files: each one is a batch."""
    made = tmp_path / "input"
    made.mkdir()
    return made


def feed(inputs, batch, rows=100):
    text = "\n".join(json.dumps({"n": number}) for number in range(batch * rows, (batch + 1) * rows))
    (inputs / f"{batch:05d}.json.tmp").write_text(text)
    (inputs / f"{batch:05d}.json.tmp").rename(inputs / f"{batch:05d}.json")


def stream(spark, inputs):
    return (
        spark.readStream.schema("n bigint")
        .option("maxFilesPerTrigger", 1)
        .json(f"{inputs}/*.json")
        .selectExpr("cast(n AS string) AS value", "cast(n AS string) AS key")
    )


def run(made, log, checkpoint, **options):
    """Everything that is there now, batch by batch."""
    query = (
        made.writeStream.format("tailrace")
        .options(**{"topic": "a", **options})
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(log.location)
    )
    query.awaitTermination(120)
    assert query.exception() is None
    return query


def numbers(topic):
    return sorted(int(record.text) for record in topic.read())


def last_batch(checkpoint):
    return max(int(name.name) for name in (Path(checkpoint) / "commits").iterdir() if name.name.isdecimal())


def forget(checkpoint, batch):
    """As if the driver had died before it could write down that a batch was done."""
    for name in (str(batch), f".{batch}.crc"):
        (Path(checkpoint) / "commits" / name).unlink(missing_ok=True)


def test_exactly_once_over_restarts_and_replays(spark, log, inputs, checkpoint):
    for batch in range(3):
        feed(inputs, batch)
    query = run(stream(spark, inputs), log, checkpoint)
    assert numbers(log.topic("a")) == [*range(300)]
    assert bulk.applied(log, f"spark-stream:{query.id}") == 2
    # The last batch is taken for undone, and runs again with its number.
    forget(checkpoint, 2)
    again = run(stream(spark, inputs), log, checkpoint)
    assert again.id == query.id
    assert [progress["batchId"] for progress in again.recentProgress if progress["numInputRows"]] == [2]
    assert numbers(log.topic("a")) == [*range(300)]
    feed(inputs, 3)
    run(stream(spark, inputs), log, checkpoint)
    assert numbers(log.topic("a")) == [*range(400)]


def test_a_new_checkpoint_brings_the_rows_again(spark, log, inputs, tmp_path):
    feed(inputs, 0)
    for name in ("one", "two"):
        run(stream(spark, inputs), log, str(tmp_path / name), txnAppId="same")
    assert numbers(log.topic("a")) == sorted([*range(100)] * 2)


def test_empty_batches(spark, log, inputs, checkpoint):
    feed(inputs, 0)
    feed(inputs, 1)
    made = stream(spark, inputs).where("cast(value AS int) >= 150")
    run(made, log, checkpoint)
    assert numbers(log.topic("a")) == [*range(150, 200)]
    forget(checkpoint, 1)
    run(made, log, checkpoint)
    assert numbers(log.topic("a")) == [*range(150, 200)]


def test_two_queries_among_other_writers(spark, log, inputs, tmp_path):
    foreign = processes.start(APPEND_ALL_THE_TIME, log.location)
    assert foreign.stdout.readline().strip() == "ready"
    try:
        for batch in range(3):
            feed(inputs, batch)
        queries = []
        for name, shift in (("one", 0), ("two", 10_000)):
            made = stream(spark, inputs).selectExpr(f"cast(cast(value AS int) + {shift} AS string) AS value", "key")
            queries.append(
                made.writeStream.format("tailrace")
                .options(topic="a", checkpointLocation=str(tmp_path / name))
                .trigger(availableNow=True)
                .start(log.location)
            )
        for query in queries:
            query.awaitTermination(120)
            assert query.exception() is None
        for name in ("one", "two"):
            forget(tmp_path / name, 2)
        run(stream(spark, inputs), log, str(tmp_path / "one"))
        made = stream(spark, inputs).selectExpr("cast(cast(value AS int) + 10000 AS string) AS value", "key")
        run(made, log, str(tmp_path / "two"))
    finally:
        printed, complaint = foreign.communicate("\n", timeout=60)
    assert foreign.returncode == 0, complaint
    end = int(printed.split()[-1])
    assert end > 1_000_000
    assert numbers(log.topic("a")) == [*range(300), *range(10_000, 10_300), *range(1_000_000, end)]


def test_foreach_batch(spark, log, inputs, checkpoint):
    """Two writes a batch, each with a name of its own, so that a batch that comes again changes nothing."""
    log.topic("even", partitions=1)
    for batch in range(2):
        feed(inputs, batch)

    def write(batch, number):
        for topic, condition in (("a", "true"), ("even", "cast(value AS int) % 2 = 0")):
            options = {"topic": topic, "txnAppId": f"split-{topic}", "txnVersion": number}
            batch.where(condition).write.format("tailrace").mode("append").options(**options).save(log.location)

    for _ in range(2):
        query = stream(spark, inputs).writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        started = query.trigger(availableNow=True).start()
        started.awaitTermination(120)
        assert started.exception() is None
        forget(checkpoint, 1)
    assert numbers(log.topic("a")) == [*range(200)]
    assert numbers(log.topic("even")) == [*range(0, 200, 2)]


def test_a_thousand_partitions(spark, log, inputs, checkpoint):
    wide = log.topic("wide", partitions=1_000)
    feed(inputs, 0, rows=5_000)
    run(stream(spark, inputs), log, checkpoint, topic="wide")
    forget(checkpoint, 0)
    run(stream(spark, inputs), log, checkpoint, topic="wide")
    assert numbers(wide) == [*range(5_000)]
    assert len({record.partition for record in wide.read()}) > 900


def test_complete_mode_appends_the_whole_result_with_every_batch(spark, log, inputs, checkpoint):
    """As with Kafka: an updated row is one more record."""
    for batch in range(2):
        feed(inputs, batch)
    made = stream(spark, inputs).selectExpr("cast(cast(value AS int) % 3 AS string) AS key").groupBy("key").count()
    made = made.selectExpr("key", "cast(count AS string) AS value")
    for _ in range(2):
        write = made.writeStream.format("tailrace").outputMode("complete").option("checkpointLocation", checkpoint)
        query = write.option("topic", "a").trigger(availableNow=True).start(log.location)
        query.awaitTermination(120)
        assert query.exception() is None
        assert sorted((record.key, record.value) for record in log.topic("a").read()) == [
            (b"0", b"34"), (b"0", b"67"), (b"1", b"33"), (b"1", b"67"), (b"2", b"33"), (b"2", b"66"),
        ]  # fmt: skip
        forget(checkpoint, 1)


def test_update_mode_is_refused_by_spark(spark, log, inputs, checkpoint):
    """Spark lets no sink written in Python take it, and asks none, so the words are Spark's: documents quote them."""
    feed(inputs, 0)
    write = stream(spark, inputs).writeStream.format("tailrace").outputMode("update").option("topic", "a")
    query = write.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(log.location)
    with pytest.raises(Exception, match="tailrace does not support Update mode"):
        query.awaitTermination(120)
    assert numbers(log.topic("a")) == []


def test_an_aggregate_by_foreach_batch(spark, log, inputs, checkpoint):
    """Spark lets no Python sink take a stream in update mode, but each of its batches."""
    for batch in range(2):
        feed(inputs, batch)
    counts = stream(spark, inputs).selectExpr("cast(cast(value AS int) % 10 AS string) AS key").groupBy("key").count()

    def write(batch, number):
        rows = batch.selectExpr("key", "cast(count AS string) AS value").write.format("tailrace").mode("append")
        rows.options(topic="a", txnAppId="counts", txnVersion=number).save(log.location)

    query = counts.writeStream.foreachBatch(write).outputMode("update").option("checkpointLocation", checkpoint)
    started = query.trigger(availableNow=True).start()
    started.awaitTermination(120)
    assert started.exception() is None
    last = {record.key: record.value for record in log.topic("a").read()}
    assert last == {b"%d" % key: b"20" for key in range(10)}


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(launch.missing() is not None, reason=str(launch.missing()))
def test_tasks_that_fail_are_tried_again(tmp_path):
    """Needs a session that allows attempts, so it has a process of its own."""
    command = [sys.executable, "-m", "tests.spark.sink.attempts", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-5_000:]
    assert "every row once" in done.stdout
