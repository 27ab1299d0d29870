"""Damaged logs for tests: one of several segments, its frames, and what a repair must keep of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace import Log
from tailrace.disk.frame import place, prepare, read_header
from tailrace.disk.segment import HEADER_BYTES, parse_header, salt_chain, walk
from tailrace.disk.tails import (
    BLOCK_BYTES,
    State,
    parse_block,
)

COUNT = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with a topic of several segments, a frame for each record."""
    with tailrace.open(tmp_path / "log", durable=False) as log:
        topic = log.topic("orders", segment_bytes=4_544)
        for number in range(COUNT):
            topic.append(f"value {number:04d}" + "x" * 40)
    return tmp_path / "log"


def segments(path: Path, topic: str = "orders", partition: int = 0) -> list[Path]:
    return sorted(path.glob(f"topics/*-{topic}/{partition}/*.seg"))


def frames(file: Path) -> list[tuple[int, int, int]]:
    """(position, stop, offset) of the frames of a segment."""
    data = file.read_bytes()
    header = parse_header(data)
    assert header is not None
    found = walk(
        lambda count, at: data[at : at + count], HEADER_BYTES, 0, salt_chain(header.salt), len(data), bodies=True
    )
    base = int(file.stem)
    return [(each.position, each.position + each.header.size, base + each.header.base) for each in found]


def flip(file: Path, position: int, length: int = 1) -> None:
    data = bytearray(file.read_bytes())
    for at in range(position, position + length):
        data[at] ^= 0xFF
    file.write_bytes(data)


def everything(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def offsets_of(batch: tailrace.Batch) -> list[int]:
    return [record.offset for record in batch]


def readable(log: Log, topic: str = "orders") -> list[int]:
    return [record.offset for record in log.topic(topic).read(on_damage="skip")]


def check(path: Path, lost: set[int], topic: str = "orders", count: int = COUNT) -> tailrace.types.RepairReport:
    """A dry run changes nothing; a repair loses what it must, and no more; a second one does nothing; appends go on."""
    before = everything(path)
    planned = tailrace.repair(path, dry_run=True)
    assert everything(path) == before
    report = tailrace.repair(path)
    assert not report.sound
    assert [(step.what, step.why) for step in planned.steps] == [(step.what, step.why) for step in report.steps]
    given_up = {offset for each in report.lost if each.topic == topic for offset in range(each.first, each.last + 1)}
    assert given_up == lost
    mended = everything(path)
    assert tailrace.repair(path).sound
    again = everything(path)
    assert {name: data for name, data in again.items() if name not in ("lock", "tails")} == {
        name: data for name, data in mended.items() if name not in ("lock", "tails")
    }
    with tailrace.open(path) as log:
        verified = log.verify()
        assert verified.ok
        assert {offset for each in verified.lost for offset in range(each.first, each.last + 1)} == lost
        kept = [offset for offset in range(count) if offset not in lost]
        assert readable(log, topic) == kept
        values = [record.text for record in log.topic(topic).read(on_damage="skip")]
        assert values == [f"value {offset:04d}" + "x" * 40 for offset in kept]
        assert log.topic(topic).append(b"behind").offset == count
    return report


def newest(tails: bytes, slot: int = 1) -> tuple[int, tuple[int, State, int]]:
    """The newest state block of a slot, and where it lies."""
    first = 4_096 + slot * 256
    places = [first + 64, first + 160]
    blocks = [(parse_block(tails[at : at + BLOCK_BYTES]), at) for at in places]
    block, at = max((block, at) for block, at in blocks if block is not None)
    return at, block


def put_back(file: Path, number: int, value: bytes) -> tuple[int, int]:
    """A disk gives back what stood in the place of a frame before: whole, but the next does not follow from it.

    Where it ends and where the frame ended.
    """
    data = bytearray(file.read_bytes())
    start, stop, _ = frames(file)[number]
    header = read_header(data, start)
    assert header is not None
    older = b"".join(place(prepare([value], None, None, 1), header.base, header.chain).buffers)
    data[start : start + len(older)] = older
    file.write_bytes(data)
    return start + len(older), stop
