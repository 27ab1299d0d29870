"""Zeros ahead: written behind what is synced, never in its place, and never before it."""

from __future__ import annotations

import errno

import pytest

import tailrace
from tailrace.disk.files import Files
from tailrace.engine import engine as engines


class Noting(Files):
    """The real files, which note what is written to segments; with a limit, nothing is written beyond it."""

    __slots__ = ("limit", "notes")

    def __init__(self) -> None:
        self.notes: list[tuple[int, int, bool]] = []
        self.limit: int | None = None

    def write(self, fd, data, position):
        zeros = not any(memoryview(data).cast("B"))
        if self.limit is not None and zeros and position + memoryview(data).nbytes > self.limit:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.notes.append((position, memoryview(data).nbytes, zeros))
        super().write(fd, data, position)

    def write_all(self, fd, buffers, position):
        size = sum(memoryview(each).nbytes for each in buffers)
        self.notes.append((position, size, False))
        return super().write_all(fd, buffers, position)


@pytest.fixture
def files(monkeypatch):
    files = Noting()
    monkeypatch.setattr(engines, "FILES", files)
    return files


@pytest.mark.parametrize("size", [100, 100_000])
def test_they_follow_the_write_and_touch_it(tmp_path, files, size):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders")
        topic.append(b"first")
        state = topic.backend.route(log.engine).partitions[0].state
        files.notes.clear()
        while not any(zeros for _, _, zeros in files.notes):
            topic.append(b"x" * size)
        # Before the run of zeros comes the write that they belong to.
        (written, length, _), (position, run, zeros) = files.notes[-2:]
        assert zeros
        assert written >= state.position
        assert position == written + length
        assert run >= min(8 * size, 1 << 20)


def test_without_room_for_them_the_record_is_written(tmp_path, files):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders")
        files.limit = 0
        assert topic.append(b"x" * 1_000).offset == 0
        assert not [zeros for _, _, zeros in files.notes[-1:] if zeros]
        files.limit = None
        assert topic.append(b"y").offset == 1
        assert [record.value[:1] for record in topic.read()] == [b"x", b"y"]
        assert log.verify().ok
