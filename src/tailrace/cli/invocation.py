"""One call of the command line: its global options, and the log they name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from tailrace.names import IDENTITY_NAME

if TYPE_CHECKING:
    from tailrace import Log
    from tailrace.errors import NotALogError

Intent = Literal["read", "change", "create"]

_NAMESPACE = "TAILRACE_NAMESPACE"
_JOURNAL = "TAILRACE_JOURNAL_BYTES"
# Commands in a sentence that apply to the current log, and the NAME in them that the given arguments may replace.
_COMMANDS = re.compile(r"\btailrace (read|topic|group|namespace|stats|doctor|verify|repair|vacuum|backup)\b")
_NAMES = re.compile(r"\btailrace (topic|group) (\w+) NAME\b")
OUTPUTS = ("auto", "table", "json", "jsonl", "csv", "arrow")


def draws(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that supports colours and cursor movement."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Invocation:
    """The global options of one call."""

    def __init__(self) -> None:
        self.log: str | None = None
        self.namespace: str | None = None
        self.output = "auto"
        self.quiet = False
        self.verbose = False
        self.no_color = False
        self.yes = False
        # The command that runs, as typed: "tailrace topic trim".
        self.command = "tailrace"
        # All arguments after the name of the program.
        self.arguments: list[str] = []
        # Its arguments and options by name.
        self.given: dict[str, Any] = {}

    @property
    def space(self) -> str:
        """The namespace to work in, "" for the log itself; an empty -N overrides the environment."""
        return os.environ.get(_NAMESPACE, "") if self.namespace is None else self.namespace

    def open(self, intent: Intent, *, space: str | None = None) -> Log:
        """Open the log that was named; only "create" makes a missing one. `space` overrides the namespace."""
        location = self.log or os.environ.get("TAILRACE_LOG")
        if not location:
            raise click.UsageError("No log was named: add -L PATH, or set TAILRACE_LOG.")
        namespace = self.space if space is None else space
        self.detail(f"log {location}" + (f", namespace {namespace}" if namespace else ""))
        from tailrace.errors import NotALogError

        try:
            with _namespace_hidden():
                return self._open(location, intent, namespace or None)
        except NotALogError as error:
            raise explained(error, location, namespace) from None
        except ValueError as error:
            # The only argument of opening that comes from the environment.
            if _JOURNAL not in str(error):
                raise
            raise click.UsageError(str(error)) from None

    @contextmanager
    def located(self) -> Iterator[tuple[str, str]]:
        """Yield the directory of the log and the namespace, "" for none, without opening it: it may not open."""
        location = self.log or os.environ.get("TAILRACE_LOG")
        if not location:
            raise click.UsageError("No log was named: add -L PATH, or set TAILRACE_LOG.")
        # Before the environment, which may name it, is hidden.
        namespace = self.space
        self.detail(f"log {location}" + (f", namespace {namespace}" if namespace else ""))
        with _namespace_hidden():
            yield location, namespace

    def inner(self, log: Log, name: str) -> Log:
        """Open a namespace of an open log for reading, recovering it first if needed."""
        import tailrace

        try:
            return log.namespace(name)
        except tailrace.errors.RecoveryNeededError:
            self.note(f"The namespace {name!r} was not closed cleanly: recovering it first.")
            with _namespace_hidden(), tailrace.open(log.location, "a") as outer:
                outer.namespace(name).close()
            return log.namespace(name)
        except tailrace.errors.NotALogError as error:
            raise explained(error, log.location, name) from None

    def _open(self, location: str, intent: Intent, namespace: str | None) -> Log:
        import tailrace

        if intent != "create":
            try:
                log = tailrace.open(location, "r", namespace=namespace)
            except tailrace.errors.RecoveryNeededError:
                # The log exists, so opening it for writing creates nothing and recovers it.
                self.note("The log was not closed cleanly: recovering it first.")
            else:
                if intent == "read":
                    return log
                log.close()
        return tailrace.open(location, "a", namespace=namespace)

    def naming(self, *, space: bool = True) -> list[str]:
        """Return the options that name the current log, as far as they were given: the environment names the rest."""
        given: list[str] = []
        if self.log is not None:
            given += ["-L", self.log]
        if self.namespace is not None and space:
            given += ["-N", self.namespace]
        return given

    def format(self, *, arrow: bool = False) -> str:
        """Return the output format; `auto` is "table" on a terminal and "plain" in a pipe."""
        if self.output == "arrow" and not arrow:
            raise click.UsageError("-o arrow is for records: use it with read, tail or get.")
        if self.output == "auto":
            return "table" if sys.stdout.isatty() else "plain"
        return self.output

    @property
    def color(self) -> bool:
        """Whether the output may have colours."""
        return not self.no_color and not os.environ.get("NO_COLOR") and draws(sys.stdout)

    def note(self, text: str) -> None:
        """Print a sentence on stderr, unless --quiet."""
        if not self.quiet:
            print_line(self.whole(text))

    def whole(self, text: str) -> str:
        """Return a text with every command in it ready to paste: with the log, namespace and name that were given."""

        from tailrace.cli.quoting import quote

        def named(found: re.Match[str]) -> str:
            kind = found[1]
            name = self.given.get("name" if self.command.startswith(f"tailrace {kind} ") else kind)
            # A name that starts with - would be taken for an option, so NAME stays a placeholder.
            known = isinstance(name, str) and name and not name.startswith("-")
            return f"tailrace {kind} {found[2]} {quote(str(name))}" if known else found[0]

        def placed(found: re.Match[str]) -> str:
            # The namespace commands work on the log itself, so -N is left out.
            words = self.naming(space=found[1] != "namespace")
            return " ".join(["tailrace", *map(quote, words), found[1]])

        lines = []
        for line in text.split("\n"):
            named_line = _NAMES.sub(named, line)
            # A command that already names its log is kept as it is, and --help needs none.
            known = " -L " in line or " -N " in line or line.endswith(" --help")
            lines.append(named_line if known else _COMMANDS.sub(placed, named_line))
        return "\n".join(lines)

    def detail(self, text: str) -> None:
        """Print a sentence on stderr if --verbose."""
        if self.verbose:
            self.note(text)


@contextmanager
def _namespace_hidden() -> Iterator[None]:
    """Unset the namespace in the environment during the block: the library reads it, and None cannot override it."""
    hidden = os.environ.pop(_NAMESPACE, None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ[_NAMESPACE] = hidden


def print_line(text: str) -> None:
    """Print a line on stderr; a failure to do so must not change what the command does, nor its exit code."""
    try:
        click.echo(text, err=True)
    except OSError:
        # Otherwise Python would try to write the unwritten bytes at exit, and fail there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def explained(error: NotALogError, location: str, namespace: str) -> Exception:
    """Return the error for a missing log in the terms of the command line."""
    from tailrace.cli.ending import CommandError

    named = error.message.partition(IDENTITY_NAME)[0] + IDENTITY_NAME
    if os.path.isfile(named):
        # The identity file exists, so this is a log whose identity is damaged.
        return CommandError("corruption", error.message, error.hint)
    if namespace and os.path.isfile(os.path.join(location, IDENTITY_NAME)):
        missing = f"{os.path.abspath(location)} has no namespace {namespace!r}."
        message = error.message if " namespace " in error.message else missing
        return CommandError(
            "not-found", message, "Nothing was created; list the namespaces with: tailrace namespace ls"
        )
    if not error.message.startswith("There is no log at"):
        return error
    if os.path.isfile(os.path.join(location, "backup.json")):
        from tailrace.cli.quoting import quote

        hint = f"Nothing was changed; make a log of it with: tailrace restore {quote(location)} TO"
        return CommandError(error.code, f"{os.path.abspath(location)} is a backup, not a log.", hint)
    return CommandError(error.code, f"{error.message.rstrip('.')}: it {_found(location)}.", error.hint)


def _found(location: str) -> str:
    """Return a description of what a location holds in place of a log."""
    if not os.path.isdir(location):
        return "is a file, not a directory" if os.path.exists(location) else "does not exist"
    try:
        names = sorted(os.listdir(location))
    except OSError as error:
        return f"cannot be listed: {error.strerror}"
    return f"holds {names[0]!r} and no {IDENTITY_NAME}" if names else "is an empty directory"
