"""Arrow data as frames, without a loop over records."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.arguments import parse_time
from tailrace.disk import frame
from tailrace.extras import pyarrow, require
from tailrace.limits import (
    FRAME_BYTES_TARGET,
    FRAME_RECORDS_MAX,
    HEADER_NAME_BYTES_MAX,
    HEADERS_BYTES_MAX,
    SCHEMA_FAILURES_MAX,
)
from tailrace.records import Headers, encode_headers

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from tailrace.write.schema import Checker, Failure


# Column types whose item lengths Arrow computes.
_MEASURABLE = ("binary", "string", "large_binary", "large_string", "fixed_size_binary")


# Values that are Python objects at the same time while a column is checked.
CHECKED_RECORDS = 8_192


def as_arrow(values: Any) -> Any | None:
    """Return an Array, ChunkedArray, RecordBatch or Table over the same memory; None if the object is not Arrow data.

    Objects with Arrow's C interface (Polars, DuckDB, pandas frames) count as Arrow data.
    """
    package = type(values).__module__.partition(".")[0]
    if package == "tailrace":
        # A scan: its errors would lose their types in Arrow's C interface.
        return values.to_arrow()
    if package == "pyarrow":
        return values.read_all() if hasattr(values, "read_all") else values
    if hasattr(values, "__arrow_c_array__"):
        return pyarrow().array(values)
    if hasattr(values, "__arrow_c_stream__"):
        pa = pyarrow()
        return pa.table(values) if hasattr(values, "columns") else pa.chunked_array(values)
    return None


def is_column(values: Any) -> bool:
    """Return whether it is an Array or a ChunkedArray."""
    pa = pyarrow()
    return isinstance(values, (pa.Array, pa.ChunkedArray))


def is_table(data: Any) -> bool:
    """Return whether Arrow data has named columns; some libraries pass a table as a stream of structs."""
    return not is_column(data) or bool(pyarrow().types.is_struct(data.type))


def table_of(data: Any) -> Any:
    """Return data with named columns as a Table or RecordBatch."""
    if not is_column(data):
        return data
    return pyarrow().table(data.flatten(), names=[field.name for field in data.type])


def check_headers(headers: Any) -> None:
    """Refuse a column that cannot hold headers; plain bytes would be stored as encoded headers without a check."""
    types = pyarrow().types
    kind = headers.type
    if types.is_null(kind) or types.is_map(kind):
        return
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = kind.value_type
        if types.is_null(item) or (types.is_struct(item) and {"name", "value"} <= {field.name for field in item}):
            return
    raise TypeError(
        f"An Arrow column of {kind} holds no headers: a list of structs of name and value is needed, or a map."
    )


def longest(values: Any) -> int:
    """Return the bytes of the longest item of a binary or string column."""
    compute = require("pyarrow.compute", "arrow")
    return max((compute.max(_lengths(chunk)).as_py() or 0 for chunk in _chunks(values)), default=0)


def content_bytes(values: Any, chosen: Any | None = None) -> int:
    """Return the bytes of all items of a column, or of those `chosen` by index; repeated dictionary items count again.

    Return 0 for a type whose lengths are unknown before it is copied.
    """
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not any(getattr(pa.types, f"is_{name}")(kind) for name in _MEASURABLE):
        return 0
    lengths = pa.chunked_array([_lengths(chunk) for chunk in _chunks(values)], pa.int64())
    return compute.sum(lengths if chosen is None else lengths.take(chosen)).as_py() or 0


def _lengths(chunk: Any) -> Any:
    """Return the bytes of each item of an Array."""
    pa = pyarrow()
    if pa.types.is_dictionary(chunk.type):
        return _lengths(chunk.dictionary).take(chunk.indices)
    if str(chunk.type).endswith("_view"):
        chunk = chunk.cast(pa.large_binary())
    return require("pyarrow.compute", "arrow").binary_length(chunk).cast(pa.int64())


def check_values(values: Any, schema: Checker, topic: str = "") -> None:
    """Raise SchemaError if a value of a column does not fit the schema; nulls are tombstones."""
    first = 0
    failures: list[Failure] = []
    for chunk in _chunks(values):
        for start in range(0, len(chunk), CHECKED_RECORDS):
            some = chunk.slice(start, CHECKED_RECORDS)
            if len(failures) < SCHEMA_FAILURES_MAX:
                failures += schema.find(some.to_pylist(), first)
            first += len(some)
    if failures:
        from tailrace.write.schema import refuse

        refuse(failures, topic)


def prepare_arrow(
    values: Any, keys: Any | None, headers: Any | None, times: Any, codec: int = 0, expiry: int = 0
) -> list[frame.Prepared]:
    """Do what frame.prepare does, from Arrow buffers and without a loop over records.

    values and keys are binary or string Arrays or ChunkedArrays (of any width, dictionaries included), headers is a
    list of structs or pairs, or encoded bytes; times is one number, or timestamps with a zone, or microseconds.
    `expiry` is when all of them expire, 0 if they do not.
    """
    pa = pyarrow()
    if headers is None and isinstance(times, int):
        whole = _whole(values, keys, times, codec, expiry)
        if whole is not None:
            return [whole]
    named = {"value": _binary(values)}
    if keys is not None:
        named["key"] = _binary(keys)
    if headers is not None:
        named["headers"] = stored_headers(headers)
    if not isinstance(times, int):
        named["time"] = _microseconds(times)
    for name, column in named.items():
        if len(column) != len(named["value"]):
            raise ValueError(f"There are {len(named['value'])} values but {len(column)} in {name}.")
    frames: list[frame.Prepared] = []
    for batch in pa.table(named).combine_chunks().to_batches():
        if batch.num_rows:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            frames += _prepare_batch(columns, times, codec, [batch.num_rows], expiry)[0]
    return _grouped(frames)


def prepare_runs(
    values: Any,
    keys: Any | None,
    headers: Any | None,
    times: Any,
    stops: Sequence[int],
    codec: int = 0,
    expiry: int = 0,
) -> list[list[frame.Prepared]]:
    """Do what prepare_arrow does, for each run of rows; `stops` has the end of each run, and all columns are Arrays.

    Rows of many partitions, sorted by partition, cost about as much as those of a few.
    """
    named = {"value": _binary(values)}
    if keys is not None:
        named["key"] = _binary(keys)
    if headers is not None:
        stored = stored_headers(headers)
        named["headers"] = stored.combine_chunks() if hasattr(stored, "chunks") else stored
    if not isinstance(times, int):
        named["time"] = _microseconds(times)
    return [_grouped(frames) for frames in _prepare_batch(named, times, codec, stops, expiry)]


def _grouped(frames: list[frame.Prepared]) -> list[frame.Prepared]:
    """Return frames that are written together: all but the last have the flag MORE."""
    return [each._replace(flags=each.flags | frame.MORE) for each in frames[:-1]] + frames[-1:]


def _whole(values: Any, keys: Any | None, time: int, codec: int, expiry: int) -> frame.Prepared | None:
    """Return one frame that uses the buffers of the arrays as they are; None if they must be split or converted."""
    size = 0
    flags, attributes, columns = _expiring(expiry)
    count = len(values)
    for items, present in ((keys, frame.KEYS), (values, 0)):
        if items is None:
            continue
        plain = _plain(items)
        if plain is None or len(items) != count:
            return None
        flags |= present
        size += len(plain[1])
        columns += plain
    if not 0 < count <= FRAME_RECORDS_MAX or size > FRAME_BYTES_TARGET:
        return None
    return frame.seal(flags, count, columns, time, time, codec, attributes)


def _expiring(expiry: int) -> tuple[int, bytes, list[ReadableBuffer]]:
    """Return flag, attributes and columns of records that all expire at the same time; 0 if they do not."""
    flags, attributes, column = frame.expiry_column(expiry or frame.NEVER)
    return flags, attributes, [column] if column else []


def _plain(items: Any) -> tuple[memoryview, memoryview] | None:
    """Return offsets and bytes of an array without nulls whose offsets have a frame's layout: 32 bits wide, from 0."""
    pa = pyarrow()
    if isinstance(items, pa.ChunkedArray) and items.num_chunks == 1:
        items = items.chunk(0)
    if not isinstance(items, pa.Array) or items.type not in (pa.binary(), pa.string()):
        return None
    # An empty array may even have no offsets.
    if items.null_count or not len(items):
        return None
    _, offsets, data = items.buffers()
    if offsets is None or data is None:
        return None
    ends = memoryview(offsets)[4 * items.offset : 4 * (items.offset + len(items) + 1)]
    numbers = ends.cast("i")
    if numbers[0]:
        return None
    return ends, memoryview(data)[: numbers[-1]]


