"""`tailrace bench`: figures with their durability beside bare files and SQLite, and nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sqlite3
import tempfile
import time

import pytest
from click.testing import CliRunner

import tailrace
from tailrace.bench.place import PREFIX, log_around
from tailrace.bench.sqlite import SqliteLog
from tailrace.cli import output
from tailrace.cli.app import root


def bench(path, *arguments: str):
    """A call on a directory, which has to be empty again afterwards."""
    result = CliRunner().invoke(root, ["bench", *arguments, "--path", str(path)], prog_name="tailrace")
    assert list(path.glob(f"{PREFIX}*")) == []
    return result


def figures(path, *arguments: str) -> list[dict]:
    result = bench(path, *arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["path"] == str(path)
    assert found["machine"]["file_system"]
    assert all(row["median"] > 0 and row["durability"] for row in found["results"])
    return found["results"]


@pytest.mark.parametrize(
    ("options", "how", "against"),
    [
        ([], "append()", "write, fdatasync"),
        (["--batch", "50", "--durable", "no"], "extend()", "write"),
        (["--durable", "50ms", "--value-bytes", "7", "--threads", "3"], "append() by 3 threads", "write"),
    ],
)
def test_writes_stand_beside_the_plain_file_of_their_durability(tmp_path, options, how, against):
    rows = figures(tmp_path, "write", "--seconds", "0.3", *options)
    assert [row["system"] for row in rows] == ["memory", "plain file", "plain file", "Tailrace", "SQLite", "SQLite"]
    own = rows[3]
    assert (own["how"], own["against"]) == (how, against)
    assert own["ratio"] > 0
    level = {"write, fdatasync": "on disk"}.get(against, "page cache")
    assert own["durability"].startswith(level)
    assert [row["against"] for row in rows[4:]] == ["write, fdatasync", "write"]


def test_several_processes_share_the_work(tmp_path):
    rows = figures(tmp_path, "write", "--seconds", "0.2", "--processes", "2", "--threads", "2", "--durable", "no")
    assert rows[3]["how"] == "append() by 4 members"


def test_reads_are_checked_against_a_bare_file(tmp_path):
    rows = figures(tmp_path, "read", "--seconds", "0.3", "--value-bytes", "5000", "--batch", "10")
    assert [row["system"] for row in rows[:3]] == ["plain file", "Tailrace", "Tailrace"]
    assert rows[-1]["system"] == "SQLite"
    assert {row["durability"] for row in rows if row["system"] == "Tailrace"} == {"checksums and offsets checked"}


@pytest.mark.slow
def test_a_tail_has_a_median_and_a_99th_percentile(tmp_path):
    rows = figures(tmp_path, "tail", "--seconds", "0.2", "--durable", "no")
    assert [row["system"] for row in rows] == ["pipe", "Tailrace", "SQLite", "SQLite"]
    assert all(0 < row["median"] <= row["p99"] for row in rows)


def test_a_table_has_the_ratio_in_words(tmp_path):
    result = bench(tmp_path, "write", "--seconds", "0.2", "-o", "table")
    assert result.exit_code == 0
    first, heads, *lines = result.stdout.splitlines()
    assert first == "write of 100 B, one by one (records/s)"
    assert heads.split() == ["system", "how", "median", "ratio", "durability"]
    told = [" ".join(line.split()) for line in lines if line.startswith("Tailrace")]
    assert any(" x write, fdatasync on disk" in line for line in told)
    assert "load " in result.stderr


def test_a_narrow_terminal_goes_without_a_column(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "terminal_columns", lambda: 60)
    result = bench(tmp_path, "write", "--seconds", "0.1", "-o", "table")
    assert result.exit_code == 0, result.stderr
    # The last heading may be cut at the edge: how wide the columns before it are depends on what was measured.
    headings = result.stdout.splitlines()[1].split()
    assert headings[:3] == ["system", "median", "ratio"]
    assert "how" not in headings
    assert "Not shown, for want of room: how" in result.stderr


@pytest.mark.parametrize("inside", ["", "topics"])
def test_a_log_is_refused(tmp_path, inside):
    tailrace.open(tmp_path).close()
    (tmp_path / "topics").mkdir(exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    result = bench(tmp_path / inside, "write")
    assert result.exit_code == 2
    assert f"{tmp_path} is a log" in result.stderr
    assert sorted(tmp_path.rglob("*")) == before
    assert log_around(tmp_path.parent) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["write", "--durable", "perhaps"],
        ["write", "--value-bytes", "0"],
        ["write", "--seconds", "0"],
        ["tail", "--value-bytes", "19"],
        ["tail", "--threads", "2"],
        ["write", "-o", "arrow"],
        ["queue"],
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, arguments):
    result = bench(tmp_path, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_database_that_fails_is_no_fault_of_tailrace(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(SqliteLog, "append", fail)
    result = bench(tmp_path, "write", "--seconds", "0.1")
    assert result.exit_code == 7
    assert "SQLite could not do its part: database or disk is full." in result.stderr


def test_a_file_system_without_writing(tmp_path, monkeypatch):
    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    result = bench(tmp_path, "write", "--seconds", "0.1")
    assert result.exit_code == 8
    assert f"Nothing can be written at {tmp_path}: Read-only file system." in result.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_measurement_leaves_nothing(cli, tmp_path, number, code):
    # Whoever runs the tests under nohup has told all of them to ignore a hang-up.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = cli.start("bench", "write", "--seconds", "60", "--path", str(tmp_path))
    finally:
        signal.signal(signal.SIGHUP, before)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(f"{PREFIX}*/log/topics")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(tmp_path.glob(f"{PREFIX}*"))
    process.send_signal(number)
    assert process.wait(60) == code
    assert list(tmp_path.iterdir()) == []


def test_what_an_interrupt_leaves_is_named(tmp_path, monkeypatch):
    """One that comes before the removal has begun."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    arguments = ["bench", "write", "--seconds", "0.1", "--path", str(tmp_path)]
    result = CliRunner().invoke(root, arguments, prog_name="tailrace")
    (left,) = tmp_path.iterdir()
    assert result.exit_code == 130
    assert f"What was written for it can be removed: {left}, and nothing" in result.stderr
    assert "is removed" not in result.stderr


def test_what_is_no_number_is_refused(tmp_path):
    result = bench(tmp_path, "write", "--seconds", "nan")
    assert result.exit_code == 2
    assert "is no number" in result.stderr
