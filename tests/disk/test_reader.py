"""The reader: single records and batches in one partition, read in every way there is, through rolls and damage."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace
from tailrace.disk.catalog import Catalog
from tailrace.disk.columns import _rising
from tailrace.disk.files import Files
from tailrace.disk.reader import Reader
from tailrace.disk.segment import HEADER_BYTES
from tailrace.disk.tails import HEADER_BYTES as TAILS_HEADER_BYTES
from tailrace.disk.tails import SLOT_BYTES, Tails, parse_block, word_of
from tailrace.errors import CorruptionError


def fill(topic: tailrace.Topic, rng: random.Random, writes: int = 400) -> list[tuple[Any, ...]]:
    """Single records of every kind among batches; (key, value) by offset."""
    rows: list[tuple[Any, ...]] = []
    for _ in range(writes):
        kind = rng.random()
        if kind < 0.1:
            values = [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(2, 30))]
            topic.extend(values)
            rows += [(None, value, {}) for value in values]
        elif kind < 0.2:
            topic.append(None, key=b"gone")
            rows.append((b"gone", None, {}))
        else:
            value, key = rng.randbytes(rng.randrange(300)), rng.choice([None, b"", b"k", b"a longer key"])
            headers = {"kind": b"x"} if rng.random() < 0.2 else {}
            topic.append(value, key=key, headers=headers)
            rows.append((key, value, headers))
    return rows


def row(record: tailrace.Record) -> tuple[Any, ...]:
    return record.key, record.value, dict(record.headers)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


@pytest.mark.parametrize("io", ["pread", "mmap"])
def test_every_way_of_reading_gives_the_same(tmp_path: Path, rng: random.Random, io: Any) -> None:
    with tailrace.open(tmp_path / "log", durable=False, io=io) as log:
        topic = log.topic("t", partitions=1, segment_bytes="64KiB")
        rows = fill(topic, rng, 1_500)
        found = list(topic.read())
        assert [*map(row, found)] == rows
        assert [record.offset for record in found] == [*range(len(rows))]
        assert list(topic.read(reverse=True)) == found[::-1]
        assert [each for batch in topic.read().batches(97) for each in batch] == found
        assert [value for batch in topic.read().batches() for value in batch.values()] == [r[1] for r in rows]
        table = topic.read().to_arrow()
        assert table["value"].to_pylist() == [r[1] for r in rows]
        assert table["key"].to_pylist() == [r[0] for r in rows]
        assert table["offset"].to_pylist() == [*range(len(rows))]
        assert topic.read(order="time").to_arrow()["value"].to_pylist() == [r[1] for r in rows]
        for _ in range(60):
            start = rng.randrange(len(rows))
            stop = min(start + rng.choice([1, 2, 40, 70, 3_000]), len(rows))
            assert list(topic.read(start, stop)) == found[start:stop]
            assert list(topic.read(start, stop, reverse=True)) == found[start:stop][::-1]
            assert topic.get(start) == found[start]
            assert list(topic.read(start, limit=3)) == found[start : start + 3]


def test_pieces_are_the_frames(log: tailrace.Log, rng: random.Random) -> None:
    topic = log.topic("t", partitions=1)
    rows = fill(topic, rng)
    store = log.engine.store
    partition = log.engine.partition(log.engine.entry("t"), 0)
    reader = store.reader(partition)
    frames = [reader.columns(frame) for frame in reader.frames(0, len(rows))]
    pieces = [*reader.pieces(0, len(rows))]
    assert [value for column in frames for value in column.values()] == [
        value for column, _ in pieces for value in column.values()
    ]
    assert [after for _, after in pieces] == [column.base_offset + column.count for column, _ in pieces]
    assert pieces[-1][1] == len(rows)
    # Single records come many at a time, which is what they are for.
    assert len(pieces) < len(frames) / 3
    reader.close()


def test_every_damaged_frame_is_named_and_nothing_of_it_is_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with tailrace.open(path, durable=False) as log:
        topic = log.topic("t", partitions=1)
        for number in range(12):
            # Without padding behind it, which no checksum covers.
            topic.append(b"%04d" % number * 4, key=b"k")
    (segment,) = path.glob("topics/*/0/*.seg")
    whole = segment.read_bytes()
    size = (len(whole) - HEADER_BYTES) // 12
    for at in range(HEADER_BYTES, HEADER_BYTES + 12 * size, 7):
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        number = (at - HEADER_BYTES) // size
        with tailrace.open(path, mode="r") as log:
            handed: list[tailrace.Record] = []
            with pytest.raises(CorruptionError) as caught:
                handed.extend(log.topic("t").read())
        assert [record.value for record in handed] == [b"%04d" % each * 4 for each in range(number)]
        assert (caught.value.first, caught.value.last) == (number, number)
    segment.write_bytes(whole)
    with tailrace.open(path, mode="r") as log:
        assert log.topic("t").read().count() == len(list(log.topic("t").read())) == 12


class Counted(Files):
    """Files that count what is called."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def list_directory(self, path: str) -> list[str]:
        self.calls["list"] += 1
        return super().list_directory(path)

    def read(self, fd: int, count: int, position: int) -> bytes:
        self.calls["read"] += 1
        self.calls["bytes"] += count
        return super().read(fd, count, position)


