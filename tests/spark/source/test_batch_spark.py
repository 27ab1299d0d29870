"""The batch source on real Spark: columns, SQL, options, growth and loss under a query."""

from __future__ import annotations

import json
import threading

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import tailrace

TIME = 1_763_200_000_000_000


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


@pytest.fixture
def load(spark, log):
    """A DataFrame over the log; options as texts."""

    def load(schema=None, **options):
        reader = spark.read.format("tailrace").option("path", log.location)
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


def places(frame):
    return [tuple(row) for row in frame.select("topic", "partition", "offset").collect()]


def streamed(spark, log, checkpoint, **options):
    """How many rows each batch of a stream over all there is has."""
    reader = spark.readStream.format("tailrace").option("startingOffsets", "earliest")
    for name, value in options.items():
        reader = reader.option(name, value)
    sizes = []
    writer = reader.load(log.location).writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    return sizes


class TestReading:
    def test_expired_and_deleted_records_are_no_rows(self, spark, log, load, tmp_path):
        topic = log.topic("orders", mutable=True)
        topic.extend([b"%d" % number for number in range(100)])
        topic.extend([b"short"] * 50, ttl=0.001)
        topic.extend([b"long"] * 50, ttl="1h")
        topic.delete(range(0, 100, 2))
        wanted = [("orders", 0, at) for at in (*range(1, 100, 2), *range(150, 200))]
        assert places(load(subscribe="orders")) == wanted
        assert sum(streamed(spark, log, str(tmp_path / "one"), subscribe="orders")) == 100
        log.vacuum()
        assert places(load(subscribe="orders")) == wanted
        assert sum(streamed(spark, log, str(tmp_path / "two"), subscribe="orders")) == 100

    def test_columns_as_kafka_with_everything_a_record_can_have(self, log, load):
        topic = log.topic("orders", partitions=2)
        topic.append("one", key="k", headers={"a": b"1", "b": b"2"}, timestamp=TIME, partition=0)
        topic.append(None, key="gone", timestamp=TIME, partition=0)
        topic.append(b"", timestamp=TIME, partition=1)
        frame = load(subscribe="orders", includeHeaders=True)
        assert frame.schema.simpleString() == (
            "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
            "timestampType:int,headers:array<struct<key:string,value:binary>>>"
        )
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        assert [row["value"] for row in rows] == [b"one", None, b""]
        assert [row["key"] for row in rows] == [b"k", b"gone", None]
        assert rows[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]
        assert rows[1]["headers"] is None
        assert {row["timestamp"].timestamp() for row in rows} == {TIME / 1e6}
        assert [(row["topic"], row["partition"], row["offset"], row["timestampType"]) for row in rows] == [
            ("orders", 0, 0, 0),
            ("orders", 0, 1, 0),
            ("orders", 1, 0, 0),
        ]

    def test_a_projection(self, log, load):
        log.topic("orders").extend([f"{n}" for n in range(100)], keys=["k"] * 100)
        frame = load("offset long NOT NULL, VALUE binary", subscribe="orders")
        assert frame.columns == ["offset", "VALUE"]
        assert frame.selectExpr("sum(offset)", "sum(CAST(CAST(value AS STRING) AS INT))").first() == (4950, 4950)
        assert load("partition int", subscribe="orders").count() == 100

    def test_many_records_and_types_in_one_query(self, log, load):
        topic = log.topic("orders", partitions=4, compress="zstd", segment_bytes="1MiB")
        for partition in range(4):
            for at in range(0, 30_000, 5_000):
                topic.extend([f"{n:050d}" for n in range(at, at + 5_000)], partition=partition, durable=False)
        log.sync()
        frame = load(subscribe="orders")
        found = frame.groupBy("partition").agg({"offset": "max", "value": "count"}).collect()
        assert sorted(map(tuple, found)) == [(partition, 29_999, 30_000) for partition in range(4)]
        assert frame.selectExpr("count(DISTINCT partition, offset)", "sum(length(value))").first() == (
            120_000,
            6_000_000,
        )

    def test_topics_by_wildcard_and_expression(self, log, load):
        for name in ("sensors.a", "sensors.b", "sensors.b.c", "other"):
            log.topic(name).append(name)
        assert [topic for topic, _, _ in places(load(subscribe="sensors.*"))] == ["sensors.a", "sensors.b"]
        assert [topic for topic, _, _ in places(load(subscribePattern="(other|.*c)"))] == ["other", "sensors.b.c"]

    def test_an_empty_topic_and_none_at_all(self, spark, log, load, checkpoint):
        log.topic("orders", partitions=3)
        frame = load(subscribe="orders")
        assert frame.count() == 0
        assert frame.collect() == []
        assert sum(streamed(spark, log, checkpoint, subscribe="orders, none.*")) == 0

    def test_a_thousand_partitions(self, spark, log, load, checkpoint):
        topic = log.topic("orders", partitions=1_000)
        topic.extend([f"{n}" for n in range(3_000)], keys=[f"{n}" for n in range(3_000)], durable=False)
        log.sync()
        frame = load(subscribe="orders")
        assert frame.rdd.getNumPartitions() == 1
        assert frame.selectExpr("count(*)", "count(DISTINCT partition, offset)").first() == (3_000, 3_000)
        assert streamed(spark, log, checkpoint, subscribe="orders") == [3_000]

    def test_one_partition_is_read_by_several_tasks(self, log, load):
        log.topic("orders").extend([b"x" * 200] * 50_000)
        assert load(subscribe="orders").rdd.getNumPartitions() > 1
        frame = load(subscribe="orders", minPartitions=5)
        assert frame.rdd.getNumPartitions() == 5
        assert frame.selectExpr("count(DISTINCT offset)", "max(offset)").first() == (50_000, 49_999)
        most = load(subscribe="orders", maxRecordsPerPartition=20_000).rdd.glom().map(len).collect()
        assert max(most) <= 20_000
        assert sum(most) == 50_000

    def test_where_to_begin_and_to_end(self, log, load):
        topic = log.topic("orders", partitions=2)
        for partition in range(2):
            topic.extend([b"x"] * 10, timestamps=[TIME + n * 1_000_000 for n in range(10)], partition=partition)
        frame = load(
            subscribe="orders", startingOffsets='{"orders": {"0": 8, "1": -2}}',
            endingOffsets='{"orders": {"0": -1, "1": 2}}',
        )  # fmt: skip
        assert places(frame) == [("orders", 0, 8), ("orders", 0, 9), ("orders", 1, 0), ("orders", 1, 1)]
        milliseconds = TIME // 1_000
        frame = load(subscribe="orders", startingTimestamp=milliseconds + 4_000, endingTimestamp=milliseconds + 5_000)
        assert places(frame) == [("orders", 0, 4), ("orders", 1, 4)]
        frame = load(
            assign='{"orders": [1]}', startingOffsetsByTimestamp=json.dumps({"orders": {"1": milliseconds + 8_500}})
        )
        assert places(frame) == [("orders", 1, 9)]
        assert load(subscribe="orders", since="-1m").count() == 0
        topic.append(b"now", partition=1)
        assert places(load(subscribe="orders", since="-1m")) == [("orders", 1, 10)]
        assert load(subscribe="orders", startingOffsets="earliest", endingOffsets="latest").count() == 21

    def test_a_query_ported_from_kafka(self, spark, log):
        log.topic("orders").append("x")
        frame = (
            spark.read.format("tailrace")
            .option("kafka.bootstrap.servers", "broker:9092")
            .option("kafka.security.protocol", "SSL")
            .option("groupIdPrefix", "me")
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .load(log.location)
        )
        assert frame.selectExpr("CAST(value AS STRING)").first()[0] == "x"


