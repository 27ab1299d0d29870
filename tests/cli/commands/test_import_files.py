"""import: good lines, bad lines, and several imports at once."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest

import tailrace


def test_json_lines(cli, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"id": 1}\n\n{"id": 2}\n')
    assert cli.ok("import", str(file), "--topic", "events", "--key-field", "id") == "events[0]@0..1  (2 records)\n"
    with tailrace.open(cli.path, "r") as log:
        assert [(record.key, record.value) for record in log.topic("events").read()] == [
            (b"1", b'{"id": 1}'),
            (b"2", b'{"id": 2}'),
        ]


def test_several_files_by_their_endings(cli, tmp_path):
    (tmp_path / "a.ndjson").write_text('{"id":1}\n')
    (tmp_path / "b.CSV").write_text("id\n2\n")
    assert (
        cli.ok("import", str(tmp_path / "a.ndjson"), str(tmp_path / "b.CSV"), "--topic", "t")
        == "t[0]@0..1  (2 records)\n"
    )
    assert cli.ok("read", "t") == '{"id":1}\n{"id":"2"}\n'


def test_stdin_needs_a_form(cli):
    assert cli("import", "-", "--topic", "t", input=b"1\n").exit_code == 2
    assert cli.ok("import", "-", "--jsonl", "--topic", "t", input=b"1\n") == "t[0]@0  (1 record)\n"


def test_bad_lines_are_named_counted_and_passed_over(cli, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"id":1}\n{broken\n{"id":2}\n{"other":3}\n\xff\n')
    result = cli("import", str(file), "--topic", "t", "--key-field", "id")
    assert result.exit_code == 1
    assert result.stdout == "t[0]@0..1  (2 records)\n"
    named = result.stderr.splitlines()
    assert [line.split(": ")[0] for line in named[:3]] == [f"{file}:{line}" for line in (2, 4, 5)]
    assert named[3] == "Imported 2 records; passed over 3 bad lines."
    fields = json.loads(cli("import", str(file), "--topic", "t", "-o", "json").stdout)
    assert (fields["topic"], fields["records"], fields["bad"]) == ("t", 3, 2)
    assert [each["line"] for each in fields["bad_lines"]] == [2, 5]
    assert set(fields["bad_lines"][0]) == {"file", "line", "reason"}


def test_very_many_bad_lines_are_counted(cli, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"broken\n" * 5_000 + b"1\n")
    result = cli("import", str(file), "--topic", "t")
    assert len(result.stderr.splitlines()) == 102
    assert "5,000 bad lines" in result.stderr


def test_going_on_at_a_line(cli, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"1\n2\n3\n4\n")
    cli.ok("import", str(file), "--topic", "t", "--from-line", "3")
    assert cli.ok("read", "t") == "3\n4\n"


def test_a_named_pipe_is_a_file_as_well(cli, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    process = cli.start("import", str(tmp_path / "pipe.jsonl"), "--topic", "t")
    with open(tmp_path / "pipe.jsonl", "wb") as sender:
        sender.write(b"1\n2\n")
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (0, b"t[0]@0..1  (2 records)\n"), stderr


def test_going_on_behind_the_end_is_told(cli, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"1\n2\n")
    result = cli("import", str(file), "--topic", "t", "--from-line", "9")
    assert result.exit_code == 0
    assert "has 2 lines, so nothing of it stands from line 9 on." in result.stderr
    assert "0 records" in result.stderr
    (tmp_path / "rows.csv").write_bytes(b"a\n1\n")
    assert "has 2 lines" in cli("import", str(tmp_path / "rows.csv"), "--topic", "t", "--from-line", "3").stderr
    assert "so nothing" not in cli("import", str(file), "--topic", "t", "--from-line", "2").stderr


def test_records_too_large_for_the_topic_are_passed_over(cli, tmp_path):
    cli.ok("topic", "create", "small", "--set", "max_record_bytes=20")
    (tmp_path / "a.jsonl").write_bytes(b'"short"\n"' + b"x" * 30 + b'"\n"after"\n')
    (tmp_path / "b.csv").write_bytes(b"a\n1\n" + b"y" * 30 + b"\n2\n")
    result = cli("import", str(tmp_path / "a.jsonl"), str(tmp_path / "b.csv"), "--topic", "small")
    assert result.exit_code == 1
    assert result.stdout == "small[0]@0..3  (4 records)\n"
    assert f"{tmp_path}/a.jsonl:2: its value has 32 bytes, and the topic takes 20" in result.stderr
    assert f"{tmp_path}/b.csv:3: its value has" in result.stderr
    assert "Imported 4 records; passed over 2 bad lines." in result.stderr


def test_a_stray_quote_is_counted_honestly(cli, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_bytes(b'a,b\n"1,2\n' + b"3,4\n" * 998)
    result = cli("import", str(file), "--topic", "t")
    assert result.exit_code == 1
    assert f"{file}:2: a quote opened in line 2 is not closed: lines 2 to 1000 were not imported" in result.stderr
    assert "Imported 0 records; passed over 999 bad lines." in result.stderr
    fields = json.loads(cli("import", str(file), "--topic", "t", "-o", "json").stdout)
    assert (fields["records"], fields["bad"], len(fields["bad_lines"])) == (0, 999, 1)


def test_a_byte_order_mark_and_numbers_that_are_none(cli, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"id":1}\n{"id":NaN}\n[Infinity]\n{"id":2}\n')
    result = cli("import", str(file), "--topic", "t")
    assert cli.ok("read", "t") == '{"id":1}\n{"id":2}\n'
    assert "passed over 2 bad lines" in result.stderr


def test_a_csv_with_wrong_names_is_bad_input(cli, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_bytes(b"a,a\n1,2\n")
    result = cli("import", str(file), "--topic", "t", "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stderr)["error"]["code"] == "bad-input"


def test_a_missing_file_imports_nothing(cli, tmp_path):
    (tmp_path / "a.jsonl").write_text("1\n")
    result = cli("import", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--topic", "t")
    assert result.exit_code == 3
    assert not cli.path.exists()


def test_several_imports_at_once(cli, tmp_path):
    lines = 30_000
    processes = []
    for writer in range(3):
        file = tmp_path / f"{writer}.jsonl"
        file.write_text("".join(f'{{"writer":{writer},"n":{number}}}\n' for number in range(lines)))
        processes.append(cli.start("import", str(file), "--topic", "events", "--durable", "no"))
    for process in processes:
        stdout, stderr = process.communicate(timeout=100)
        assert process.returncode == 0, stderr
        assert b"(30000 records)" in stdout
    with tailrace.open(cli.path, "r") as log:
        found = [record.json() for record in log.topic("events").read()]
    assert Counter(each["writer"] for each in found) == {0: lines, 1: lines, 2: lines}
    for writer in range(3):
        assert [each["n"] for each in found if each["writer"] == writer] == list(range(lines))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--topic", "t"),
        ("x.txt", "--topic", "t"),
        ("x.jsonl",),
        ("x.jsonl", "--topic", "t", "--jsonl", "--csv"),
        ("x.jsonl", "--topic", "t", "--durable", "maybe"),
        ("x.jsonl", "--topic", "t", "--partition", "-1"),
    ],
)
def test_wrong_usage(cli, arguments):
    assert cli("import", *arguments).exit_code == 2
    assert not cli.path.exists()


SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def test_lines_that_do_not_fit_the_schema_are_named_counted_and_passed_over(cli, tmp_path):
    with tailrace.open(cli.path) as log:
        log.topic("t", partitions=3, schema=SCHEMA)
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"id":1}\n\n{"id":"2"}\n{broken\n{"id":3}\n{}\n5\n')
    result = cli("import", str(file), "--topic", "t", "--key-field", "id")
    assert result.exit_code == 1
    named = result.stderr.splitlines()
    assert named[0] == f'{file}:3: field id: "2" is not of type "integer"'
    assert named[1].startswith(f"{file}:4: it is not JSON")
    assert named[2].startswith(f"{file}:6: it has no field 'id'")
    assert named[3].startswith(f"{file}:7: ")
    assert named[4] == "Imported 2 records; passed over 4 bad lines."
    result = cli("import", str(file), "--topic", "t", "--from-line", "5", "-o", "json")
    fields = json.loads(result.stdout)
    assert fields["records"] == 1
    assert [(bad["line"], bad["reason"]) for bad in fields["bad_lines"]] == [
        (6, 'field id: "id" is a required property'),
        (7, '5 is not of type "object"'),
    ]
    with tailrace.open(cli.path, "r") as log:
        assert sorted(record.value for record in log.topic("t").read()) == [b'{"id":1}', b'{"id":3}', b'{"id":3}']


def test_more_lines_that_do_not_fit_than_an_error_names(cli, tmp_path):
    with tailrace.open(cli.path) as log:
        log.topic("t", schema=SCHEMA)
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f'{{"id":{number if number % 5 == 0 else "null"}}}\n' for number in range(4_000)))
    fields = json.loads(cli("import", str(file), "--topic", "t", "-o", "json").stdout)
    assert (fields["records"], fields["bad"]) == (800, 3_200)
    assert [bad["line"] for bad in fields["bad_lines"][:5]] == [2, 3, 4, 5, 7]


def test_rows_that_do_not_fit_the_schema(cli, tmp_path):
    with tailrace.open(cli.path) as log:
        log.topic("t", schema={"properties": {"note": {"maxLength": 3}}})
    file = tmp_path / "notes.csv"
    file.write_text('note,id\nok,1\n"too\nlong",2\nyes,3\nlonger,4\n')
    result = cli("import", str(file), "--topic", "t")
    assert [line.split(": ")[0] for line in result.stderr.splitlines()[:2]] == [f"{file}:3", f"{file}:6"]
    assert "(2 records)" in result.stdout
