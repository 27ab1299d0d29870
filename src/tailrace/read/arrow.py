"""Records as Arrow, pandas and Polars data."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any

from tailrace.disk.columns import FramePart
from tailrace.errors import CorruptionError, LimitError
from tailrace.extras import pyarrow, require
from tailrace.read.picked import Picked
from tailrace.records import decode_headers

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from tailrace.disk.columns import Columns

# The maximum of 32-bit offsets within one array.
_ARRAY_BYTES_MAX = (1 << 31) - 1
_INT32 = Struct("<i")
_INT64 = Struct("<q")


@cache
def schema() -> Any:
    """Return the schema of every batch: one row per record."""
    pa = pyarrow()
    return pa.schema(
        [
            ("topic", pa.dictionary(pa.int32(), pa.string())),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ]
    )


@cache
def schema_of(names: tuple[str, ...]) -> Any:
    """Return the schema of a batch with only these columns, in this order."""
    known = schema()
    for name in names:
        if name not in known.names:
            raise ValueError(f"There is no column {name!r}: there are {', '.join(known.names)}.")
    return pyarrow().schema([known.field(name) for name in names])


def batch_to_arrow(parts: Sequence[FramePart], names: tuple[str, ...] | None = None) -> Any:
    """Return one pyarrow.RecordBatch of all parts; the bytes of a single uncompressed frame are shared, not copied.

    With `names` only those columns are built.
    """
    pa = pyarrow()
    wanted = schema() if names is None else schema_of(names)
    parts = [part for part in parts if part.first < part.stop]
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=wanted)
    if any(type(part.columns) is Picked for part in parts):
        return _filtered(parts, wanted)
    _check_size(parts)
    return pa.RecordBatch.from_arrays([_MAKERS[name](parts) for name in wanted.names], schema=wanted)


def _check_size(parts: Sequence[FramePart]) -> None:
    if sum([part.columns.weight for part in parts]) > _ARRAY_BYTES_MAX:
        hint = "Nothing is wrong with the records; read them in smaller batches: batches(max_records=...)."
        raise LimitError("One Arrow batch holds 2 GiB at most.", hint=hint)


def _filtered(parts: Sequence[FramePart], wanted: Any) -> Any:
    """Return the batch of parts of which some are picked from their frames: whole stretches, then filtered by Arrow."""
    pa = pyarrow()
    sources, masks = [], []
    for part in parts:
        topic, partition, columns, first, stop = part
        if type(columns) is Picked:
            first, stop, mask = columns.selection(first, stop)
            sources.append(FramePart(topic, partition, columns.source, first, stop))
            masks.append(mask)
        else:
            sources.append(part)
            masks.append(b"\1" * (stop - first))
    shown = _fixed(pa.uint8(), _count(sources), b"".join(masks)).cast(pa.bool_())
    _check_size(sources)
    # What is equal for all records of a part is made for those that are shown.
    made = [
        _MAKERS[name](parts) if name in ("topic", "partition") else _kept(_MAKERS[name](sources), shown, _count(parts))
        for name in wanted.names
    ]
    return pa.RecordBatch.from_arrays(made, schema=wanted)


def _kept(column: Any, shown: Any, count: int) -> Any:
    """Return the rows of a column that are shown."""
    if column.null_count == len(column):
        return pyarrow().nulls(count, column.type)
    return column.filter(shown)


def reader(batches: Iterable[Any], names: tuple[str, ...] | None = None) -> Any:
    """Return a pyarrow.RecordBatchReader that reads record batches one by one."""
    wanted = schema() if names is None else schema_of(names)
    return pyarrow().RecordBatchReader.from_batches(wanted, batches)


def to_pandas(source: Any) -> Any:
    """Return a pandas.DataFrame of a Table or a RecordBatchReader."""
    pyarrow()
    require("pandas", "pandas")
    return _table(source).to_pandas()


def to_polars(source: Any) -> Any:
    """Return a polars.DataFrame of a Table or a RecordBatchReader."""
    pyarrow()
    return require("polars", "polars").from_arrow(_table(source))


def _fixed(kind: Any, count: int, data: ReadableBuffer) -> Any:
    pa = pyarrow()
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)], null_count=0)


def _topics(parts: Sequence[FramePart]) -> Any:
    topics = list(dict.fromkeys(part.topic for part in parts))
    code_of = {topic: code for code, topic in enumerate(topics)}
    kind = schema().field("topic").type
    codes = b"".join([_INT32.pack(code_of[part.topic]) * (part.stop - part.first) for part in parts])
    return pyarrow().DictionaryArray.from_arrays(
        _fixed(kind.index_type, _count(parts), codes), pyarrow().array(topics, kind.value_type)
    )


def _partitions(parts: Sequence[FramePart]) -> Any:
    numbers = b"".join([_INT32.pack(part.partition) * (part.stop - part.first) for part in parts])
    return _fixed(pyarrow().int32(), _count(parts), numbers)


def _offsets(parts: Sequence[FramePart]) -> Any:
    return _joined([*_offset_arrays(parts)])


def _timestamps(parts: Sequence[FramePart]) -> Any:
    return _fixed(schema().field("timestamp").type, _count(parts), _times(parts))


def _keys(parts: Sequence[FramePart]) -> Any:
    if any(part.columns.key_offsets is not None for part in parts):
        return _joined([_key_array(part) for part in parts])
    return pyarrow().nulls(_count(parts), pyarrow().binary())


def _values(parts: Sequence[FramePart]) -> Any:
    return _joined([_value_array(part) for part in parts])


def _headers(parts: Sequence[FramePart]) -> Any:
    if any(part.columns.header_offsets is not None for part in parts):
        return _joined([_header_array(part) for part in parts])
    return pyarrow().nulls(_count(parts), schema().field("headers").type)


def _count(parts: Sequence[FramePart]) -> int:
    return sum(part.stop - part.first for part in parts)


_MAKERS = {
    "topic": _topics,
    "partition": _partitions,
    "offset": _offsets,
    "timestamp": _timestamps,
    "key": _keys,
    "value": _values,
    "headers": _headers,
}


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pyarrow().concat_arrays(arrays)


def _offset_arrays(parts: Sequence[FramePart]) -> Iterator[Any]:
    """Yield the offsets of all parts; adjacent parts without a gap become one array."""
    pa = pyarrow()
    start = stop = 0
    for part in parts:
        columns = part.columns
        base = columns.base_offset
        if columns.offsets is None and base + part.first == stop:
            stop = base + part.stop
            continue
        if start < stop:
            yield _range(start, stop)
        start = stop = 0
        if columns.offsets is None:
            start, stop = base + part.first, base + part.stop
        else:
            relative = _fixed(pa.int32(), part.stop - part.first, columns.offsets[part.first : part.stop])
            # For a plain number Arrow would first check for a numpy scalar, which is slow if numpy is missing.
            yield require("pyarrow.compute", "arrow").add(relative.cast(pa.int64()), pa.scalar(base, pa.int64()))
    if start < stop:
        yield _range(start, stop)


def _range(start: int, stop: int) -> Any:
    pa = pyarrow()
    if hasattr(pa, "arange"):
        return pa.arange(start, stop)
    # pyarrow before 21 has no arange.
    return _fixed(pa.int64(), stop - start, array("q", range(start, stop)))


def _times(parts: Sequence[FramePart]) -> ReadableBuffer:
    widths = [0 if isinstance(part.columns.times, int) else part.columns.times.itemsize for part in parts]
    if widths.count(4) > 1 and 8 not in widths:
        return _sums(parts)
    pieces: list[ReadableBuffer] = []
    for part in parts:
        columns, count = part.columns, part.stop - part.first
        times = columns.times
        if isinstance(times, int):
            pieces.append(_INT64.pack(times) * count)
        elif times.itemsize == 8:
            pieces.append(times[part.first : part.stop])
        else:
            pieces.append(_sums([part]))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _sums(parts: Sequence[FramePart]) -> ReadableBuffer:
    """Return the times of frames with one time for all records, or with deltas to the earliest; one sum for all."""
    pa = pyarrow()
    deltas: list[ReadableBuffer] = []
    bases: list[bytes] = []
    for part in parts:
        times, count = part.columns.times, part.stop - part.first
        deltas.append(bytes(4 * count) if isinstance(times, int) else times[part.first : part.stop])
        bases.append(_INT64.pack(part.columns.time_base) * count)
    total = _count(parts)
    added: Any = _fixed(pa.int32(), total, deltas[0] if len(parts) == 1 else b"".join(deltas)).cast(pa.int64())
    # For a plain number Arrow would first check for a numpy scalar, which is slow if numpy is missing.
    base: Any = pa.scalar(parts[0].columns.time_base, pa.int64())
    if len(parts) > 1:
        base = _fixed(pa.int64(), total, b"".join(bases))
    sums = require("pyarrow.compute", "arrow").add(added, base)
    return sums.buffers()[1][: 8 * total]  # type: ignore[no-any-return]


def _value_array(part: FramePart) -> Any:
    columns = part.columns
    return _binary_array(part, columns.value_offsets, columns.value_blob, columns.value_valid)


def _key_array(part: FramePart) -> Any:
    columns = part.columns
    if columns.key_offsets is None:
        return pyarrow().nulls(part.stop - part.first, pyarrow().binary())
    return _binary_array(part, columns.key_offsets, columns.key_blob, columns.key_valid)


def _header_array(part: FramePart) -> Any:
    """Return headers as lists; each distinct set of headers is decoded once."""
    columns, headers_type = part.columns, schema().field("headers").type
    if columns.header_offsets is None:
        return pyarrow().nulls(part.stop - part.first, headers_type)
    encoded = _binary_array(part, columns.header_offsets, columns.header_blob, None).dictionary_encode()
    try:
        lists = [decode_headers(stored).multi_items() or None for stored in encoded.dictionary.to_pylist()]
    except ValueError as error:
        raise _corrupt(part, error) from None
    return pyarrow().array(lists, headers_type).take(encoded.indices)


def _binary_array(part: FramePart, offsets: memoryview[int], blob: memoryview, valid: memoryview | None) -> Any:
    pa = pyarrow()
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(blob)]
    made = pa.Array.from_buffers(
        pa.binary(), part.stop - part.first, buffers, null_count=0 if valid is None else -1, offset=part.first
    )
    try:
        # Costs under a nanosecond per record; without it wrong offsets would let Arrow read foreign memory.
        made.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _corrupt(part, error) from None
    return made


def _corrupt(part: FramePart, error: Exception) -> CorruptionError:
    columns: Columns = part.columns
    return CorruptionError(
        f"A frame's columns contradict each other: {error}",
        topic=part.topic,
        partition=part.partition,
        first=columns.first_offset,
        last=columns.last_offset,
    )


def _table(source: Any) -> Any:
    return source.read_all() if hasattr(source, "read_all") else source