class TestJson:
    SCHEMA = "user STRING, n INT, at TIMESTAMP, tags ARRAY<STRING>, _offset LONG, _corrupt_record STRING"

    def test_fields_with_bad_values_among_them(self, log, load):
        topic = log.topic("clicks")
        values = [
            '{"user": "a", "n": 1, "at": "2026-11-15T20:00:00Z", "tags": ["x", "y"], "other": 1}',
            '{"user": "b", "n": "many"}',
            "not json",
            '{"user": "c"}',
        ]
        topic.extend([*values, None], keys=["k"] * 5)
        rows = load(self.SCHEMA, subscribe="clicks", valueFormat="json").collect()
        assert [row.user for row in rows] == ["a", "b", None, "c", None]
        assert [row.n for row in rows] == [1, None, None, None, None]
        assert rows[0].tags == ["x", "y"]
        assert rows[0]["at"].timestamp() == 1_794_772_800
        assert [row._offset for row in rows] == [0, 1, 2, 3, 4]
        assert [row._corrupt_record for row in rows] == [None, values[1], values[2], None, None]
        named = {"metadataPrefix": "meta.", "columnNameOfCorruptRecord": "bad"}
        rows = load("user STRING, `meta.key` BINARY, bad STRING", subscribe="clicks", valueFormat="json", **named)
        assert [tuple(row) for row in rows.collect()[1:3]] == [("b", b"k", None), (None, b"k", values[2])]

    def test_the_same_as_from_json(self, spark, log, load):
        schema = "a STRING, b LONG, c DOUBLE, d BOOLEAN, e STRUCT<x: INT, y: ARRAY<DOUBLE>>, g DATE, h DECIMAL(8, 2)"
        values = [
            '{"a": "x", "b": 1, "c": 1.5, "d": true, "e": {"x": 1, "y": [1, 2.5]}, "g": "2026-11-15", "h": 1.25}',
            '{"a": 5, "b": 1.5, "c": 3, "d": null, "e": null, "g": "2026-11-15", "h": "1.255"}',
            "{}",
            "nonsense",
            '{"a": {"nested": [1, 2]}, "b": 9223372036854775808, "e": {"x": 1}}',
            '{"a": "\\u00e9", "b": -7, "c": "NaN", "h": 12345678.9}',
            None,
        ]
        log.topic("clicks").extend(values, keys=["k"] * len(values))
        ours = load(schema, subscribe="clicks", valueFormat="json").collect()
        parsed = f.from_json(f.col("value").cast("string"), schema).alias("v")
        theirs = load(subscribe="clicks").select(parsed).select("v.*").collect()
        assert [str(row) for row in ours] == [str(row) for row in theirs]


