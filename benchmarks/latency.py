"""Receipt: how long after the call of append another process that waits for records has it in hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic, monotonic_ns, sleep
from typing import Any

from benchmarks.cases import MICROSECONDS, Case, Goal
from benchmarks.children import started
from benchmarks.peers import PeerKind
from benchmarks.stage import VALUE_BYTES, Stage

WORK = "append to receipt"
TOPIC, GROUP = "received", "receivers"
P50_GOAL_US, P99_GOAL_US = 150, 2_000
# Between two appends, so that the receiver is back in its wait; drawn at random from the length of a poll, so that
# nothing falls into step.
PAUSE_SECONDS = (0.0001, 0.0011)
# The first receipts of a fresh process are of cold code.
SKIPPED = 20
COUNT_MIN = 30
# The peers have no way to wait for another process; they are asked this often.
POLL_SECONDS = 0.001


def cases(stage: Stage) -> list[Case]:
    """Tailrace with and without waiting for the disk, and the peers that another process can share."""
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
    """One value after another, each when the one before has arrived, so that none waits behind another."""
    deadline = monotonic() + seconds
    latencies: list[float] = []
    with started("receiver", spec) as child:
        child.answer()
        while len(latencies) < SKIPPED + COUNT_MIN or monotonic() < deadline:
            sleep(random.uniform(*PAUSE_SECONDS))
            put(stamp())
            latencies.append(child.answer() / 1e3)
    return latencies[SKIPPED:]


def stamp() -> bytes:
    """A value that says when it was made, by a clock that all processes of the machine share."""
    return f"{monotonic_ns():020d}".encode().ljust(VALUE_BYTES, b".")


def age_ns(data: bytes) -> int:
    """How long ago a stamp was made."""
    return monotonic_ns() - int(data[:20])