def _chunks(values: Any) -> list[Any]:
    return list(values.chunks) if hasattr(values, "chunks") else [values]


def _binary(values: Any) -> Any:
    """Return the column as binary or large_binary, sharing its bytes where Arrow can."""
    pa = pyarrow()
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        return pa.array(values, pa.binary())
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if kind == pa.large_binary() or kind == pa.large_string():
        return values.cast(kind).cast(pa.large_binary())
    names = ("is_binary", "is_string", "is_fixed_size_binary", "is_null", "is_binary_view", "is_string_view")
    if any(getattr(pa.types, name, lambda kind: False)(kind) for name in names):
        return values.cast(kind).cast(pa.binary())
    raise TypeError(f"An Arrow column of {values.type} cannot be stored: binary or string is needed, or use json=.")


def stored_headers(headers: Any) -> Any:
    """Return a column of headers as a column of their stored form."""
    pa = pyarrow()
    if not isinstance(headers, (pa.Array, pa.ChunkedArray)):
        return pa.array(headers, pa.binary())
    if pa.types.is_binary(headers.type) or pa.types.is_large_binary(headers.type):
        return headers
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), pa.binary())
    chunks = [_joined_headers(chunk) for chunk in _chunks(headers)]
    if any(chunk is None for chunk in chunks):
        # Some header cannot be stored; encoded row by row, the error names the first such header.
        return pa.array([encode_headers(_pairs(each)) for each in headers.to_pylist()], pa.binary())
    return pa.chunked_array(chunks, pa.binary())


