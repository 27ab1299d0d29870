"""JSON values as typed columns: parsed in bulk by Arrow, and one by one where a value does not fit.

A bad value never fails a query. A value that is no JSON object gives nulls; a field of another type gives null in its
place. Both count as corrupt. A tombstone gives nulls and is not corrupt.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, NamedTuple

from tailrace.extras import pyarrow, require

# A block with a bad value is split into blocks of the next size; in the smallest, values are parsed one by one: a call
# of Arrow's parser takes as long as a hundred values in Python.
BLOCK_SIZES = (2_048, 128)
# The range of microseconds since 1970 that a column can hold.
_TIME_US_LIMIT = 1 << 63
# A day as Spark parses it, and what may follow: a time of the day, with or without a zone.
_DAY = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[T ](.*))?)?)?", re.ASCII | re.DOTALL)
_TIME = re.compile(r"\d\d(?::\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII)
# A text in double or in single quotes, and what must be replaced in it to use double ones.
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'', re.DOTALL)
_REQUOTED = re.compile(r"\\.|\"", re.DOTALL)
_BLANKS = " \t\r\n"
_NOT_FINITE = {
    "NaN": "nan",
    "Infinity": "inf",
    "+Infinity": "inf",
    "INF": "inf",
    "+INF": "inf",
    "-Infinity": "-inf",
    "-INF": "-inf",
}
# The digits of a Spark decimal.
_DECIMALS = Context(prec=38, rounding=ROUND_HALF_UP)


class Parsed(NamedTuple):
    """One array per field, and for each value whether it was corrupt."""

    columns: list[Any]
    corrupt: Any


class Parser:
    """Parser of values into fields of known types; created once for many batches."""

    def __init__(self, fields: Any) -> None:
        pa = pyarrow()
        self.fields = fields
        # Types that Arrow's parser does not support are parsed one by one.
        self.native = all(_is_native(field.type) for field in fields)
        wires = [fields] if self.native else []
        if self.native and any(_holds(field.type, pa.types.is_timestamp) for field in fields):
            # Timestamps with nanoseconds are common, Spark does not have them, and Arrow accepts them only on request.
            wires.append(pa.schema([(field.name, _in_nanoseconds(field.type)) for field in fields]))
        self.wires = [pa.schema([(field.name, _wire(field.type)) for field in wire]) for wire in wires]
        self.converters = [(field.name, _converter(field.type)) for field in fields]
        self.exact = any(_holds(field.type, pa.types.is_decimal) for field in fields)
        self.decoder = json.JSONDecoder(parse_float=Decimal) if self.exact else json.JSONDecoder()

    def parse(self, values: Any) -> Parsed:
        """Return the fields of a binary array of values."""
        pa = pyarrow()
        blocks = [*self._blocks(values)] or [self._one_by_one(values)]
        if len(blocks) == 1:
            return blocks[0]
        columns = [pa.concat_arrays(parts) for parts in zip(*(block.columns for block in blocks), strict=True)]
        return Parsed(columns, pa.concat_arrays([block.corrupt for block in blocks]))

    def _blocks(self, values: Any) -> list[Parsed]:
        """Parse in blocks as large as possible."""
        done: list[Parsed] = []
        waiting = [values] if len(values) else []
        while waiting:
            block = waiting.pop()
            parsed = self._in_bulk(block)
            if parsed is not None:
                done.append(parsed)
                continue
            size = next((size for size in BLOCK_SIZES if size < len(block)), 0) if self.native else 0
            if size:
                waiting += [block.slice(at, size) for at in range(0, len(block), size)][::-1]
            else:
                done.append(self._one_by_one(block))
        return done

    def _in_bulk(self, values: Any) -> Parsed | None:
        """Parse all values at once; return None if any of them is not an object with fields of the right types."""
        pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
        if not self.native:
            return None
        try:
            lines = compute.fill_null(values, b"{}").cast(pa.string())
        except pa.ArrowInvalid:
            # Not UTF-8.
            return None
        objects = _are_objects(lines)
        if not compute.all(objects).as_py():
            lines = compute.utf8_trim(lines, _BLANKS)
            objects = _are_objects(lines)
            # A line that does not begin and end like an object is not one, so it is replaced.
            lines = compute.if_else(objects, lines, "{}")
        joined = compute.binary_join_element_wise(lines, "", "\n")
        ends = memoryview(joined.buffers()[1]).cast("i")
        block = joined.buffers()[2][ends[joined.offset] : ends[joined.offset + len(joined)]]
        for wire in self.wires:
            table = _read(block, wire)
            # Each value begins and ends like an object and line feeds separate them, so each is at least one row: the
            # right number of rows means one row per value.
            if table is not None and table.num_rows == len(values):
                columns = self._cast(table)
                if columns is not None:
                    return Parsed(columns, compute.invert(objects))
        return None

    def _cast(self, table: Any) -> list[Any] | None:
        pa = pyarrow()
        try:
            columns = [
                _whole(column if column.type == field.type else column.cast(field.type, safe=False))
                for column, field in zip(table.columns, self.fields, strict=True)
            ]
            for column in columns if self.exact else ():
                # Arrow's parser checks the scale of a decimal, but not its precision.
                column.validate(full=True)
        except pa.ArrowInvalid:
            # A text that is no date, or a decimal with too many digits.
            return None
        return columns

    # One value at a time.

    def _one_by_one(self, values: Any) -> Parsed:
        pa = pyarrow()
        rows: list[list[Any]] = [[] for _ in self.fields]
        corrupt: list[bool] = []
        for value in values.to_pylist():
            found, bad = self._row(value)
            corrupt.append(bad)
            for items, item in zip(rows, found, strict=True):
                items.append(item)
        columns = [pa.array(items, field.type) for items, field in zip(rows, self.fields, strict=True)]
        return Parsed(columns, pa.array(corrupt, pa.bool_()))

    def _row(self, value: bytes | None) -> tuple[Sequence[Any], bool]:
        nothing = [None] * len(self.converters)
        if value is None:
            return nothing, False
        try:
            found = self._decode(value.decode("utf-8"))
        except RecursionError:
            return self._deep(value)
        except ValueError:
            return nothing, True
        if not isinstance(found, dict):
            return nothing, True
        bad = False
        for index, (name, convert) in enumerate(self.converters):
            item = found.get(name)
            if item is not None:
                try:
                    nothing[index] = convert(item)
                except (ValueError, TypeError, OverflowError, ArithmeticError):
                    bad = True
        return nothing, bad

    def _decode(self, text: str) -> Any:
        try:
            return self.decoder.decode(text)
        except ValueError:
            if "'" not in text:
                raise
            # Like Spark: texts may be in single quotes.
            return self.decoder.decode(_QUOTED.sub(_in_double_quotes, text))

    def _deep(self, value: bytes) -> tuple[Sequence[Any], bool]:
        """Parse a value nested deeper than Python's recursion limit; Arrow skips the parts that are not selected."""
        parsed = self._in_bulk(pyarrow().array([value], pyarrow().binary()))
        if parsed is None:
            return [None] * len(self.converters), True
        return [column[0].as_py() for column in parsed.columns], False


