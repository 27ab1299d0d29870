"""vacuum: what goes and what stays, in every format; settings of retention; a disk that is nearly full."""

from __future__ import annotations

import csv
import io
import json
import time

import pytest

import tailrace
from tests.cli.terminal import Terminal

DAY = 86_400_000_000


@pytest.fixture
def shop(cli, monkeypatch):
    """Two old segments and a young one in orders, one in a topic without a limit."""
    now = time.time_ns() // 1_000
    with tailrace.open(cli.path) as log:
        # Set by the facade when it is loaded, which it is now.
        monkeypatch.setattr("tailrace.engine.background.chores", None)
        orders = log.topic("orders", segment_bytes=4096, retain="7d")
        for days in (9, 8, 1, 0):
            orders.extend([b"x" * 1_000] * 3, timestamps=[now - days * DAY] * 3)
        log.topic("plain").append("x")
    return cli


def test_a_dry_run_changes_nothing(shop):
    result = shop("vacuum", "--dry-run", "-o", "json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == {"bytes", "records", "segments", "removed", "kept", "dry_run", "seconds", "rewritten"}
    assert (report["segments"], report["records"], report["dry_run"]) == (2, 6, True)
    assert report["bytes"] == sum(note["bytes"] for note in report["removed"])
    assert report["removed"][0] == {
        "topic": "orders",
        "partition": 0,
        "first": 0,
        "last": 2,
        "bytes": report["removed"][0]["bytes"],
        "sealed": True,
        "why": "newest record is 9d old, kept for 7d",
    }
    assert [(note["topic"], note["first"], note["why"]) for note in report["kept"]] == [
        ("orders", 6, "newest record is 1d old, kept for 7d"),
        ("orders", 9, "active segment"),
        ("plain", 0, "no limit is set"),
    ]
    assert result.stderr.startswith("Would remove 2 segments with 6 records")
    assert shop.ok("read", "orders", "--count").strip() == "12"


def test_it_removes_without_asking(shop):
    result = shop("vacuum", "-o", "json")
    assert json.loads(result.stdout)["segments"] == 2
    assert result.stderr.startswith("Removed 2 segments with 6 records")
    assert shop.ok("read", "orders", "--count").strip() == "6"
    assert json.loads(shop.ok("vacuum", "-o", "jsonl"))["segments"] == 0
    assert shop("read", "orders", "0").exit_code == 3


def test_people_get_a_table(shop):
    rows = shop.ok("vacuum", "--dry-run", "-o", "table").splitlines()
    assert rows[0].split() == ["action", "topic", "partition", "first", "last", "bytes", "sealed", "why"]
    assert rows[1].startswith("would go  orders")
    assert rows[1].endswith("newest record is 9d old, kept for 7d")
    assert rows[3].startswith("kept")
    assert shop.ok("vacuum", "-o", "table").splitlines()[1].startswith("removed")
    parsed = [*csv.DictReader(io.StringIO(shop.ok("vacuum", "--dry-run", "-o", "csv")))]
    assert [(row["action"], row["topic"]) for row in parsed] == [("kept", "orders")] * 2 + [("kept", "plain")]


def test_rewritten_segments(cli, monkeypatch):
    with tailrace.open(cli.path) as log:
        monkeypatch.setattr("tailrace.engine.background.chores", None)
        topic = log.topic("orders", ttl="10ms")
        for number in range(9):
            topic.append(b"x" * 1_000, ttl="never" if number % 3 == 1 else None)
    time.sleep(0.05)
    dry = cli("vacuum", "--dry-run", "-o", "table")
    assert dry.stdout.splitlines()[1].startswith("would rewrite")
    assert "would rewrite 1 segment without 6 expired records" in dry.stderr
    assert cli.ok("vacuum", "--dry-run", "-o", "json").count('"bytes_after"') == 1
    result = cli("vacuum", "-o", "table")
    assert result.stdout.splitlines()[1].startswith("rewritten")
    assert "6 of its 9 records had expired" in result.stdout
    assert "rewrote 1 segment without 6 expired records" in result.stderr
    assert cli.ok("read", "orders", "--count").strip() == "3"
    assert "rewrote" not in cli("vacuum").stderr


def test_expired_and_deleted_records_are_counted_apart(cli, monkeypatch):
    """A record that was deleted and has expired since then counts as expired."""
    with tailrace.open(cli.path) as log:
        monkeypatch.setattr("tailrace.engine.background.chores", None)
        topic = log.topic("orders", mutable=True)
        for number in range(9):
            topic.append(b"x" * 1_000, ttl="10ms" if number < 3 else "never")
        topic.delete([2, 4, 5])
        other = log.topic("others", mutable=True)
        other.extend(["a", "b"])
        other.delete([0])
    time.sleep(0.05)
    for report in (cli("vacuum", "--dry-run", "-o", "json"), cli("vacuum", "-o", "json")):
        notes = json.loads(report.stdout)["rewritten"]
        assert [(note["records"], note["expired"], note["deleted"]) for note in notes] == [(5, 3, 2), (1, 0, 1)]
        assert notes[0]["why"] == "3 of its 9 records had expired and 2 were deleted"
        assert notes[1]["why"] == "1 of its 2 records was deleted"
        assert "2 segments without 3 expired records and 3 deleted records" in report.stderr


def test_a_narrow_terminal_keeps_the_reason(shop):
    shown = Terminal(shop, "vacuum", "--dry-run", columns=90).finish()
    assert b"newest record is 9d old, kept for 7d" in shown


def test_an_empty_log_and_a_namespace(cli):
    cli.ok("topic", "create", "orders", "-N", "tenant", "--set", "retain=1d")
    cli.ok("append", "orders", "x", "-N", "tenant")
    assert json.loads(cli.ok("vacuum", "-o", "json"))["kept"] == []
    assert json.loads(cli.ok("vacuum", "-o", "json", "-N", "tenant"))["kept"][0]["why"] == "active segment"
    assert cli("vacuum", "-L", str(cli.path / "nowhere")).exit_code == 3


# Settings.


def test_settings_of_retention(cli):
    text = cli.ok(
        *("topic", "create", "orders", "-o", "json", "--set", "retain=7d", "--set", "retain_bytes=1GB"),
        *("--set", "keep_unread=billing,audit"),
    )
    settings = json.loads(text)["settings"]
    assert (settings["retain"], settings["retain_bytes"]) == ("7d", 10**9)
    assert settings["keep_unread"] == ["audit", "billing"]
    listed = cli.ok("topic", "ls", "-o", "table")
    assert "retain=7d retain_bytes=954MiB keep_unread=audit,billing" in listed
    assert "keep_unread" in cli.ok("topic", "show", "orders", "-o", "table")

    def altered(*texts: str) -> tuple[object, ...]:
        settings = json.loads(cli.ok("topic", "alter", "orders", *texts, "-o", "json"))["settings"]
        return settings["retain"], settings["retain_bytes"], settings["keep_unread"]

    assert altered("retain=read", "keep_unread=true") == ("read", 10**9, True)
    assert altered("retain=forever", "retain_bytes=none", "keep_unread=no") == ("forever", None, False)
    assert altered("keep_unread=billing", "retain=3600") == ("1h", None, ["billing"])
    cli.ok("topic", "alter", "orders", "retain=forever", "keep_unread=off")
    assert "keep_unread" not in cli.ok("topic", "ls", "-o", "table")


@pytest.mark.parametrize("text", ["retain=2 days", "retain=often", "retain_bytes=-5", "retain_bytes=0", "keep_unread="])
def test_a_wrong_setting_is_wrong_usage(cli, text):
    cli.ok("topic", "create", "orders")
    result = cli("topic", "alter", "orders", text)
    assert result.exit_code == 2, result.stderr


def test_settings_must_match(cli):
    cli.ok("topic", "create", "orders", "--set", "retain=7d")
    with tailrace.open(cli.path) as log, pytest.raises(tailrace.errors.SettingsMismatchError):
        log.topic("orders", retain="8d")


# The disk.


def test_stats_say_when_the_disk_is_nearly_full(cli, monkeypatch):
    cli.ok("append", "orders", "x")
    fields = json.loads(cli.ok("stats", "-o", "json"))
    assert fields["disk_bytes"] >= fields["free_bytes"] > 0
    assert fields["full_in"] is None or fields["full_in"] > 0
    if not fields["nearly_full"]:
        assert "Warning" not in cli.ok("stats", "-o", "table")
    monkeypatch.setattr("tailrace.disk.files.Files.free_bytes", lambda *_: 500 << 20)
    monkeypatch.setattr("tailrace.disk.files.Files.disk_bytes", lambda *_: 100 << 30)
    shown = cli.ok("stats", "-o", "table")
    assert "Warning: the disk is nearly full: 500 MiB of 100 GiB are free" in shown
    result = cli("stats", "-o", "json")
    assert json.loads(result.stdout)["nearly_full"] is True
    assert "Warning: the disk is nearly full" in result.stderr
