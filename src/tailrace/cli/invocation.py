"""One call of the command line: what the global options say, and the log they name."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from tailrace import Log

_NAMESPACE = "TAILRACE_NAMESPACE"
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

    def open(self, intent: Literal["read", "change", "create"], *, whole: bool = False) -> Log:
        """The log that was named; only "create" makes one that is not there. `whole` looks past the namespace."""
        location = self.log or os.environ.get("TAILRACE_LOG")
        if not location:
            raise click.UsageError("No log was named: add -L PATH, or set TAILRACE_LOG.")
        namespace = None if whole else self.namespace or os.environ.get(_NAMESPACE) or None
        self.detail(f"log {location}" + (f", namespace {namespace}" if namespace else ""))
        hidden = os.environ.pop(_NAMESPACE, None) if whole else None
        try:
            return self._open(location, intent, namespace)
        finally:
            if hidden is not None:
                os.environ[_NAMESPACE] = hidden

    def _open(self, location: str, intent: Literal["read", "change", "create"], namespace: str | None) -> Log:
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
            click.echo(text, err=True)

    def detail(self, text: str) -> None:
        """A note for those who ask for more."""
        if self.verbose:
            self.note(text)
