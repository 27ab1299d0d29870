"""read, tail and get: places, filters and formats."""

from __future__ import annotations

import base64
import csv
import io
import json
from datetime import UTC, datetime, timedelta

import pytest

import tailrace


@pytest.fixture
def shop(cli):
    """Ten numbered records with keys, a minute apart, ending now."""
    now = datetime.now(UTC)
    with tailrace.open(cli.path) as log:
        topic = log.topic("orders")
        for number in range(10):
            topic.append(f"v{number}", key=f"k{number % 2}", timestamp=now - timedelta(minutes=9 - number))
    return cli


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "0123456789"),
        (("earliest",), "0123456789"),
        (("7",), "789"),
        (("0:7",), "789"),
        (("latest",), ""),
        (("active",), "0123456789"),
        (("--stop", "active"), ""),
        (("--stop", "3"), "012"),
        (("2", "--stop", "0:4"), "23"),
        (("-n", "3"), "789"),
        (("-n", "150s"), "789"),
        (("-150s",), "789"),
        (("--limit", "2"), "01"),
        (("--reverse",), "9876543210"),
        (("-n", "3", "--reverse"), "987"),
        (("-k", "k1"), "13579"),
        (("-k", "k1", "--limit", "2"), "13"),
        (("-k", "nobody"), ""),
        (("--grep", "v[2-4]"), "234"),
        (("--grep", "v[2-4]", "-k", "k0"), "24"),
        (("-p", "0"), "0123456789"),
        (("--order", "offset"), "0123456789"),
    ],
)
def test_what_is_read(shop, arguments, expected):
    assert shop.ok("read", "orders", *arguments) == "".join(f"v{number}\n" for number in expected)


def test_a_time_with_a_zone(shop):
    moment = (datetime.now(UTC) - timedelta(seconds=150)).isoformat()
    assert shop.ok("read", "orders", moment) == "v7\nv8\nv9\n"


@pytest.mark.parametrize(("arguments", "count"), [((), 10), (("-k", "k1"), 5), (("--grep", "v", "--limit", "4"), 4)])
def test_count(shop, arguments, count):
    assert shop.ok("read", "orders", "--count", *arguments) == f"{count}\n"


def test_json_shape(shop):
    shop.ok("append", "orders", "--raw", "-H", "h=1", input=b"\xff")
    objects = json.loads(shop.ok("read", "orders", "8", "-o", "json"))
    assert list(objects[0]) == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert objects[0] | {"timestamp": ""} == {
        "topic": "orders",
        "partition": 0,
        "offset": 8,
        "timestamp": "",
        "key": "k0",
        "value": "v8",
        "headers": {},
    }
    assert datetime.fromisoformat(objects[0]["timestamp"]).utcoffset() == timedelta(0)
    assert objects[0]["timestamp"].endswith("Z")
    assert base64.b64decode(objects[2]["value_base64"]) == b"\xff"
    assert "value" not in objects[2]
    assert objects[2]["headers"] == {"h": "1"}
    lines = shop.ok("read", "orders", "8", "-o", "jsonl").splitlines()
    assert [json.loads(line) for line in lines] == objects


def test_an_empty_json_array_is_json(shop):
    assert json.loads(shop.ok("read", "orders", "latest", "-o", "json")) == []


def test_csv(shop):
    rows = list(csv.DictReader(io.StringIO(shop.ok("read", "orders", "8", "-o", "csv"))))
    assert [(row["topic"], row["offset"], row["key"], row["value"]) for row in rows] == [
        ("orders", "8", "k0", "v8"),
        ("orders", "9", "k1", "v9"),
    ]


def test_table_escapes_what_steers_a_terminal(cli):
    cli.ok("append", "t", "--raw", "-k", "\x1b[2J", input=b"\x1b]0;title\x07\xff\nnext")
    text = cli.ok("read", "t", "-o", "table")
    assert "t[0]@0  \\x1b[2J  \\x1b]0;title\\x07\\xff\\nnext\n" in text
    assert "\x1b" not in text


def test_format(shop):
    assert shop.ok("read", "orders", "9", "-F", "%t[%p]@%o %k=%v 100%%\\t.\\n") == "orders[0]@9 k1=v9 100%\t.\n"
    assert datetime.fromisoformat(shop.ok("read", "orders", "9", "-F", "%d")).tzinfo is not None


def test_arrow(shop):
    pyarrow = pytest.importorskip("pyarrow")
    result = shop("read", "orders", "-o", "arrow")
    assert result.exit_code == 0, result.stderr
    table = pyarrow.ipc.open_stream(result.stdout_bytes).read_all()
    assert table["offset"].to_pylist() == list(range(10))
    result = shop("get", "orders", "4", "-o", "arrow")
    assert pyarrow.ipc.open_stream(result.stdout_bytes).read_all()["offset"].to_pylist() == [4]


def test_many_partitions(cli):
    cli.ok("topic", "create", "many", "--set", "partitions=3")
    for partition in range(3):
        cli.ok("append", "many", f"a{partition}", f"b{partition}", "--partition", str(partition))
    assert cli.ok("read", "many", "-p", "1") == "a1\nb1\n"
    assert sorted(cli.ok("read", "many", "-p", "0,2").split()) == ["a0", "a2", "b0", "b2"]
    assert cli.ok("read", "many", "--order", "offset").split() == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert sorted(cli.ok("read", "many", "0:1,1:1,2:2").split()) == ["b0", "b1"]
    assert cli.ok("read", "many", "-n", "2") == "a2\nb2\n"
    assert cli("read", "many", "1").exit_code == 2


