"""Planning in the driver: ranges of offsets are cut into a few large tasks, each a list of frame ranges in files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from tailrace import bulk
from tailrace.spark import limits

if TYPE_CHECKING:
    from tailrace import Log
    from tailrace.bulk import ReadPart
    from tailrace.spark.source.offsets import Place

# A Python task costs Spark 25 to 50 ms, in which a core reads several megabytes: fewer bytes do not justify a task.
TASK_BYTES_MIN = 4 << 20
# Larger tasks lose more when one must be repeated, and balance badly on a cluster.
TASK_BYTES_MAX = 256 << 20
TASKS_PER_CORE = 2
# Number of parts into which the share of a task is cut, so that tasks get about the same size.
PARTS_PER_TASK = 8


class TailracePartition(InputPartition):
    """The parts that one task reads, as plain values."""

    def __init__(self, parts: tuple[ReadPart, ...]) -> None:
        super().__init__(None)
        self.parts = parts

    def __repr__(self) -> str:
        return f"<TailracePartition of {sum(records_of(part) for part in self.parts)} offsets>"


def plan_tasks(
    log: Log, ranges: Mapping[Place, tuple[int, int]], min_partitions: int | None = None, max_records: int | None = None
) -> list[TailracePartition]:
    """Return tasks that together read every record of the ranges; a partition stays in order within a task."""
    parts = _parts(log, ranges, TASK_BYTES_MAX)
    total = sum(part.bytes for part in parts)
    tasks = task_count(total, min_partitions, cores())
    size = max(1, total // (tasks * PARTS_PER_TASK))
    if tasks > 1 and any(part.bytes > size for part in parts):
        parts = _parts(log, ranges, size)
    groups = by_bytes(parts, tasks)
    if min_partitions is not None and len(groups) < min_partitions:
        # The index has fewer cuts than requested, so records are counted instead.
        share = max(1, sum(map(records_of, parts)) // min_partitions)
        max_records = share if max_records is None else min(share, max_records)
    if max_records is not None and any(sum(map(records_of, group)) > max_records for group in groups):
        # Each piece of a part is searched from the part's first frame, so parts are cut to about that size first.
        near = max(1, total * max_records // sum(map(records_of, parts)))
        groups = by_records(_parts(log, ranges, near) if near < size else parts, max_records)
    return [TailracePartition(tuple(group)) for group in groups]


def task_count(total: int, wanted: int | None, cores: int) -> int:
    """Return the number of tasks for `total` bytes."""
    if wanted is not None:
        return max(wanted, -(-total // TASK_BYTES_MAX))
    alone = min(-(-total // TASK_BYTES_MIN), cores)
    several = min(-(-total // limits.LIMITS.second_task_bytes_min), TASKS_PER_CORE * cores)
    return max(alone, several, -(-total // TASK_BYTES_MAX), 1)


def cores() -> int:
    """Return the cores of this machine; Spark does not pass a source those of its executors, hence minPartitions."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def records_of(part: ReadPart) -> int:
    """Return the number of offsets of a part, which are its records unless some are missing."""
    return part.stop - part.first


def by_bytes(parts: list[ReadPart], tasks: int) -> list[list[ReadPart]]:
    """Return the parts in order, in about `tasks` groups of the same size."""
    total = sum(part.bytes for part in parts)
    groups: list[list[ReadPart]] = []
    before, last = 0, -1
    for part in parts:
        group = (before + part.bytes // 2) * tasks // max(total, 1)
        if group != last:
            groups.append([])
            last = group
        groups[-1].append(part)
        before += part.bytes
    return groups


def by_records(parts: list[ReadPart], most: int) -> list[list[ReadPart]]:
    """Return the parts in order, in groups of at most `most` records."""
    groups: list[list[ReadPart]] = []
    room = 0
    for part in parts:
        for piece in _cut(part, most):
            if records_of(piece) > room:
                groups.append([])
                room = most
            groups[-1].append(piece)
            room -= records_of(piece)
    return groups


def _cut(part: ReadPart, most: int) -> Iterator[ReadPart]:
    """Yield a part in pieces of at most `most` records; each starts at its first frame and skips records before it."""
    for first in range(part.first, part.stop, most):
        stop = min(first + most, part.stop)
        # The checksum chain is known only at the end of the part.
        yield part._replace(first=first, stop=stop, stop_chain=part.stop_chain if stop == part.stop else None)


def _parts(log: Log, ranges: Mapping[Place, tuple[int, int]], size: int) -> list[ReadPart]:
    topics: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, index), (first, stop) in ranges.items():
        if first < stop:
            topics.setdefault(topic, {})[index] = (first, stop)
    parts: list[ReadPart] = []
    for topic, wanted in topics.items():
        begin = {index: first for index, (first, _) in wanted.items()}
        end = {index: stop for index, (_, stop) in wanted.items()}
        parts += bulk.plan(log, topic, begin, end, partitions=sorted(wanted), target_bytes=size)
    return parts
