"""Records and headers: what goes in comes out, and stored nonsense is refused."""

from __future__ import annotations

import array
import pickle
import struct
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace import limits, records
from tailrace.errors import RecordTooLargeError
from tailrace.records import EMPTY_HEADERS, Headers, Position, Record, decode_headers, encode_data, encode_headers

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
ITEMS = st.lists(st.tuples(TEXT, st.binary(max_size=40)), max_size=8)


def record(value: bytes | None = b"{}", **fields) -> Record:
    return Record("orders", 2, 17, 0, None, value, EMPTY_HEADERS)._replace(**fields)


def test_position_unpacks():
    partition, offset = Position(1, 2)
    assert (partition, offset) == (1, 2)


@given(st.datetimes(timezones=st.just(UTC)))
@example(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
@example(datetime(2026, 11, 15, 20, 51, 30, 123_457, tzinfo=UTC))
def test_timestamp_is_exact(moment):
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    assert record(timestamp_us=microseconds).timestamp == moment
    assert record(timestamp_us=microseconds).timestamp.tzinfo is UTC


def test_text_and_json():
    assert record("größe".encode()).text == "größe"
    assert record(b'{"id": 1, "tags": ["a"]}').json() == {"id": 1, "tags": ["a"]}
    assert record(b"").text == ""
    with pytest.raises(UnicodeDecodeError):
        record(b"\xff").text
    with pytest.raises(ValueError):
        record(b"{").json()


def test_a_tombstone_has_neither_text_nor_json():
    with pytest.raises(ValueError, match=r"orders\[2\]@17 is a tombstone"):
        record(None).text
    with pytest.raises(ValueError, match=r"orders\[2\]@17 is a tombstone"):
        record(None).json()


def test_records_pickle_and_compare():
    one = record(headers=Headers([("a", b"1"), ("a", b"2")]))
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert again.headers.multi_items() == [("a", b"1"), ("a", b"2")]
    assert hash(again) == hash(one)


@given(ITEMS)
def test_headers_round_trip_with_repeats_and_order(items):
    stored = encode_headers(Headers(items))
    assert decode_headers(stored).multi_items() == items
    assert decode_headers(memoryview(stored)).multi_items() == items
    assert encode_headers(decode_headers(stored)) == stored
    assert len(stored) == sum(6 + len(name.encode()) + len(value) for name, value in items)


@given(st.dictionaries(TEXT, st.one_of(TEXT, st.binary(max_size=40), st.binary(max_size=9).map(bytearray))))
def test_plain_mappings_round_trip(headers):
    decoded = decode_headers(encode_headers(headers))
    assert decoded == {name: v.encode() if isinstance(v, str) else bytes(v) for name, v in headers.items()}
    assert list(decoded) == list(headers)


def test_stored_form_is_the_documented_one():
    assert encode_headers({"ab": "c"}) == b"\x02\x00ab\x01\x00\x00\x00c"
    assert encode_headers(None) == b""
    assert encode_headers({}) == b""
    assert decode_headers(b"") is EMPTY_HEADERS


@given(ITEMS.filter(bool), st.data())
def test_cut_headers_are_refused_or_shorter(items, data):
    stored = encode_headers(Headers(items))
    cut = stored[: data.draw(st.integers(0, len(stored) - 1))]
    try:
        found = decode_headers(cut).multi_items()
    except ValueError:
        return
    assert found == items[: len(found)]
    assert encode_headers(Headers(found)) == cut


@given(st.binary(max_size=60))
def test_any_bytes_decode_exactly_or_raise(stored):
    try:
        headers = decode_headers(stored)
    except ValueError:
        return
    assert encode_headers(headers) == stored


def test_a_huge_length_is_refused_before_anything_is_allocated():
    with pytest.raises(ValueError, match="end inside the value"):
        decode_headers(b"\x01\x00a" + struct.pack("<I", 2**32 - 1) + b"x")
    with pytest.raises(ValueError, match="end inside the name"):
        decode_headers(b"\xff\xffab")
    with pytest.raises(ValueError, match="end inside a name length"):
        decode_headers(b"\x01")
    with pytest.raises(ValueError):
        decode_headers(b"\x01\x00\xff\x00\x00\x00\x00")


def test_headers_are_a_mapping():
    headers = Headers([("a", b"1"), ("b", b"2"), ("a", b"3")])
    assert isinstance(headers, Mapping)
    assert headers["a"] == b"3"
    assert headers.get("missing") is None
    assert list(headers) == ["a", "b"]
    assert len(headers) == 2
    assert "a" in headers
    with pytest.raises(KeyError):
        headers["missing"]
    with pytest.raises(TypeError):
        headers["a"] = b"4"


def test_headers_equality():
    assert Headers([("a", b"1"), ("b", b"2")]) == {"b": b"2", "a": b"1"}
    assert Headers([("a", b"1"), ("b", b"2")]) == Headers([("b", b"2"), ("a", b"1")])
    assert hash(Headers([("a", b"1"), ("b", b"2")])) == hash(Headers([("b", b"2"), ("a", b"1")]))
    assert Headers([("a", b"1"), ("a", b"2")]) != {"a": b"2"}
    assert Headers([("a", b"1"), ("a", b"2")]) != Headers([("a", b"2")])
    assert Headers() == {}
    assert Headers() != []
    assert not EMPTY_HEADERS


def test_headers_repr():
    assert repr(Headers([("a", b"1")])) == "Headers({'a': b'1'})"
    assert repr(Headers([("a", b"1"), ("a", b"2")])) == "Headers([('a', b'1'), ('a', b'2')])"


@pytest.mark.parametrize("headers", [[("a", b"1")], "a", b"", "", 7, {1: b"x"}, {"a": 1}, {"a": None}, {b"a": b"b"}])
def test_wrong_headers_are_type_errors(headers):
    with pytest.raises(TypeError, match=r"must be"):
        encode_headers(headers)


def test_header_limits():
    name = "n" * limits.HEADER_NAME_BYTES_MAX
    assert decode_headers(encode_headers({name: b""})) == {name: b""}
    with pytest.raises(RecordTooLargeError, match="65536 bytes") as caught:
        encode_headers({name + "n": b""})
    assert (caught.value.size, caught.value.maximum) == (65_536, 65_535)
    room = limits.HEADERS_BYTES_MAX - 7
    assert len(encode_headers({"a": bytes(room)})) == limits.HEADERS_BYTES_MAX
    with pytest.raises(RecordTooLargeError, match="more than 1048576 bytes"):
        encode_headers({"a": bytes(room + 1)})


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (b"ab", b"ab"),
        ("größe", "größe".encode()),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        (memoryview(array.array("H", [1])), struct.pack("=H", 1)),
        ("", b""),
    ],
)
def test_encode_data(value, stored):
    encoded = encode_data(value)
    assert encoded == stored
    assert type(encoded) is bytes


def test_encode_data_copies_what_may_change():
    source = bytearray(b"ab")
    encoded = encode_data(source)
    source[0] = 0
    assert encoded == b"ab"


@pytest.mark.parametrize("value", [1, 1.5, None, {"a": 1}, ["a"], True])
def test_other_values_point_to_json(value):
    with pytest.raises(TypeError, match="use json="):
        encode_data(value)
    with pytest.raises(TypeError, match=r"The key must be .*: convert it first"):
        encode_data(value, "key")


def test_lone_surrogates_are_refused():
    with pytest.raises(ValueError, match="lone surrogate"):
        encode_data("\ud800")
    with pytest.raises(ValueError, match="header name"):
        encode_headers({"\ud800": b""})


def test_to_datetime_of_zero():
    assert records.to_datetime(0) == datetime(1970, 1, 1, tzinfo=UTC)
