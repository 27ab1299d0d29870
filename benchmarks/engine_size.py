"""Size: how many bytes of disk a record takes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import tailrace
from benchmarks.engine_stage import BATCH_RECORDS, LARGE_BYTES, SMALL_BYTES, EngineStage
from benchmarks.stores import StoreKind, files_of
from tailrace.bench import system as own
from tailrace.bench.cases import SIZE, Case, Goal

WORK = f"bytes on disk, {SMALL_BYTES} B with a key of 10 B, batches of {BATCH_RECORDS:,}, no compression"
KEY_BYTES = 10
GOAL_BYTES = 120
RECORDS_MIN = 1_000_000


def cases(stage: EngineStage) -> list[Case]:
    """Return the cases: how much larger the directory is than when empty, once everything is closed."""
    random_bytes = random.Random(1).randbytes
    keys = [random_bytes(KEY_BYTES) for _ in range(BATCH_RECORDS)]
    values = [random_bytes(SMALL_BYTES) for _ in range(BATCH_RECORDS)]
    times = stage.sizes.sized_records // BATCH_RECORDS
    # The newest segment has up to a mebibyte of zeros written ahead, which is much beside few records.
    goals = (Goal("median", at_most=GOAL_BYTES),) if stage.sizes.sized_records >= RECORDS_MIN else ()

    def own_size(_: float) -> list[float]:
        path = stage.path("sized")
        with tailrace.open(path) as log:
            log.topic("sized", partitions=1)
        before = disk_bytes(path)
        with tailrace.open(path) as log:
            topic = log.topic("sized")
            for _ in range(times):
                topic.extend(values, keys=keys)
        return [_grown(path, before, times)]

    made = [Case(WORK, "Tailrace", "extend(), keys=", own.ON_DISK, SIZE, own_size, goals=goals, once=True)]
    for kind in stage.kinds(durable=True, value_bytes=LARGE_BYTES):
        how = {"sqlite3": "columns key and value"}.get(kind.package, "key in front of the value")
        measure = _store_size(stage, kind, values, keys, times)
        made.append(Case(WORK, kind.label, how, stage.level(kind), SIZE, measure, once=True))
    return made


def _store_size(
    stage: EngineStage, kind: StoreKind, values: Sequence[bytes], keys: Sequence[bytes], times: int
) -> Callable[[float], list[float]]:
    def measure(_: float) -> list[float]:
        path = stage.path(kind.key)
        kind.open(path).close()
        before = disk_bytes(path)
        store = kind.open(path)
        for _ in range(times):
            store.extend(values, keys)
        store.settle()
        store.close()
        return [_grown(path, before, times)]

    return measure


def _grown(path: Path, before: int, times: int) -> float:
    found = (disk_bytes(path) - before) / (times * BATCH_RECORDS)
    shutil.rmtree(path)
    return found


def disk_bytes(directory: Path) -> int:
    """Return the disk space that the files of a directory take."""
    return sum(path.stat().st_blocks * 512 for path in files_of(directory))
