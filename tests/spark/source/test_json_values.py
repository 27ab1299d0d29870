"""JSON values as columns: what Arrow reads in bulk is what Python reads one by one, whatever stands beside it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from tailrace.spark.source import json_values
from tailrace.spark.source.json_values import Parser, corrupt_texts

TEXTS = pa.list_(pa.field("element", pa.string()))
FIELDS = pa.schema(
    [
        ("text", pa.string()),
        ("small", pa.int8()),
        ("long", pa.int64()),
        ("double", pa.float64()),
        ("flag", pa.bool_()),
        ("money", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("texts", TEXTS),
        ("inner", pa.struct([("a", pa.int32()), ("days", pa.list_(pa.field("element", pa.date32())))])),
    ]
)


def parse(values, fields=FIELDS):
    parsed = Parser(fields).parse(pa.array(values, pa.binary()))
    for column, field in zip(parsed.columns, fields, strict=True):
        assert column.type == field.type
        column.validate(full=True)
        assert len(column) == len(values)
    return parsed


def rows(values, fields=FIELDS):
    """For each value its fields that are not null, and whether it was corrupt."""
    parsed = parse(values, fields)
    found = []
    for index, bad in enumerate(parsed.corrupt.to_pylist()):
        row = {name: column[index].as_py() for name, column in zip(fields.names, parsed.columns, strict=True)}
        found.append(({name: item for name, item in row.items() if item is not None}, bad))
    return found


GOOD = [
    (b"{}", {}),
    (b' {"text": "x"}\n', {"text": "x"}),
    (b'{"text": "x", "other": {"deep": [1, {"a": null}]}}', {"text": "x"}),
    (b'{"text": "\\u00e9\\ud83d\\ude00\\n"}', {"text": "é😀\n"}),
    ('{"text": "é😀"}'.encode(), {"text": "é😀"}),
    (b'{"text": "2026-11-15T20:00:00Z"}', {"text": "2026-11-15T20:00:00Z"}),
    (b'{"text": null, "small": null, "at": null, "inner": null, "texts": null}', {}),
    (b'{"small": -128, "long": 9223372036854775807}', {"small": -128, "long": 2**63 - 1}),
    (b'{"double": 1}', {"double": 1.0}),
    (b'{"double": -1.5e300, "flag": true}', {"double": -1.5e300, "flag": True}),
    (b'{"money": 12.5}', {"money": Decimal("12.50")}),
    (b'{"money": "12.34"}', {"money": Decimal("12.34")}),
    (b'{"day": "2026-11-15"}', {"day": date(2026, 11, 15)}),
    (b'{"at": "2026-11-15T20:00:00Z"}', {"at": datetime(2026, 11, 15, 20, tzinfo=UTC)}),
    (b'{"at": "2026-11-15 20:00:00.25+02:00"}', {"at": datetime(2026, 11, 15, 18, 0, 0, 250_000, tzinfo=UTC)}),
    (b'{"at": "2026-11-15T20:00:00"}', {"at": datetime(2026, 11, 15, 20, tzinfo=UTC)}),
    (b'{"at": "2026-11-15T20:00:00.123456789Z"}', {"at": datetime(2026, 11, 15, 20, 0, 0, 123_456, tzinfo=UTC)}),
    (b'{"local": "2026-11-15T20:00:00"}', {"local": datetime(2026, 11, 15, 20)}),  # noqa: DTZ001
    (b'{"local": "2026-11-15T20:00:00+01:00"}', {"local": datetime(2026, 11, 15, 19)}),  # noqa: DTZ001
    (b'{"texts": ["a", null], "inner": {"a": 1, "b": 2}}', {"texts": ["a", None], "inner": {"a": 1, "days": None}}),
    (b'{"inner": {"days": ["2026-11-15"]}}', {"inner": {"a": None, "days": [date(2026, 11, 15)]}}),
]
# Right for a person who knows Spark's from_json, though Arrow does not take it.
LENIENT = [
    (b'{"text": 12}', {"text": "12"}),
    (b'{"text": {"a": [1]}}', {"text": '{"a":[1]}'}),
    (b'{"double": "NaN"}', None),
    (b'{"double": "-Infinity"}', {"double": float("-inf")}),
    (b'{"money": 12.345}', {"money": Decimal("12.35")}),
    (b'{"at": 1763236800}', {"at": datetime(2025, 11, 15, 20, tzinfo=UTC)}),
    (b'{"text": "a", "text": "b"}', {"text": "b"}),
    (b"{'text': 'x', \"long\": 1}", {"text": "x", "long": 1}),
    (b"""{'text': 'it\\'s "x" \\\\ \\n'}""", {"text": 'it\'s "x" \\ \n'}),
    (b"""{"text": "it's", 'long': 2}""", {"text": "it's", "long": 2}),
    (b'{"at": "2026-11"}', {"at": datetime(2026, 11, 1, tzinfo=UTC)}),
    (b'{"at": " 2026-1-5T20:00 "}', {"at": datetime(2026, 1, 5, 20, tzinfo=UTC)}),
]
BAD = [
    (b"", {}),
    (b"  ", {}),
    (b"null", {}),
    (b"1", {}),
    (b'"text"', {}),
    (b"[{}]", {}),
    (b"{", {}),
    (b"{}{}", {}),
    (b"{},{}", {}),
    (b'{"text": "x"', {}),
    (b'{"text": "x"}}', {}),
    (b'{"text": "x"} and more', {}),
    (b'{"text": "x"},"long": {}', {}),
    (b"{'text': 'x}", {}),
    (b"{'text': x'}", {}),
    (b'{"at": 1763236800.5, "long": 1}', {"long": 1}),
    (b'{"at": "20261115T200000Z"}', {}),
    (b'{"at": 9223372036855}', {}),
    (b'{"text": "\xff"}', {}),
    (b'{"text": "a\nb"}', {}),
    (b'{"text": "\\ud800", "long": 1}', {"long": 1}),
    (b'{"long": 1.5, "text": "x"}', {"text": "x"}),
    (b'{"long": "1", "text": "x"}', {"text": "x"}),
    (b'{"long": 9223372036854775808}', {}),
    (b'{"long": true}', {}),
    (b'{"small": 128}', {}),
    (b'{"flag": "true"}', {}),
    (b'{"flag": 1}', {}),
    (b'{"double": "1.5"}', {}),
    (b'{"money": 123456789.5}', {}),
    (b'{"money": "lots"}', {}),
    (b'{"day": "2026-13-01"}', {}),
    (b'{"day": "tomorrow", "text": "x"}', {"text": "x"}),
    (b'{"at": "now"}', {}),
    (b'{"texts": "a"}', {}),
    (b'{"inner": [1], "text": "x"}', {"text": "x"}),
    (b'{"inner": {"a": "1"}}', {}),
]


