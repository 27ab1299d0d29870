"""`tailrace repair`, and `read` and `verify` beside what it leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import tailrace
from tests.cli.test_process import Terminal


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
    flip(segment, 64 + 96 + 82)
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
    assert "1 damaged range left out." in result.stderr
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
    assert "tailrace repair" in refused.stderr
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
    done = good(cli, "repair", "-y")
    assert "behind the end of orders[0]" in done.stderr
    assert "no record is lost" not in done.stderr
    assert list((cli.path / "quarantine").glob("*orders*"))


def test_a_repair_that_died_is_finished(cli):
    with tailrace.open(cli.path) as log:
        log.topic("orders").append("tea")
    (cli.path / "repair.unfinished").touch()
    done = good(cli, "repair", "-y")
    assert "a repair died here" in done.stdout
    assert not (cli.path / "repair.unfinished").exists()
