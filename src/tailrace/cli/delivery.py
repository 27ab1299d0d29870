"""Reading for a group: prints records, and commits those that the reader of stdout has taken."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, cast

import click

from tailrace.cli import MISSING
from tailrace.cli.arguments import is_duration, is_pattern, parse_duration
from tailrace.cli.ending import CommandError, Interrupted
from tailrace.cli.errors import wrong_arguments
from tailrace.cli.interrupt import Hold
from tailrace.cli.invocation import Invocation
from tailrace.cli.prompts import counted
from tailrace.cli.quoting import printable, quote
from tailrace.cli.rendering import ArrowRenderer, PlainRenderer, Renderer, render_values
from tailrace.cli.resume import go_on
from tailrace.errors import CorruptionError, GroupNotFoundError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from tailrace import Batch, Consumer, Log, Record, Topic
    from tailrace.cli.commands.read import Filter, ReadBounds

_BATCH_RECORDS_MAX = 8_192
# The first records are written to a pipe one by one, so that `| head` consumes from the group only what it shows.
EXACT_RECORDS_MAX = 256
# After a batch that the reader took longer to read, the next one is smaller, so that little is redelivered later.
_BATCH_SECONDS_MAX = 0.2
_BATCH_SECONDS_MIN = 0.05
_COMMIT_EVERY = "100ms"
# How often Ctrl-C is checked while there is nothing to print, and how long the reader of a pipe then gets to catch up.
_LOOK_SECONDS = 0.1
_TAKE_SECONDS_MAX = 0.5
_PAUSE_SECONDS_STEP, _PAUSE_SECONDS_MAX = 0.00005, 0.01
# After this time without a record a note says what the command waits for.
_SILENT_SECONDS_MAX = 2.0
_PLACES_SHOWN = 4

# Options that reading for a group implies or cannot support.
_REFUSED = {
    "reverse": "--reverse: a group reads on from its cursor",
    "last": "-n: a group reads on from its cursor, and START says where a new one begins",
    "stop": "--stop: it reads to the end; --limit ends it earlier",
    "count": "--count: tailrace group show has what is left to read",
    "partitions": "-p: the members of a group share its partitions",
}


def refuse_for_group(options: dict[str, Any]) -> None:
    """Raise UsageError for options that do not apply to reading for a group, or that apply only to it."""
    if options.get("group") is None:
        for name in ("on_lost", "max_processing"):
            if options.get(name) is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} goes with --group.")
        return
    for name, reason in _REFUSED.items():
        if options[name] not in (None, False):
            raise click.UsageError(f"--group does not go with {reason}.")
    source = click.get_current_context().get_parameter_source("order")
    if source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--group does not go with --order: its partitions are read in turns.")
    if options["start"].startswith("{"):
        raise click.UsageError("--group does not go with a START in JSON: write an offset, 0:17,1:20 or a time.")


def deliver(
    invocation: Invocation,
    log: Log,
    topic: Topic,
    places: ReadBounds,
    renderer: Renderer,
    chosen: Filter,
    options: dict[str, Any],
) -> int:
    """Print what a group has not read yet and where its cursor is; return the number of records printed."""
    _warn_of_start(invocation, log, topic, options)
    if isinstance(places.start, (int, dict)) and not is_pattern(topic.name):
        # An offset needs an existing topic, so this raises if there is none.
        topic.offsets()
    with wrong_arguments("max_processing"):
        consumer = log.consumer(
            topic.name,
            options["group"],
            start=places.start,
            stop=None if options["follow"] else "now",
            commit_every=_COMMIT_EVERY,
            on_lost=_on_lost(options),
            **_max_processing(options),
        )
    delivery = Delivery(invocation, consumer, renderer, chosen, options, places.timeout)
    try:
        # Closing the consumer commits its cursor, so Ctrl-C waits for it as well.
        with Hold() as hold, consumer:
            delivery.run(hold)
    except KeyboardInterrupt:
        lines = [_standing(log, topic, options["group"], delivery.printed), _resume(invocation, topic, delivery)]
        raise Interrupted("\n".join(line for line in lines if line)) from None
    finally:
        _report_lost(invocation, consumer)
    if standing := _standing(log, topic, options["group"], delivery.printed):
        invocation.note(standing)
    return delivery.printed


class Delivery:
    """One run for a group: moves batches from the consumer to stdout, polling when the batch before was taken."""

    def __init__(
        self,
        invocation: Invocation,
        consumer: Consumer,
        renderer: Renderer,
        chosen: Filter,
        options: dict[str, Any],
        timeout: float | None,
    ) -> None:
        self.invocation = invocation
        self.consumer = consumer
        self.renderer = renderer
        self.chosen = chosen
        self.options = options
        self.timeout = timeout
        self.printed = 0
        self._reader = PipeReader()
        # A partial Arrow stream is useless to a reader, and small batches would make it large.
        self._exact = self._reader.is_known and not isinstance(renderer, ArrowRenderer)
        self._size = 1 if self._exact else _BATCH_RECORDS_MAX
        self._quiet_since = monotonic()
        self._noted = False

    @property
    def left(self) -> int | None:
        """Number of records that may still be printed; None without a limit."""
        limit = self.options["limit"]
        return None if limit is None else limit - self.printed

    def run(self, hold: Hold) -> None:
        """Print until the end, the limit or Ctrl-C; records that the reader did not take stay uncommitted."""
        if "stdout" in MISSING:
            raise OSError(errno.EBADF, "Standard output is closed, so nothing was read for the group")
        output = sys.stdout.buffer
        output.write(self.renderer.begin())
        try:
            while not hold.interrupted and self.left != 0:
                # Polling marks the records printed before as read.
                batch = self.consumer.poll(self._room(), timeout=self._patience())
                if batch:
                    if not self._print(batch, hold):
                        return
                elif self._is_over():
                    break
            if self.consumer.member is not None:
                self.consumer.commit()
        except OffsetOutOfRangeError as error:
            output.write(self.renderer.end())
            hint = "Nothing was skipped; continue at the first remaining record with: --on-lost earliest"
            raise CommandError(error.code, str(error), hint) from None
        except CorruptionError as error:
            output.write(self.renderer.end())
            raise CommandError(error.code, str(error), self._past(error)) from None
        except Exception as error:
            if not isinstance(error, BrokenPipeError):
                output.write(self.renderer.end())
            raise
        output.write(self.renderer.end())

    def _past(self, error: CorruptionError) -> str:
        """Return the hint for records that cannot be read: move the group, since a group skips nothing by itself."""
        mend = "." if error.repaired else "; see what can be done with: tailrace repair --dry-run"
        if error.topic is None or error.partition is None or error.last is None:
            return f"Nothing was skipped, and the group's cursor is before it{mend}"
        names = f"{quote(self.options['group'])} --topic {quote(error.topic)}"
        reset = f"tailrace group reset {names} --to {error.partition}:{error.last + 1}"
        first = f"Nothing was skipped, and the group's cursor is before them{mend}"
        return f"{first}\nTo continue after them, move the group with: {reset}"

    def _room(self) -> int:
        # The number of records that pass a filter is known only after the batch was read.
        return self._size if self.left is None or self.chosen.active else min(self._size, self.left)

    def _patience(self) -> float:
        if self.timeout is None:
            return _LOOK_SECONDS
        return max(0.0, min(_LOOK_SECONDS, self._quiet_since + self.timeout - monotonic()))

    def _is_over(self) -> bool:
        """Return whether no more records will come; a consumer that reached its end has left the group."""
        if self.consumer.member is None:
            return True
        quiet = monotonic() - self._quiet_since
        if self.options["follow"]:
            return self.timeout is not None and quiet >= self.timeout
        if quiet > _SILENT_SECONDS_MAX and not self._noted:
            self._noted = True
            self.invocation.note("Waiting for partitions that other members are reading; Ctrl-C ends.")
        return False

    def _print(self, batch: Batch, hold: Hold) -> bool:
        """Print a batch, and return whether the reader of stdout has taken it."""
        begun, before = monotonic(), self.printed
        records: Sequence[Record] = self.chosen.apply(batch)
        if self.left is not None:
            records = records[: self.left]
        last: Record | None = None
        complete = False
        try:
            for piece in self._pieces(records):
                self._write(piece)
                if not self._reader.has_taken(hold):
                    return False
                self.printed += len(piece)
                last = piece[-1]
            complete = self.left != 0
        finally:
            if self.chosen.active and last is not None and not complete:
                self._give_back(batch, last)
        self._quiet_since = monotonic()
        self._size = self._next_size(self.printed - before, self._quiet_since - begun)
        return True

    def _pieces(self, records: Sequence[Record]) -> Iterable[Sequence[Record]]:
        """Return the records in pieces to write: the first filtered records of a pipe one by one, else all at once.

        A batch grows while the filter finds few records, and may then hold several that match.
        """
        if self.chosen.active and self._exact and self.printed < EXACT_RECORDS_MAX:
            return [[record] for record in records]
        return [records] if records else []

    def _write(self, records: Sequence[Record]) -> None:
        output = sys.stdout.buffer
        if isinstance(self.renderer, PlainRenderer) and not isinstance(records, list):
            output.write(render_values(cast("Batch", records).values()))
        else:
            output.write(self.renderer.render(records))
        output.flush()

    def _next_size(self, printed: int, seconds: float) -> int:
        if seconds > _BATCH_SECONDS_MAX:
            return max(1, self._size // 2)
        if seconds > _BATCH_SECONDS_MIN or (printed and self._exact and self.printed < EXACT_RECORDS_MAX):
            return self._size
        return min(self._size * 2, _BATCH_RECORDS_MAX)

    def _give_back(self, batch: Iterable[Record], last: Record) -> None:
        """Seek back to just after the last record that the reader took, in every partition of the batch."""
        seen = False
        begun: dict[tuple[str, int], int] = {}
        for record in batch:
            if seen:
                begun.setdefault((record.topic, record.partition), record.offset)
            seen = seen or record[:3] == last[:3]
        for (topic, partition), offset in begun.items():
            self.consumer.seek(offset, topic=topic, partition=partition)


class PipeReader:
    """The process that reads stdout; for a pipe it is known whether it has read what was written, or has closed it."""

    def __init__(self) -> None:
        from stat import S_ISFIFO

        try:
            self._descriptor = sys.stdout.fileno()
            piped = S_ISFIFO(os.fstat(self._descriptor).st_mode)
        except (OSError, ValueError):
            piped = False
        # Only Linux reports at the write end how many bytes of a pipe are unread.
        self.is_known = piped and sys.platform == "linux"

    def has_taken(self, hold: Hold) -> bool:
        """Wait until the reader has read everything; return False on Ctrl-C, raise BrokenPipeError if it is gone."""
        pause = interrupted_at = 0.0
        while self.is_known and self._unread():
            # Checked again after it closed the pipe: it may have read the rest just before.
            if self._has_left() and self._unread():
                raise BrokenPipeError
            if hold.interrupted:
                interrupted_at = interrupted_at or monotonic()
                if monotonic() - interrupted_at > _TAKE_SECONDS_MAX:
                    return False
            sleep(pause)
            pause = min(pause + _PAUSE_SECONDS_STEP, _PAUSE_SECONDS_MAX)
        return True

    def _unread(self) -> int:
        from fcntl import ioctl
        from termios import FIONREAD

        return int.from_bytes(ioctl(self._descriptor, FIONREAD, bytes(4)), sys.byteorder)

    def _has_left(self) -> bool:
        from select import POLLERR, poll

        look = poll()
        look.register(self._descriptor, 0)
        return any(event & POLLERR for _, event in look.poll(0))


# Notes on stderr.


def _max_processing(options: dict[str, Any]) -> dict[str, Any]:
    """Return the argument of the consumer; none if the option is not given, so that the library's default applies."""
    given = options["max_processing"]
    if given is None:
        return {}
    if given.lower() == "none":
        return {"max_processing": None}
    # A duration is passed on as it was written, so that an error of the library shows it so.
    return {"max_processing": given if is_duration(given) else parse_duration(given, "--max-processing")}


