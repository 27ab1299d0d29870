"""`tailrace read`: print the records of a topic."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tailrace.cli.arguments import check_places, is_pattern, parse_duration, parse_last, parse_partitions
from tailrace.cli.candidates import complete_groups, complete_topics
from tailrace.cli.delivery import deliver, refuse_for_group
from tailrace.cli.ending import CommandError, Interrupted
from tailrace.cli.errors import wrong_arguments
from tailrace.cli.grouping import command as make_command
from tailrace.cli.interrupt import Hold, ended_by_departure
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import write
from tailrace.cli.positions import check_matching, format_positions, own_offsets, parse_places
from tailrace.cli.prompts import counted
from tailrace.cli.rendering import ArrowRenderer, PlainRenderer, Renderer, make_renderer, render_values
from tailrace.cli.resume import go_on

if TYPE_CHECKING:
    from tailrace import Log, Record, Scan, Topic

# Small enough for the first record to appear at once, large enough to amortize the cost of a batch.
_BATCH_RECORDS_MAX = 8_192


class Filter(NamedTuple):
    """A filter on the records to print."""

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
    """Add the options that `read` and `tail` share to a command."""
    for option in reversed(
        (
            click.option("-p", "--partition", "partitions", metavar="N,..", help="Only these partitions."),
            click.option("-k", "--key", metavar="KEY", help="Only records with this key."),
            click.option("--grep", metavar="RE", help="Only records whose value matches a regular expression."),
            click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after printing N records."),
            click.option("--timeout", metavar="D", help="With -f: end after D without a record (30s, 5m)."),
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
@click.option("--group", metavar="NAME", shell_complete=complete_groups, help="Print what this group has not read yet.")
@click.option(
    "--on-lost",
    type=click.Choice(["error", "earliest", "latest"]),
    help="With --group: where to continue when unread records were removed.  [default: error]",
)
@click.option(
    "--max-processing",
    metavar="D",
    help="With --group: lose its partitions when the output is not taken for this long, or none.  [default: 5m]",
)
@click.option(
    "--on-damage",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="Stop at damaged or lost records, or read on after them and exit with 5.",
)
@record_options
@click.pass_obj
def command(invocation: Invocation, /, topic: str, **options: Any) -> None:
    """Read the records of a topic.

    TOPIC may be a pattern, 'sensors.*' or 'sensors...': every topic that matches is read. START is earliest, latest,
    active (the segment that is being written), an offset, offsets by partition (0:17,1:20), a time
    (2026-11-15T20:00Z), a date (its midnight in UTC) or how long ago (-10m). A terminal gets one line per record; a
    pipe gets each value and a line feed.
    """
    run(invocation, topic, options)


def run(invocation: Invocation, name: str, options: dict[str, Any]) -> None:
    """Read as the options say; called by `tail` as well."""
    chosen = _filter(options)
    places = _places(options)
    refuse_for_group(options)
    _refuse_contradictions(invocation, options, chosen)
    grouped = options.get("group") is not None
    arrow = invocation.format(arrow=True) == "arrow"
    renderer = None if arrow or options["count"] else make_renderer(invocation, options["form"])
    with invocation.open("change" if grouped else "read") as log:
        topic = log.topic(name)
        check = _Check(log, topic, places)
        if not options["follow"] or _is_there(invocation, log, topic):
            check()
        scan = None if grouped else _scan(topic, options, places, chosen)
        try:
            if scan is not None and options["count"]:
                printed = _count(scan, chosen, options["limit"])
                write(f"{printed}\n")
            else:
                # A follower waits for its topic to exist; limit=0 gives the schema without reading a record.
                renderer = renderer or ArrowRenderer(topic.read(follow=options["follow"], limit=0))
                if scan is not None:
                    with ended_by_departure() if options["follow"] else nullcontext():
                        printed = _print(invocation, topic, scan, renderer, chosen, options)
                else:
                    printed = deliver(invocation, log, topic, places, renderer, chosen, options)
        except ValueError:
            # If the topic was created or extended meanwhile, the arguments may be the cause after all.
            check()
            raise
    if scan is not None and scan.skipped:
        raise _skipped(invocation, scan)
    if options["fail_empty"] and not printed:
        raise CommandError("nothing-matched", "Nothing matched.", "The topic was read to its end without a match.")


def _skipped(invocation: Invocation, scan: Scan) -> CommandError:
    """Print a note for each range that was skipped, and return the error that ends the command."""
    for damage in scan.skipped:
        invocation.note(
            f"Left out: {damage.topic}[{damage.partition}] offsets {damage.first} to {damage.last}: {damage.reason}."
        )
    damaged = sum(not damage.repaired for damage in scan.skipped)
    lost = len(scan.skipped) - damaged
    counts = [counted(count, noun) for count, noun in ((damaged, "damaged range"), (lost, "lost range")) if count]
    hint = "Every other record was read; "
    hint += "see what can be done with: tailrace repair --dry-run" if damaged else (
        "a repair has given these up, and there is nothing left to repair."
    )  # fmt: skip
    return CommandError("damage-found", f"{' and '.join(counts)} left out.", hint)


class ReadBounds(NamedTuple):
    """The range to read, as the library takes it."""

    start: Any
    stop: Any
    last: int | str | None
    partitions: list[int] | None
    timeout: float | None


class _Check(NamedTuple):
    """A check that a topic, or each that a pattern matches, has the partitions and offsets that were given."""

    log: Log
    topic: Topic
    places: ReadBounds

    def __call__(self) -> None:
        named = {"START": self.places.start, "--stop": self.places.stop}
        if not is_pattern(self.topic.name):
            own = {what: own_offsets(place, self.topic.name) for what, place in named.items()}
            check_places(self.topic, own, self.places.partitions)
        elif self.places.partitions is not None or any(isinstance(place, (int, dict)) for place in named.values()):
            infos = self.log.topics(self.topic.name)
            check_matching(self.topic.name, infos, named, self.places.partitions)


def _places(options: dict[str, Any]) -> ReadBounds:
    given = {name: options[name] for name in ("stop", "last", "partitions", "timeout")}
    return ReadBounds(
        parse_places(options["start"]),
        None if given["stop"] is None else parse_places(given["stop"], "--stop"),
        None if given["last"] is None else parse_last(given["last"]),
        None if given["partitions"] is None else parse_partitions(given["partitions"]),
        None if given["timeout"] is None else parse_duration(given["timeout"], "--timeout"),
    )


def _refuse_contradictions(invocation: Invocation, options: dict[str, Any], chosen: Filter) -> None:
    """Raise UsageError for options of which one would be ignored."""
    arrow = invocation.output == "arrow"
    if arrow and (chosen.active or options["form"] is not None):
        raise click.UsageError("-o arrow writes whole batches: leave out -k, --grep and -F.")
    if options["count"] and (arrow or options["form"] is not None):
        raise click.UsageError("--count prints a number: leave out -F and -o arrow.")
    bounds = [options[name] for name in ("limit", "timeout", "stop")]
    if options["count"] and options["follow"] and all(bound is None for bound in bounds):
        raise click.UsageError("--count of a follower never ends: add --limit, --timeout or --stop, or leave out -f.")
    if options["timeout"] is not None and not options["follow"]:
        raise click.UsageError("--timeout goes with -f.")
    if options["last"] is not None and options["start"] != "earliest":
        raise click.UsageError("Give START or -n, not both.")
    if options["on_damage"] == "skip" and options.get("group") is not None:
        raise click.UsageError("--on-damage skip is not for a group: move it on with tailrace group reset.")
    if options["reverse"] and options["follow"]:
        raise click.UsageError("--reverse and -f exclude each other: there is no newest record to begin at.")


def _is_there(invocation: Invocation, log: Log, topic: Topic) -> bool:
    """Return whether a topic to follow exists; if not, print that the command waits for it."""
    from tailrace.errors import TopicNotFoundError

    if is_pattern(topic.name):
        if not log.topics(topic.name):
            invocation.note(f"Waiting for a topic that matches {topic.name!r}; Ctrl-C ends.")
        return True
    try:
        topic.offsets()
    except TopicNotFoundError as error:
        question = f", did you mean {error.suggestion!r}?" if error.suggestion else "; Ctrl-C ends."
        invocation.note(f"Waiting for topic {topic.name!r}{question}")
        return False
    return True


def _filter(options: dict[str, Any]) -> Filter:
    pattern = None
    if options["grep"] is not None:
        try:
            pattern = re.compile(os.fsencode(options["grep"]))
        except re.error as error:
            raise click.UsageError(f"--grep {options['grep']!r} is not a regular expression: {error}.") from None
    return Filter(None if options["key"] is None else os.fsencode(options["key"]), pattern)


def _scan(topic: Topic, options: dict[str, Any], places: ReadBounds, chosen: Filter) -> Scan:
    with wrong_arguments():
        return topic.read(
            places.start,
            places.stop,
            last=places.last,
            # A filter is applied here, so the limit must be applied here, too.
            limit=None if chosen.active else options["limit"],
            partition=places.partitions,
            follow=options["follow"],
            timeout=places.timeout,
            order=options["order"],
            reverse=options["reverse"],
            on_damage=options["on_damage"],
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


def _print(
    invocation: Invocation, topic: Topic, scan: Scan, renderer: Renderer, chosen: Filter, options: dict[str, Any]
) -> int:
    output = sys.stdout.buffer
    limit = options["limit"] if chosen.active else None
    values_only = isinstance(renderer, PlainRenderer) and not chosen.active
    printed = 0
    # Where to continue; None until something was printed, which means from the start.
    positions: dict[tuple[str, int], int] | None = None
    output.write(renderer.begin())
    try:
        for batch in scan.batches(_BATCH_RECORDS_MAX):
            with Hold():
                records = chosen.apply(batch)
                if limit is not None:
                    records = records[: limit - printed]
                output.write(render_values(batch.values()) if values_only else renderer.render(records))
                # Bytes must not stay in a buffer while the scan waits for records.
                output.flush()
                printed += len(records)
                positions = dict(scan.positions)
            if limit is not None and printed >= limit:
                break
    except KeyboardInterrupt:
        output.write(renderer.end())
        raise Interrupted(_resume(invocation, topic, positions, printed, options)) from None
    except Exception as error:
        if not isinstance(error, BrokenPipeError):
            output.write(renderer.end())
        raise
    output.write(renderer.end())
    return printed


def _resume(
    invocation: Invocation,
    topic: Topic,
    positions: dict[tuple[str, int], int] | None,
    printed: int,
    options: dict[str, Any],
) -> str:
    """Return what was printed and the command that prints the rest."""
    name = invocation.command.rpartition(" ")[2]
    given = [("-p", options["partitions"]), ("-k", options["key"]), ("--grep", options["grep"])]
    if not positions:
        # The same command again: a tail starts at the current end each time.
        start = [options["start"]] if name == "read" and options["start"] != "earliest" else []
        given += [("--stop", options["stop"]), ("-n", options["last"]), ("--limit", options["limit"])]
        following = options["follow"] and name == "read"
    else:
        if options["reverse"] and options["last"] is not None:
            return "A reading of the newest in reverse does not resume; read again with a smaller -n."
        name = "read"
        place = _place(topic, positions, whole=options["reverse"])
        if place is None:
            return f"The places in {len(positions)} partitions are too many for a command that continues."
        start = [options["start"] if options["reverse"] else place]
        left = None if options["limit"] is None else options["limit"] - printed
        if left == 0:
            return "Everything was printed."
        given += [("--stop", place if options["reverse"] else options["stop"]), ("--limit", left)]
        following = options["follow"]
    given += [("--timeout", options["timeout"]), ("-F", options["form"])]
    given += [("--order", options["order"])] if options["order"] != "time" else []
    given += [("--on-damage", "skip")] if options["on_damage"] == "skip" else []
    words = [str(word) for option in given if option[1] is not None for word in option]
    flags = [("-f", following), ("--reverse", options["reverse"]), ("--fail-empty", options["fail_empty"])]
    words += [flag for flag, active in flags if active]
    line = go_on(invocation, name, [topic.name, *start], words)
    return line if positions else f"Nothing was printed.\n{line}"


def _place(topic: Topic, positions: dict[tuple[str, int], int], *, whole: bool) -> str | None:
    if is_pattern(topic.name):
        return format_positions(positions, whole=whole)
    offsets = {partition: offset for (_, partition), offset in sorted(positions.items())}
    if list(offsets) == [0] and topic.partitions == 1:
        return str(offsets[0])
    return ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())
