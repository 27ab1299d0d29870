"""The stage of the engine: its directory, the sizes of data, and stores that are created for a measurement."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

from benchmarks.stage import Stage
from benchmarks.stores import DATABASES, Store, StoreKind
from tailrace.bench.cases import RATE, Case
from tailrace.bench.pace import PIECES, Work, rated
from tailrace.bench.workers import worker_threads

BATCH_RECORDS = 1_000
SMALL_BYTES, LARGE_BYTES = 100, 1_000
# What is written in one turn without waiting for the disk is bounded, so that the kernel does not throttle it.
TURN_BYTES_MAX = 96 << 20


class Sizes(NamedTuple):
    """The amounts of data in a run."""

    read_bytes: int
    sized_records: int
    open_bytes: tuple[int, ...]
    topics: int
    # Single appends in the segment that a recovery has to follow.
    singles: int
    # What a store holds before its steady state is measured.
    steady_bytes: int
    # Single appends after that: in a full run enough for SQLite's log, of 1,000 pages, to wrap around.
    steady_singles: int
    # The segments of the logs that are asked about them; others are compared with the first.
    segments: tuple[int, ...]

    @classmethod
    def full(cls) -> Sizes:
        return cls(200 << 20, 2_500_000, (10**9, 10**10), 10_000, 1_000_000, 200_000_000, 3_000, (100, 1_000, 5_000))

    @classmethod
    def quick(cls, seconds: float) -> Sizes:
        """Return the sizes of a quick run, in proportion to the seconds of measuring."""
        records = int(min(1.0, seconds / 10) * 200_000)
        return cls(
            records * SMALL_BYTES, max(10_000, records), (max(2 << 20, records * 500),), records // 200, 10_000,
            records * SMALL_BYTES, 30, (20, max(60, records // 200)),
        )  # fmt: skip


class EngineStage(Stage):
    """One run's directory, with the stores to measure beside."""

    def __init__(self, parent: Path, sizes: Sizes, stores: Sequence[StoreKind]) -> None:
        super().__init__(parent, 0, 0, [])
        self.sizes = sizes
        self.stores = stores
        self.numbers = count()

    def path(self, name: str) -> Path:
        """Return an unused path."""
        return self.directory / f"{name}-{next(self.numbers)}"

    def kinds(self, *, durable: bool, value_bytes: int) -> list[StoreKind]:
        """Return the stores of a level; for large values, which say little more, only the databases."""
        return [
            kind
            for kind in self.stores
            if kind.durable == durable and (value_bytes == SMALL_BYTES or kind.package in DATABASES)
        ]

    @contextmanager
    def fresh(self, kind: StoreKind) -> Iterator[Store]:
        """Create an empty store for the block, and remove it afterwards."""
        path = self.path(kind.key)
        store = kind.open(path)
        try:
            yield store
        finally:
            store.close()
            shutil.rmtree(path)

    def level(self, kind: StoreKind) -> str:
        """Return what survives a commit, as the store itself reports it."""
        with self.fresh(kind) as store:
            return store.level()


class Bench(NamedTuple):
    """The common part of the cases of one kind of work: its name, and the limit that ratios are against."""

    stage: EngineStage
    work: str
    limit: str
    told: str

    def limiting(self, how: str, level: str, work: Work, records: int, most: int) -> Case:
        """Return the case of the limit itself."""
        measure = rated(work, records, most)
        return Case(self.work, "plain file", how, level, RATE, measure, name=self.limit)

    def bare(self, how: str, level: str, work: Work, most: int, threads: int = 1) -> Case:
        """Return a case with some steps of the same work."""
        measure = rated(work, 1, most, step=threads, pieces=PIECES if threads == 1 else 1)
        return Case(self.work, "bare loop", how, level, RATE, measure, against=self.limit, told=self.told)

    def beside(self, kind: StoreKind, how: str, work: Work, records: int, most: int, threads: int = 1) -> Case:
        """Return the case of a store beside the limit."""
        # Several threads take a moment to begin and to end.
        measure = rated(work, records, most, step=threads, pieces=PIECES if threads == 1 else 1)
        level = self.stage.level(kind)
        return Case(self.work, kind.label, how, level, RATE, measure, against=self.limit, told=self.told, peer=True)


def appending(stage: EngineStage, kind: StoreKind, value: bytes, threads: int = 1) -> Work:
    """Return the work of single appends to a new store."""

    @contextmanager
    def work() -> Iterator[Callable[[int], object]]:
        with stage.fresh(kind) as store:
            writers = [store] if threads == 1 else [store.another() for _ in range(threads)]
            with worker_threads([_repeated(writer, value) for writer in writers]) as run:
                yield run

    return work


def extending(stage: EngineStage, kind: StoreKind, values: Sequence[bytes]) -> Work:
    """Return the work of commits of many values to a new store."""

    @contextmanager
    def work() -> Iterator[Callable[[int], object]]:
        with stage.fresh(kind) as store:
            extend = store.extend

            def do(count: int) -> None:
                for _ in range(count):
                    extend(values)

            yield do

    return work


def _repeated(store: Store, value: bytes) -> Callable[[int], None]:
    append = store.append

    def do(count: int) -> None:
        for _ in range(count):
            append(value)

    return do


def values_of(value_bytes: int, records: int = BATCH_RECORDS) -> list[bytes]:
    """Return distinct values, as plain text, because one of the peers stores nothing else."""
    return [f"{number:020d}".encode().ljust(value_bytes, b".") for number in range(records)]


def size_told(value_bytes: int) -> str:
    return f"{value_bytes} B" if value_bytes < LARGE_BYTES else f"{value_bytes // 1000} KB"