def counting(log: tailrace.Log, reader: Reader) -> Counter[str]:
    files = reader.files = Counted()
    return files.calls


def test_a_directory_is_not_listed_for_every_reader(log: tailrace.Log) -> None:
    topic = log.topic("t", partitions=1, segment_bytes="64KiB")
    for number in range(40):
        topic.extend([b"%06d" % number * 100] * 50)
    engine = log.engine
    partition = engine.partition(engine.entry("t"), 0)

    def value_at(offset: int) -> tuple[bytes | None, int]:
        reader = engine.store.reader(partition)
        calls = counting(log, reader)
        (frame,) = reader.frames(offset, offset + 1)
        found = reader.columns(frame)
        reader.close()
        return found.value(found.index_at(offset)), calls["list"]

    assert len([name for name in os.listdir(partition.path) if name.endswith(".seg")]) > 10
    assert value_at(0)[0] == b"000000" * 100
    for number in range(40):
        assert value_at(50 * number) == (b"%06d" % number * 100, 0)
    # Segments that were made since are found, by one listing for all readers.
    for number in range(40, 60):
        topic.extend([b"%06d" % number * 100] * 50)
    found = [value_at(50 * number) for number in range(60)]
    assert [value for value, _ in found] == [b"%06d" % number * 100 for number in range(60)]
    assert sum(listed for _, listed in found) <= 1


def test_the_newest_record_is_one_small_read(log: tailrace.Log) -> None:
    topic = log.topic("t", partitions=1)
    for number in range(3_000):
        topic.append(b"%d" % number)
    # Zeros lie behind it then, which are not read.
    topic.append(b"on disk", durable=True)
    engine = log.engine
    partition = engine.partition(engine.entry("t"), 0)
    reader = engine.store.reader(partition)
    calls = counting(log, reader)
    reader.seek_end(3_001)
    topic.append(b"first")
    assert [column.values() for column, _ in reader.pieces(3_001, partition.end)] == [[b"first"]]
    # Nothing was walked over to get there.
    assert calls["bytes"] < 20_000
    before = calls["read"]
    for number in range(20):
        topic.append(b"%d" % number, durable=number % 5 == 0)
        run = reader.read_newest(3_002 + number, partition.end)
        assert run is not None
        assert run.values() == [b"%d" % number]
    topic.extend([b"a", b"b"])
    assert reader.read_newest(3_022, partition.end) is None
    assert [column.values() for column, _ in reader.pieces(3_022, partition.end)] == [[b"a", b"b"]]
    assert calls["read"] >= before
    reader.close()
    assert reader.read_newest(3_024, partition.end + 1) is None