def corrupt_texts(values: Any, corrupt: Any, kind: Any) -> Any:
    """Return the corrupt values themselves, null for all others."""
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    if not compute.any(corrupt).as_py():
        return pa.nulls(len(values), kind)
    chosen = values.filter(corrupt).to_pylist()
    if pa.types.is_string(kind):
        chosen = [value.decode("utf-8", "replace") for value in chosen]
    return compute.replace_with_mask(pa.nulls(len(values), kind), corrupt, pa.array(chosen, kind))


# Parsing by Arrow.


def _are_objects(lines: Any) -> Any:
    compute = require("pyarrow.compute", "arrow")
    return compute.and_(compute.starts_with(lines, "{"), compute.ends_with(lines, "}"))


def _read(block: Any, wire: Any) -> Any | None:
    pa, arrow_json = pyarrow(), require("pyarrow.json", "arrow")
    try:
        return arrow_json.read_json(
            pa.BufferReader(block),
            arrow_json.ReadOptions(use_threads=False, block_size=block.size + 1),
            arrow_json.ParseOptions(explicit_schema=wire, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        return None


def _is_native(kind: Any) -> bool:
    types = pyarrow().types
    if types.is_struct(kind):
        return all(_is_native(kind.field(index).type) for index in range(kind.num_fields)) and kind.num_fields > 0
    if types.is_list(kind):
        return _is_native(kind.value_type)
    return not types.is_map(kind) and not types.is_binary(kind)


def _holds(kind: Any, test: Callable[[Any], bool]) -> bool:
    types = pyarrow().types
    if types.is_struct(kind):
        return any(_holds(kind.field(index).type, test) for index in range(kind.num_fields))
    if types.is_list(kind):
        return _holds(kind.value_type, test)
    return _holds(kind.item_type, test) if types.is_map(kind) else bool(test(kind))


def _replaced(kind: Any, replace: Callable[[Any], Any]) -> Any:
    pa = pyarrow()
    if pa.types.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_replaced(field.type, replace)) for field in inner])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_replaced(kind.value_type, replace)))
    return replace(kind)


