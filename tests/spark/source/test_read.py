"""Frames become batches with the columns of a query, and records that are gone are told."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from tailrace import bulk
from tailrace.errors import CorruptionError, OffsetOutOfRangeError
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.read import BATCH_ROWS, JSON_BATCH_ROWS, LayoutColumns, read_parts
from tailrace.spark.source.schema import layout_of
from tests.spark.ddl import struct
from tests.spark.plain import batch, fill, places, read_tasks, source

# An even number of milliseconds.
TIME = 1_763_200_000_000_000


def layout(ddl, **options):
    return layout_of(struct(ddl), parse_options({"subscribe": "a", **options}))


class TestLayouts:
    @pytest.mark.parametrize(
        ("ddl", "options", "stored"),
        [
            ("value binary, key binary", {}, ("key", "value")),
            ("topic string, offset bigint", {}, ("offset",)),
            # The number of records must come from somewhere.
            ("topic string, partition int", {}, ("offset",)),
            ("_offset bigint, a int", {"valueFormat": "json"}, ("value", "offset")),
            ("_offset bigint", {"valueFormat": "json"}, ("offset",)),
        ],
    )
    def test_only_the_columns_that_a_query_needs_are_read(self, ddl, options, stored):
        assert LayoutColumns(layout(ddl, **options)).stored == stored

    def test_batches_are_larger_where_values_are_parsed(self):
        assert LayoutColumns(layout("value binary")).batch_rows == BATCH_ROWS
        assert LayoutColumns(layout("a int", valueFormat="json")).batch_rows == JSON_BATCH_ROWS

    def test_a_constant_column_is_built_once_and_cut(self):
        made = LayoutColumns(layout("topic string"))
        long = made._constant("topic", "a", pa.string(), 50)
        assert made._constant("topic", "a", pa.string(), 50) is long
        short = made._constant("topic", "a", pa.string(), 3)
        assert short.to_pylist() == ["a"] * 3
        assert short.buffers()[2].address == long.buffers()[2].address
        assert made._constant("topic", "a", pa.string(), 51).to_pylist() == ["a"] * 51
        assert made._constant("topic", "b", pa.string(), 2).to_pylist() == ["b"] * 2

    def test_few_constant_columns_are_kept(self):
        made = LayoutColumns(layout("partition int"))
        for partition in range(500):
            assert made._constant("partition", partition, pa.int32(), 2).to_pylist() == [partition] * 2
            assert len(made._constants) <= 65

    def test_columns_stand_in_the_order_of_the_schema(self, log):
        log.topic("a").append("x", key="k", headers={"h": b"1"}, timestamp=TIME)
        made = layout(
            "headers array<struct<key: string, value: binary>>, timestampType int, OFFSET bigint, key binary, "
            "topic string"
        )
        (found,) = read_parts(bulk.plan(log, "a"), made, True)
        assert found.to_pylist() == [
            {"headers": [{"key": "h", "value": b"1"}], "timestampType": 0, "OFFSET": 0, "key": b"k", "topic": "a"}
        ]

    def test_nothing_to_read(self):
        assert [*read_parts([], layout("key binary"), True)] == []


class TestFrames:
    def test_small_frames_become_large_batches(self, log, path):
        topic = log.topic("orders", partitions=2, durable=False)
        for number in range(3_000):
            topic.append(str(number), partition=number % 2)
        log.sync()
        rows = batch(path=path, subscribe="orders")
        assert len(rows.column("value").chunks) == 1
        assert sorted(map(int, rows.column("value").to_pylist())) == list(range(3_000))

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


class TestChanges:
    def trimmed_after_the_plan(self, log, **options):
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
