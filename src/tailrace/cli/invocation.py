"""One call of the command line: what the global options say, and the log they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from tailrace import Log
    from tailrace.errors import NotALogError

Intent = Literal["read", "change", "create"]

_NAMESPACE = "TAILRACE_NAMESPACE"
_JOURNAL = "TAILRACE_JOURNAL_BYTES"
_IDENTITY = "tailrace.json"
OUTPUTS = ("auto", "table", "json", "jsonl", "csv", "arrow")


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
        # The command that runs, as it is typed: "tailrace topic trim".
        self.command = "tailrace"

    @property
    def space(self) -> str:
        """The namespace to work in, "" for the log itself; an empty -N overrides the environment."""
        return os.environ.get(_NAMESPACE, "") if self.namespace is None else self.namespace

    def open(self, intent: Intent, *, space: str | None = None) -> Log:
        """The log that was named; only "create" makes one that is not there. `space` overrides the namespace."""
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
            raise _explained(error, location, namespace) from None
        except ValueError as error:
            # The one argument of opening that comes from the environment.
            if _JOURNAL not in str(error):
                raise
            raise click.UsageError(str(error)) from None

    @contextmanager
    def located(self) -> Iterator[tuple[str, str]]:
        """The directory that was named and the namespace in it, "" for none, for a log that may not open."""
        location = self.log or os.environ.get("TAILRACE_LOG")
        if not location:
            raise click.UsageError("No log was named: add -L PATH, or set TAILRACE_LOG.")
        self.detail(f"log {location}" + (f", namespace {self.space}" if self.space else ""))
        with _namespace_hidden():
            yield location, self.space

    def inner(self, log: Log, name: str) -> Log:
        """A namespace of an open log, for reading."""
        import tailrace

        try:
            return log.namespace(name)
        except tailrace.errors.RecoveryNeededError:
            self.note(f"The namespace {name!r} was not closed cleanly: recovering it first.")
            with _namespace_hidden(), tailrace.open(log.location, "a") as outer:
                outer.namespace(name).close()
            return log.namespace(name)
        except tailrace.errors.NotALogError as error:
            raise _explained(error, log.location, name) from None

    def _open(self, location: str, intent: Intent, namespace: str | None) -> Log:
        import tailrace

        if intent != "create":
            try:
                log = tailrace.open(location, "r", namespace=namespace)
            except tailrace.errors.RecoveryNeededError:
                # There is a log, so that opening it for writing creates nothing and recovers it.
                self.note("The log was not closed cleanly: recovering it first.")
            else:
                if intent == "read":
                    return log
                log.close()
        return tailrace.open(location, "a", namespace=namespace)

    def format(self, *, arrow: bool = False) -> str:
        """The format of the output: `auto` is "table" on a terminal and "plain" in a pipe."""
        if self.output == "arrow" and not arrow:
            raise click.UsageError("-o arrow is for records: use it with read, tail or get.")
        if self.output == "auto":
            return "table" if sys.stdout.isatty() else "plain"
        return self.output

    @property
    def color(self) -> bool:
        """Whether the output may have colours."""
        return not self.no_color and not os.environ.get("NO_COLOR") and sys.stdout.isatty()

    def note(self, text: str) -> None:
        """A sentence beside the data, on stderr."""
        if not self.quiet:
            tell(text)

    def detail(self, text: str) -> None:
        """A note for those who ask for more."""
        if self.verbose:
            self.note(text)


@contextmanager
def _namespace_hidden() -> Iterator[None]:
    """Inside, the environment names no namespace: the library reads it as well, where "none" cannot override it."""
    hidden = os.environ.pop(_NAMESPACE, None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ[_NAMESPACE] = hidden


def tell(text: str) -> None:
    """A line on stderr; a stderr that takes nothing must not change what the command does, nor its exit code."""
    try:
        click.echo(text, err=True)
    except OSError:
        # What could not be written would be tried again at exit, and fail there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _explained(error: NotALogError, location: str, namespace: str) -> Exception:
    """The error for a log that is not there, in the words of the command line."""
    from .ending import CommandError

    named = error.message.partition(_IDENTITY)[0] + _IDENTITY
    if os.path.isfile(named):
        # It is a log, and what says so is damaged.
        return CommandError("corruption", error.message, error.hint)
    if namespace and os.path.isfile(os.path.join(location, _IDENTITY)):
        return CommandError(
            "not-found", error.message, "Nothing was created; list the namespaces with: tailrace namespace ls"
        )
    return error
