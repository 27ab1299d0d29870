"""append: every source, every form, and what a wrong line or argument leaves behind."""

from __future__ import annotations

import json
import os

import pytest

import tailrace


def values(cli, topic="orders"):
    with tailrace.open(cli.path, "r") as log:
        return [record.value for record in log.topic(topic).read()]


def records(cli, topic="orders"):
    with tailrace.open(cli.path, "r") as log:
        return list(log.topic(topic).read())


def test_arguments_are_one_append(cli):
    assert cli.ok("append", "orders", "a", "b", "c") == "orders[0]@0..2  (3 records)\n"
    assert cli.ok("append", "orders", "d") == "orders[0]@3  (1 record)\n"
    assert values(cli) == [b"a", b"b", b"c", b"d"]


def test_stdin_is_a_record_a_line(cli):
    assert cli.ok("append", "orders", input=b"one\n\n\xff\nlast") == "orders[0]@0..3  (4 records)\n"
    assert values(cli) == [b"one", b"", b"\xff", b"last"]


def test_an_empty_stdin_appends_nothing(cli):
    result = cli("append", "orders", input=b"")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Appended 0 records.\n")


def test_a_file_is_read(cli, tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"%d\n" % number for number in range(100_000)))
    assert cli.ok("append", "orders", "-i", str(file)) == "orders[0]@0..99999  (100000 records)\n"
    assert values(cli)[::25_000] == [b"0", b"25000", b"50000", b"75000"]


def test_a_missing_file_creates_no_log(cli):
    result = cli("append", "orders", "-i", "nowhere")
    assert result.exit_code == 3
    assert not cli.path.exists()


def test_raw_is_one_record(cli):
    cli.ok("append", "orders", "--raw", "-k", "key", input=b"two\nlines\0\xff\n")
    (record,) = records(cli)
    assert (record.key, record.value) == (b"key", b"two\nlines\0\xff\n")


def test_key_headers_and_time_go_to_every_record(cli):
    cli.ok(
        "append", "t", "a", "b", "-k", "k", "-H", "x=1", "-H", "y=a=b", "-H", "x=2", "--timestamp", "2026-01-02T03:04Z"
    )
    for record in records(cli, "t"):
        assert record.key == b"k"
        assert record.headers.multi_items() == [("x", b"1"), ("y", b"a=b"), ("x", b"2")]
        assert record.timestamp.isoformat() == "2026-01-02T03:04:00+00:00"


def test_keys_come_from_a_field(cli):
    cli.ok("append", "orders", "--key-field", "id", input=b'{"id":"a"}\n{"id":7}\n')
    assert [(record.key, record.value) for record in records(cli)] == [(b"a", b'{"id":"a"}'), (b"7", b'{"id":7}')]


def test_csv_rows_become_objects(cli):
    cli.ok("append", "orders", "--csv", "--key-field", "id", input="id,name\n1,tea\n2,caf\u00e9\n".encode())
    assert [(record.key, record.json()) for record in records(cli)] == [
        (b"1", {"id": "1", "name": "tea"}),
        (b"2", {"id": "2", "name": "caf\u00e9"}),
    ]


def test_partitions_and_their_account(cli):
    cli.ok("topic", "create", "orders", "--set", "partitions=3")
    assert cli.ok("append", "orders", "a", "b", "--partition", "2") == "orders[2]@0..1  (2 records)\n"
    lines = b"".join(b'{"id":%d}\n' % number for number in range(60))
    rows = json.loads(cli.ok("append", "orders", "--key-field", "id", "-o", "json", input=lines))
    assert [row["partition"] for row in rows] == [0, 1, 2]
    assert sum(row["records"] for row in rows) == 60
    assert set(rows[0]) == {"topic", "partition", "first", "last", "records"}


@pytest.mark.parametrize("durable", ["yes", "no", "50ms"])
def test_durable_levels(cli, durable):
    assert cli.ok("append", "orders", "a", "--durable", durable) == "orders[0]@0  (1 record)\n"


def test_expect_offset(cli):
    cli.ok("append", "orders", "a", "--expect-offset", "0")
    result = cli("append", "orders", "b", "--expect-offset", "0", "-o", "json")
    assert result.exit_code == 4
    assert json.loads(result.stderr)["error"]["code"] == "offset-mismatch"
    assert values(cli) == [b"a"]


