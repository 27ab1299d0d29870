"""Reading: a topic from its start to its end, beside the bare file and SQLite."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import tailrace
from tailrace.bench import plain
from tailrace.bench import system as own
from tailrace.bench.cases import RATE, Case
from tailrace.bench.jobs import Job, values_of
from tailrace.bench.pace import rated
from tailrace.bench.sharing import shared
from tailrace.bench.sqlite import SqliteLog

TOPIC = "read"
# Enough that the cost of opening is small, and little enough to stay in memory.
BYTES_MAX, RECORDS_MAX = 64 << 20, 500_000
SECONDS_FULL = 5.0
CHUNK_BYTES = 256 << 10
CHECKED = "checksums and offsets checked"
WAYS = {
    "records": "for record in read()",
    "values": "read().batches(), values()",
    "arrow": "read().batches(), to_arrow()",
}


def cases(
    directory: Path,
    log: tailrace.Log,
    *,
    seconds: float,
    value_bytes: int,
    batch: int,
    threads: int,
    processes: int,
    records_max: int = RECORDS_MAX,
) -> list[Case]:
    """Return the cases; the data, in proportion to `seconds`, was written just before and is in memory."""
    values = values_of(value_bytes, batch)
    share = min(1.0, seconds / SECONDS_FULL)
    times = max(1, int(share * min(BYTES_MAX // (batch * value_bytes), records_max // batch)))
    records = times * batch
    own.filled(log, TOPIC, values, times)
    path = directory / "plain"
    with open(path, "wb") as file:
        for _ in range(times):
            file.write(b"".join(values))
    sqlite = SqliteLog(directory / "sqlite.db", "NORMAL")
    for _ in range(times):
        sqlite.extend(values)
    sqlite.checkpoint()
    sqlite.close()

    work = f"read of {records:,} x {value_bytes} B, written {batch:,} at a time"
    members = threads * processes
    by = f", by {members} {'threads' if processes == 1 else 'members'}" if members > 1 else ""
    ways = [way for way in WAYS if way != "arrow" or importlib.util.find_spec("pyarrow") is not None]
    raw = partial(plain.file_read, path, CHUNK_BYTES)
    return [
        Case(
            work, "plain file", "read, nothing looked at", "nothing checked", RATE,
            rated(raw, records, 1_000, 1, pieces=1), name=plain.PAGE_CACHE,
        ),
        *[
            Case(
                work, "Tailrace", f"{WAYS[way]}{by}", CHECKED, RATE,
                rated(partial(shared, log, Job(way, TOPIC), threads, processes), records, 1_000, 1, members, 1),
                against=plain.PAGE_CACHE, told="read",
            )
            for way in ways
        ],
        Case(
            work, "SQLite", "SELECT", "no checksums", RATE,
            rated(partial(_selected, directory / "sqlite.db"), records, 1_000, 1, pieces=1),
            against=plain.PAGE_CACHE, told="read",
        ),
    ]  # fmt: skip


@contextmanager
def _selected(path: Path) -> Iterator[Callable[[int], object]]:
    log = SqliteLog(path, "NORMAL")

    def do(count: int) -> None:
        for _ in range(count):
            log.scan()

    try:
        yield do
    finally:
        log.close()
