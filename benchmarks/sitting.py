"""Joining and leaving: the cost of joining a group and of leaving it."""

from __future__ import annotations

from time import perf_counter

from benchmarks.stage import FRAME_RECORDS, Stage
from tailrace.bench.cases import MILLISECONDS, Case

WORK = "join and leave"
TOPIC, GROUP = "visited", "visitors"
ROUNDS = 5


def cases(stage: Stage) -> list[Case]:
    """Return the cases of a group with one member, whose cursor moves meanwhile."""
    stage.filled(TOPIC, FRAME_RECORDS)
    return [
        _case(stage, "consumer() to the first record", "page cache: members die with a power cut", 0),
        _case(stage, "close()", "cursor on disk", 1),
    ]


def _case(stage: Stage, how: str, level: str, index: int) -> Case:
    return Case(WORK, "Tailrace", how, level, MILLISECONDS, lambda _: [each[index] for each in _visits(stage)])


def _visits(stage: Stage) -> list[tuple[float, float]]:
    took = []
    for _ in range(ROUNDS):
        stage.rewound(GROUP, TOPIC)
        start = perf_counter()
        consumer = stage.log.consumer(TOPIC, GROUP)
        next(consumer)
        joined = perf_counter()
        # Requesting another record marks the first as processed, so that there is a cursor to store.
        next(consumer)
        leaving = perf_counter()
        consumer.close()
        took.append(((joined - start) * 1e3, (perf_counter() - leaving) * 1e3))
    return took
