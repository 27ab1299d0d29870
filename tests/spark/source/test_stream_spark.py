"""The streaming source on real Spark: batches, restarts, joins, groups and losses."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import tailrace
import tailrace.spark


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


class Query:
    """Starts a query over the log into a table in memory, as often as wanted, with one checkpoint."""

    def __init__(self, spark, log, checkpoint, name):
        self.spark = spark
        self.log = log
        self.checkpoint = checkpoint
        self.name = name
        self.found = []
        self.started = []

    def stream(self, schema=None, **options):
        reader = self.spark.readStream.format("tailrace").option("path", self.log.location)
        for name, value in {"subscribe": "orders", "startingOffsets": "earliest", **options}.items():
            if value is not None:
                reader = reader.option(name, value)
        return (reader if schema is None else reader.schema(schema)).load()

    def start(self, now=True, frame=None, **options):
        """Rows are kept once a batch is through, by its number, so that a repeated batch counts once."""
        self.rows = {} if not hasattr(self, "rows") else self.rows
        frame = self.stream(**options) if frame is None else frame

        def keep(batch, number):
            self.rows[number] = [tuple(row) for row in batch.collect()]

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        query = (writer.trigger(availableNow=True) if now else writer).start()
        self.started.append(query)
        return query

    def run(self, **options):
        query = self.start(**options)
        query.awaitTermination()
        return query

    @property
    def places(self):
        rows = [row for number in sorted(self.rows) for row in self.rows[number]]
        return sorted((row[2], row[3], row[4]) for row in rows)

    def stop(self):
        for query in self.started:
            query.stop()


@pytest.fixture
def query(spark, log, checkpoint, request):
    made = Query(spark, log, checkpoint, request.node.name)
    yield made
    made.stop()


def expected(topic, *ranges):
    return [(topic, partition, offset) for partition, offsets in ranges for offset in offsets]


def wait(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


class TestBatches:
    def test_available_now_then_exactly_the_rest(self, log, query):
        topic = log.topic("orders", partitions=2)
        topic.extend([b"x"] * 250, partition=0)
        topic.extend([b"x"] * 50, partition=1)
        first = query.run(maxOffsetsPerTrigger=100)
        assert query.places == expected("orders", (0, range(250)), (1, range(50)))
        # A batch has about a hundred, as both partitions get their share.
        assert [progress["numInputRows"] for progress in first.recentProgress[:2]] == [99, 99]
        topic.extend([b"x"] * 10, partition=1)
        topic.alter(partitions=3)
        topic.append(b"x", partition=2)
        query.run()
        assert query.places == expected("orders", (0, range(250)), (1, range(60)), (2, range(1)))
        query.run()
        assert len(query.places) == 311

    def test_a_query_that_runs_while_the_log_grows_and_rolls(self, log, query):
        topic = log.topic("orders", partitions=2, segment_bytes="64KiB")

        def write(partition):
            for number in range(100):
                topic.extend([f"{number:050d}"] * 20, partition=partition, durable=False)
                time.sleep(0.01)

        running = query.start(now=False)
        writers = [threading.Thread(target=write, args=(partition,)) for partition in range(2)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        log.topic("orders").append(b"last", partition=0)
        log.sync()
        running.processAllAvailable()
        assert query.places == expected("orders", (0, range(2_001)), (1, range(2_000)))

    def test_only_what_is_safe(self, log, query):
        topic = log.topic("orders", durable=False)
        topic.extend([b"x"] * 30)
        log.sync()
        # Nothing is flushed as long as this is held.
        with log.engine.store.flusher.guard:
            topic.extend([b"y"] * 20)
            query.run()
        assert query.places == expected("orders", (0, range(30)))
        log.sync()
        query.run()
        assert query.places == expected("orders", (0, range(50)))

    def test_new_topics_of_a_pattern(self, log, query):
        log.topic("sensors.a").append(b"old")
        running = query.start(now=False, subscribe="sensors.*", startingOffsets=None)
        running.processAllAvailable()
        log.topic("sensors.b").extend([b"x"] * 3)
        log.topic("sensors.a").append(b"new")
        running.processAllAvailable()
        assert query.places == [("sensors.a", 0, 1), *expected("sensors.b", (0, range(3)))]

    def test_how_far_behind_it_is(self, log, query):
        topic = log.topic("orders")
        topic.extend([b"x"] * 10)
        running = query.run(maxOffsetsPerTrigger=4)
        for progress, read in zip(running.recentProgress, (4, 8, 10), strict=False):
            (source,) = progress["sources"]
            end, latest = json.loads(source["endOffset"]), json.loads(source["latestOffset"])
            assert end["orders"] == {"0": read}
            assert latest["orders"] == {"0": 10}
            # As it is worked out of the progress of Kafka's source.
            assert sum(latest[topic][index] - end[topic][index] for topic in end for index in end[topic]) == 10 - read

    def test_its_progress_told_as_kafkas(self, spark, log, query):
        topic = log.topic("orders")
        topic.extend([b"x"] * 10)
        told = []
        listener = tailrace.spark.ProgressListener(told.append)
        spark.streams.addListener(listener)
        try:
            running = query.run(maxOffsetsPerTrigger=4)
            wait(lambda: len(told) >= 3)
        finally:
            spark.streams.removeListener(listener)
        first = told[0].sources[0]
        assert json.loads(first.endOffset) == {"orders": {"0": 4}}
        assert (first.metrics["maxOffsetsBehindLatest"], first.metrics["avgOffsetsBehindLatest"]) == ("6", "6.0")
        assert first.description == "tailrace[orders]"
        assert told[0].runId == running.lastProgress.runId
        assert tailrace.spark.progress(running)["sources"][0]["metrics"]["maxOffsetsBehindLatest"] == "0"
        assert tailrace.spark.lag(running) == {"orders": {0: 0}}
        topic.append(b"x")
        assert tailrace.spark.lag(running, log) == {"orders": {0: 1}}

    def test_json_in_a_window_with_a_watermark(self, spark, log, query):
        from pyspark.sql.functions import window

        topic = log.topic("clicks")
        topic.extend([json.dumps({"user": f"u{n % 3}", "at": f"2026-11-15T20:{n:02d}:00Z"}) for n in range(30)])
        topic.append("broken")
        frame = query.stream("user STRING, at TIMESTAMP", subscribe="clicks", valueFormat="json")
        counted = frame.withWatermark("at", "1 minute").groupBy("user", window("at", "10 minutes")).count()
        query.run(frame=counted.select("user", "window.start", "count"))
        rows = [row for number in sorted(query.rows) for row in query.rows[number]]
        assert sorted((row[0], row[2]) for row in rows if row[0]) == sorted(
            (f"u{user}", sum(n % 3 == user for n in range(at, at + 10))) for user in range(3) for at in (0, 10)
        )

    def test_a_stream_joined_with_a_batch(self, spark, log, query):
        log.topic("customers").extend(["Ada", "Grace"], keys=["1", "2"])
        log.topic("orders").extend(["a", "b", "c"], keys=["2", "1", "2"])
        customers = (
            spark.read.format("tailrace").option("subscribe", "customers").load(log.location)
            .selectExpr("key", "CAST(value AS STRING) AS name")
        )  # fmt: skip
        orders = query.stream().selectExpr("key", "CAST(value AS STRING) AS item")
        query.run(frame=orders.join(customers, "key").select("item", "name"))
        assert sorted(query.rows[0]) == [("a", "Grace"), ("b", "Ada"), ("c", "Grace")]


class TestRestart:
    def test_after_a_batch_that_failed(self, log, query):
        topic = log.topic("orders")
        topic.extend([b"x"] * 10)
        frame = query.stream(startingOffsets="earliest", maxOffsetsPerTrigger=6)
        failed = []

        def fail_once(batch, number):
            rows = [tuple(row) for row in batch.collect()]
            if number == 1 and not failed:
                failed.append(rows)
                raise RuntimeError("as if the driver died here")
            query.rows[number] = rows

        query.rows = {}
        for _ in range(2):
            writer = frame.writeStream.foreachBatch(fail_once).option("checkpointLocation", query.checkpoint)
            running = writer.trigger(availableNow=True).start()
            query.started.append(running)
            if failed:
                running.awaitTermination()
            else:
                with pytest.raises(Exception, match="as if the driver died"):
                    running.awaitTermination()
            topic.append(b"later")
        assert query.rows[1] == failed[0]
        assert query.places == expected("orders", (0, range(11)))

    def test_the_first_batch_again_after_a_crash(self, log, query):
        """A query from the end whose first batch was not committed reads it again, not what is the end by then."""
        topic = log.topic("orders", partitions=1)
        # A batch is waited for until it has records, so that the first one is not empty.
        frame = query.stream(startingOffsets=None, since="-1h")
        topic.extend([b"x"] * 5)
        query.run(frame=frame)
        assert query.places == expected("orders", (0, range(5)))
        (Path(query.checkpoint) / "commits" / "0").unlink()
        for leftover in (Path(query.checkpoint) / "commits").glob(".0.crc"):
            leftover.unlink()
        topic.extend([b"x"] * 5)
        query.rows = {}
        query.run(startingOffsets="latest")
        assert query.rows[0][0][4] == 0
        assert query.places == expected("orders", (0, range(10)))


class TestCheckpointOfKafka:
    def test_is_refused_or_taken_over_when_told_so(self, log, query):
        """The offsets of Kafka's source are those of a log without what says which log it is."""
        topic = log.topic("orders")
        topic.extend([b"x"] * 100)
        query.run()
        offsets = Path(query.checkpoint) / "offsets"
        written = (offsets / "0").read_text().splitlines()
        (offsets / "0").write_text("\n".join([*written[:-1], '{"orders":{"0":100}}']))
        (offsets / ".0.crc").unlink(missing_ok=True)
        topic.extend([b"x"] * 50)
        query.rows = {}
        with pytest.raises(Exception) as caught:
            query.run()
        assert "The checkpoint of this query was not made by reading this log" in str(caught.value)
        assert "startFromKafkaOffsets set to true" in str(caught.value)
        query.run(startFromKafkaOffsets="true")
        assert query.places == expected("orders", (0, range(100, 150)))
        topic.append(b"x")
        query.run()
        assert query.places == expected("orders", (0, range(100, 151)))


