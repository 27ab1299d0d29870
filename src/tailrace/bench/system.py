"""The system under test: Tailrace through its public interface, with topics created for a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import tailrace
from tailrace.bench.workers import worker_threads
from tailrace.types import Durable

ON_DISK = "on disk"
SURVIVES_KILL = "page cache: survives kill, not power cut"

_names = count()


def level(durable: Durable) -> str:
    """Return what a durability level of Tailrace means after a power cut."""
    if durable is True:
        return ON_DISK
    return SURVIVES_KILL if durable is False else f"page cache, on disk within {durable}"


@contextmanager
def fresh_topic(log: tailrace.Log, partitions: int = 1) -> Iterator[tailrace.Topic]:
    """Create a topic for the block, and drop it afterwards, together with its pages that were not written back yet."""
    topic = log.topic(f"bench.{next(_names)}", partitions=partitions)
    try:
        yield topic
    finally:
        topic.drop()


def append_to(topic: tailrace.Topic, value: bytes, durable: Durable) -> Callable[[int], None]:
    """Return a function that appends one value a given number of times."""
    append = topic.append

    def do(count: int) -> None:
        for _ in range(count):
            append(value, durable=durable)

    return do


def extend_to(topic: tailrace.Topic, values: Any, durable: Durable) -> Callable[[int], None]:
    """Return a function that appends many values, a list or Arrow data, a given number of times."""
    extend = topic.extend

    def do(count: int) -> None:
        for _ in range(count):
            extend(values, durable=durable)

    return do


@contextmanager
def appended(log: tailrace.Log, value: bytes, durable: Durable, threads: int = 1) -> Iterator[Callable[[int], object]]:
    """Yield a function for single appends by threads to one partition of a new topic."""
    with fresh_topic(log) as topic, worker_threads([append_to(topic, value, durable)] * threads) as run:
        yield run


@contextmanager
def extended(log: tailrace.Log, values: Any, durable: Durable, threads: int = 1) -> Iterator[Callable[[int], object]]:
    """Yield a function for appends of many values at once by threads to one partition of a new topic."""
    with fresh_topic(log) as topic, worker_threads([extend_to(topic, values, durable)] * threads) as run:
        yield run


@contextmanager
def produced(log: tailrace.Log, value: bytes) -> Iterator[Callable[[int], None]]:
    """Yield a function that gives values to a producer and waits until all of them are as durable as the log."""
    with fresh_topic(log) as topic, topic.producer() as producer:

        def do(count: int) -> None:
            append = producer.append
            for _ in range(count):
                append(value)
            producer.flush()

        yield do


def filled(log: tailrace.Log, name: str, values: Sequence[bytes], times: int, partitions: int = 1) -> tailrace.Topic:
    """Create a topic with these values `times` times, each time in one frame or more, and sync it."""
    topic = log.topic(name, partitions=partitions)
    for index in range(times):
        topic.extend(values, partition=index % partitions, durable=False)
    log.sync()
    return topic