class TestSql:
    @pytest.fixture
    def table(self, spark, log):
        log.topic("orders").extend(['{"amount": 5}', '{"amount": 7}'])
        yield "orders_log"
        spark.sql("DROP TABLE IF EXISTS orders_log")

    def test_a_table(self, spark, log, table):
        spark.sql(f"CREATE TABLE {table} USING tailrace OPTIONS (log '{log.location}', subscribe 'orders')")
        query = f"SELECT sum(get_json_object(CAST(value AS STRING), '$.amount')) FROM {table} WHERE offset >= 1"
        assert spark.sql(query).first()[0] == 7
        # Each query of a table sees what is there by then.
        log.topic("orders").append('{"amount": 1}')
        assert spark.sql(query).first()[0] == 8
        assert spark.table(table).where("offset = 0").count() == 1
        assert spark.sql(f"SELECT * FROM {table} WITH (maxRecordsPerPartition = '1')").rdd.getNumPartitions() == 3

    def test_a_table_at_a_location(self, spark, log, table):
        spark.sql(
            f"CREATE TABLE {table} USING tailrace OPTIONS (subscribe 'orders', includeHeaders 'true') "
            f"LOCATION '{log.location}' COMMENT 'ours' TBLPROPERTIES ('team' = 'shop')"
        )
        assert spark.table(table).columns[-1] == "headers"
        assert spark.table(table).count() == 2
        spark.sql(f"DROP TABLE {table}")
        spark.sql(f"CREATE TABLE {table} USING tailrace OPTIONS (path '{log.location}', subscribe 'orders')")
        assert spark.table(table).count() == 2

    def test_a_table_as_a_stream(self, spark, log, table, query_of):
        spark.sql(
            f"CREATE TABLE {table} USING tailrace "
            f"OPTIONS (log '{log.location}', subscribe 'orders', startingOffsets 'earliest')"
        )
        assert query_of(spark.readStream.table(table)) == 2

    def test_a_slip_in_a_table(self, spark, log, table):
        with pytest.raises(Exception, match="did you mean subscribe"):
            spark.sql(f"CREATE TABLE {table} USING tailrace OPTIONS (log '{log.location}', subscribed 'orders')")

    def test_a_table_with_columns_needs_its_options_again(self, spark, log, table):
        options = f"log '{log.location}', subscribe 'orders', valueFormat 'json'"
        spark.sql(f"CREATE TABLE {table} (amount INT, _offset BIGINT) USING tailrace OPTIONS ({options})")
        with pytest.raises(Exception, match="Spark keeps the options of a table with columns to itself"):
            spark.table(table).collect()
        chosen = f"log = '{log.location}', subscribe = 'orders', valueFormat = 'json'"
        rows = spark.sql(f"SELECT * FROM {table} WITH ({chosen})").collect()
        assert [tuple(row) for row in rows] == [(5, 0), (7, 1)]

    def test_a_view_of_fields(self, spark, log, table):
        spark.sql(
            "CREATE OR REPLACE TEMPORARY VIEW amounts (amount INT, _offset BIGINT) USING tailrace "
            f"OPTIONS (path '{log.location}', subscribe 'orders', valueFormat 'json')"
        )
        assert [tuple(row) for row in spark.sql("SELECT * FROM amounts").collect()] == [(5, 0), (7, 1)]
        spark.catalog.dropTempView("amounts")

    @pytest.fixture
    def query_of(self, checkpoint):
        """How many rows a stream gives until now."""

        def run(frame):
            rows = []
            writer = frame.writeStream.foreachBatch(lambda batch, _: rows.append(batch.count()))
            writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
            return sum(rows)

        return run

    def test_a_view_used_twice_gives_the_same_rows(self, log, load):
        """What a source that takes filters gets wrong."""
        log.topic("orders").extend([f"{n}" for n in range(200)])
        frame = load(subscribe="orders")
        assert frame.count() == 200
        assert frame.where("offset < 20").count() == 20
        assert frame.count() == 200
        assert frame.where("offset >= 190").union(frame.where("offset < 10")).count() == 20

    def test_registered_by_hand_as_well(self, spark, log):
        from tailrace.spark import register

        register(spark)
        log.topic("orders").append("x")
        assert spark.read.format("tailrace").option("subscribe", "orders").load(log.location).count() == 1


