"""A newest segment that is cut short, at every byte of its last frames: reading, verify, doctor and repair agree."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import log as logs
from tailrace import settings
from tailrace.disk.files import Files
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import read_header
from tailrace.errors import CorruptionError
from tailrace.settings import Tuning

# Of four frames, whose bodies end at different places before the next multiple of eight.
VALUES = [b"whole", b"a", b"bb", b"ccc", b"dddd", b"eeeee"]
RECORDS = [1, 3, 1, 1]


class Closed:
    """A closed log, to be put back as it was: the same files, so that it is no copy."""

    def __init__(self, location: Path) -> None:
        self.location = location
        with tailrace.open(location) as log:
            topic = log.topic("orders")
            topic.append(VALUES[0])
            topic.extend(VALUES[1:4])
            topic.append(VALUES[4])
            topic.append(VALUES[5])
            self.position = log.engine.store.tails.read_block(1)[1].position
        (self.segment,) = location.glob("topics/*/0/*.seg")
        self.files = {path: path.read_bytes() for path in location.rglob("*") if path.is_file()}

    def put_back(self) -> None:
        for path in [path for path in self.location.rglob("*") if path.is_file() and path not in self.files]:
            path.unlink()
        for path, content in self.files.items():
            path.parent.mkdir(exist_ok=True)
            with open(path, "r+b" if path.exists() else "wb") as file:
                file.write(content)
                file.truncate()

    def frames(self) -> list[tuple[int, int, int]]:
        """Of each frame its place in the segment, where its body ends, and where the next one begins."""
        content, found = self.files[self.segment], []
        position = 64
        while position < self.position:
            header = read_header(content, position)
            assert header is not None
            end = position + FRAME_HEADER_BYTES + header.body_length
            found.append((position, end, position + header.size))
            position += header.size
        return found

    def cuts(self) -> Iterator[tuple[int, int]]:
        """Every length from where the third frame from the back ends, and how many frames are whole then."""
        frames = self.frames()
        for size in range(frames[-3][1] - 2, self.position + 1):
            yield size, sum(end <= size for _, end, _ in frames)

    def near_ends(self) -> Iterator[tuple[int, int]]:
        """Those around the end of a frame, with all of its padding."""
        ends = [end for _, end, _ in self.frames()]
        for size, frames in self.cuts():
            if any(end - 2 <= size <= end + 8 for end in ends):
                yield size, frames


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No threads, since each log is opened for a few calls; no waits of doctor for a writer, since there is none."""
    monkeypatch.setattr(settings, "TUNING", Tuning(background=False))
    monkeypatch.setattr(Files, "sleep", lambda files, seconds: None)


def read(log) -> dict[int, bytes]:
    """What a reader gets, in whatever order it reads and however it asks."""
    topic = log.topic("orders")
    shown = {record.offset: record.value for record in topic.read(on_damage="skip")}
    assert shown == {record.offset: record.value for record in topic.read(reverse=True, on_damage="skip")}
    for offset in shown:
        assert topic.get(offset).value == shown[offset]
    return shown


def named(damage) -> list[int]:
    """The offsets that some ranges name, all of them in the one partition that there is."""
    assert all((each.topic, each.partition) == ("orders", 0) for each in damage)
    return [offset for each in damage for offset in range(each.first, each.last + 1)]


def check(closed: Closed, count: int, append: bool) -> None:
    """Look at a log of which so many records are whole, append if asked to, repair it and look again."""
    whole = dict(enumerate(VALUES[:count]))
    missing = (count, len(VALUES) - 1)
    with tailrace.open(closed.location) as log:
        assert read(log) == whole
        assert log.topic("orders").offsets()[0].latest == len(VALUES)
        assert named(log.verify().damage) == [*range(count, len(VALUES))]
        assert any(finding.damage for finding in log.doctor()) == (count < len(VALUES))
        for _ in range(2 if append else 0):
            if count == len(VALUES):
                log.topic("orders").append(b"more")
                continue
            with pytest.raises(CorruptionError) as caught:
                log.topic("orders").append(b"more")
            error = caught.value
            assert (error.topic, error.partition, error.first, error.last) == ("orders", 0, *missing)
        whole = read(log)
    report = logs.repair(closed.location)
    assert report.sound == (count == len(VALUES))
    assert named(report.lost) == [*range(count, len(VALUES))]
    with tailrace.open(closed.location) as log:
        assert log.verify().ok
        assert read(log) == whole
        assert log.topic("orders").append(b"behind").offset >= len(VALUES)


def cut(closed: Closed, size: int, count: int, append: bool) -> None:
    closed.put_back()
    os.truncate(closed.segment, size)
    try:
        check(closed, count, append)
    except AssertionError as error:
        raise AssertionError(f"cut at {size}, {count} whole records of {closed.frames()}") from error


@pytest.fixture
def closed(tmp_path) -> Iterator[Closed]:
    """In memory where that is possible: every cut is synced a dozen times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Closed(Path(folder) / "log")


@pytest.mark.parametrize("boot", ["the same", "another"])
def test_a_cut_anywhere_in_the_last_two_frames(closed, monkeypatch, boot):
    """Whatever could be read before an append was refused can be read after the repair."""
    tried = 0
    for size, frames in closed.cuts():
        monkeypatch.setenv("TAILRACE_BOOT_ID", f"boot {size}" if boot == "another" else "")
        cut(closed, size, sum(RECORDS[:frames]), append=True)
        tried += 1
    assert tried > 190


@pytest.mark.parametrize("boot", ["the same", "another"])
def test_a_cut_near_the_end_of_a_frame_without_an_append(closed, monkeypatch, boot):
    for size, frames in closed.near_ends():
        monkeypatch.setenv("TAILRACE_BOOT_ID", f"boot {size}" if boot == "another" else "")
        cut(closed, size, sum(RECORDS[:frames]), append=False)


@pytest.mark.parametrize("size", [5, 300_001, 1_000_003])
@pytest.mark.parametrize("boot", ["the same", "another"])
def test_missing_padding_is_no_damage(tmp_path, monkeypatch, size, boot):
    """Also behind a frame that is larger than what is read at once; a backup has the padding again."""
    location, value = tmp_path / "log", os.urandom(size)
    with tailrace.open(location) as log:
        log.topic("orders").append(b"first")
        log.topic("orders").append(value)
        state = log.engine.store.tails.read_block(1)[1]
    (segment,) = location.glob("topics/*/0/*.seg")
    header = read_header(segment.read_bytes(), state.last)
    assert header.length < header.size
    os.truncate(segment, state.last + header.length)
    monkeypatch.setenv("TAILRACE_BOOT_ID", f"boot {size}" if boot == "another" else "")
    with tailrace.open(location) as log:
        assert [record.value for record in log.topic("orders").read()] == [b"first", value]
        assert log.topic("orders").get(1).value == value
        assert log.verify().ok
        log.backup(tmp_path / "backup")
        assert log.topic("orders").append("next").offset == 2
        assert log.verify().ok
    assert logs.repair(location, dry_run=True).sound
    tailrace.Log.restore(tmp_path / "backup", tmp_path / "restored")
    with tailrace.open(tmp_path / "restored") as log:
        assert [record.value for record in log.topic("orders").read()] == [b"first", value]
        assert log.verify().ok
