"""The question before anything is destroyed."""

from __future__ import annotations

import io
import sys

import pytest

from tailrace.cli.ending import CommandError
from tailrace.cli.invocation import Invocation
from tailrace.cli.prompts import confirm, counted


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["y\n", " YES \n"])
def test_yes_goes_on(monkeypatch, capsys, answer):
    monkeypatch.setattr(sys, "stdin", Keyboard(answer))
    confirm(Invocation(), "drop 3 records")
    assert capsys.readouterr().err == "Drop 3 records? [y/N] "


@pytest.mark.parametrize("answer", ["\n", "n\n", "", "yep\n"])
def test_anything_else_changes_nothing(monkeypatch, answer):
    monkeypatch.setattr(sys, "stdin", Keyboard(answer))
    with pytest.raises(CommandError, match="Nothing was changed") as told:
        confirm(Invocation(), "drop 3 records")
    assert told.value.code == "declined"


def test_without_a_terminal_nobody_is_asked(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(CommandError, match="no terminal to ask whether to drop 3 records") as told:
        confirm(Invocation(), "drop 3 records")
    assert told.value.code == "not-allowed"
    assert "--yes" in told.value.hint
    invocation = Invocation()
    invocation.yes = True
    confirm(invocation, "drop 3 records")
    assert capsys.readouterr().err == ""


def test_counts():
    assert [counted(count, "record") for count in (0, 1, 2_000)] == ["0 records", "1 record", "2,000 records"]
