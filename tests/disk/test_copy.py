"""Copying a segment: the bytes arrive as they are, and what does not fit is told on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace.disk.copy import Identity, Settling, Wanted, copy_file, copy_segment, identify
from tailrace.disk.files import Files
from tailrace.disk.frame import crc32c

FILES = Files()


class Segments:
    """A sealed and an active segment of a topic, and copies of them."""

    def __init__(self, log, folder):
        self.folder = folder
        topic = log.topic("orders", segment_bytes="4KiB")
        while len(self.files(log)) < 2:
            topic.append(b"x" * 500)
        self.partition = log.engine.partition(log.engine.entry("orders"), 0)
        self.sealed, self.active = self.files(log)
        state = self.partition.state
        self.state = state
        self.whole = Wanted(self.partition.topic_id, 0, 0, None)
        self.newest = Wanted(self.partition.topic_id, 0, state.base, (state.position, state.chain, state.salt))

    @staticmethod
    def files(log):
        entry = log.engine.find("orders")
        return [] if entry is None else sorted((Path(log.location) / entry.directory / "0").glob("*.seg"))

    def copy(self, path, wanted):
        target = self.folder / "copy"
        target.unlink(missing_ok=True)
        reported = []
        descriptor = FILES.open(str(path))
        copied = FILES.open(str(target), exclusive=True)
        try:
            return copy_segment(FILES, descriptor, copied, wanted, reported.append), target.read_bytes(), sum(reported)
        finally:
            FILES.close(descriptor)
            FILES.close(copied)

    def identity(self, path, wanted):
        descriptor = FILES.open(str(path))
        try:
            return identify(FILES, descriptor, wanted)
        finally:
            FILES.close(descriptor)


@pytest.fixture
def segments(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield Segments(log, tmp_path)


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_a_sealed_segment_is_copied_to_its_last_byte(segments):
    copied, data, reported = segments.copy(segments.sealed, segments.whole)
    assert data == segments.sealed.read_bytes()
    assert (copied.wrong, copied.span, copied.crc) == (None, segments.state.base, crc32c(data))
    assert copied.identity == segments.identity(segments.sealed, segments.whole)
    assert copied.identity.size == reported == len(data)


def test_an_active_segment_is_copied_up_to_its_state(segments):
    copied, data, _ = segments.copy(segments.active, segments.newest)
    state = segments.state
    assert data == segments.active.read_bytes()[: state.position]
    assert (copied.wrong, copied.span) == (None, state.end - state.base)
    assert copied.identity == Identity(state.salt, state.position, state.chain)


@pytest.mark.parametrize(("position", "wrong"), [(20, "the header"), (400, "the frame at"), (-40, "the footer")])
def test_damaged_bytes_are_copied_and_told(segments, position, wrong):
    flip(segments.sealed, position)
    copied, data, _ = segments.copy(segments.sealed, segments.whole)
    assert data == segments.sealed.read_bytes()
    assert wrong in copied.wrong


def test_a_file_that_ends_too_early_is_told(segments):
    state = segments.state
    wanted = segments.newest._replace(active=(1 << 20, state.chain, state.salt))
    copied, _, _ = segments.copy(segments.active, wanted)
    assert copied.wrong
    assert copied.identity.size < 1 << 20


def test_a_segment_of_another_place_or_another_salt_is_not_taken(segments):
    state = segments.state
    for wanted in (
        segments.whole._replace(topic_id=99),
        segments.whole._replace(partition=1),
        segments.whole._replace(base=5),
    ):
        assert segments.identity(segments.sealed, wanted) is None
        assert "the header" in segments.copy(segments.sealed, wanted)[0].wrong
    other = segments.newest._replace(active=(state.position, state.chain, state.salt ^ 1))
    assert segments.identity(segments.active, other) is None
    assert "not the segment that the state names" in segments.copy(segments.active, other)[0].wrong
    # An active segment has no footer yet.
    assert segments.identity(segments.active, segments.newest._replace(active=None)) is None


def test_any_file_is_copied_with_its_checksum(tmp_path):
    data = bytes(range(256)) * 100
    (tmp_path / "file").write_bytes(data)
    source, target = FILES.open(str(tmp_path / "file")), FILES.open(str(tmp_path / "copy"), exclusive=True)
    assert copy_file(FILES, source, target) == (len(data), crc32c(data))
    FILES.close(source)
    FILES.close(target)
    assert (tmp_path / "copy").read_bytes() == data


class Noting(Files):
    """Notes what is synced and renamed."""

    __slots__ = ("fails", "notes")

    def __init__(self):
        self.notes, self.fails = [], False

    def sync_data(self, fd):
        if self.fails:
            raise OSError(5, "Input/output error")
        self.notes.append("sync")

    def rename(self, source, target):
        self.notes.append(target.rpartition("/")[2])
        super().rename(source, target)


@pytest.mark.parametrize("fails", [False, True])
def test_copies_get_their_names_when_all_of_them_are_on_disk(tmp_path, fails):
    files = Noting()
    settling = Settling(files)
    for name in ("a", "b"):
        path = str(tmp_path / f"{name}.part")
        settling.add(files.open(path, exclusive=True), path, str(tmp_path / name), 10)
    # One that has its name already is only synced.
    settling.add(files.open(str(tmp_path / "c"), exclusive=True), str(tmp_path / "c"), str(tmp_path / "c"), 10)
    assert files.notes == []
    files.fails = fails
    if fails:
        with pytest.raises(OSError, match="Input"):
            settling.finish()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.part", "b.part", "c"]
    else:
        settling.finish()
        assert files.notes == ["sync", "sync", "sync", "a", "b"]
    assert settling.close() == []


def test_many_bytes_are_settled_without_being_asked(tmp_path):
    files = Noting()
    settling = Settling(files)
    path = str(tmp_path / "a.part")
    settling.add(files.open(path, exclusive=True), path, str(tmp_path / "a"), 1 << 30)
    assert files.notes == ["sync", "a"]