def _on_lost(options: dict[str, Any]) -> Any:
    chosen = options["on_lost"] or "error"
    if chosen != "error":
        import logging

        # Lost records are reported as a note, not by the library's warning.
        logging.getLogger("tailrace").addHandler(logging.NullHandler())
    return chosen


def _warn_of_start(invocation: Invocation, log: Log, topic: Topic, options: dict[str, Any]) -> None:
    if options["start"] == "earliest":
        return
    try:
        info = log.group(options["group"])
    except GroupNotFoundError:
        return
    names = {each.name for each in log.topics(topic.name)}
    if any(each.topic in names and each.position is not None for each in info.partitions):
        invocation.note(
            "START is for what the group has never read; it continues at its cursor. "
            f"Move it with: tailrace group reset {quote(info.name)} --to {quote(options['start'])}"
        )


def _report_lost(invocation: Invocation, consumer: Consumer) -> None:
    for lost in consumer.lost:
        count = counted(lost.last - lost.first + 1, "record")
        place = f"{printable(lost.topic)}[{lost.partition}]@{lost.first}..{lost.last}"
        invocation.note(f"{count} passed over, removed or skipped before the group had read them: {place}")


def _standing(log: Log, topic: Topic, group: str, printed: int) -> str:
    """Return a sentence: how many records were printed, and the cursors of the group in the topics read."""
    printed_text = f"Printed {counted(printed, 'record')}"
    try:
        info = log.group(group)
    except GroupNotFoundError:
        return f"{printed_text}; there is no group {group!r} any more."
    names = {each.name for each in log.topics(topic.name)}
    read = [each for each in info.partitions if each.topic in names]
    if not read:
        return f"{printed_text}."
    places = [
        f"{printable(each.topic)}[{each.partition}]@"
        f"{each.latest - each.lag_records if each.position is None else each.position}"
        for each in read[:_PLACES_SHOWN]
    ]
    more = f" and in {counted(len(read) - _PLACES_SHOWN, 'more partition')}" if len(read) > _PLACES_SHOWN else ""
    left = counted(sum(each.lag_records for each in read), "record")
    return f"{printed_text}; the group {group!r} stands at {', '.join(places)}{more}, with {left} left."


def _resume(invocation: Invocation, topic: Topic, delivery: Delivery) -> str:
    """Return the same command again; the group's cursor says where to continue."""
    options, left = delivery.options, delivery.left
    if left == 0:
        return "Everything was printed."
    given = [
        ("--group", options["group"]), ("-k", options["key"]), ("--grep", options["grep"]), ("--limit", left),
        ("--timeout", options["timeout"]), ("-F", options["form"]), ("--on-lost", options["on_lost"]),
    ]  # fmt: skip
    words = [str(word) for option in given if option[1] is not None for word in option]
    words += [flag for flag, active in (("-f", options["follow"]), ("--fail-empty", options["fail_empty"])) if active]
    start = [] if options["start"] == "earliest" else [options["start"]]
    return go_on(invocation, "read", [topic.name, *start], words)
