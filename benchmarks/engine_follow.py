"""Following: from the append in one process to the receipt in another."""

from __future__ import annotations

from benchmarks.engine_stage import SMALL_BYTES, EngineStage, size_told
from tailrace.bench import tail as tailing
from tailrace.bench.cases import Case, Goal

WORK = f"append in one process to receipt in another, {size_told(SMALL_BYTES)}"
P50_GOAL_US, P99_GOAL_US = 80, 1_000


def cases(stage: EngineStage) -> list[Case]:
    """Return the cases with and without waiting for the disk."""
    goals = (Goal("p50", at_most=P50_GOAL_US), Goal("p99", at_most=P99_GOAL_US))
    how = "append(durable={}) to read(follow=True)"
    return [
        tailing.pipe_case(WORK, SMALL_BYTES),
        tailing.follow_case(WORK, stage.log, False, SMALL_BYTES, how.format(False), goals),
        tailing.follow_case(WORK, stage.log, True, SMALL_BYTES, how.format(True)),
        tailing.sqlite_case(WORK, stage.directory, "NORMAL", SMALL_BYTES),
        tailing.sqlite_case(WORK, stage.directory, "FULL", SMALL_BYTES),
    ]
