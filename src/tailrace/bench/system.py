"""The system under test: Tailrace by its public interface, with topics made for a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import tailrace
from tailrace.bench.workers import crew
from tailrace.types import Durable

ON_DISK = "on disk"
SURVIVES_KILL = "page cache: survives kill, not power cut"

_names = count()


def level(durable: Durable) -> str:
    """What a level of Tailrace means after a power cut."""
    if durable is True:
        return ON_DISK
    return SURVIVES_KILL if durable is False else f"page cache, on disk within {durable}"


@contextmanager
def fresh_topic(log: tailrace.Log, partitions: int = 1) -> Iterator[tailrace.Topic]:
    """A new topic, dropped in the end together with what was not yet written back of it."""
    topic = log.topic(f"bench.{next(_names)}", partitions=partitions)
    try:
        yield topic
    finally:
        topic.drop()


def append_to(topic: tailrace.Topic, value: bytes, durable: Durable) -> Callable[[int], None]:
    """A function that appends one value so many times."""
    append = topic.append

    def do(count: int) -> None:
        for _ in range(count):
            append(value, durable=durable)

    return do


def extend_to(topic: tailrace.Topic, values: Any, durable: Durable) -> Callable[[int], None]:
    """A function that appends many values, a list or Arrow data, so many times."""
    extend = topic.extend

    def do(count: int) -> None:
        for _ in range(count):
            extend(values, durable=durable)

    return do


@contextmanager
def appended(log: tailrace.Log, value: bytes, durable: Durable, threads: int = 1) -> Iterator[Callable[[int], object]]:
    """Single appends by threads to one partition of a fresh topic."""
    with fresh_topic(log) as topic, crew([append_to(topic, value, durable)] * threads) as tell:
        yield tell


@contextmanager
def extended(log: tailrace.Log, values: Any, durable: Durable, threads: int = 1) -> Iterator[Callable[[int], object]]:
    """Appends of many values at once by threads to one partition of a fresh topic."""
    with fresh_topic(log) as topic, crew([extend_to(topic, values, durable)] * threads) as tell:
        yield tell


@contextmanager
def produced(log: tailrace.Log, value: bytes) -> Iterator[Callable[[int], None]]:
    """A producer that is given so many values, until every one of them is as durable as the log."""
    with fresh_topic(log) as topic, topic.producer() as producer:

        def do(count: int) -> None:
            append = producer.append
            for _ in range(count):
                append(value)
            producer.flush()

        yield do


def filled(log: tailrace.Log, name: str, values: Sequence[bytes], times: int, partitions: int = 1) -> tailrace.Topic:
    """A topic with these values so many times over, each time one frame or more, all of them on disk."""
    topic = log.topic(name, partitions=partitions)
    for index in range(times):
        topic.extend(values, partition=index % partitions, durable=False)
    log.sync()
    return topic
