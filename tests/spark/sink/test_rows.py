"""Rows become the records that the library would make of them, in the partitions that it would choose."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

import tailrace
from tailrace import bulk
from tailrace.bulk import FrameBuilder
from tailrace.errors import InvalidNameError, RecordTooLargeError, SchemaError, TopicNotFoundError
from tailrace.limits import KEY_BYTES_MAX
from tailrace.spark import handles, limits
from tailrace.write.partitioner import HASHES
from tests.spark import plain
from tests.spark.tasks import Job
from tests.tuning import limit

TIME_US = 1_763_200_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened
    handles.close_all()


def write(log, ddl, table, **options):
    Job(ddl, path=log.location, **options).run(table)


def records(topic):
    return [(record.partition, record.key, record.value) for record in topic.read()]


class TestRecords:
    @pytest.mark.parametrize("settings", [{}, {"partitions": 5}, {"partitions": 3, "partitioner": "murmur2"}], ids=str)
    @pytest.mark.parametrize("compress", ["none", "zstd"])
    def test_the_same_as_extend(self, log, settings, compress, rng):
        """Values, keys, headers and times, some of them missing, through the sink and through the library."""
        by_sink, by_hand = log.topic("sink", compress=compress, **settings), log.topic("hand", **settings)
        count = 3_000
        values = [rng.randbytes(rng.randrange(40)) for _ in range(count)]
        keys = [rng.randbytes(6) for _ in range(count)]
        headers = [
            [{"key": name, "value": rng.randbytes(3)} for name in ("a", "b", "a")[: rng.randrange(4)]] or None
            for _ in range(count)
        ]
        times = [TIME_US + rng.randrange(10**9) for _ in range(count)]
        values[::50] = [None] * len(values[::50])
        table = pa.table(
            {
                "headers": pa.array(headers, HEADERS),
                "timestamp": pa.array(times, pa.timestamp("us", "Europe/Berlin")),
                "key": pa.array(keys, pa.binary()),
                "value": pa.array(values, pa.binary()),
            }
        )
        ddl = "headers array<struct<key: string, value: binary>>, timestamp timestamp, key binary, value binary"
        write(log, ddl, table, topic="sink")
        pairs = [tailrace.records.Headers([(each["key"], each["value"]) for each in some or ()]) for some in headers]
        by_hand.extend(values, keys=keys, headers=pairs, timestamps=times)
        for partition in range(by_hand.partitions):
            written = [record._replace(topic="") for record in by_sink.read(partition=partition)]
            assert written == [record._replace(topic="") for record in by_hand.read(partition=partition)]
            assert [record.headers.multi_items() for record in written] == [
                record.headers.multi_items() for record in by_hand.read(partition=partition)
            ]

    def test_headers_as_a_map_and_with_nulls(self, log):
        topic = log.topic("a", partitions=1)
        made = pa.array([[("x", b"1")], None, []], pa.map_(pa.string(), pa.binary()))
        write(
            log,
            "value string, headers map<string, binary>",
            pa.table({"value": ["a", "b", "c"], "headers": made}),
            topic="a",
        )
        listed = pa.array([[{"key": "x", "value": b""}], None, []], HEADERS)
        ddl = "value string, headers array<struct<key: string, value: binary>>"
        write(log, ddl, pa.table({"value": ["a", "b", "c"], "headers": listed}), topic="a")
        assert [dict(record.headers) for record in topic.read()] == [{"x": b"1"}, {}, {}, {"x": b""}, {}, {}]
        hole = pa.array([[None]], HEADERS)
        with pytest.raises(ValueError, match="null among the headers"):
            write(log, ddl, pa.table({"value": ["a"], "headers": hole}), topic="a")

    @pytest.mark.parametrize("kind", ["list", "map"])
    def test_a_header_without_a_value_is_refused_by_its_name(self, log, kind):
        """Kafka has null for it, and the format has not: empty bytes would be something else."""
        topic = log.topic("a", partitions=1)
        pairs = [[("x", b"1"), ("trace", None)], [("x", b"2")]]
        if kind == "map":
            ddl, made = "map<string, binary>", pa.array(pairs, pa.map_(pa.string(), pa.binary()))
        else:
            ddl = "array<struct<key: string, value: binary>>"
            made = pa.array([[{"key": name, "value": value} for name, value in row] for row in pairs], HEADERS)
        table = pa.table({"value": ["a", "b"], "headers": made})
        with pytest.raises(ValueError, match="The header 'trace' of a row has a null value"):
            write(log, f"value string, headers {ddl}", table, topic="a")
        assert records(topic) == []
        write(log, f"value string, headers {ddl}", table.slice(1), topic="a")
        assert [dict(record.headers) for record in topic.read()] == [{"x": b"2"}]

    def test_a_header_without_a_name(self, log):
        log.topic("a", partitions=1)
        table = pa.table({"value": ["a"], "headers": pa.array([[{"key": None, "value": b"1"}]], HEADERS)})
        with pytest.raises(ValueError, match="a header whose key is null"):
            write(log, "value string, headers array<struct<key: string, value: binary>>", table, topic="a")

    def test_columns_that_are_null_everywhere_say_nothing(self, log):
        topic = log.topic("a", partitions=3)
        ddl = (
            "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
            "timestampType int"
        )
        table = pa.table(
            {
                "key": pa.nulls(2, pa.binary()),
                "value": pa.array([b"a", b"b"]),
                "topic": pa.nulls(2, pa.string()),
                "partition": pa.nulls(2, pa.int32()),
                "offset": pa.nulls(2, pa.int64()),
                "timestamp": pa.nulls(2, pa.timestamp("us", "UTC")),
                "timestampType": pa.nulls(2, pa.int32()),
            }
        )
        write(log, ddl, table, topic="a")
        assert [record.value for record in topic.read()] == [b"a", b"b"]

    def test_a_time_that_is_missing_is_now(self, log):
        topic = log.topic("a", partitions=1)
        times = pa.array([TIME_US, None], pa.timestamp("us", "UTC"))
        before = log.engine.files.now_us()
        write(log, "value string, timestamp timestamp", pa.table({"value": ["a", "b"], "timestamp": times}), topic="a")
        first, second = topic.read()
        assert first.timestamp_us == TIME_US
        assert before <= second.timestamp_us <= log.engine.files.now_us()

    def test_neither_value_nor_key(self, log):
        """As in Kafka, it is a record with both null."""
        topic = log.topic("a", partitions=1)
        table = pa.table({"value": pa.array([None, "a", None]), "key": pa.array([None, "k", "x"])})
        write(log, "value string, key string", table, topic="a")
        assert records(topic) == [(0, None, None), (0, b"k", b"a"), (0, b"x", None)]
        write(log, "value string", pa.table({"value": pa.array([None], pa.string())}), topic="a")
        assert records(topic)[3:] == [(0, None, None)]
        read = plain.batch("key binary, value binary", path=log.location, subscribe="a").to_pylist()
        assert [read[0], read[3]] == [{"key": None, "value": None}] * 2
        assert log.verify().ok

    def test_columns_without_a_meaning_are_left_out(self, log):
        topic = log.topic("a", partitions=1)
        table = pa.table({"id": [1], "value": ["a"], "keys": [["x"]], "offset": [7]})
        write(log, "id bigint, value string, keys array<string>, offset bigint", table, topic="a")
        assert records(topic) == [(0, None, b"a")]

    def test_a_value_that_is_too_large_for_its_topic(self, log):
        topic = log.topic("a", max_record_bytes=100)
        with pytest.raises(RecordTooLargeError, match="101 bytes; the maximum of the topic 'a' is 100") as caught:
            write(log, "value string", pa.table({"value": ["a", "x" * 101]}), topic="a")
        assert "max_record_bytes" in "".join(caught.value.__notes__)
        assert records(topic) == []

    def test_nothing_at_all(self, log):
        topic = log.topic("a", partitions=1)
        write(log, "value string", pa.table({"value": pa.array([], pa.string())}), topic="a")
        assert records(topic) == []


class TestPartitions:
    def test_the_column_goes_first_and_the_key_decides_where_it_is_null(self, log):
        topic = log.topic("a", partitions=10)
        keys = [f"{number}".encode() for number in range(100)]
        chosen = [number % 10 if number % 3 else None for number in range(100)]
        table = pa.table({"value": keys, "key": keys, "partition": pa.array(chosen, pa.int32())})
        write(log, "value binary, key binary, partition int", table, topic="a")
        for partition, key, _ in records(topic):
            wanted = chosen[int(key)]
            assert partition == (HASHES["crc32"](key) % 10 if wanted is None else wanted)

    @pytest.mark.parametrize("number", [-1, 10, 1 << 40])
    def test_a_partition_that_is_not_there(self, log, number):
        log.topic("a", partitions=10)
        table = pa.table({"value": ["x", "y"], "partition": pa.array([0, number], pa.int64())})
        with pytest.raises(ValueError, match=f"partition has {number}, and the topic 'a' has 10 partitions"):
            write(log, "value string, partition bigint", table, topic="a")

    def test_keyless_rows_of_a_task_stay_together(self, log):
        topic = log.topic("a", partitions=16)
        job = Job("value string", path=log.location, topic="a")
        tables = [pa.table({"value": [f"{number}-{row}" for row in range(3_000)]}) for number in range(4)]
        job.run(*tables)
        by_partition = defaultdict(set)
        for record in topic.read():
            by_partition[record.partition].add(record.text.partition("-")[0])
        # Each task has one partition, and each partition one task.
        assert len(by_partition) == 4
        assert all(len(tasks) == 1 for tasks in by_partition.values())

    def test_keyless_rows_move_on_after_a_while(self, log, monkeypatch):
        limit(monkeypatch, limits, gathered_bytes_max=1_000, keyless_bytes_max=10_000)
        topic = log.topic("a", partitions=4)
        write(log, "value string", pa.table({"value": ["x" * 100] * 4_000}), topic="a")
        assert {bounds.latest for bounds in topic.offsets().values()} == {1_000}

    def test_small_jobs_fill_all_partitions(self, log):
        topic = log.topic("a", partitions=3)
        for _ in range(40):
            write(log, "value string", pa.table({"value": ["x"]}), topic="a")
        assert all(bounds.latest for bounds in topic.offsets().values())

    def test_keys_among_keyless_rows(self, log):
        topic = log.topic("a", partitions=8)
        keys = [f"{number}" if number % 2 else None for number in range(1_000)]
        write(log, "value string, key string", pa.table({"value": ["v"] * 1_000, "key": keys}), topic="a")
        keyless = {partition for partition, key, _ in records(topic) if key is None}
        assert len(keyless) == 1
        assert all(HASHES["crc32"](key) % 8 == partition for partition, key, _ in records(topic) if key is not None)

    def test_spark_strings_and_wide_ones(self, log):
        topic = log.topic("a", partitions=7)
        keys = [f"kä{number}" for number in range(500)]
        for kind, ddl in ((pa.string(), "string"), (pa.large_string(), "string"), (pa.large_binary(), "binary")):
            table = pa.table({"value": pa.array(keys, kind), "key": pa.array(keys, kind)})
            write(log, f"value {ddl}, key {ddl}", table, topic="a")
        expected = sorted((HASHES["crc32"](key.encode()) % 7, key.encode(), key.encode()) for key in keys * 3)
        assert sorted(records(topic)) == expected


class TestTopics:
    def table(self, topics):
        return pa.table(
            {"value": [f"{number}" for number in range(len(topics))], "topic": pa.array(topics, pa.string())}
        )

    def test_a_topic_for_each_row(self, log):
        names = ["a", "b.c", "a", "d", "b.c", "a"]
        log.topic("a", partitions=2), log.topic("b.c", compress="zstd"), log.topic("d", partitions=1)
        write(log, "value string, topic string", self.table(names))
        found = {name: sorted(record.text for record in log.topic(name).read()) for name in set(names)}
        assert found == {"a": ["0", "2", "5"], "b.c": ["1", "4"], "d": ["3"]}

    def test_columns_that_are_null_for_all_rows_of_one_topic(self, log):
        """They say nothing there, and what they say holds for the rows of the other topic."""
        for name in ("a", "b"):
            log.topic(name, partitions=3)
        time = pa.array([TIME_US, None, TIME_US, None], pa.timestamp("us", "UTC"))
        table = self.table(["a", "b", "a", "b"]).append_column("partition", pa.array([2, None, 0, None], pa.int32()))
        table = table.append_column("key", pa.array(["k", None, "l", None])).append_column("timestamp", time)
        write(log, "value string, topic string, partition int, key string, timestamp timestamp", table)
        assert records(log.topic("a")) == [(0, b"l", b"2"), (2, b"k", b"0")]
        assert {record.timestamp_us for record in log.topic("a").read()} == {TIME_US}
        (place,) = {record.partition for record in log.topic("b").read()}
        assert records(log.topic("b")) == [(place, None, b"1"), (place, None, b"3")]

    def test_the_option_goes_before_the_column(self, log):
        log.topic("z", partitions=1)
        write(log, "value string, topic string", self.table(["a", None]), topic="z")
        assert [record.text for record in log.topic("z").read()] == ["0", "1"]

    def test_a_row_without_one(self, log):
        log.topic("a", partitions=1)
        with pytest.raises(ValueError, match="1 rows have no topic"):
            write(log, "value string, topic string", self.table(["a", None]))
        with pytest.raises(ValueError, match="not said which topic"):
            write(log, "value string, topic string", self.table([None]))

    def test_one_that_is_missing(self, log):
        log.topic("clicks", partitions=1)
        with pytest.raises(TopicNotFoundError, match="no topic 'clikcs': did you mean 'clicks'") as caught:
            write(log, "value string, topic string", self.table(["clicks", "clikcs"]))
        assert "createTopics" in "".join(caught.value.__notes__)
        assert log.topic("clicks").offsets()[0].latest == 0

    def test_missing_ones_are_created_when_that_is_asked_for(self, log):
        log.topic("a", partitions=3)
        write(log, "value string, topic string", self.table(["a", "new.b", "new.c"]), createTopics=True, partitions=4)
        assert {topic.name: topic.partitions for topic in log.topics()} == {"a": 3, "new.b": 4, "new.c": 4}
        assert [record.text for record in log.topic("new.c").read()] == ["2"]

    @pytest.mark.parametrize("name", ["__outbox", "a.*", "a..b", ""])
    def test_names_that_cannot_be(self, log, name):
        log.topic("a", partitions=1)
        with pytest.raises(InvalidNameError):
            write(log, "value string, topic string", self.table(["a", name]), createTopics=True)

    def test_an_internal_topic_is_never_written_to(self, log):
        from tailrace.spark.sink import outbox

        log.topic("a", partitions=1)
        outbox.topic_of(log).create()
        with pytest.raises(InvalidNameError):
            write(log, "value string, topic string", self.table([outbox.TOPIC]))


def test_rows_of_many_partitions_are_made_frames_together(log, monkeypatch):
    """What a partition costs in Arrow calls would be most of what a task over a thousand of them costs."""
    topic = log.topic("wide", partitions=200)
    calls = []
    real = bulk.build_runs
    monkeypatch.setattr(bulk, "build_runs", lambda *columns: calls.append(len(columns[0])) or real(*columns))
    monkeypatch.setattr(FrameBuilder, "extend", None)
    table = pa.table(
        {"key": [f"k{number}" for number in range(1_000)], "value": [f"v{number}" for number in range(1_000)]}
    )
    write(log, "key string, value string", table, topic="wide")
    assert calls == [1_000]
    found = [*topic.read()]
    assert sorted((record.key, record.value) for record in found) == sorted(
        (f"k{number}".encode(), f"v{number}".encode()) for number in range(1_000)
    )
    assert len({record.partition for record in found}) > 150


def test_a_key_that_is_too_long(log):
    log.topic("orders", partitions=2)
    table = pa.table({"key": ["k" * (KEY_BYTES_MAX + 1), "k"], "value": ["v", "v"]})
    with pytest.raises(RecordTooLargeError, match="The key has"):
        write(log, "key string, value string", table, topic="orders")


def test_order_is_kept_within_a_partition(log, monkeypatch):
    limit(monkeypatch, limits, gathered_bytes_max=50_000)
    topic = log.topic("a", partitions=4)
    keys = [f"{random.randrange(50)}" for _ in range(20_000)]
    table = pa.table({"value": [f"{number}" for number in range(20_000)], "key": keys})
    write(log, "value string, key string", table, topic="a")
    for partition in range(4):
        numbers = [int(record.text) for record in topic.read(partition=partition)]
        assert numbers == sorted(numbers)
    assert sum(bounds.latest for bounds in topic.offsets().values()) == 20_000


def test_rows_get_the_life_of_their_topic(log):
    log.topic("short", ttl="1ms")
    log.topic("long", ttl="1h")
    log.topic("plain", partitions=1)
    table = pa.table({"topic": ["short", "long", "plain"] * 20, "value": [b"x"] * 60})
    write(log, "topic string, value binary", table)
    assert {name: log.topic(name).read().count() for name in ("short", "long", "plain")} == {
        "short": 0, "long": 20, "plain": 20,
    }  # fmt: skip
    assert log.topic("short").offsets()[0].latest == 20


class TestSchema:
    """Rows for a topic with a schema are checked in the task."""

    @pytest.fixture
    def topic(self, log):
        return log.topic("checked", partitions=3, schema={"type": "object", "required": ["id"]})

    def test_rows_that_fit(self, log, topic):
        rows = pa.table(
            {"value": [f'{{"id":{number}}}' for number in range(2_000)], "key": [str(n) for n in range(2_000)]}
        )
        write(log, "value string, key string", rows, topic="checked")
        assert topic.read().count() == 2_000
        write(
            log,
            "value binary, key string",
            pa.table({"value": pa.array([None], pa.binary()), "key": ["k"]}),
            topic="checked",
        )
        assert topic.read().count() == 2_001

    def test_a_row_that_does_not(self, log, topic):
        rows = pa.table({"value": ['{"id":1}'] * 1_500 + ["{}"], "key": ["k"] * 1_501})
        with pytest.raises(SchemaError, match=r"Rows for the topic 'checked': .* field id") as caught:
            write(log, "value string, key string", rows, topic="checked")
        assert (caught.value.index, caught.value.field) == (1_500, "id")
        assert topic.read().count() == 0

    def test_rows_of_several_topics(self, log, topic):
        log.topic("plain", partitions=2)
        rows = pa.table({"value": ['{"id":1}', "anything"], "topic": ["checked", "plain"]})
        write(log, "value string, topic string", rows)
        assert [record.value for record in topic.read()] == [b'{"id":1}']
        with pytest.raises(SchemaError):
            write(log, "value string, topic string", pa.table({"value": ["x", "x"], "topic": ["plain", "checked"]}))
        assert log.topic("plain").read().count() == 1

    def test_large_parts_that_are_staged(self, log, topic):
        rows = pa.table({"value": ['{"id":"%s"}' % ("x" * 3_000)] * 2_000})
        write(log, "value string", rows, topic="checked")
        assert topic.read().count() == 2_000
