"""The command `engine`: writing, reading, following and opening, beside databases, queues and the bare disk."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import (
    engine_appends,
    engine_batches,
    engine_dedupe,
    engine_expiry,
    engine_follow,
    engine_opens,
    engine_reads,
    engine_schema,
    engine_segments,
    engine_size,
    engine_steady,
    page,
    report,
)
from benchmarks.asking import Lengths, add_common, checked
from benchmarks.chart import chart
from benchmarks.engine_stage import EngineStage, Sizes
from benchmarks.peers import INSTALL
from benchmarks.stores import installed, missing
from tailrace.bench.cases import Case, Result
from tailrace.bench.machine import Watcher
from tailrace.bench.runner import run

PARTS: dict[str, Callable[[EngineStage], list[Case]]] = {
    "append": engine_appends.durable_cases,
    "append-steady": engine_steady.cases,
    "threads": engine_appends.thread_cases,
    "append-quick": engine_appends.quick_cases,
    "producer": engine_appends.producer_cases,
    "extend": engine_batches.durable_cases,
    "extend-quick": engine_batches.quick_cases,
    "transaction": engine_batches.transaction_cases,
    "read": engine_reads.cases,
    "expiry": engine_expiry.cases,
    "schema": engine_schema.cases,
    "dedupe": engine_dedupe.cases,
    "follow": engine_follow.cases,
    "open": engine_opens.kill_cases,
    "open-topics": engine_opens.topic_cases,
    "open-cut": engine_opens.cut_cases,
    "segments": engine_segments.cases,
    "size": engine_size.cases,
}
LENGTHS = Lengths(seconds=240.0, rounds=7, quick_seconds=20.0, quick_rounds=3)
QUICK_LIMIT_SECONDS = 45.0
# The logs to open are the largest files of a full run; with this much to spare it does not fill a disk.
SPARE_BYTES = 5 * 10**9

INTRODUCTION = """\
# Benchmarks of the engine

What `benchmarks/run engine --write-docs` measured and wrote here. All systems take turns within every round, so that
whatever disturbs the machine disturbs all of them; rates are medians over the rounds, durations are medians and 99th
percentiles over all operations, ratios are medians of the ratios within a round.

- **Durability** stands beside every number. "On disk" survives a power cut; "survives kill" does not. SQLite's was
  asked of the connection that was measured; of LMDB and rocksdict it is the setting that is named. What waits for the
  disk and what does not are never in one table, but for LMDB's metasync=False, which lies between and stands with the
  latter.
- **plain file** is the limit of a table: the same bytes, already made, written by bare system calls to a file that
  grows, without offsets, checksums, other writers or readers. Ratios are against it. A durable append can be quicker
  than that: Tailrace writes zeros ahead, so that a sync need not record the growth of the file, and several threads
  share a sync.
- **bare loop** is what an append has to do at least, in one loop and without the append: it shows what is left to gain.
  Over zeros ahead a sync is quicker, but the disk answers later to a process that paused for some microseconds; a group
  commit costs switches between threads even when nothing else is done; making a frame and a state block under a lock
  takes most of the time of an append that does not wait. None of them has arguments, offsets that are checked, other
  processes, or a way to be interrupted.
- Every turn begins with a fresh topic, database or file and one write that is not timed, and what was written is
  removed after it, except in the **steady state**: there each store is filled with {steady} MB, stays open for the
  whole run, and every turn continues where the last one ended. SQLite then overwrites its write-ahead log instead of
  letting it grow, and RocksDB has begun other log files. The limit of those tables is a write over zeros that are on
  disk already, and its sync. The lead is the ratio to the best of the other systems.
