"""`tailrace doctor`: what it prints for people and for programs, and its exit codes."""

from __future__ import annotations

import json

import tailrace
from tailrace import bulk


def test_all_is_well(cli):
    cli.ok("append", "orders", "tea")
    result = cli("doctor", "-o", "json")
    findings = json.loads(result.stdout)
    assert [each for each in findings if each["severity"] == "error"] == []
    assert result.exit_code == 0
    if not findings:
        assert result.stderr.startswith("All is well")
        assert result.stdout == "[]\n"
        assert cli("doctor", "-o", "table").stdout == ""


def test_damage_has_its_exit_code(cli):
    cli.ok("append", "orders", "tea")
    (segment,) = cli.path.glob("topics/*-orders/0/*.seg")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    result = cli("doctor", "-o", "json")
    assert result.exit_code == 5
    found = json.loads(result.stdout)[0]
    assert list(found) == ["severity", "what", "why", "run", "code"]
    assert (found["severity"], found["code"]) == ("error", "damaged-range")
    assert found["run"] == f"tailrace repair --dry-run -L {cli.path}"
    assert json.loads(result.stderr)["error"]["code"] == "damage-found"
    table = cli("doctor", "-o", "table")
    assert table.stdout.splitlines()[0].startswith("error: Records of orders[0] are damaged: offsets 0 to 0")
    assert table.stdout.splitlines()[2] == f"  Run: tailrace repair --dry-run -L {cli.path}"
    assert "found" in table.stderr
    rows = cli("doctor", "-o", "csv").stdout.splitlines()
    assert rows[0] == "severity,what,why,run,code"


def test_what_is_no_log_is_not_found(cli):
    result = cli("doctor")
    assert result.exit_code == 3
    assert result.stdout.startswith("error\tThere is nothing at")
    assert not cli.path.exists()


def test_another_error_is_a_failure(cli):
    cli.ok("append", "orders", "tea")
    identity = cli.path / "tailrace.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "format": 99}))
    assert cli("doctor").exit_code == 1


def test_warnings_are_no_failure(cli):
    cli.ok("append", "orders", "tea")
    (cli.path / "tails").unlink()
    result = cli("doctor")
    assert result.exit_code == 0
    assert "recovery-pending" in result.stdout
    assert "Nothing is wrong now: 1 warning" in result.stderr


def test_a_log_must_be_named(cli):
    from click.testing import CliRunner

    from tailrace.cli.app import root

    assert CliRunner().invoke(root, ["doctor"], prog_name="tailrace").exit_code == 2


def test_a_namespace_alone(cli):
    cli.ok("append", "orders", "tea")
    cli.ok("append", "orders", "tea", "-N", "acme")
    (cli.path / "tails").unlink()
    assert "recovery-pending" in cli("doctor").stdout
    assert "recovery-pending" not in cli("doctor", "-N", "acme").stdout
    assert cli("doctor", "-N", "nobody").exit_code == 3


def test_group_show_says_that_an_engine_reads(cli):
    with tailrace.open(cli.path) as log:
        log.topic("orders").append("tea")
        bulk.record_progress(log, "query", {("orders", 0): 0})
        consumer = log.consumer("orders", "people")
        consumer.poll(timeout=5)
        consumer.close()
        assert (log.group("query").engine, log.group("people").engine) == (True, False)
    shown = cli("group", "show", "query", "-o", "table")
    assert "An engine, such as a Spark query, reads for it" in shown.stderr
    assert "No member" not in shown.stderr
    assert "No member is reading for it now." in cli("group", "show", "people", "-o", "table").stderr
    assert json.loads(cli.ok("group", "show", "query", "-o", "json"))["engine"] is True
