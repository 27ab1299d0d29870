"""The command line of a pipeline: run it once or for ever, one line per batch, a clean end by Ctrl-C."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import tailrace
import tailrace.spark
from tailrace.errors import NotALogError, TailraceError

# How often a running query is asked for its progress.
POLL_SECONDS = 0.2
# Like the exit codes of the command `tailrace`.
FAILED = 1
NOT_FOUND = 3
BUSY = 6


class RefusedError(Exception):
    """The pipeline cannot run, and the text says what to do."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Pipeline:
    """A query, and what its command must know about it."""

    name: str
    make: Callable[[SparkSession, str], DataStreamWriter]
    reads: Sequence[str]
    writes: Sequence[str]
    # Appends a given number of made-up records to the topics that it reads.
    sample: Callable[[tailrace.Log, int], None]

    def main(self, doc: str | None, argv: Sequence[str] | None = None) -> int:
        """Run the command, and return the exit code."""
        options = self._parse(doc, argv)
        try:
            self._prepare(options)
            with _alone(options.checkpoint):
                return self._run(options)
        except RefusedError as refused:
            sys.stderr.write(f"{self.name}: {refused}\n")
            return refused.code
        except TailraceError as error:
            sys.stderr.write(f"{self.name}: {error}\n{error.hint}\n")
            return FAILED
        except KeyboardInterrupt:
            # It came before the query ran, so there is nothing to end.
            return 128 + signal.SIGINT

    def _parse(self, doc: str | None, argv: Sequence[str] | None) -> argparse.Namespace:
        form = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(
            f"python -m examples.pipelines.{self.name}", description=doc, formatter_class=form
        )
        parser.add_argument(
            "--log", default=os.environ.get("TAILRACE_LOG"), help="directory of the log [$TAILRACE_LOG]"
        )
        parser.add_argument("--checkpoint", help=f"where it keeps how far it is [LOG-checkpoints/{self.name}]")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--once", action="store_true", help="process the existing records, and end")
        how.add_argument("--trigger", default="1 second", metavar="TIME", help="otherwise: how often [%(default)s]")
        parser.add_argument("--sample", type=int, metavar="N", help="append N made-up records to the input before")
        options = parser.parse_args(argv)
        if not options.log:
            parser.error("say where the log is: --log /tmp/shop, or set $TAILRACE_LOG")
        if options.sample is not None and options.sample < 1:
            parser.error("--sample is how many records to make, at least 1")
        options.log = os.path.abspath(options.log)
        # Beside the log, not in it: it belongs to the query.
        options.checkpoint = os.path.abspath(options.checkpoint or f"{options.log}-checkpoints/{self.name}")
        return options

    def _prepare(self, options: argparse.Namespace) -> None:
        """Check for missing requirements before a JVM is started for nothing."""
        home = os.environ.get("JAVA_HOME")
        if not shutil.which("java") and not (home and os.access(f"{home}/bin/java", os.X_OK)):
            raise RefusedError("Spark needs Java 17 or newer: install it, and put `java` on the PATH or set JAVA_HOME.")
        if options.sample:
            with tailrace.open(options.log) as log:
                self.sample(log, options.sample)
        hint = "append to it, or try with made-up records: --sample 10000"
        try:
            with tailrace.open(options.log, "r") as log:
                missing = [name for name in self.reads if name not in {topic.name for topic in log.topics()}]
        except NotALogError:
            raise RefusedError(f"There is no log in {options.log}: {hint}", NOT_FOUND) from None
        if missing:
            raise RefusedError(
                f"The log in {options.log} has no topic {' and no topic '.join(missing)}: {hint}", NOT_FOUND
            )

    def _run(self, options: argparse.Namespace) -> int:
        running = SparkSession.getActiveSession()
        spark = tailrace.spark.session(f"tailrace {self.name}")
        if running is None:
            # This command reports an error that ends the query, once and without its traces.
            spark.sparkContext.setLogLevel("FATAL")
        try:
            with _stopped_by_signals() as stop:
                trigger = {"availableNow": True} if options.once else {"processingTime": options.trigger}
                try:
                    writer = self.make(spark, options.log).trigger(**trigger)
                    query = writer.queryName(self.name).option("checkpointLocation", options.checkpoint).start()
                except PySparkException as error:
                    raise RefusedError(_reason(error)) from None
                watch(query, stop)
            self._tell(options)
            return 128 + stop.signal if stop.signal else 0
        finally:
            if running is None:
                spark.stop()

    def _tell(self, options: argparse.Namespace) -> None:
        with tailrace.open(options.log, "r") as log:
            for name in self.writes:
                if log.topics(name):
                    count = log.topic(name).read().count()
                    say(f"{count:,} in {name}, see the last ones: tailrace read {name} -n 5 -L {options.log}")
        say(f"The same command continues from here, by {options.checkpoint}")


@contextmanager
def _alone(checkpoint: str) -> Iterator[None]:
    """Refuse a second run on a checkpoint: Spark may not notice, and then each would leave out rows of the other."""
    os.makedirs(os.path.dirname(checkpoint), exist_ok=True)
    with open(f"{checkpoint}.lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"It is running already, with the checkpoint {checkpoint}: end that one first, or give another."
            raise RefusedError(text, BUSY) from None
        yield


@dataclass
class Stop:
    """Whether the query is to end, and the signal that asked for it."""

    signal: int = 0
    asked: threading.Event = field(default_factory=threading.Event)


@contextmanager
def _stopped_by_signals() -> Iterator[Stop]:
    """Make Ctrl-C and SIGTERM only request the end.

    PySpark's own handler calls the JVM from within a call to the JVM, which ends nothing. A second Ctrl-C is final.
    """
    stop = Stop()

    def ask(number: int, frame: Any) -> None:
        stop.signal = number
        stop.asked.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch(query: StreamingQuery, stop: Stop) -> None:
    """Print the progress of each batch until the query ends, or stop it on request."""
    shown = -1
    while query.isActive and not stop.asked.wait(POLL_SECONDS):
        shown = _show(query, shown)
    query.stop()
    _show(query, shown)
    error = query.exception()
    if error is not None and not stop.signal:
        raise RefusedError(_reason(error))


def _show(query: StreamingQuery, shown: int) -> int:
    """Print a line for each batch after the last one shown, and return the number of the last one."""
    for progress in query.recentProgress:
        if progress["batchId"] > shown:
            shown = progress["batchId"]
            line = f"batch {shown:<5} {progress['numInputRows']:>12,} rows {_rate(progress):>12,.0f} rows/s"
            unreadable = sum(row["unreadable"] for row in progress["observedMetrics"].values())
            say(f"{line}   {unreadable:,} unreadable" if unreadable else line)
    return shown


def _rate(progress: Any) -> float:
    return float(progress["numInputRows"] / max(progress["durationMs"].get("triggerExecution", 1), 1) * 1000)


def _reason(error: Exception) -> str:
    """Return what went wrong, without the traces of Python and the JVM around it."""
    text = str(error).split("=== Streaming Query ===")[0]
    # The innermost error comes last, with what to do about it on the lines below.
    found = re.findall(
        r"^[\w.]+(?:Error|Exception): (.+?)(?=^ ?SQLSTATE|^\s*$|^\tat |\Z)", text, re.MULTILINE | re.DOTALL
    )
    return (found[-1] if found else text.partition("JVM stacktrace")[0]).strip()


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
