"""Writing: Tailrace on a disk, beside bare system calls and SQLite, each beside the calls of its own durability."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import tailrace
from tailrace.bench import plain
from tailrace.bench import system as own
from tailrace.bench.cases import RATE, Case
from tailrace.bench.jobs import Job, values_of
from tailrace.bench.pace import PIECES, Work, rated
from tailrace.bench.sharing import shared
from tailrace.bench.sqlite import LEVELS, SqliteLog

# Maximum written in one turn without waiting for the disk.
TURN_BYTES_MAX = 64 << 20


def cases(
    directory: Path,
    log: tailrace.Log,
    *,
    value_bytes: int,
    batch: int,
    durable: bool | str,
    threads: int,
    processes: int,
) -> list[Case]:
    """Return the cases: the limits, Tailrace with the given options, and SQLite by one thread."""
    values = values_of(value_bytes, batch)
    data = b"".join(values)
    most = max(1, min(500_000, TURN_BYTES_MAX // (len(data) + 100)))
    work = f"write of {value_bytes} B, {'one by one' if batch == 1 else f'{batch:,} at a time'}"
    members = threads * processes

    def limit(how: str, level: str, name: str, against: str, doing: Work) -> Case:
        system = "memory" if how == "memcpy" else "plain file"
        return Case(work, system, how, level, RATE, rated(doing, batch, most), name=name, against=against, told="write")

    def plain_work(*, synced: bool) -> Work:
        return partial(plain.appended, directory / "plain", data, synced=synced)

    by = f" by {members} {'threads' if processes == 1 else 'members'}" if members > 1 else ""
    how = f"{'append()' if batch == 1 else 'extend()'}{by}"
    against = plain.FDATASYNC if durable is True else plain.PAGE_CACHE
    own_work = partial(_own, log, Job("write", "", value_bytes, batch, durable), threads, processes)
    pieces = PIECES if members == 1 else 1
    return [
        limit("memcpy", plain.MEMORY, "", plain.PAGE_CACHE, partial(plain.copied, data)),
        limit(plain.PAGE_CACHE, plain.SURVIVES_KILL, plain.PAGE_CACHE, "", plain_work(synced=False)),
        limit(plain.FDATASYNC, plain.ON_DISK, plain.FDATASYNC, "", plain_work(synced=True)),
        Case(
            work, "Tailrace", how, own.level(durable), RATE,
            rated(own_work, batch, most, step=members, pieces=pieces), against=against, told=against,
        ),
        *[_sqlite_case(work, directory, synchronous, values, most) for synchronous in LEVELS],
    ]  # fmt: skip


@contextmanager
def _own(log: tailrace.Log, job: Job, threads: int, processes: int) -> Iterator[Callable[[int], object]]:
    with own.fresh_topic(log) as topic, shared(log, job._replace(topic=topic.name), threads, processes) as run:
        yield run


def _sqlite_case(work: str, directory: Path, synchronous: str, values: list[bytes], most: int) -> Case:
    batch = len(values)
    how = "INSERT" if batch == 1 else "executemany, COMMIT"
    against = plain.FDATASYNC if synchronous == "FULL" else plain.PAGE_CACHE

    @contextmanager
    def opened() -> Iterator[Callable[[int], object]]:
        log = SqliteLog(directory / "sqlite.db", synchronous)

        def do(count: int) -> None:
            for _ in range(count):
                log.append(values[0]) if batch == 1 else log.extend(values)

        try:
            yield do
        finally:
            log.close()
            for path in directory.glob("sqlite.db*"):
                path.unlink()

    measure = rated(opened, batch, most)
    return Case(work, "SQLite", how, LEVELS[synchronous], RATE, measure, against=against, told=against)
