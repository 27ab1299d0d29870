"""Confirmation before a destructive command."""

from __future__ import annotations

import sys

import click

from tailrace.cli.ending import CommandError
from tailrace.cli.invocation import Invocation


def confirm(invocation: Invocation, deed: str) -> None:
    """Ask whether to do `deed` ("drop 3 records"); --yes answers, and without a terminal raise an error."""
    if invocation.yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(
            "not-allowed",
            f"There is no terminal to ask whether to {deed}.",
            "Nothing was changed; add --yes to do it, or --dry-run to see what it would do.",
        )
    click.echo(f"{deed[0].upper()}{deed[1:]}? [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("declined", "Nothing was changed.", "Answer y, or add --yes.")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: 1 record, 2 records."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