def _wire(kind: Any) -> Any:
    """Return the type to request from Arrow's parser, which would read a date as a number of days."""
    pa = pyarrow()
    return _replaced(kind, lambda each: pa.string() if pa.types.is_date(each) else each)


def _in_nanoseconds(kind: Any) -> Any:
    pa = pyarrow()
    return _replaced(kind, lambda each: pa.timestamp("ns", each.tz) if pa.types.is_timestamp(each) else each)


def _whole(column: Any) -> Any:
    chunks = column.combine_chunks()
    return chunks.chunk(0) if hasattr(chunks, "num_chunks") and chunks.num_chunks == 1 else chunks


def _in_double_quotes(found: re.Match[str]) -> str:
    """Return a JSON text in double quotes; an escaped single quote is not a valid escape in JSON."""
    inner = _REQUOTED.sub(lambda each: {"\\'": "'", '"': '\\"'}.get(each[0], each[0]), found[0][1:-1])
    return f'"{inner}"'


# Parsing by Python: one function per type, which raises for a value that is not of it.


def _converter(kind: Any) -> Callable[[Any], Any]:
    types = pyarrow().types
    if types.is_struct(kind):
        inner = [(kind.field(index).name, _converter(kind.field(index).type)) for index in range(kind.num_fields)]
        return lambda item: {name: _optional(convert, _of(item, dict).get(name)) for name, convert in inner}
    if types.is_list(kind):
        each = _converter(kind.value_type)
        return lambda item: [_optional(each, part) for part in _of(item, list)]
    if types.is_map(kind):
        each = _converter(kind.item_type)
        return lambda item: [(_text(name), _optional(each, part)) for name, part in _of(item, dict).items()]
    if types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return lambda item: _integer(item, limit)
    if types.is_decimal(kind):
        return lambda item: _decimal(item, kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return _zoned if kind.tz else _unzoned
    simple = ((types.is_boolean, _boolean), (types.is_floating, _double), (types.is_date, _date))
    return next((convert for test, convert in simple if test(kind)), _bytes if types.is_binary(kind) else _text)


def _optional(convert: Callable[[Any], Any], item: Any) -> Any:
    return None if item is None else convert(item)


def _of(item: Any, kind: type) -> Any:
    if not isinstance(item, kind):
        raise TypeError
    return item


def _boolean(item: Any) -> bool:
    return bool(_of(item, bool))


def _integer(item: Any, limit: int) -> int:
    if isinstance(item, bool) or not -limit <= _of(item, int) < limit:
        raise ValueError
    return int(item)


def _double(item: Any) -> float:
    if isinstance(item, str) and item in _NOT_FINITE:
        return float(_NOT_FINITE[item])
    if isinstance(item, bool) or not isinstance(item, (int, float, Decimal)):
        raise TypeError
    return float(item)


def _decimal(item: Any, precision: int, scale: int) -> Decimal:
    if isinstance(item, bool) or not isinstance(item, (int, str, Decimal, float)):
        raise TypeError
    try:
        found = _DECIMALS.quantize(Decimal(str(item)), Decimal(1).scaleb(-scale))
    except InvalidOperation:
        raise ValueError from None
    if not found.is_finite() or len(found.as_tuple().digits) > precision:
        raise ValueError
    return found


def _text(item: Any) -> str:
    """Return text unchanged and anything else as JSON, like Spark's from_json."""
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False, separators=(",", ":"), default=str)
    # A lone surrogate is valid in JSON and not in UTF-8.
    text.encode("utf-8")
    return text


def _bytes(item: Any) -> bytes:
    return base64.b64decode(_of(item, str), validate=True)


def _date(item: Any) -> date:
    """Return a day; a time after it is ignored, like in Spark."""
    return _day(item)[0]


def _day(item: Any) -> tuple[date, str | None]:
    """Return a day, whose month and day may be omitted or short, and the text after it."""
    found = _DAY.fullmatch(_of(item, str).strip())
    if found is None:
        raise ValueError
    return date(int(found[1]), int(found[2] or 1), int(found[3] or 1)), found[4]


def _moment(item: Any) -> datetime:
    day, rest = _day(item)
    if rest is not None and not _TIME.fullmatch(rest):
        raise ValueError
    return datetime.fromisoformat(f"{day.isoformat()}T{rest or '00:00'}")


def _zoned(item: Any) -> datetime | int:
    if isinstance(item, int) and not isinstance(item, bool):
        # Like Spark: an integer is in seconds, so a value meant as milliseconds is far in the future.
        return _integer(item * 1_000_000, _TIME_US_LIMIT)
    found = _moment(item)
    # Spark's session time zone is not known in an executor.
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _unzoned(item: Any) -> datetime:
    found = _moment(item)
    return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