class TestLoss:
    def setup_loss(self, log, query):
        topic = log.topic("orders", segment_bytes="4KiB")
        for _ in range(10):
            topic.extend([b"x" * 100] * 20)
        query.run()
        for _ in range(10):
            topic.extend([b"x" * 100] * 20)
        topic.alter(retain_bytes="8KiB")
        log.vacuum()
        return topic.offsets()[0].earliest

    def test_is_an_error(self, log, query):
        earliest = self.setup_loss(log, query)
        assert 200 < earliest < 400
        with pytest.raises(Exception) as caught:
            query.run()
        told = str(caught.value)
        assert f"The records 200 to {earliest - 1} of orders[0] are gone: retention or a trim removed them" in told
        assert "failOnDataLoss" in told
        query.run(failOnDataLoss="false")
        assert query.places == expected("orders", (0, [*range(200), *range(earliest, 400)]))

    def test_retention_under_a_query_that_keeps_up(self, log, query):
        topic = log.topic("orders", segment_bytes="4KiB", retain="1ms", keep_unread=["report"])
        running = query.start(now=False, groupId="report")
        for _ in range(15):
            topic.extend([b"x" * 100] * 20)
            running.processAllAvailable()
            log.vacuum()
        assert query.places == expected("orders", (0, range(300)))
        wait(lambda: log.group("report").lag_records == 0)
        log.vacuum()
        assert topic.offsets()[0].earliest > 200

    def test_a_dropped_topic(self, log, query):
        log.topic("orders").append(b"x")
        log.topic("clicks").append(b"x")
        query.run(subscribe="orders,clicks")
        log.topic("orders").drop()
        with pytest.raises(Exception) as caught:
            query.run(subscribe="orders,clicks")
        assert "The topic 'orders' was dropped" in str(caught.value)
        log.topic("clicks").append(b"x")
        query.run(subscribe="orders,clicks", failOnDataLoss="false")
        assert query.places == [("clicks", 0, 0), ("clicks", 0, 1), ("orders", 0, 0)]


