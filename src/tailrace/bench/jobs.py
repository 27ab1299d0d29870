"""Jobs: the work that one thread repeats, as plain values that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tailrace
from tailrace.bench import system as own


class Job(NamedTuple):
    """Appending to a topic, or reading it from its start to its end."""

    way: str
    topic: str
    value_bytes: int = 0
    batch: int = 1
    durable: bool | str = True


READS: dict[str, Callable[[tailrace.Topic], int]] = {
    "records": lambda topic: sum(1 for _ in topic.read()),
    "values": lambda topic: sum(len(batch.values()) for batch in topic.read().batches()),
    "arrow": lambda topic: sum(batch.to_arrow().num_rows for batch in topic.read().batches()),
}


def job_of(log: tailrace.Log, job: Job) -> Callable[[int], object]:
    """Return a function that does the job a given number of times."""
    topic = log.topic(job.topic)
    if job.way == "write":
        values = values_of(job.value_bytes, job.batch)
        if job.batch == 1:
            return own.append_to(topic, values[0], job.durable)
        return own.extend_to(topic, values, job.durable)
    read = READS[job.way]

    def do(count: int) -> None:
        for _ in range(count):
            read(topic)

    return do


def values_of(value_bytes: int, count: int) -> list[bytes]:
    """Return `count` values of a size, distinct as far as the size allows."""
    return [f"{number:020d}".encode()[-value_bytes:].ljust(value_bytes, b".") for number in range(count)]
