"""The columns of a query: those of Kafka's source, a choice of them, or the fields of JSON values."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import pickle

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.spark.source.options import parse_options
from tailrace.spark.source.schema import METADATA, arrow_type, default_schema, layout_of
from tests.spark.ddl import struct


def parse(**options):
    return parse_options(CaseInsensitiveDict({"path": "/data/log", **options}))


class TestColumns:
    def test_as_kafka(self):
        assert default_schema(parse(subscribe="a")).simpleString() == (
            "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
        )
        assert default_schema(parse(subscribe="a", includeHeaders="true")).fields[-1].dataType.simpleString() == (
            "array<struct<key:string,value:binary>>"
        )

    def layout(self, text, **options):
        return layout_of(struct(text), parse(subscribe="a", **options))

    def test_a_schema_is_a_choice(self):
        assert self.layout("offset bigint, VALUE binary").sources == ("offset", "value")

    def test_fields_and_metadata_of_json(self):
        found = self.layout(
            "offset string, _offset bigint not null, _TimestampType int, _corrupt_record string, _id string",
            valueFormat="json",
        )
        assert found.sources == (None, "offset", "timestampType", "corrupt", None)
        assert found.fields.names == ["offset", "_id"]
        other = self.layout("_offset string, m_offset bigint, bad binary", valueFormat="json", metadataPrefix="m_",
                            columnNameOfCorruptRecord="bad")  # fmt: skip
        assert other.sources == (None, "offset", "corrupt")

    @pytest.mark.parametrize(
        ("ddl", "told"),
        [
            ("vale binary", "no column 'vale': did you mean value"),
            ("amount double", "no column 'amount': there are key, value.*valueFormat=json"),
            ("value string", r"value is binary, not string: read it as binary and write CAST\(value AS STRING\)"),
            ("offset int", "offset is bigint, not int"),
            ("timestamp bigint", "timestamp is timestamp, not bigint"),
            ("headers array<string>", "headers is array<struct<key:string,value:binary>>"),
            ("value binary not null", "may be null, as in a tombstone"),
            ("value binary, VALUE binary", "twice"),
        ],
    )
    def test_columns_that_cannot_be_had(self, ddl, told):
        with pytest.raises(ValueError, match=told):
            self.layout(ddl)

    @pytest.mark.parametrize(
        ("ddl", "told"),
        [
            ("user string not null", "user may be missing"),
            ("user struct<name: string not null>", r"user.name may be missing"),
            ("_key string", "_key is binary.*metadataPrefix"),
            ("_corrupt_record int", "make it a string"),
            ("a map<int, string>", "field a cannot be read as map<int,string>"),
            ("a interval day to second", "cannot be read as interval"),
        ],
    )
    def test_fields_that_cannot_be_had(self, ddl, told):
        with pytest.raises(ValueError, match=told):
            self.layout(ddl, valueFormat="json")

    def test_json_needs_a_schema(self):
        with pytest.raises(ValueError, match=r"write .schema\("):
            default_schema(parse(subscribe="a", valueFormat="json"))

    def test_an_empty_schema_is_refused(self):
        with pytest.raises(ValueError, match="has no columns"):
            layout_of(types.StructType([]), parse(subscribe="a"))

    @pytest.mark.parametrize(
        ("ddl", "options", "parses"),
        [
            ("key binary, value binary", {}, False),
            ("_key binary", {"valueFormat": "json"}, False),
            ("_corrupt_record string", {"valueFormat": "json"}, True),
            ("_key binary, id int", {"valueFormat": "json"}, True),
        ],
    )
    def test_values_are_parsed_only_where_a_column_needs_them(self, ddl, options, parses):
        assert self.layout(ddl, **options).parses is parses

    def test_a_layout_travels_to_the_tasks(self):
        made = self.layout("_key binary, id int", valueFormat="json")
        far = pickle.loads(pickle.dumps(made))
        assert far == made
        assert far.arrow.equals(made.arrow)

    def test_a_json_field_may_be_null_inside_of_lists_and_maps(self):
        for kind in (
            types.ArrayType(types.IntegerType(), False),
            types.MapType(types.StringType(), types.IntegerType(), False),
        ):
            with pytest.raises(ValueError, match=r"field a(\[\]|\{\}) may be missing"):
                layout_of(types.StructType([types.StructField("a", kind)]), parse(subscribe="a", valueFormat="json"))


class TestArrow:
    """Spark refuses a batch whose types are not exactly those that it derives from the schema."""

    @pytest.mark.parametrize(
        "ddl",
        [
            "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date",
            "timestamp", "timestamp_ntz", "decimal(12, 3)", "array<int>", "struct<a: int, b: array<string>>",
            "map<string, struct<a: timestamp>>",
        ],
    )  # fmt: skip
    def test_types_are_those_of_spark(self, ddl):
        schema = struct(f"a {ddl}")
        assert pa.schema([pa.field("a", arrow_type(schema["a"].dataType, "a"))]).equals(
            to_arrow_schema(schema, timezone="UTC")
        )

    @pytest.mark.parametrize("kind", METADATA.values(), ids=str)
    def test_metadata(self, kind):
        wanted = to_arrow_schema(types.StructType([types.StructField("a", kind)]), timezone="UTC").field("a").type
        assert arrow_type(kind, "a") == wanted

    @pytest.mark.parametrize("kind", [types.CharType(3), types.VarcharType(3)], ids=str)
    def test_texts_of_a_length_are_texts(self, kind):
        assert arrow_type(kind, "a") == pa.string()

    def test_nulls_are_allowed_where_the_schema_allows_them(self):
        kind = types.ArrayType(types.StructType([types.StructField("x", types.LongType(), False)]), False)
        schema = types.StructType([types.StructField("a", kind)])
        assert arrow_type(kind, "a").equals(to_arrow_schema(schema, timezone="UTC").field("a").type)

    @pytest.mark.parametrize(
        ("ddl", "name"),
        [
            ("interval", "a"), ("array<interval>", r"a\[\]"), ("map<string, interval>", r"a\{\}"),
            ("struct<b: interval>", r"a\.b"),
        ],
    )  # fmt: skip
    def test_the_error_names_the_place_of_a_type_that_cannot_be_read(self, ddl, name):
        with pytest.raises(ValueError, match=f"The field {name} cannot be read as interval"):
            arrow_type(struct(f"a {ddl}")["a"].dataType, "a")
