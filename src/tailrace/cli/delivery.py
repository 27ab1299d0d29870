"""Reading for a group: records are printed, and what the reader of stdout has taken is committed."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, cast

import click

from tailrace.cli import MISSING
from tailrace.cli.arguments import is_pattern
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
# The first records go into a pipe one by one, so that `| head` takes from the group what it shows, and no more.
EXACT_RECORDS_MAX = 256
# A batch whose reader takes longer is followed by a smaller one, so that little comes again when it ends.
_BATCH_SECONDS_MAX = 0.2
_BATCH_SECONDS_MIN = 0.05
_COMMIT_EVERY = "100ms"
# Ctrl-C is looked at so often while there is nothing to print, and then waits so long for the reader of a pipe.
_LOOK_SECONDS = 0.1
_TAKE_SECONDS_MAX = 0.5
_PAUSE_SECONDS_STEP, _PAUSE_SECONDS_MAX = 0.00005, 0.01
# After so long without a record it is said what is waited for.
_SILENT_SECONDS_MAX = 2.0
_PLACES_SHOWN = 4

# What reading for a group does by itself, or cannot do.
_REFUSED = {
    "reverse": "--reverse: a group reads on from where it stands",
    "last": "-n: a group reads on from where it stands, and START says where a new one begins",
    "stop": "--stop: it reads to the end; --limit ends it earlier",
    "count": "--count: tailrace group show has what is left to read",
    "partitions": "-p: the members of a group share its partitions",
}


def refuse_for_group(options: dict[str, Any]) -> None:
    """Refuse options that reading for a group has no use for, and those that nothing else has a use for."""
    if options.get("group") is None:
        if options.get("on_lost") is not None:
            raise click.UsageError("--on-lost goes with --group.")
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
    """Print what a group has not read yet, and say where it stands; how many records were printed."""
    _warn_of_start(invocation, log, topic, options)
    if isinstance(places.start, (int, dict)) and not is_pattern(topic.name):
        # An offset cannot wait for its topic.
        topic.offsets()
    with wrong_arguments():
        consumer = log.consumer(
            topic.name,
            options["group"],
            start=places.start,
            stop=None if options["follow"] else "now",
            commit_every=_COMMIT_EVERY,
            on_lost=_on_lost(options),
        )
    delivery = Delivery(invocation, consumer, renderer, chosen, options, places.timeout)
    try:
        # Closing stores how far it came, so that Ctrl-C waits for it as well.
        with Hold() as hold, consumer:
            delivery.run(hold)
    except KeyboardInterrupt:
        lines = [_standing(log, topic, options["group"], delivery.printed), _resume(invocation, topic, delivery)]
        raise Interrupted("\n".join(line for line in lines if line)) from None
    finally:
        _tell_lost(invocation, consumer)
    if standing := _standing(log, topic, options["group"], delivery.printed):
        invocation.note(standing)
    return delivery.printed


class Delivery:
    """One reading: batches from the consumer to stdout, each asked for when the one before was taken."""

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
        # A stream of Arrow is nothing to take the beginning of, and small batches would make it large.
        self._exact = self._reader.is_known and not isinstance(renderer, ArrowRenderer)
        self._size = 1 if self._exact else _BATCH_RECORDS_MAX
        self._quiet_since = monotonic()
        self._told = False

    @property
    def left(self) -> int | None:
        """How many more records may be printed, None for any number."""
        limit = self.options["limit"]
        return None if limit is None else limit - self.printed

    def run(self, hold: Hold) -> None:
        """Print until the end, the limit or Ctrl-C; what was not taken stays uncommitted."""
        if "stdout" in MISSING:
            raise OSError(errno.EBADF, "Standard output is closed, so nothing was read for the group")
        output = sys.stdout.buffer
        output.write(self.renderer.begin())
        try:
            while not hold.asked and self.left != 0:
                # Asking for more marks what was printed before as read.
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
            hint = "Nothing was skipped; go on at the first record that is left with: --on-lost earliest"
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
        """How a group comes past records that cannot be read: it is moved, since it skips nothing by itself."""
        mend = "." if error.repaired else "; see what can be done with: tailrace repair --dry-run"
        if error.topic is None or error.partition is None or error.last is None:
            return f"Nothing was skipped, and the group stands before it{mend}"
        names = f"{quote(self.options['group'])} --topic {quote(error.topic)}"
        reset = f"tailrace group reset {names} --to {error.partition}:{error.last + 1}"
        first = f"Nothing was skipped, and the group stands before them{mend}"
        return f"{first}\nTo go on behind them, move the group with: {reset}"

    def _room(self) -> int:
        # How many of a batch pass a filter is known afterwards.
        return self._size if self.left is None or self.chosen.active else min(self._size, self.left)

    def _patience(self) -> float:
        if self.timeout is None:
            return _LOOK_SECONDS
        return max(0.0, min(_LOOK_SECONDS, self._quiet_since + self.timeout - monotonic()))

    def _is_over(self) -> bool:
        """Whether nothing more comes; a consumer that came to its end has left the group."""
        if self.consumer.member is None:
            return True
        quiet = monotonic() - self._quiet_since
        if self.options["follow"]:
            return self.timeout is not None and quiet >= self.timeout
        if quiet > _SILENT_SECONDS_MAX and not self._told:
            self._told = True
            self.invocation.note("Waiting for partitions that other members are reading; Ctrl-C ends.")
        return False

    def _print(self, batch: Batch, hold: Hold) -> bool:
        """Print a batch; whether its reader has taken it."""
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
        """What is written at once; a filter may find several records in a batch that was large because it found few."""
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
        """Go back behind the last record taken: those of the batch that stand behind it were read in vain."""
        seen = False
        begun: dict[tuple[str, int], int] = {}
        for record in batch:
            if seen:
                begun.setdefault((record.topic, record.partition), record.offset)
            seen = seen or record[:3] == last[:3]
        for (topic, partition), offset in begun.items():
            self.consumer.seek(offset, topic=topic, partition=partition)


class PipeReader:
    """Whoever reads stdout: of a pipe it is known whether it has taken what was written, or has left.

    A terminal and a file have taken what was flushed.
    """

    def __init__(self) -> None:
        from stat import S_ISFIFO

        try:
            self._descriptor = sys.stdout.fileno()
            piped = S_ISFIFO(os.fstat(self._descriptor).st_mode)
        except (OSError, ValueError):
            piped = False
        # Only Linux tells at the end where it is written how much of a pipe was not read yet.
        self.is_known = piped and sys.platform == "linux"

    def has_taken(self, hold: Hold) -> bool:
        """Wait until everything written was read; False when Ctrl-C came, and BrokenPipeError when nobody will."""
        pause = asked = 0.0
        while self.is_known and self._unread():
            # Asked again after it has left, because it may have taken the rest before it did.
            if self._has_left() and self._unread():
                raise BrokenPipeError
            if hold.asked:
                asked = asked or monotonic()
                if monotonic() - asked > _TAKE_SECONDS_MAX:
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


# What is said beside the records.


def _on_lost(options: dict[str, Any]) -> Any:
    chosen = options["on_lost"] or "error"
    if chosen != "error":
        import logging

        # What was lost is told as a note, not by the library's warning.
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
            "START is for what the group has never read; it goes on where it stands. "
            f"Move it with: tailrace group reset {quote(info.name)} --to {quote(options['start'])}"
        )


def _tell_lost(invocation: Invocation, consumer: Consumer) -> None:
    for lost in consumer.lost:
        count = counted(lost.last - lost.first + 1, "record")
        place = f"{printable(lost.topic)}[{lost.partition}]@{lost.first}..{lost.last}"
        invocation.note(f"{count} passed over, removed or skipped before the group had read them: {place}")


def _standing(log: Log, topic: Topic, group: str, printed: int) -> str:
    """How many were printed, and where the group stands in what was read."""
    told = f"Printed {counted(printed, 'record')}"
    try:
        info = log.group(group)
    except GroupNotFoundError:
        return f"{told}; there is no group {group!r} any more."
    names = {each.name for each in log.topics(topic.name)}
    read = [each for each in info.partitions if each.topic in names]
    if not read:
        return f"{told}."
    places = [
        f"{printable(each.topic)}[{each.partition}]@"
        f"{each.latest - each.lag_records if each.position is None else each.position}"
        for each in read[:_PLACES_SHOWN]
    ]
    more = f" and in {counted(len(read) - _PLACES_SHOWN, 'more partition')}" if len(read) > _PLACES_SHOWN else ""
    left = counted(sum(each.lag_records for each in read), "record")
    return f"{told}; the group {group!r} stands at {', '.join(places)}{more}, with {left} left."


def _resume(invocation: Invocation, topic: Topic, delivery: Delivery) -> str:
    """The same command again: the group knows the place."""
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
