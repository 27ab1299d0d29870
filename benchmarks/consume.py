"""Consuming: records per second that reach a consumer one by one, in batches and as Arrow, beside a plain scan."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from time import perf_counter
from typing import Any

from benchmarks.peers import Peer, PeerKind
from benchmarks.stage import Stage, value
from tailrace.bench.cases import RATE, Case, Goal
from tailrace.bench.pace import Pace, timed

RECORD, BATCH, ARROW = "consume by record", "consume by batch", "consume as Arrow"
EACH_SECOND = "cursor on disk every second and at the end"
SCAN_LEVEL = "no cursor"
# The default of poll(), and the size that process() uses.
BATCHES = (500, 8_192)
ARROW_RECORDS = 65_536
BATCH_GOAL, ARROW_GOAL = 0.7, 0.8
TOPIC, GROUP = "consumed", "readers"


def cases(stage: Stage) -> list[Case]:
    """Return the cases; Tailrace's own share one topic, which is read from its start each time."""
    topic = stage.filled(TOPIC, stage.records)
    few = max(1_000, stage.records // 4)
    made = [
        Case(RECORD, "Tailrace", "scan", SCAN_LEVEL, RATE, lambda _: [_scan_records(topic, few)], name="scan record"),
        Case(
            RECORD, "Tailrace", "for record in consumer", EACH_SECOND, RATE,
            lambda _: [_consume_records(stage, few)], name="record", against="scan record",
        ),
        _each_record(stage),
    ]  # fmt: skip
    made += [_peer_case(stage, kind) for kind in stage.peers if not kind.batches]
    for size in BATCHES:
        made += _batch_cases(stage, topic, BATCH, size, "untouched", len)
        made += _batch_cases(stage, topic, BATCH, size, "values()", lambda batch: len(batch.values()))
    made += [_peer_batch_case(stage, kind) for kind in stage.peers if kind.batches]
    if importlib.util.find_spec("pyarrow") is not None:
        made += _batch_cases(stage, topic, ARROW, ARROW_RECORDS, "to_arrow()", lambda batch: batch.to_arrow().num_rows)
    return made


def _scan_records(topic: Any, count: int) -> float:
    start = perf_counter()
    for seen, _ in enumerate(topic.read(), 1):
        if seen == count:
            break
    return count / (perf_counter() - start)


def _consume_records(stage: Stage, count: int) -> float:
    stage.rewound(GROUP, TOPIC)
    with stage.log.consumer(TOPIC, GROUP) as consumer:
        # Joins the group, which has a line of its own.
        consumer.lag()
        start = perf_counter()
        for seen, _ in enumerate(consumer, 1):
            if seen == count:
                break
        consumer.commit()
        return count / (perf_counter() - start)


def _each_record(stage: Stage) -> Case:
    pace = Pace(20, stage.records - 1)

    def measure(seconds: float) -> list[float]:
        count = pace.count(seconds)
        stage.rewound(GROUP, TOPIC)
        with stage.log.consumer(TOPIC, GROUP, commit_every=1) as consumer:
            consumer.lag()
            # The commit of a record happens in the call for the next one.
            next(consumer)
            taken = timed(lambda: [next(consumer) for _ in range(count)])
        return [pace.learn(count, taken)]

    how, level = "for record in consumer, commit_every=1", "cursor on disk at each record"
    return Case(RECORD, "Tailrace", how, level, RATE, measure, name="each", against="record")


def _batch_cases(stage: Stage, topic: Any, work: str, size: int, what: str, look: Callable[[Any], int]) -> list[Case]:
    """Return a plain scan in batches of a size, and a consumer that polls as many."""

    def scan(_: float) -> list[float]:
        start = perf_counter()
        seen = 0
        for batch in topic.read().batches(size):
            seen += look(batch)
        assert seen == stage.records
        return [seen / (perf_counter() - start)]

    def consume(_: float) -> list[float]:
        stage.rewound(GROUP, TOPIC)
        with stage.log.consumer(TOPIC, GROUP) as consumer:
            consumer.lag()
            start = perf_counter()
            seen = 0
            while seen < stage.records:
                seen += look(consumer.poll(size))
            consumer.commit()
            return [seen / (perf_counter() - start)]

    name = f"scan {work} {size} {what}"
    goal = Goal("ratio", at_least=ARROW_GOAL if work == ARROW else BATCH_GOAL)
    return [
        Case(work, "Tailrace", f"scan, batches({size:,}), {what}", SCAN_LEVEL, RATE, scan, name=name),
        Case(
            work, "Tailrace", f"poll({size:,}), {what}", EACH_SECOND, RATE, consume,
            name=f"{work} {size} {what}", against=name, goals=(goal,),
        ),
    ]  # fmt: skip


def _peer_case(stage: Stage, kind: PeerKind) -> Case:
    peer = stage.opened(kind, f"consume-{kind.key}")
    pace = Pace(20, 100_000)

    def measure(seconds: float) -> list[float]:
        count = pace.count(seconds)
        refill(peer, count)
        return [pace.learn(count, timed(lambda: _drain(peer, count)))]

    level = peer.level()
    # A peer that syncs at every record is compared with Tailrace doing so.
    against = "each" if "on disk" in level else "record"
    return Case(RECORD, kind.label, kind.how, level, RATE, measure, against=against)


def _peer_batch_case(stage: Stage, kind: PeerKind) -> Case:
    peer = stage.opened(kind, f"consume-{kind.key}")
    pace = Pace(1, 200)
    size = BATCHES[0]

    def measure(seconds: float) -> list[float]:
        batches = pace.count(seconds)
        refill(peer, batches * size)
        taken = timed(lambda: [peer.take_many(size) for _ in range(batches)])
        return [pace.learn(batches, taken) * size]

    how = kind.how.format(count=size)
    return Case(BATCH, kind.label, how, peer.level(), RATE, measure, against=f"{BATCH} {size} values()")


def refill(peer: Peer, count: int) -> None:
    """Make a queue hold exactly `count` values."""
    while peer.take() is not None:
        peer.ack()
    peer.tidy()
    peer.fill([value(number) for number in range(count)])


def _drain(peer: Peer, count: int) -> None:
    for _ in range(count):
        if peer.take() is None:
            raise RuntimeError(f"{type(peer).__name__} lost a value that was put.")
        peer.ack()
