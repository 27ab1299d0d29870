"""Opening: how long a log takes to open after its process was killed, and after the power was cut.

A victim has the log open, appends and is killed. For a power cut the log is opened under another boot id, as it would
be after a reboot, with none of it in the page cache; "tails lost" also removes the file of the tails, which a cut may
leave in any older state. The time runs from the call of open() in a new process to the known end of a topic; importing
comes before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import tailrace
from benchmarks.engine_stage import LARGE_BYTES, SMALL_BYTES, EngineStage, values_of
from benchmarks.stores import StoreKind, files_of
from tailrace.bench import system as own
from tailrace.bench.cases import MILLISECONDS, Case, Goal
from tailrace.bench.children import started

GOAL_MS = 100
WORK_KILL, WORK_CUT = "open after a kill", "open after a power cut"
TOPIC = "opened"
BOOT_ID_VARIABLE = "TAILRACE_BOOT_ID"
# Where files are memory on Linux, and how much has to be free there.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 1 << 30

_boots = count()


class Place(NamedTuple):
    """A log, or a store, to open."""

    path: Path
    # The key of a store, "" for a log of Tailrace.
    kind: str = ""

    def spec(self) -> dict[str, Any]:
        return {"path": str(self.path), "kind": self.kind, "topic": TOPIC}


def kill_cases(stage: EngineStage) -> list[Case]:
    """Return the cases of one large topic; the databases beside the smallest of them."""
    made = [_killed_case(_named(size), _large(stage, size)) for size in stage.sizes.open_bytes]
    first = stage.sizes.open_bytes[0]
    for kind in stage.kinds(durable=True, value_bytes=LARGE_BYTES):
        measure = after_kill(_large_store(stage, kind, first))
        made.append(Case(WORK_KILL, kind.label, told(first), stage.level(kind), MILLISECONDS, measure, apart=True))
    return made


def topic_cases(stage: EngineStage) -> list[Case]:
    """Return the cases of many topics with a record each."""
    place, how = _wide(stage), f"{stage.sizes.topics:,} topics"
    return [_killed_case(how, place), _cut_case(how, after_cut(place))]


def cut_cases(stage: EngineStage) -> list[Case]:
    """Return one large topic, and the worst case of a recovery: a segment of single appends followed from its start."""
    first = stage.sizes.open_bytes[0]
    singles = f"{stage.sizes.singles:,} single appends in the newest segment"
    return [
        *[_cut_case(_named(size), after_cut(_large(stage, size))) for size in stage.sizes.open_bytes],
        _cut_case(f"{_named(first)}, tails lost", after_cut(_large(stage, first), tails_lost=True)),
        _cut_case(f"{singles}, tails lost", after_cut(_singles(stage), tails_lost=True)),
    ]


def _killed_case(how: str, place: Place) -> Case:
    level, goals = "all acknowledged records are there", (Goal("median", at_most=GOAL_MS),)
    return Case(WORK_KILL, "Tailrace", how, level, MILLISECONDS, after_kill(place), goals=goals, apart=True)


def _cut_case(how: str, measure: Callable[[float], list[float]]) -> Case:
    return Case(WORK_CUT, "Tailrace", how, "all records that were on disk are there", MILLISECONDS, measure, apart=True)


def _named(size: int) -> str:
    return f"{told(size)} in one topic"


def after_kill(place: Place) -> Callable[[float], list[float]]:
    """Return a measurement of one open on the same boot."""

    def measure(_: float) -> list[float]:
        _killed(place, {})
        return [_opened(place, {})]

    return measure


def after_cut(place: Place, *, tails_lost: bool = False) -> Callable[[float], list[float]]:
    """Return a measurement of one open on another boot."""

    def measure(_: float) -> list[float]:
        _killed(place, {BOOT_ID_VARIABLE: f"boot {next(_boots)}"})
        if tails_lost:
            (place.path / "tails").unlink()
        forget(place.path)
        return [_opened(place, {BOOT_ID_VARIABLE: f"boot {next(_boots)}"})]

    return measure


def _killed(place: Place, variables: dict[str, str]) -> None:
    with started("benchmarks.victim", place.spec(), variables) as child:
        child.answer()
        child.kill()
        child.process.wait()


def _opened(place: Place, variables: dict[str, str]) -> float:
    with started("benchmarks.opener", place.spec(), variables) as child:
        found: float = child.answer()
        # It closes the log and ends.
        child.process.wait()
        return found


def forget(directory: Path) -> None:
    """Drop the files of a directory from the page cache, like a reboot does."""
    for path in files_of(directory):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def told(size: int) -> str:
    return f"{size / 1e9:g} GB" if size >= 10**9 else f"{size / 1e6:.0f} MB"


def _large(stage: EngineStage, size: int) -> Place:
    path = stage.directory / f"large-{size}"
    if path.exists():
        return Place(path)
    values = values_of(LARGE_BYTES)
    with tailrace.open(path) as log:
        own.filled(log, TOPIC, values, max(1, size // (LARGE_BYTES * len(values))))
    return Place(path)


def _large_store(stage: EngineStage, kind: StoreKind, size: int) -> Place:
    path = stage.path(kind.key)
    values = values_of(LARGE_BYTES) * 10
    store = kind.open(path)
    for _ in range(max(1, size // (LARGE_BYTES * len(values)))):
        store.extend(values)
    store.close()
    return Place(path, kind.key)


def _wide(stage: EngineStage) -> Place:
    path = stage.path("wide")
    with in_memory() as quick:
        # Every new topic is a handful of syncs, which are instant in memory.
        made = quick / "wide" if quick is not None else path
        with tailrace.open(made) as log:
            log.topic(TOPIC).append(b"first")
            for number in range(1, stage.sizes.topics):
                log.topic(f"topic.{number}").append(b"first", durable=False)
        if made != path:
            shutil.copytree(made, path)
    # A copy is recovered when it is opened first.
    tailrace.open(path).close()
    return Place(path)


@contextmanager
def in_memory() -> Iterator[Path | None]:
    """Yield a directory in memory for the block, or None if there is none."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=MEMORY) as directory:
        yield Path(directory)


def _singles(stage: EngineStage) -> Place:
    path = stage.path("singles")
    value = values_of(SMALL_BYTES, 1)[0]
    with tailrace.open(path, durable=False) as log:
        topic = log.topic(TOPIC)
        for _ in range(stage.sizes.singles):
            topic.append(value)
    return Place(path)
