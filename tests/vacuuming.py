"""Topics for tests of retention: a clock that goes forward, segments of 4 KiB, and what is left of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace import settings
from tailrace.disk.files import Files
from tailrace.disk.segment import segment_base
from tailrace.engine import background as workers
from tailrace.engine import engine as engines
from tailrace.settings import Tuning

HOUR = 3_600


class Clock(Files):
    """The real files with a clock that can be set forward."""

    __slots__ = ("ahead_us",)

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us

    def forward(self, seconds: float) -> None:
        self.ahead_us += round(seconds * 1e6)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engines, "FILES", clock)
    return clock


@pytest.fixture
def tune(monkeypatch):
    """Nothing happens by itself, until this is called with a tuning for logs that are opened from now on."""
    chores = workers.chores
    monkeypatch.setattr(workers, "chores", None)

    def tune(**fields):
        monkeypatch.setattr(workers, "chores", chores)
        monkeypatch.setattr(settings, "TUNING", Tuning(**fields))

    return tune


@pytest.fixture
def log(tmp_path, clock, tune):
    with tailrace.open(tmp_path / "log") as log:
        yield log


def files(topic, partition: int = 0) -> list[Path]:
    """The segments of a partition; one below the start, which nobody reads, is one too."""
    entry = topic.log.engine.entry(topic.name)
    return sorted((Path(topic.log.location) / entry.directory / str(partition)).glob("*.seg"))


def bases(topic, partition: int = 0) -> list[int]:
    return [base for path in files(topic, partition) if (base := segment_base(path.name)) is not None]


def size(topic) -> int:
    entry = topic.log.engine.entry(topic.name)
    total = 0
    for path in (Path(topic.log.location) / entry.directory).rglob("*.seg"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            # Removed since the directory was listed.
            continue
    return total


def fill(topic, segments: int, partition: int = 0) -> None:
    """So many segments of 4 KiB, with three records each; the last of them is active."""
    for _ in range(segments * 3):
        topic.append(b"x" * 1_200, partition=partition)


def values(topic) -> list[int]:
    return [record.offset for record in topic.read()]
