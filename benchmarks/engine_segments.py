"""Many segments: what questions cost that are answered from footers, when nothing is known and when they come again.

A log has so many segments in one partition. Cold is the first question of a fresh process, beside a bare loop that
opens every file, reads its header and its end, and closes it. Warm is the same question again, with one more record
appended before each; its ratio is against the log with the fewest segments.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep, time
from typing import Any

import tailrace
from benchmarks.engine_opens import in_memory
from benchmarks.engine_stage import EngineStage
from tailrace.bench.cases import MICROSECONDS, MILLISECONDS, Case, Goal
from tailrace.bench.children import started
from tailrace.bench.pace import Pace

TOPIC = "many"
WORK_COLD, WORK_WARM = "many segments, first question of a process", "many segments, the same question again"
WORKS = frozenset({WORK_COLD, WORK_WARM})
COLD_GOAL, WARM_GOAL = 4.0, 1.5
RECORDS = 4
VALUE = b"." * 1_000
FIRST_US = 1_700_000_000_000_000
BARE = "bare loop"
HEADER_BYTES, TRAILER_BYTES = 64, 96
# A directory that changed so lately may change again within the same time stamp, and is listed each time.
SETTLED_SECONDS = 2.5

QUESTIONS: dict[str, Callable[[tailrace.Log, int], object]] = {
    "offset_at()": lambda log, segments: log.topic(TOPIC).offset_at(FIRST_US + segments * RECORDS // 2),
    "read().count()": lambda log, _: log.topic(TOPIC).read().count(),
    "topics()": lambda log, _: log.topics(),
    "vacuum(dry_run=True)": lambda log, _: log.vacuum(dry_run=True),
}


def cases(stage: EngineStage) -> list[Case]:
    """Both for every question and every number of segments."""
    places = {segments: _place(stage, segments) for segments in stage.sizes.segments}
    # What is appended to these would have to be followed by the first question of a process.
    others = {segments: _copied(path, stage.path("segments")) for segments, path in places.items()}
    newest = max((partition_path(path).stat().st_mtime for path in (*places.values(), *others.values())), default=0.0)
    sleep(max(0.0, newest + SETTLED_SECONDS - time()))
    made = []
    for segments, path in places.items():
        bare = f"bare loop over {segments:,} segments"
        made.append(_cold(bare, BARE, path, segments, name=bare, system="plain file"))
        for question in QUESTIONS:
            goals = (Goal("ratio", at_most=COLD_GOAL),)
            how = f"{question}, {segments:,} segments"
            made.append(_cold(how, question, path, segments, against=bare, told="the bare loop", goals=goals))
    fewest = min(places)
    for question in QUESTIONS:
        for segments, path in others.items():
            how = f"{question}, {segments:,} segments"
            related: dict[str, Any] = {"name": how}
            if segments > fewest:
                related = {"against": f"{question}, {fewest:,} segments", "told": f"{fewest:,} segments"}
                related["goals"] = (Goal("ratio", at_most=WARM_GOAL),)
            made.append(Case(WORK_WARM, "Tailrace", how, "-", MICROSECONDS, warm(path, question, segments), **related))
    return made


def _cold(how: str, question: str, path: Path, segments: int, system: str = "Tailrace", **related: Any) -> Case:
    def measure(_: float) -> list[float]:
        spec = {"path": str(path), "question": question, "segments": segments}
        with started("benchmarks.segment_asker", spec) as child:
            took: list[float] = child.answer()
            child.process.wait()
            return took

    return Case(WORK_COLD, system, how, "-", MILLISECONDS, measure, apart=True, **related)


def warm(path: Path, question: str, segments: int) -> Callable[[float], list[float]]:
    """A measurement of how many microseconds a question takes that was asked before."""
    pace = Pace(2, 10_000)
    ask = QUESTIONS[question]

    def measure(seconds: float) -> list[float]:
        took = []
        with tailrace.open(path, durable=False) as log:
            topic = log.topic(TOPIC)
            ask(log, segments)
            for _ in range(pace.count(seconds)):
                topic.append(b"one more", timestamp=FIRST_US)
                start = perf_counter()
                ask(log, segments)
                took.append((perf_counter() - start) * 1e6)
        pace.learn(len(took), sum(took) / 1e6)
        return took

    return measure


def bare_loop(directory: Path) -> int:
    """Open every segment, read its header and its end, close it; how many there are."""
    names = os.listdir(directory)
    for name in names:
        file = os.open(f"{directory}/{name}", os.O_RDONLY)
        os.pread(file, HEADER_BYTES, 0)
        os.pread(file, TRAILER_BYTES, os.fstat(file).st_size - TRAILER_BYTES)
        os.close(file)
    return len(names)


def partition_path(path: Path) -> Path:
    """Where the segments lie."""
    with tailrace.open(path, "r") as log:
        return path / log.engine.entry(TOPIC).directory / "0"


def _place(stage: EngineStage, segments: int) -> Path:
    path = stage.path("segments")
    with in_memory() as quick:
        # Every segment is a handful of syncs, which memory answers at once.
        made = quick / "segments" if quick is not None else path
        with tailrace.open(made, durable=False) as log:
            topic = log.topic(TOPIC, segment_bytes="4KiB")
            for number in range(segments):
                times = [FIRST_US + number * RECORDS + at for at in range(RECORDS)]
                topic.extend([VALUE] * RECORDS, timestamps=times)
            # What is appended while it is measured begins no segment.
            topic.alter(segment_bytes="256MiB")
        return path if made == path else _copied(made, path)


def _copied(source: Path, path: Path) -> Path:
    """A copy of a log; it is recovered when it is opened first."""
    shutil.copytree(source, path)
    tailrace.open(path).close()
    return path
