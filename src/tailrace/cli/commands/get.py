"""`tailrace get`: one record."""

from __future__ import annotations

import sys

import click

from tailrace.cli.arguments import OFFSET_MAX, check_partition
from tailrace.cli.candidates import complete_topics
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import display_width, write, write_object
from tailrace.cli.quoting import printable
from tailrace.cli.rendering import ArrowRenderer, make_renderer, record_object


@make_command("get")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("offset", type=click.IntRange(0, OFFSET_MAX))
@click.option("-p", "--partition", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Partition.")
@click.option("-F", "--format", "form", metavar="FMT", help="Print as FMT says: '%t[%p]@%o %d %k %v\\n'.")
@click.pass_obj
def command(invocation: Invocation, topic: str, offset: int, partition: int, form: str | None) -> None:
    """Print one record.

    A terminal gets every field; a pipe gets the value and a line feed; -o json gets one object.
    """
    layout = invocation.format(arrow=True)
    with invocation.open("read") as log:
        target = log.topic(topic)
        check_partition(topic, partition, target.partitions)
        record = target.get(offset, partition)
        if layout == "arrow":
            arrow = ArrowRenderer(target.read(limit=0))
            scan = target.read({partition: offset}, {partition: offset + 1}, partition=partition)
            parts = [arrow.begin(), *map(arrow.render, scan.batches()), arrow.end()]
            sys.stdout.buffer.write(b"".join(parts))
            return
    if form is not None or layout in ("plain", "csv", "jsonl"):
        renderer = make_renderer(invocation, form)
        sys.stdout.buffer.write(renderer.begin() + renderer.render([record]) + renderer.end())
    elif layout == "json":
        write_object(invocation, record_object(record))
    else:
        fields = record_object(record)
        lines = [
            *((name, printable(str(fields[name]))) for name in ("topic", "partition", "offset", "timestamp")),
            ("key", "-" if record.key is None else printable(record.key)),
            *((f"header {printable(name)}", printable(data)) for name, data in record.headers.multi_items()),
            ("value", "(tombstone)" if record.value is None else printable(record.value)),
        ]
        widest = max(display_width(name) for name, _ in lines)
        write("".join(f"{name}{' ' * (widest - display_width(name))}  {text}\n" for name, text in lines))
