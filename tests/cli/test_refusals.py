"""What doctor, repair, verify, backup, restore and bench say to somebody who names the wrong place."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tailrace.cli.app import root


@pytest.fixture
def place(cli, tmp_path, monkeypatch):
    """A log, a backup of it, and everything that is neither."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAILRACE_LOG", raising=False)
    cli.ok("append", "orders", "tea")
    cli.ok("backup", "backup")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter").write_text("x")
    return cli


def names(path):
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


@pytest.mark.parametrize("command", ["repair", "verify", "stats", "backup other", "read orders"])
@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("nowhere", "There is no log at {}/nowhere: it does not exist."),
        ("file", "There is no log at {}/file: it is a file, not a directory."),
        ("empty", "There is no log at {}/empty: it is an empty directory."),
        ("foreign", "There is no log at {}/foreign: it holds 'letter' and no tailrace.json."),
        ("backup", "{}/backup is a backup, not a log."),
    ],
)
def test_what_is_there_in_place_of_a_log(place, tmp_path, command, location, why):
    before = names(tmp_path)
    result = place("-L", location, *command.split())
    assert result.exit_code == 3
    told, hint = result.stderr.splitlines()
    assert told == f"tailrace: {why.format(tmp_path)}"
    assert hint.startswith("Nothing was c")
    assert ("tailrace restore backup TO" in hint) is (location == "backup")
    assert names(tmp_path) == before


def test_a_namespace_that_is_not_there(place, tmp_path):
    for command in ("repair", "verify", "backup other"):
        result = place(*command.split(), "-N", "nope")
        assert result.exit_code == 3
        assert f"{tmp_path}/log has no namespace 'nope'" in result.stderr
        assert place.told("namespace ls\n") in result.stderr


@pytest.mark.parametrize(
    ("command", "code", "why"),
    [
        ("backup log", 1, "{}/log is a log itself."),
        ("backup log/inner", 1, "{}/log/inner lies inside the log {}/log."),
        ("backup .", 1, "The log {}/log lies inside {}."),
        ("backup file", 3, "{}/file is a file, not a directory."),
        ("backup file/inner", 3, "{}/file/inner cannot be made: {}/file is a file, not a directory."),
        ("backup foreign", 3, "{}/foreign is not a backup: it holds 'letter'."),
        ("restore backup log", 1, "{}/log is a log already."),
        ("restore backup log/inner", 1, "{}/log/inner lies inside the log {}/log."),
        ("restore backup backup", 1, "{}/backup is the backup itself."),
        ("restore backup backup/inner", 1, "{}/backup/inner lies inside the backup {}/backup."),
        ("restore backup .", 1, "The backup {}/backup lies inside {}."),
        ("restore backup file", 3, "{}/file is a file, not a directory."),
        ("restore backup file/inner", 3, "{}/file/inner cannot be made: {}/file is a file, not a directory."),
        ("restore backup foreign", 1, "{}/foreign is not empty: it holds 'letter'."),
        ("restore log new", 3, "{}/log is not a backup: it has no backup.json."),
        ("restore nowhere new", 3, "{}/nowhere is not a backup: it does not exist."),
    ],
)
def test_a_place_that_holds_no_copy(place, tmp_path, command, code, why):
    before = names(tmp_path)
    result = place(*command.split())
    assert result.exit_code == code, result.stderr
    told, hint = result.stderr.splitlines()
    assert told == f"tailrace: {why.format(tmp_path, tmp_path)}"
    assert hint.startswith(("Nothing was changed; name ", "Nothing was written there; name "))
    assert "directory of a log" not in hint
    assert names(tmp_path) == before


def test_a_doctor_sends_nobody_to_verify_what_is_no_log(place):
    result = place("-L", "foreign", "doctor")
    assert result.exit_code == 3
    assert result.stderr.endswith("docs/doctor.md has a row for each code.\n")


def test_a_place_for_a_bench_that_takes_no_files(place):
    result = place("bench", "write", "--path", "/proc", "--seconds", "0.1")
    assert result.exit_code == 7
    assert "Nothing can be written at /proc/" in result.stderr
    assert "name a directory on a disk that has room" in result.stderr


@pytest.mark.parametrize("below", ["x", "x/y"])
def test_a_log_below_a_file_is_a_wrong_path(cli, tmp_path, below):
    file = tmp_path / "file"
    file.write_text("x")
    result = cli("-L", str(file / below), "append", "orders", "1")
    assert result.exit_code == 3
    assert result.stderr.splitlines()[0].endswith(f" cannot be made: {file} is a file, not a directory.")
    assert "acknowledged" not in result.stderr


@pytest.mark.parametrize("command", ["append orders 1", "read orders", "topic ls", "doctor", "repair", "stats"])
def test_an_address_is_no_directory(cli, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    told = "tailrace: s3://bucket/log cannot be the directory of the log: s3: addresses are not supported."
    result = cli("-L", "s3://bucket/log", *command.split())
    assert (result.exit_code, result.stderr.splitlines()[0]) == (1, told)
    monkeypatch.setenv("TAILRACE_LOG", "s3://bucket/log")
    result = CliRunner().invoke(root, command.split(), prog_name="tailrace")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (1, told)
    assert names(tmp_path) == []


def test_an_address_is_no_backup_and_nothing_to_restore_into(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli.ok("append", "orders", "1")
    before = names(tmp_path)
    for command in (("backup", "gs://bucket/b"), ("restore", "gs://b", "new"), ("restore", "old", "gs://b")):
        result = cli(*command)
        assert result.exit_code == 1
        assert "gs: addresses are not supported" in result.stderr
    assert names(tmp_path) == before
