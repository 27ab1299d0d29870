"""What a caller may give as a schema, how it is stored, and how its versions count."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from typing import Annotated, Literal

import msgspec
import pydantic
import pytest

from tailrace.engine.engine import topic_settings
from tailrace.errors import CorruptionError, LimitError, MissingExtraError
from tailrace.limits import SCHEMA_BYTES_MAX, SCHEMA_VERSION_MAX
from tailrace.schemas import TopicSchema, schema_text
from tailrace.settings import TopicSettings

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
OTHER = {"type": "string"}


class Kind(enum.Enum):
    NEW = "new"
    OLD = "old"


@dataclasses.dataclass
class Line:
    sku: str
    count: int = 1


@dataclasses.dataclass
class Order:
    id: int
    kind: Kind
    state: Literal["open", "paid"]
    lines: list[Line]
    note: str | None = None
    before: Order | None = None


class Struct(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[int, msgspec.Meta(ge=1)]


class Model(pydantic.BaseModel):
    id: int = pydantic.Field(ge=1)


@pydantic.dataclasses.dataclass
class Checked:
    id: int = pydantic.Field(ge=1)


@dataclasses.dataclass
class Strange:
    stream: object
    file: type[Line]


def stored(**settings):
    return TopicSettings.from_user(**settings).schema


def test_equal_schemas_have_equal_texts():
    turned = {"required": ["id"], "properties": {"id": {"type": "integer"}}, "type": "object"}
    assert schema_text(ORDER) == schema_text(turned)
    assert schema_text({"const": 1}) != schema_text({"const": True}), "which Python takes for equal"
    assert schema_text(None) is None
    assert stored() is None
    assert stored(schema=None) is None
    assert stored(schema=ORDER) == TopicSchema(1, schema_text(ORDER))


def test_the_settings_differ_where_json_does():
    settings = TopicSettings.from_user(schema={"const": 1})
    assert settings.diff({"schema": {"const": 1}}) == {}
    assert settings.diff({"schema": {"const": True}}) == {"schema": ({"const": 1}, {"const": True})}
    assert settings.diff({"schema": None}) == {"schema": ({"const": 1}, None)}
    assert settings.to_user()["schema"] == {"const": 1}


@pytest.mark.parametrize("kind", [Struct, Model, Checked])
def test_a_type_has_the_schema_of_its_library(kind):
    found = json.loads(schema_text(kind))
    inside = found["$defs"][kind.__name__] if "$defs" in found else found
    assert inside["properties"]["id"]["minimum"] == 1
    assert inside["required"] == ["id"]


def test_a_dataclass_with_others_inside():
    found = json.loads(schema_text(Order))["$defs"]
    assert found["Order"]["required"] == ["id", "kind", "state", "lines"]
    assert found["Order"]["properties"]["lines"] == {"type": "array", "items": {"$ref": "#/$defs/Line"}}
    assert found["Kind"]["enum"] == ["new", "old"]
    assert found["Line"]["required"] == ["sku"]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("{}", TypeError, "must not be a str: give a JSON Schema as a dict"),
        (True, TypeError, "must not be a bool"),
        ([], TypeError, "must not be a list"),
        (Line("cup"), TypeError, "must not be a Line"),
        (int, TypeError, "must not be the type int"),
        (Strange, TypeError, "The type Strange has no JSON Schema"),
        ({"const": float("nan")}, ValueError, "cannot be stored as JSON"),
        ({"const": b"x"}, ValueError, "cannot be stored as JSON: Object of type bytes"),
        ({"const": "\ud800"}, ValueError, "cannot be stored as JSON"),
        ({"title": "x" * SCHEMA_BYTES_MAX}, ValueError, "the maximum is 65,536"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, ValueError, "is written in 'http://json-schema.org/d"),
        ({"$schema": 7}, ValueError, "is written in 7"),
    ],
)
def test_what_is_no_schema(given, error, said):
    with pytest.raises(error, match=said.replace("(", r"\(")):
        schema_text(given)


def test_a_schema_that_contains_itself():
    given = {}
    given["not"] = given
    with pytest.raises(ValueError, match=r"contains itself|Circular"):
        schema_text(given)


def test_the_version_counts_the_schemas_that_there_were():
    first = TopicSettings.from_user(schema=ORDER)
    assert first.altered(schema=dict(reversed(ORDER.items()))) == first, "an equal one changes nothing"
    second = first.altered(schema=OTHER)
    assert second.schema == TopicSchema(2, schema_text(OTHER))
    none = second.altered(schema=None)
    assert none.schema == TopicSchema(2, None)
    assert none.altered(schema=None) == none
    assert none.to_user()["schema"] is None
    assert none.altered(schema=OTHER).schema.version == 3, "records of version 2 may be of another time"
    assert none.altered(ttl="1h").schema == none.schema


def test_the_last_version():
    settings = TopicSettings(schema=TopicSchema(SCHEMA_VERSION_MAX, schema_text(ORDER)))
    assert settings.altered(schema=ORDER) == settings
    with pytest.raises(LimitError, match="65,535 times"):
        settings.altered(schema=OTHER)
    none = settings.altered(schema=None)
    with pytest.raises(LimitError, match="65,535 times"):
        none.altered(schema=OTHER)


def test_there_and_back():
    for settings in (TopicSettings.from_user(schema=ORDER), TopicSettings(schema=TopicSchema(4, None))):
        assert TopicSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@pytest.mark.parametrize(
    "damaged",
    [
        5, [], "text", {}, {"version": 1}, {"json": "{}"}, {"version": 0, "json": "{}"}, {"version": "1", "json": "{}"},
        {"version": True, "json": "{}"}, {"version": 65_536, "json": "{}"}, {"version": 1, "json": "{"},
        {"version": 1, "json": "[]"}, {"version": 1, "json": {}}, {"version": 1, "json": "[" * 100_000},
    ],
)  # fmt: skip
def test_a_damaged_one_in_the_catalog(damaged):
    with pytest.raises(CorruptionError, match="makes no sense"):
        TopicSettings.from_json({"schema": damaged})


def test_the_catalog_has_it_as_text(tailrace_log):
    topic = tailrace_log.topic("orders", schema=Model)
    entry = tailrace_log.engine.entry("orders")
    assert entry.settings == {"schema": {"version": 1, "json": schema_text(Model)}}
    topic.alter(schema=None)
    entry = tailrace_log.engine.entry("orders")
    assert entry.settings == {"schema": {"version": 1, "json": None}}
    assert topic_settings(entry).schema == TopicSchema(1, None)


def test_a_library_that_is_missing(tailrace_log, monkeypatch):
    monkeypatch.setitem(sys.modules, "msgspec.json", None)
    with pytest.raises(MissingExtraError, match=r'pip install "tailrace\[schema\]"'):
        tailrace_log.topic("orders", schema=Order)
    assert tailrace_log.topics() == []
