"""Segment sources: yield frames, and single records as runs; frames that differ from the footer are damage."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailrace.disk.columns import Columns
from tailrace.disk.files import Files
from tailrace.disk.frame import (
    GAPS,
    NEVER,
    Attributes,
    Prepared,
    crc32c,
    place,
    prepare,
    prepare_lost,
    prepare_one,
    prepare_removed,
)
from tailrace.disk.segment import BASE_UNKNOWN, HEADER_BYTES, Index, pack_header, read_footer, segment_name
from tailrace.disk.segment_source import WINDOW_BYTES, SegmentSource, SourcePart
from tailrace.errors import CorruptionError, VersionError

TIME = 1_700_000_000_000_000
SALT = 99

# Time, key, value, encoded headers and expiry of a record.
Fields = tuple[int, bytes | None, bytes | None, bytes, int]


class OpenFiles(Files):
    """The real files, of which it is known what is open."""

    def __init__(self) -> None:
        self.descriptors: set[int] = set()
        self.reads: list[int] = []

    def open(self, path: str, **options: bool) -> int:
        descriptor = super().open(path, **options)
        self.descriptors.add(descriptor)
        return descriptor

    def close(self, fd: int) -> None:
        self.descriptors.remove(fd)
        super().close(fd)

    def read(self, fd: int, count: int, position: int) -> bytes:
        self.reads.append(count)
        return super().read(fd, count, position)

    def sync_data(self, fd: int) -> None:
        """No power is cut in these tests."""


@dataclass
class Shelf:
    """What a source asks of a partition: where its segments are, and to which partition they belong."""

    path: str
    topic_id: int = 7
    index: int = 3
    files: OpenFiles = field(default_factory=OpenFiles)

    def file(self, base: int = 0) -> Path:
        return Path(self.path, segment_name(base))

    def write(self, frames: Sequence[Prepared], base: int = 0) -> Index:
        """Write a sealed segment, and return its index."""
        index = Index(SALT)
        data = [pack_header(self.topic_id, self.index, SALT, TIME, base), *extend(index, frames)]
        # A file that is cut to nothing is written to the disk by some file systems.
        self.file(base).unlink(missing_ok=True)
        self.file(base).write_bytes(b"".join(data) + index.pack_footer())
        return index

    def parts(self, base: int = 0, *, runs: bool = True) -> list[SourcePart]:
        """Read all of a segment."""
        source = SegmentSource(self, base)
        try:
            return [*source.parts(runs=runs)]
        finally:
            self.files.close(source.descriptor)

    def rows(self, base: int = 0, *, runs: bool = True) -> dict[int, Fields]:
        """Return the fields of every record of a segment by its offset."""
        source, found = SegmentSource(self, base), {}
        try:
            for part in source.parts(runs=runs):
                if part.run is not None or part.count:
                    found.update(rows_of(part.run or source.columns(part)))
        finally:
            self.files.close(source.descriptor)
        return found


def extend(index: Index, frames: Sequence[Prepared]) -> list[bytes]:
    """Add frames to an index, and return their bytes."""
    data: list[bytes] = []
    for frame in frames:
        placed = place([frame], index.span, index.chain)
        index.add(frame.count, frame.span, frame.min_time, frame.max_time, placed.size, placed.chain, frame.attributes)
        data += placed.buffers
    return data


def rows_of(column: Columns) -> Iterator[tuple[int, Fields]]:
    for at in range(column.count):
        offset, *fields = column.row(at)
        yield offset, (*fields, column.expires(at))


def one(value: bytes | None = b"v", key: bytes | None = None, headers: bytes = b"", expiry: int = 0) -> Prepared:
    return prepare_one(value, key, headers, TIME, expiry=expiry)


def many(values: Sequence[bytes | None], codec: int = 0, **columns: object) -> Prepared:
    """Return a frame of several records."""
    given = {"keys": None, "headers": None, "times": TIME, **columns}
    (frame,) = prepare(values, codec=codec, **given)
    return frame


def of_producer(frame: Prepared, producer: int = 5, **identity: int) -> Prepared:
    """Return the frame with the identity of a producer, or of a schema only."""
    given = Attributes.unpack(frame.attributes)._replace(producer_id=producer, **identity)
    return frame._replace(attributes=given.pack())


def gapped(offsets: Sequence[int], values: Sequence[bytes | None]) -> Prepared:
    """Return a frame that begins at offset 0 and has only some offsets, as a rewrite leaves it."""
    dense = many(values)
    column = b"".join(offset.to_bytes(4, "little", signed=True) for offset in offsets)
    body = column + bytes(-len(column) & 7) + dense.body
    return dense._replace(
        flags=dense.flags | GAPS, body=body, raw_length=len(body), body_crc=crc32c(body), span=offsets[-1] + 1
    )


@pytest.fixture
def shelf(tmp_path) -> Iterator[Shelf]:
    made = Shelf(str(tmp_path))
    yield made
    assert made.files.descriptors == set()


MIXED = [
    one(b"a"),
    one(None, b"key", b"", expiry=TIME + 1),
    one(b"c", None, b"headers"),
    many([b"d", None, b"f"], keys=[b"k", None, b"l"], times=[TIME, TIME + 2, TIME + 1]),
    one(b"g"),
    many([b"h" * 300], 1),
    prepare_removed(4, TIME, TIME + 5),
    many([b"i" * 100] * 9, 1, expiry=[NEVER, *range(TIME, TIME + 8)]),
]


def test_single_records_come_as_runs_and_all_others_as_frames(shelf):
    index = shelf.write(MIXED)
    parts = shelf.parts()
    assert [(part.count, part.header is None, part.run is None) for part in parts] == [
        (3, True, False), (3, False, True), (1, True, False), (1, False, True), (0, False, True), (9, False, True),
    ]  # fmt: skip
    assert [part.header and part.header.base for part in parts] == [None, 3, None, 7, 8, 12]
    assert [part.run and part.run.first_offset for part in parts] == [0, None, 6, None, None, None]
    assert HEADER_BYTES + sum(part.size for part in parts) == index.position
    alone = shelf.parts(runs=False)
    assert [part.count for part in alone] == [1, 1, 1, 3, 1, 1, 0, 9]
    assert [part.size for part in alone] == [frame.size for frame in MIXED]
    assert [bytes(part.body) for part in alone] == [frame.body for frame in MIXED]
    assert {part.run for part in alone} == {None}


@pytest.mark.parametrize("runs", [True, False])
def test_records_have_their_offset_and_all_of_their_fields(shelf, runs):
    shelf.write(MIXED, 1_000)
    rows = shelf.rows(1_000, runs=runs)
    assert [*rows] == [*range(8), *range(12, 21)]
    assert rows[0] == (TIME, None, b"a", b"", NEVER)
    assert rows[1] == (TIME, b"key", None, b"", TIME + 1)
    assert rows[2] == (TIME, None, b"c", b"headers", NEVER)
    assert rows[4] == (TIME + 2, None, None, b"", NEVER)
    assert rows[5] == (TIME + 1, b"l", b"f", b"", NEVER)
    assert rows[7] == (TIME, None, b"h" * 300, b"", NEVER)
    assert [rows[offset][4] for offset in range(12, 21)] == [NEVER, *range(TIME, TIME + 8)]


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(many([b"v" * 300], 1), id="compressed"),
        pytest.param(of_producer(one()), id="producer"),
        pytest.param(of_producer(one(), 0, schema_version=2), id="schema"),
        pytest.param(gapped([3], [b"v"]), id="gap"),
        pytest.param(many([b"v", b"w"]), id="two records"),
        pytest.param(prepare_removed(1, TIME, TIME), id="removed"),
        pytest.param(prepare_lost(1, b"note", TIME, TIME), id="lost"),
    ],
)
def test_what_ends_a_run(shelf, frame):
    shelf.write([one(), frame, one(), one()])
    first, middle, last = shelf.parts()
    assert (first.run.count, last.run.count) == (1, 2)
    assert middle.run is None
    assert middle.header[:3] == frame[:3]
    assert middle.header.base == 1
    assert last.run.first_offset == 1 + frame.span


def test_a_segment_is_read_in_windows_and_no_run_has_more_than_one(shelf):
    size = WINDOW_BYTES // 9
    large, larger = b"y" * (size * 15), b"w" * (size * 30)
    frames = [*[one(b"%03d" % number + bytes(size)) for number in range(40)], one(larger), one(large), one()]
    shelf.write(frames)
    expected = shelf.rows(runs=False)
    assert [fields[2] for fields in expected.values()][-3:] == [larger, large, b"v"]
    source = SegmentSource(shelf, 0)
    shelf.files.reads.clear()
    sizes = [part.size for part in source.parts() if part.run is not None]
    shelf.files.close(source.descriptor)
    assert sizes[5:] == [frame.size for frame in frames[40:]]
    # The larger frames are read whole, by one call each, and nothing after the last frame.
    assert {*shelf.files.reads} == {WINDOW_BYTES, frames[40].size, frames[41].size, frames[42].size}
    assert len(shelf.files.reads) < 15
    assert all(size <= WINDOW_BYTES for size in sizes[:5])
    assert shelf.rows() == expected


@pytest.mark.parametrize("published", [1, 4, 6])
def test_an_active_segment_is_read_as_far_as_its_index_says(shelf, published):
    """It has no footer, and frames after the end of the index, within the window and perhaps within a run."""
    frames = [one(b"a"), many([b"b", b"c"]), one(b"d"), one(b"e"), one(b"f"), one(b"g")]
    index, whole = Index(SALT), shelf.write(frames)
    data = shelf.file().read_bytes()[: whole.position]
    shelf.file().write_bytes(data)
    extend(index, frames[:published])
    source = SegmentSource(shelf, 0, index)
    parts = [*source.parts()]
    shelf.files.close(source.descriptor)
    assert source.index is index
    assert sum(part.count for part in parts) == index.records
    assert HEADER_BYTES + sum(part.size for part in parts) == index.position
    with pytest.raises(CorruptionError, match="footer") as caught:
        SegmentSource(shelf, 0)
    assert (caught.value.partition, caught.value.path) == (3, str(shelf.file()))


def test_an_index_that_ends_elsewhere_is_damage(shelf):
    frames = [one(b"a"), many([b"b", b"c"]), one(b"d")]
    shelf.write(frames)
    for wrong in ("position", "span", "chain"):
        index = Index(SALT)
        extend(index, frames)
        setattr(index, wrong, getattr(index, wrong) + 8)
        source = SegmentSource(shelf, 0, index)
        with pytest.raises(CorruptionError, match="Stored records are damaged"):
            [*source.parts()]
        shelf.files.close(source.descriptor)


@pytest.mark.parametrize(
    ("owner", "base"),
    [((7, 3), 0), ((7, 3), 11), ((8, 3), 10), ((7, 4), 10)],
    ids=["other base", "later base", "topic", "partition"],
)
def test_a_segment_of_another_place_is_refused(shelf, owner, base):
    index = shelf.write([one()], 10)
    data = shelf.file(10).read_bytes()[HEADER_BYTES:]
    shelf.file(10).write_bytes(pack_header(*owner, SALT, TIME, base) + data)
    with pytest.raises(CorruptionError, match="header of a segment") as caught:
        SegmentSource(shelf, 10)
    assert (caught.value.partition, caught.value.first, caught.value.path) == (3, 10, str(shelf.file(10)))
    # One that was staged does not say which base it has.
    shelf.file(10).write_bytes(pack_header(7, 3, SALT, TIME, BASE_UNKNOWN) + data)
    assert [part.count for part in shelf.parts(10)] == [index.records]


def test_a_segment_that_is_not_there(shelf):
    with pytest.raises(FileNotFoundError):
        SegmentSource(shelf, 0)


def test_a_failing_disk_leaves_nothing_open(shelf, monkeypatch):
    shelf.write([one()])
    for calls in range(2):
        left = [calls]

        def read(fd, count, position, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(5, "Input/output error")
            return Files.read(shelf.files, fd, count, position)

        monkeypatch.setattr(shelf.files, "read", read)
        with pytest.raises(OSError, match="Input/output"):
            SegmentSource(shelf, 0)
        assert shelf.files.descriptors == set()


def test_where_damage_begins(shelf):
    frames = [one(), one(), many([b"v", b"w", b"x"]), many([b"y" * 100] * 4, 1), one()]
    index = shelf.write(frames, 1_000)
    data = shelf.file(1_000).read_bytes()
    position, first = HEADER_BYTES, 1_000
    for frame in frames:
        at = position + 100
        shelf.file(1_000).write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        with pytest.raises(CorruptionError, match="Stored records are damaged") as caught:
            shelf.parts(1_000)
        assert (caught.value.partition, caught.value.first, caught.value.path) == (3, first, str(shelf.file(1_000)))
        position, first = position + frame.size, first + frame.span
    assert position == index.position


SMALL = [one(b"abc", b"k", expiry=TIME), one(), many([b"d", None, b"f"]), many([b"x" * 50] * 3, 1), one()]


@pytest.mark.parametrize("runs", [True, False])
def test_no_flipped_bit_is_taken_for_a_segment(shelf, rng, runs):
    """Only the padding after a frame has no checksum: then every record is the same."""
    shelf.write(SMALL)
    data = shelf.file().read_bytes()
    expected, survived = shelf.rows(), []
    with open(shelf.file(), "r+b", buffering=0) as file:
        for position in range(len(data)):
            os.pwrite(file.fileno(), bytes([data[position] ^ 1 << rng.randrange(8)]), position)
            try:
                assert shelf.rows(runs=runs) == expected
                survived.append(position)
            except (CorruptionError, VersionError):
                pass
            os.pwrite(file.fileno(), data[position : position + 1], position)
            assert shelf.files.descriptors == set()
    assert len(survived) == sum(-len(frame.body) & 7 for frame in SMALL)


def test_no_part_of_a_segment_is_taken_for_all_of_it(shelf):
    shelf.write(SMALL)
    for size in range(shelf.file().stat().st_size - 1, -1, -1):
        os.truncate(shelf.file(), size)
        with pytest.raises(CorruptionError):
            shelf.parts()


def test_frames_that_end_before_the_footer_says_are_damage(shelf):
    """A file that was cut below an active segment's index: the frames that are there are yielded, then it is told."""
    whole = shelf.write(SMALL, 50)
    data = shelf.file(50).read_bytes()
    shelf.file(50).write_bytes(data[: HEADER_BYTES + SMALL[0].size + 20])
    source = SegmentSource(shelf, 50, whole)
    found = source.parts()
    assert next(found).count == 1
    with pytest.raises(CorruptionError) as caught:
        next(found)
    shelf.files.close(source.descriptor)
    assert caught.value.first == 51


