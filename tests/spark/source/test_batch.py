"""The batch source without a JVM: what is planned and read, from every place that can be named."""

from __future__ import annotations

import os
import shutil

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import tailrace
from tailrace.errors import NotALogError, TopicNotFoundError
from tests.spark.plain import batch, fill, read_tasks, source

# An even number of milliseconds.
TIME = 1_763_200_000_000_000


class TestColumns:
    def test_all_of_them(self, log, path):
        topic = log.topic("orders", partitions=2)
        topic.append("one", key="k", headers={"a": b"1", "b": b"2"}, timestamp=TIME, partition=1)
        topic.append(None, key="gone", timestamp=TIME + 5, partition=1)
        topic.append(b"", timestamp=TIME, partition=1)
        rows = batch(path=path, subscribe="orders", includeHeaders=True).to_pylist()
        assert [{**row, "timestamp": row["timestamp"].timestamp()} for row in rows] == [
            {
                "key": b"k", "value": b"one", "topic": "orders", "partition": 1, "offset": 0, "timestamp": TIME / 1e6,
                "timestampType": 0, "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}],
            },
            {
                "key": b"gone", "value": None, "topic": "orders", "partition": 1, "offset": 1,
                "timestamp": (TIME + 5) / 1e6, "timestampType": 0, "headers": None,
            },
            {
                "key": None, "value": b"", "topic": "orders", "partition": 1, "offset": 2, "timestamp": TIME / 1e6,
                "timestampType": 0, "headers": None,
            },
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "ddl",
        [
            "value binary",
            "offset bigint not null",
            "topic string",
            "partition int not null",
            "timestampType int",
            "headers array<struct<key: string, value: binary>>",
            "timestamp timestamp, key binary, Topic string",
            "partition int, value binary, offset bigint, headers array<struct<key: string, value: binary>>, key binary",
        ],
    )
    def test_a_schema_is_a_projection(self, log, path, ddl):
        topic = log.topic("orders", partitions=2)
        fill(topic, 50, partition=0)
        topic.append("x", headers={"h": b"1"}, partition=1)
        whole = batch(path=path, subscribe="orders", includeHeaders=True)
        some = batch(ddl, path=path, subscribe="orders")
        names = {name.lower(): name for name in whole.schema.names}
        for name in some.schema.names:
            assert some.column(name).to_pylist() == whole.column(names[name.lower()]).to_pylist()

    def test_headers_of_some_records_in_slices(self, log, path):
        topic = log.topic("orders")
        topic.extend([str(n) for n in range(100)], headers=[{"n": str(n)} if n % 3 else None for n in range(100)])
        rows = batch(
            path=path, subscribe="orders", includeHeaders=True, startingOffsets='{"orders": {"0": 41}}',
            endingOffsets='{"orders": {"0": 97}}',
        )  # fmt: skip
        wanted = [[{"key": "n", "value": str(n).encode()}] if n % 3 else None for n in range(41, 97)]
        assert rows.column("headers").to_pylist() == wanted

    @pytest.mark.parametrize("compress", ["none", "zstd", "lz4"])
    def test_compressed_topics(self, log, path, compress):
        topic = log.topic("orders", compress=compress, segment_bytes="64KiB")
        for at in range(0, 5_000, 1_000):
            fill(topic, 1_000, first=at)
        values = batch("value binary", path=path, subscribe="orders").column("value").to_pylist()
        assert values == [f"{number:010d}".encode() for number in range(5_000)]