def _joined_headers(headers: Any) -> Any | None:
    """Return what encode_headers makes of every row, joined by Arrow; None if rows must be encoded one by one."""
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    if pa.types.is_map(headers.type):
        names, values = headers.keys, headers.items
    elif pa.types.is_list(headers.type) and not headers.values.null_count:
        names, values = headers.values.field("name"), headers.values.field("value")
    else:
        return None
    if names.null_count or not pa.types.is_string(names.type) or longest(names) > HEADER_NAME_BYTES_MAX:
        return None
    if values.null_count:
        # The format has no null header values; only nulls inside null rows are harmless.
        return None
    if not (pa.types.is_binary(values.type) or pa.types.is_string(values.type)):
        return None
    values = values.cast(pa.binary())
    # A length, a name, a length, a value: docs/format.md section 2.
    pieces = compute.binary_join_element_wise(
        compute.binary_length(names).cast(pa.uint16()).view(pa.binary(2)).cast(pa.binary()),
        names.cast(pa.binary()),
        compute.binary_length(values).view(pa.binary(4)).cast(pa.binary()),
        values,
        pa.scalar(b"", pa.binary()),
    )
    rows = compute.binary_join(pa.ListArray.from_arrays(headers.offsets, pieces), pa.scalar(b"", pa.binary()))
    if headers.null_count:
        rows = compute.if_else(headers.is_valid(), rows, pa.scalar(b"", pa.binary()))
    return None if longest(rows) > HEADERS_BYTES_MAX else rows


