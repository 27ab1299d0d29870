"""Receipt: the time from the call of append to the receipt in another process that waits for records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.peers import PeerKind
from benchmarks.stage import VALUE_BYTES, Stage
from tailrace.bench.cases import MICROSECONDS, Case, Goal
from tailrace.bench.children import started
from tailrace.bench.latencies import POLL_SECONDS, receive

WORK = "append to receipt"
TOPIC, GROUP = "received", "receivers"
P50_GOAL_US, P99_GOAL_US = 150, 2_000


def cases(stage: Stage) -> list[Case]:
    """Return Tailrace with and without waiting for the disk, and the peers that another process can share."""
    topic = stage.log.topic(TOPIC, partitions=1)

    def quickly(data: bytes) -> None:
        topic.append(data, durable=False)

    quick, on_disk = "page cache: survives kill, not power cut", "on disk before it is visible"
    goals = (Goal("p50", at_most=P50_GOAL_US), Goal("p99", at_most=P99_GOAL_US))
    return [
        _tailrace(stage, "consumer", "for record in consumer", quick, quickly, goals),
        _tailrace(stage, "follow", "read(follow=True)", quick, quickly),
        _tailrace(stage, "consumer", "for record in consumer, durable=True", on_disk, topic.append),
        *[_peer_case(stage, kind) for kind in stage.peers if kind.shared and not kind.batches],
    ]


def _tailrace(
    stage: Stage, way: str, how: str, level: str, append: Callable[[bytes], Any], goals: tuple[Goal, ...] = ()
) -> Case:
    spec = {"way": way, "path": str(stage.directory / "log"), "topic": TOPIC, "group": GROUP}
    name, against = ("receipt", "") if goals else ("", "receipt")
    return Case(
        WORK, "Tailrace", how, level, MICROSECONDS, lambda seconds: _receive(spec, append, seconds),
        name=name, against=against, goals=goals, apart=True,
    )  # fmt: skip


def _peer_case(stage: Stage, kind: PeerKind) -> Case:
    name = f"receipt-{kind.key}"
    peer = stage.opened(kind, name)
    spec = {"way": "peer", "path": str(stage.directory / name), "kind": kind.key, "pause": POLL_SECONDS}
    how = f"{kind.how}; asked every {POLL_SECONDS * 1000:g} ms"

    def measure(seconds: float) -> list[float]:
        received = _receive(spec, peer.put, seconds)
        peer.tidy()
        return received

    return Case(WORK, kind.label, how, peer.level(), MICROSECONDS, measure, against="receipt", apart=True)


def _receive(spec: dict[str, Any], put: Callable[[bytes], Any], seconds: float) -> list[float]:
    """Measure one value after another, each when the one before has arrived, so that none waits for another."""
    with started("benchmarks.receiver", spec) as child:
        return receive(child, put, seconds, VALUE_BYTES)
