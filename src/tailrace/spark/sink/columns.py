"""The columns of a write: the names and types that a DataFrame may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

NAMES = ("value", "key", "topic", "partition", "headers", "timestamp")


class ColumnIndexes(NamedTuple):
    """The index of each column of a DataFrame; None for one that it does not have."""

    value: int
    key: int | None = None
    topic: int | None = None
    partition: int | None = None
    headers: int | None = None
    timestamp: int | None = None


def check_columns(schema: StructType) -> ColumnIndexes:
    """Return the columns of a DataFrame that are written; raise TypeError that says what to write instead.

    Columns of other names are ignored, as Spark's Kafka sink ignores them.
    """
    found: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in NAMES:
            continue
        if name in found:
            raise TypeError(f"There are two columns {name!r}: which one is meant cannot be told, so drop one.")
        _check_type(name, field)
        found[name] = index
    if "value" not in found:
        raise TypeError(
            f"There is no column 'value' among {_listed(schema)}: it holds what is stored. "
            'A whole row as JSON: df.selectExpr("to_json(struct(*)) AS value")'
        )
    return ColumnIndexes(**found)


def _listed(schema: StructType) -> str:
    return ", ".join(field.name for field in schema.fields) or "no columns at all"


def _check_type(name: str, field: StructField) -> None:
    from pyspark.sql import types

    kind = field.dataType
    if isinstance(kind, types.NullType):
        wrong = name == "value"
    elif name in ("value", "key"):
        wrong = not isinstance(kind, (types.BinaryType, types.StringType))
    elif name == "topic":
        wrong = not isinstance(kind, types.StringType)
    elif name == "partition":
        wrong = not isinstance(kind, (types.ByteType, types.ShortType, types.IntegerType, types.LongType))
    elif name == "timestamp":
        wrong = not isinstance(kind, types.TimestampType)
    else:
        wrong = not _holds_headers(kind)
    if wrong:
        raise TypeError(f"The column {name!r} is {kind.simpleString()}: {_WANTED[name]}")


def _holds_headers(kind: DataType) -> bool:
    from pyspark.sql import types

    texts = (types.BinaryType, types.StringType)
    if isinstance(kind, types.MapType):
        return isinstance(kind.keyType, types.StringType) and isinstance(kind.valueType, texts)
    if not isinstance(kind, types.ArrayType) or not isinstance(kind.elementType, types.StructType):
        return False
    fields = kind.elementType.fields
    return (
        len(fields) == 2
        and fields[0].name.lower() in ("key", "name")
        and fields[1].name.lower() == "value"
        and isinstance(fields[0].dataType, types.StringType)
        and isinstance(fields[1].dataType, texts)
    )


_WANTED = {
    "value": "it must be binary or string. For anything else store JSON: to_json(value) AS value, "
    "or cast(value AS string) AS value",
    "key": "it must be binary or string: cast(key AS string) AS key",
    "topic": "it must be string, the name of the topic of each row",
    "partition": "it must be an integer, the number of a partition from 0, or null where the key decides",
    "headers": "it must be array<struct<key:string,value:binary>>, or map<string,binary>",
    "timestamp": "it must be timestamp, the time of the record: cast(timestamp AS timestamp) AS timestamp, or drop it",
}
