"""restore: a new log out of a backup, whole or damaged, and what an interrupted one leaves."""

from __future__ import annotations

import pytest

import tailrace
from tailrace.cli.commands.restore import _left
from tailrace.cli.invocation import Invocation
from tests.cli.commands.test_backup import flip


@pytest.fixture
def shop(cli):
    with tailrace.open(cli.path) as log:
        log.topic("orders").extend(["tea", "milk"])
    return cli


def test_a_damaged_backup(shop, tmp_path):
    target = tmp_path / "backup"
    shop.ok("backup", str(target))
    path = max((target / "data").glob("*/00000001-*"), key=lambda path: path.stat().st_size)
    flip(path)
    result = shop("restore", str(target), str(tmp_path / "again"))
    assert result.exit_code == 5
    assert path.name in result.stderr
    assert shop("-L", str(tmp_path / "again"), "stats").exit_code == 3
    assert shop("restore", str(target), str(tmp_path / "again"), "--allow-damage").exit_code == 5
    assert shop.ok("-L", str(tmp_path / "again"), "topic", "ls", "-o", "json")


def test_it_says_what_it_made(shop, tmp_path):
    shop.ok("backup", str(tmp_path / "backup"))
    result = shop("restore", str(tmp_path / "backup"), str(tmp_path / "again"))
    assert result.exit_code == 0
    assert "records\t2" in result.stdout.splitlines()
    assert result.stderr.startswith("Restored 2 records, ")
    assert shop.ok("-L", str(tmp_path / "again"), "read", "orders") == "tea\nmilk\n"


def test_an_empty_name_is_refused(shop, tmp_path):
    for arguments in (("", str(tmp_path / "again")), (str(tmp_path), "")):
        result = shop("restore", *arguments)
        assert result.exit_code == 2
        assert "it is empty" in result.stderr


def test_what_an_interrupt_leaves(tmp_path):
    invocation = Invocation()
    invocation.arguments = ["restore", "copy", "again"]
    go_on = "Go on with: tailrace restore copy again"
    place = tmp_path / "again"
    assert _left(invocation, str(place)) == f"The backup is not changed, and {place} was not made.\n{go_on}"
    place.mkdir()
    assert _left(invocation, str(place)).endswith(f"is not a log yet; restoring into it again starts over.\n{go_on}")
    tailrace.open(place).close()
    assert _left(invocation, str(place)).endswith("is a whole log: everything was restored.")