def test_a_query_shows_as_a_group(log, query):
    topic = log.topic("orders", partitions=2)
    topic.extend([b"x"] * 10, partition=0)
    running = query.start(now=False, groupId="report")
    running.processAllAvailable()
    wait(lambda: log.group("report").lag_records == 0)
    info = log.group("report")
    assert info.topics == ("orders",)
    assert [each.position for each in info.partitions] == [10, 0]
    running.stop()
    topic.extend([b"x"] * 4, partition=1)
    assert log.group("report").lag_records == 4
    told = subprocess.run(
        [sys.executable, "-m", "tailrace", "group", "show", "report", "-L", log.location, "-o", "json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    shown = json.loads(told.stdout)
    assert (shown["topics"], shown["lag_records"]) == (["orders"], 4)
    assert [(each["position"], each["latest"], each["lag_records"]) for each in shown["partitions"]] == [
        (10, 10, 0),
        (0, 4, 4),
    ]


def test_streams_into_a_table_in_memory(spark, log, query):
    log.topic("orders").extend([b"x"] * 10)
    running = (
        query.stream("offset long").writeStream.format("memory").queryName("offsets_in_memory")
        .option("checkpointLocation", query.checkpoint).trigger(availableNow=True).start()
    )  # fmt: skip
    query.started.append(running)
    running.awaitTermination()
    assert spark.table("offsets_in_memory").count() == 10
