"""The columns of a write: names and types that are taken, and what is said of all others."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types

from tailrace.spark.sink.columns import NAMES, ColumnIndexes, check_columns
from tests.spark.ddl import struct


class TestColumns:
    def test_all_of_them_in_any_order(self):
        ddl = (
            "headers array<struct<key: string, value: binary>>, offset bigint, partition int, topic string, "
            "timestamp timestamp, value binary, timestampType int, key string"
        )
        assert check_columns(struct(ddl)) == ColumnIndexes(5, 7, 3, 2, 0, 4)

    @pytest.mark.parametrize(
        "ddl",
        [
            "VALUE string", "value binary not null", "value string, partition bigint",
            "value string, partition tinyint", "value string, headers map<string, binary>",
            "value string, headers array<struct<name: string, value: string>>",
            "value string, offset bigint, timestampType int", "value string, id int, KEYS array<interval>",
        ],
    )  # fmt: skip
    def test_types_that_are_taken(self, ddl):
        assert check_columns(struct(ddl)).value == 0

    @pytest.mark.parametrize(
        ("ddl", "said"),
        [
            ("value int", "'value' is int: it must be binary or string. .*to_json"),
            ("value struct<a: int>", "'value' is struct<a:int>"),
            ("value string, key bigint", "'key' is bigint: it must be binary or string"),
            ("value string, topic binary", "'topic' is binary: it must be string"),
            ("value string, partition string", "'partition' is string: it must be an integer"),
            ("value string, timestamp string", "'timestamp' is string: it must be timestamp"),
            ("value string, timestamp timestamp_ntz", "'timestamp' is timestamp_ntz"),
            ("value string, headers string", "'headers' is string: it must be array<struct<key:string,value:binary>>"),
            ("value string, headers array<string>", "'headers' is array<string>"),
            ("value string, headers array<struct<value: binary, key: string>>", "'headers' is array<struct<value"),
            ("value string, headers array<struct<key: string>>", "'headers' is array<struct<key"),
            ("value string, headers map<int, binary>", "'headers' is map<int,binary>"),
            ("id int, valeu string", "no column 'value' among id, valeu: .*to_json"),
            ("key string", "no column 'value' among key: .*to_json"),
            ("value string, Value string", "two columns 'value'"),
        ],
    )  # fmt: skip
    def test_types_that_are_not(self, ddl, said):
        with pytest.raises(TypeError, match=said):
            check_columns(struct(ddl))

    def test_a_column_without_a_type_says_nothing_and_a_value_must_say_something(self):
        """Spark gives it to `SELECT NULL AS key`."""
        nothing = [types.StructField(name, types.NullType()) for name in NAMES if name != "value"]
        value = types.StructField("value", types.StringType())
        assert check_columns(types.StructType([value, *nothing])) == ColumnIndexes(0, 1, 2, 3, 4, 5)
        with pytest.raises(TypeError, match="'value' is void: it must be binary or string"):
            check_columns(types.StructType([types.StructField("value", types.NullType())]))