def _pairs(headers: Sequence[Any] | None) -> Headers | None:
    """Return the headers of one row: a list of structs, or of pairs as a map column has them."""
    if not headers:
        return None
    pairs = ((each["name"], each["value"]) if isinstance(each, dict) else each for each in headers)
    return Headers(pairs)


def _microseconds(times: Any) -> Any:
    pa = pyarrow()
    if not isinstance(times, (pa.Array, pa.ChunkedArray)):
        return pa.array(times, pa.int64())
    if times.null_count:
        raise ValueError("A timestamp is null.")
    if pa.types.is_timestamp(times.type):
        if times.type.tz is None:
            raise TypeError("Timestamps need a time zone: cast them to timestamp(us, UTC) first.")
        # Nanoseconds are truncated, like every time finer than a microsecond.
        return times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())
    if pa.types.is_integer(times.type):
        for time in require("pyarrow.compute", "arrow").min_max(times).as_py().values():
            if time is not None:
                parse_time(time, "timestamp")
        return times.cast(pa.int64())
    raise TypeError(f"An Arrow column of {times.type} holds no timestamps.")


class _Blob(NamedTuple):
    """A binary array in parts; `ends` has the start of the first item in `data`, then the end of each item."""

    ends: Any
    data: memoryview
    # All bits as one number, least significant first; None when there are no nulls.
    valid: int | None


def _blob(items: Any) -> _Blob:
    pa = pyarrow()
    valid = None
    if items.null_count:
        _, bits = items.is_valid().buffers()
        at = items.is_valid().offset
        valid = int.from_bytes(memoryview(bits)[at >> 3 : at + len(items) + 7 >> 3], "little") >> (at & 7)
        # Arrow allows bytes under a null, the format does not.
        items = require("pyarrow.compute", "arrow").fill_null(items, b"")
    width = pa.int64() if pa.types.is_large_binary(items.type) else pa.int32()
    _, offsets, data = items.buffers()
    ends = pa.Array.from_buffers(width, len(items) + 1, [None, offsets], null_count=0, offset=items.offset)
    return _Blob(ends, memoryview(b"" if data is None else data), valid)


def _prepare_batch(
    batch: dict[str, Any], times: Any, codec: int, stops: Sequence[int], expiry: int
) -> list[list[frame.Prepared]]:
    """Return the frames of each run of rows; runs are contiguous, and `stops` has the end of each."""
    pa = pyarrow()
    compute = require("pyarrow.compute", "arrow")
    count = len(batch["value"])
    if "key" in batch and batch["key"].null_count == count:
        del batch["key"]
    if "headers" in batch and not longest(batch["headers"]):
        del batch["headers"]
    blobs = {name: _blob(batch[name]) for name in ("key", "headers", "value") if name in batch}
    weights = blobs["value"].ends.cast(pa.int64())
    for name in blobs.keys() - {"value"}:
        weights = compute.add(weights, blobs[name].ends.cast(pa.int64()))
    sums = memoryview(weights.buffers()[1])[8 * weights.offset : 8 * (weights.offset + count + 1)].cast("q")
    ranges = [frame.cuts(sums, first, stop) for first, stop in zip((0, *stops), stops, strict=False)]
    cuts = [cut for some in ranges for cut in some]
    pieces: dict[str, list[_Pieces]] = {name: _cut(blob, cuts) for name, blob in blobs.items()}
    made = []
    expiring, attributes, expiries = _expiring(expiry)
    for at, (first, stop) in enumerate(cuts):
        flags, low, high = 0, times, times
        columns: list[ReadableBuffer] = []
        if "time" in batch:
            flags, low, high, column = _time_column(batch["time"].slice(first, stop - first))
            columns += column
        flags |= expiring
        columns += expiries
        for kind, present, nulls in _BLOBS:
            if kind in pieces:
                bitmap, offsets, data = pieces[kind][at]
                flags |= present
                if nulls and bitmap:
                    flags |= nulls
                    columns.append(bitmap)
                columns += (offsets, data)
        made.append(frame.seal(flags, stop - first, columns, low, high, codec, attributes))
    frames = iter(made)
    return [[*islice(frames, len(some))] for some in ranges]


