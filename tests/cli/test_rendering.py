"""Records in every format: bytes as they are in a pipe, escaped on a terminal."""

from __future__ import annotations

import base64
import csv
import io
import json
import sys

import click
import pytest

import tailrace
from tailrace.cli import rendering
from tailrace.cli.arguments import HeaderList
from tailrace.cli.invocation import Invocation
from tailrace.cli.rendering import make_renderer

TIME = 1_763_239_890_123_456


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """One of text, one of bytes with headers, and a tombstone."""
    with tailrace.open(tmp_path_factory.mktemp("rendering") / "log") as log:
        topic = log.topic("orders")
        topic.append("tea", key="k", timestamp=TIME)
        headers = HeaderList([("a", b"1"), ("a", b"2"), ("b", b"\xff")])
        topic.append(b"\xff\x1b", timestamp=TIME + 1, headers=headers)
        topic.append(None, key=b"\xfe", timestamp=TIME + 2)
        return [*topic.read()]


def rendered(records, output="auto", form=None):
    invocation = Invocation()
    invocation.output = output
    renderer = make_renderer(invocation, form)
    return renderer.begin() + renderer.render(records[:1]) + renderer.render(records[1:]) + renderer.end()


def test_plain_is_the_value_and_a_line_feed(records):
    assert rendered(records) == b"tea\n\xff\x1b\n\n"
    assert rendering.render_values([]) == b""


def test_json_is_the_same_in_an_array_and_in_lines(records):
    lines = [json.loads(line) for line in rendered(records, "jsonl").splitlines()]
    assert json.loads(rendered(records, "json")) == lines
    assert lines[0] == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": "2025-11-15T20:51:30.123456Z",
        "key": "k",
        "value": "tea",
        "headers": {},
    }
    assert base64.b64decode(lines[1]["value_base64"]) == b"\xff\x1b"
    assert lines[1]["headers"] == {"a": ["1", "2"]}
    assert lines[1]["headers_base64"] == {"b": base64.b64encode(b"\xff").decode()}
    assert (lines[2]["value"], base64.b64decode(lines[2]["key_base64"])) == (None, b"\xfe")


def test_csv_has_the_same_fields(records):
    rows = [*csv.DictReader(io.StringIO(rendered(records, "csv").decode()))]
    assert tuple(rows[0]) == rendering.CSV_COLUMNS
    assert (rows[0]["value"], rows[0]["headers"], rows[0]["offset"]) == ("tea", "", "0")
    assert json.loads(rows[1]["headers"])["headers"] == {"a": ["1", "2"]}
    assert rows[2]["value"] == ""


def test_a_format(records):
    form = "%t[%p]@%o %d %k=%v %h%%\\t\\\\\\n"
    assert rendered(records[:1], form=form) == b"orders[0]@0 2025-11-15T20:51:30.123456Z k=tea %\t\\\n"
    assert rendered(records[1:2], form="%v|") == b"\xff\x1b|"
    assert json.loads(rendered(records[1:2], form="%h"))["headers"] == {"a": ["1", "2"]}


@pytest.mark.parametrize(
    ("form", "output", "reason"),
    [
        ("", "auto", "-F is empty"),
        ("%x", "auto", "does not know %x"),
        ("%", "auto", "does not know %"),
        ("\\x", "auto", "does not know"),
        ("%v", "json", "-F and -o json are two formats"),
    ],
)
def test_what_is_no_format(form, output, reason):
    with pytest.raises(click.UsageError, match=reason):
        rendered([], output, form)


def test_on_a_terminal_nothing_steers_it(records, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    lines = rendered(records).decode().splitlines()
    assert lines[0].endswith("  orders[0]@0  k  tea")
    assert lines[1].endswith("orders[0]@1  -  \\xff\\x1b")
    assert lines[2].endswith("(tombstone)")
    assert rendered(records[1:2], form="%v") == b"\\xff\\x1b"
    monkeypatch.setenv("COLUMNS", "20")
    assert all(len(line) <= 20 for line in rendered(records).decode().splitlines())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    assert rendered(records).startswith(b"\x1b[2m")


def test_arrow_is_not_for_a_terminal(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    with tailrace.open(tmp_path / "log") as log:
        log.topic("t").extend(["a", "b"])
        renderer = rendering.ArrowRenderer(log.topic("t").read(limit=0))
        parts = [renderer.begin(), *map(renderer.render, log.topic("t").read().batches()), renderer.end()]
        assert pa.ipc.open_stream(b"".join(parts)).read_all().column("value").to_pylist() == [b"a", b"b"]
        monkeypatch.setattr(sys, "stdout", Screen())
        with pytest.raises(click.UsageError, match="not for a terminal"):
            rendering.ArrowRenderer(log.topic("t").read(limit=0))


def test_times_far_away():
    assert rendering.iso_time(0) == "1970-01-01T00:00:00.000000Z"
    assert rendering.iso_time(253_402_300_799_999_999) == "9999-12-31T23:59:59.999999Z"
