"""`tailrace read`: the records of a topic, in many forms."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .arguments import complete_topics, parse_duration, parse_last, parse_partitions, parse_place
from .commands import command as make_command
from .failure import CommandError, Interrupted
from .interrupt import Hold
from .invocation import Invocation
from .output import write
from .rendering import ArrowRenderer, PlainRenderer, Renderer, make_renderer, render_values

if TYPE_CHECKING:
    from tailrace import Record, Scan, Topic

# Small enough for the first record to come at once, large enough for a batch to cost little.
_BATCH_RECORDS_MAX = 8_192


class Filter(NamedTuple):
    """Which of the records that were read are printed."""

    key: bytes | None
    pattern: re.Pattern[bytes] | None

    @property
    def active(self) -> bool:
        return self.key is not None or self.pattern is not None

    def apply(self, records: Sequence[Record]) -> Sequence[Record]:
        if self.key is not None:
            records = [record for record in records if record.key == self.key]
        if self.pattern is not None:
            search = self.pattern.search
            records = [record for record in records if record.value is not None and search(record.value)]
        return records


def record_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `read` and `tail` share."""
    for option in reversed(
        (
            click.option("-p", "--partition", "partitions", metavar="N,..", help="Only these partitions."),
            click.option("-k", "--key", metavar="KEY", help="Only records with this key."),
            click.option("--grep", metavar="RE", help="Only records whose value matches a regular expression."),
            click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after printing so many records."),
            click.option("--timeout", metavar="D", help="With -f: end after so long without a record (30s, 5m)."),
            click.option(
                "--order",
                type=click.Choice(["time", "offset"]),
                default="time",
                show_default=True,
                help="Merge partitions by time, or one after the other.",
            ),
            click.option("-F", "--format", "form", metavar="FMT", help="Print as FMT says: '%t[%p]@%o %d %k %v\\n'."),
            click.option("--fail-empty", is_flag=True, help="Exit with 9 when nothing was printed."),
        )
    ):
        function = option(function)
    return function


@make_command("read", times=True)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("start", default="earliest")
@click.option("--stop", metavar="S", help="Where to end, in the grammar of START; this place is not read.")
@click.option("-n", "--last", metavar="N|D", help="Only the newest N records, or those of the last D (1h).")
@click.option("-f", "--follow", is_flag=True, help="Wait for new records.")
@click.option("--reverse", is_flag=True, help="Newest first.")
@click.option("--count", is_flag=True, help="Print only how many records there are.")
@record_options
@click.pass_obj
def command(invocation: Invocation, /, topic: str, **options: Any) -> None:
    """Read the records of a topic.

    START is earliest, latest, an offset, offsets by partition (0:17,1:20), a time (2026-11-15T20:00Z) or how long ago
    (-10m). A terminal gets a line a record; a pipe gets each value and a line feed.
    """
    run(invocation, topic, options)


def run(invocation: Invocation, name: str, options: dict[str, Any]) -> None:
    """Read as the options say; `tail` comes here as well."""
    chosen = _filter(options)
    arrow = invocation.format(arrow=True) == "arrow"
    if arrow and (chosen.active or options["form"] is not None):
        raise click.UsageError("-o arrow writes whole batches: leave out -k, --grep and -F.")
    renderer = None if arrow or options["count"] else make_renderer(invocation, options["form"])
    with invocation.open("read") as log:
        topic = log.topic(name)
        scan = _scan(topic, options, chosen)
        if options["count"]:
            printed = _count(scan, chosen, options["limit"])
            write(f"{printed}\n")
        else:
            # A follower waits for its topic, whose schema is then read from none of its records.
            renderer = renderer or ArrowRenderer(topic.read(follow=options["follow"], limit=0))
            printed = _print(topic, scan, renderer, chosen, options)
    if options["fail_empty"] and not printed:
        raise CommandError("nothing-matched", "Nothing matched.", "The topic was read to its end without a match.")


def _filter(options: dict[str, Any]) -> Filter:
    pattern = None
    if options["grep"] is not None:
        try:
            pattern = re.compile(os.fsencode(options["grep"]))
        except re.error as error:
            raise click.UsageError(f"--grep {options['grep']!r} is not a regular expression: {error}.") from None
    return Filter(None if options["key"] is None else os.fsencode(options["key"]), pattern)


def _scan(topic: Topic, options: dict[str, Any], chosen: Filter) -> Scan:
    if options["timeout"] is not None and not options["follow"]:
        raise click.UsageError("--timeout goes with -f.")
    if options["last"] is not None and options["start"] != "earliest":
        raise click.UsageError("Give START or -n, not both.")
    if options["reverse"] and options["follow"]:
        raise click.UsageError("--reverse and -f exclude each other: there is no newest record to begin at.")
    return topic.read(
        parse_place(options["start"]),
        None if options["stop"] is None else parse_place(options["stop"]),
        last=None if options["last"] is None else parse_last(options["last"]),
        # A filter is applied here, so that the limit must be, too.
        limit=None if chosen.active else options["limit"],
        partition=None if options["partitions"] is None else parse_partitions(options["partitions"]),
        follow=options["follow"],
        timeout=None if options["timeout"] is None else parse_duration(options["timeout"]),
        order=options["order"],
        reverse=options["reverse"],
    )


def _count(scan: Scan, chosen: Filter, limit: int | None) -> int:
    if not chosen.active:
        return scan.count()
    count = 0
    for batch in scan.batches(_BATCH_RECORDS_MAX):
        count += len(chosen.apply(batch))
        if limit is not None and count >= limit:
            return limit
    return count


def _print(topic: Topic, scan: Scan, renderer: Renderer, chosen: Filter, options: dict[str, Any]) -> int:
    output = sys.stdout.buffer
    limit = options["limit"] if chosen.active else None
    values_only = isinstance(renderer, PlainRenderer) and not chosen.active
    printed = 0
    # Where to go on; None until something was printed, which means from the start.
    positions: dict[tuple[str, int], int] | None = None
    output.write(renderer.begin())
    try:
        for batch in scan.batches(_BATCH_RECORDS_MAX):
            with Hold():
                records = chosen.apply(batch)
                if limit is not None:
                    records = records[: limit - printed]
                output.write(render_values(batch.values()) if values_only else renderer.render(records))
                # Bytes must not wait in a buffer while the scan waits for records.
                output.flush()
                printed += len(records)
                positions = dict(scan.positions)
            if limit is not None and printed >= limit:
                break
    except KeyboardInterrupt:
        output.write(renderer.end())
        raise Interrupted(_resume(topic, positions, options)) from None
    except Exception as error:
        if not isinstance(error, BrokenPipeError):
            output.write(renderer.end())
        raise
    output.write(renderer.end())
    return printed


def _resume(topic: Topic, positions: dict[tuple[str, int], int] | None, options: dict[str, Any]) -> str:
    if options["reverse"]:
        return "A reading in reverse does not resume; read again with --stop."
    rest = f" -p {options['partitions']}" if options["partitions"] else ""
    rest += " -f" if options["follow"] else ""
    if not positions:
        return f"Nothing was printed; go on with: tailrace read {quote(topic.name)} {options['start']}{rest}"
    offsets = {partition: offset for (_, partition), offset in sorted(positions.items())}
    if list(offsets) == [0] and topic.partitions == 1:
        place = str(offsets[0])
    else:
        place = ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())
    return f"Go on with: tailrace read {quote(topic.name)} {place}{rest}"
