"""Tables in a catalog: their options travel in the metadata of the first column of their schema."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from tailrace.spark.source.tables import METADATA_KEY, is_table, options_of, table_options, with_options
from tests.spark.ddl import struct

# What Spark passes when a table is created: each option under its name and with a prefix, and properties of its own.
PROPERTIES = {
    "owner": "me", "provider": "tailrace", "subscribe": "orders", "option.subscribe": "orders", "OPTION.LOG": "/data",
    "comment": "mine", "transient_lastDdlTime": "1",
}  # fmt: skip
STORED = {"subscribe": "orders", "log": "/data"}


@pytest.fixture
def schema():
    """The schema of a table, as a catalog gives it back."""
    made = with_options(struct("key binary not null, value binary"), STORED)
    return StructType.fromJson(json.loads(made.json()))


class TestCreation:
    @pytest.mark.parametrize("missing", ["owner", "provider"])
    def test_only_a_table_has_an_owner_and_a_provider(self, missing):
        assert is_table(CaseInsensitiveDict(PROPERTIES))
        assert not is_table(CaseInsensitiveDict({name: PROPERTIES[name] for name in PROPERTIES if name != missing}))

    @pytest.mark.parametrize("kind", [CaseInsensitiveDict, dict])
    def test_options_are_told_from_properties(self, kind):
        assert dict(table_options(kind(PROPERTIES))) == STORED

    def test_the_location_of_a_table_is_its_path(self):
        options = table_options(CaseInsensitiveDict({**PROPERTIES, "path": "/tables/t", "option.path": "/other"}))
        assert dict(options) == {**STORED, "path": "/tables/t"}

    def test_the_columns_stay_as_they_are(self, schema):
        assert schema.simpleString() == "struct<key:binary,value:binary>"
        assert [field.nullable for field in schema.fields] == [False, True]
        assert json.loads(schema.fields[0].metadata[METADATA_KEY]) == STORED
        assert schema.fields[1].metadata == {}


class TestQueries:
    def test_without_options_of_its_own_a_query_has_those_of_the_table(self, schema):
        assert dict(options_of(CaseInsensitiveDict({}), schema)) == STORED

    def test_its_own_go_before_those_of_the_table(self, schema):
        found = options_of(CaseInsensitiveDict({"LOG": "/other", "minPartitions": "3"}), schema)
        assert dict(found) == {"subscribe": "orders", "log": "/other", "minpartitions": "3"}
        assert found["Subscribe"] == "orders"

    @pytest.mark.parametrize("name", ["subscribe", "subscribePattern", "assign"])
    def test_one_that_names_topics_has_its_own_alone(self, schema, name):
        options = CaseInsensitiveDict({name: "x"})
        assert options_of(options, schema) is options

    def test_the_column_with_the_options_may_stand_anywhere(self, schema):
        turned = StructType([*reversed(schema.fields)])
        assert dict(options_of(CaseInsensitiveDict({}), turned)) == STORED

    def test_a_schema_of_no_table_changes_nothing(self):
        options = CaseInsensitiveDict({"log": "/data"})
        assert options_of(options, struct("key binary")) is options
