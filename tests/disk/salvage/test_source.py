"""A file under repair: the journal's writes are applied in memory, and the file stays as it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import tailrace
from tailrace.disk.files import Files
from tailrace.disk.salvage.source import PatchedFile, ends_in, footer_salt


def write(position: int, data: bytes) -> SimpleNamespace:
    return SimpleNamespace(position=position, data=data)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    return tmp_path / "file"


@pytest.fixture
def patched(path):
    made = PatchedFile(Files(), str(path))
    yield made
    made.close()


def test_without_writes_it_is_the_file(patched):
    assert patched.size == 10
    assert bytes(patched.read(4, 2)) == b"2345"
    # Fewer bytes only at the end.
    assert bytes(patched.read(9, 8)) == b"89"
    assert bytes(patched.read(1, 99)) == b""


def test_writes_lie_over_the_file_and_may_make_it_longer(patched, path):
    patched.read(10, 0)
    patched.overlay([write(3, b"abc"), write(5, b"XYZ"), write(12, b"end")])
    assert patched.size == 15
    assert bytes(patched.read(15, 0)) == b"012abXYZ89\0\0end"
    assert bytes(patched.read(2, 6)) == b"YZ"
    assert bytes(patched.read(2, 13)) == b"nd"
    assert path.read_bytes() == b"0123456789"


@pytest.mark.parametrize("piece", [1, 3, 7])
def test_it_is_the_same_in_pieces_of_any_size(patched, piece):
    patched.read_bytes = piece
    patched.overlay([write(3, b"abc"), write(9, b"end")])
    read = [bytes(patched.read(1, position)) for position in range(12)]
    assert b"".join(read) == b"012abc678end"
    assert bytes(patched.read(5, 2)) == b"2abc6"


@pytest.mark.parametrize("cached", [False, True])
def test_the_disk_counts_unless_the_cache_is_all_there_is(path, cached):
    class Forgetting(Files):
        __slots__ = ("forgotten",)

        def forget_cache(self, fd):
            self.forgotten = True

    files = Forgetting()
    PatchedFile(files, str(path), cached=cached).close()
    assert hasattr(files, "forgotten") != cached


def test_the_end_of_a_segment(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        topic = log.topic("orders", segment_bytes="4KiB")
        while (partition := log.engine.partition(log.engine.entry("orders"), 0)).state.base == 0:
            topic.append(b"x" * 500)
        topic.append(b"another")
        state = partition.state
        active = PatchedFile(Files(), f"{partition.path}/{state.base:020d}.seg")
        assert ends_in(active, state)
        for other in (
            state._replace(chain=state.chain ^ 1),
            state._replace(end=state.end + 1),
            state._replace(position=state.position + 8),
            state._replace(last=0),
        ):
            assert not ends_in(active, other)
        assert footer_salt(Files(), active.descriptor) is None
        active.close()
        sealed = PatchedFile(Files(), f"{partition.path}/{0:020d}.seg")
        found = footer_salt(Files(), sealed.descriptor)
        assert found
        assert found != state.salt
        sealed.close()
        active.close()
        assert active.descriptor == -1


def test_a_file_that_is_too_short_has_no_footer(path):
    descriptor = Files().open(str(path))
    assert footer_salt(Files(), descriptor) is None
    Files().close(descriptor)
