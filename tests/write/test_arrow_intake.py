"""Frames built from Arrow buffers are the frames that a list of the same items gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.disk import frame
from tailrace.errors import RecordTooLargeError
from tailrace.read.batch import Batch
from tailrace.records import Headers, encode_headers
from tailrace.write.arrow_intake import as_arrow, longest, prepare_arrow, prepare_runs
from tests.frames import HEADERS, ITEM, TIME, parts

pa = pytest.importorskip("pyarrow")

TYPES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.binary())]
TEXT = st.none() | st.text(max_size=10).map(str.encode)


def column(items: list[bytes | None], kind: Any, cut: int, chunked: bool) -> Any:
    """Items as Arrow of a type, as a slice of something longer, in one piece or in chunks."""
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    given = [
        item.decode() if text and item is not None else item for item in [None, b"xyz", b"x"][:cut] + items + [b"z"]
    ]
    whole = (
        pa.array(given, kind.value_type).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(given, kind)
    )
    made = whole.slice(cut, len(items))
    half = len(items) // 2
    return pa.chunked_array([made[:half], made[half:half], made[half:]]) if chunked else made


@settings(max_examples=300)
@given(
    st.lists(st.tuples(TEXT, ITEM, HEADERS), min_size=1, max_size=30),
    st.sampled_from(TYPES),
    st.tuples(*[st.integers(0, 3)] * 3),
    st.tuples(*[st.booleans()] * 4),
    st.sampled_from([None, 0, 50, 2**40]),
    st.data(),
)
def test_arrays_give_the_frames_of_lists(
    rows: list[Any], kind: Any, at: tuple[int, ...], yes: tuple[bool, ...], span: int | None, data: st.DataObject
) -> None:
    values, keys, headers = ([row[index] for row in rows] for index in range(3))
    stored = [encode_headers(each) for each in headers]
    times = TIME if span is None else [TIME + data.draw(st.integers(0, span)) for _ in rows]
    expected = frame.prepare(values, keys if yes[0] else None, stored if yes[1] else None, times)
    lists = pa.array(
        [each.multi_items() or None for each in headers],
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
    )
    moments = times if isinstance(times, int) else pa.array([0, *times], pa.timestamp("us", "UTC")).slice(1)
    assert (
        prepare_arrow(
            column(values, kind, at[0], yes[2]),
            column(keys, pa.binary(), at[1], yes[3]) if yes[0] else None,
            lists if yes[1] else None,
            moments,
        )
        == expected
    )


@settings(max_examples=200)
@given(
    st.lists(st.lists(st.tuples(TEXT, ITEM, HEADERS), max_size=8), min_size=1, max_size=12),
    st.tuples(*[st.integers(0, 3)] * 2),
    st.tuples(*[st.booleans()] * 3),
    st.sampled_from([None, 0, 50, 2**40]),
    st.data(),
)
def test_runs_hold_the_records_that_each_has_alone(
    runs: list[Any], at: tuple[int, ...], yes: tuple[bool, ...], span: int | None, data: st.DataObject
) -> None:
    rows = [row for run in runs for row in run]
    values, keys, headers = ([row[index] for row in rows] for index in range(3))
    times = TIME if span is None else [TIME + data.draw(st.integers(0, span)) for _ in rows]
    kind = pa.large_binary() if yes[2] else pa.binary()
    columns = (
        column(values, kind, at[0], False),
        column(keys, kind, at[1], False) if yes[0] else None,
        pa.array([encode_headers(each) for each in headers], pa.binary()) if yes[1] else None,
        times if isinstance(times, int) else pa.array([0, *times], pa.timestamp("us", "UTC")).slice(1),
    )
    stops = [sum(map(len, runs[: at + 1])) for at in range(len(runs))]
    made = prepare_runs(*columns, stops)
    first = 0
    for frames, stop in zip(made, stops, strict=True):
        some = [each if each is None or isinstance(each, int) else each.slice(first, stop - first) for each in columns]
        alone = prepare_arrow(*some)
        assert [frame.count for frame in frames] == [frame.count for frame in alone]
        assert _records(frames) == _records(alone)
        if not yes[0] and not yes[1]:
            assert frames == alone
        first = stop


def _records(frames: list[frame.Prepared]) -> list[tuple[Any, ...]]:
    found = [*Batch(parts(frames))]
    return [(record.offset, record.key, record.value, record.timestamp_us, record.headers) for record in found]


def test_runs_that_are_long_are_cut_each() -> None:
    values = [b"%d" % number * 200 for number in range(20_000)]
    stops = [5, 5, 12_000, 12_001, 20_000]
    made = prepare_runs(pa.array(values), None, None, TIME, stops, 1)
    assert made == [
        frame.prepare(values[first:stop], None, None, TIME, 1) for first, stop in zip([0, *stops], stops, strict=False)
    ]
    assert min(len(made[2]), len(made[4])) > 5


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_long_arrays_are_cut_like_long_lists(kind: Any) -> None:
    values = [b"%d" % number * 200 for number in range(20_000)]
    keys = [b"k" * (number % 100) if number % 3 else None for number in range(20_000)]
    times = [TIME + number for number in range(20_000)]
    expected = frame.prepare(values, keys, None, times, 1)
    assert len(expected) > 10
    assert prepare_arrow(pa.array(values, kind), pa.array(keys, kind), None, pa.array(times), 1) == expected
    without_nulls = frame.prepare(values, None, None, TIME)
    assert prepare_arrow(pa.array(values, kind), None, None, TIME) == without_nulls


def test_a_null_that_hides_bytes_is_stored_without_them() -> None:
    offsets, data = pa.array([0, 2, 5, 6], pa.int32()).buffers()[1], pa.py_buffer(b"abXYZc")
    hiding = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, data])
    assert hiding.to_pylist() == [b"ab", None, b"c"]
    assert prepare_arrow(hiding, None, None, TIME) == frame.prepare([b"ab", None, b"c"], None, None, TIME)


def test_other_shapes_of_columns() -> None:
    expected = frame.prepare([b"ab", b"cd"], [b"k", None], None, TIME)
    fixed = pa.array([b"ab", b"cd"], pa.binary(2))
    assert prepare_arrow(fixed, [b"k", None], None, TIME) == expected
    assert prepare_arrow(pa.array([b"ab", b"cd"], pa.binary_view()), [b"k", None], None, TIME) == expected
    assert prepare_arrow(pa.nulls(2), None, None, TIME) == frame.prepare([None, None], None, None, TIME)
    assert prepare_arrow(pa.array([], pa.binary()), None, None, TIME) == []
    assert prepare_arrow(pa.chunked_array([], pa.binary()), None, None, TIME) == []
    maps = pa.array([[("a", b"1"), ("a", b"")], None], pa.map_(pa.string(), pa.binary()))
    stored = [encode_headers(Headers([("a", b"1"), ("a", b"")])), b""]
    with_headers = frame.prepare([b"ab", b"cd"], None, stored, TIME)
    assert prepare_arrow(fixed, None, maps, TIME) == prepare_arrow(fixed, None, stored, TIME) == with_headers


def test_times_of_any_unit_become_microseconds() -> None:
    values = pa.array([b"a", b"b"])
    expected = frame.prepare([b"a", b"b"], None, None, [TIME, TIME + 1_000_000])
    for unit, factor in (("s", 1_000_000), ("ms", 1_000), ("us", 1)):
        times = pa.array([TIME // factor, (TIME + 1_000_000) // factor], pa.timestamp(unit, "Europe/Berlin"))
        assert prepare_arrow(values, None, None, times) == expected
    nanoseconds = pa.array([TIME * 1_000 + 999, (TIME + 1_000_000) * 1_000], pa.timestamp("ns", "UTC"))
    assert prepare_arrow(values, None, None, nanoseconds) == expected
    assert prepare_arrow(values, None, None, [TIME, TIME + 1_000_000]) == expected


def test_what_cannot_be_stored_is_refused() -> None:
    values = pa.array([b"a", b"b"])
    with pytest.raises(TypeError, match="json="):
        prepare_arrow(pa.array([1, 2]), None, None, TIME)
    with pytest.raises(TypeError, match="time zone"):
        prepare_arrow(values, None, None, pa.array([1, 2], pa.timestamp("us")))
    with pytest.raises(TypeError, match="timestamps"):
        prepare_arrow(values, None, None, pa.array(["x", "y"]))
    with pytest.raises(ValueError, match="null"):
        prepare_arrow(values, None, None, pa.array([1, None]))
    with pytest.raises(ValueError, match="2 values but 1"):
        prepare_arrow(values, pa.array([b"k"]), None, TIME)


def test_records_survive_the_way_to_arrow_and_back() -> None:
    headers = [encode_headers({"a": "b"}), b"", b""]
    first = frame.prepare([b"a", None, b""], [None, b"k", b""], headers, [TIME, TIME + 1, TIME + 2])
    batch = Batch(parts(first)).to_arrow()
    again = prepare_arrow(*(batch.column(name) for name in ("value", "key", "headers", "timestamp")))
    assert again == first


def test_longest() -> None:
    assert longest(pa.array(["a", "äöü", None])) == 6
    assert longest(pa.chunked_array([[b"abc"], [b"a"]])) == 3
    assert longest(pa.array([], pa.binary())) == longest(pa.array([None], pa.binary())) == 0


def test_as_arrow_knows_arrow_when_it_sees_it() -> None:
    array = pa.array([b"a"])
    table = pa.table({"value": array})
    assert as_arrow(array) is array
    assert as_arrow(table) is table
    assert as_arrow(table.to_reader()) == table
    for other in ([b"a"], (b"a",), b"a", iter([b"a"])):
        assert as_arrow(other) is None
    polars = pytest.importorskip("polars")
    assert as_arrow(polars.Series(["a", "b"])).to_pylist() == ["a", "b"]
    assert as_arrow(polars.DataFrame({"value": ["a"]})).to_pydict() == {"value": ["a"]}
    pandas = pytest.importorskip("pandas")
    assert as_arrow(pandas.DataFrame({"value": ["a"]})).to_pydict() == {"value": ["a"]}
    # A series of pandas speaks Arrow from pandas 3 on, and is a sequence before.
    made = as_arrow(pandas.Series(["a", "b"]))
    assert (made is None) == (int(pandas.__version__.partition(".")[0]) < 3)
    assert made is None or made.to_pylist() == ["a", "b"]


@pytest.mark.parametrize("kind", ["list", "map"])
def test_headers_of_a_slice(kind: str) -> None:
    """Joined by Arrow they are what the rows would be one by one, whatever part of a column is meant."""
    rows = [[("a", b"1"), ("é", b"")], None, [], [("a", b""), ("a", b"22")], [("b", b"x" * 300)], None]
    expected = [encode_headers(Headers(row or ())) for row in rows]
    if kind == "map":
        column = pa.array(rows, pa.map_(pa.string(), pa.binary()))
    else:
        pairs = [row and [{"name": name, "value": value} for name, value in row] for row in rows]
        column = pa.array(pairs, pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])))
    for first in range(len(rows)):
        for stop in range(first + 1, len(rows) + 1):
            values = pa.array([b"v"] * (stop - first))
            made = prepare_arrow(values, None, column.slice(first, stop - first), TIME)
            assert made == prepare_arrow(values, None, expected[first:stop], TIME), (first, stop)


def test_headers_that_cannot_be_stored_are_named() -> None:
    values = pa.array([b"v"])
    with pytest.raises(TypeError, match="header 'a' must be bytes"):
        prepare_arrow(values, None, pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), TIME)
    with pytest.raises(RecordTooLargeError, match="header name"):
        prepare_arrow(values, None, pa.array([[("a" * 70_000, b"")]], pa.map_(pa.string(), pa.binary())), TIME)


def test_a_header_without_a_value_is_refused_as_in_a_list() -> None:
    """The format has no null there, and empty bytes would be something else."""
    rows = pa.array([[("a", b"1")], [("b", None)]], pa.map_(pa.string(), pa.binary()))
    with pytest.raises(TypeError, match="header 'b' must be bytes"):
        prepare_arrow(pa.array([b"v", b"w"]), None, rows, TIME)
    # What lies outside of a slice is not meant.
    made = prepare_arrow(pa.array([b"v"]), None, rows.slice(0, 1), TIME)
    assert made == prepare_arrow(pa.array([b"v"]), None, [encode_headers({"a": b"1"})], TIME)


def test_an_empty_array_may_be_without_offsets():
    pa = pytest.importorskip("pyarrow")
    empty = pa.Array.from_buffers(pa.binary(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    assert prepare_arrow(empty, None, None, 1 << 50) == []
