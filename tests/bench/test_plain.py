"""Plain files and memory: each limit moves exactly the bytes it is told to."""

from __future__ import annotations

import pytest

from tailrace.bench import plain


@pytest.mark.parametrize("synced", [False, True])
def test_bytes_are_appended_and_synced_one_by_one(tmp_path, monkeypatch, synced):
    sizes = []
    monkeypatch.setattr(plain, "sync_file", lambda file: sizes.append(path.stat().st_size))
    path = tmp_path / "plain"
    path.write_bytes(b"of before")
    with plain.appended(path, b"abc", synced=synced) as write:
        write(2)
        write(1)
        assert path.read_bytes() == b"abcabcabc"
    assert sizes == ([3, 6, 9] if synced else [])
    assert not path.exists()


def test_the_file_is_removed_after_a_failure(tmp_path):
    with pytest.raises(ZeroDivisionError), plain.appended(tmp_path / "plain", b"abc", synced=False):
        1 / 0
    assert list(tmp_path.iterdir()) == []


def test_copies_start_again_where_the_memory_ends(monkeypatch):
    made = []
    monkeypatch.setattr(plain, "bytearray", lambda size: made.append(bytearray(size)) or made[-1], raising=False)
    with plain.copied(b"abc", 8) as copy:
        copy(1)
        assert made[0] == b"abc" + bytes(5)
        copy(7)
    # A value that is larger than the memory is copied as well.
    with plain.copied(b"0123456789", 8) as copy:
        copy(2)
    assert made == [b"abcabc" + bytes(2), b"0123456789"]


@pytest.mark.parametrize("chunk", [1, 4, 10, 100])
def test_a_file_is_read_to_its_end_each_time(tmp_path, chunk):
    path = tmp_path / "plain"
    path.write_bytes(b"0123456789")
    with plain.file_read(path, chunk) as read:
        assert (read(1), read(3), read(0)) == (10, 30, 0)
