"""Batches: a thousand records at a time from a list and from Arrow, and transactions over several partitions."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.engine_stage import (
    BATCH_RECORDS,
    LARGE_BYTES,
    SMALL_BYTES,
    TURN_BYTES_MAX,
    Bench,
    EngineStage,
    extending,
    size_told,
    values_of,
)
from tailrace.bench import plain
from tailrace.bench import system as own
from tailrace.bench.cases import MICROSECONDS, RATE, Case, Goal
from tailrace.bench.pace import Work, lasting, rated

LIST_GOAL, ARROW_GOAL = 0.5, 1.0
QUICK_GOAL, QUICK_LARGE_GOAL = 6_000_000, 0.5
PARTITIONS, TRANSACTION_GOAL = 8, 1.6
TRANSACTION_WORK = f"transaction of {PARTITIONS} records, durable, {SMALL_BYTES} B"


def durable_cases(stage: EngineStage) -> list[Case]:
    """Return the cases in which each batch is one write and one sync of the limit."""
    return [case for size in (SMALL_BYTES, LARGE_BYTES) for case in _durable(stage, size)]


def _durable(stage: EngineStage, size: int) -> list[Case]:
    work = f"extend of {BATCH_RECORDS:,} records, durable, {size_told(size)}"
    bench = Bench(stage, work, f"raw {work}", "write + fdatasync")
    small = size == SMALL_BYTES
    goals = {"list": (Goal("ratio", at_least=LIST_GOAL),), "Arrow": (Goal("ratio", at_least=ARROW_GOAL),)}
    return _batch_cases(bench, size, goals if small else {}, durable=True)


def quick_cases(stage: EngineStage) -> list[Case]:
    """Return the cases in which each batch is one write of the limit into the page cache, beside a copy in memory."""
    return [case for size in (SMALL_BYTES, LARGE_BYTES) for case in _quick(stage, size)]


def _quick(stage: EngineStage, size: int) -> list[Case]:
    work = f"extend of {BATCH_RECORDS:,} records, not durable, {size_told(size)}"
    bench = Bench(stage, work, f"raw {work}", "write")
    goal = Goal("median", at_least=QUICK_GOAL) if size == SMALL_BYTES else Goal("ratio", at_least=QUICK_LARGE_GOAL)
    made = _batch_cases(bench, size, {"list": (goal,)}, durable=False)
    data = b"".join(values_of(size))
    measure = rated(partial(plain.copied, data), BATCH_RECORDS, TURN_BYTES_MAX // len(data) * 10)
    copy = Case(work, "memory", "memcpy", plain.MEMORY, RATE, measure, against=bench.limit, told=bench.told)
    return [copy, *made]


def _batch_cases(bench: Bench, size: int, goals: dict[str, tuple[Goal, ...]], *, durable: bool) -> list[Case]:
    stage, values = bench.stage, values_of(size)
    data = b"".join(values)
    most = TURN_BYTES_MAX // len(data)
    raw = partial(plain.appended, stage.path("plain"), data, synced=durable)
    how = plain.FDATASYNC if durable else plain.PAGE_CACHE
    level = plain.ON_DISK if durable else plain.SURVIVES_KILL
    made = [bench.limiting(f"{how} of prebuilt bytes", level, raw, BATCH_RECORDS, most)]
    for name, given in [("list", values), *_arrow(values)]:
        work = partial(own.extended, stage.log, given, durable)
        made.append(
            Case(
                bench.work, "Tailrace", f"extend(), from {'a list' if name == 'list' else name}", own.level(durable),
                RATE, rated(work, BATCH_RECORDS, most), against=bench.limit, told=bench.told, goals=goals.get(name, ()),
            )
        )  # fmt: skip
    return made + [
        bench.beside(kind, kind.many, extending(stage, kind, values), BATCH_RECORDS, most)
        for kind in stage.kinds(durable=durable, value_bytes=size)
        if kind.many
    ]


def _arrow(values: list[bytes]) -> list[tuple[str, Any]]:
    if importlib.util.find_spec("pyarrow") is None:
        return []
    arrow = importlib.import_module("pyarrow")
    return [("Arrow", arrow.array(values, arrow.binary()))]


def transaction_cases(stage: EngineStage) -> list[Case]:
    """Return as many records in one partition and over several, beside transactions of databases."""
    values = values_of(SMALL_BYTES, PARTITIONS)
    one = "one partition"
    goals = (Goal("ratio", at_most=TRANSACTION_GOAL),)
    make = partial(Case, TRANSACTION_WORK, unit=MICROSECONDS, told=one)
    made = [
        make(
            "Tailrace", "transaction(), one partition", own.ON_DISK,
            measure=lasting(_transactions(stage, values, 1)), name=one,
        ),
        make(
            "Tailrace", f"transaction(), {PARTITIONS} partitions", own.ON_DISK,
            measure=lasting(_transactions(stage, values, PARTITIONS)), against=one, goals=goals,
        ),
    ]  # fmt: skip
    for kind in stage.kinds(durable=True, value_bytes=LARGE_BYTES):
        measure = lasting(extending(stage, kind, values))
        made.append(make(kind.label, kind.many, stage.level(kind), measure=measure, against=one))
    return made


def _transactions(stage: EngineStage, values: list[bytes], partitions: int) -> Work:
    @contextmanager
    def work() -> Iterator[Callable[[int], object]]:
        with own.fresh_topic(stage.log, PARTITIONS) as topic:

            def do(count: int) -> None:
                for _ in range(count):
                    with stage.log.transaction() as transaction:
                        for index, value in enumerate(values):
                            transaction.append(topic, value, partition=index % partitions)

            yield do

    return work
