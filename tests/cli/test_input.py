"""Input of every form, whole and broken, in batches."""

from __future__ import annotations

import io
import os
import threading
from datetime import UTC, datetime

import pytest

from tailrace import limits as library
from tailrace.cli import input as intake
from tailrace.cli import limits
from tailrace.cli.input import BadLine, InputRecord
from tests.tuning import limit


def lines(data: bytes, parse=None, **options):
    batches = list(intake.read_lines(io.BytesIO(data), parse or intake.line_parser(None, None), **options))
    return [entry for batch in batches for entry in batch.entries], [bad for batch in batches for bad in batch.bad]


def test_lines_are_kept_byte_for_byte():
    entries, bad = lines(b"a\n\n\xff\r\nlast")
    assert [entry.value for entry in entries] == [b"a", b"", b"\xff\r", b"last"]
    assert bad == []
    assert lines(b"a\n")[0] == [InputRecord(b"a")]
    assert lines(b"") == ([], [])


def test_batches_are_bounded(monkeypatch):
    limit(monkeypatch, limits, batch_entries_max=3)
    sizes = [len(batch.entries) for batch in intake.read_lines(io.BytesIO(b"x\n" * 8), intake.line_parser(None, None))]
    assert sizes == [3, 3, 2]


def test_a_line_too_long_is_named_and_not_kept(monkeypatch):
    limit(monkeypatch, limits, entry_bytes_max=10, batch_bytes_max=4)
    entries, bad = lines(b"short\n" + b"x" * 1000 + b"\nafter\n", lenient=True)
    assert [entry.value for entry in entries] == [b"short", b"after"]
    assert bad == [BadLine(2, "it is longer than 10 bytes")]


def test_a_slow_pipe_gives_what_it_has():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", 0) as sender:
        batches = intake.read_lines(stream, intake.line_parser(None, None))
        sender.write(b"one\ntw")
        assert next(batches).entries == [InputRecord(b"one")]
        sender.write(b"o\nthree")
        assert next(batches).entries == [InputRecord(b"two")]
        closer = threading.Timer(0.05, sender.close)
        closer.start()
        assert next(batches).entries == [InputRecord(b"three")]
        closer.join()


def test_json_lines_are_stored_as_they_stand():
    entries, bad = lines(b'{"id": 1}\n\n  {"id":2} \nnope\n[3]\n', intake.json_parser(None), lenient=True)
    assert [entry.value for entry in entries] == [b'{"id": 1}', b'{"id":2}', b"[3]"]
    assert [each.line for each in bad] == [4]
    assert "not JSON" in bad[0].reason


def test_a_bad_line_is_the_last_unless_lenient():
    batches = list(intake.read_lines(io.BytesIO(b"1\n{\n3\n"), intake.json_parser(None)))
    assert [(batch.entries, [bad.line for bad in batch.bad]) for batch in batches] == [([InputRecord(b"1")], [2])]


@pytest.mark.parametrize(
    ("line", "key"),
    [(b'{"k":"a"}', b"a"), (b'{"k":7}', b"7"), (b'{"k":null}', None), (b'{"k":{"x": [1]}}', b'{"x":[1]}')],
)
def test_a_key_comes_from_its_field(line, key):
    assert intake.json_parser("k")(line) == InputRecord(line, key)
    assert intake.line_parser(None, "k")(line) == InputRecord(line, key)


@pytest.mark.parametrize("line", [b'{"other":1}', b"[1]", b"3"])
def test_a_missing_key_field_is_a_bad_line(line):
    with pytest.raises(ValueError, match="no field 'k'"):
        intake.json_parser("k")(line)


def test_a_null_value_is_a_tombstone():
    assert intake.record_parser(None, None)(b'{"value":null,"key":"k"}') == InputRecord(None, b"k")
    assert intake.record_parser(b"k", None)(b'{"value":null}') == InputRecord(None, b"k")


def test_a_record_as_read_prints_it():
    parse = intake.record_parser(None, None)
    line = (
        b'{"topic":"t","partition":0,"offset":9,"timestamp":"2026-11-15T20:51:30.123456Z","key":"k",'
        b'"value_base64":"/w==","headers":{"a":"1","b":["2","3"]},"headers_base64":{"c":"/w=="}}'
    )
    entry = parse(line)
    assert entry.value == b"\xff"
    assert entry.key == b"k"
    assert entry.timestamp == datetime(2026, 11, 15, 20, 51, 30, 123456, UTC)
    assert list(entry.headers.items()) == [("a", b"1"), ("b", b"2"), ("b", b"3"), ("c", b"\xff")]


