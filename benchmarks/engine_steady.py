"""Durable appends in the steady state: every system has been written to for a while before it is measured.

A fresh store has costs that it loses later, and savings that it loses too: SQLite lets its write-ahead log grow until
the first checkpoint and overwrites it from then on, which spares each sync the growth of a file; RocksDB begins another
log file and another table with every 64 MB; a topic has filled segments. So each store is filled once, stays open for
the whole run, and every turn continues where the last one ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import tailrace
from benchmarks.engine_bare import lean, zeros_file
from benchmarks.engine_stage import LARGE_BYTES, SMALL_BYTES, Bench, EngineStage, size_told, values_of
from benchmarks.stores import Store, StoreKind
from tailrace.bench import plain
from tailrace.bench import system as own
from tailrace.bench.cases import RATE, Case, Goal
from tailrace.bench.pace import Work, rated

LIMIT_GOAL = 0.9
APPENDS_MAX = 500_000
# The file of the limit; its end is never reached in one turn, and the next turn begins at its start.
LIMIT_BYTES = 64 << 20
# The maximum overhead of a frame of one record.
FRAME_BYTES = 128


def cases(stage: EngineStage) -> list[Case]:
    """Return the cases of one thread, each record on disk before the next, in stores that are neither new nor empty."""
    return [case for size in (SMALL_BYTES, LARGE_BYTES) for case in _durable(stage, size)]


def _durable(stage: EngineStage, size: int) -> list[Case]:
    value = values_of(size, 1)[0]
    work = f"append of one record, durable, one thread, steady state, {size_told(size)}"
    bench = Bench(stage, work, f"raw {work}", "write over zeros + fdatasync")
    goals = (Goal("ratio", at_least=LIMIT_GOAL), Goal("lead", at_least=1.0)) if size == SMALL_BYTES else ()
    topic = own.filled(stage.log, f"steady.{size}", values_of(size), stage.sizes.steady_bytes // size // 1_000)
    _append_singly(stage, topic.append, value)
    return [
        bench.limiting(
            "write over zeros, fdatasync", plain.ON_DISK, partial(_over_zeros, stage.path("limit"), value), 1,
            min(APPENDS_MAX, LIMIT_BYTES // size - 1),
        ),
        bench.bare(
            "lock, frame, write, state, sync, unlock in one loop", plain.ON_DISK,
            partial(lean, stage.path("lean"), value, LIMIT_BYTES),
            min(APPENDS_MAX, LIMIT_BYTES // (size + FRAME_BYTES) - 1),
        ),
        Case(
            work, "Tailrace", "append()", own.ON_DISK, RATE, rated(_going_on(topic, value), 1, APPENDS_MAX),
            against=bench.limit, told=bench.told, goals=goals,
        ),
        *[
            bench.beside(kind, kind.one, partial(_keeping_on, _filled(stage, kind, size), value), 1, APPENDS_MAX)
            for kind in stage.kinds(durable=True, value_bytes=size)
            if kind.one
        ],
    ]  # fmt: skip


def _going_on(topic: tailrace.Topic, value: bytes) -> Work:
    @contextmanager
    def work() -> Iterator[Callable[[int], object]]:
        yield own.append_to(topic, value, True)

    return work


def _filled(stage: EngineStage, kind: StoreKind, size: int) -> Store:
    """Return a store with records in it, which stays open until the run ends."""
    store = kind.open(stage.path(f"steady-{kind.key}"))
    stage.closing.callback(store.close)
    if kind.many:
        values = values_of(size)
        for _ in range(stage.sizes.steady_bytes // size // 1_000):
            store.extend(values)
    _append_singly(stage, store.append, values_of(size, 1)[0])
    return store


def _append_singly(stage: EngineStage, append: Callable[[bytes], object], value: bytes) -> None:
    for _ in range(stage.sizes.steady_singles):
        append(value)


@contextmanager
def _keeping_on(store: Store, value: bytes) -> Iterator[Callable[[int], None]]:
    append = store.append

    def do(count: int) -> None:
        for _ in range(count):
            append(value)

    yield do


@contextmanager
def _over_zeros(path: Path, data: bytes) -> Iterator[Callable[[int], None]]:
    """Yield a function that writes the same bytes into a file of zeros that is on disk, each write synced."""
    file = zeros_file(path, LIMIT_BYTES)
    position = 0

    def write(count: int) -> None:
        nonlocal position
        for _ in range(count):
            os.pwrite(file, data, position)
            plain.sync_file(file)
            position += len(data)

    try:
        yield write
    finally:
        os.close(file)
        path.unlink(missing_ok=True)
