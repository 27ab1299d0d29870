"""Tailing: from the append in one process to the receipt in another, beside a bare pipe and SQLite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tailrace
from tailrace.bench import system as own
from tailrace.bench.cases import MICROSECONDS, Case, Goal
from tailrace.bench.children import started
from tailrace.bench.latencies import POLL_SECONDS, receive
from tailrace.bench.sqlite import LEVELS, SqliteLog
from tailrace.types import Durable

TOPIC = "followed"
FOLLOWER = "tailrace.bench.follower"
PIPE = "a pipe"


def pipe_case(work: str, value_bytes: int) -> Case:
    """Return the case of the limit: bytes through a pipe that wake another process."""

    def measure(seconds: float) -> list[float]:
        with started(FOLLOWER, {"way": "pipe"}) as child:
            return receive(child, child.send, seconds, value_bytes)

    return Case(
        work, "pipe", "write to read in another process", "memory: survives nothing", MICROSECONDS, measure,
        name=f"pipe {work}", apart=True,
    )  # fmt: skip


def follow_case(
    work: str, log: tailrace.Log, durable: Durable, value_bytes: int, how: str = "", goals: tuple[Goal, ...] = ()
) -> Case:
    """Return the case of Tailrace: append() here, read(follow=True) in another process."""
    topic = log.topic(TOPIC, partitions=1)
    spec = {"way": "follow", "path": log.location, "topic": TOPIC}
    level = "on disk before it is visible" if durable is True else own.level(durable)

    def put(data: bytes) -> Any:
        return topic.append(data, durable=durable)

    return Case(
        work, "Tailrace", how or "append() to read(follow=True)", level, MICROSECONDS,
        _receiving(spec, put, value_bytes), against=f"pipe {work}", told=PIPE, apart=True, goals=goals,
    )  # fmt: skip


def sqlite_case(work: str, directory: Path, synchronous: str, value_bytes: int) -> Case:
    """Return the case of SQLite, which cannot wait for another process and is polled."""
    path = directory / f"follow-{synchronous}.db"
    spec = {"way": "sqlite", "path": str(path), "synchronous": synchronous}

    def measure(seconds: float) -> list[float]:
        log = SqliteLog(path, synchronous)
        try:
            return _receiving(spec, log.append, value_bytes)(seconds)
        finally:
            log.close()

    return Case(
        work, "SQLite", f"INSERT to SELECT, asked every {POLL_SECONDS * 1000:g} ms", LEVELS[synchronous], MICROSECONDS,
        measure, against=f"pipe {work}", told=PIPE, apart=True,
    )  # fmt: skip


def _receiving(spec: dict[str, Any], put: Callable[[bytes], Any], value_bytes: int) -> Callable[[float], list[float]]:
    def measure(seconds: float) -> list[float]:
        with started(FOLLOWER, spec) as child:
            return receive(child, put, seconds, value_bytes)

    return measure
