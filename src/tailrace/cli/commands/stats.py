"""`tailrace stats`: show the log in numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation, draws
from tailrace.cli.output import (
    csv_text,
    exact_cell,
    flatten,
    human_cell,
    human_size,
    plain_cell,
    to_json,
    write,
    write_object,
)
from tailrace.cli.watching import check_watch, repeat, watch_options

if TYPE_CHECKING:
    from tailrace import Log

_LATENCIES = ("samples", "p50", "p90", "p99", "max")


@make_command("stats")
@watch_options
@click.pass_obj
def command(invocation: Invocation, watch: bool, every: float | None, limit: int | None) -> None:
    """Show the log in numbers.

    Counts, bytes, rates, syncs and latencies (in microseconds) over all processes. Namespaces are counted, but not
    their contents: add -N NAME for one of them.
    """
    check_watch(watch=watch, every=every, limit=limit)
    with invocation.open("read") as log:
        if watch:
            repeat(every, limit, lambda first: _show(invocation, _fields(log), first=first))
        else:
            _show_once(invocation, _fields(log))


def _fields(log: Log) -> dict[str, Any]:
    return {**log.stats().to_json(), "namespaces": len(log.namespaces())}


def _show_once(invocation: Invocation, fields: dict[str, Any]) -> None:
    if invocation.format() == "table":
        write("".join(line + "\n" for line in _picture(invocation, fields)))
    else:
        write_object(invocation, fields)
        if warning := _warning(fields):
            sys.stdout.flush()
            invocation.note(warning)


def _show(invocation: Invocation, fields: dict[str, Any], *, first: bool) -> None:
    """Redraw on a terminal; for programs print one line each time."""
    layout = invocation.format()
    if layout == "table":
        if draws(sys.stdout):
            write("\x1b[H\x1b[2J")
        _show_once(invocation, fields)
    elif layout in ("json", "jsonl"):
        write(to_json(fields) + "\n")
    else:
        flat = flatten(fields)
        if layout == "csv":
            rows = [[exact_cell(value) for value in flat.values()]]
            write(csv_text([list(flat), *rows] if first else rows))
        else:
            heading = "\t".join(flat) + "\n" if first else ""
            write(heading + "\t".join(map(plain_cell, flat.values())) + "\n")


def _picture(invocation: Invocation, fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the numbers for people, as lines in sections."""

    def cell(name: str) -> str:
        return human_cell(name, fields[name])

    def heading(text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if invocation.color else text

    def row(name: str, text: str) -> str:
        return f"  {name:<12}{text}"

    yield heading("log")
    yield row("path", cell("path"))
    yield row("id", cell("id"))
    for name in ("topics", "partitions", "records"):
        yield row(name, cell(name))
    if fields["lost_records"]:
        yield row("lost", f"{cell('lost_records')}, given up by a repair")
    yield row("size", cell("bytes"))
    yield row("oldest", cell("oldest"))
    yield row("newest", cell("newest"))
    if fields["namespaces"]:
        yield row("namespaces", f"{cell('namespaces')}, not included")
    yield row("free", f"{cell('free_bytes')} of {cell('disk_bytes')}")
    if warning := _warning(fields):
        yield heading(invocation.whole(warning))
    yield heading("writing")
    yield row("processes", cell("processes"))
    yield row("appended", f"{cell('appended_records')} records, {cell('appended_bytes')}")
    yield row("rate", f"{cell('records_per_second')} records/s, {cell('bytes_per_second')}")
    yield row("syncs", cell("fsyncs"))
    yield heading(f"{'latency':<14}" + "".join(f"{name:>12}" for name in _LATENCIES))
    for title, name in (("append", "append_latency"), ("sync", "fsync_latency")):
        samples, *times = (fields[name][each] for each in _LATENCIES)
        # Without samples show "-": 0 us would read as a measurement.
        texts = [human_time(each) if samples else "-" for each in times]
        yield row(title, f"{samples:>12,}" + "".join(f"{text:>12}" for text in texts))
    yield heading("journal")
    journal = fields["journal"]
    yield row("files", f"{journal['files']:,}")
    yield row("size", human_size(journal["bytes"]))
    yield row("used", human_size(journal["used_bytes"]))


def _warning(fields: Mapping[str, Any]) -> str | None:
    """Return the warning about a nearly full disk, or None."""
    if not fields["nearly_full"]:
        return None
    free, disk = human_size(fields["free_bytes"]), human_size(fields["disk_bytes"])
    soon = f", full {_soon(fields['full_in'])} at this rate" if fields["full_in"] is not None else ""
    advice = "See what can go: tailrace vacuum --dry-run"
    return f"Warning: the disk is nearly full: {free} of {disk} are free{soon}. {advice}"


def _soon(seconds: float) -> str:
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            count = round(seconds / size)
            return f"in {count} {unit}" + ("" if count == 1 else "s")
    return "within a minute"


def human_time(microseconds: float) -> str:
    """Return a short time with three digits and a unit."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.0f} us"
