"""verify: every damage, in the log and in its namespaces, and nothing passes for sound that was not read."""

from __future__ import annotations

import json
import shutil

import pytest

import tailrace
from tests.cli.terminal import Terminal


@pytest.fixture
def shop(cli):
    cli.ok("append", "orders", "a", "b", "c")
    cli.ok("append", "orders", "value-d", "e", "-N", "tenant")
    cli.ok("append", "only.there", "f", "-N", "tenant")
    return cli


def damage(cli) -> None:
    (file,) = [each for each in (cli.path / "namespaces").rglob("*.seg") if b"value-d" in each.read_bytes()]
    file.write_bytes(file.read_bytes().replace(b"value-d", b"valuE-d"))


def test_verify_a_sound_log(shop):
    result = shop("verify")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.startswith("No damage: ")
    report = json.loads(shop.ok("verify", "orders", "-o", "json"))
    assert report["damage"] == []
    assert report["checked_records"] == 5
    assert shop("verify", "ordes").exit_code == 3


def test_segments_that_are_all_gone(shop):
    shutil.rmtree(next((shop.path / "topics").glob("*-orders")) / "0")
    result = shop("verify", "-o", "json")
    assert result.exit_code == 5
    (row,) = json.loads(result.stdout)["damage"]
    assert (row["namespace"], row["topic"], row["partition"], row["first"], row["last"]) == (None, "orders", 0, 0, 2)


def test_namespaces_are_read_as_well(shop):
    report = json.loads(shop.ok("verify", "-o", "json"))
    assert report["checked_namespaces"] == ["tenant"]
    assert report["checked_records"] == 6
    assert "6 records" in shop("verify").stderr
    assert "1 namespace included" in shop("verify").stderr
    assert json.loads(shop.ok("verify", "-o", "json", "-N", "tenant"))["checked_records"] == 3


def test_namespaces_in_namespaces_are_read_as_well(shop):
    with tailrace.open(shop.path) as log, log.namespace("tenant") as tenant, tenant.namespace("deep") as deep:
        deep.topic("orders").append("x")
    report = json.loads(shop.ok("verify", "-o", "json"))
    assert report["checked_namespaces"] == ["tenant", "tenant/deep"]
    assert report["checked_records"] == 7


def test_damage_names_its_namespace(shop):
    damage(shop)
    result = shop("verify", "-o", "json")
    assert result.exit_code == 5
    (row,) = json.loads(result.stdout)["damage"]
    assert (row["namespace"], row["topic"], row["first"], row["last"]) == ("tenant", "orders", 0, 1)
    assert shop("verify", "-N", "").exit_code == 5
    result = shop("verify", "-N", "tenant", "-o", "json")
    assert [row["namespace"] for row in json.loads(result.stdout)["damage"]] == ["tenant"]
    assert shop("verify", "only...").exit_code == 0


def test_a_namespace_that_cannot_be_opened_is_damage(shop):
    (shop.path / "namespaces" / "tenant" / "tailrace.json").write_bytes(b"{")
    result = shop("verify", "-o", "json")
    assert result.exit_code == 5
    (row,) = json.loads(result.stdout)["damage"]
    assert row["namespace"] == "tenant"
    assert "cannot be understood" in row["reason"]


@pytest.mark.parametrize("match", ["nope", "nope.*", "nope...", "orders.*"])
def test_what_matches_nothing_is_not_sound(shop, match):
    result = shop("verify", match)
    assert result.exit_code == 3
    assert "No topic matches" in result.stderr
    assert "No damage" not in result.stderr


def test_a_typo_is_corrected(shop):
    assert "did you mean 'orders'" in shop("verify", "ordes").stderr
    assert shop("verify", "only.there").exit_code == 0


def test_paths_on_a_terminal_begin_at_the_log(shop):
    damage(shop)
    shown = Terminal(shop, "verify", "--no-color", columns=200).finish().decode()
    assert "  namespaces/tenant/topics/" in shown
    assert str(shop.path) not in shown
