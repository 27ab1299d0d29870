"""Processing: records of one topic through a function into another, and the nearest equivalent of the peers."""

from __future__ import annotations

from time import perf_counter

from benchmarks.consume import refill
from benchmarks.peers import Peer, PeerKind
from benchmarks.stage import FRAME_RECORDS, Stage
from tailrace import Record
from tailrace.bench.cases import RATE, Case, Goal
from tailrace.bench.pace import Pace, timed

WORK = "process"
SOURCE, TARGET, GROUP = "unprocessed", "processed", "processors"
RATE_GOAL = 150_000


def cases(stage: Stage) -> list[Case]:
    """Return process(), and for the peers: take, put into another queue, acknowledge."""
    records = max(10_000, stage.records // 8 // FRAME_RECORDS * FRAME_RECORDS)
    stage.filled(SOURCE, records)

    def measure(_: float) -> list[float]:
        stage.rewound(GROUP, SOURCE)
        target = stage.log.topic(TARGET, partitions=1)
        start = perf_counter()
        done = stage.log.process(SOURCE, identity, TARGET, group=GROUP, stop="now")
        took = perf_counter() - start
        assert done == records == target.read().count()
        target.drop()
        return [records / took]

    return [
        Case(
            WORK, "Tailrace", "process(), identity", "on disk, exactly once", RATE, measure,
            name="process", goals=(Goal("median", at_least=RATE_GOAL),),
        ),
        *[_peer_case(stage, kind) for kind in stage.peers if not kind.batches],
    ]  # fmt: skip


def identity(record: Record) -> Record:
    """Return every record unchanged."""
    return record


def _peer_case(stage: Stage, kind: PeerKind) -> Case:
    source = stage.opened(kind, f"source-{kind.key}")
    target = stage.opened(kind, f"target-{kind.key}")
    pace = Pace(20, 50_000)

    def measure(seconds: float) -> list[float]:
        count = pace.count(seconds)
        refill(source, count)
        refill(target, 0)
        return [pace.learn(count, timed(lambda: _pass_on(source, target, count)))]

    promise = "at least once" if source.acknowledges else "at most once"
    return Case(
        WORK, kind.label, f"{kind.how.partition(';')[0]}, put elsewhere", f"{source.level()}, {promise}", RATE, measure,
        against="process",
    )  # fmt: skip


def _pass_on(source: Peer, target: Peer, count: int) -> None:
    for _ in range(count):
        data = source.take()
        if data is None:
            raise RuntimeError(f"{type(source).__name__} lost a value that was put.")
        target.put(data)
        source.ack()
