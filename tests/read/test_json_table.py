"""The fields of JSON values become columns, and no row is ever lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.disk import frame
from tailrace.read.batch import Batch
from tailrace.read.json_table import json_table
from tests.frames import TIME, parts

pa = pytest.importorskip("pyarrow")

META = ["topic", "partition", "offset", "timestamp", "key"]


def batch(*values: bytes | None, topic: str = "orders", base: int = 0) -> Any:
    return Batch(parts(frame.prepare(values, None, None, TIME), topic, 0, base)).to_arrow()


def columns(*batches: Any, **options: int) -> dict[str, list[Any]]:
    table = json_table(batches, **options)
    table.validate(full=True)
    found = table.to_pydict()
    assert table.num_rows == sum(each.num_rows for each in batches)
    return {name: column for name, column in found.items() if name not in META}


def test_fields_become_columns_behind_the_meta_columns() -> None:
    table = json_table([batch(b'{"id": 1, "price": 2.5}', b'{"id": 2, "tags": ["a"], "at": {"x": true}}', base=7)])
    assert table.schema.names == [*META, "id", "price", "tags", "at"]
    assert table.to_pylist()[1] == {
        "topic": "orders",
        "partition": 0,
        "offset": 8,
        "timestamp": table["timestamp"][0].as_py(),
        "key": None,
        "id": 2,
        "price": None,
        "tags": ["a"],
        "at": {"x": True},
    }


def test_no_batches_give_the_meta_columns() -> None:
    for nothing in ([], [batch()]):
        table = json_table(nothing)
        assert table.schema.names == META
        assert table.num_rows == 0


def test_a_table_or_reader_of_batches_works_as_well() -> None:
    table = pa.Table.from_batches([batch(b'{"a": 1}'), batch(b'{"a": 2}', topic="other")])
    assert json_table(table)["a"].to_pylist() == json_table(table.to_reader())["a"].to_pylist() == [1, 2]
    assert json_table(table)["topic"].to_pylist() == ["orders", "other"]


@pytest.mark.parametrize(
    "odd",
    [
        b"", b" ", b"\n", b"plain text", b"[1, 2]", b"17", b"null", b'"text"', b'{"a": 1', b'{"a": 1}x', b"{'a': 1}",
        b'{"a": 1}{"a": 2}', b'{"a": 1}\n{"a": 2}', b'{"a": 1},', b"\xff\xfe", b'{"a": "\xff"}', b'{"a": "\\ud800"}',
        b"\xef\xbb\xbf{}", b'{"a": 01}', b"{", b"\x00", b'{"a": 1}\x00', b"{\x00\"\x00a\x00\"\x00",
    ],
)  # fmt: skip
def test_what_is_no_object_is_kept_as_it_is(odd: bytes) -> None:
    assert columns(batch(b'{"a": 1}', odd, b'{"a": 3}')) == {"a": [1, None, 3], "_value": [None, odd, None]}
    assert columns(batch(b'{"a": 1}'), batch(odd)) == {"a": [1, None], "_value": [None, odd]}


def test_two_wrongs_do_not_make_a_right_number_of_rows() -> None:
    double = b'{"a": 1}{"a": 2}'
    assert columns(batch(double, b"")) == {"_value": [double, b""]}
    assert columns(batch(b"", double, b'{"a": 3}')) == {"a": [None, None, 3], "_value": [b"", double, None]}


def test_tombstones_and_empty_objects_are_rows_of_nulls() -> None:
    assert columns(batch(None, b'{"a": 1}', b"{}")) == {"a": [None, 1, None]}
    assert columns(batch(None, None)) == {}
    assert columns(batch(b"{}", b"{}"), batch(b'{"a": 1}'), batch(None)) == {"a": [None, None, 1, None]}
    assert columns(batch(b"{}", b"odd")) == {"_value": [None, b"odd"]}


def test_objects_may_span_lines_and_begin_with_blanks() -> None:
    pretty = json.dumps({"a": {"b": [1, 2]}, "c": "x\ny"}, indent=2).encode()
    expected = {"a": [{"b": [1, 2]}] * 3, "c": ["x\ny"] * 3}
    assert columns(batch(pretty, b"\n " + pretty + b"\r\n", pretty)) == expected


def test_text_that_looks_like_a_time_stays_text() -> None:
    moment = "2026-11-15T20:00:00Z"
    value = json.dumps({"t": moment, "u": {"v": moment, "n": 1}, "w": [{"x": moment}], "y": [moment]}).encode()
    table = json_table([batch(value, value), batch(b'{"t": "soon"}'), batch(b'{"u": {"v": "x", "z": 1}}')])
    assert table["t"].to_pylist() == [moment, moment, "soon", None]
    assert table["u"].to_pylist()[0] == {"v": moment, "n": 1, "z": None}
    assert table["w"].to_pylist()[0] == [{"x": moment}]
    assert table["y"].to_pylist()[0] == [moment]


def test_numbers_widen() -> None:
    assert columns(batch(b'{"a": 1}', b'{"a": 2.5}')) == {"a": [1.0, 2.5]}
    assert columns(batch(b'{"a": 1}'), batch(b'{"a": 2.5}')) == {"a": [1.0, 2.5]}
    assert columns(batch(b'{"a": 1}'), batch(b'{"a": 1e20}')) == {"a": [1.0, 1e20]}
    assert columns(batch(b'{"a": 9007199254740993}'), batch(b'{"a": 0.5}')) == {"a": [9007199254740992.0, 0.5]}
    twice = b'{"a": 100000000000000000000, "a": 100000000000000000001}'
    assert columns(batch(b'{"a": 1}', twice)) == {"a": ["1", "100000000000000000001"]}


def test_a_field_of_several_types_is_text() -> None:
    expected = {"a": ["1", "x", '{"b": 2}', "[true]", None], "c": [1, 2, 3, 4, 5]}
    values = [
        b'{"a": 1, "c": 1}',
        b'{"a": "x", "c": 2}',
        b'{"a": {"b": 2}, "c": 3}',
        b'{"a": [true], "c": 4}',
        b'{"c": 5}',
    ]
    assert columns(batch(*values)) == expected
    assert columns(*(batch(value) for value in values)) == expected
    assert columns(batch(b'{"a": "x"}'), batch(b'{"a": 1}'), batch(b'{"a": "y"}')) == {"a": ["x", "1", "y"]}


def test_structs_and_nulls_unite_across_batches() -> None:
    found = columns(batch(b'{"a": null}'), batch(b'{"a": {"b": 1}}'), batch(b'{"a": {"c": "x"}}'))
    assert found == {"a": [None, {"b": 1, "c": None}, {"b": None, "c": "x"}]}


def test_a_field_given_twice_counts_the_last_time() -> None:
    assert columns(batch(b'{"a": 1, "a": 2}', b'{"a": 3}')) == {"a": [2, 3]}


def test_a_lone_surrogate_is_kept_as_bytes() -> None:
    odd = b'{"a": "\\ud800"}'
    assert columns(batch(odd, b'{"a": 1, "a": 2}')) == {"a": [None, 2], "_value": [odd, None]}
    assert columns(batch(odd)) == {"_value": [odd]}


@pytest.mark.parametrize("depth", [100, 127, 128, 1_000, 100_000])
def test_deep_values_do_not_end_the_process(depth: int) -> None:
    for deep in (b'{"a":' * depth + b"1" + b"}" * depth, b'{"a":' + b"[" * depth + b"]" * depth + b"}"):
        table = json_table([batch(b'{"b": 1}', deep)])
        assert table["b"].to_pylist() == [1, None]
        assert ("_value" in table.schema.names) == (deep.count(b"{") + deep.count(b"[") > 128)


def test_many_brackets_alone_are_not_deep() -> None:
    wide = json.dumps({"a": [{"b": number, "c": "{[" * 9} for number in range(500)]}).encode()
    assert len(columns(batch(wide, b"{}"))["a"][0]) == 500


def test_meta_columns_give_way_to_fields_of_their_name() -> None:
    table = json_table([batch(b'{"key": 1, "offset": "o", "_offset": 2}', b'{"_value": 3}', b"odd")])
    assert table.schema.names == [
        "topic",
        "partition",
        "__offset",
        "timestamp",
        "_key",
        "key",
        "offset",
        "_offset",
        "_value",
        "__value",
    ]
    assert table["__value"].to_pylist() == [None, None, b"odd"]
    assert table["__offset"].to_pylist() == [0, 1, 2]


def test_large_batches_are_parsed_in_halves() -> None:
    values = [json.dumps({"a": number}).encode() for number in range(200)]
    assert columns(batch(*values), block_bytes_max=100) == {"a": [*range(200)]}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('abcé"', max_size=2), inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(st.text('abcé"', max_size=2), JSON, max_size=3).map(lambda found: json.dumps(found).encode())


def without_nulls(content: Any) -> Any:
    if isinstance(content, list):
        return [without_nulls(each) for each in content]
    if isinstance(content, dict):
        return {name: without_nulls(each) for name, each in content.items() if each is not None}
    return content


def same(found: Any, content: Any) -> bool:
    """Whether a cell holds what JSON said, as it is, widened, or as text."""
    if isinstance(content, dict) and isinstance(found, dict):
        return all(same(found[name], content.get(name)) for name in found) and content.keys() <= found.keys()
    if isinstance(content, list) and isinstance(found, list):
        return len(found) == len(content) and all(map(same, found, content))
    if isinstance(found, str) and not isinstance(content, str):
        # Text is made of what Arrow holds, where a field that is missing and one that is null are the same.
        return bool(without_nulls(json.loads(found)) == without_nulls(content))
    return found == content or (type(content) is int and found == float(content))


@settings(max_examples=200)
@given(st.lists(st.lists(st.none() | OBJECT | st.binary(max_size=8), max_size=6), max_size=3))
def test_every_record_is_a_row(batches: list[list[bytes | None]]) -> None:
    table = json_table([batch(*values) for values in batches])
    table.validate(full=True)
    values = [value for each in batches for value in each]
    assert table.num_rows == len(values)
    rows = table.to_pylist()
    for value, row in zip(values, rows, strict=True):
        kept = next((row[name] for name in ("__value", "_value") if name in row), None)
        try:
            fields = json.loads(value.decode()) if value is not None else {}
        except ValueError:
            assert kept == value
            continue
        if not isinstance(fields, dict):
            assert kept == value
            continue
        assert all(same(row[name], content) for name, content in fields.items()), (row, value)


def test_integers_beyond_64_bits_become_text_and_are_not_rounded() -> None:
    large = 2**63
    for values in ((b'{"a": 1}', b'{"a": %d}' % large), (b'{"a": %d}' % -(large + 1), b'{"a": 1.5}')):
        expected = {"a": [value.split(b": ")[1].rstrip(b"}").decode() for value in values]}
        assert columns(batch(*values)) == expected
        assert columns(*map(batch, values)) == expected
    assert columns(batch(b'{"a": {"b": [%d]}}' % large)) == {"a": [f'{{"b": [{large}]}}']}
    assert columns(batch(b'{"a": %d}' % (large - 1), b'{"a": %d}' % -large)) == {"a": [large - 1, -large]}
    assert columns(batch(b'{"a": 0.1234567890123456789, "b": "%d"}' % large)) == {
        "a": [0.1234567890123456789],
        "b": [str(large)],
    }


@pytest.mark.parametrize(
    "values",
    [(b'{"inner":', b'{"a":1}}{}'), (b'{"a":1,', b'"b":2}'), (b'{"a":[', b'{"b":1}]}{}'), (b'{"a":1}{', b'"b":2}')],
)
def test_values_that_are_objects_only_together_are_none(values: tuple[bytes, bytes]) -> None:
    assert columns(batch(*values))["_value"] == [*values]