_BLOBS = (("key", frame.KEYS, frame.KEY_NULLS), ("headers", frame.HEADERS, 0), ("value", 0, frame.VALUE_NULLS))
# Validity bitmap (empty without nulls), offsets from 0, and bytes of some items.
_Pieces = tuple[bytes, "ReadableBuffer", "ReadableBuffer"]
# With fewer records per frame, offsets are computed for all frames at once: a call of Arrow per frame costs more.
_RECORDS_ALONE_MIN = 1_024


def _cut(blob: _Blob, cuts: Sequence[tuple[int, int]]) -> list[_Pieces]:
    """Return the pieces of each frame; cuts are contiguous."""
    if not cuts or cuts[-1][1] >= _RECORDS_ALONE_MIN * len(cuts):
        return [_pieces(blob, first, stop) for first, stop in cuts]
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    # The end of one frame is the start of the next, so this offset is in both.
    indices = array("q", chain.from_iterable(range(first, stop + 1) for first, stop in cuts))
    lengths = accumulate(stop - first + 1 for first, stop in cuts)
    begins = blob.ends.take(pa.array([first for first, _ in cuts], pa.int64()))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([*lengths], pa.int32()), begins)
    places = pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)], null_count=0)
    relative = compute.subtract(blob.ends.take(places), compute.run_end_decode(runs)).cast(pa.int32())
    offsets = memoryview(relative.buffers()[1])[4 * relative.offset :]
    ends = blob.ends.take(pa.array([stop for _, stop in cuts], pa.int64())).to_pylist()
    return [
        (
            _bitmap(blob, first, stop),
            offsets[4 * (first - cuts[0][0] + at) : 4 * (stop - cuts[0][0] + at + 1)],
            blob.data[begin:end],
        )
        for at, ((first, stop), begin, end) in enumerate(zip(cuts, begins.to_pylist(), ends, strict=True))
    ]


def _pieces(blob: _Blob, first: int, stop: int) -> _Pieces:
    """Return the pieces of the items from first to stop."""
    pa = pyarrow()
    count = stop - first
    ends = blob.ends.slice(first, count + 1)
    begin, end = ends[0].as_py(), ends[count].as_py()
    if begin or ends.type != pa.int32():
        ends = require("pyarrow.compute", "arrow").subtract(ends, pa.scalar(begin, ends.type)).cast(pa.int32())
    offsets = ends.buffers()[1][4 * ends.offset : 4 * (ends.offset + count + 1)]
    return _bitmap(blob, first, stop), offsets, blob.data[begin:end]


def _bitmap(blob: _Blob, first: int, stop: int) -> bytes:
    """Return the validity bits of the items from first to stop; empty if all are valid."""
    if blob.valid is None:
        return b""
    everything = (1 << stop - first) - 1
    bits = blob.valid >> first & everything
    return b"" if bits == everything else bits.to_bytes(stop - first + 7 >> 3, "little")


def _time_column(times: Any) -> tuple[int, int, int, list[ReadableBuffer]]:
    pa = pyarrow()
    compute = require("pyarrow.compute", "arrow")
    low, high = compute.min_max(times).as_py().values()
    if low == high:
        return 0, low, high, []
    flag, width = frame.TIMES_FULL, 8
    if high - low <= frame.DELTA_MAX:
        flag, width = frame.TIMES_DELTA, 4
        # For a plain number Arrow would first check for a numpy scalar, which is slow if numpy is missing.
        times = compute.subtract(times, pa.scalar(low, pa.int64())).cast(pa.int32())
    return flag, low, high, [times.buffers()[1][width * times.offset : width * (times.offset + len(times))]]
