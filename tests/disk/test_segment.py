"""Headers and footers of segments: what is reserved in them, and what a newer version says there."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import tailrace
from tailrace.disk import segment, tails
from tailrace.disk.frame import crc32c
from tailrace.disk.segment import TRAILER_BYTES, pack_header, parse_header
from tailrace.disk.tails import REWRITES, REWRITES_SHIFT, pack_block
from tailrace.errors import VersionError


@pytest.fixture
def path(tmp_path):
    """A log with two sealed segments and one that is being written."""
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders", segment_bytes=4096)
        for _ in range(3):
            topic.append("x" * 3_000)
        log.topic("others").append("y")
    return tmp_path / "log"


def sealed(path: Path) -> Path:
    return min(path.glob("topics/*-orders/0/*.seg"))


def test_a_new_segment_is_its_own_origin(path):
    for file in path.rglob("*.seg"):
        header = parse_header(file.read_bytes())
        assert header is not None
        assert (header.origin, header.rewrites) == (header.salt, 0)
    assert parse_header(pack_header(1, 2, 3, 4, 5)) == segment.SegmentHeader(1, 2, 3, 4, 5, 3, 0)


def test_a_segment_that_was_written_anew_is_read(path):
    file = sealed(path)
    data = bytearray(file.read_bytes())
    struct.pack_into("<QI", data, 48, 77, 3)
    data[60:64] = struct.pack("<I", crc32c(bytes(data[:60])))
    file.write_bytes(data)
    header = parse_header(bytes(data))
    assert header is not None
    assert (header.origin, header.rewrites) == (77, 3)
    with tailrace.open(path) as log:
        assert log.topic("orders").read().count() == 3
        assert log.verify().ok


def edit_footer(file: Path, at: int, value: int) -> None:
    """Change a number in the trailer, under a right checksum."""
    data = bytearray(file.read_bytes())
    trailer = len(data) - TRAILER_BYTES
    struct.pack_into("<I", data, trailer + at, value)
    struct.pack_into("<I", data, len(data) - 4, crc32c(bytes(data[trailer:-4])))
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (12, "flags"),
        (88, "encrypted"),
    ],
)
def test_what_a_newer_version_says_in_a_footer_is_no_damage(path, at, says):
    edit_footer(sealed(path), at, 2)
    with tailrace.open(path) as log:
        with pytest.raises(VersionError, match=says):
            list(log.topic("orders").read())
        with pytest.raises(VersionError, match=says):
            log.verify()
        assert log.topic("others").read().count() == 1
    before = sealed(path).read_bytes()
    with pytest.raises(VersionError, match=says):
        tailrace.repair(path)
    assert sealed(path).read_bytes() == before
    edit_footer(sealed(path), at, 0)
    with tailrace.open(path) as log:
        assert log.topic("orders").read().count() == 3
        assert log.verify().ok


def test_every_state_keeps_the_count_of_rewrites(path):
    with tailrace.open(path) as log:
        store = log.engine.store
        slot = log.engine.entry("orders").slots[0]
        partition = store.partition(slot)

        def count() -> None:
            state = partition.state
            partition._put(
                flagged := state._replace(flags=state.flags | 5 << REWRITES_SHIFT),
                pack_block(partition.sequence + 1, flagged, partition.incarnation),
            )

        def counted() -> int:
            block = store.tails.read_block(slot)
            assert block is not None
            return (block[1].flags & REWRITES) >> REWRITES_SHIFT

        store.inside(partition, count)
        assert counted() == 5
        for _ in range(4):
            log.topic("orders").append("x" * 3_000)
            assert counted() == 5
        with log.transaction() as tx:
            tx.append("orders", "a")
            tx.append("others", "b")
        assert counted() == 5
        log.topic("orders").trim(4)
        assert counted() == 5
    assert tails.ABSENT.flags == 0
