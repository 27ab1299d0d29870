"""Writes with a dedupe id: what that costs an append, by one thread and by many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import tailrace
from benchmarks.engine_appends import APPENDS_MAX
from benchmarks.engine_stage import SMALL_BYTES, EngineStage, size_told, values_of
from tailrace.bench import system as own
from tailrace.bench.cases import RATE, Case, Goal
from tailrace.bench.pace import rated
from tailrace.bench.workers import worker_threads

# The least part of the rate without ids, by threads; None: measured, without a goal.
GOALS = {1: 0.9, 16: 0.7, 64: None}
_names = count()


def cases(stage: EngineStage) -> list[Case]:
    """Return durable appends without and with ids; every ratio is against the same threads without."""
    value = values_of(SMALL_BYTES, 1)[0]
    made = []
    for threads, least in GOALS.items():
        told = "one thread" if threads == 1 else f"{threads} threads"
        work = f"append with a dedupe id, durable, {told}, {size_told(SMALL_BYTES)}"
        plain = f"without an id: {work}"
        make = partial(Case, work, "Tailrace", level=own.ON_DISK, unit=RATE)
        goals = () if least is None else (Goal("ratio", at_least=least),)
        made += [
            make(how="append()", measure=_rate(stage, value, threads, with_ids=False), name=plain),
            make(
                how="append(dedupe_id=)", measure=_rate(stage, value, threads, with_ids=True), against=plain,
                told="without", goals=goals,
            ),
        ]  # fmt: skip
    return made


def _rate(stage: EngineStage, value: bytes, threads: int, *, with_ids: bool) -> Callable[[float], list[float]]:
    work = partial(_appended, stage.log, value, threads, with_ids)
    return rated(work, 1, APPENDS_MAX, step=threads, pieces=1 if threads > 1 else 5)


@contextmanager
def _appended(log: tailrace.Log, value: bytes, threads: int, with_ids: bool) -> Iterator[Callable[[int], object]]:
    """Yield a function for durable appends by threads to one partition of a new topic."""
    topic = log.topic(f"dedupe.{next(_names)}")
    append = topic.append

    def job(times: int) -> None:
        if with_ids:
            first = next(_names)
            for number in range(times):
                append(value, dedupe_id=f"{first}-{number}", durable=True)
        else:
            for _ in range(times):
                append(value, durable=True)

    try:
        append(value)
        with worker_threads([job] * threads) as run:
            yield run
    finally:
        topic.drop()
