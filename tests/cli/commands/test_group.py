"""group ls, show, reset, evict and drop: what they show, change and refuse."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import time
from contextlib import contextmanager

import pytest

import tailrace
from tests import processes
from tests.cli.terminal import Terminal

FIELDS = ["name", "topics", "members", "lag_records", "lag_seconds", "moved"]

MEMBER = """
    import sys, tailrace
    with tailrace.open(sys.argv[1]) as log, log.consumer(sys.argv[2], sys.argv[3], member=sys.argv[4]) as consumer:
        consumer.poll(2, timeout=20)
        consumer.commit()
        print(consumer.member, flush=True)
        sys.stdin.readline()
        try:
            consumer.poll(1, timeout=0)
            consumer.commit()
            print("committed", flush=True)
        except tailrace.errors.PartitionLostError:
            print("lost", flush=True)
"""


@pytest.fixture
def shop(cli):
    """Two partitions of three and two records, and a group that has read two and one of them."""
    with tailrace.open(cli.path) as log:
        orders = log.topic("orders", partitions=2)
        orders.extend(["a", "b", "c"], partition=0)
        orders.extend(["d", "e"], partition=1)
        with log.consumer("orders", "billing", stop={0: 2, 1: 1}) as consumer:
            assert len(list(consumer)) == 3
    return cli


@contextmanager
def member(cli, topic: str = "orders", group: str = "billing", name: str = "worker"):
    """A living member in a process of its own, which has two records in hand; its process and its id."""
    process = processes.start(MEMBER, cli.path, topic, group, name)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def positions(cli, group: str = "billing") -> list[int | None]:
    with tailrace.open(cli.path, "r") as log:
        return [partition.position for partition in log.group(group).partitions]


def test_ls_has_the_same_fields_in_every_format(shop):
    (row,) = json.loads(shop.ok("group", "ls", "-o", "json"))
    assert list(row) == FIELDS
    assert row["name"] == "billing"
    assert row["topics"] == ["orders"]
    assert (row["members"], row["lag_records"]) == (0, 2)
    assert row["lag_seconds"] > 0
    assert row["moved"].endswith("Z")
    assert json.loads(shop.ok("group", "ls", "-o", "jsonl"))["name"] == "billing"
    heading, line = csv.reader(io.StringIO(shop.ok("group", "ls", "-o", "csv")))
    assert heading == FIELDS
    assert line[:4] == ["billing", '["orders"]', "0", "2"]
    assert shop.ok("group", "ls").split("\t")[:4] == ["billing", '["orders"]', "0", "2"]
    table = shop.ok("group", "ls", "-o", "table").splitlines()
    assert table[0].split("  ")[0] == "name"
    assert table[1].split()[:4] == ["billing", "orders", "0", "2"]


def test_a_log_without_groups_says_so(cli):
    cli.ok("append", "orders", "a")
    result = cli("group", "ls", "-o", "table")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "There are no groups.\n")
    assert json.loads(cli.ok("group", "ls", "-o", "json")) == []
    assert "ls" in cli.ok("group")


def test_show(shop):
    fields = json.loads(shop.ok("group", "show", "billing", "-o", "json"))
    fixed = ["group", "topics", "members", "partitions", "lag_records", "lag_seconds", "moved", "engine"]
    assert list(fields) == fixed
    assert fields["members"] == []
    first, second = fields["partitions"]
    assert first.pop("lag_seconds") > 0
    assert first == {
        "topic": "orders", "partition": 0, "owner": None, "position": 2, "latest": 3, "lag_records": 1, "lost": 0,
    }  # fmt: skip
    assert (second["position"], second["latest"], fields["lag_records"]) == (1, 2, 2)
    assert "partitions.1.position\t1\n" in shop.ok("group", "show", "billing")
    result = shop("group", "show", "billing", "-o", "table")
    assert "No member is reading for it now." in result.stderr
    assert result.stdout.splitlines()[-1].split()[:6] == ["orders", "1", "-", "1", "2", "1"]


def test_show_a_member(shop):
    with member(shop) as (process, name):
        fields = json.loads(shop.ok("group", "show", "billing", "-o", "json"))
        (found,) = fields["members"]
        assert found["id"] == name
        assert name.startswith("worker-")
        assert found["pid"] == process.pid
        assert found["host"]
        assert found["since"].endswith("Z")
        assert (found["alive"], found["partitions"]) == (True, 2)
        assert {partition["owner"] for partition in fields["partitions"]} == {name}
        assert json.loads(shop.ok("group", "ls", "-o", "json"))[0]["members"] == 1
        table = shop.ok("group", "show", "billing", "-o", "table")
        assert f"{process.pid}" in table.split("\n\n")[1].splitlines()[1].split()
        process.send_signal(signal.SIGSTOP)
        try:
            stuck = json.loads(shop.ok("group", "show", "billing", "-o", "json"))["members"][0]
            assert (stuck["alive"], stuck["pid"]) == (True, process.pid)
        finally:
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        dead = json.loads(shop.ok("group", "show", "billing", "-o", "json"))
        assert [each["alive"] for each in dead["members"]] == [False]
        assert [each["owner"] for each in dead["partitions"]] == [None, None]


def test_a_group_that_is_not_there(shop):
    for arguments in (("show",), ("drop", "-y"), ("reset", "--to", "earliest", "-y")):
        result = shop("group", arguments[0], "biling", *arguments[1:], "-o", "json")
        assert result.exit_code == 3
        error = json.loads(result.stderr)["error"]
        assert error["code"] == "group-not-found"
        assert "did you mean 'billing'?" in error["message"]
        assert shop.told("group ls") in error["hint"]
    assert shop("group", "show", "").exit_code == 2
    assert shop("group", "evict", "biling", "x", "-y").exit_code == 3


def test_watch(shop):
    again = ("group", "show", "billing", "--watch", "--every", "0.05", "--limit")
    lines = shop.ok(*again, "3", "-o", "json").splitlines()
    assert [json.loads(line)["lag_records"] for line in lines] == [2, 2, 2]
    rows = list(csv.DictReader(io.StringIO(shop.ok(*again, "2", "-o", "csv"))))
    assert [(row["partition"], row["lag_records"]) for row in rows] == [("0", "1"), ("1", "1")] * 2
    assert rows[0]["time"] == rows[1]["time"] < rows[2]["time"]
    plain = shop.ok(*again, "2").splitlines()
    assert plain[0].split("\t")[:3] == ["time", "topic", "partition"]
    assert len(plain) == 5
    assert shop.ok(*again, "2", "-o", "table").count("lag_records  2") == 2
    for arguments in (("--every", "1"), ("--limit", "1"), ("--watch", "--every", "nan")):
        assert shop("group", "show", "billing", *arguments).exit_code == 2
    assert shop("group", "show", "other", "--watch").exit_code == 3


def test_ctrl_c_ends_a_watch_and_it_shows_what_changes(shop):
    process = shop.start("group", "show", "billing", "--watch", "--every", "0.05", "-o", "jsonl")
    assert json.loads(process.stdout.readline())["lag_records"] == 2
    shop.ok("read", "orders", "--group", "billing")
    while json.loads(process.stdout.readline())["lag_records"]:
        pass
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(stderr)["error"]["code"] == "interrupted"


def reset_rows(cli, *arguments: str) -> list[tuple[int, int | None, int, int]]:
    rows = json.loads(cli.ok("group", "reset", "billing", *arguments, "-o", "json"))
    assert all(list(row) == ["topic", "partition", "now", "new", "change"] for row in rows)
    return [(row["partition"], row["now"], row["new"], row["change"]) for row in rows]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--to", "earliest"), [(0, 2, 0, -2), (1, 1, 0, -1)]),
        (("--to", "latest"), [(0, 2, 3, 1), (1, 1, 2, 1)]),
        (("--to", "0:1,1:2"), [(0, 2, 1, -1), (1, 1, 2, 1)]),
        (("--to", "1:0"), [(1, 1, 0, -1)]),
        (("--to", "-1h"), [(0, 2, 0, -2), (1, 1, 0, -1)]),
        (("--to", "2001-01-01T00:00Z"), [(0, 2, 0, -2), (1, 1, 0, -1)]),
        (("--shift", "-1"), [(0, 2, 1, -1), (1, 1, 0, -1)]),
        (("--shift", "-100"), [(0, 2, 0, -2), (1, 1, 0, -1)]),
        (("--shift", "+1"), [(0, 2, 3, 1), (1, 1, 2, 1)]),
        (("--to", "earliest", "--topic", "orders"), [(0, 2, 0, -2), (1, 1, 0, -1)]),
    ],
)
def test_reset(shop, arguments, expected):
    assert reset_rows(shop, *arguments, "--dry-run") == expected
    assert positions(shop) == [2, 1]
    assert reset_rows(shop, *arguments, "--yes") == expected
    moved = {partition: new for partition, _, new, _ in expected}
    assert positions(shop) == [moved.get(partition, now) for partition, now in enumerate([2, 1])]


def test_reset_prints_a_table_and_says_what_it_comes_to(shop):
    result = shop("group", "reset", "billing", "--to", "0:0,1:2", "-y", "-o", "table")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["topic", "partition", "now", "new", "change"],
        ["orders", "0", "2", "0", "-2"],
        ["orders", "1", "1", "2", "+1"],
    ]
    assert result.stderr == "Reset billing: 2 partitions moved, 2 records to be read again, 1 record passed over.\n"
    assert sorted(shop.ok("read", "orders", "--group", "billing", "-q").split()) == ["a", "b", "c"]


def test_reset_asks_and_without_a_terminal_refuses(shop):
    refused = shop("group", "reset", "billing", "--to", "earliest")
    assert refused.exit_code == 8
    assert "2 partitions moved, 3 records to be read again" in refused.stderr
    assert positions(shop) == [2, 1]
    still = shop("group", "reset", "billing", "--to", "0:2,1:1")
    assert (still.exit_code, still.stderr) == (0, "Reset billing: 0 partitions moved.\n")


def test_reset_to_a_date_goes_to_its_midnight_in_utc(shop):
    shop.ok("group", "reset", "billing", "--to", "2026-01-01", "--yes")
    assert positions(shop) == [0, 0]
    shop.ok("group", "reset", "billing", "--to", "9999-12-31", "--yes")
    assert positions(shop) == [3, 2]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--to", "earliest", "--shift", "1"),
        ("--to", "nowhere"),
        ("--to", "1"),
        ("--to", "5:1"),
        ("--shift", "much"),
        ("--to", "2026-11-15T20:00"),
    ],
)
def test_reset_refuses_what_it_cannot_understand(shop, arguments):
    for more in (("--dry-run",), ("--yes",)):
        assert shop("group", "reset", "billing", *arguments, *more).exit_code == 2
    assert positions(shop) == [2, 1]


def test_reset_to_an_offset_that_is_not_there(shop):
    result = shop("group", "reset", "billing", "--to", "0:99", "--yes")
    assert result.exit_code == 3
    assert "3" in result.stderr
    assert shop("group", "reset", "billing", "--to", "earliest", "--topic", "other", "--yes").exit_code == 3
    assert positions(shop) == [2, 1]


def test_reset_of_a_group_over_several_topics(shop):
    shop.ok("append", "returns", "x", "y")
    shop.ok("read", "returns", "--group", "billing")
    refused = shop("group", "reset", "billing", "--to", "0:0", "--yes")
    assert refused.exit_code == 2
    assert "--topic" in refused.stderr
    rows = json.loads(shop.ok("group", "reset", "billing", "--to", "1", "--topic", "returns", "-y", "-o", "json"))
    assert rows == [{"topic": "returns", "partition": 0, "now": 2, "new": 1, "change": -1}]
    rows = json.loads(shop.ok("group", "reset", "billing", "--to", "latest", "--dry-run", "-o", "json"))
    assert [row["topic"] for row in rows] == ["orders", "orders", "returns"]
    rows = json.loads(
        shop.ok("group", "reset", "billing", "--to", "earliest", "--topic", "*", "--dry-run", "-o", "json")
    )
    assert len(rows) == 3


def test_a_partition_without_a_cursor_moves_from_its_beginning(shop):
    shop.ok("topic", "alter", "orders", "partitions=3")
    shop.ok("append", "orders", "z", "--partition", "2")
    rows = json.loads(shop.ok("group", "reset", "billing", "--to", "latest", "--dry-run", "-o", "json"))
    assert rows[2] == {"topic": "orders", "partition": 2, "now": None, "new": 1, "change": 1}


def test_members_at_work_forbid_it_unless_forced(shop):
    with member(shop) as (process, name):
        for command in (("reset", "billing", "--to", "earliest"), ("drop", "billing")):
            refused = shop("group", *command, "--yes", "-o", "json")
            assert refused.exit_code == 6
            error = json.loads(refused.stderr)["error"]
            assert error["code"] == "group-busy"
            assert name in error["message"]
            assert "--force" in error["hint"]
            # It is refused before anybody is asked.
            assert shop("group", *command).exit_code == 6
            dry = shop("group", *command, "--dry-run")
            assert dry.exit_code == 0
            assert "1 member is at work: without --force it would be refused." in dry.stderr
        question = shop("group", "reset", "billing", "--to", "earliest", "--force")
        assert question.exit_code == 8
        assert "1 member is evicted" in question.stderr
        shop.ok("group", "reset", "billing", "--to", "earliest", "--force", "--yes")
        assert positions(shop) == [0, 0]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "lost"
    assert positions(shop) == [0, 0]


def test_drop(shop):
    shop.ok("append", "orders", "f")
    dry = shop("group", "drop", "billing", "--dry-run", "-o", "json")
    assert json.loads(dry.stdout)[0]["name"] == "billing"
    assert "Would drop the group billing." in dry.stderr
    refused = shop("group", "drop", "billing")
    assert refused.exit_code == 8
    assert "2 partitions" in refused.stderr
    shop.ok("group", "drop", "billing", "--yes")
    assert shop.ok("group", "ls") == ""
    assert shop.ok("read", "orders", "--count") == "6\n"


def test_drop_by_force(shop):
    with member(shop):
        shop.ok("group", "drop", "billing", "--force", "--yes")
        assert shop.ok("group", "ls") == ""


def test_evict(shop):
    with member(shop) as (process, name):
        before = positions(shop)
        refused = shop("group", "evict", "billing", name)
        assert refused.exit_code == 8
        assert "2 partitions go to others, and what it commits is refused" in refused.stderr
        assert "Would evict" in shop("group", "evict", "billing", name, "--dry-run").stderr
        unknown = shop("group", "evict", "billing", name[:-1] + "?", "--yes")
        assert unknown.exit_code == 3
        assert f"did you mean {name!r}?" in unknown.stderr
        (row,) = json.loads(shop.ok("group", "evict", "billing", name, "--yes", "-o", "json"))
        assert list(row) == ["id", "host", "pid", "since", "alive", "state", "partitions"]
        assert row["pid"] == process.pid
        assert json.loads(shop.ok("group", "show", "billing", "-o", "json"))["members"] == []
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "lost"
    assert positions(shop) == before


def test_the_questions(shop):
    for command, question in (
        (("reset", "billing", "--to", "earliest"), b"3 records to be read again? [y/N] "),
        (("drop", "billing"), b"Forget how far the group billing has read 2 partitions, permanently? [y/N] "),
    ):
        terminal = Terminal(shop, "group", *command, columns=200)
        assert question in terminal.until(b"[y/N] ")
        os.write(terminal.master, b"n\n")
        assert b"Nothing was changed" in terminal.finish()
    assert positions(shop) == [2, 1]


def test_topics_name_the_groups_that_read_them(shop):
    shop.ok("append", "returns", "x")
    shop.ok("read", "orders", "--group", "audit", "--limit", "1")
    rows = json.loads(shop.ok("topic", "ls", "-o", "json"))
    assert [(row["name"], [(lag["name"], lag["lag_records"]) for lag in row["groups"]]) for row in rows] == [
        ("orders", [("audit", 4), ("billing", 2)]),
        ("returns", []),
    ]
    assert all(lag["lag_seconds"] > 0 for lag in rows[0]["groups"])
    table = shop.ok("topic", "ls", "-o", "table").splitlines()
    assert table[0].split()[-1] == "groups"
    assert table[1].endswith("  audit:4 billing:2")
    assert table[2].split()[-1] == "-"
    fields = json.loads(shop.ok("topic", "show", "orders", "-o", "json"))
    assert [lag["name"] for lag in fields["groups"]] == ["audit", "billing"]
    assert "billing            2" in shop.ok("topic", "show", "orders", "-o", "table")
    assert json.loads(shop.ok("topic", "show", "returns", "-o", "json"))["groups"] == []


def test_names_are_completed(shop, monkeypatch):
    with member(shop) as (_, name):
        for words, expected in (
            ("tailrace group sh", ["show"]),
            ("tailrace group show b", ["billing"]),
            ("tailrace group evict b", ["billing"]),
            ("tailrace group evict billing w", [name]),
            ("tailrace read orders --group b", ["billing"]),
            ("tailrace read orders --group x", []),
            ("tailrace group reset billing --topic o", ["orders"]),
        ):
            monkeypatch.setenv("COMP_WORDS", words)
            monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
            monkeypatch.setenv("_TAILRACE_COMPLETE", "bash_complete")
            done = shop.finish()
            assert done.stderr == b""
            assert [line.split(",")[-1] for line in done.stdout.decode().split()] == expected


def test_names_that_steer_a_terminal_are_escaped(cli):
    with tailrace.open(cli.path) as log:
        log.topic("orders").append("a")
        try:
            list(log.consumer("orders", "g\u202ex", stop="now"))
        except tailrace.errors.TailraceError:
            pytest.skip("no group may have such a name")
    for arguments in (("group", "ls"), ("group", "show", "g\u202ex"), ("topic", "ls")):
        shown = Terminal(cli, *arguments, columns=200).finish().decode()
        assert "\\u202e" in shown
        assert "\u202e" not in shown


def test_many_groups_are_listed_quickly(cli):
    with tailrace.open(cli.path, durable=False) as log:
        topic = log.topic("orders", partitions=4)
        for partition in range(4):
            topic.extend(["x"] * 100, partition=partition)
        for number in range(50):
            with log.consumer("orders", f"group{number:02}", stop="now") as consumer:
                consumer.poll(10)
    begun = time.process_time()
    rows = json.loads(cli.ok("topic", "ls", "-o", "json"))
    assert len(rows[0]["groups"]) == 50
    assert time.process_time() - begun < 1.0
