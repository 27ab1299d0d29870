"""`tailrace version`: print the installed version."""

from __future__ import annotations

import sys

import click

from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import write, write_object


@make_command("version")
@click.pass_obj
def command(invocation: Invocation) -> None:
    """Print the version.

    -o json adds the Python it runs on.
    """
    if invocation.format() in ("table", "plain"):
        write(f"tailrace {installed()}\n")
        return
    write_object(invocation, {"tailrace": installed(), "python": sys.version.split()[0], "platform": sys.platform})


def installed() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import version

    return version("tailrace")
