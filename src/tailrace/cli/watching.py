"""Showing something again and again: the options of `--watch`, and its loop."""

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
    """The options of a command that can show its answer again and again."""
    for option in reversed(
        (
            click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C."),
            click.option("--every", type=float, metavar="S", help="With --watch: seconds between.  [default: 1]"),
            click.option("--limit", type=click.IntRange(1), metavar="N", help="With --watch: end after so many times."),
        )
    ):
        function = option(function)
    return function


def check_watch(*, watch: bool, every: float | None, limit: int | None) -> None:
    """Refuse options that only a watch has, and a rhythm that nobody could mean."""
    for name, value in (("--limit", limit), ("--every", every)):
        if value is not None and not watch:
            raise click.UsageError(f"{name} goes with --watch.")
    if every is not None and not _EVERY_SECONDS_MIN <= every <= _EVERY_SECONDS_MAX:
        raise click.UsageError(
            f"--every {every} is out of range: write seconds from {_EVERY_SECONDS_MIN} to {_EVERY_SECONDS_MAX}."
        )


def repeat(every: float | None, limit: int | None, show: Callable[[bool], None]) -> None:
    """Call `show` again and again, with whether it is the first time; Ctrl-C is the end of it."""
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
