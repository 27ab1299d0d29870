"""The machine of an engine: the clock of the tests, and files that are synced before they are believed."""

from __future__ import annotations

import time

import pytest

import tailrace
from tailrace import bulk, testing
from tailrace.disk.files import Files
from tailrace.engine import engine as engines


def test_the_clock_is_that_of_the_records(tmp_path):
    with testing.steered() as steering, tailrace.open(tmp_path / "log") as log:
        steering.clock.advance("1d")
        before = bulk.now_us()
        log.topic("a").append("x")
        after = bulk.now_us()
        assert before > time.time() * 1e6 + 80_000e6
        assert before <= log.topic("a").read().first().timestamp_us <= after


class Watched(Files):
    def __init__(self):
        super().__init__()
        self.synced = []

    def sync_data(self, fd):
        self.synced.append("data")
        super().sync_data(fd)

    def sync_directory(self, path):
        self.synced.append(path)
        super().sync_directory(path)


def test_a_file_is_read_once_it_and_its_name_are_on_disk(tmp_path, monkeypatch):
    files = Watched()
    monkeypatch.setattr(engines, "FILES", files)
    path = tmp_path / "progress"
    path.write_bytes(b"5\n")
    assert bulk.read_durable(str(path)) == b"5\n"
    assert files.synced == ["data", str(tmp_path)]
    with pytest.raises(FileNotFoundError):
        bulk.read_durable(str(tmp_path / "nothing"))
    assert len(files.synced) == 2
    bulk.sync_directory(str(tmp_path))
    assert files.synced[2:] == [str(tmp_path)]


def test_a_path_without_a_directory(tmp_path, monkeypatch):
    files = Watched()
    monkeypatch.setattr(engines, "FILES", files)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "progress").write_bytes(b"")
    assert bulk.read_durable("progress") == b""
    assert files.synced == ["data", "."]
