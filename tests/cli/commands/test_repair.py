"""`tailrace repair`, and `read` and `verify` beside what it leaves."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tests.cli.terminal import Terminal


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0xFF
    file.write_bytes(data)


@pytest.fixture
def damaged(cli):
    """A log whose record 1 of three is damaged."""
    with tailrace.open(cli.path) as log:
        for value in (b"one", b"two", b"three"):
            log.topic("orders").append(value)
    (segment,) = cli.path.glob("topics/*-orders/0/*.seg")
    flip(segment, 64 + 112 + 98)
    return cli


def good(cli, *arguments):
    """A call that must succeed."""
    result = cli(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def everything(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file() and each.name != "lock"}


def test_a_dry_run_shows_what_would_be_done(damaged):
    before = everything(damaged.path)
    result = damaged("repair", "--dry-run", "-o", "json")
    assert result.exit_code == 5
    assert "1 range of records would be given up." in result.stderr
    told = json.loads(result.stdout)
    assert (told["dry_run"], told["sound"]) == (True, False)
    (log,) = told["logs"]
    assert log["namespace"] is None
    assert [(each["topic"], each["first"], each["last"]) for each in log["lost"]] == [("orders", 1, 1)]
    assert everything(damaged.path) == before


def test_it_asks_and_refuses_without_a_terminal(damaged):
    before = everything(damaged.path)
    result = damaged("repair")
    assert result.exit_code == 8
    assert "giving up 1 record that cannot be read" in result.stderr
    assert everything(damaged.path) == before


def test_a_repair_and_what_comes_after(damaged):
    assert damaged("read", "orders").exit_code == 5
    result = damaged("repair", "-y")
    assert result.exit_code == 5
    assert "1 range of records is lost." in result.stderr
    assert "Put aside: quarantine/" in result.stderr
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert ["", "lost", "orders", "0", "1", "1", "the checksum of a frame's body does not fit"] in rows
    again = good(damaged, "repair", "-y")
    assert "Nothing is wrong" in again.stderr
    damaged.ok("append", "orders", "four")
    verified = good(damaged, "verify", "-o", "json")
    told = json.loads(verified.stdout)
    assert told["ok"]
    assert [(each["first"], each["last"]) for each in told["lost"]] == [(1, 1)]
    assert "1 lost range known from a repair" in verified.stderr
    stopped = damaged("read", "orders")
    assert stopped.exit_code == 5
    assert stopped.stdout == "one\n"
    assert "offsets 1 to 1" in stopped.stderr


@pytest.mark.parametrize("repaired", [False, True])
def test_reading_on_behind_damage(damaged, repaired):
    if repaired:
        damaged("repair", "-y")
    result = damaged("read", "orders", "--on-damage", "skip")
    assert result.exit_code == 5
    assert result.stdout == "one\nthree\n"
    assert "Left out: orders[0] offsets 1 to 1" in result.stderr
    assert f"1 {'lost' if repaired else 'damaged'} range left out." in result.stderr
    assert (damaged.told("repair --dry-run") in result.stderr) is not repaired
    assert ("there is nothing left to repair" in result.stderr) is repaired
    counted = damaged("read", "orders", "--count", "--on-damage", "skip")
    assert (counted.exit_code, counted.stdout) == (5, "2\n")
    whole = good(damaged, "read", "orders", "2", "--on-damage", "skip")
    assert whole.stdout == "three\n"
    refused = damaged("read", "orders", "--group", "g", "--on-damage", "skip")
    assert refused.exit_code == 2
    assert damaged("read", "orders", "--on-damage", "ignore").exit_code == 2


def test_a_sound_log(cli):
    cli.ok("append", "orders", "one")
    result = good(cli, "repair")
    assert result.stdout == ""
    assert "Nothing is wrong, and nothing was changed." in result.stderr
    assert json.loads(cli.ok("repair", "-o", "json")) == {"dry_run": False, "sound": True, "logs": []}


def test_a_log_that_does_not_open(cli):
    cli.ok("append", "orders", "one")
    (cli.path / "tailrace.json").write_bytes(b"")
    refused = cli("read", "orders")
    assert refused.exit_code == 5
    assert cli.told("repair\n") in refused.stderr
    result = good(cli, "repair", "-y")
    assert "The log is whole again, and no record is lost." in result.stderr
    assert cli.ok("read", "orders") == "one\n"


def test_a_log_that_is_open(damaged):
    with tailrace.open(damaged.path):
        result = damaged("repair", "-y")
        assert result.exit_code == 6
        assert str(os.getpid()) in result.stderr


def test_namespaces(damaged):
    damaged.ok("append", "t", "x", "-N", "eu")
    (segment,) = damaged.path.glob("namespaces/eu/topics/*-t/0/*.seg")
    flip(segment, 64 + 82)
    told = json.loads(damaged("repair", "--dry-run", "-o", "json").stdout)
    assert [log["namespace"] for log in told["logs"]] == [None, "eu"]
    told = json.loads(damaged("repair", "-y", "-N", "eu", "-o", "json").stdout)
    assert [log["namespace"] for log in told["logs"]] == ["eu"]
    told = json.loads(damaged("repair", "-y", "-o", "json").stdout)
    assert [log["namespace"] for log in told["logs"]] == [None]
    damaged.ok("verify")


def test_the_namespace_of_the_environment(damaged, monkeypatch):
    damaged.ok("append", "t", "x", "-N", "eu")
    (segment,) = damaged.path.glob("namespaces/eu/topics/*-t/0/*.seg")
    flip(segment, 64 + 82)
    monkeypatch.setenv("TAILRACE_NAMESPACE", "eu")
    told = json.loads(damaged("repair", "--dry-run", "-o", "json").stdout)
    assert [log["namespace"] for log in told["logs"]] == ["eu"]
    told = json.loads(damaged("repair", "--dry-run", "-N", "", "-o", "json").stdout)
    assert [log["namespace"] for log in told["logs"]] == [None, "eu"]


def test_no_log(cli):
    assert cli("repair").exit_code == 3


def test_the_question_names_what_is_given_up(damaged):
    terminal = Terminal(damaged, "repair", columns=200)
    asked = terminal.until(b"[y/N] ")
    assert b"giving up 1 record that cannot be read?" in asked
    before = everything(damaged.path)
    os.write(terminal.master, b"n\n")
    assert b"Nothing was changed" in terminal.finish()
    assert terminal.process.returncode == 1
    assert everything(damaged.path) == before
    terminal = Terminal(damaged, "repair", columns=200)
    terminal.until(b"[y/N] ")
    os.write(terminal.master, b"y\n")
    shown = terminal.finish()
    assert b"lost" in shown
    assert b"orders" in shown
    assert terminal.process.returncode == 5
    assert damaged("repair", "--dry-run").exit_code == 0


def test_what_cannot_be_told_from_leftovers_is_put_aside_and_told(cli):
    """Without the tails damage looks like a write that was cut off: the command says so, and keeps a copy."""
    with tailrace.open(cli.path) as log:
        orders = log.topic("orders")
        for number in range(20):
            orders.append(b"%d" % number)
    (segment,) = cli.path.glob("topics/*-orders/0/*.seg")
    with segment.open("r+b") as file:
        file.seek(64 + 96 * 5 + 30)
        file.write(b"????")
    (cli.path / "tails").unlink()
    looked = cli("repair", "--dry-run")
    assert looked.exit_code == 5
    assert "Nothing was changed" in looked.stderr
    done = cli("repair", "-y")
    assert done.exit_code == 5, "the log goes on, and something may be lost"
    assert "no record is lost" not in done.stderr
    assert list((cli.path / "quarantine").glob("*orders*"))


def test_a_repair_that_died_is_finished(cli):
    with tailrace.open(cli.path) as log:
        log.topic("orders").append("tea")
    (cli.path / "repair.unfinished").touch()
    done = good(cli, "repair", "-y")
    assert "a repair died here" in done.stdout
    assert not (cli.path / "repair.unfinished").exists()


def test_a_topic_without_its_settings_is_told_by_the_exit_code(cli):
    """What only the catalog knew is lost with it: the log goes on, and the exit code says that something is missing."""
    cli.ok("append", "orders", "one")
    (segment,) = (cli.path / "catalog").glob("*.seg")
    flip(segment, 64 + 82)
    done = cli("repair", "-y")
    assert done.exit_code == 5
    assert cli.told("topic alter orders NAME=VALUE\n") in done.stderr
    assert "could not be kept" in done.stderr
    assert cli.ok("read", "orders") == "one\n"
    assert good(cli, "repair", "-y").stdout == ""


def test_what_a_repair_gave_up_is_no_record(damaged, tmp_path):
    damaged("repair", "-y")
    (row,) = json.loads(damaged.ok("topic", "ls", "-o", "json"))
    assert (row["records"], row["lost_records"]) == (2, 1)
    assert damaged.ok("topic", "ls", "-o", "table").splitlines()[0].split()[2:5] == ["records", "lost", "records"]
    shown = json.loads(damaged.ok("topic", "show", "orders", "-o", "json"))
    assert (shown["records"], shown["lost_records"]) == (2, 1)
    assert "lost        1, given up by a repair" in damaged.ok("stats", "-o", "table")
    damaged.ok("append", "orders", "four")
    stats = json.loads(damaged.ok("stats", "-o", "json"))
    assert (stats["records"], stats["lost_records"]) == (3, 1)
    for copied in (3, 0):
        result = good(damaged, "backup", str(tmp_path / "b"), "-o", "json")
        report = json.loads(result.stdout)
        assert (report["records"], report["lost_records"], report["copied_files"]) == (3, 1, copied)
        assert "Backed up 3 records (1 lost record known from a repair) into" in result.stderr
    result = good(damaged, "restore", str(tmp_path / "b"), str(tmp_path / "again"), "-o", "json")
    report = json.loads(result.stdout)
    assert (report["records"], report["lost_records"]) == (3, 1)
    assert "Restored 3 records (1 lost record known from a repair)" in result.stderr
    (row,) = json.loads(damaged.ok("-L", str(tmp_path / "again"), "topic", "ls", "-o", "json"))
    assert (row["records"], row["lost_records"]) == (3, 1)
    # A trim takes them along, also where it cuts into the segment they are in.
    dry = good(damaged, "topic", "trim", "orders", "--before", "3", "--dry-run", "-o", "json")
    (row,) = json.loads(dry.stdout)
    assert (row["records"], row["lost_records"]) == (2, 1)
    assert dry.stderr == "Would trim 2 records and 1 lost record.\n"
    told = iter(["1 record", "0 records and 1 lost record", "1 record"])
    for before, records, lost in ((1, 2, 1), (2, 2, 0), (3, 1, 0)):
        result = good(damaged, "topic", "trim", "orders", "--before", str(before), "-y")
        assert re.match(f"Trimmed {next(told)}[,;]", result.stderr)
        (row,) = json.loads(damaged.ok("topic", "ls", "-o", "json"))
        assert (row["records"], row["lost_records"]) == (records, lost)


@pytest.mark.parametrize("repaired", [False, True])
def test_a_group_is_told_how_to_come_past_what_cannot_be_read(damaged, repaired):
    if repaired:
        damaged("repair", "-y")
    stopped = damaged("read", "orders", "--group", "the readers")
    assert (stopped.exit_code, stopped.stdout) == (5, "one\n")
    assert "on_damage" not in stopped.stderr
    assert "--on-damage" not in stopped.stderr
    reset = damaged.told("group reset 'the readers' --topic orders --to 0:2")
    assert stopped.stderr.endswith(f"{reset}\n")
    assert (damaged.told("repair --dry-run") in stopped.stderr) is not repaired
    damaged.ok(*shlex.split(reset)[3:], "-y")
    assert damaged.ok("read", "orders", "--group", "the readers") == "three\n"


def test_settings_that_are_lost_are_set_with_a_whole_command(cli):
    with tailrace.open(cli.path) as log:
        for name in ("-x", "orders"):
            log.topic(name, partitions=2).append("one", partition=0)
    (catalog,) = cli.path.glob("catalog/*.seg")
    catalog.unlink()
    result = cli("repair", "-y")
    assert result.exit_code == 5
    notes = [line for line in result.stderr.splitlines() if "default settings" in line]
    commands = [note.partition("set them with: ")[2] for note in notes]
    assert commands == [cli.told("topic alter -- -x NAME=VALUE"), cli.told("topic alter orders NAME=VALUE")]
    for command in commands:
        words = shlex.split(command.replace("NAME=VALUE", "compress=zstd"))
        assert cli(*words[1:]).exit_code == 0
    with tailrace.open(cli.path) as log:
        assert [log.topic(name).settings["compress"] for name in ("-x", "orders")] == ["zstd", "zstd"]


def test_a_reading_that_stops_at_what_is_lost_is_told_in_words_of_the_command_line(damaged):
    damaged("repair", "-y")
    stopped = damaged("read", "orders")
    assert damaged.told("read orders --on-damage skip\n") in stopped.stderr
    assert "read(" not in stopped.stderr


def test_a_hint_names_the_log_and_the_namespace_that_were_named(damaged, tmp_path):
    damaged.ok("append", "t", "x", "-N", "my eu")
    (segment,) = damaged.path.glob("namespaces/*/topics/*-t/0/*.seg")
    flip(segment, 64 + 82)
    stopped = damaged("read", "t", "-N", "my eu")
    assert damaged.told("repair --dry-run\n", "-N", "my eu") in stopped.stderr
    told = json.loads(damaged("verify", "-N", "my eu", "-o", "json").stderr.splitlines()[-1])
    assert told["error"]["hint"].endswith(damaged.told("repair --dry-run", "-N", "my eu"))
    # What is lost in a namespace is read there, also where none was named.
    done = damaged("repair", "-y", "-N", "my eu")
    assert damaged.told("read t --on-damage skip", "-N", "my eu") in done.stderr
    named = damaged.start("read", "orders")
    _, stderr = named.communicate(timeout=60)
    assert b"run: tailrace repair --dry-run\n" in stderr, "what the environment names need not be said"


@pytest.mark.parametrize(
    "command", ["read orders", "append orders x", "topic ls", "stats", "verify", "repair -y", "doctor", "backup b"]
)
def test_a_newer_format_is_no_damage(cli, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    cli.ok("append", "orders", "one")
    (cli.path / "tailrace.json").write_text('{"format": 2}')
    result = cli(*command.split())
    assert result.exit_code == 1
    assert "has format 2, and this version of Tailrace knows 1" in result.stdout + result.stderr
    assert "pip install --upgrade tailrace" in result.stdout + result.stderr
    assert "damaged" not in result.stdout + result.stderr
    assert (cli.path / "tailrace.json").read_text() == '{"format": 2}'


AS_NOBODY = """
import concurrent.futures.thread, difflib, encodings.ascii, importlib, json, logging, os, pkgutil, resource, shutil, sys
import tailrace, traceback, urllib.parse
# The interpreter's own files may be root's alone: everything is imported before the rights are given up.
for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
    if not module.name.startswith(("tailrace.spark", "tailrace.pytest", "tailrace.__main__", "tailrace.read.arrow")):
        importlib.import_module(module.name)