@pytest.mark.parametrize(
    ("line", "value"),
    [(b'{"value":"text"}', b"text"), (b'{"value":{"a": 1}}', b'{"a":1}'), (b'{"value":7}', b"7")],
)
def test_values_that_are_not_text_become_json(line, value):
    assert intake.record_parser(None, None)(line) == InputRecord(value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id":1}', 'no "value"'),
        (b"[]", 'no "value"'),
        (b'{"value":null}', "needs a key"),
        (b'{"value":"a","value_base64":"YQ=="}', "both"),
        (b'{"value_base64":"?"}', "not base64"),
        (b'{"value_base64":5}', "not base64"),
        (b'{"value":"a","headers":[1]}', "not an object"),
        (b'{"value":"a","headers":{"a":1}}', "not a text"),
        (b'{"value":"a","timestamp":"soon"}', "not a time"),
        (b'{"value":"a","timestamp":"2026-11-15T20:00"}', "no zone"),
        (b'{"value":"a","timestamp":1.5}', "not a time"),
        (b'{"value":"\xff"}', "not UTF-8"),
        (b'{"value":NaN}', "NaN"),
        (b'{"value":"a","other":-Infinity}', "-Infinity"),
        (b'{"value":1e999}', "not JSON compliant"),
        (b'{"value":"a","timestamp":1700000000}', "looks like seconds"),
        (b'{"value":"a","timestamp":1700000000000}', "looks like milliseconds"),
        (b'{"value":"a","timestamp":1700000000000000000}', "looks like nanoseconds"),
        (b'{"value":"a","timestamp":"9999-12-31T23:59:59-05:00"}', "years 1 to 9999"),
        (b'{"value":"a', "Unterminated string starting at column 10"),
        ('{"value":"a"}'.encode("utf-16-le"), "not JSON"),
    ],
)
def test_what_is_no_record_says_why(line, reason):
    with pytest.raises(ValueError, match=reason):
        intake.record_parser(None, None)(line)


def test_a_mark_of_the_byte_order_is_no_part_of_a_text():
    mark = b"\xef\xbb\xbf"
    entries, bad = lines(mark + b'{"id": 1}\n{"id": 2}\n', intake.json_parser("id"), text=True)
    assert [entry.value for entry in entries] == [b'{"id": 1}', b'{"id": 2}']
    assert bad == []
    assert lines(mark + b"a\n")[0] == [InputRecord(mark + b"a")]


def test_what_the_topic_would_refuse_is_a_bad_line():
    big = {"value_bytes_max": 3, "lenient": True}
    entries, bad = lines(b"abc\nabcd\nab\n", **big)
    assert [entry.value for entry in entries] == [b"abc", b"ab"]
    assert bad == [BadLine(2, "its value has 4 bytes, and the topic takes 3")]
    key = b'{"value":"v","key":"%s"}\n' % (b"k" * (intake.KEY_BYTES_MAX + 1))
    name = b'{"value":"v","headers":{"%s":"x"}}\n' % (b"n" * (intake.HEADER_NAME_BYTES_MAX + 1))
    header = b'{"value":"v","headers":{"n":"%s"}}\n' % (b"x" * intake.HEADERS_BYTES_MAX)
    _, bad = lines(key + name + header, intake.record_parser(None, None), lenient=True)
    assert [each.reason.split()[1] for each in bad] == ["key", "name", "headers"]


def test_the_limits_are_those_of_the_library():
    for name in ("KEY_BYTES_MAX", "HEADERS_BYTES_MAX", "HEADER_NAME_BYTES_MAX"):
        assert getattr(intake, name) == getattr(library, name)


def test_columns_that_no_entry_has_are_left_out():
    assert intake.columns([InputRecord(b"a"), InputRecord(None)]) == ([b"a", None], None, None, None)
    values, keys, _, timestamps = intake.columns(
        [InputRecord(b"a", b"k"), InputRecord(b"b", None, None, 1_700_000_000_000_000)]
    )
    assert (values, keys) == ([b"a", b"b"], [b"k", None])
    assert timestamps[1] == 1_700_000_000_000_000
    assert timestamps[0] > timestamps[1]
