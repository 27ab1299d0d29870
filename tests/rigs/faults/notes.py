"""Notes: what a process tried and what it was promised, in a file of its own that outlives kill -9."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from tailrace import Log, Topic

# The records of one partition that were acknowledged together: topic, partition, first offset, values.
Place = tuple[str, int, int, list[str]]


class Notes:
    """Lines of JSON, each one system call: what was written before a kill is there after it."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self.number = 0

    def say(self, **facts: Any) -> None:
        os.write(self.descriptor, json.dumps(facts).encode() + b"\n")

    def attempt(self, kind: str, values: dict[str, list[str]], **facts: Any) -> int:
        """Note what is about to be written, before it is."""
        self.number += 1
        self.say(attempt=self.number, kind=kind, values=values, **facts)
        return self.number

    def acknowledge(self, number: int, places: list[Place]) -> None:
        self.say(acknowledged=number, places=places)


def read_notes(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line; a kill may have torn the last."""
    data = path.read_bytes()
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        yield json.loads(line)


def was_inside(path: Path) -> bool:
    """Whether the last thing that a process noted is an attempt: it died before it was told the outcome."""
    notes = list(read_notes(path))
    return bool(notes) and "attempt" in notes[-1]


class Scribe:
    """Writes to a log in the ways a user can, and notes each of them before and after."""

    def __init__(self, log: Log, notes: Notes, name: str) -> None:
        self.log = log
        self.notes = notes
        self.name = name

    def values(self, count: int, size: int = 0) -> list[str]:
        """Values that nobody else writes, whose order shows in them, padded behind a space."""
        number = self.notes.number + 1
        return [f"{self.name}.{number:06d}.{at:04d} {'.' * size}" for at in range(count)]

    def append(self, topic: Topic, size: int, *, key: str | None = None, durable: bool | str = True) -> None:
        (value,) = self.values(1, size)
        number = self.notes.attempt("append", {topic.name: [value]})
        partition, offset = topic.append(value, key=key, durable=durable)
        self.notes.acknowledge(number, [(topic.name, partition, offset, [value])])

    def extend(
        self, topic: Topic, count: int, size: int, *, keys: list[str] | None = None, durable: bool | str = True
    ) -> None:
        values = self.values(count, size)
        # Durable: all or nothing; otherwise all or nothing of each partition.
        number = self.notes.attempt("extend" if durable is True else "parts", {topic.name: values}, keys=keys)
        ranges = topic.extend(values, keys=keys, durable=durable)
        self.notes.acknowledge(number, places_of(topic.name, topic.partitions, values, keys, ranges))

    def transact(self, parts: dict[str, list[str] | None], size: int) -> None:
        """Two records to each topic, or one for each key."""
        values: dict[str, list[str]] = {}
        ready = self.values(2 * len(parts) + sum(len(keys or ()) for keys in parts.values()), size)
        for topic, keys in parts.items():
            values[topic] = [ready.pop(0) for _ in keys or (0, 1)]
        number = self.notes.attempt("transaction", values, keys=parts)
        with self.log.transaction() as transaction:
            for topic, some in values.items():
                transaction.extend(topic, some, keys=parts[topic])
        places: list[Place] = []
        for (topic, ranges), keys in zip(transaction.positions, parts.values(), strict=True):
            places += places_of(topic, self.log.topic(topic).partitions, values[topic], keys, ranges)
        self.notes.acknowledge(number, places)

    def produce(self, topic: Topic, count: int, size: int) -> None:
        values = self.values(count, size)
        number = self.notes.attempt("parts", {topic.name: values})
        with topic.producer() as producer:
            futures = [producer.append(value) for value in values]
        positions = [future.result() for future in futures]
        places: list[Place] = [
            (topic.name, partition, offset, [value])
            for value, (partition, offset) in zip(values, positions, strict=True)
        ]
        self.notes.acknowledge(number, places)

    def trim(self, topic: Topic, keep: int) -> None:
        before = max(0, topic.offsets()[0].latest - keep)
        number = self.notes.attempt("trim", {}, topic=topic.name, before=before)
        topic.trim(before)
        self.notes.say(acknowledged=number, places=[], trimmed=before)


def places_of(
    topic: str, partitions: int, values: list[str], keys: list[str] | None, ranges: dict[int, range]
) -> list[Place]:
    """Where the values of an extend stand: keys choose partitions by crc32, and no key leaves all of them together."""
    by_partition: dict[int, list[str]] = {}
    for at, value in enumerate(values):
        (only, *_) = ranges
        partition = only if keys is None else crc32(keys[at].encode()) % partitions
        by_partition.setdefault(partition, []).append(value)
    if {partition: len(some) for partition, some in by_partition.items()} != {
        partition: len(offsets) for partition, offsets in ranges.items()
    }:
        raise AssertionError(f"{topic}: {ranges} was returned for {by_partition}")
    return [(topic, partition, ranges[partition].start, some) for partition, some in by_partition.items()]
