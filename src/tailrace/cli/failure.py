"""Failures: the one table of exit codes, and how an error is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tailrace.errors import TailraceError

from .invocation import Invocation

OK, FAILED, USAGE, NOT_FOUND, CONFLICT, DAMAGE, BUSY, STORAGE, NOT_ALLOWED, NOTHING_MATCHED = range(10)
INTERRUPTED = 130
BROKEN_PIPE = 141

# Every error code, of the library and of the command line itself, with its exit code.
EXIT_CODES = {
    "error": FAILED,
    "open": FAILED,
    "not-a-log": NOT_FOUND,
    "version": FAILED,
    "locked": BUSY,
    "read-only": NOT_ALLOWED,
    "closed": FAILED,
    "forked": FAILED,
    "thread": FAILED,
    "recovery-needed": FAILED,
    "data": DAMAGE,
    "corruption": DAMAGE,
    "topic": FAILED,
    "topic-not-found": NOT_FOUND,
    "topic-exists": CONFLICT,
    "settings-mismatch": CONFLICT,
    "invalid-name": USAGE,
    "record-too-large": FAILED,
    "position": FAILED,
    "offset-out-of-range": NOT_FOUND,
    "offset-mismatch": CONFLICT,
    "storage": STORAGE,
    "disk-full": STORAGE,
    "durability": STORAGE,
    "committed-not-visible": STORAGE,
    "limit": FAILED,
    "busy": BUSY,
    "missing-extra": FAILED,
    # Of the command line itself.
    "usage": USAGE,
    "bad-input": FAILED,
    "declined": FAILED,
    "not-found": NOT_FOUND,
    "damage-found": DAMAGE,
    "input-output": STORAGE,
    "not-allowed": NOT_ALLOWED,
    "nothing-matched": NOTHING_MATCHED,
    "interrupted": INTERRUPTED,
    "internal": FAILED,
}


class CommandError(Exception):
    """A command that cannot go on: a code of the table, one sentence, and the next step."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with where to go on."""

    def __init__(self, hint: str) -> None:
        super().__init__()
        self.hint = hint


@contextmanager
def wrong_arguments() -> Iterator[None]:
    """Inside, a TypeError of the library is about an argument of the command: a setting it does not know, say."""
    try:
        yield
    except TypeError as error:
        raise click.UsageError(str(error)) from None


def report(error: BaseException, invocation: Invocation, arguments: list[str]) -> int:
    """Tell an error on stderr, in words or as JSON, and give its exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        # What cannot be written now must not be tried again at exit, which would change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError) and not isinstance(error, TailraceError):
        # The reader has left, which is no failure.
        return BROKEN_PIPE
    code, message, hint = _describe(error)
    # A command adds to an error what it had done before, with add_note().
    hint = " ".join(each for each in (*getattr(error, "__notes__", ()), hint) if each)
    if _wants_json(invocation, arguments):
        import json

        click.echo(json.dumps({"error": {"code": code, "message": message, "hint": hint}}), err=True)
    else:
        from .output import printable

        click.echo(f"tailrace: {printable(message)}", err=True)
        if hint:
            click.echo(printable(hint), err=True)
    if code == "internal" and invocation.verbose:
        import traceback

        traceback.print_exception(error)
    return EXIT_CODES.get(code, FAILED)


def _describe(error: BaseException) -> tuple[str, str, str]:
    """The code, the sentence and the next step."""
    if isinstance(error, TailraceError):
        return error.code, str(error), error.hint
    if isinstance(error, CommandError):
        return error.code, error.message, error.hint
    if isinstance(error, Interrupted):
        return "interrupted", "Interrupted.", error.hint
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "Interrupted.", ""
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        return "usage", error.format_message(), f"Run: {context.command_path if context else 'tailrace'} --help"
    if isinstance(error, OSError):
        return _describe_os_error(error)
    if isinstance(error, ValueError):
        # What the library says of a wrong argument.
        return "usage", str(error), "docs/cli.md has the grammar of every argument."
    return "internal", f"{type(error).__name__}: {error}", "This is a fault of Tailrace; -v shows where it happened."


def _describe_os_error(error: OSError) -> tuple[str, str, str]:
    reason = error.strerror or str(error)
    message = f"{error.filename}: {reason}." if error.filename else f"{reason}."
    if isinstance(error, FileNotFoundError):
        return "not-found", message, "Name a file that exists."
    if isinstance(error, PermissionError):
        return "not-allowed", message, "Ask for the right to it, or name another path."
    return "input-output", message, "Look at the disk and the path, then try again."


def _wants_json(invocation: Invocation, arguments: list[str]) -> bool:
    """Whether errors are told as JSON; a wrong option may come before `-o` was parsed."""
    if invocation.output in ("json", "jsonl"):
        return True
    for index, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if argument in ("-o", "--output"):
            value = arguments[index + 1] if index + 1 < len(arguments) else ""
        elif name != "--output":
            value = argument[2:] if argument.startswith("-o") else ""
        if value in ("json", "jsonl"):
            return True
    return False