class TestTopics:
    @pytest.fixture(autouse=True)
    def _topics(self, log):
        for name in ("orders", "sensors.a", "sensors.b", "sensors.b.c", "empty"):
            topic = log.topic(name, partitions=1)
            if name != "empty":
                topic.append(name)

    @pytest.mark.parametrize(
        ("options", "topics"),
        [
            ({"subscribe": "orders,sensors.a"}, ["orders", "sensors.a"]),
            ({"subscribe": "sensors.*"}, ["sensors.a", "sensors.b"]),
            ({"subscribe": "sensors..."}, ["sensors.a", "sensors.b", "sensors.b.c"]),
            ({"subscribe": "..."}, ["orders", "sensors.a", "sensors.b", "sensors.b.c"]),
            ({"subscribePattern": r"(orders|sensors\.b)"}, ["orders", "sensors.b"]),
            ({"subscribe": "empty"}, []),
        ],
    )
    def test_which(self, path, options, topics):
        assert batch(path=path, **options).column("topic").to_pylist() == topics

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"subscribe": "order"}, "no topic 'order': did you mean 'orders'"),
            ({"subscribe": "orders,nothing.at.all"}, "no topic 'nothing.at.all'"),
            ({"subscribe": "nothing.*"}, r"No topic matches nothing\.\*"),
            ({"assign": '{"order": [0]}'}, "did you mean 'orders'"),
        ],
    )
    def test_which_are_not_there(self, path, options, told):
        with pytest.raises(TopicNotFoundError, match=told) as caught:
            batch(path=path, **options)
        assert caught.value.__notes__ == [caught.value.hint]

    @pytest.mark.parametrize("options", [{}, {"endingOffsets": "latest", "startingTimestamp": "0"}], ids=str)
    def test_an_expression_that_matches_nothing_gives_no_rows(self, path, options):
        """As with Kafka, also while the topics of a pattern are not there yet."""
        found = batch(path=path, subscribePattern="x+", **options)
        assert found.num_rows == 0
        assert "value" in found.column_names

    def test_a_partition_that_is_not_there(self, path):
        with pytest.raises(ValueError, match="names partition 3 of 'orders', which has one partition, 0"):
            batch(path=path, assign='{"orders": [0, 3]}')

    def test_a_namespace(self, log, path):
        with log.namespace("tenant") as inner:
            inner.topic("orders").append("theirs")
        assert batch(path=path, namespace="tenant", subscribe="orders").column("value").to_pylist() == [b"theirs"]
        with pytest.raises(NotALogError, match="no namespace 'tennant': did you mean 'tenant'"):
            batch(path=path, namespace="tennant", subscribe="orders")

    def test_no_log(self, tmp_path, monkeypatch):
        with pytest.raises(NotALogError, match="no log at"):
            batch(path=tmp_path / "nowhere", subscribe="orders")
        assert not (tmp_path / "nowhere").exists()
        with pytest.raises(ValueError, match=r"Say which log to read: .load\("):
            batch(subscribe="orders")

    def test_a_log_from_the_environment(self, path, monkeypatch):
        monkeypatch.setenv("TAILRACE_LOG", path)
        assert batch(subscribe="orders").num_rows == 1

    def test_another_log_at_the_same_path(self, log, path):
        assert batch(path=path, subscribe="orders").num_rows == 1
        log.close()
        shutil.rmtree(path)
        with tailrace.open(path) as other:
            other.topic("orders").extend([b"1", b"2"])
            assert batch(path=path, subscribe="orders").num_rows == 2

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_reading_needs_no_right_to_write(self, log, path):
        log.close()
        for folder, _, names in os.walk(path):
            for name in names:
                os.chmod(f"{folder}/{name}", 0o444)
            os.chmod(folder, 0o555)
        assert batch(path=path, subscribe="orders").num_rows == 1


class TestChanges:
    def test_growth_after_the_plan_is_not_read(self, log, path):
        topic = log.topic("orders")
        fill(topic, 20)
        made = source(path=path, subscribe="orders")
        reader = made.reader(made.schema())
        planned = reader.partitions()
        fill(topic, 20, first=20)
        assert read_tasks(reader, planned, made.schema()).num_rows == 20
        assert batch(path=path, subscribe="orders").num_rows == 40

    def test_only_what_is_safe(self, tmp_path):
        from tailrace.disk.tails import SAFE

        with tailrace.open(tmp_path / "other", durable=False) as log:
            topic = log.topic("orders")
            topic.extend([b"x"] * 30)
            log.sync()
            topic.extend([b"y"] * 20)
            # As if the flusher had not come by yet.
            log.engine.store.tails.words[log.engine.partition(log.engine.entry("orders"), 0).word + SAFE] = 30
            assert batch(path=log.location, subscribe="orders").num_rows == 30
