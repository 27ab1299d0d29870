"""Appends: one record at a time, on disk and not, by one thread and by many, and through a producer."""

from __future__ import annotations

from functools import partial

from benchmarks import engine_bare as bare
from benchmarks.engine_stage import (
    LARGE_BYTES,
    SMALL_BYTES,
    TURN_BYTES_MAX,
    Bench,
    EngineStage,
    appending,
    size_told,
    values_of,
)
from tailrace.bench import plain
from tailrace.bench import system as own
from tailrace.bench.cases import RATE, Case, Goal
from tailrace.bench.children import started
from tailrace.bench.pace import rated

TEN_GOAL, MANY_GOAL = 3.0, 4.0
QUICK_GOAL, PRODUCER_GOAL = 150_000, 1_000_000
TEN, MANY = 10, 64
APPENDS_MAX = 500_000
# Work between two syncs, in microseconds: little, and about what an append does besides its system calls.
WORKS_US = (10, 20)


def durable_cases(stage: EngineStage) -> list[Case]:
    """Return the cases of one thread, each record on disk before the next."""
    return [case for size in (SMALL_BYTES, LARGE_BYTES) for case in _durable(stage, size)]


def _durable(stage: EngineStage, size: int) -> list[Case]:
    value = values_of(size, 1)[0]
    work = f"append of one record, durable, one thread, {size_told(size)}"
    bench = Bench(stage, work, f"raw {work}", "append + fdatasync")
    raw = partial(plain.appended, stage.path("plain"), value, synced=True)
    own_work = partial(own.appended, stage.log, value, True)
    return [
        bench.limiting(plain.FDATASYNC, plain.ON_DISK, raw, 1, APPENDS_MAX),
        *(_bare_durable(bench, value) if size == SMALL_BYTES else []),
        Case(
            work, "Tailrace", "append()", own.ON_DISK, RATE, rated(own_work, 1, APPENDS_MAX),
            against=bench.limit, told=bench.told,
        ),
        *[
            bench.beside(kind, kind.one, appending(stage, kind, value), 1, APPENDS_MAX)
            for kind in stage.kinds(durable=True, value_bytes=size)
            if kind.one
        ],
    ]  # fmt: skip


def _bare_durable(bench: Bench, value: bytes) -> list[Case]:
    """Return the same over preallocated zeros: with nothing between two syncs, and with some work there."""
    path = bench.stage.path("zeros")
    how = "write over zeros, fdatasync"
    return [
        bench.bare(how, plain.ON_DISK, partial(bare.zeros_ahead, path, value), APPENDS_MAX),
        *[
            bench.bare(
                f"{how}, {work} us of work", plain.ON_DISK, partial(bare.zeros_ahead, path, value, work), APPENDS_MAX
            )
            for work in WORKS_US
        ],
    ]


def thread_cases(stage: EngineStage) -> list[Case]:
    """Return the cases of many threads on one partition, each append on disk on return; the limit has one thread."""
    value = values_of(SMALL_BYTES, 1)[0]
    work = f"append of one record, durable, many threads on one partition, {size_told(SMALL_BYTES)}"
    bench = Bench(stage, work, f"raw {work}", "append + fdatasync, one thread")
    raw = partial(plain.appended, stage.path("plain"), value, synced=True)
    made = [bench.limiting(f"{plain.FDATASYNC}; one thread", plain.ON_DISK, raw, 1, APPENDS_MAX)]
    for threads, goal in ((TEN, TEN_GOAL), (MANY, MANY_GOAL)):
        bare_work = partial(bare.gathered, stage.path("zeros"), value, threads)
        how = f"{threads} threads share a write over zeros and its sync"
        made.append(bench.bare(how, plain.ON_DISK, bare_work, APPENDS_MAX, threads))
        own_work = partial(own.appended, stage.log, value, True, threads)
        made.append(
            Case(
                work, "Tailrace", f"append() by {threads} threads", own.ON_DISK, RATE,
                rated(own_work, 1, APPENDS_MAX, step=threads, pieces=1),
                against=bench.limit, told=bench.told, goals=(Goal("ratio", at_least=goal),),
            )
        )  # fmt: skip
    for kind in stage.kinds(durable=True, value_bytes=SMALL_BYTES):
        if kind.threads:
            how = f"{kind.one} by {TEN} threads"
            made.append(bench.beside(kind, how, appending(stage, kind, value, TEN), 1, APPENDS_MAX, TEN))
    return made


def quick_cases(stage: EngineStage) -> list[Case]:
    """Return the cases of one thread that does not wait for the disk, while another process has the log open."""
    path = {"path": str(stage.directory / "log")}
    holder = stage.closing.enter_context(started("benchmarks.holder", path))
    holder.answer()
    return [case for size in (SMALL_BYTES, LARGE_BYTES) for case in _quick(stage, size)]


def _quick(stage: EngineStage, size: int) -> list[Case]:
    value = values_of(size, 1)[0]
    most = min(APPENDS_MAX, TURN_BYTES_MAX // (size + 100))
    work = f"append of one record, not durable, {size_told(size)}"
    bench = Bench(stage, work, f"raw {work}", "write")
    goals = (Goal("median", at_least=QUICK_GOAL),) if size == SMALL_BYTES else ()
    raw = partial(plain.appended, stage.path("plain"), value, synced=False)
    own_work = partial(own.appended, stage.log, value, False)
    return [
        bench.limiting(plain.PAGE_CACHE, plain.SURVIVES_KILL, raw, 1, most),
        bench.bare(
            "lock, frame, write, state, unlock in one loop", plain.SURVIVES_KILL,
            partial(bare.lean, stage.path("lean"), value), most,
        ),
        Case(
            work, "Tailrace", "append(durable=False), another process has it open", own.SURVIVES_KILL, RATE,
            rated(own_work, 1, most), against=bench.limit, told=bench.told, goals=goals,
        ),
        *[
            bench.beside(kind, kind.one, appending(stage, kind, value), 1, most)
            for kind in stage.kinds(durable=False, value_bytes=size)
            if kind.one
        ],
    ]  # fmt: skip


def producer_cases(stage: EngineStage) -> list[Case]:
    """Return the case of records given to a producer one by one, until the last of them is on disk."""
    value = values_of(SMALL_BYTES, 1)[0]
    work = f"producer, {size_told(SMALL_BYTES)}"
    most = TURN_BYTES_MAX // SMALL_BYTES
    measure = rated(partial(own.produced, stage.log, value), 1, most, first=20_000, pieces=1)
    goals = (Goal("median", at_least=PRODUCER_GOAL),)
    how = "producer.append() one by one, flush()"
    return [Case(work, "Tailrace", how, "on disk when its future has a result", RATE, measure, goals=goals)]
