"""Records that expire or are deleted: what that costs an append, a read, a delete and a rewrite."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, cycle
from time import perf_counter, sleep

import tailrace
from benchmarks.engine_appends import APPENDS_MAX
from benchmarks.engine_reads import CHECKED, whole
from benchmarks.engine_stage import BATCH_RECORDS, SMALL_BYTES, EngineStage, size_told, values_of
from tailrace.bench import system as own
from tailrace.bench.cases import MICROSECONDS, RATE, Case, Goal
from tailrace.bench.pace import rated

DURABLE_GOAL, QUICK_GOAL = 0.97, 0.9
READ_GOAL, HALF_GOAL = 0.9, 0.5
DELETE_GOAL, REWRITE_GOAL = 3.0, 0.3
DELETED = 1_000
REWRITTEN_BATCHES = 16
BYTE_RATE = "bytes/s"
LONG, SHORT = "1d", "1ms"
_names = count()


def cases(stage: EngineStage) -> list[Case]:
    """Return the appends, then the reads; every ratio is against the same work on records that do not expire."""
    return [*_appends(stage, True), *_appends(stage, False), *_reads(stage), *_deletes(stage), *_rewrites(stage)]


def _appends(stage: EngineStage, durable: bool) -> list[Case]:
    value = values_of(SMALL_BYTES, 1)[0]
    level = own.ON_DISK if durable else own.SURVIVES_KILL
    work = f"append with a ttl, {'durable' if durable else 'not durable'}, {size_told(SMALL_BYTES)}"
    plain = f"without a ttl: {work}"
    goal = Goal("ratio", at_least=DURABLE_GOAL if durable else QUICK_GOAL)
    make = partial(Case, work, "Tailrace", level=level, unit=RATE)

    def rate(ttl: str | None, default: str | None = None) -> Callable[[float], list[float]]:
        return rated(partial(_appended, stage.log, value, durable, ttl, default), 1, APPENDS_MAX)

    return [
        make(how="append()", measure=rate(None), name=plain),
        make(how="append(ttl=)", measure=rate(LONG), against=plain, told="without", goals=(goal,)),
        make(how="append(), ttl of the topic", measure=rate(None, LONG), against=plain, told="without", goals=(goal,)),
    ]


@contextmanager
def _appended(
    log: tailrace.Log, value: bytes, durable: bool, ttl: str | None, default: str | None
) -> Iterator[Callable[[int], object]]:
    """Yield a function for single appends to a new topic."""
    topic = log.topic(f"expiry.{next(_names)}", **({} if default is None else {"ttl": default}))
    append = topic.append

    def do(times: int) -> None:
        if ttl is None:
            for _ in range(times):
                append(value, durable=durable)
        else:
            for _ in range(times):
                append(value, ttl=ttl, durable=durable)

    try:
        append(value)
        yield do
    finally:
        topic.drop()


def _reads(stage: EngineStage) -> list[Case]:
    values = values_of(SMALL_BYTES)
    times = max(2, stage.sizes.read_bytes // (SMALL_BYTES * BATCH_RECORDS))
    topics = {
        "without a ttl": _filled(stage.log, values, times, None),
        "nothing expired": _filled(stage.log, values, times, LONG),
        "every second record expired": _filled(stage.log, values, times, LONG, SHORT),
    }
    sleep(0.01)
    forms: dict[str, Callable[[tailrace.Topic], int]] = {"records": _records}
    if importlib.util.find_spec("pyarrow") is not None:
        forms["Arrow"] = _arrow
    made = []
    for form, read in forms.items():
        work = f"read with a ttl to {form}, {size_told(SMALL_BYTES)}"
        plain = f"without a ttl: {work}"
        for how, topic in topics.items():
            goal = {"nothing expired": READ_GOAL, "every second record expired": HALF_GOAL}.get(how)
            made.append(
                Case(
                    work, "Tailrace", how, CHECKED, RATE, whole(partial(read, topic), read(topic)),
                    name=plain if goal is None else "", against="" if goal is None else plain, told="without",
                    goals=() if goal is None else (Goal("ratio", at_least=goal),),
                )
            )  # fmt: skip
    return made


def _deletes(stage: EngineStage) -> list[Case]:
    """Return a delete of many records in one call, beside one durable append."""
    work = f"delete of {DELETED:,} records in one call"
    topic = stage.log.topic(f"expiry.{next(_names)}", mutable=True)
    value = values_of(SMALL_BYTES, 1)[0]

    def appended(seconds: float) -> list[float]:
        return _timed(seconds, lambda: None, lambda: topic.append(value, durable=True))

    def deleted(seconds: float) -> list[float]:
        def delete() -> None:
            end = topic.offsets()[0].latest
            # Every second one, so that no two of them are one range.
            topic.delete(range(end - 2 * DELETED, end, 2))

        return _timed(seconds, lambda: topic.extend([value] * 2 * DELETED), delete)

    make = partial(Case, work, "Tailrace", level=own.ON_DISK, unit=MICROSECONDS)
    return [
        make(how="append() of one record", measure=appended, name=f"one append: {work}"),
        make(
            how=f"delete() of {DELETED:,}", measure=deleted, against=f"one append: {work}", told="one append",
            goals=(Goal("ratio", at_most=DELETE_GOAL),),
        ),
    ]  # fmt: skip


def _rewrites(stage: EngineStage) -> list[Case]:
    """Return a vacuum that takes half of the records out of a segment, beside a synced copy of its file."""
    work = "rewrite of a segment, half of its records expired"
    values = values_of(SMALL_BYTES)

    def rewritten(seconds: float) -> list[float]:
        # A log of its own: a vacuum looks at every topic.
        path = stage.path("rewritten")
        with tailrace.open(path) as log:
            topic = _filled(log, values, REWRITTEN_BATCHES, LONG, SHORT)
            sleep(0.01)
            size = log.topics(topic.name)[0].bytes
            start = perf_counter()
            report = log.vacuum()
            rate = size / (perf_counter() - start)
        shutil.rmtree(path)
        if sum(note.records for note in report.rewritten) != REWRITTEN_BATCHES * len(values) // 2:
            raise RuntimeError("The vacuum did not rewrite what had expired.")
        return [rate]

    def copied(seconds: float) -> list[float]:
        size = REWRITTEN_BATCHES * len(values) * SMALL_BYTES
        path, target = stage.path("copied"), stage.path("copy")
        path.write_bytes(bytes(size))
        start = perf_counter()
        with path.open("rb") as read, target.open("wb") as write:
            shutil.copyfileobj(read, write, 1 << 20)
            write.flush()
            os.fdatasync(write.fileno())
        rate = size / (perf_counter() - start)
        target.unlink()
        return [rate]

    make = partial(Case, work, unit=BYTE_RATE, level=own.ON_DISK)
    return [
        make("plain file", "copy, fdatasync", measure=copied, name=f"copy: {work}"),
        make(
            "Tailrace", "vacuum()", measure=rewritten, against=f"copy: {work}", told="a copy",
            goals=(Goal("ratio", at_least=REWRITE_GOAL),),
        ),
    ]  # fmt: skip


def _timed(seconds: float, before: Callable[[], object], act: Callable[[], object]) -> list[float]:
    """Return the microseconds of single calls, for as long as there is time."""
    begun, found = perf_counter(), []
    while not found or perf_counter() - begun < seconds:
        before()
        start = perf_counter()
        act()
        found.append((perf_counter() - start) * 1e6)
    return found


def _records(topic: tailrace.Topic) -> int:
    seen = 0
    for batch in topic.read().batches():
        seen += len([*batch])
    return seen


def _arrow(topic: tailrace.Topic) -> int:
    return sum(batch.to_arrow().num_rows for batch in topic.read().batches())


def _filled(log: tailrace.Log, values: list[bytes], times: int, *lives: str | None) -> tailrace.Topic:
    """Fill a topic by transactions, whose records share large frames, each record with the next of some lives."""
    topic = log.topic(f"expiry.{next(_names)}")
    for _ in range(times):
        with log.transaction() as transaction:
            for value, life in zip(values, cycle(lives), strict=False):
                transaction.append(topic, value, ttl=life)
    return topic
