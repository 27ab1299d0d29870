"""Copier: what stays of a segment is in its new version, offset by offset, and nothing else is."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tailrace.disk import copier as copying
from tailrace.disk.copier import LIMITS, Copier
from tailrace.disk.dead_records import find_dead
from tailrace.disk.frame import (
    LOST,
    MORE,
    NEVER,
    PLAIN,
    Attributes,
    Header,
    Prepared,
    prepare,
    prepare_lost,
    prepare_removed,
)
from tailrace.disk.removal import Removal
from tailrace.disk.rewrite import RewriteWriter
from tailrace.disk.segment import NOTHING_LOST, Index, SegmentHeader, extend_index, lost_ranges, reading
from tailrace.disk.segment_source import SegmentSource
from tests.disk.test_segment_source import TIME, Fields, Shelf, gapped, many, of_producer, one
from tests.tuning import limit

NEW_SALT = 100
ZSTD, LZ4 = 1, 2


@pytest.fixture
def shelf(tmp_path) -> Iterator[Shelf]:
    made = Shelf(str(tmp_path))
    yield made
    assert made.files.descriptors == set()


class Copied(NamedTuple):
    """A new version, which was read back."""

    headers: list[Header]
    bodies: list[bytes]
    index: Index
    removed: int
    expired: int

    @property
    def shape(self) -> list[tuple[str, int, int]]:
        """Kind, first offset and span of each frame."""
        kinds = {True: "lost", False: "removed"}
        return [(kinds[each.lost] if each.placeholder else "frame", each.base, each.span) for each in self.headers]


def copy(shelf: Shelf, removal: Removal | None, base: int = 0) -> Copied:
    """Replace a segment by its new version, as a rewrite does without the log around it."""
    source = SegmentSource(shelf, base)
    path = f"{shelf.path}/new"
    writer = RewriteWriter(shelf.files, path, SegmentHeader(shelf.topic_id, shelf.index, NEW_SALT, TIME, base))
    try:
        copier = Copier(source, writer, removal)
        for part in source.parts(runs=removal is not None):
            copier.add(part)
        copier.finish()
        writer.finish()
    finally:
        shelf.files.close(source.descriptor)
        writer.abandon()
    Path(path).replace(shelf.file(base))
    return read_back(shelf, base, copier)


def read_back(shelf: Shelf, base: int, copier: Copier) -> Copied:
    """Read a new version; its footer is what its frames say."""
    source, counted = SegmentSource(shelf, base), Index(NEW_SALT)
    assert extend_index(reading(shelf.files, source.descriptor), counted, source.index.position)
    assert counted.matches(source.index)
    assert source.index.span == copier.source.index.span
    assert source.index.records == copier.source.index.records - copier.removed
    parts = [*source.parts(runs=False)]
    shelf.files.close(source.descriptor)
    headers = [part.header for part in parts if part.header is not None]
    assert not any(header.more for header in headers)
    return Copied(headers, [bytes(part.body) for part in parts], source.index, copier.removed, copier.expired)


def take(shelf: Shelf, frames: Sequence[Prepared], *removed: tuple[int, int], now: int = TIME) -> Copied:
    """Write a segment, and take ranges of offsets and what expired out of it; the other records are unchanged."""
    shelf.write(frames)
    before = shelf.rows()
    copied = copy(shelf, Removal(now, removed))
    kept = {
        offset: fields
        for offset, fields in before.items()
        if fields[4] > now and not any(first <= offset < stop for first, stop in removed)
    }
    assert shelf.rows() == kept
    assert copied.removed == len(before) - len(kept)
    return copied


def letters(count: int, **columns: object) -> Prepared:
    return many([b"%03d" % number for number in range(count)], **columns)


def large(size: int, codec: int = 0) -> Prepared:
    """Return a frame of exactly this size, of two records."""
    frame = many([b"l", bytes(size - 200)], codec)
    return many([b"l", bytes(size - 200 + size - frame.size)], codec)


# What goes, and what is left in its place.


def test_everything_gone_is_one_placeholder_with_their_times(shelf):
    frames = [
        many([b"a"] * 4, times=[TIME + 9, TIME + 5, TIME + 7, TIME + 8]),
        prepare_removed(3, TIME + 1, TIME + 12),
        *[one(b"%d" % number) for number in range(20)],
        many([b"z"] * 3, times=[TIME + 11, TIME + 3, TIME + 3]),
    ]
    copied = take(shelf, frames, (0, 30))
    assert copied.shape == [("removed", 0, 30)]
    assert (copied.headers[0].min_time, copied.headers[0].max_time) == (TIME, TIME + 12)
    assert (copied.removed, copied.expired, copied.index.records) == (27, 0, 0)
    assert shelf.file().stat().st_size < 400


def test_nothing_gone_and_frames_are_copied_as_stored(shelf):
    """Also small ones, while nothing is gathered before them."""
    frames = [letters(5), letters(9, codec=ZSTD), of_producer(letters(3)), large(LIMITS.copied_bytes_min), letters(2)]
    frames[0] = frames[0]._replace(flags=frames[0].flags | MORE)
    copied = take(shelf, frames, (90_000, 90_001))
    assert copied.bodies == [frame.body for frame in frames]
    assert [header.attributes for header in copied.headers] == [frame.attributes for frame in frames]
    assert [header.flags for header in copied.headers] == [frame.flags & ~MORE for frame in frames]
    assert (copied.removed, copied.expired, copied.index.flags) == (0, 0, NOTHING_LOST)


def test_without_a_removal_every_frame_is_copied(shelf):
    """Also single records, placeholders, and what has expired long ago."""
    frames = [one(), one(expiry=1_000_000), prepare_removed(7, TIME, TIME + 3), letters(4), one(b"w", b"k")]
    shelf.write(frames)
    before = shelf.rows()
    copied = copy(shelf, None)
    assert copied.bodies == [frame.body for frame in frames]
    assert [header.span for header in copied.headers] == [frame.span for frame in frames]
    assert shelf.rows() == before
    assert (copied.removed, copied.expired) == (0, 0)


def test_frames_without_a_dead_record_are_copied_after_a_gap_if_they_are_large(shelf):
    frames = [
        many([b"a" * 100] * 50)._replace(flags=0),
        one(b"dead", expiry=TIME),
        *prepare([b"b" * 1_000] * 3_000, None, None, TIME),
    ]
    assert any(frame.flags & MORE for frame in frames)
    copied = take(shelf, frames)
    assert [header.removed for header in copied.headers].count(True) == 1
    kept = [header for header in copied.headers if not header.placeholder]
    assert [header.body_crc for header in kept] == [frame.body_crc for frame in frames if frame.count != 1]


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        (LIMITS.copied_bytes_min, [("removed", 0, 3), ("frame", 3, 2)]),
        (LIMITS.copied_bytes_min - 8, [("frame", 0, 5)]),
    ],
)
def test_a_frame_after_a_gap_is_gathered_only_if_it_is_small(shelf, size, shape):
    frame = large(size)
    assert frame.size == size
    assert take(shelf, [letters(3), frame], (0, 3)).shape == shape


@pytest.mark.parametrize(
    ("removed", "shape"),
    [
        # The gap at the beginning is in the frame after it, that at the end has nothing to be in.
        ([(0, 2)], [("frame", 0, 12)]),
        ([(0, 4)], [("frame", 0, 12)]),
        ([(10, 12)], [("frame", 0, 4), ("frame", 4, 4), ("frame", 8, 2), ("removed", 10, 2)]),
        ([(8, 12)], [("frame", 0, 4), ("frame", 4, 4), ("removed", 8, 4)]),
        ([(8, 90)], [("frame", 0, 4), ("frame", 4, 4), ("removed", 8, 4)]),
        ([(6, 12)], [("frame", 0, 4), ("frame", 4, 2), ("removed", 6, 6)]),
        ([(2, 10)], [("frame", 0, 12)]),
        ([(4, 5)], [("frame", 0, 4), ("frame", 4, 8)]),
        ([(0, 1), (11, 12)], [("frame", 0, 11), ("removed", 11, 1)]),
        ([(0, 12)], [("removed", 0, 12)]),
        ([(12, 20)], [("frame", 0, 4), ("frame", 4, 4), ("frame", 8, 4)]),
    ],
)
def test_gaps_in_the_segment(shelf, removed, shape):
    copied = take(shelf, [letters(4), letters(4), letters(4)], *removed)
    assert copied.shape == shape
    assert copied.index.flags == NOTHING_LOST


def test_single_records_become_one_frame(shelf):
    copied = take(shelf, [one(b"%d" % number, expiry=TIME * (number % 3 == 1)) for number in range(10)])
    assert copied.shape == [("frame", 0, 10)]
    assert (copied.removed, copied.expired, copied.headers[0].count) == (3, 3, 7)
    # They are the first and the last ones.
    copied = take(shelf, [one(b"%d" % number, expiry=TIME * (number in (0, 8, 9))) for number in range(10)])
    assert copied.shape == [("frame", 0, 8), ("removed", 8, 2)]


def test_a_placeholder_has_the_times_of_all_that_is_missing_there(shelf):
    """They begin after the last record that stays; of a frame that goes in part, those of all of it."""
    first = many([b"a", b"b"], times=[TIME, TIME + 50])
    part = many([b"c", b"d"], times=[TIME + 9, TIME + 10])
    whole = many([b"e", b"f"], times=[TIME + 30, TIME + 2])
    copied = take(shelf, [first, part, whole, large(LIMITS.copied_bytes_min)], (0, 2), (3, 6))
    assert copied.shape == [("frame", 0, 3), ("removed", 3, 3), ("frame", 6, 2)]
    assert (copied.headers[1].min_time, copied.headers[1].max_time) == (TIME + 2, TIME + 30)
    # What was left out before that record does not count, neither within a gathered frame nor in a placeholder.
    low, high = many([b"x"] * 3, times=[TIME - 7, TIME, TIME]), many([b"y"] * 2, times=[TIME + 70, TIME + 71])
    copied = take(shelf, [low, high, large(LIMITS.copied_bytes_min)], (1, 2), (3, 5))
    assert copied.shape == [("frame", 0, 3), ("removed", 3, 2), ("frame", 5, 2)]
    assert (copied.headers[1].min_time, copied.headers[1].max_time) == (TIME + 70, TIME + 71)
    copied = take(shelf, [low, large(LIMITS.copied_bytes_min), high, large(LIMITS.copied_bytes_min)], (0, 3), (5, 7))
    assert [(each.min_time, each.max_time) for each in copied.headers if each.removed] == [
        (TIME - 7, TIME), (TIME + 70, TIME + 71),
    ]  # fmt: skip
    # Of a run as well.
    run = [one(b"%d" % number)._replace(min_time=TIME + number, max_time=TIME + number) for number in range(5)]
    copied = take(shelf, [*run, large(LIMITS.copied_bytes_min)], (2, 5))
    assert copied.shape == [("frame", 0, 2), ("removed", 2, 3), ("frame", 5, 2)]
    assert (copied.headers[1].min_time, copied.headers[1].max_time) == (TIME, TIME + 4)


@pytest.mark.parametrize(
    ("frame", "removed", "counts"),
    [
        (many([b"v"] * 4, expiry=TIME), (9, 10), (4, 4)),
        (many([b"v"] * 4, expiry=TIME), (0, 4), (4, 4)),
        (many([b"v"] * 4, expiry=TIME + 1), (0, 4), (4, 0)),
        (many([b"v"] * 4), (1, 3), (2, 0)),
        (many([b"v"] * 4, expiry=[TIME, TIME, TIME + 1, NEVER]), (9, 10), (2, 2)),
        (many([b"v"] * 4, expiry=[TIME, TIME, TIME + 1, NEVER]), (1, 3), (3, 2)),
        (many([b"v" * 99] * 4, ZSTD, expiry=[TIME, TIME, TIME + 1, NEVER]), (1, 3), (3, 2)),
        (one(expiry=TIME), (9, 10), (1, 1)),
        (one(expiry=TIME), (0, 1), (1, 1)),
        (one(expiry=TIME + 1), (0, 1), (1, 0)),
        (of_producer(one(expiry=TIME)), (0, 1), (1, 1)),
        (prepare_removed(4, TIME, TIME), (0, 2), (0, 0)),
    ],
)
def test_what_is_counted(shelf, frame, removed, counts):
    """The same as was found before the rewrite."""
    frames = [frame, letters(2)]
    shelf.write(frames)
    found = find_dead(shelf, 0, TIME, [removed])
    copied = take(shelf, frames, removed)
    assert (copied.removed, copied.expired) == counts
    assert counts == (0, 0) if found is None else found[:2] == counts


# Placeholders.


def test_placeholders_for_removed_records_are_joined_with_what_goes_now(shelf):
    frames = [prepare_removed(3, TIME, TIME + 1), letters(2), prepare_removed(4, TIME - 5, TIME), letters(1)]
    copied = take(shelf, [*frames, prepare_removed(2, TIME, TIME + 9)], (3, 5))
    assert copied.shape == [("frame", 0, 10), ("removed", 10, 2)]
    assert (copied.headers[1].min_time, copied.headers[1].max_time) == (TIME, TIME + 9)
    # A second rewrite changes nothing.
    again = copy(shelf, Removal(TIME, []))
    assert (again.shape, again.removed) == (copied.shape, 0)


@pytest.mark.parametrize("removal", [None, Removal(1 << 62, [(0, 100)])], ids=["all copied", "all removed"])
def test_a_placeholder_for_lost_records_stays(shelf, removal):
    """It is no removal: it says where records are missing that should be there."""
    frames = [letters(3), prepare_lost(4, b"why", TIME, TIME + 1), letters(2), prepare_lost(1, b"", TIME, TIME)]
    shelf.write(frames)
    copied = copy(shelf, removal)
    stays = "frame" if removal is None else "removed"
    assert copied.shape == [(stays, 0, 3), ("lost", 3, 4), (stays, 7, 2), ("lost", 9, 1)]
    assert copied.bodies[1] == b"why"
    assert copied.index.flags == 0
    descriptor = shelf.files.open(str(shelf.file()))
    assert lost_ranges(shelf.files, descriptor) == [(3, 6), (9, 9)]
    shelf.files.close(descriptor)


def test_what_is_gathered_ends_before_a_placeholder_for_lost_records(shelf):
    copied = take(shelf, [letters(4), one(), prepare_lost(3, b"why", TIME, TIME), one(), letters(4)], (1, 2))
    assert copied.shape == [("frame", 0, 5), ("lost", 5, 3), ("frame", 8, 5)]


# Which records come into one frame.


def test_records_of_a_producer_stay_in_a_frame_of_their_own(shelf):
    """It begins where it began, because its sequence counts from there, and has the whole identity."""
    identity = {"producer_epoch": 2, "schema_version": 4, "sequence": 70}
    owned = of_producer(letters(5, expiry=[TIME, *[NEVER] * 4]), 9, **identity)
    copied = take(shelf, [letters(3), owned, one(), letters(3)], (1, 2), (4, 5), (7, 8))
    assert copied.shape == [("frame", 0, 3), ("frame", 3, 4), ("frame", 7, 5)]
    assert [Attributes.unpack(header.attributes)[:4] for header in copied.headers] == [
        (0, 0, 0, 0), (9, 2, 4, 70), (0, 0, 0, 0),
    ]  # fmt: skip
    assert (copied.removed, copied.expired) == (4, 1)
    # The first record of it has expired, and those after it expire never.
    assert copied.headers[1].expiry == (0, 0)


def test_a_producer_after_a_gap_begins_where_it_began(shelf):
    """A placeholder is before it, also if all of its records stay or if it is small."""
    for removed in ([(0, 3)], [(0, 3), (4, 5)], [(0, 4)]):
        copied = take(shelf, [letters(3), of_producer(letters(4), sequence=7)], *removed)
        assert copied.shape == [("removed", 0, 3), ("frame", 3, 4)]
    # What is gathered before it is a frame already.
    copied = take(shelf, [one(), one(), of_producer(letters(4)), of_producer(letters(4))], (3, 4), (7, 8))
    assert copied.shape == [("frame", 0, 2), ("frame", 2, 4), ("frame", 6, 4)]


def test_frames_of_one_schema_are_gathered_together(shelf):
    def written(version):
        return of_producer(letters(3), 0, schema_version=version)

    frames = [letters(3), written(1), written(1), written(2), letters(3), one()]
    copied = take(shelf, frames, (1, 2), (10, 11))
    assert copied.shape == [("frame", 0, 3), ("frame", 3, 6), ("frame", 9, 3), ("frame", 12, 4)]
    versions = [Attributes.unpack(header.attributes).schema_version for header in copied.headers]
    assert versions == [0, 1, 2, 0]
    assert copied.headers[3].attributes == PLAIN


def test_the_expiry_of_gathered_frames_is_no_part_of_their_identity(shelf):
    frames = [letters(3, expiry=TIME + 5_000_000), letters(3), one(b"v", expiry=TIME + 9_000_000)]
    copied = take(shelf, frames, (1, 2))
    assert copied.shape == [("frame", 0, 7)]
    assert copied.headers[0].expiry == (TIME // 1_000_000 + 5, (1 << 32) - 1)


@pytest.mark.parametrize(
    ("codecs", "shape", "found"),
    [
        ((ZSTD, ZSTD, ZSTD), [("frame", 0, 12)], [ZSTD]),
        ((ZSTD, 0, ZSTD), [("frame", 0, 12)], [ZSTD]),
        ((0, LZ4, 0), [("frame", 0, 12)], [LZ4]),
        ((0, 0, 0), [("frame", 0, 12)], [0]),
        ((ZSTD, LZ4, LZ4), [("frame", 0, 4), ("frame", 4, 8)], [ZSTD, LZ4]),
        ((ZSTD, 0, LZ4), [("frame", 0, 8), ("frame", 8, 4)], [ZSTD, LZ4]),
    ],
)
def test_gathered_records_are_compressed_as_they_were(shelf, codecs, shape, found):
    frames = [many([b"v" * 200] * 4, codec) for codec in codecs]
    assert [frame.codec for frame in frames] == [*codecs]
    copied = take(shelf, frames, (1, 2))
    assert copied.shape == shape
    assert [header.codec for header in copied.headers] == found


@pytest.mark.parametrize(("maximum", "counts"), [(10, [10]), (9, [6, 4]), (4, [2, 4, 4])])
def test_a_gathered_frame_has_at_most_so_many_records(shelf, monkeypatch, maximum, counts):
    limit(monkeypatch, copying, frame_records=maximum)
    copied = take(shelf, [letters(3), letters(4), letters(5)], (1, 2), (8, 9))
    assert [header.count for header in copied.headers] == counts


def test_what_was_gathered_before_does_not_count(shelf, monkeypatch):
    """Neither its records nor its bytes nor its codec: what comes after a copied frame begins anew."""
    limit(monkeypatch, copying, frame_records=5)
    limit(monkeypatch, copying, frame_bytes=1_000)
    packed, plain = many([b"v" * 200] * 5, ZSTD), many([b"w" * 200] * 2)
    copied = take(shelf, [packed, prepare_lost(1, b"", TIME, TIME), many([b"u" * 200] * 2), plain], (1, 2), (6, 7))
    assert copied.shape == [("frame", 0, 5), ("lost", 5, 1), ("frame", 6, 4)]
    assert [(header.count, header.codec) for header in copied.headers] == [(4, ZSTD), (0, 0), (3, 0)]


@pytest.mark.parametrize(
    ("maximum", "sizes", "bases"),
    [(150, [150], [0]), (149, [100, 50], [0, 4]), (99, [50, 50, 50], [0, 2, 4])],
)
def test_a_gathered_frame_has_about_so_many_bytes(shelf, monkeypatch, maximum, sizes, bases):
    """Of keys, headers and values; the record that is missing before them is in the first frame."""
    limit(monkeypatch, copying, frame_bytes=maximum)
    several = many([b"v" * 20, b"w" * 20], keys=[b"k" * 4, b"l"], headers=[b"", b"h" * 5])
    copied = take(shelf, [many([b"gone", b"v" * 50]), several, many([b"x" * 50])], (0, 1))
    assert [header.base for header in copied.headers] == bases
    found = dict.fromkeys(bases, 0)
    for offset, (_, key, value, headers, _) in shelf.rows().items():
        found[max(base for base in bases if base <= offset)] += len(key or b"") + len(value or b"") + len(headers)
    assert [*found.values()] == sizes


def test_a_frame_that_is_too_large_to_be_gathered_is_one_of_its_own(shelf, monkeypatch):
    limit(monkeypatch, copying, frame_bytes=10)
    copied = take(shelf, [one(b"gone"), many([b"v" * 50] * 2), many([b"w" * 50] * 2)], (0, 1), (2, 3))
    assert copied.shape == [("frame", 0, 2), ("frame", 2, 3)]


@pytest.mark.parametrize(("maximum", "shape"), [(13, [("frame", 0, 13)]), (12, [("frame", 0, 9), ("frame", 9, 4)])])
def test_a_gathered_frame_covers_at_most_so_many_offsets(shelf, monkeypatch, maximum, shape):
    limit(monkeypatch, copying, span_offsets=maximum)
    assert take(shelf, [letters(5), letters(4), letters(4)], (1, 2), (6, 8)).shape == shape
    # Wherever it begins.
    before, later = large(LIMITS.copied_bytes_min), [(kind, first + 2, span) for kind, first, span in shape]
    copied = take(shelf, [before, letters(5), letters(4), letters(4)], (3, 4), (8, 10))
    assert copied.shape == [("frame", 0, 2), *later]


# Long gaps.


@pytest.mark.parametrize(
    ("removed", "shape"),
    [
        # At the beginning of the segment.
        ((0, 10), [("frame", 0, 40)]),
        ((0, 11), [("removed", 0, 11), ("frame", 11, 29)]),
        # Within a frame.
        ((5, 15), [("frame", 0, 40)]),
        ((5, 16), [("frame", 0, 5), ("removed", 5, 11), ("frame", 16, 24)]),
        # From one to the next.
        ((15, 25), [("frame", 0, 40)]),
        ((15, 26), [("frame", 0, 15), ("removed", 15, 11), ("frame", 26, 14)]),
        ((20, 30), [("frame", 0, 20), ("frame", 20, 20)]),
        ((20, 31), [("frame", 0, 20), ("removed", 20, 11), ("frame", 31, 9)]),
        # At its end.
        ((30, 40), [("frame", 0, 20), ("frame", 20, 10), ("removed", 30, 10)]),
    ],
)
def test_from_which_length_on_a_gap_is_a_placeholder(shelf, monkeypatch, removed, shape):
    limit(monkeypatch, copying, gap_offsets=10)
    copied = take(shelf, [letters(20), letters(20)], removed)
    assert copied.shape == shape


def test_a_long_gap_has_the_times_of_what_went_before_the_frame(shelf, monkeypatch):
    limit(monkeypatch, copying, gap_offsets=10)
    copied = take(shelf, [many([b"a"] * 9, times=[TIME - 5, *range(TIME, TIME + 8)]), letters(9)], (0, 14))
    assert copied.shape == [("removed", 0, 14), ("frame", 14, 4)]
    assert copied.headers[0].min_time <= TIME - 5
    assert copied.headers[0].max_time >= TIME + 7


def test_a_long_gap_is_a_placeholder(shelf, monkeypatch):
    limit(monkeypatch, copying, gap_offsets=10)
    stay = [offset for offset in range(80) if offset % 20 == 7 or offset in (40, 41, 44)]
    single = [one(b"v%d" % offset, expiry=0 if offset in stay else TIME) for offset in range(80)]
    copied = take(shelf, [*single, many([b"j"] * 40)])
    assert [header.span for header in copied.headers if header.removed] == [19, 12, 19, 12]
    # Inside of one frame as well.
    again = copy(shelf, Removal(TIME, [(82, 115)]))
    assert [*shelf.rows()] == [*stay, 80, 81, *range(115, 120)]
    assert sum(header.removed for header in again.headers) == 5


def test_several_long_gaps_in_a_frame(shelf, monkeypatch):
    limit(monkeypatch, copying, gap_offsets=10)
    frame = letters(60, codec=ZSTD, expiry=TIME + 1, times=[TIME + number for number in range(60)])
    copied = take(shelf, [frame], (2, 20), (21, 24), (25, 40), (41, 60))
    assert copied.shape == [
        ("frame", 0, 2), ("removed", 2, 18), ("frame", 20, 5), ("removed", 25, 15), ("frame", 40, 1),
        ("removed", 41, 19),
    ]  # fmt: skip
    assert {(header.min_time, header.max_time) for header in copied.headers if header.removed} == {(TIME, TIME + 59)}
    assert (copied.removed, copied.expired) == (55, 0)


def test_a_frame_with_gaps_is_gathered_again(shelf):
    frames = [gapped([2, 3, 9], [b"a", b"b", b"c"]), gapped([0, 5], [b"d", b"e"]), letters(2)]
    assert take(shelf, frames).shape == [("frame", 0, 10), ("frame", 10, 6), ("frame", 16, 2)]
    assert take(shelf, frames, (3, 4)).shape == [("frame", 0, 18)]
    assert take(shelf, frames, (9, 11)).shape == [("frame", 0, 18)]
    assert take(shelf, frames, (15, 16)).shape == [("frame", 0, 10), ("frame", 10, 8)]
    # Ranges in which no record is leave it as it is.
    assert take(shelf, frames, (4, 9), (11, 15)).bodies == [frame.body for frame in frames]


# What is refused.


@pytest.mark.parametrize("parts", [1, 3])
def test_too_few_and_too_many_frames_are_a_bug_and_no_segment(shelf, parts):
    shelf.write([letters(3), letters(4), letters(2)])
    source = SegmentSource(shelf, 0)
    source.index.span = 7
    writer = RewriteWriter(shelf.files, f"{shelf.path}/new", SegmentHeader(7, 3, NEW_SALT, TIME, 0))
    copier, found = Copier(source, writer, None), source.parts(runs=False)
    for _ in range(parts):
        copier.add(next(found))
    with pytest.raises(AssertionError):
        copier.finish()
    writer.abandon()
    shelf.files.close(source.descriptor)
    assert [path.name for path in Path(shelf.path).iterdir()] == [shelf.file().name]


# Against a model.


def random_frames(rng: Random, now: int) -> list[Prepared]:
    """Return frames of every kind, with few and with many records."""
    expiries = [0, 0, now - 1, now, now + 1, now + 1_000_000]

    def item(longest=40):
        return rng.randbytes(rng.randint(0, longest))

    def rarely_none():
        return None if rng.random() < 0.2 else item()

    def single():
        headers = rng.choice([b"", b"", item()])
        frame = one(rarely_none(), rng.choice([None, item()]), headers, expiry=rng.choice(expiries))
        time = TIME + rng.randint(-9, 9)
        return frame._replace(min_time=time, max_time=time)

    def several():
        count = rng.choice([1, 2, 5, 30, 300])
        spread = rng.choice([0, 1_000, 1 << 40])
        length = rng.choice([None, 8, 100])
        values = [rarely_none() if length is None else rng.randbytes(1) * length for _ in range(count)]
        return many(
            values,
            rng.choice([0, ZSTD, ZSTD, LZ4]),
            keys=rng.choice([None, [rarely_none() for _ in values]]),
            headers=rng.choice([None, [rng.choice([b"", item()]) for _ in values]]),
            times=[TIME + rng.randint(0, spread) for _ in values],
            expiry=rng.choice([rng.choice(expiries), [rng.choice(expiries) or NEVER for _ in values]]),
        )

    def any_of():
        kind = rng.random()
        if kind < 0.1:
            return prepare_removed(rng.randint(1, 30), TIME, TIME + 1)
        if kind < 0.15:
            return prepare_lost(rng.randint(1, 30), b"note", TIME, TIME)
        if kind < 0.25:
            offsets = sorted(rng.sample(range(60), rng.randint(1, 20)))
            return gapped(offsets, [rarely_none() for _ in offsets])
        if kind < 0.35:
            return of_producer(several(), rng.choice([0, 8]), schema_version=rng.choice([1, 2]), sequence=3)
        return several()

    found: list[Prepared] = []
    for _ in range(rng.randint(1, 12)):
        found += [single() for _ in range(rng.randint(1, 20))] if rng.random() < 0.4 else [any_of()]
    return found


def model_of(shelf: Shelf, frames: Sequence[Prepared]) -> dict[int, Fields]:
    """Return the records of frames, each of which is decoded alone in a segment of its own."""
    model, first = {}, 0
    for frame in frames:
        shelf.write([frame], 1 << 40)
        model.update({first + offset: fields for offset, fields in shelf.rows(1 << 40, runs=False).items()})
        first += frame.span
    return model


def random_ranges(rng: Random, frames: Sequence[Prepared]) -> list[tuple[int, int]]:
    """Return sorted ranges that do not touch, some of which begin or end with a frame."""
    bounds, span = {0}, 0
    for frame in frames:
        span += frame.span
        bounds.add(span)
    points = {*rng.sample(range(-5, span + 6), min(span + 11, rng.choice([0, 2, 6, 40])))}
    points |= {*rng.sample(sorted(bounds), min(len(bounds), rng.choice([0, 1, 3])))}
    ordered = sorted(points)
    return [*zip(ordered[::2], ordered[1::2], strict=False)]


@pytest.mark.parametrize("limits", ["normal", "small"])
def test_random_segments_against_a_model(shelf, rng, monkeypatch, limits):
    """Twice, so that the frames of a rewrite are rewritten: every record that stays has all of its fields."""
    if limits == "small":
        limit(monkeypatch, copying, gap_offsets=12)
        limit(monkeypatch, copying, span_offsets=200)
        limit(monkeypatch, copying, frame_records=300)
        limit(monkeypatch, copying, frame_bytes=2_000)
        limit(monkeypatch, copying, copied_bytes_min=2_000)
    for base in range(1_000, 1_012):
        frames = random_frames(rng, TIME)
        model = model_of(shelf, frames)
        shelf.write(frames, base)
        assert shelf.rows(base) == model
        for now in (TIME, TIME + rng.choice([0, 1, 2, 2_000_000])):
            ranges = random_ranges(rng, frames)
            gone = {offset for first, stop in ranges for offset in range(first, stop)}
            kept = {offset: fields for offset, fields in model.items() if fields[4] > now and offset not in gone}
            removed = [(first + base, stop + base) for first, stop in ranges]
            dead = find_dead(shelf, base, now, removed)
            copied = copy(shelf, Removal.within(base, now, removed), base)
            assert shelf.rows(base) == shelf.rows(base, runs=False) == kept
            assert copied.removed == len(model) - len(kept)
            assert (copied.removed, copied.expired) == ((0, 0) if dead is None else dead[:2])
            assert copied.expired <= sum(fields[4] <= now for fields in model.values())
            lost = sum(frame.span for frame in frames if frame.count == 0 and frame.flags == LOST)
            assert sum(header.span for header in copied.headers if header.lost) == lost
            assert bool(copied.index.flags & NOTHING_LOST) == (not lost)
            model = kept


def test_more_long_gaps_in_a_frame_than_python_may_recurse(shelf):
    """Each stretch between two of them is gathered by itself."""
    offsets = [40_000 * number for number in range(1_500)]
    frame = gapped(offsets, [b"v"] * len(offsets))
    copied = take(shelf, [frame], *[(offset, offset + 1) for offset in offsets[1::2]])
    assert copied.removed == 750
    assert [kind for kind, _, _ in copied.shape].count("frame") == 750


def test_a_producer_with_a_long_gap_keeps_the_numbers_of_its_records(shelf):
    """The sequence of a frame is that of its first record, and each offset counts as one."""
    far, last = 70_000, (1 << 31) - 2
    frame = of_producer(gapped([0, 1, far, far + 1], [b"a", b"b", b"c", b"d"]), sequence=last)
    for removed, expected in (((1, 2), [(0, last), (far, far - 2)]), ((0, 2), [(far, far - 2)])):
        copied = take(shelf, [frame], removed)
        frames = [header for header in copied.headers if not header.placeholder]
        assert [(each.base, Attributes.unpack(each.attributes).sequence) for each in frames] == expected


def test_a_placeholder_that_no_header_can_hold_is_several(shelf):
    frames = [prepare_removed(3 << 30, TIME, TIME), prepare_removed(3 << 30, TIME, TIME), one()]
    copied = take(shelf, frames)
    assert [span for kind, _, span in copied.shape if kind == "removed"] == [1 << 31, 1 << 31, 1 << 31]
    assert [*shelf.rows()] == [6 << 30]


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_little_of_large_frames_takes_little_memory(shelf, rng, codec):
    """What is gathered does not keep the frames that it comes from."""
    values = [b"a" * rng.randint(900, 1_100) for _ in range(1_000)]
    shelf.write([many(values, codec) for _ in range(24)])
    gone = [part for at in range(0, 24_000, 1_000) for part in ((at, at + 500), (at + 510, at + 1_000))]
    removal = Removal(TIME, gone)
    tracemalloc.start()
    try:
        assert copy(shelf, removal).removed == 24 * 990
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
