"""`--watch`: its options, and the loop that shows an answer repeatedly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import sleep
from typing import Any

import click

from tailrace.cli.ending import Interrupted

_EVERY_SECONDS = 1.0
_EVERY_SECONDS_MIN, _EVERY_SECONDS_MAX = 0.05, 86_400


def watch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of --watch to a command."""
    for option in reversed(
        (
            click.option("--watch", is_flag=True, help="Show it repeatedly, until Ctrl-C."),
            click.option("--every", type=float, metavar="S", help="With --watch: seconds between.  [default: 1]"),
            click.option("--limit", type=click.IntRange(1), metavar="N", help="With --watch: end after N times."),
        )
    ):
        function = option(function)
    return function


def check_watch(*, watch: bool, every: float | None, limit: int | None) -> None:
    """Raise UsageError for options that need --watch, and for an interval out of range."""
    for name, value in (("--limit", limit), ("--every", every)):
        if value is not None and not watch:
            raise click.UsageError(f"{name} goes with --watch.")
    if every is not None and not _EVERY_SECONDS_MIN <= every <= _EVERY_SECONDS_MAX:
        raise click.UsageError(
            f"--every {every} is out of range: write seconds from {_EVERY_SECONDS_MIN} to {_EVERY_SECONDS_MAX}."
        )


def repeat(every: float | None, limit: int | None, show: Callable[[bool], None]) -> None:
    """Call `show` repeatedly, with True the first time, until `limit` or Ctrl-C."""
    try:
        shown = 0
        while True:
            show(shown == 0)
            sys.stdout.flush()
            sys.stdout.buffer.flush()
            shown += 1
            if shown == limit:
                return
            sleep(every or _EVERY_SECONDS)
    except KeyboardInterrupt:
        raise Interrupted("") from None