def test_a_body_that_cannot_be_decoded(shelf):
    """Its checksum is right: what was compressed was damaged before it was stored."""
    good = many([b"v" * 100] * 5, 1)
    body = good.body[:-4] + bytes(4)
    bad = good._replace(body=body, body_crc=crc32c(body))
    short = many([b"a", b"b"])
    short = short._replace(body=short.body[:6], raw_length=6, body_crc=crc32c(short.body[:6]))
    shelf.write([one(), bad, short], 2_000)
    source = SegmentSource(shelf, 2_000)
    _, packed, cut = source.parts()
    for part, first, last in ((packed, 2_001, 2_005), (cut, 2_006, 2_007)):
        with pytest.raises(CorruptionError, match="cannot be decoded") as caught:
            source.columns(part)
        assert (caught.value.first, caught.value.last, caught.value.partition) == (first, last, 3)
    shelf.files.close(source.descriptor)


def test_what_it_knows_of_its_segment(shelf):
    index = shelf.write(MIXED, 30)
    source = SegmentSource(shelf, 30)
    footer = read_footer(shelf.files, source.descriptor, SALT)
    shelf.files.close(source.descriptor)
    assert source.index.matches(footer)
    assert (source.index.span, source.index.records) == (21, 17) == (index.span, index.records)
    assert source.header[:3] == (7, 3, SALT)
    assert source.size == shelf.file(30).stat().st_size


def test_offsets_that_do_not_rise_are_damage(shelf):
    shelf.write([gapped([0, 50, 2, 9], [b"v"] * 4)])
    with pytest.raises(CorruptionError, match="does not rise"):
        shelf.rows(runs=False)


def test_frames_after_the_published_ones_are_no_part_of_a_run(shelf):
    """A run that reached past them was read again for each frame."""
    frames = [one(b"%04d" % number) for number in range(300)]
    shelf.write(frames)
    index = Index(SALT)
    extend(index, frames[:-1])
    source = SegmentSource(shelf, 0, index)
    try:
        assert [part.count for part in source.parts()] == [299]
    finally:
        shelf.files.close(source.descriptor)
