"""One call: which log it opens, what it may print, and commands in sentences that are ready to paste."""

from __future__ import annotations

import io
import os
import sys

import click
import pytest

import tailrace
from tailrace.cli.ending import CommandError
from tailrace.cli.invocation import Invocation, draws, print_line
from tailrace.errors import NotALogError


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def invocation(tmp_path, monkeypatch):
    monkeypatch.delenv("TAILRACE_NAMESPACE", raising=False)
    made = Invocation()
    made.log = str(tmp_path / "log")
    return made


def test_only_a_command_that_creates_makes_a_log(invocation, tmp_path):
    for intent in ("read", "change"):
        with pytest.raises(CommandError, match="it does not exist"):
            invocation.open(intent)
    assert not (tmp_path / "log").exists()
    invocation.open("create").close()
    with invocation.open("read") as log, pytest.raises(tailrace.errors.ReadOnlyError):
        log.topic("t").append("x")
    with invocation.open("change") as log:
        log.topic("t").append("x")


def test_the_environment_names_what_no_option_names(invocation, tmp_path, monkeypatch):
    with tailrace.open(tmp_path / "log") as log:
        log.namespace("tenant").close()
    monkeypatch.setenv("TAILRACE_NAMESPACE", "tenant")
    assert invocation.space == "tenant"
    with invocation.open("read") as log:
        assert log.location.endswith("tenant")
    with invocation.located() as (location, space):
        assert (location, space) == (str(tmp_path / "log"), "tenant")
        assert "TAILRACE_NAMESPACE" not in os.environ
    assert os.environ["TAILRACE_NAMESPACE"] == "tenant"
    invocation.namespace = ""
    with invocation.open("read") as log:
        assert log.location == str(tmp_path / "log")
    invocation.log = None
    with pytest.raises(click.UsageError, match="No log was named"):
        invocation.open("read")
    with pytest.raises(click.UsageError, match="No log was named"), invocation.located():
        pass
    monkeypatch.setenv("TAILRACE_LOG", str(tmp_path / "log"))
    invocation.open("read").close()


def test_a_wrong_size_of_the_journal_is_wrong_usage(invocation, monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "1 byte")
    with pytest.raises(click.UsageError, match="TAILRACE_JOURNAL_BYTES"):
        invocation.open("create")


def test_what_is_there_in_place_of_a_log(invocation, tmp_path):
    place = tmp_path / "log"
    place.write_text("x")
    with pytest.raises((CommandError, NotALogError), match="file"):
        invocation.open("read")
    place.unlink()
    place.mkdir()
    with pytest.raises(CommandError, match="it is an empty directory"):
        invocation.open("read")
    (place / "other.txt").write_text("x")
    with pytest.raises(CommandError, match=r"it holds .other\.txt. and no tailrace\.json"):
        invocation.open("read")
    (place / "backup.json").write_text("{}")
    with pytest.raises(CommandError, match="is a backup, not a log") as told:
        invocation.open("read")
    assert f"tailrace restore {place} TO" in told.value.hint


def test_a_namespace_of_an_open_log(invocation, tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.namespace("tenant").close()
    with invocation.open("read") as log:
        with pytest.raises(CommandError, match="no namespace 'x'") as told:
            invocation.inner(log, "x")
        assert "tailrace namespace ls" in told.value.hint
        with invocation.inner(log, "tenant") as inner:
            assert inner.topics() == []


def test_formats(invocation, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert invocation.format() == "plain"
    assert not invocation.color
    monkeypatch.setattr(sys, "stdout", Screen())
    assert invocation.format() == "table"
    invocation.output = "arrow"
    assert invocation.format(arrow=True) == "arrow"
    with pytest.raises(click.UsageError, match="-o arrow is for records"):
        invocation.format()


def test_colours(invocation, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    assert invocation.color
    assert draws(Screen())
    invocation.no_color = True
    assert not invocation.color
    invocation.no_color = False
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not invocation.color


def test_notes(invocation, capsys):
    invocation.log = None
    invocation.note("One.")
    invocation.detail("Two.")
    invocation.verbose = True
    invocation.detail("Three.")
    invocation.quiet = True
    invocation.note("Four.")
    invocation.detail("Five.")
    assert capsys.readouterr().err == "One.\nThree.\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see: tailrace doctor", "see: tailrace -L 'my log' -N t doctor"),
        ("see: tailrace topic show NAME", "see: tailrace -L 'my log' -N t topic show 'two words'"),
        ("see: tailrace group show NAME", "see: tailrace -L 'my log' -N t group show NAME"),
        ("see: tailrace namespace ls", "see: tailrace -L 'my log' namespace ls"),
        ("see: tailrace -L other doctor", "see: tailrace -L other doctor"),
        ("Run: tailrace read --help", "Run: tailrace read --help"),
        ("see: tailrace version", "see: tailrace version"),
        ("a\ntailrace verify", "a\ntailrace -L 'my log' -N t verify"),
    ],
)
def test_a_command_in_a_sentence_can_be_pasted(text, expected):
    invocation = Invocation()
    invocation.log, invocation.namespace = "my log", "t"
    invocation.command, invocation.given = "tailrace topic trim", {"name": "two words"}
    assert invocation.whole(text) == expected


def test_a_name_that_looks_like_an_option_is_not_pasted():
    invocation = Invocation()
    invocation.command, invocation.given = "tailrace read", {"topic": "-x"}
    assert invocation.whole("tailrace topic show NAME") == "tailrace topic show NAME"
    invocation.given = {"topic": "x"}
    assert invocation.whole("tailrace topic show NAME") == "tailrace topic show x"


def test_a_line_that_cannot_be_printed_changes_nothing(monkeypatch):
    moved = []

    def fail(text, err):
        raise OSError(28, "No space left on device")

    def move(opened, number):
        os.close(opened)
        moved.append(number)

    # For this call alone: pytest moves descriptors itself.
    with monkeypatch.context() as patch:
        patch.setattr(click, "echo", fail)
        patch.setattr(os, "dup2", move)
        print_line("x")
    assert moved == [2]
