"""`tailrace stats`: the log in numbers."""

from __future__ import annotations

import sys
from time import sleep
from typing import Any

import click

from .commands import command as make_command
from .failure import Interrupted
from .invocation import Invocation
from .output import csv_text, flatten, plain_cell, to_json, write, write_object


@make_command("stats")
@click.option("--watch", is_flag=True, help="Show them again and again, until Ctrl-C.")
@click.option(
    "--every", type=click.FloatRange(0.05), default=1.0, show_default=True, metavar="S", help="Seconds between."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="With --watch: end after so many times.")
@click.pass_obj
def command(invocation: Invocation, watch: bool, every: float, limit: int | None) -> None:
    """Show the log in numbers.

    Counts, bytes, rates, syncs and latencies (in microseconds) over all processes.
    """
    if limit is not None and not watch:
        raise click.UsageError("--limit goes with --watch.")
    with invocation.open("read") as log:
        if not watch:
            write_object(invocation, log.stats().to_json())
            return
        try:
            shown = 0
            while True:
                _show(invocation, log.stats().to_json(), first=shown == 0)
                shown += 1
                if shown == limit:
                    return
                sleep(every)
        except KeyboardInterrupt:
            raise Interrupted("") from None


def _show(invocation: Invocation, fields: dict[str, Any], *, first: bool) -> None:
    """A picture in place on a terminal, a line each time for programs."""
    layout = invocation.format()
    if layout == "table":
        if sys.stdout.isatty():
            write("\x1b[H\x1b[2J")
        write_object(invocation, fields)
    elif layout in ("json", "jsonl"):
        write(to_json(fields) + "\n")
    else:
        flat = flatten(fields)
        if layout == "csv" and first:
            write(csv_text([flat]))
        cells = [plain_cell(value) for value in flat.values()]
        write(csv_text([cells]) if layout == "csv" else "\t".join(cells) + "\n")
    sys.stdout.flush()
    sys.stdout.buffer.flush()
