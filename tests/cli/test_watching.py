"""An answer that is shown again and again."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tailrace.cli import watching
from tailrace.cli.ending import Interrupted
from tailrace.cli.watching import check_watch, repeat, watch_options


def test_options():
    @click.command()
    @watch_options
    def command(watch, every, limit):
        click.echo(f"{watch} {every} {limit}")

    assert CliRunner().invoke(command, []).output == "False None None\n"
    assert CliRunner().invoke(command, ["--watch", "--every", "2", "--limit", "3"]).output == "True 2.0 3\n"
    assert CliRunner().invoke(command, ["--limit", "0"]).exit_code == 2


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"watch": False, "every": 1.0, "limit": None}, "--every goes with --watch"),
        ({"watch": False, "every": None, "limit": 1}, "--limit goes with --watch"),
        ({"watch": True, "every": 0.01, "limit": None}, "out of range"),
        ({"watch": True, "every": float("nan"), "limit": None}, "out of range"),
        ({"watch": True, "every": 1e9, "limit": None}, "out of range"),
    ],
)
def test_what_makes_no_sense(given, reason):
    with pytest.raises(click.UsageError, match=reason):
        check_watch(**given)


def test_what_makes_sense():
    check_watch(watch=False, every=None, limit=None)
    check_watch(watch=True, every=0.05, limit=7)


def test_it_is_shown_so_often_with_a_pause_between(monkeypatch):
    pauses, shown = [], []
    monkeypatch.setattr(watching, "sleep", pauses.append)
    repeat(None, 3, shown.append)
    repeat(0.25, 2, shown.append)
    assert shown == [True, False, False, True, False]
    assert pauses == [1.0, 1.0, 0.25]


def test_ctrl_c_ends_it_without_a_hint():
    def show(first):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as told:
        repeat(None, None, show)
    assert told.value.hint == ""
