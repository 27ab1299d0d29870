"""Reads: a whole topic as Arrow and as records, beside the bare file, a file of framed records and databases."""

from __future__ import annotations

import importlib.util
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import tailrace
from benchmarks.engine_stage import BATCH_RECORDS, LARGE_BYTES, SMALL_BYTES, EngineStage, size_told, values_of
from benchmarks.stores import DATABASES, Store, StoreKind
from tailrace.bench import plain
from tailrace.bench import system as own
from tailrace.bench.cases import RATE, Case, Goal

ARROW_GOAL, RECORD_GOAL = 15_000_000, 1_800_000
CHECKED = "checksums and offsets checked"
UNCHECKED = "nothing checked"
LEVELS = {"sqlite3": "no checksums", "lmdb": "no checksums", "rocksdict": "checksums of blocks checked"}
CHUNK_BYTES = 256 << 10
HEAD = struct.Struct("<II")


def cases(stage: EngineStage) -> list[Case]:
    """Return the cases for both sizes of values; the data was written just before and is in memory."""
    return [case for size in (SMALL_BYTES, LARGE_BYTES) for case in _sized(stage, size)]


def _sized(stage: EngineStage, size: int) -> list[Case]:
    values = values_of(size)
    times = max(2, stage.sizes.read_bytes // (size * BATCH_RECORDS))
    records = times * BATCH_RECORDS
    topic = own.filled(stage.log, f"read.{size}", values, times)
    path = stage.path("plain")
    path.write_bytes(b"".join(values) * times)
    made = []
    if importlib.util.find_spec("pyarrow") is not None:
        made += _arrow_cases(topic, path, size, records)
    return made + _record_cases(stage, topic, values, times)


def _arrow_cases(topic: tailrace.Topic, path: Path, size: int, records: int) -> list[Case]:
    work = f"read to Arrow, {size_told(size)}"
    raw = f"raw {work}"

    def batches() -> int:
        return sum(batch.to_arrow().num_rows for batch in topic.read().batches())

    def bare() -> int:
        with plain.file_read(path, CHUNK_BYTES) as read:
            return read(1) // size

    goals = (Goal("median", at_least=ARROW_GOAL),) if size == SMALL_BYTES else ()
    make = partial(Case, work, unit=RATE)
    return [
        make("plain file", "read, nothing looked at", UNCHECKED, measure=whole(bare, records), name=raw),
        make(
            "Tailrace", "read().batches(), to_arrow()", CHECKED, measure=whole(batches, records),
            against=raw, told="read", goals=goals,
        ),
        make(
            "Tailrace", "read().to_arrow(), one table", CHECKED,
            measure=whole(lambda: int(topic.read().to_arrow().num_rows), records), against=raw, told="read",
        ),
    ]  # fmt: skip


def _record_cases(stage: EngineStage, topic: tailrace.Topic, values: list[bytes], times: int) -> list[Case]:
    size, records = len(values[0]), times * len(values)
    work = f"read to records, {size_told(size)}"
    raw = f"raw {work}"
    framed = stage.path("framed")
    framed.write_bytes(b"".join(HEAD.pack(len(value), zlib.crc32(value)) + value for value in values) * times)

    def iterated() -> int:
        seen = 0
        for _ in topic.read():
            seen += 1
        return seen

    def valued() -> int:
        return sum(len(batch.values()) for batch in topic.read().batches())

    goals = (Goal("median", at_least=RECORD_GOAL),) if size == SMALL_BYTES else ()
    make = partial(Case, work, unit=RATE)
    made = [
        make(
            "plain file", "length, CRC-32, value; checked in Python", "checksums checked",
            measure=whole(lambda: read_framed(framed), records), name=raw,
        ),
        make(
            "Tailrace", "for record in read()", CHECKED, measure=whole(iterated, records),
            against=raw, told="framed file", goals=goals,
        ),
        make(
            "Tailrace", "read().batches(), values()", CHECKED, measure=whole(valued, records),
            against=raw, told="framed file",
        ),
    ]  # fmt: skip
    for kind in stage.stores:
        if kind.scans and kind.durable and kind.package in DATABASES:
            store = _filled(stage, kind, values, times)
            level, measure = LEVELS[kind.package], whole(store.scan, records)
            how = "every key and value"
            made.append(make(kind.label, how, level, measure=measure, against=raw, told="framed file"))
    return made


def _filled(stage: EngineStage, kind: StoreKind, values: list[bytes], times: int) -> Store:
    store = kind.open(stage.path(kind.key))
    stage.closing.callback(store.close)
    for _ in range(times // 10):
        store.extend(values * 10)
    for _ in range(times % 10):
        store.extend(values)
    store.settle()
    return store


def read_framed(path: Path) -> int:
    """Read like a log in plain Python: a length, a checksum and a value for each record."""
    seen = position = 0
    data = path.read_bytes()
    while position < len(data):
        length, checksum = HEAD.unpack_from(data, position)
        position += HEAD.size
        value = data[position : position + length]
        if zlib.crc32(value) != checksum:
            raise ValueError(f"{path}: damaged at {position}")
        position += length
        seen += 1
    return seen


def whole(read: Callable[[], int], records: int) -> Callable[[float], list[float]]:
    """Return a measurement that reads everything repeatedly for as long as there is time."""

    def measure(seconds: float) -> list[float]:
        begun = perf_counter()
        rates = []
        while True:
            start = perf_counter()
            seen = read()
            rates.append(records / (perf_counter() - start))
            if seen != records:
                raise RuntimeError(f"{seen} records were read of {records}.")
            # One more would take as long as the ones before.
            if (perf_counter() - begun) * (1 + 1 / len(rates)) > seconds:
                return rates

    return measure
