"""Schemas from text without a JVM, which Spark's own parser needs."""

from __future__ import annotations

import re

from pyspark.sql import types

SIMPLE = {
    "binary": types.BinaryType,
    "string": types.StringType,
    "boolean": types.BooleanType,
    "tinyint": types.ByteType,
    "smallint": types.ShortType,
    "int": types.IntegerType,
    "bigint": types.LongType,
    "float": types.FloatType,
    "double": types.DoubleType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
    "interval": types.DayTimeIntervalType,
}


def struct(text: str) -> types.StructType:
    """`name type [not null], ...` with struct<name: type>, array<type>, map<type, type> and decimal(p, s)."""
    return types.StructType([_field(part) for part in _parts(text)])


def _parts(text: str) -> list[str]:
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found if part.strip()]


def _field(text: str) -> types.StructField:
    name, kind = re.fullmatch(r"(\w+)\s*[:\s]\s*(.+)", text, re.DOTALL).groups()
    plain = re.sub(r"\s+not null$", "", kind.strip(), flags=re.IGNORECASE)
    return types.StructField(name, _type(plain), plain == kind.strip())


def _type(text: str) -> types.DataType:
    if text.startswith("struct<"):
        return struct(text[7:-1])
    if text.startswith("array<"):
        return types.ArrayType(_type(text[6:-1].strip()))
    if text.startswith("map<"):
        return types.MapType(*(_type(part) for part in _parts(text[4:-1])))
    if text.startswith("decimal("):
        return types.DecimalType(*(int(part) for part in _parts(text[8:-1])))
    return SIMPLE[text.split()[0]]()
