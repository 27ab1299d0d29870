"""get: one record, in every format."""

from __future__ import annotations

import io
import json

import pytest

import tailrace


@pytest.fixture
def shop(cli):
    """Ten numbered records with keys."""
    with tailrace.open(cli.path) as log:
        log.topic("orders").extend([f"v{number}" for number in range(10)], keys=["k0", "k1"] * 5)
    return cli


def test_get(shop):
    assert shop.ok("get", "orders", "3") == "v3\n"
    assert json.loads(shop.ok("get", "orders", "3", "-o", "json"))["value"] == "v3"
    assert shop.ok("get", "orders", "3", "-F", "%o %v") == "3 v3"
    table = shop.ok("get", "orders", "3", "-o", "table")
    assert [line.split()[0] for line in table.splitlines()] == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
    ]
    result = shop("get", "orders", "10")
    assert result.exit_code == 3
    assert result.stdout == ""


def test_get_shows_every_header(cli):
    cli.ok("append", "t", "x", "-H", "trace=1", "-H", "other=2", "-H", "trace=3")
    table = cli.ok("get", "t", "0", "-o", "table").splitlines()
    assert [line.split() for line in table if line.startswith("header")] == [
        ["header", "trace", "1"],
        ["header", "other", "2"],
        ["header", "trace", "3"],
    ]
    assert cli("get", "t", "0", "-p", "1").exit_code == 2


def test_a_hint_speaks_of_commands(shop):
    result = shop("get", "orders", "99")
    assert shop.told("topic show orders\n") in result.stderr
    assert "Topic.offsets()" not in result.stderr


def test_arrow(shop):
    pa = pytest.importorskip("pyarrow")
    result = shop("get", "orders", "3", "-o", "arrow")
    table = pa.ipc.open_stream(io.BytesIO(result.stdout_bytes)).read_all()
    assert table.column("offset").to_pylist() == [3]
    assert table.column("value").to_pylist() == [b"v3"]


def test_a_tombstone(cli):
    with tailrace.open(cli.path) as log:
        log.topic("t").append(None, key="k")
    assert cli.ok("get", "t", "0") == "\n"
    assert cli.ok("get", "t", "0", "-o", "table").splitlines()[-1].split() == ["value", "(tombstone)"]
    assert json.loads(cli.ok("get", "t", "0", "-o", "json"))["value"] is None
