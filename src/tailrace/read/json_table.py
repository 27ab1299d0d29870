"""A table whose columns are the fields of JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from tailrace.extras import pyarrow, require
from tailrace.limits import JSON_NESTING_MAX
from tailrace.read.arrow import schema

META = ("topic", "partition", "offset", "timestamp", "key")

# A larger batch is parsed in halves: the parser works on one block, which holds 2 GiB at most.
BLOCK_BYTES_MAX = 256 << 20
_OBJECT = b"{}"


def json_table(batches: Iterable[Any], block_bytes_max: int = BLOCK_BYTES_MAX) -> Any:
    """Return a pyarrow.Table of record batches (or of a Table or reader of the same schema), with one row per record.

    The columns are topic, partition, offset, timestamp and key, then every field that any value has. A field that a
    value lacks is null; so is every field of a tombstone. A value that is no JSON object (nested at most 128 deep)
    gives nulls, and its bytes are in a last column `_value`, which exists only if there is such a value. Numbers are
    int64, or double if one of them is not an integer; text stays text even if it looks like a time; a field that is not
    of one type, or has an integer that int64 cannot hold, is text: strings as they are, anything else as JSON. If a
    field has the name of a meta column, the meta column gets the prefix `_`. Headers are left out.
    """
    pa = pyarrow()
    metas: list[Any] = []
    fields: list[Any] = []
    raws: list[Any] = []
    texts = None
    for batch in _blocks(batches, block_bytes_max):
        table, raw = _parse(batch.column("value"), texts)
        texts = _text_fields(table.schema) or texts
        metas.append(batch.select(META))
        fields.append(table)
        raws.append(raw)
    meta = pa.Table.from_batches(metas, pa.schema([schema().field(name) for name in META])).unify_dictionaries()
    parsed = _concatenated(fields)
    taken = set(parsed.schema.names)
    columns = {_free(name, taken): meta.column(name) for name in META}
    columns.update(zip(parsed.schema.names, parsed.columns, strict=True))
    if any(raw.null_count != len(raw) for raw in raws):
        columns[_free("_value", set(columns))] = pa.chunked_array(raws)
    return pa.table(list(columns.values()), names=list(columns))


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = f"_{name}"
    return name


def _blocks(batches: Iterable[Any], block_bytes_max: int) -> Iterator[Any]:
    for batch in batches.to_batches() if hasattr(batches, "to_batches") else batches:
        waiting = [batch]
        while waiting:
            block = waiting.pop()
            if block.num_rows > 1 and block.column("value").nbytes > block_bytes_max:
                half = block.num_rows // 2
                waiting += (block.slice(half), block.slice(0, half))
            elif block.num_rows:
                yield block


def _parse(values: Any, texts: Any | None) -> tuple[Any, Any]:
    """Return the fields of all values as a Table, and the bytes of those that are no objects (else null)."""
    pa = pyarrow()
    lines = require("pyarrow.compute", "arrow").fill_null(values, _OBJECT)
    if _plain(lines):
        table = _read(lines, texts)
        if table is not None:
            return table, pa.nulls(len(values), pa.binary())
    given = values.to_pylist()
    found = [{} if value is None else _object(value) for value in given]
    objects = [value if fields else _OBJECT for value, fields in zip(given, found, strict=True)]
    table = _read(pa.array(objects, pa.binary()), texts)
    if table is None:
        found = [fields if fields is not None and _encodable(fields) else None for fields in found]
        table = _from_objects([fields or {} for fields in found])
    others = [value if fields is None else None for value, fields in zip(given, found, strict=True)]
    return table, pa.array(others, pa.binary())


def _plain(lines: Any) -> bool:
    """Return whether each value starts and ends like an object and is shallow, so that Arrow can parse it.

    Such a value is at least one row or an error, so an equal number of rows and values means one row per value: a
    closing bracket, a new line and an opening bracket can only occur between two rows.
    """
    pa = pyarrow()
    compute = require("pyarrow.compute", "arrow")
    if not compute.all(compute.and_(compute.starts_with(lines, "{"), compute.ends_with(lines, "}"))).as_py():
        return False
    brackets = sum(compute.max(compute.count_substring(lines, bracket)).as_py() for bracket in "{[")
    if brackets > JSON_NESTING_MAX:
        return False
    try:
        lines.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _read(lines: Any, texts: Any | None) -> Any | None:
    """Parse all lines at once; return None if Arrow cannot, or finds another number of objects."""
    pa = pyarrow()
    joined = require("pyarrow.compute", "arrow").binary_join_element_wise(lines, b"", b"\n")
    _, offsets, data = joined.buffers()
    ends = memoryview(offsets).cast("i")
    block = data[ends[joined.offset] : ends[joined.offset + len(joined)]]
    try:
        table = _read_block(block, texts)
        if _has_time(pa.struct(table.schema)):
            table = _read_block(block, _text_fields(table.schema))
        # Some versions of Arrow make broken arrays of lists that hold only nulls.
        table.validate(full=True)
        if _has_double(pa.struct(table.schema)) and _has_long_number(lines):
            return None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        # A field that was text in an earlier batch may have another type in this one.
        return _read(lines, None) if texts is not None else None
    return table if table.num_rows == len(lines) else None


def _read_block(block: Any, texts: Any | None) -> Any:
    arrow_json = require("pyarrow.json", "arrow")
    return arrow_json.read_json(
        pyarrow().BufferReader(block),
        # One block, because Arrow decides types per block.
        arrow_json.ReadOptions(block_size=block.size + 1),
        arrow_json.ParseOptions(explicit_schema=texts),
    )


def _has_time(kind: Any) -> bool:
    types = pyarrow().types
    if types.is_struct(kind):
        return any(_has_time(kind.field(index).type) for index in range(kind.num_fields))
    return _has_time(kind.value_type) if types.is_list(kind) else bool(types.is_temporal(kind))


def _has_double(kind: Any) -> bool:
    types = pyarrow().types
    if types.is_struct(kind):
        return any(_has_double(kind.field(index).type) for index in range(kind.num_fields))
    return _has_double(kind.value_type) if types.is_list(kind) else bool(types.is_floating(kind))


def _has_long_number(lines: Any) -> bool:
    """Return whether there may be an integer that int64 cannot hold, which Arrow would round."""
    compute = require("pyarrow.compute", "arrow")
    return bool(compute.any(compute.match_substring_regex(lines, "[0-9]{19}")).as_py())


def _text_fields(found: Any) -> Any | None:
    """Return the text fields as a schema, which prevents Arrow from parsing some of them as times."""
    text = _text_type(pyarrow().struct(found))
    return None if text is None else pyarrow().schema(list(text))


def _text_type(kind: Any) -> Any | None:
    """Return the part of a type that is text; None if there is none in it."""
    pa = pyarrow()
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        texts = [(field.name, _text_type(field.type)) for field in fields]
        kept = [(name, text) for name, text in texts if text is not None]
        return pa.struct(kept) if kept else None
    if pa.types.is_list(kind):
        text = _text_type(kind.value_type)
        return None if text is None else pa.list_(text)
    return pa.string() if pa.types.is_string(kind) or pa.types.is_temporal(kind) else None


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))


def _object(value: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a value; None if it is something else."""
    if value.count(b"{") + value.count(b"[") > JSON_NESTING_MAX:
        brackets = _STRING.sub(b"", value).translate(None, _NOT_BRACKETS)
        if max(accumulate(1 if bracket in b"{[" else -1 for bracket in brackets), default=0) > JSON_NESTING_MAX:
            return None
    try:
        found = json.loads(value.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _encodable(found: dict[str, Any]) -> bool:
    """Return False for text with a lone surrogate, which JSON can express and UTF-8 cannot."""
    try:
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _from_objects(objects: list[dict[str, Any]]) -> Any:
    names = dict.fromkeys(name for found in objects for name in found)
    pa = pyarrow()
    if not names:
        # Rows without columns: a table keeps their number only if it had a column.
        return pa.table({"": pa.nulls(len(objects))}).select([])
    return pa.table({name: _column([found.get(name) for found in objects]) for name in names})


def _column(items: list[Any]) -> Any:
    pa = pyarrow()
    if not any(map(_has_large, items)):
        try:
            return pa.array(items)
        except pa.ArrowException:
            if all(item is None or type(item) in (int, float) for item in items):
                return pa.array([None if item is None else float(item) for item in items], pa.float64())
    return pa.array([_text(item) for item in items], pa.string())


def _has_large(item: Any) -> bool:
    """Return whether it contains an integer that int64 cannot hold."""
    if isinstance(item, dict):
        return any(map(_has_large, item.values()))
    if isinstance(item, list):
        return any(map(_has_large, item))
    return isinstance(item, int) and not -(1 << 63) <= item < 1 << 63


def _text(item: Any) -> str | None:
    return item if item is None or isinstance(item, str) else json.dumps(item, ensure_ascii=False)


def _concatenated(tables: list[Any]) -> Any:
    pa = pyarrow()
    if not tables:
        return pa.table({})
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        names = dict.fromkeys(name for table in tables for name in table.schema.names)
        return pa.table({name: _united([_pick(table, name) for table in tables]) for name in names})


def _pick(table: Any, name: str) -> Any:
    present = name in table.schema.names
    return table.column(name) if present else pyarrow().chunked_array([pyarrow().nulls(table.num_rows)])


def _united(columns: list[Any]) -> Any:
    """Return one column of several, whatever their types."""
    pa = pyarrow()
    try:
        return pa.concat_tables([pa.table({"": column}) for column in columns], promote_options="permissive").column(0)
    except pa.ArrowException:
        pass
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_null)
    if all(any(test(column.type) for test in numbers) for column in columns):
        chunks = [column.cast(pa.float64(), safe=False).combine_chunks() for column in columns]
    else:
        chunks = [pa.array([_text(item) for item in column.to_pylist()], pa.string()) for column in columns]
    return pa.chunked_array(chunks)