class TestChanges:
    def test_a_log_that_grows_is_seen_by_the_next_load(self, log, load):
        topic = log.topic("orders")
        topic.extend([b"x"] * 5)
        frame = load(subscribe="orders")
        assert frame.count() == 5
        topic.extend([b"x"] * 5)
        assert frame.count() == 5
        assert load(subscribe="orders").count() == 10

    def test_a_log_that_grows_rolls_and_is_vacuumed_under_queries(self, log, load):
        """A query has every record from where it begins to the end at its time, or fails and says what was removed."""
        topic = log.topic("orders", partitions=2, segment_bytes="16KiB", retain_bytes="6MiB")
        for number in range(70):
            topic.extend([b"x" * 100] * 1_000, partition=number % 2, durable=False)
        log.sync()
        # The log removes by itself what is too much, perhaps in this very moment.
        self.check(load, None, failOnDataLoss="false")
        stop = threading.Event()

        def write(partition):
            while not stop.wait(0.02):
                topic.extend([b"x" * 100] * 10, partition=partition, durable=False)

        def vacuum():
            while not stop.wait(0.02):
                log.vacuum()

        threads = [threading.Thread(target=write, args=(partition,)) for partition in range(2)]
        threads.append(threading.Thread(target=vacuum))
        for thread in threads:
            thread.start()
        told = []
        try:
            for _ in range(2):
                # Near the end nothing is removed so soon.
                recent = {str(index): each.latest - 20_000 for index, each in topic.offsets().items()}
                self.check(load, recent, startingOffsets=json.dumps({"orders": recent}))
                self.check(load, None, failOnDataLoss="false")
                try:
                    self.check(load, {})
                except PySparkException as error:
                    told.append(str(error))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert all("were removed, by retention or a trim" in each for each in told)
        log.sync()
        # Nothing is left to be removed while the last query reads.
        log.vacuum()
        ends = topic.offsets().values()
        assert all(each.earliest > 0 for each in ends)
        assert load(subscribe="orders").count() == sum(each.latest - each.earliest for each in ends)

    def check(self, load, begin, **options):
        """Each row once; without a gap, unless `begin` is None, and from there on."""
        frame = load("partition int, offset long", subscribe="orders", **options).groupBy("partition")
        rows = frame.agg(f.min("offset"), f.max("offset"), f.count("offset"), f.count_distinct("offset")).collect()
        assert len(rows) == 2
        for partition, first, last, count, distinct in rows:
            assert count == distinct > 1_000
            if begin is not None:
                assert first == begin.get(str(partition), first)
                assert last - first == count - 1
