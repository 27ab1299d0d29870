"""Limits of the sink and the source: one value each for a process, which tests replace with small ones."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.limits import PARTICIPANTS_MAX


class SparkLimits(NamedTuple):
    """The limits that a process of Spark keeps, in the driver and in every task alike; none of them is stored."""

    # Open logs. Seconds after which a log that is open for writing is closed if no task uses it.
    idle_seconds: float = 5.0

    # Rows of a task: gathered to this size before they are sorted by partition, so that frames are long even with many
    # partitions.
    gathered_bytes_max: int = 32 << 20
    # Rows without a key stay on one partition for this size, then move on to the next.
    keyless_bytes_max: int = 64 << 20

    # The result of a task. The maximum in its message; the driver holds the messages of all tasks of a batch.
    message_bytes_max: int = 1_000_000
    # A partition's frames become a segment at the first size; all partitions' frames do when a task holds the second.
    segment_bytes: int = 64 << 20
    task_bytes_max: int = 192 << 20
    # More small segments than this are written as a single one: each costs two syncs.
    segments_max: int = 32
    # Frames of a partition that will be staged anyway are written at this size: reused memory costs less than memory
    # that grows with the task.
    write_bytes_min: int = 1 << 20

    # The outbox. The partitions of one transaction, of which the marker takes one.
    places_max: int = PARTICIPANTS_MAX - 1
    # Frames are split into records of this size, since the largest frame is larger than the largest record.
    chunk_bytes_max: int = 8 << 20
    # Bytes at which a step of a delivery ends.
    step_bytes_max: int = 32 << 20
    # How much of a batch is in memory at a time.
    held_bytes_max: int = 64 << 20
    # A batch that waits longer than this is assumed to be left by a dead process.
    patience_us: int = 10_000_000

    # The source. A second task per core balances the load between quick and slow ones, which pays when tasks take a
    # while.
    second_task_bytes_min: int = 32 << 20
    # Seconds after which a stream reopens a log that no process has recovered since a power cut, to check again.
    reopen_seconds: float = 1.0


# The limits of this process.
LIMITS = SparkLimits()
