"""`tailrace bench`: measure Tailrace on a disk, beside bare files and SQLite on the same disk."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.arguments import parse_durable
from tailrace.cli.ending import CommandError, Interrupted
from tailrace.cli.errors import answering, wrong_arguments
from tailrace.cli.grouping import CommandGroup
from tailrace.cli.grouping import group as make_group
from tailrace.cli.invocation import Invocation, draws
from tailrace.cli.output import to_json, write, write_rows
from tailrace.cli.quoting import quote
from tailrace.cli.resume import again

if TYPE_CHECKING:
    import tailrace
    from tailrace.bench.cases import Case, Result

ROUNDS = 5
# From this share of processor time on, other processes are reported as noise.
NOISE_SHARE = 0.1
STAMP_BYTES = 20
_ANOTHER = "name a directory on a disk that has room, and that you may write to."
_FIELDS = ("system", "how", "median", "p99", "unit", "ratio", "against", "durability")
# Columns that a narrow terminal omits, in this order.
_SPARE_FIELDS = ("p99", "how")


class _Seconds(click.FloatRange):
    """A number in a range; "nan" is refused explicitly, since it passes every range check."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


def _option(name: str, kind: Any, default: Any, metavar: str, text: str) -> Callable[..., Any]:
    return click.option(name, type=kind, default=default, metavar=metavar, help=text)


_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_OPTIONS = {
    "path": _option("--path", _DIRECTORY, ".", "DIR", "A directory on the disk to measure.  [default: .]"),
    "seconds": _option("--seconds", _Seconds(0.1, 86_400), 10.0, "N", "How long to measure.  [default: 10]"),
    "value": _option("--value-bytes", click.IntRange(1, 1 << 20), 100, "N", "Size of a value.  [default: 100]"),
    "batch": _option("--batch", click.IntRange(1, 65_536), 1, "N", "Records written at a time.  [default: 1]"),
    "read-batch": _option("--batch", click.IntRange(1, 65_536), 1_000, "N", "As many were written.  [default: 1000]"),
    "threads": _option("--threads", click.IntRange(1, 256), 1, "N", "Threads in each process.  [default: 1]"),
    "processes": _option("--processes", click.IntRange(1, 64), 1, "N", "Processes at work.  [default: 1]"),
    "durable": _option(
        "--durable", str, "yes", "yes|no|TIME", "On disk before the answer (yes), within a time (50ms), or no."
    ),
}


def _options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds these options to a command, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            function = _OPTIONS[name](function)
        return function

    return decorate


@make_group("bench")
@click.pass_context
def command(context: click.Context) -> None:
    """Measure Tailrace on a disk, beside bare files and SQLite.

    No log is named: a temporary directory is created for it, and removed at the end.
    """
    CommandGroup.help_if_alone(context)


@command.command("write")
@_options("path", "seconds", "value", "batch", "threads", "processes", "durable")
@click.pass_obj
def measure_writes(
    invocation: Invocation,
    path: Path,
    seconds: float,
    value_bytes: int,
    batch: int,
    threads: int,
    processes: int,
    durable: str,
) -> None:
    """Measure how many records a second are written.

    Compared with a copy in memory, a write to the page cache, a write with fdatasync, and SQLite at both of its levels.
    A ratio is against the plain file of the same durability.
    """
    level = parse_durable(durable)

    def cases(directory: Path, log: tailrace.Log) -> list[Case]:
        from tailrace.bench import write as writing

        return writing.cases(
            directory,
            log,
            value_bytes=value_bytes,
            batch=batch,
            durable=level,
            threads=threads,
            processes=processes,
        )

    _run(invocation, path, seconds, cases, level)


@command.command("read")
@_options("path", "seconds", "value", "read-batch", "threads", "processes")
@click.pass_obj
def measure_reads(
    invocation: Invocation,
    path: Path,
    seconds: float,
    value_bytes: int,
    batch: int,
    threads: int,
    processes: int,
) -> None:
    """Measure how many records a second are read.

    As records, as values and, where pyarrow is installed, as Arrow; compared with a bare read of a file and SQLite. The
    data was written just before, so it is read from the page cache.
    """

    def cases(directory: Path, log: tailrace.Log) -> list[Case]:
        from tailrace.bench import read as reading

        return reading.cases(
            directory, log, seconds=seconds, value_bytes=value_bytes, batch=batch, threads=threads, processes=processes
        )

    _run(invocation, path, seconds, cases)


@command.command("tail")
@_options("path", "seconds", "value", "durable")
@click.pass_obj
def measure_tails(invocation: Invocation, path: Path, seconds: float, value_bytes: int, durable: str) -> None:
    """Measure how soon another process has a record.

    The time from before the append in one process to the receipt in another that follows the topic. Compared with a
    pipe, the minimum between two processes, and SQLite, which has to be polled.
    """
    level = parse_durable(durable)
    if value_bytes < STAMP_BYTES:
        raise click.UsageError(f"--value-bytes {value_bytes} has no room for a time: write {STAMP_BYTES} or more.")

    def cases(directory: Path, log: tailrace.Log) -> list[Case]:
        from tailrace.bench import tail as tailing

        work = f"append in one process to receipt in another, {value_bytes} B"
        return [
            tailing.pipe_case(work, value_bytes),
            tailing.follow_case(work, log, level, value_bytes),
            *[tailing.sqlite_case(work, directory, each, value_bytes) for each in ("FULL", "NORMAL")],
        ]

    _run(invocation, path, seconds, cases, level)