def test_jsonl_round_trip(cli):
    with tailrace.open(cli.path) as log:
        topic = log.topic("orders")
        topic.append(b"\xff\0", key=b"\xfe", headers={"a": b"\xfd", "b": "text"}, timestamp=1_700_000_000_000_000)
        topic.append('{"id": 1}\n', key="caf\u00e9")
        topic.append(None, key="gone")
        topic.append(b"")
    cli.ok("append", "copy", "-k", "k", "-H", "r=1", "-H", "r=2", "--raw", input=b"x")
    cli.ok("append", "orders", "--jsonl", input=cli.ok("read", "copy", "-o", "jsonl"))
    cli.ok("append", "again", "--jsonl", input=cli.ok("read", "orders", "-o", "jsonl"))
    before, after = records(cli), records(cli, "again")
    assert len(before) == 5
    assert [record[3:] for record in before] == [record[3:] for record in after]
    assert after[4].headers.multi_items() == [("r", b"1"), ("r", b"2")]


def test_a_bad_line_ends_the_call_where_it_stands(cli):
    result = cli("append", "orders", "--jsonl", input=b'{"value":"a"}\n{"value":"b"}\n{"id":1}\n{"value":"c"}\n')
    assert result.exit_code == 1
    assert "Line 3 is no record" in result.stderr
    assert "orders[0]@0..1  (2 records)" in result.stderr
    assert values(cli) == [b"a", b"b"]


def test_a_bad_time_ends_the_call_where_it_stands(cli):
    result = cli("append", "t", "--jsonl", input=b'{"value":"a"}\n{"value":"b","timestamp":17}\n{"value":"c"}\n')
    assert result.exit_code == 1
    assert "Line 2 is no record" in result.stderr
    assert "since 1970, or" in result.stderr
    assert ".." not in result.stderr
    assert values(cli, "t") == [b"a"]
    result = cli("append", "t", "--jsonl", input=b'{"value":"b","timestamp":"soon"}\n')
    assert "microseconds since 1970.\n" in result.stderr


def test_expect_offset_of_many_partitions_names_one(cli):
    cli.ok("topic", "create", "many", "--set", "partitions=2")
    result = cli("append", "many", "a", "--expect-offset", "0")
    assert result.exit_code == 2
    assert "--partition N" in result.stderr
    cli.ok("append", "many", "a", "--expect-offset", "0", "--partition", "1")


