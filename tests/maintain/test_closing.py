"""Closing: active segments that keep due records are sealed, and young ones stay."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import tailrace
from tailrace.disk import partition as partitions
from tailrace.engine import engine as engines
from tests.processes import run
from tests.vacuuming import HOUR, Clock, bases, clock, files, fill, log, size, tune, values

__all__ = ["clock", "log", "tune"]


def test_an_idle_topic_keeps_nothing_old(log, clock):
    """The newest segment goes too, and the end of the partition stays what it was, also over a recovery."""
    topic = log.topic("orders", partitions=2, segment_bytes=4096, retain="1h")
    fill(topic, 2)
    clock.forward(2 * HOUR)
    dry = log.vacuum(dry_run=True)
    assert [(note.first, note.last, note.sealed) for note in dry.removed] == [(0, 2, True), (3, 5, False)]
    assert log.vacuum().records == 6
    assert (bases(topic), size(topic)) == ([6], 64)
    assert topic.offsets() == {0: (6, 6, 6), 1: (0, 0, 0)}
    assert values(topic) == []
    assert topic.append("x", partition=0).offset == 6


def test_a_young_active_segment_stays(log, clock):
    topic = log.topic("orders", retain="1h", segment_age="1d")
    topic.append("old")
    clock.forward(HOUR / 2)
    assert log.vacuum().kept[0].why == "active segment"
    assert values(topic) == [0]
    clock.forward(HOUR)
    topic.append("young")
    # It is closed, because it holds what is due; it stays, because it holds what is not.
    (note,) = log.vacuum().kept
    assert (note.first, note.last, note.sealed) == (0, 1, True)
    clock.forward(HOUR / 2)
    assert topic.append("next").offset == 2
    assert bases(topic) == [0, 2]
    clock.forward(HOUR * 0.6)
    assert log.vacuum().records == 2


def test_a_segment_that_another_process_wrote_is_closed(log, clock, tmp_path, monkeypatch):
    """Its frames are looked at before the lock is taken, so that nobody waits for that."""
    run(
        """
        import sys, tailrace
        with tailrace.open(sys.argv[1]) as log:
            topic = log.topic("orders", retain="1h")
            for _ in range(100):
                topic.append(b"x" * 100)
        """,
        tmp_path / "log",
    )
    topic = log.topic("orders")
    clock.forward(2 * HOUR)
    walked = []
    monkeypatch.setattr(
        partitions, "extend_index", lambda read, index, stop: walked.append(stop - index.position) or index
    )
    assert log.vacuum().records == 100
    assert walked == [0]
    assert topic.append("y").offset == 100
    assert log.verify().ok


def read(log, group: str, count: int) -> None:
    with log.consumer("orders", group=group, commit="manual") as consumer:
        assert len(consumer.poll(count)) == count
        consumer.commit()


class FullUntilRemoved(Clock):
    """A disk without room for a footer, until the first segment of a partition was removed."""

    __slots__ = ("first",)

    def __init__(self) -> None:
        super().__init__()
        self.first: Path | None = None

    def write(self, fd: int, data: bytes, position: int) -> None:
        if self.first is not None and self.first.exists():
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.parent == self.first.parent:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data, position)


def test_a_due_segment_is_sealed_with_the_room_that_the_same_vacuum_makes(tmp_path, tune, monkeypatch):
    """A person who vacuums a full disk gets all that is due with one command, and each segment is noted once."""
    disk = FullUntilRemoved()
    monkeypatch.setattr(engines, "FILES", disk)
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders", segment_bytes=4096, retain="1h")
        fill(topic, 3)
        other = log.topic("others", segment_bytes=4096, retain="1h")
        disk.forward(2 * HOUR)
        fill(other, 2)
        assert bases(topic) == [0, 3, 6]
        disk.first = files(topic)[0]
        report = log.vacuum()
        assert not disk.first.exists()
        assert [(note.topic, note.first) for note in report.removed] == [("orders", first) for first in (0, 3, 6)]
        assert [(note.topic, note.first) for note in report.kept] == [("others", 0), ("others", 3)]
        assert report.records == 9
        assert topic.offsets()[0] == (9, 9, 9)
        assert topic.append("goes on").offset == 9
