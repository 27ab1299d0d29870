"""Take-over: the time from the kill of a member until the other one has a record of each of its partitions."""

from __future__ import annotations

from time import monotonic, monotonic_ns, sleep

from benchmarks.stage import Stage, value
from tailrace.bench.cases import MILLISECONDS, Case, Goal
from tailrace.bench.children import Child, started

WORK = "take-over"
TOPIC, GROUP = "shared", "sharers"
PARTITIONS = 8
P50_GOAL_MS, P99_GOAL_MS = 5, 50
# So that the kill does not fall into the work of the members right after a rebalance.
QUIET_SECONDS = 0.03
SHARE_SECONDS_MAX = 30.0


def cases(stage: Stage) -> list[Case]:
    """Return one case: none of the peers has members."""
    stage.log.topic(TOPIC, partitions=PARTITIONS)
    how = f"SIGKILL to a record of each of its {PARTITIONS // 2} partitions"
    goals = (Goal("p50", at_most=P50_GOAL_MS), Goal("p99", at_most=P99_GOAL_MS))
    return [
        Case(WORK, "Tailrace", how, "cursors on disk", MILLISECONDS, lambda _: _round(stage), goals=goals, apart=True)
    ]


def _round(stage: Stage) -> list[float]:
    """Measure a member that stays, while others join one by one, get their half, and are killed."""
    spec = {"path": str(stage.directory / "log"), "topic": TOPIC, "group": GROUP}
    with started("benchmarks.member", {**spec, "commit": "after"}) as survivor:
        survivor.answer()
        took = []
        for _ in range(stage.takeovers):
            with started("benchmarks.member", {**spec, "commit": "manual"}) as victim:
                took.append(_takeover(stage, survivor, victim))
    return took


def _takeover(stage: Stage, survivor: Child, victim: Child) -> float:
    victim.answer()
    topic = stage.log.topic(TOPIC)
    # The victim has polled a record of each of its partitions when it dies, so that each is delivered again.
    held = {(index, topic.append(value(0), partition=index).offset) for index in _owned(stage, victim.process.pid)}
    _seen(victim, held)
    sleep(QUIET_SECONDS)
    killed = monotonic_ns()
    victim.kill()
    return (_seen(survivor, held) - killed) / 1e6


def _owned(stage: Stage, pid: int) -> list[int]:
    """Return the partitions of a member, once it has its half."""
    deadline = monotonic() + SHARE_SECONDS_MAX
    while monotonic() < deadline:
        info = stage.log.group(GROUP)
        ids = {member.id for member in info.members if member.pid == pid}
        owned = [each.partition for each in info.partitions if each.owner in ids]
        if len(owned) == PARTITIONS // 2:
            return owned
        sleep(0.005)
    raise RuntimeError("The members did not share their partitions.")


def _seen(member: Child, wanted: set[tuple[int, int]]) -> int:
    """Return when a member had the last of some records."""
    left, at = set(wanted), 0
    while left:
        at, records = member.answer()
        left -= {(partition, offset) for partition, offset in records}
    return at
