"""Small durable appends: the kernel is asked to write before the state block is made, and the sync follows as ever."""

from __future__ import annotations

import errno
import os
import sys

import pytest

import tailrace
from tailrace import settings
from tailrace.disk import files as files_module
from tailrace.disk.files import Files
from tailrace.engine import engine as engines
from tailrace.settings import Tuning

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="there are no such hints here")


class Noting(Files):
    """The real files, which note in which order a segment is written, hinted at and synced."""

    __slots__ = ("notes",)

    def __init__(self) -> None:
        self.notes: list[str] = []

    def write(self, fd, data, position):
        self.notes.append("write")
        super().write(fd, data, position)

    def write_all(self, fd, buffers, position):
        self.notes.append("write")
        return super().write_all(fd, buffers, position)

    def start_writing(self, fd, position, count):
        self.notes.append("start")
        super().start_writing(fd, position, count)

    def sync_data(self, fd):
        self.notes.append("sync")
        super().sync_data(fd)


@pytest.fixture
def files(monkeypatch):
    files = Noting()
    monkeypatch.setattr(engines, "FILES", files)
    # No flusher, which would sync in between.
    monkeypatch.setattr(settings, "TUNING", Tuning(background=False))
    return files


def noted(log, files, value, durable):
    """What happens to the segment for an append that lies within the zeros of the one before."""
    topic = log.topic("orders")
    topic.append(b"first")
    files.notes.clear()
    topic.append(value, durable=durable)
    return files.notes[:]


@pytest.mark.parametrize(
    ("size", "durable", "expected"),
    [
        (100, True, ["write", "start", "sync"]),
        # A whole page would leave the page cache, where readers look for it.
        (4096, True, ["write", "sync"]),
        (50_000, True, ["write", "sync"]),
        (100, False, ["write"]),
    ],
)
def test_the_hint_comes_between_the_write_and_its_sync(tmp_path, files, size, durable, expected):
    with tailrace.open(tmp_path / "log") as log:
        assert noted(log, files, b"x" * size, durable) == expected


def test_a_file_that_grows_gets_no_hint(tmp_path, files):
    grown, hinted = ("write", "write", "sync"), ("write", "start", "sync")
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders")
        topic.append(b"first")
        found = set()
        while grown not in found:
            files.notes.clear()
            topic.append(b"x" * 3000)
            found.add(tuple(files.notes))
            # The second write of a growing file is the one of zeros, which is synced together with the record.
            assert found <= {grown, hinted}
        assert hinted in found


def test_a_refused_hint_changes_nothing(tmp_path, files, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    with tailrace.open(tmp_path / "log") as log:
        monkeypatch.setattr(files_module, "_advise", refuse)
        assert noted(log, files, b"second", True) == ["write", "start", "sync"]
        assert [record.value for record in log.topic("orders").read()] == [b"first", b"second"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whether a page is in memory")
def test_what_was_hinted_at_stays_in_memory_for_readers(tmp_path, files):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders")
        for number in range(100):
            topic.append(b"%03d" % number * 100)
        assert "start" in files.notes
        [path] = [path for path in (tmp_path / "log").rglob("*.seg") if b"099099" in path.read_bytes()]
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size = topic.backend.route(log.engine).partitions[0].state.position
            buffer = bytearray(size)
            try:
                read = os.preadv(descriptor, [buffer], 0, os.RWF_NOWAIT)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    pytest.skip("this file system does not tell")
                raise
            assert read == size
        finally:
            os.close(descriptor)
