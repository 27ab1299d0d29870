"""The batch source without a JVM: what is planned and read, from every place that can be named."""

from __future__ import annotations

import json
import os
import shutil

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import tailrace
from tailrace.errors import CorruptionError, NotALogError, OffsetOutOfRangeError, TopicNotFoundError
from tailrace.spark import limits
from tailrace.spark.source import plan as planning
from tests.spark.plain import batch, places, source, tasks
from tests.tuning import limit

# An even number of milliseconds.
TIME = 1_763_200_000_000_000


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


@pytest.fixture
def path(log):
    return log.location


def fill(topic, count, partition=0, size=10, first=0):
    values = [f"{number:0{size}d}" for number in range(first, first + count)]
    topic.extend(values, keys=[f"k{number}" for number in range(count)], partition=partition)


def expected(topic, *ranges):
    return [(topic, partition, offset) for partition, offsets in ranges for offset in offsets]


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


class TestWhere:
    @pytest.fixture
    def topic(self, log):
        topic = log.topic("orders", partitions=2)
        for partition in range(2):
            for number in range(10):
                topic.append(str(number), timestamp=TIME + number * 1_000_000, partition=partition)
        topic.trim({0: 2})
        return topic

    @pytest.mark.parametrize(
        ("options", "ranges"),
        [
            ({}, [(0, range(2, 10)), (1, range(10))]),
            ({"startingOffsets": "earliest", "endingOffsets": "latest"}, [(0, range(2, 10)), (1, range(10))]),
            ({"startingOffsets": '{"orders": {"0": 5, "1": -2}}'}, [(0, range(5, 10)), (1, range(10))]),
            ({"endingOffsets": '{"orders": {"0": 5, "1": -1}}'}, [(0, range(2, 5)), (1, range(10))]),
            ({"startingTimestamp": TIME // 1_000 + 7_000}, [(0, range(7, 10)), (1, range(7, 10))]),
            ({"startingTimestamp": 0}, [(0, range(2, 10)), (1, range(10))]),
            ({"endingTimestamp": TIME // 1_000 + 3_000}, [(0, range(2, 3)), (1, range(3))]),
            ({"endingTimestamp": 10**15}, [(0, range(2, 10)), (1, range(10))]),
            (
                {"startingOffsetsByTimestamp": json.dumps({"orders": {"0": TIME // 1_000 + 4_000, "1": 0}}),
                 "endingOffsetsByTimestamp": json.dumps({"orders": {"0": 10**13, "1": TIME // 1_000 + 1_000}})},
                [(0, range(4, 10)), (1, range(1))],
            ),
            ({"startingTimestamp": 10**13, "startingOffsetsByTimestampStrategy": "latest"}, []),
            ({"since": "-1m"}, []),
            ({"since": "2025-11-15T09:46:48Z"}, [(0, range(8, 10)), (1, range(8, 10))]),
            ({"startingTimestamp": TIME // 1_000 + 7_000, "endingTimestamp": TIME // 1_000 + 2_000}, []),
        ],
    )  # fmt: skip
    def test_places(self, topic, path, options, ranges):
        assert places(batch(path=path, subscribe="orders", **options)) == expected("orders", *ranges)

    def test_assigned_partitions(self, topic, path):
        assert places(batch(path=path, assign='{"orders": [1]}')) == expected("orders", (1, range(10)))

    @pytest.mark.parametrize(
        ("options", "kind", "told"),
        [
            ({"startingOffsets": "latest"}, ValueError, "latest is for streams"),
            ({"startingOffsets": '{"orders": {"0": -1, "1": 0}}'}, ValueError, r"-1 \(latest\) for orders\[0\]"),
            ({"startingOffsets": '{"orders": {"0": 5}}'}, ValueError, r"says nothing of orders\[1\]: name every"),
            ({"startingOffsets": '{"orders": {"0": 5, "1": 1, "2": 1}}'}, ValueError, r"names orders\[2\], which"),
            ({"endingOffsets": '{"other": {"0": 5}}'}, ValueError, r"names other\[0\], which this query does not"),
            ({"startingOffsets": '{"orders": {"0": 1, "1": 0}}'}, OffsetOutOfRangeError, "the earliest record is 2"),
            ({"startingOffsets": '{"orders": {"0": 11, "1": 0}}'}, OffsetOutOfRangeError, "next record will be 10"),
            ({"endingOffsets": '{"orders": {"0": 5, "1": 11}}'}, OffsetOutOfRangeError, "next record will be 10"),
            (
                {"startingOffsets": '{"orders": {"0": 8, "1": 0}}', "endingOffsets": '{"orders": {"0": 5, "1": 5}}'},
                ValueError, r"endingOffsets \(5\) is before startingOffsets \(8\) for orders\[0\]",
            ),
            ({"startingTimestamp": 10**13}, ValueError, "no record at or after .*startingOffsetsByTimestampStrategy"),
        ],
    )  # fmt: skip
    def test_places_that_are_not_there(self, topic, path, options, kind, told):
        with pytest.raises(kind, match=told):
            batch(path=path, subscribe="orders", **options)

    def test_what_is_gone_may_be_left_out(self, topic, path):
        rows = batch(
            path=path, subscribe="orders", failOnDataLoss=False, startingOffsets='{"orders": {"0": 0, "1": 99}}',
            endingOffsets='{"orders": {"0": 4, "1": 99}}',
        )  # fmt: skip
        assert places(rows) == expected("orders", (0, range(2, 4)))


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


class TestTasks:
    def test_one_huge_partition_is_read_by_many(self, log, path, monkeypatch):
        limit(monkeypatch, limits, second_task_bytes_min=100_000)
        monkeypatch.setattr(planning, "cores", lambda: 2)
        topic = log.topic("orders", segment_bytes="4MiB")
        for at in range(0, 60_000, 1_000):
            fill(topic, 1_000, size=100, first=at)
        made = tasks(path=path, subscribe="orders")
        sizes = [sum(part.bytes for part in task.parts) for task in made]
        assert len(made) == 4
        assert max(sizes) < 1.5 * min(sizes)
        assert places(batch(path=path, subscribe="orders")) == expected("orders", (0, range(60_000)))

    def test_many_small_partitions_are_one_task(self, log, path):
        topic = log.topic("orders", partitions=50)
        for partition in range(50):
            topic.append("x", partition=partition)
        (task,) = tasks(path=path, subscribe="orders")
        assert len(task.parts) == 50
        assert batch(path=path, subscribe="orders").num_rows == 50

    def test_records_of_many_partitions_come_in_one_batch(self, log, path):
        for name in ("orders", "returns"):
            topic = log.topic(name, partitions=20)
            for index in range(20):
                # Some in several frames, some in one; some with headers and without keys.
                for number in range(1 + index % 3):
                    topic.append(f"{name}{index}.{number}", key="k" if index % 2 else None, partition=index)
                topic.append("last", headers={"a": b"1"} if index % 5 == 0 else None, partition=index)
        made = source(path=path, subscribe="orders,returns", includeHeaders=True)
        schema = made.schema()
        reader = made.reader(schema)
        (task,) = reader.partitions()
        (whole,) = reader.read(task)
        counts = [(name, index, 2 + index % 3) for name in ("orders", "returns") for index in range(20)]
        assert places(pa.Table.from_batches([whole])) == [
            (name, index, offset) for name, index, count in counts for offset in range(count)
        ]
        assert whole.column("value").to_pylist() == [
            value
            for name, index, count in counts
            for value in [f"{name}{index}.{number}".encode() for number in range(count - 1)] + [b"last"]
        ]
        assert [each is not None for each in whole.column("headers").to_pylist()] == [
            offset == count - 1 and index % 5 == 0 for _, index, count in counts for offset in range(count)
        ]
        assert [each is not None for each in whole.column("key").to_pylist()] == [
            offset < count - 1 and index % 2 == 1 for _, index, count in counts for offset in range(count)
        ]
        # A schema of only what is the same for all records of a partition.
        table = batch("topic string, partition int", path=path, subscribe="orders,returns")
        assert table.to_pylist() == [
            {"topic": name, "partition": index} for name, index, count in counts for _ in range(count)
        ]

    @pytest.mark.parametrize("least", [1, 3, 7, 40])
    def test_at_least_so_many(self, log, path, least):
        topic = log.topic("orders", partitions=3)
        for partition in range(3):
            fill(topic, 100, partition=partition)
        made = tasks(path=path, subscribe="orders", minPartitions=least)
        assert least <= len(made) <= 2 * least + 3
        assert places(batch(path=path, subscribe="orders", minPartitions=least)) == expected(
            "orders", *((partition, range(100)) for partition in range(3))
        )

    @pytest.mark.parametrize("most", [1, 7, 100, 1_000])
    def test_at_most_so_many_records(self, log, path, most):
        topic = log.topic("orders", partitions=2)
        for at in range(0, 120, 60):
            fill(topic, 60, first=at, partition=0)
            fill(topic, 60, first=at, partition=1)
        made = tasks(path=path, subscribe="orders", maxRecordsPerPartition=most)
        assert all(sum(planning.records_of(part) for part in task.parts) <= most for task in made)
        assert len(made) <= 2 * -(-240 // most) + 1
        assert places(batch(path=path, subscribe="orders", maxRecordsPerPartition=most)) == expected(
            "orders", (0, range(120)), (1, range(120))
        )

    def test_small_tasks_do_not_read_what_is_not_theirs(self, log, path):
        topic = log.topic("orders")
        for _ in range(400):
            topic.extend([b"x" * 100] * 100, durable=False)
        log.sync()
        made = tasks(path=path, subscribe="orders", maxRecordsPerPartition=250)
        whole = sum(part.bytes for task in tasks(path=path, subscribe="orders") for part in task.parts)
        # A part that is cut is walked from its beginning by each of its pieces.
        assert sum(part.bytes for task in made for part in task.parts) < 5 * whole

    @pytest.mark.parametrize(
        ("total", "wanted", "cores", "count"),
        [
            (0, None, 2, 1),
            (1, None, 2, 1),
            (5 << 20, None, 2, 2),
            (5 << 20, None, 8, 2),
            # A batch of a stream: a task for each core, and a second one only when there is enough for it.
            (13 << 20, None, 2, 2),
            (64 << 20, None, 2, 2),
            (65 << 20, None, 2, 3),
            (128 << 20, None, 2, 4),
            (1 << 30, None, 2, 4),
            (10 << 30, None, 2, 40),
            (10 << 20, 7, 2, 7),
            (10 << 30, 7, 2, 40),
        ],
    )
    def test_how_many(self, total, wanted, cores, count):
        assert planning.task_count(total, wanted, cores) == count

    def test_nothing_to_read_is_no_task(self, log, path):
        log.topic("orders", partitions=4)
        assert tasks(path=path, subscribe="orders") == []
        assert batch(path=path, subscribe="orders").num_rows == 0

    def test_small_frames_become_large_batches(self, log, path):
        topic = log.topic("orders", partitions=2, durable=False)
        for number in range(3_000):
            topic.append(str(number), partition=number % 2)
        log.sync()
        rows = batch(path=path, subscribe="orders")
        assert len(rows.column("value").chunks) == 1
        assert sorted(map(int, rows.column("value").to_pylist())) == list(range(3_000))

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


class TestChanges:
    def test_growth_after_the_plan_is_not_read(self, log, path):
        from tests.spark.plain import read_tasks, source

        topic = log.topic("orders")
        fill(topic, 20)
        made = source(path=path, subscribe="orders")
        reader = made.reader(made.schema())
        planned = reader.partitions()
        fill(topic, 20, first=20)
        assert read_tasks(reader, planned, made.schema()).num_rows == 20
        assert batch(path=path, subscribe="orders").num_rows == 40

    def trimmed_after_the_plan(self, log, **options):
        from tests.spark.plain import read_tasks, source

        topic = log.topic("orders", segment_bytes="4KiB")
        for at in range(0, 1_000, 100):
            fill(topic, 100, first=at)
        made = source(path=log.location, subscribe="orders", **options)
        reader = made.reader(made.schema())
        planned = reader.partitions()
        topic.trim(500)
        return read_tasks(reader, planned, made.schema())

    def test_what_is_removed_under_a_query_is_an_error(self, log):
        with pytest.raises(OffsetOutOfRangeError, match=r"The records 0 to \d+ of orders\[0\] were removed") as caught:
            self.trimmed_after_the_plan(log)
        assert "failOnDataLoss" in caught.value.__notes__[0]

    def test_what_is_removed_under_a_query_may_be_left_out(self, log, caplog):
        rows = self.trimmed_after_the_plan(log, failOnDataLoss=False)
        offsets = rows.column("offset").to_pylist()
        assert offsets[-1] == 999
        assert 0 < len(offsets) < 1_000
        assert offsets == sorted(set(offsets))
        assert "were left out" in caplog.text

    def test_damage_is_told_and_never_skipped(self, log, path):
        from pathlib import Path

        topic = log.topic("orders")
        fill(topic, 1_000)
        (segment,) = Path(path).glob("topics/*/*/*.seg")
        content = bytearray(segment.read_bytes())
        content[2_000] ^= 0xFF
        segment.write_bytes(content)
        with pytest.raises(CorruptionError) as caught:
            batch(path=path, subscribe="orders", failOnDataLoss=False)
        assert "tailrace repair" in caught.value.__notes__[0]


class TestJson:
    def test_fields_metadata_and_bad_values(self, log, path):
        topic = log.topic("clicks", partitions=1)
        topic.append('{"user": "a", "at": "2026-11-15T20:00:00Z", "n": 1, "more": [1]}', key="k", timestamp=TIME)
        topic.append(None, key="k", timestamp=TIME)
        topic.append("no json", timestamp=TIME)
        topic.append('{"user": "b", "n": "many"}', timestamp=TIME)
        topic.append('{"n": 4}', timestamp=TIME)
        rows = batch(
            "user string, n int, at timestamp, _offset bigint, _key binary, _topic string, _corrupt_record string",
            path=path, subscribe="clicks", valueFormat="json",
        )  # fmt: skip
        assert rows.column("user").to_pylist() == ["a", None, None, "b", None]
        assert rows.column("n").to_pylist() == [1, None, None, None, 4]
        assert [at and at.isoformat() for at in rows.column("at").to_pylist()] == ["2026-11-15T20:00:00+00:00"] + 4 * [
            None
        ]
        assert rows.column("_offset").to_pylist() == [0, 1, 2, 3, 4]
        assert rows.column("_key").to_pylist() == [b"k", b"k", None, None, None]
        assert set(rows.column("_topic").to_pylist()) == {"clicks"}
        assert rows.column("_corrupt_record").to_pylist() == [None, None, "no json", '{"user": "b", "n": "many"}', None]

    def test_only_metadata(self, log, path):
        log.topic("clicks").extend(["{}", "x"])
        rows = batch("_offset bigint", path=path, subscribe="clicks", valueFormat="json")
        assert rows.column("_offset").to_pylist() == [0, 1]
        rows = batch("_corrupt_record binary", path=path, subscribe="clicks", valueFormat="json")
        assert rows.column("_corrupt_record").to_pylist() == [None, b"x"]

    def test_nothing(self, log, path):
        log.topic("clicks", partitions=1)
        assert batch("a int", path=path, subscribe="clicks", valueFormat="json").schema.field("a").type == pa.int32()
