"""The command `groups`: consuming, committing, receiving, taking over and processing, beside four Python queues."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from math import inf
from types import FrameType
from typing import Any

from benchmarks import commits, consume, latency, page, pipeline, report, sitting, takeover
from benchmarks.asking import Lengths, add_common, checked
from benchmarks.peers import INSTALL, installed, missing
from benchmarks.stage import FRAME_RECORDS, Stage
from tailrace.bench.cases import Case, Result
from tailrace.bench.machine import Watcher
from tailrace.bench.runner import run

PARTS: dict[str, Callable[[Stage], list[Case]]] = {
    "consume": consume.cases,
    "commit": commits.cases,
    "receipt": latency.cases,
    "takeover": takeover.cases,
    "process": pipeline.cases,
    "join": sitting.cases,
}
LENGTHS = Lengths(seconds=150.0, rounds=7, quick_seconds=9.0, quick_rounds=3)
QUICK_LIMIT_SECONDS = 24.0
# The minimum of take-overs in a run, unless it is a quick one.
TAKEOVERS_MIN = 50
QUICK_TAKEOVERS = 4
# The records of the consumed topic for each second of measuring, within bounds.
RECORDS_PER_SECOND, RECORDS_MIN, RECORDS_MAX = 20_000, 20_000, 2_000_000

INTRODUCTION = """\
# Benchmarks of groups

What `python -m benchmarks groups --write-docs` measured and wrote here. All systems take turns within every round, so
that whatever disturbs the machine disturbs all of them; rates are medians over the rounds, durations are medians and
99th percentiles over all operations, ratios are medians of the ratios within a round. Values have 100 bytes.

- **Durability** stands beside every number. "On disk" survives a power cut; "survives kill" does not. For the queues
  on SQLite it was asked of the connection that was measured.
- A queue without an acknowledgement ("get", "dequeue", "popleft") has forgotten a value when it hands it out: what a
  consumer that dies had in hand is lost. Tailrace's consumer, "get, ack", "pop, done" and "get, task_done" hand it out
  again.
- "scan" is a plain read of the same topic, which remembers nothing. A consumer joins its group before the clock starts
  and stores its cursor before it stops; joining and leaving have lines of their own.
- For receipt the clock starts before the append, and both processes run on this machine. The other queues have no way
  to wait for another process, so that they are asked every millisecond; persist-queue's file queue cannot be shared.
- A take-over lasts from the kill to the moment at which the other member has a record of each partition of the dead
  one.
- `process()` reads, calls a function, appends and stores the cursor in one transaction a batch. What comes nearest to
  it elsewhere is to take, put into another queue and acknowledge, which a kill can repeat or lose.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the requested parts; return 0 if they ran to the end, whatever they found."""
    asked = parse(arguments)
    # A terminated run exits like every other, so that its files are removed.
    signal.signal(signal.SIGTERM, _stop)
    results, facts = measure(asked)
    absent = ", ".join(missing())
    notes = [f"Not installed, so not measured: {absent}. To have them: {INSTALL}"] if absent else []
    print(report.text(results, facts, notes))
    for path in report.write(asked.results, "groups", results, facts):
        print(f"written: {path}")
    if asked.write_docs:
        page.put("\n".join([INTRODUCTION, report.markdown(results, facts, notes), ""]))
        print(f"written: {page.PAGE}")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options, with the defaults of a quick or a full run filled in."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks groups", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, in under 40 seconds")
    add_common(parser, PARTS, LENGTHS)
    parser.add_argument("--alone", action="store_true", help="Tailrace without the others")
    return checked(parser, arguments, PARTS, LENGTHS)


def measure(asked: argparse.Namespace) -> tuple[list[Result], dict[str, Any]]:
    """Return the results, and the facts about the machine."""
    watcher = Watcher()
    records = int(min(RECORDS_MAX, max(RECORDS_MIN, asked.seconds * RECORDS_PER_SECOND)))
    records -= records % FRAME_RECORDS
    takeovers = QUICK_TAKEOVERS if asked.quick else -(-TAKEOVERS_MIN // asked.rounds)
    progress = _progress if sys.stderr.isatty() else lambda _: None
    with Stage(asked.results, records, takeovers, [] if asked.alone else installed()) as stage:
        cases = [case for part in PARTS if part in asked.only for case in PARTS[part](stage)]
        results = run(cases, asked.rounds, asked.seconds, QUICK_LIMIT_SECONDS if asked.quick else inf, progress)
        facts = {**watcher.facts(stage.directory), "rounds": len(results[0].rounds), "records": records}
    progress("")
    return results, facts


def _progress(told: str) -> None:
    print(f"\r\x1b[K{told}", end="", file=sys.stderr, flush=True)


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
