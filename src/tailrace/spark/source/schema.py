"""The columns of the source: those of Spark's Kafka source, a choice of them, or the fields of JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from tailrace.extras import pyarrow
from tailrace.names import did_you_mean

if TYPE_CHECKING:
    from tailrace.spark.source.options import SourceOptions

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
# In the order of Spark's Kafka source.
METADATA: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(HEADER),
}
# A tombstone has no value, many records have no key, and most have no headers.
MAY_BE_NULL = frozenset({"key", "value", "headers"})
_SPELLING = {name.lower(): name for name in METADATA}
_PLAIN = {
    BooleanType: "bool_",
    ByteType: "int8",
    ShortType: "int16",
    IntegerType: "int32",
    LongType: "int64",
    FloatType: "float32",
    DoubleType: "float64",
    StringType: "string",
    CharType: "string",
    VarcharType: "string",
    BinaryType: "binary",
    DateType: "date32",
}


class Layout(NamedTuple):
    """How an executor turns records into columns, as plain values, so that it can be pickled."""

    # The schema of every batch, as Spark expects it.
    arrow: Any
    # For each column its metadata field; None for a field of the value, "corrupt" for the text of a bad value.
    sources: tuple[str | None, ...]
    # The fields that are parsed from the value, and their names in it.
    fields: Any

    @property
    def parses(self) -> bool:
        """Whether values are parsed."""
        return None in self.sources or "corrupt" in self.sources


def default_schema(options: SourceOptions) -> StructType:
    """Return the columns of a query that names none."""
    if options.value_format == "json":
        raise ValueError(
            "valueFormat=json needs the fields of the values: "
            'write .schema("user string, amount double") with those to read.'
        )
    return StructType(
        [StructField(name, kind) for name, kind in METADATA.items() if name != "headers" or options.include_headers]
    )


def layout_of(schema: StructType, options: SourceOptions) -> Layout:
    """Return how to fill the columns that a query names; raise ValueError for those that do not exist."""
    if not schema.fields:
        raise ValueError("The schema has no columns: leave it out, or name some.")
    names = [field.name for field in schema.fields]
    repeated = {name for name in names if [each.lower() for each in names].count(name.lower()) > 1}
    if repeated:
        raise ValueError(f"The schema names {sorted(repeated)[0]!r} twice.")
    pick = _json_source if options.value_format == "json" else _metadata_source
    sources = tuple(pick(field, options) for field in schema.fields)
    pa = pyarrow()
    made = [pa.field(field.name, arrow_type(field.dataType, field.name), field.nullable) for field in schema.fields]
    fields = [field for field, source in zip(made, sources, strict=True) if source is None]
    return Layout(pa.schema(made), sources, pa.schema(fields))


def _metadata_source(field: StructField, options: SourceOptions) -> str:
    name = _SPELLING.get(field.name.lower())
    if name is None:
        near = did_you_mean(field.name.lower(), _SPELLING)
        question = f"did you mean {_SPELLING[near]}?" if near else f"there are {', '.join(METADATA)}."
        raise ValueError(
            f"A record has no column {field.name!r}: {question} "
            "(The fields of JSON values are columns with valueFormat=json.)"
        )
    _check_metadata(field, name)
    return name


def _json_source(field: StructField, options: SourceOptions) -> str | None:
    prefix = options.metadata_prefix.lower()
    lowered = field.name.lower()
    if lowered == options.corrupt_column.lower():
        if not isinstance(field.dataType, (StringType, BinaryType)) or not field.nullable:
            raise ValueError(f"{field.name} holds the text of values that are not as they should be: make it a string.")
        return "corrupt"
    name = _SPELLING.get(lowered.removeprefix(prefix)) if lowered.startswith(prefix) else None
    if name is not None:
        try:
            _check_metadata(field, name)
        except ValueError as error:
            raise ValueError(
                f"{error} (If your values have a field {field.name!r}, give metadata another prefix than "
                f"{options.metadata_prefix!r} with the option metadataPrefix.)"
            ) from None
        return name
    _check_nullable(field.dataType, field.nullable, field.name)
    return None


def _check_metadata(field: StructField, name: str) -> None:
    wanted = METADATA[name]
    if not _same(field.dataType, wanted):
        message = f"The column {field.name} is {wanted.simpleString()}, not {field.dataType.simpleString()}"
        if name in ("key", "value") and isinstance(field.dataType, StringType):
            message += f": read it as binary and write CAST({field.name} AS STRING) in the query"
        raise ValueError(f"{message}.")
    if not field.nullable and name in MAY_BE_NULL:
        raise ValueError(f"The column {field.name} may be null, as in a tombstone: leave NOT NULL out.")


def _same(given: DataType, wanted: DataType) -> bool:
    """Return whether a type is the wanted one and allows nulls inside."""
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return given.containsNull and _same(given.elementType, wanted.elementType)
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        return given.names == wanted.names and all(
            one.nullable and _same(one.dataType, other.dataType) for one, other in zip(given, wanted, strict=True)
        )
    return given == wanted


def _check_nullable(kind: DataType, nullable: bool, name: str) -> None:
    """Raise ValueError for a column that is not nullable: a field may be missing from any value."""
    if not nullable:
        raise ValueError(f"The field {name} may be missing from a value: leave NOT NULL out.")
    if isinstance(kind, StructType):
        for field in kind:
            _check_nullable(field.dataType, field.nullable, f"{name}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_nullable(kind.elementType, kind.containsNull, f"{name}[]")
    elif isinstance(kind, MapType):
        _check_nullable(kind.valueType, kind.valueContainsNull, f"{name}{{}}")


def arrow_type(kind: DataType, name: str) -> Any:
    """Return the Arrow type in which Spark takes a column."""
    pa = pyarrow()
    plain = _PLAIN.get(type(kind))
    if plain is not None:
        return getattr(pa, plain)()
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, TimestampType):
        return pa.timestamp("us", tz="UTC")
    if isinstance(kind, TimestampNTZType):
        return pa.timestamp("us")
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType, f"{name}[]"), kind.containsNull))
    if isinstance(kind, StructType):
        return pa.struct(
            [pa.field(each.name, arrow_type(each.dataType, f"{name}.{each.name}"), each.nullable) for each in kind]
        )
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        value = arrow_type(kind.valueType, f"{name}{{}}")
        return pa.map_(pa.field("key", pa.string(), False), pa.field("value", value, kind.valueContainsNull))
    raise ValueError(
        f"The field {name} cannot be read as {kind.simpleString()}: use a number, string, boolean, binary, date, "
        "timestamp, decimal, or a struct, an array or a map from strings of those."
    )
