"""Commits: the cost of storing a consumer's cursor, beside one plain write and sync on the same disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from benchmarks.consume import refill
from benchmarks.peers import PeerKind
from benchmarks.stage import Stage, value
from tailrace.bench.cases import MICROSECONDS, Case
from tailrace.bench.pace import Pace

WORK = "commit"
ON_DISK = "on disk"
RECORDS = 10_000
TOPIC, TARGET, GROUP = "committed", "answers", "committers"


def cases(stage: Stage) -> list[Case]:
    """Return the cases; every other line is compared with the plain write and sync."""
    stage.filled(TOPIC, RECORDS)
    target = stage.log.topic(TARGET, partitions=1)

    def in_transaction(consumer: Any) -> None:
        with stage.log.transaction() as tx:
            tx.append(target, value(0))
            consumer.commit(tx)

    def without_cursor(_: Any) -> None:
        with stage.log.transaction() as tx:
            tx.append(target, value(0))

    return [
        _case(stage, "plain file", "write 100 bytes, fdatasync", _raw(stage), name="raw"),
        _case(stage, "Tailrace", "commit()", _polled(stage, lambda consumer: consumer.commit())),
        _case(stage, "Tailrace", "next(consumer), commit_every=1", _iterated(stage, commit_every=1)),
        _case(stage, "Tailrace", 'next(consumer), commit="before"', _iterated(stage, commit="before")),
        _case(stage, "Tailrace", "transaction: append, no cursor", _polled(stage, without_cursor)),
        _case(stage, "Tailrace", "transaction: append, commit(tx)", _polled(stage, in_transaction)),
        *[_peer_case(stage, kind) for kind in stage.peers if not kind.batches],
    ]


# Yields a function that does one operation and returns how long it took.
Opened = Callable[[int], Any]


def _case(stage: Stage, system: str, how: str, operation: Opened, name: str = "") -> Case:
    pace = Pace(20, RECORDS // 2)

    def measure(seconds: float) -> list[float]:
        count = pace.count(seconds)
        start = perf_counter()
        with operation(count) as one:
            took = [one() * 1e6 for _ in range(count)]
        pace.learn(count, perf_counter() - start)
        return took

    return Case(WORK, system, how, ON_DISK, MICROSECONDS, measure, name=name, against="" if name else "raw")


def _raw(stage: Stage) -> Opened:
    path = stage.directory / "plain"
    data = value(0)

    @contextmanager
    def opened(_: int) -> Iterator[Callable[[], float]]:
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

        def one() -> float:
            start = perf_counter()
            os.write(file, data)
            os.fdatasync(file)
            return perf_counter() - start

        try:
            yield one
        finally:
            os.close(file)

    return opened


def _polled(stage: Stage, commit: Callable[[Any], None]) -> Opened:
    """Measure what is done with a record after it was polled."""

    @contextmanager
    def opened(_: int) -> Iterator[Callable[[], float]]:
        stage.rewound(GROUP, TOPIC)
        with stage.log.consumer(TOPIC, GROUP, commit="manual") as consumer:
            consumer.lag()

            def one() -> float:
                consumer.poll(1)
                start = perf_counter()
                commit(consumer)
                return perf_counter() - start

            yield one

    return opened


def _iterated(stage: Stage, **settings: Any) -> Opened:
    """Measure the call for the next record, which commits the one before, or its own."""

    @contextmanager
    def opened(_: int) -> Iterator[Callable[[], float]]:
        stage.rewound(GROUP, TOPIC)
        with stage.log.consumer(TOPIC, GROUP, **settings) as consumer:
            consumer.lag()
            next(consumer)

            def one() -> float:
                start = perf_counter()
                next(consumer)
                return perf_counter() - start

            yield one

    return opened


def _peer_case(stage: Stage, kind: PeerKind) -> Case:
    """Measure acknowledging, or taking for a queue that has only that."""
    peer = stage.opened(kind, f"commit-{kind.key}")
    pace = Pace(20, RECORDS // 2)

    def measure(seconds: float) -> list[float]:
        count = pace.count(seconds)
        refill(peer, count)
        took = []
        begun = perf_counter()
        for _ in range(count):
            start = perf_counter()
            peer.take()
            if peer.acknowledges:
                start = perf_counter()
                peer.ack()
            took.append((perf_counter() - start) * 1e6)
        pace.learn(count, perf_counter() - begun)
        return took

    how = kind.how.partition(", ")[2] or kind.how
    return Case(WORK, kind.label, how, peer.level(), MICROSECONDS, measure, against="raw")
