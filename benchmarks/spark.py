"""The command `spark`: reading, writing and streaming with Spark, beside the minimum in Python."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import page, report, spark_batches, spark_reads, spark_streams, spark_wide, spark_writes
from benchmarks.spark_stage import ROWS, Sizes, SparkStage, missing
from tailrace.bench.cases import Case, Result
from tailrace.bench.machine import Watcher
from tailrace.bench.runner import run

RESULTS = Path(__file__).parent / "results"
PARTS: dict[str, Callable[[SparkStage], list[Case]]] = {
    "read": spark_reads.cases,
    "write": spark_writes.cases,
    "batch": spark_streams.batch_cases,
    "batches": spark_batches.cases,
    "wide": spark_wide.cases,
    "json": spark_streams.json_cases,
}
ROUNDS = 7
QUICK_ROUNDS, QUICK_SCALE = 3, 0.2
# Spark compiles a query better after it ran several times; the rounds begin with one more run.
WARM_UPS = 1

INTRODUCTION = """\
# Benchmarks of Spark

What `python -m benchmarks spark --write-docs` measured and wrote here, on two cores (`local[2]`) with the settings of
`tailrace.spark.session()`. All contestants take turns within every round; rates are medians over the rounds, durations
medians and 99th percentiles over all batches, ratios are medians of the ratios within a round. Rows have a key of 16
bytes and a value of 100 bytes.

- **Arrow files** are read and written by the least that a source or a sink in Python can be: the first hands out the
  batches of memory-mapped files as they are, the second writes what it gets into one file a task and syncs it. They
  have no offsets, no checks, no partitions and no transaction. The files hold the very rows of the topic, which is
  checked before anything is measured.
- "All columns" is a job whose rows Spark throws away; `sum(length(value))` is a query that looks at one column, of
  which Spark tells no Python source. A read has no durability; that column says what is checked. Frames have 8,192
  records as large writes make them; frames of 128 are what an application leaves that appends 128 at a time.
- Each write is one job into a new topic, whole or absent; rows come from Parquet files.
- A batch of one row has next to no work, so that what is left is what a batch costs; the source beside it only counts.
- Ten micro-batches have a tenth of a million rows each; the first, for which Spark compiles the query, is left out.
  "Parquet" is what Spark itself takes, in Java; "Arrow files" is what it takes with any source and sink in Python, read
  by two tasks and written by two, each of which syncs its file. What a batch costs beyond Spark is the difference.
- A job over many partitions has 20 rows for each of a thousand, and is timed as a whole. A stream has to be started
  first, for which Spark starts a Python process. More than 255 partitions take the outbox
  ([spark-sink.md](spark-sink.md)): the rows are written twice. Topics written to are new, so that a segment begins in
  every partition.
- The job over JSON reads events as a stream, with a watermark, and sums them in windows by user; the state is kept by
  RocksDB. "from_json" is Spark's own way to parse them. The second that Spark takes to start a stream over a Python
  source is part of the time.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the requested parts; return 0 if they ran to the end, whatever they found."""
    asked = parse(arguments)
    reason = missing()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    # A terminated run exits like every other, so that its files are removed.
    signal.signal(signal.SIGTERM, _stop)
    results, facts = measure(asked)
    print(report.text(results, facts, []))
    for path in report.write(asked.results, "spark", results, facts):
        print(f"written: {path}")
    if asked.write_docs:
        page.put("\n".join([INTRODUCTION, report.markdown(results, facts, []), ""]))
        print(f"written: {page.PAGE}")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options, with the defaults of a quick or a full run filled in."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data and fewer rounds, in under 2 minutes")
    parser.add_argument("--rounds", type=int, help=f"how often all contestants take their turn (default {ROUNDS})")
    parser.add_argument(
        "--scale", type=float, help=f"how much data: 1 (the default) is {ROWS:,} rows to read, and the rest alike"
    )
    parser.add_argument("--only", action="append", metavar="PART", help=f"one of {', '.join(PARTS)}; may be repeated")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to work and to write (benchmarks/results)")
    parser.add_argument("--write-docs", action="store_true", help="write the tables into docs/benchmarks.md")
    asked = parser.parse_args(arguments)
    asked.rounds = asked.rounds if asked.rounds is not None else (QUICK_ROUNDS if asked.quick else ROUNDS)
    asked.scale = asked.scale if asked.scale is not None else (QUICK_SCALE if asked.quick else 1.0)
    asked.only = [part for each in asked.only or [] for part in each.split(",")] or list(PARTS)
    for part in asked.only:
        if part not in PARTS:
            parser.error(f"there is no part {part!r}: {', '.join(PARTS)}")
    if not 0 < asked.scale <= 10 or asked.rounds < 1:
        parser.error("--rounds has to be positive, and --scale at most 10")
    return asked


def measure(asked: argparse.Namespace) -> tuple[list[Result], dict[str, Any]]:
    """Return the results, and the facts about the machine."""
    watcher = Watcher()
    progress = _progress if sys.stderr.isatty() else lambda _: None
    progress("starting Spark")
    sizes = Sizes.scaled(asked.scale)
    with SparkStage(asked.results, sizes) as stage:
        versions = stage.versions()
        cases = []
        for part in asked.only:
            progress(f"preparing: {part}")
            cases += PARTS[part](stage)
        for _ in range(0 if asked.quick else WARM_UPS):
            for case in cases:
                progress(f"warm-up: {case.work}, {case.system}")
                case.measure(0.0)
        results = run(cases, asked.rounds, 1.0, inf, progress)
        where = stage.directory.parent
    progress("")
    # By now Spark has ended, so all of its processor time counts as this run's.
    facts = {**watcher.facts(where), **versions, "rounds": asked.rounds, **sizes._asdict()}
    return results, facts


def _progress(told: str) -> None:
    print(f"\r\x1b[K{told}", end="", file=sys.stderr, flush=True)


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
