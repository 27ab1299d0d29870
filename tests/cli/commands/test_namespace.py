"""namespace: what it lists and drops; a namespace by option and by environment."""

from __future__ import annotations

import json


def test_namespaces(shop):
    shop.ok("-N", "tenant", "append", "orders", "x", "y")
    assert shop.ok("read", "orders", "-N", "tenant") == "x\ny\n"
    assert shop.ok("read", "orders", "--count") == "4\n"
    (row,) = json.loads(shop.ok("namespace", "ls", "-o", "json", "-N", "ignored"))
    assert row | {"bytes": 0} == {"name": "tenant", "topics": 1, "partitions": 1, "records": 2, "bytes": 0}
    refused = shop("namespace", "drop", "tenant")
    assert refused.exit_code == 8
    assert "1 topic and 2 records" in refused.stderr
    assert "Would drop" in shop("namespace", "drop", "tenant", "--dry-run").stderr
    assert shop("namespace", "drop", "other", "--yes").exit_code == 3
    shop.ok("namespace", "drop", "tenant", "--yes")
    assert shop.ok("namespace", "ls") == ""
    assert shop("namespace", "ls").stderr == "There are no namespaces.\n"


def test_a_typo_in_a_namespace_is_corrected(shop):
    shop.ok("-N", "tenant", "append", "orders", "x")
    for arguments in (("read", "orders", "-N", "tennant"), ("namespace", "drop", "tennant", "--yes")):
        result = shop(*arguments)
        assert result.exit_code == 3
        assert "did you mean 'tenant'?" in result.stderr
        assert shop.told("namespace ls\n") in result.stderr


def test_the_environment_names_log_and_namespace(shop, monkeypatch):
    from click.testing import CliRunner

    from tailrace.cli.app import root

    shop.ok("-N", "tenant", "append", "orders", "x")
    monkeypatch.setenv("TAILRACE_LOG", str(shop.path))
    monkeypatch.setenv("TAILRACE_NAMESPACE", "tenant")
    assert CliRunner().invoke(root, ["read", "orders"]).stdout == "x\n"
    assert CliRunner().invoke(root, ["read", "orders", "--count", "-N", ""]).stdout == "4\n"
    assert [row["name"] for row in json.loads(shop.ok("namespace", "ls", "-o", "json"))] == ["tenant"]