- What does not wait for the disk is at most {turn} MB a turn, so that nothing measures the kernel's write-back.
- rocksdict admits one process at a time; Tailrace, LMDB, SQLite and the queues (but for persist-queue's Queue) are open
  to others while they are measured.
- A read has no durability; that column says what is checked. What is read was just written and is in memory.
- For receipt the clock starts before the append; SQLite has no way to wait for another process and is asked every
  millisecond. Queues are in the same table of the groups, below.
- Opening is timed in a fresh process, after its imports. A power cut is another boot id and an empty page cache; with
  "tails lost" recovery has to follow the newest segment of each partition from its beginning, which is the most that
  it ever reads of one (a segment has 256 MiB unless it is told otherwise).

![Tailrace beside others](benchmarks-engine.svg)
"""
# A section of its own, which a run of this part alone writes as well: other parts keep what was measured of them.
SEGMENTS_INTRODUCTION = """\
# Benchmarks of many segments

What `benchmarks/run engine --only segments --write-docs` measured and wrote here: questions that are answered from the
footers of segments, and how they grow with the number of segments ([decision](decisions/segment-facts.md)).

- **The first question** is timed in a fresh process, in time of the processor, beside a bare loop that opens every
  segment, reads twice and closes it: its ratio says what Tailrace adds to the least that has to be done.
- **The same question again** comes after one more append. Its ratio is against the log with the fewest segments: 1 is
  no growth at all.
- The ratios count. The durations are those of the machine below, as busy as it was then.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the requested parts; return 0 if they ran to the end, whatever they found."""
    asked = parse(arguments)
    # A terminated run exits like every other, so that its files are removed.
    signal.signal(signal.SIGTERM, _stop)
    results, facts = measure(asked)
    notes = _notes(facts, asked)
    print(report.text(results, facts, notes))
    for path in report.write(asked.results, "engine", results, facts, data=asked.json, picture=asked.svg):
        print(f"written: {path}")
    if asked.write_docs:
        _write_docs(results, facts, notes)
    return 0


def _write_docs(results: Sequence[Result], facts: dict[str, Any], notes: Sequence[str]) -> None:
    """Write the sections of what was measured; the questions about many segments have one of their own."""
    segments = [result for result in results if result.case.work in engine_segments.WORKS]
    others = [result for result in results if result.case.work not in engine_segments.WORKS]
    if others:
        picture = page.PAGE.with_name("benchmarks-engine.svg")
        picture.write_text(chart(others), "utf-8")
        page.put(_section(_introduction(facts), others, facts, notes))
        print(f"written: {picture}")
    if segments:
        page.put(_section(SEGMENTS_INTRODUCTION, segments, facts, notes))
    print(f"written: {page.PAGE}")


def _section(introduction: str, results: Sequence[Result], facts: dict[str, Any], notes: Sequence[str]) -> str:
    parts = [introduction, report.goal_table(results), "", report.markdown(results, facts, notes), ""]
    return "\n".join(parts)


def _introduction(facts: dict[str, Any]) -> str:
    turn, steady = engine_batches.TURN_BYTES_MAX >> 20, facts["steady_bytes"] // 10**6
    return INTRODUCTION.replace("{turn}", f"{turn}").replace("{steady}", f"{steady}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options, with the defaults of a quick or a full run filled in."""
    parser = argparse.ArgumentParser(prog="benchmarks/run engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data and fewer rounds, in about a minute")
    add_common(parser, PARTS, LENGTHS)
    parser.add_argument("--alone", action="store_true", help="Tailrace and the bare disk, without the others")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures (RESULTS/engine.json)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="where to write the chart (RESULTS/engine.svg)")
    return checked(parser, arguments, PARTS, LENGTHS)


def measure(asked: argparse.Namespace) -> tuple[list[Result], dict[str, Any]]:
    """Return the results, and the facts about the machine."""
    watcher = Watcher()
    progress = _progress if sys.stderr.isatty() else lambda _: None
    sizes = Sizes.quick(asked.seconds) if asked.quick else _that_fit(Sizes.full(), asked)
    with EngineStage(asked.results, sizes, [] if asked.alone else installed()) as stage:
        cases = []
        for part in PARTS:
            if part in asked.only:
                progress(f"preparing: {part}")
                cases += PARTS[part](stage)
        results = run(cases, asked.rounds, asked.seconds, QUICK_LIMIT_SECONDS if asked.quick else inf, progress)
        facts = {
            **watcher.facts(stage.directory),
            "quick": asked.quick,
            "rounds": max(len(result.rounds) for result in results),
            **sizes._asdict(),
        }
    progress("")
    packages = sorted({kind.package for kind in stage.stores} - {"sqlite3"} | _arrow())
    return results, {**facts, "versions": {package: version(package) for package in packages}}


def _arrow() -> set[str]:
    return {"pyarrow"} if importlib.util.find_spec("pyarrow") is not None else set()


def _that_fit(sizes: Sizes, asked: argparse.Namespace) -> Sizes:
    """Return the sizes, without logs to open that the disk has no room for."""
    asked.results.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(asked.results).free - SPARE_BYTES
    fitting = tuple(size for size in sizes.open_bytes if size < free)
    if fitting == sizes.open_bytes:
        return sizes
    left_out = ", ".join(engine_opens.told(size) for size in sizes.open_bytes if size >= free)
    print(f"The disk has no room for logs to open of {left_out}: left out.", file=sys.stderr)
    return sizes._replace(open_bytes=fitting or (10**7,))


def _notes(facts: dict[str, Any], asked: argparse.Namespace) -> list[str]:
    absent = ", ".join(missing())
    notes = []
    if absent and not asked.alone:
        notes.append(f"NOT INSTALLED, so not measured: {absent}. To have them: {INSTALL}")
    noise = report.noise(facts)
    return [*notes, noise] if noise else notes


def _progress(told: str) -> None:
    print(f"\r\x1b[K{told}", end="", file=sys.stderr, flush=True)


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