class TestValues:
    @pytest.mark.parametrize(("value", "fields"), GOOD + [each for each in LENIENT if each[1]])
    def test_good(self, value, fields):
        assert rows([value]) == [(fields, False)]

    @pytest.mark.parametrize(("value", "fields"), BAD)
    def test_bad(self, value, fields):
        assert rows([value]) == [(fields, True)]

    def test_not_a_number(self):
        ((found, bad),) = rows([b'{"double": "NaN"}'])
        assert found["double"] != found["double"]
        assert not bad

    def test_a_tombstone_is_not_corrupt(self):
        assert rows([None, b'{"text": "x"}', None]) == [({}, False), ({"text": "x"}, False), ({}, False)]

    def test_bulk_and_one_by_one_agree(self):
        values = [value for value, _ in GOOD] + [None]
        parser = Parser(FIELDS)
        array = pa.array(values, pa.binary())
        bulk, single = parser._in_bulk(pa.array([values[0]] * 3 + values[1:16])), parser._one_by_one(array)
        assert bulk is not None
        alone = [parser._in_bulk(array.slice(index, 1)) for index in range(len(values))]
        for index, parsed in enumerate(alone):
            # Nanoseconds are among the values that Arrow reads only if it is told so.
            assert parsed is not None, values[index]
            assert [column[0] for column in parsed.columns] == [column[index] for column in single.columns]
        assert not any(single.corrupt.to_pylist())

    def test_neighbours_change_nothing(self, rng):
        known = {value: rows([value])[0] for value, _ in GOOD + LENIENT[:2] + LENIENT[3:] + BAD}
        for size in (3, 50, 400, 5_000):
            good = [value for value, _ in GOOD]
            values = [rng.choice(good) for _ in range(size)]
            for _ in range(max(1, size // 100)):
                values[rng.randrange(size)] = rng.choice(list(known))
            assert rows(values) == [known[value] for value in values]

    def test_values_that_only_together_look_like_as_many_objects(self):
        pairs = [
            [b'{"inner":', b'{"a":1}}{}'],
            [b'{"text":"}', b'{","long":1}{}'],
            [b"{}null{}", b"{}"],
            [b'{"texts":[{}', b'{}]}{"long":1}'],
            [b'{"long":1}{"long":2}{', b"}"],
        ]
        for values in pairs:
            assert [bad for _, bad in rows(values)] == [not isinstance(_object(value), dict) for value in values], (
                values
            )

    def test_deep_values(self):
        deep = b'{"text": "x", "deep": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
        assert rows([deep, b"oops"]) == [({"text": "x"}, False), ({}, True)]

    def test_a_slice(self):
        array = pa.array([b"bad", b'{"long": 1}', None, b'{"long": 3}', b"bad"], pa.binary()).slice(1, 3)
        parsed = Parser(FIELDS).parse(array)
        assert parsed.columns[2].to_pylist() == [1, None, 3]
        assert parsed.corrupt.to_pylist() == [False, False, False]

    def test_nothing(self):
        assert rows([]) == []


class TestMoreTypes:
    def test_maps_and_binary_are_read_one_by_one(self):
        numbers = pa.map_(pa.field("key", pa.string(), False), pa.field("value", pa.int32()))
        fields = pa.schema([("counts", numbers), ("data", pa.binary()), ("inner", pa.struct([("m", numbers)]))])
        values = [
            b'{"counts": {"a": 1, "b": null}, "data": "aGk=", "inner": {"m": {"x": 3}}}',
            b'{"counts": {"a": "x"}, "data": "aGk="}',
            b'{"data": "?"}',
            b"{}",
        ]
        assert rows(values, fields) == [
            ({"counts": [("a", 1), ("b", None)], "data": b"hi", "inner": {"m": [("x", 3)]}}, False),
            ({"data": b"hi"}, True),
            ({}, True),
            ({}, False),
        ]

    def test_no_fields_at_all(self):
        parsed = Parser(pa.schema([])).parse(pa.array([b"{}", b"x", None], pa.binary()))
        assert parsed.columns == []
        assert parsed.corrupt.to_pylist() == [False, True, False]

    @pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
    def test_the_text_of_corrupt_values(self, kind):
        values = pa.array([b"{}", b"\xffno", None, b"1"], pa.binary())
        texts = corrupt_texts(values, pa.array([False, True, False, True]), kind)
        assert texts.to_pylist() == (
            [None, "\ufffdno", None, "1"] if kind == pa.string() else [None, b"\xffno", None, b"1"]
        )
        assert corrupt_texts(values, pa.array([False] * 4), kind).null_count == 4


def test_bad_values_do_not_slow_down_the_good_ones(monkeypatch):
    """Few values are parsed one by one because of a bad one beside them."""
    parser = Parser(FIELDS)
    parsed = []
    row = parser._row
    monkeypatch.setattr(parser, "_row", lambda value: parsed.append(value) or row(value))
    values = [b'{"text": "x", "long": 1}'] * 20_000
    values[7_000] = b'{"long": "x"}'
    values[100] = b"nothing"
    found = parser.parse(pa.array(values, pa.binary()))
    assert sum(found.corrupt.to_pylist()) == 2
    assert len(parsed) <= json_values.BLOCK_SIZES[-1]


def _object(value):
    try:
        return json.loads(value)
    except ValueError:
        return None