DYING = """
import os, signal, sys, tailrace
log = tailrace.open(sys.argv[1], durable=False)
topic = log.topic("t", partitions=1)
for number in range(2_000):
    topic.append(b"%d" % number)
topic.append(b"on disk", durable=True)
for number in range(int(sys.argv[2])):
    topic.append(b"later %d" % number)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("later", [0, 1, 50])
def test_recovery_begins_behind_what_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int) -> None:
    from tailrace.disk import recovery

    path = tmp_path / "log"
    died = subprocess.run([sys.executable, "-c", DYING, str(path), str(later)], timeout=60, check=False)
    assert died.returncode == -9
    begun: list[int] = []
    follow_chain = recovery.follow_chain

    def noted(read: Any, place: Any, stop: int) -> Any:
        begun.append(place.position)
        return follow_chain(read, place, stop)

    monkeypatch.setattr(recovery, "follow_chain", noted)
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    expected = [*(b"%d" % number for number in range(2_000)), b"on disk", *(b"later %d" % n for n in range(later))]
    shutil.copytree(path, tmp_path / "without")
    with tailrace.open(path, durable=False) as log:
        assert [record.value for record in log.topic("t").read()] == expected
        # The catalog has a chain of its own; the topic's was not followed from the first record.
        assert max(begun) > 190_000
        log.topic("t").append(b"goes on")
        assert log.verify().damage == ()
    begun.clear()
    (tmp_path / "without" / "tails").unlink()
    with tailrace.open(tmp_path / "without", durable=False) as log:
        assert [record.value for record in log.topic("t").read()] == expected
        assert {*begun} == {HEADER_BYTES}


def plainly(tails: Tails, strict: bool) -> list[int]:
    """The slots whose words are not those of a block, each looked at by itself."""
    found = []
    for slot in range((tails.size - TAILS_HEADER_BYTES) // SLOT_BYTES):
        data = bytes(tails.view[TAILS_HEADER_BYTES + slot * SLOT_BYTES :][:SLOT_BYTES])
        end, safe, start, incarnation = (int.from_bytes(data[at : at + 8], "little") for at in (0, 8, 16, 24))
        blocks = sorted((b for at in (64, 160) if (b := parse_block(data[at : at + 96]))), reverse=True)
        if (slot and not incarnation) or not blocks:
            continue
        states = [state for _, state, _ in blocks[: 1 if strict else 2]]
        fits = [end in {s.end for s in states}, safe in {s.safe for s in states}, start in {s.start for s in states}]
        fits.append(max(safe, start) <= end)
        if not all(fits) or incarnation != blocks[0][2]:
            found.append(slot)
    return found


def test_a_slot_with_any_byte_flipped_is_looked_at(log: tailrace.Log, tmp_path: Path) -> None:
    for number in range(3):
        log.topic(f"t{number}", partitions=1).extend([b"a", b"b"])
        log.topic(f"t{number}").append(b"c")
    copy = tmp_path / "tails"
    shutil.copy(Path(log.location) / "tails", copy)
    tails = Tails(Files(), str(copy), write=True)
    assert tails.mismatches(strict=True) == tails.mismatches(strict=False) == []
    seen = 0
    for slot in (0, 2):
        for at in range(8 * word_of(slot), 8 * word_of(slot) + SLOT_BYTES):
            for bit in (1, 128):
                tails.view[at] ^= bit
                for strict in (True, False):
                    found = [slot for slot, _, _ in tails.mismatches(strict=strict)]
                    assert found == plainly(tails, strict)
                    seen += len(found)
                tails.view[at] ^= bit
    assert seen > 100
    tails.close()


def test_catalog_records_are_taken_in_one_by_one_or_together() -> None:
    records = [b'{"op":"create","name":"t%d","settings":{},"slots":[%d]}' % (number, number + 1) for number in range(5)]
    together, single = Catalog(), Catalog()
    together.apply_all(0, records)
    for offset, record in enumerate(records):
        single.apply(offset, record)
    assert together.__dict__ == single.__dict__
    for wrong in (b"", b"null", b"{}", b'{"op":"create"', b'{"op":"a"},{"op":"b"}', b"\xff"):
        catalog = Catalog()
        with pytest.raises(CorruptionError) as caught:
            catalog.apply_all(0, [*records[:3], wrong, *records[3:]])
        assert caught.value.first == 3
        assert catalog.offset == 3


@given(st.lists(st.integers(0, 9) | st.integers(-(1 << 31), (1 << 31) - 1), min_size=3, max_size=12), st.integers(1, 7))
def test_offsets_that_fall_are_seen(numbers: list[int], length: int) -> None:
    even = [length * number for number in range(len(numbers))]
    for ends in (numbers, sorted(numbers), even, [*even[:-2], even[-1], even[-2]], [*even[:-2], -1, even[-1]]):
        rising = all(number >= 0 for number in ends) and ends == sorted(ends)
        assert _rising(memoryview(array("i", ends)), len(ends) - 1) == rising
