"""backup and restore on the command line: reports in every format, exit codes, progress on a terminal."""

from __future__ import annotations

import json

import pytest

import tailrace
from tests.cli.terminal import Terminal

BACKUP_FIELDS = {
    "path", "id", "topics", "partitions", "namespaces", "records", "lost_records", "bytes", "files",
    "copied_bytes", "copied_files", "damage", "journal_held_ms", "seconds",
}  # fmt: skip
RESTORE_FIELDS = {
    "path", "id", "topics", "partitions", "namespaces", "records", "lost_records", "bytes", "files", "made",
    "damage", "seconds",
}  # fmt: skip


@pytest.fixture
def shop(cli):
    with tailrace.open(cli.path) as log:
        log.topic("orders").extend(["tea", "milk"])
        with log.namespace("tenant") as inner:
            inner.topic("orders").append("in")
    return cli


def test_there_and_back(shop, tmp_path):
    target, again = str(tmp_path / "backup"), str(tmp_path / "again")
    result = shop("backup", target, "-o", "json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == BACKUP_FIELDS
    assert (report["records"], report["namespaces"], report["damage"]) == (3, 1, [])
    assert report["copied_bytes"] == report["bytes"] > 0
    assert result.stderr.startswith(f"Backed up 3 records into {target}")
    assert "commits waited for at most" in result.stderr
    assert json.loads(shop.ok("backup", target, "-o", "jsonl", "-q"))["copied_files"] == 0
    result = shop("restore", target, again, "-o", "json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert set(report) == RESTORE_FIELDS
    assert report["made"].endswith("Z")
    with tailrace.open(again, "r") as log:
        assert [record.text for record in log.topic("orders").read()] == ["tea", "milk"]
        assert log.stats().id == report["id"]


def test_plain_and_a_namespace(shop, tmp_path):
    lines = shop.ok("backup", str(tmp_path / "backup"), "-N", "tenant").splitlines()
    assert "records\t1" in lines
    assert "namespaces\t0" in lines


def test_refusals(shop, tmp_path):
    target = tmp_path / "backup"
    assert shop("backup", str(shop.path / "inside")).exit_code == 1
    shop.ok("backup", str(target))
    assert shop("restore", str(tmp_path / "nowhere"), str(tmp_path / "again")).exit_code == 3
    result = shop("restore", str(target), str(shop.path))
    assert result.exit_code == 1
    assert "a log already" in result.stderr
    assert shop("backup").exit_code == 2
    result = shop("-L", str(tmp_path / "none"), "backup", str(tmp_path / "other"))
    assert result.exit_code == 3
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "none").exists()


def flip(path, position=100):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def test_damage(shop, tmp_path):
    target = tmp_path / "backup"
    shop.ok("backup", str(target))
    before = (target / "backup.json").read_bytes()
    (segment,) = shop.path.glob("topics/*-orders/0/*.seg")
    with tailrace.open(shop.path) as log:
        log.topic("orders").append("new")
    flip(segment, 64 + 96 + 2)
    result = shop("backup", str(target))
    assert result.exit_code == 5
    assert "orders[0]" in result.stderr
    assert shop.told("repair") in result.stderr
    assert (target / "backup.json").read_bytes() == before
    result = shop("backup", str(target), "--allow-damage", "-o", "json")
    assert result.exit_code == 5
    (damage,) = json.loads(result.stdout)["damage"]
    assert (damage["topic"], damage["first"], damage["last"]) == ("orders", 0, 1)
    assert shop("restore", str(target), str(tmp_path / "again"), "-q").exit_code == 5
    assert shop("-L", str(tmp_path / "again"), "verify").exit_code == 5


def test_progress_on_a_terminal(shop, tmp_path):
    with tailrace.open(shop.path) as log:
        for _ in range(16):
            log.topic("big").extend([b"x" * 1_000_000] * 4, durable=False)
    terminal = Terminal(shop, "backup", str(tmp_path / "backup"), columns=120)
    shown = terminal.finish()
    assert terminal.process.returncode == 0
    assert b"copying" in shown
    assert b"%" in shown
    terminal = Terminal(shop, "restore", str(tmp_path / "backup"), str(tmp_path / "again"), columns=120)
    assert b"Restored" in terminal.finish()
    assert terminal.process.returncode == 0