def test_fail_empty(shop):
    assert shop("read", "orders", "--grep", "nothing", "--fail-empty").exit_code == 9
    assert shop("read", "orders", "--fail-empty").exit_code == 0


def test_follow_ends_after_its_timeout(shop):
    assert shop.ok("read", "orders", "8", "-f", "--timeout", "100ms") == "v8\nv9\n"
    assert shop.ok("tail", "orders", "-n", "2", "--timeout", "0.1") == "v8\nv9\n"
    assert shop.ok("tail", "orders", "--limit", "3") == "v0\nv1\nv2\n"


def test_an_offset_of_many_partitions_is_told_in_the_grammar_of_the_shell(cli):
    cli.ok("topic", "create", "many", "--set", "partitions=3")
    result = cli("read", "many", "5")
    assert result.exit_code == 2
    assert "write 0:5,1:5,... or name one with -p." in result.stderr
    assert "Run: tailrace read --help" in result.stderr
    assert "{" not in cli("read", "many", "soon").stderr


def test_reading_creates_nothing(cli, tmp_path):
    for arguments in (("read", "orders"), ("get", "orders", "0"), ("topic", "ls"), ("stats",), ("verify",)):
        result = cli(*arguments)
        assert result.exit_code == 3, result.stderr
        assert not cli.path.exists()
    for arguments in (("topic", "drop", "orders"), ("topic", "alter", "orders", "partitions=2"), ("namespace", "ls")):
        assert cli(*arguments, "--yes").exit_code == 3
        assert not cli.path.exists()


def test_a_date_is_its_midnight_in_utc(cli):
    for value, time in (("a", "2026-11-14T23:59Z"), ("b", "2026-11-15"), ("c", "2026-11-15T23Z"), ("d", "2026-11-16")):
        cli.ok("append", "days", value, "--timestamp", time)
    assert cli.ok("read", "days", "2026-11-15").split() == ["b", "c", "d"]
    assert cli.ok("read", "days", "2026-11-15", "--stop", "2026-11-16").split() == ["b", "c"]
    cli.ok("topic", "trim", "days", "--before", "2026-11-16", "--yes")
    assert cli.ok("read", "days").split() == ["d"]


def test_what_is_suggested_for_a_time_without_a_zone_is_accepted(cli):
    cli.ok("append", "days", "a")
    for text in ("2026-11-15T20:00", "2026-W47-1", "2026-11-15 20:00"):
        refused = cli("read", "days", text)
        assert refused.exit_code == 2
        suggested = refused.stderr.split("has no zone: write '")[1].split("'")[0]
        cli.ok("read", "days", suggested)


def test_a_typo_creates_no_topic_and_is_corrected(shop):
    result = shop("read", "ordes")
    assert result.exit_code == 3
    assert "did you mean 'orders'" in result.stderr
    assert [row["name"] for row in json.loads(shop.ok("topic", "ls", "-o", "json"))] == ["orders"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--grep", "("),
        ("-F", "%x"),
        ("-F", "\\q"),
        ("-F", "%v", "-o", "csv"),
        ("-p", "a"),
        ("--timeout", "5s"),
        ("soon",),
        ("2026-11-15T20:00",),
        ("--stop", "soon"),
        ("--last", "ten"),
        ("--limit", "x"),
        ("-o", "parquet"),
        ("-o", "arrow", "-k", "k"),
        ("0:1,0:2",),
        ("5", "-n", "3"),
        ("--reverse", "-f"),
        ("--nonsense",),
        ("--count", "-F", "%v"),
        ("--count", "-o", "arrow"),
        ("--count", "-f"),
        ("-F", ""),
        ("-p", "3"),
        ("3:0",),
        ("9" * 5_000,),
        ("--timeout", "nan", "-f"),
        ("-n", "9999999w"),
    ],
)
def test_wrong_usage_is_told_in_a_sentence(shop, arguments):
    result = shop("read", "orders", *arguments)
    assert result.exit_code == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("tailrace: ")
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 2


def test_errors_as_json(shop):
    for arguments in (
        ("-o", "json", "read", "ordes"),
        ("read", "ordes", "--output=jsonl"),
        ("read", "ordes", "-ojson"),
    ):
        error = json.loads(shop(*arguments).stderr)["error"]
        assert set(error) == {"code", "message", "hint"}
        assert error["code"] == "topic-not-found"
    assert json.loads(shop("read", "--nonsense", "-o", "json").stderr)["error"]["code"] == "usage"


def test_a_log_must_be_named(monkeypatch):
    from click.testing import CliRunner

    from tailrace.cli.app import root

    result = CliRunner().invoke(root, ["read", "orders"])
    assert result.exit_code == 2
    assert "TAILRACE_LOG" in result.stderr


def test_a_damaged_record_is_named(cli):
    cli.ok("append", "orders", *(f"value-{number}" for number in range(5)))
    (file,) = [
        path
        for path in cli.path.rglob("*")
        if path.is_file() and b"value-3" in path.read_bytes() and "topics" in str(path)
    ]
    data = file.read_bytes()
    file.write_bytes(data.replace(b"value-3", b"valuE-3"))
    result = cli("read", "orders")
    assert result.exit_code == 5
    assert "orders[0]" in result.stderr
    result = cli("verify", "-o", "json")
    assert result.exit_code == 5
    report = json.loads(result.stdout)
    assert {"checked_bytes", "damage"} <= set(report)
    assert {"topic", "partition", "first", "last", "file", "position"} <= set(report["damage"][0])
    assert report["damage"][0]["topic"] == "orders"
    assert json.loads(result.stderr)["error"]["code"] == "damage-found"