from tailrace.cli.app import root
try:
    root.main(["version"])
except SystemExit:
    pass
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
root.main(sys.argv[1:], prog_name="tailrace")
"""


def as_nobody(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """A command as a user without any rights runs it."""
    for above in (cwd, *cwd.parents):
        if above != Path("/"):
            above.chmod(above.stat().st_mode | 0o055)
    command = [sys.executable, "-c", AS_NOBODY, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, timeout=60, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize("command", ["repair -y", "append orders x", "vacuum", "backup b"])
def test_who_may_not_write_is_told_which_file_and_exits_with_8(damaged, command, tmp_path):
    done = as_nobody(*command.split(), "-L", str(damaged.path), cwd=tmp_path)
    assert done.returncode == 8, done.stderr
    assert b"%s: Permission denied" % bytes(damaged.path / "lock") in done.stderr.replace(b" cannot be written to", b"")
    assert b"; ask for " in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize("command", ["repair -y", "read orders", "verify", "stats", "backup b"])
def test_who_may_not_read_is_told_which_file_and_exits_with_8(damaged, command, tmp_path):
    identity = damaged.path / "tailrace.json"
    identity.chmod(0o600)
    done = as_nobody(*command.split(), "-L", str(damaged.path), cwd=tmp_path)
    assert done.returncode == 8, done.stderr
    assert bytes(identity) in done.stderr
    assert b"Permission denied" in done.stderr
    assert b"; ask for " in done.stderr
