"""Failures: the table of exit codes, and the report of an error on stderr."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EACCES, EPERM

import click

from tailrace.cli.ending import CommandError, Interrupted
from tailrace.cli.invocation import Invocation, print_line
from tailrace.cli.quoting import quote
from tailrace.errors import CorruptionError, DurabilityError, StorageError, TailraceError

OK, FAILED, USAGE, NOT_FOUND, CONFLICT, DAMAGE, BUSY, STORAGE, NOT_ALLOWED, NOTHING_MATCHED = range(10)
INTERRUPTED = 130
BROKEN_PIPE = 141

# Exit code by error code, for those of the library and of the command line itself.
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
    "schema": FAILED,
    "position": FAILED,
    "offset-out-of-range": NOT_FOUND,
    "record-gone": NOT_FOUND,
    "offset-mismatch": CONFLICT,
    "ownership": CONFLICT,
    "partition-lost": CONFLICT,
    "group-not-found": NOT_FOUND,
    "group-busy": BUSY,
    "immutable": CONFLICT,
    "storage": STORAGE,
    "disk-full": STORAGE,
    "durability": STORAGE,
    "committed-not-visible": STORAGE,
    "limit": FAILED,
    "busy": BUSY,
    "missing-extra": FAILED,
    # Codes of the command line itself.
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


# By error code: the hint for a person at a shell in place of the library's, which addresses a program.
HINTS = {
    "locked": "Nothing was changed; see which process holds it, and what to do, with: tailrace doctor",
    "read-only": "Nothing was written; ask for the right to write to the directory of the log.",
    "recovery-needed": "Nothing is lost; a command that writes recovers the log, so ask for the right to write to it.",
    "topic-exists": "The topic was not changed; see it with: tailrace topic show NAME",
    "settings-mismatch": "The topic was not changed; see it with: tailrace topic show NAME",
    "record-too-large": (
        "Nothing of this call was written; split the value, or allow larger ones with: "
        "tailrace topic alter NAME --max-record-bytes SIZE (64MiB at most)"
    ),
    "schema": (
        "Nothing of this call was written; correct the value, or see the schema with: tailrace topic show NAME -o json"
    ),
    "immutable": (
        "Nothing was deleted; copy the records to another topic, created with --mutable yes, "
        "or remove the oldest ones with: tailrace topic trim NAME"
    ),
    "record-gone": "Nothing was skipped; the records before and after it can be read with: tailrace read NAME",
    "offset-out-of-range": "Nothing was skipped; see where the topic begins and ends with: tailrace topic show NAME",
    "partition-lost": (
        "What was printed since the last stored cursor will be read again by the new owner; "
        "see which member that is with: tailrace group show NAME"
    ),
    "limit": "Nothing of this call was written; take a smaller one.",
    "busy": "Nothing of this call was written; try again.",
}


@contextmanager
def wrong_arguments(*options: str) -> Iterator[None]:
    """Turn a TypeError or ValueError of the block into a UsageError: the library refused an argument.

    Only for calls that check arguments and little else: anywhere else such an error is a defect of Tailrace. Name the
    arguments that are options of the command, such as "max_processing", to have them named as options.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise click.UsageError(_in_shell_words(str(error), options)) from None


def _in_shell_words(message: str, options: Iterable[str]) -> str:
    """Return what the library says of an argument as it is written at a shell: `none`, and options with dashes."""
    for name in options:
        message = message.replace(f"{name}=", f"--{name.replace('_', '-')} ")
    return re.sub(r"\bNone\b", "none", message)


@contextmanager
def answering(deed: str) -> Iterator[None]:
    """Run the block that prints what was done; if printing fails, raise an error which says that `deed` was done."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(
            "input-output",
            f"{deed}; only the answer could not be printed: {error.strerror or error}.",
            "It need not be done again.",
        ) from None


def report(error: BaseException, invocation: Invocation, arguments: list[str]) -> int:
    """Print an error on stderr, as text or as JSON, and return its exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        # Otherwise Python would flush the unwritten bytes again at exit, fail, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError) and not isinstance(error, TailraceError):
        # The reader closed the pipe, which is not a failure.
        return BROKEN_PIPE
    code, message, hint = _describe(error, invocation)
    # A command adds what it had done before with add_note(); a wrong argument means that nothing was done.
    notes = () if code == "usage" else getattr(error, "__notes__", ())
    lines = [line for text in (hint, *notes) for line in invocation.whole(text).split("\n") if line]
    if _wants_json(invocation, arguments):
        import json

        print_line(json.dumps({"error": {"code": code, "message": message, "hint": "\n".join(lines)}}))
    else:
        from tailrace.cli.quoting import printable

        for line in (f"tailrace: {message}", *lines):
            print_line(printable(line))
    if code == "internal" and invocation.verbose:
        import traceback

        print_line("".join(traceback.format_exception(error)).rstrip())
    return EXIT_CODES.get(code, FAILED)


def _describe(error: BaseException, invocation: Invocation) -> tuple[str, str, str]:
    """Return the code, the message and the hint of an error."""
    if isinstance(error, TailraceError):
        own = error.hint if "hint" in vars(error) else HINTS.get(error.code, error.hint)
        if isinstance(error, CorruptionError) and error.repaired:
            topic = "TOPIC" if error.topic is None else quote(error.topic)
            own = (
                "A repair has given these records up, and every other one can be read; "
                f"read on after them with: tailrace read {topic} --on-damage skip"
            )
        if _is_forbidden(error):
            safe = "Nothing was changed"
            if isinstance(error, StorageError):
                safe = "What was acknowledged before is unharmed"
            ask = f"{safe}; ask for the right to it, or act as the user whom the files belong to."
            has_own = isinstance(error, StorageError) and "hint" in vars(error)
            return "not-allowed", str(error), own if has_own else ask
        return error.code, str(error), own
    if isinstance(error, CommandError):
        return error.code, error.message, error.hint
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "Interrupted.", error.hint if isinstance(error, Interrupted) else ""
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        # click lists choices on several lines.
        message = re.sub(r"\s*\n\s*", " ", error.format_message())
        return "usage", message, f"Run: {context.command_path if context else invocation.command} --help"
    if isinstance(error, OSError):
        return _describe_os_error(error)
    return "internal", f"{type(error).__name__}: {error}", "This is a fault of Tailrace; -v shows where it happened."


def _is_forbidden(error: TailraceError) -> bool:
    """Return whether a permission is missing, so that checking the disk would not help."""
    cause = error if isinstance(error, StorageError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in (EACCES, EPERM) and not isinstance(error, DurabilityError)


def _describe_os_error(error: OSError) -> tuple[str, str, str]:
    reason = error.strerror or str(error)
    message = f"{error.filename}: {reason}." if error.filename else f"{reason}."
    if isinstance(error, FileNotFoundError):
        return "not-found", message, "Name a file that exists."
    if isinstance(error, PermissionError):
        return "not-allowed", message, "Ask for the right to it, or name another path."
    return "input-output", message, "Look at the disk and the path, then try again."


def _wants_json(invocation: Invocation, arguments: list[str]) -> bool:
    """Return whether errors are printed as JSON; a wrong option may be found before `-o` was parsed."""
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