def test_a_record_too_large_tells_what_is_in(cli, tmp_path):
    cli.ok("topic", "create", "small", "--set", "max_record_bytes=10")
    result = cli("append", "small", "x" * 11, "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stderr)["error"]["code"] == "record-too-large"
    file = tmp_path / "lines"
    file.write_bytes(b"short\n" * 70_000 + b"x" * 11 + b"\n")
    result = cli("append", "small", "-i", str(file), "-o", "json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["message"] == "Line 70001 is no record: its value has 11 bytes, and the topic takes 10."
    assert "small[0]@0..69999  (70000 records)" in error["hint"]
    assert len(values(cli, "small")) == 70_000


@pytest.mark.parametrize(
    "arguments",
    [
        ("a", "-i", "file"),
        ("a", "--csv"),
        ("a", "--raw"),
        ("a", "-k", "k", "--key-field", "f"),
        ("--raw", "--key-field", "f"),
        ("a", "b", "--expect-offset", "0"),
        ("--expect-offset", "0"),
        ("a", "-H", "no-equals"),
        ("a", "--timestamp", "yesterday"),
        ("a", "--timestamp", "1700000000"),
        ("a", "--timestamp", "2026-11-15T20:00"),
        ("a", "--partition", "1"),
        ("a", "--expect-offset", "99999999999999999999"),
        ("--jsonl", "--csv"),
        ("--lines", "--raw"),
        ("a", "--durable", "9999999w"),
        ("a", "--durable", "maybe"),
        ("a", "--partition", "x"),
        ("a", "-o", "arrow"),
    ],
)
def test_wrong_usage_is_told_and_nothing_is_written(cli, arguments):
    result = cli("append", "orders", *arguments)
    assert result.exit_code == 2, result.stderr
    assert "Traceback" not in result.output
    if cli.path.exists():
        with tailrace.open(cli.path, "r") as log:
            assert log.topics() == []


def test_bytes_of_arguments_are_kept(cli):
    done = cli.finish("append", "orders", os.fsdecode(b"\xff"), "--", "-5")
    assert done.returncode == 0, done.stderr
    assert values(cli) == [b"\xff", b"-5"]


def test_a_life_from_a_topic_or_an_option(cli):
    cli.ok("topic", "create", "sessions", "--ttl", "1h")
    cli.ok("append", "sessions", "short", "--ttl", "1ms")
    cli.ok("append", "sessions", "--raw", "--ttl", "1ms", "--expect-offset", "1", input=b"raw")
    cli.ok("append", "sessions", "default")
    cli.ok("append", "sessions", "never", "--ttl", "never")
    assert values(cli, "sessions") == [b"default", b"never"]
    gone = cli("get", "sessions", "0")
    assert (gone.exit_code, "expired at 20" in gone.stderr) == (3, True)


@pytest.mark.parametrize("life", ["0s", "-1s", "soon", "100us", "3000w", "1h30m", ""])
def test_a_life_that_is_none_is_refused(cli, life):
    result = cli("append", "orders", "x", "--ttl", life)
    assert result.exit_code == 2
    assert "write 1ms to 18262d, such as 2h, or never" in result.stderr
    assert cli("topic", "show", "orders").exit_code == 3


def test_a_value_that_does_not_fit_the_schema(cli):
    with tailrace.open(cli.path) as log:
        log.topic("t", schema={"type": "object", "required": ["id"]})
    result = cli("append", "t", '{"id":1}', "{}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "tailrace: Value 2 does not fit the schema of 't': field id: \"id\" is a required property.",
        "Nothing was appended. Correct it, then append all of the values again.",
    ]
    result = cli("append", "t", "-o", "json", input=b'{"id":1}\n{"id":2}\nno JSON\n{"id":3}\n')
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "schema"
    assert error["message"].startswith("Line 3 does not fit the schema of 't': it is no JSON: ")
    assert error["hint"].startswith("Appended before: t[0]@0..1")
    result = cli("append", "t", "5", "--expect-offset", "2")
    assert result.exit_code == 1
    assert "topic show t -o json" in result.stderr
    assert cli.ok("append", "t", "--raw", input=b'{"id":\n4}') == "t[0]@2  (1 record)\n"


def test_a_record_with_an_id_is_appended_once(cli):
    first = cli.ok("append", "orders", "tea", "--dedupe-id", "run 7", "-o", "json")
    assert cli.ok("append", "orders", "tea", "--dedupe-id", "run 7", "-o", "json") == first
    cli.ok("append", "orders", "--raw", "--dedupe-id", "run 8", input=b"pot")
    cli.ok("append", "orders", "--raw", "--dedupe-id", "run 8", input=b"pot")
    assert values(cli) == [b"tea", b"pot"]
    assert json.loads(cli.ok("read", "orders", "-o", "jsonl").splitlines()[0])["headers"] == {"tailrace-id": "run 7"}


def test_the_id_of_a_copied_record_is_left_out(cli):
    cli.ok("append", "orders", "tea", "--dedupe-id", "run 7", "-H", "trace=1")
    lines = cli.ok("read", "orders", "-o", "jsonl")
    cli.ok("append", "copy", "--jsonl", input=lines.encode())
    assert json.loads(cli.ok("read", "copy", "-o", "jsonl"))["headers"] == {"trace": "1"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tea", "--dedupe-id", ""), "write an id of 1 to 1,024 bytes"),
        (("tea", "--dedupe-id", "x" * 1_025), "--dedupe-id has 1,025 bytes"),
        (("tea", "pot", "--dedupe-id", "x"), "--dedupe-id is for one record"),
        (("tea", "--dedupe-id", os.fsdecode(b"\xff")), "is not UTF-8"),
        (("--dedupe-id", "x"), "--dedupe-id is for one record"),
        (("tea", "-H", "tailrace-id=x"), "reserved for --dedupe-id"),
    ],
)
def test_bad_ids_are_refused(cli, arguments, said):
    result = cli("append", "orders", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
