"""The sink without Spark, killed at every point of the disk where a process can die.

A batch runs in a child process that is killed with SIGKILL at a point with a name: while a task stages, before, in and
after the commit, between the steps of a wide batch. Then other writers append, and the batch comes again as Spark would
bring it after a restart, with its rows in another order. Every row is there once. A point that is not reached fails.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

import tailrace
from tailrace import bulk, settings, testing
from tailrace.limits import ADOPT_ALONE_BYTES_MIN
from tailrace.spark import handles, limits
from tailrace.spark.sink import outbox
from tests.spark.tasks import Job
from tests.tuning import limit

DDL = "value string, key string"


class Mode:
    """A way for rows to take: how many tasks, partitions and rows, and the maxima that make them take it."""

    def __init__(self, tasks, partitions, rows, *, adopt_alone_bytes_min=ADOPT_ALONE_BYTES_MIN, **maxima):
        self.tasks = tasks
        self.partitions = partitions
        self.rows = rows
        self.adopt_alone_bytes_min = adopt_alone_bytes_min
        self.maxima = maxima

    def set_maxima(self, monkeypatch):
        limit(monkeypatch, limits, **self.maxima)
        tuning = settings.TUNING._replace(adopt_alone_bytes_min=self.adopt_alone_bytes_min)
        monkeypatch.setattr(settings, "TUNING", tuning)

    def tables(self, order):
        """The rows of the batch, cut into tasks; another order stands for another attempt."""
        values = [f"{number:06d}" for number in range(self.rows)]
        random.Random(order).shuffle(values)
        return [
            pa.table({"value": some, "key": some}) for some in (values[at :: self.tasks] for at in range(self.tasks))
        ]


MODES = {
    # Frames in the messages, one journal entry.
    "inline": Mode(2, 3, 60),
    # One segment a partition, which the commit renames.
    "adopted": Mode(1, 2, 4_000, message_bytes_max=100),
    # Segments of two tasks for the same partitions, each renamed.
    "several": Mode(2, 2, 4_000, message_bytes_max=100, adopt_alone_bytes_min=1),
    # The same, but small: they become one.
    "combined": Mode(2, 2, 4_000, message_bytes_max=100),
    # One segment for many partitions, taken apart in the driver.
    "held": Mode(1, 6, 2_000, message_bytes_max=100, segments_max=4),
    # More partitions than one transaction takes, by way of the outbox.
    "wide": Mode(2, 7, 300, places_max=3),
    "wide-staged": Mode(2, 7, 300, places_max=3, message_bytes_max=100, segments_max=4),
}


@pytest.fixture
def steering():
    with testing.steered() as steered:
        yield steered
        handles.close_all()


def start(tmp_path, mode):
    log = tailrace.open(tmp_path / "log")
    log.topic("a", partitions=mode.partitions)
    # The internal topics are there, so that points belong to the batch and not to their making.
    bulk.commit(log, [], marker=("warm", 1))
    outbox.topic_of(log).create()
    return log


def run(log, mode, order):
    Job(DDL, path=log.location, topic="a", query="q").run(*mode.tables(order), batch=5)


def points(log, mode, faults):
    """Which points a whole batch passes, and how often."""
    ending = faults.kill(run, log, mode, 1, at="removed", n=1_000_000, check=False, timeout=60)
    assert ending.error is None, ending.error
    return ending.passed


# What every mode passes at least; the rest is found out by running it.
EXPECTED = {
    "inline": {"journal-write", "journal-written", "journal-sync", "journal-synced", "write", "written", "published"},
    "adopted": {"staged-write", "staged-written", "staged-sync", "staged-synced", "rename", "renamed", "published"},
    "several": {"staged-write", "staged-synced", "rename", "renamed", "journal-synced", "published"},
    "combined": {"staged-write", "staged-synced", "rename", "renamed", "journal-synced", "published"},
    "held": {"staged-write", "staged-synced", "journal-written", "journal-synced", "written"},
    "wide": {"journal-write", "journal-written", "journal-synced", "written", "catalog-synced"},
    "wide-staged": {"staged-write", "staged-synced", "rename", "renamed", "journal-synced", "catalog-synced"},
}


# Those that others resemble: two stage as `adopted` does, one is both `wide` and staged.
SLOW = ("several", "combined", "wide-staged")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in MODES]
)
def test_killed_at_every_point(name, tmp_path, steering, monkeypatch):
    mode = MODES[name]
    mode.set_maxima(monkeypatch)
    # A log for each death: what a journal is filled with would be most of the work.
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "1MiB")
    with start(tmp_path / "survey", mode) as log:
        passed = points(log, mode, steering.faults)
        handles.close_all()
    assert EXPECTED[name] <= passed.keys()
    deaths = [(point, n) for point, count in passed.items() for n in sorted({1, (count + 1) // 2, count})]
    fired = 0
    for point, n in deaths:
        folder = tmp_path / f"{point}-{n}"
        with start(folder, mode) as log:
            ending = steering.faults.kill(run, log, mode, 1, at=point, n=n, timeout=60)
            fired += ending.killed
            # Whoever comes first meets what the dead left.
            log.topic("a").append("999999", key="999999")
            run(log, mode, 2)
            check(log, mode, f"{name} killed at {point} {n}")
            run(log, mode, 3)
            check(log, mode, f"{name} killed at {point} {n}, replayed twice")
            handles.close_all()
    assert fired == len(deaths) >= 8


def check(log, mode, told):
    topic = log.topic("a")
    found = sorted(int(record.text) for record in topic.read())
    assert found == [*range(mode.rows), 999_999], told
    # What died with its process is invisible, and can be swept.
    bulk.sweep_staged(log, 0)
    assert sorted(Path(log.location).glob("topics/*/*/*.staged")) == [], told
    assert log.verify().ok, told
