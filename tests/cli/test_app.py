"""The program without a command, with an unknown one, with -q and -v, and on a directory that is no log."""

from __future__ import annotations


def test_quiet_says_nothing_beside_the_data(shop):
    assert shop("verify", "-q").stderr == ""
    assert shop("topic", "trim", "orders", "--before", "latest", "-y", "-q").stderr == ""
    assert f"log {shop.path}" in shop("topic", "ls", "-v").stderr


def test_an_unknown_command_is_corrected(cli):
    result = cli("raed", "orders")
    assert result.exit_code == 2
    assert "did you mean 'read'" in result.stderr


def test_alone_it_prints_its_help(cli):
    assert "Commands:" in cli.ok()
    assert "trim" in cli.ok("topic")


def test_a_log_of_something_else_is_left_alone(cli):
    cli.path.mkdir()
    (cli.path / "notes.txt").write_text("mine")
    assert cli("read", "orders").exit_code == 3
    assert cli("append", "orders", "a").exit_code == 3
    assert [path.name for path in cli.path.iterdir()] == ["notes.txt"]
