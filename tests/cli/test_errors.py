"""Failures: a code for each, a sentence and a next step on stderr."""

from __future__ import annotations

import errno
import json
import re
import sys

import click
import pytest

from tailrace import errors
from tailrace.cli.ending import CommandError, Interrupted
from tailrace.cli.errors import BROKEN_PIPE, EXIT_CODES, HINTS, answering, report, wrong_arguments
from tailrace.cli.invocation import Invocation


def error_codes() -> set[str]:
    found = set()
    todo = [errors.TailraceError]
    while todo:
        kind = todo.pop()
        found.add(kind.code)
        todo.extend(kind.__subclasses__())
    return found


def test_every_error_has_an_exit_code():
    assert error_codes() - set(EXIT_CODES) == set()


def test_hints_at_a_shell_speak_of_commands():
    assert set(HINTS) <= error_codes()
    assert [hint for hint in HINTS.values() if re.search(r"\w\(\)|\w=\W|docs/", hint)] == []


def reported(capsys, error, *arguments, **options):
    """The exit code of an error, and the lines on stderr."""
    invocation = Invocation()
    for name, value in options.items():
        setattr(invocation, name, value)
    code = report(error, invocation, [*arguments])
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err.splitlines()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.TopicNotFoundError("There is no topic 't'."), 3, "There is no topic 't'."),
        (CommandError("declined", "Nothing was changed.", ""), 1, "Nothing was changed."),
        (click.UsageError("It is wrong."), 2, "It is wrong."),
        (FileNotFoundError(2, "No such file", "a.csv"), 3, "a.csv: No such file."),
        (PermissionError(13, "Permission denied", "a.csv"), 8, "a.csv: Permission denied."),
        (OSError(5, "Input/output error"), 7, "Input/output error."),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (ZeroDivisionError("by zero"), 1, "ZeroDivisionError: by zero"),
    ],
)
def test_each_error_has_a_code_and_a_sentence(capsys, error, code, message):
    found, lines = reported(capsys, error)
    assert found == code
    assert lines[0] == f"tailrace: {message}"


def test_hints_and_notes_follow_the_message(capsys):
    error = errors.LockedError("It is locked.", pid=1)
    error.add_note("Appended before: 3 records.")
    _, lines = reported(capsys, error, log="my log")
    assert lines[1].startswith("Nothing was changed; see which process holds it")
    assert lines[1].endswith("with: tailrace -L 'my log' doctor")
    assert lines[2] == "Appended before: 3 records."
    _, lines = reported(capsys, Interrupted("Go on with: this\nor that"))
    assert lines == ["tailrace: Interrupted.", "Go on with: this", "or that"]
    wrong = click.UsageError("Wrong.")
    wrong.add_note("Appended before: 3 records.")
    assert reported(capsys, wrong)[1] == ["tailrace: Wrong.", "Run: tailrace --help"]


@pytest.mark.parametrize("arguments", [("-o", "json"), ("-ojsonl",), ("--output=json",), ("read", "--output", "jsonl")])
def test_programs_get_json_also_before_the_options_are_known(capsys, arguments):
    code, lines = reported(capsys, click.UsageError("No."), *arguments)
    assert code == 2
    assert json.loads("\n".join(lines))["error"] == {"code": "usage", "message": "No.", "hint": "Run: tailrace --help"}


@pytest.mark.parametrize("arguments", [("-o",), ("-o", "csv"), ("--output=table",), ("json",)])
def test_people_get_text(capsys, arguments):
    assert reported(capsys, click.UsageError("No."), *arguments)[1][0] == "tailrace: No."


def test_a_reader_that_left_is_no_failure(capsys):
    assert reported(capsys, BrokenPipeError()) == (BROKEN_PIPE, [])


def test_a_fault_of_tailrace_shows_where_when_asked(capsys):
    with pytest.raises(ZeroDivisionError) as raised:
        raise ZeroDivisionError("by zero")
    assert len(reported(capsys, raised.value)[1]) == 2
    assert any("test_errors.py" in line for line in reported(capsys, raised.value, verbose=True)[1])


def test_a_missing_right_is_no_damage(capsys):
    error = errors.StorageError("Opening failed.", errno=errno.EACCES, path="x")
    code, lines = reported(capsys, error)
    assert code == 8
    assert "ask for the right to it" in lines[1]


def test_what_steers_a_terminal_is_escaped(capsys):
    assert reported(capsys, CommandError("declined", "a\x1b[2Jb", ""))[1] == ["tailrace: a\\x1b[2Jb"]


def test_a_refused_argument_is_wrong_usage():
    with pytest.raises(click.UsageError) as told, wrong_arguments("max_processing"):
        raise ValueError("max_processing='1' is too short; None means no limit.")
    assert told.value.message == "--max-processing '1' is too short; none means no limit."
    with pytest.raises(KeyError), wrong_arguments():
        raise KeyError("a fault")


def test_a_lost_answer_says_that_it_was_done(monkeypatch):
    class Full:
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(CommandError) as told, answering("Appended orders[0]@3"):
        pass
    assert told.value.code == "input-output"
    assert told.value.message.startswith("Appended orders[0]@3; only the answer could not be printed: No space left")
    with pytest.raises(BrokenPipeError), answering("Appended orders[0]@3"):
        raise BrokenPipeError