def _run(
    invocation: Invocation,
    path: Path,
    seconds: float,
    make: Callable[[Path, tailrace.Log], Sequence[Case]],
    durable: bool | str = True,
) -> None:
    """Measure, clean up, then print the results."""
    import sqlite3

    import tailrace
    from tailrace.bench.machine import Watcher
    from tailrace.bench.place import log_around, workplace
    from tailrace.bench.runner import run

    layout = invocation.format()
    log = log_around(path)
    if log is not None:
        raise click.UsageError(f"{log} is a log: name a directory that is not in one.")
    watcher = Watcher()
    progress = _progress if draws(sys.stderr) and not invocation.quiet else lambda _: None
    places: list[Path] = []
    with _ended_clean(invocation, places), _ended_by_termination(), workplace(path) as directory:
        places.append(directory)
        invocation.detail(f"working in {directory}")
        try:
            with tailrace.open(directory / "log") as opened:
                with wrong_arguments():
                    opened.topic("checked", durable=durable)
                progress("preparing")
                results = run(make(directory, opened), ROUNDS, seconds, progress=progress)
        except sqlite3.Error as error:
            # The hint is added later, when it is known which files are left.
            raise CommandError("input-output", f"SQLite could not do its part: {error}.", "") from None
        finally:
            progress("")
        facts = watcher.facts(directory)
    with answering("Measured, and removed what was written for it"):
        _show(invocation, layout, results, facts, path)
    _print_machine(invocation, facts)


def _show(invocation: Invocation, layout: str, results: Sequence[Result], facts: dict[str, Any], path: Path) -> None:
    rows = [_row(result) for result in results]
    if layout in ("json", "jsonl"):
        found = {"work": results[0].case.work, "path": str(path.resolve()), "machine": facts, "results": rows}
        write(to_json(found, 2 if layout == "json" else None) + "\n")
    elif layout == "table":
        write(f"{results[0].case.work} ({results[0].case.unit})\n")
        shown = [name for name in _FIELDS if name not in ("unit", "against")]
        fields = [name for name in shown if name != "p99" or rows[0]["p99"] is not None]
        spare = [name for name in _SPARE_FIELDS if name in fields]
        write_rows(invocation, fields, [{**row, "ratio": _ratio(row)} for row in rows], spare)
    else:
        write_rows(invocation, _FIELDS, rows)


def _row(result: Result) -> dict[str, Any]:
    case = result.case
    return {
        "system": case.system,
        "how": case.how,
        "median": _rounded(result.median),
        "p99": _rounded(result.p99) if result.has_spread else None,
        "unit": case.unit,
        "ratio": None if result.ratio is None else _rounded(result.ratio),
        "against": case.told if result.ratio is not None else None,
        "durability": case.level,
    }


def _rounded(value: float) -> float | int:
    """Round to three digits, about the precision of a measurement."""
    found = float(f"{value:.3g}")
    return int(found) if found >= 100 else found


def _ratio(row: dict[str, Any]) -> str | None:
    return None if row["ratio"] is None else f"{row['ratio']:g} x {row['against']}"


def _print_machine(invocation: Invocation, facts: dict[str, Any]) -> None:
    invocation.note(
        f"Tailrace {facts['tailrace']}, Python {facts['python']}, SQLite {facts['sqlite']}, {facts['processors']} x "
        f"{facts['processor']}, {facts['system']}, {facts['file_system']}; load {facts['load_at_start']} before and "
        f"{facts['load_at_end']} after. All took turns, {ROUNDS} times; what was written is removed."
    )
    others = facts["others_share"] or 0.0
    if others >= NOISE_SHARE:
        noise = f"Other processes took {others:.0%} of the processors meanwhile"
        invocation.note(f"{noise}: the figures are worse than this machine can do.")


def _progress(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


@contextmanager
def _ended_clean(invocation: Invocation, places: Sequence[Path]) -> Iterator[None]:
    """Turn an error that ends a measurement early into one that says which files are left."""
    from tailrace.errors import StorageError

    try:
        yield
    except StorageError as error:
        raise CommandError(error.code, str(error), f"{_left(places)}; {_ANOTHER}") from None
    except CommandError as error:
        raise CommandError(error.code, error.message, f"{_left(places)}; {_ANOTHER}") from None
    except OSError as error:
        # The directory itself could not be created.
        code = "not-allowed" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else "input-output"
        where = f" at {error.filename}" if error.filename else ""
        message = f"Nothing can be written{where}: {error.strerror or error}."
        raise CommandError(code, message, f"{_left(places)}; {_ANOTHER}") from None
    except KeyboardInterrupt:
        left = f"{_left(places)}, and nothing was measured; it starts over each time."
        raise Interrupted(f"{left}\n{again(invocation)}") from None


def _left(places: Sequence[Path]) -> str:
    """Say whether the files written were removed: Ctrl-C may come before their removal began."""
    kept = [quote(str(place)) for place in places if place.exists()]
    return f"What was written for it can be removed: {' '.join(kept)}" if kept else "What was written for it is removed"


@contextmanager
def _ended_by_termination() -> Iterator[None]:
    """End the block on SIGTERM and SIGHUP the way Ctrl-C does, so that the files are removed."""

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # A signal that nohup made the command ignore stays ignored.
    heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
