"""Removal: which records go by their expiry and by their offsets, for frames as a whole and record by record."""

from __future__ import annotations

from itertools import combinations

import pytest

from tailrace.disk.columns import columns
from tailrace.disk.frame import NEVER, place_one, prepare, prepare_one, read_header
from tailrace.disk.removal import Removal
from tailrace.disk.runs import take_run
from tailrace.ranges import Ranges
from tests.disk.test_segment_source import gapped

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND
BASE, COUNT = 10, 5


def frame_of(expiry=0, count=COUNT):
    return prepare([b"v"] * count, None, None, NOW, expiry=expiry)[0]


def header_of(frame, base=BASE):
    header = read_header(place_one(frame, base, 0)[0])
    assert header is not None
    return header


def column_of(frame, base=BASE):
    return columns(header_of(frame, base), frame.body, base)


def run_of(expiries, base=BASE):
    """The same records as frames of one record each."""
    data, chain = b"", 0
    for at, expiry in enumerate(expiries):
        placed, chain = place_one(prepare_one(b"v", None, b"", NOW, expiry=0 if expiry == NEVER else expiry), at, chain)
        data += placed
    taken = take_run(data, 0, base, 0, 0, len(expiries))
    assert taken is not None
    assert taken.run.count == len(expiries)
    return taken.run


@pytest.mark.parametrize(
    ("ranges", "takes"),
    [
        ([], False),
        ([(5, 10)], False),
        ([(5, 11)], None),
        ([(5, 14)], None),
        ([(5, 15)], True),
        ([(5, 16)], True),
        ([(10, 15)], True),
        ([(10, 14)], None),
        ([(10, 11)], None),
        ([(11, 15)], None),
        ([(12, 13)], None),
        ([(14, 15)], None),
        ([(14, 90)], None),
        ([(15, 20)], False),
        ([(0, 5), (10, 15)], True),
        ([(0, 5), (10, 15), (20, 25)], True),
        ([(0, 10), (15, 20)], False),
        ([(0, 5), (20, 25), (30, 31)], False),
        ([(0, 11), (20, 25)], None),
        ([(0, 5), (6, 9), (14, 20)], None),
        # Only the first of the ranges that touch a frame is looked at.
        ([(10, 12), (12, 15)], None),
    ],
)
def test_a_frame_by_its_offsets(ranges, takes):
    header = header_of(frame_of())
    removal = Removal(NOW, ranges)
    assert removal.takes(header) is takes
    assert not removal.is_over(header)
    if takes is not None:
        assert removal.kept(column_of(frame_of())) == (bytes([not takes]) * COUNT, 0)


@pytest.mark.parametrize(
    ("expiry", "after", "takes", "over"),
    [
        # Whole seconds: both bounds in the header are exact.
        (NOW, -1, False, False),
        (NOW, 0, True, True),
        (NOW, 1, True, True),
        # Parts of a second: between its bounds only the column tells.
        (NOW + 1, -1, False, False),
        (NOW + 1, 0, None, False),
        (NOW + 1, 1, None, False),
        (NOW + 1, SECOND - 1, None, False),
        (NOW + 1, SECOND, True, True),
        # One for each record.
        ([NOW, NOW + SECOND] * 2 + [NOW], -1, False, False),
        ([NOW, NOW + SECOND] * 2 + [NOW], 0, None, False),
        ([NOW, NOW + SECOND] * 2 + [NOW], SECOND - 1, None, False),
        ([NOW, NOW + SECOND] * 2 + [NOW], SECOND, True, True),
        # One that does not expire.
        ([NOW] * 4 + [NEVER], -1, False, False),
        ([NOW] * 4 + [NEVER], 0, None, False),
        ([NOW] * 4 + [NEVER], 1 << 60, None, False),
        # None that expires.
        (0, 1 << 60, False, False),
        ([NEVER] * 5, 1 << 60, False, False),
    ],
)
def test_a_frame_by_its_expiry(expiry, after, takes, over):
    header, removal = header_of(frame_of(expiry)), Removal(NOW + after, [])
    assert removal.takes(header) is takes
    assert removal.is_over(header) is over
    each = [expiry or NEVER] * COUNT if isinstance(expiry, int) else expiry
    expected = bytes([time > NOW + after for time in each])
    assert removal.kept(column_of(frame_of(expiry))) == (expected, expected.count(0))


def test_a_frame_that_has_not_expired_goes_by_its_offsets():
    header = header_of(frame_of(NOW + SECOND))
    assert Removal(NOW, [(10, 15)]).takes(header) is True
    assert not Removal(NOW, [(10, 15)]).is_over(header)
    assert Removal(NOW + SECOND, [(12, 13)]).takes(header) is True
    assert Removal(NOW + SECOND, [(12, 13)]).is_over(header)
    assert Removal(NOW, [(12, 13)]).takes(header) is None


def test_a_frame_with_gaps_ends_after_its_last_record():
    header = header_of(gapped([0, 6], [b"v", b"w"]))
    assert (header.base, header.span, header.count) == (10, 7, 2)
    assert Removal(NOW, [(10, 17)]).takes(header) is True
    assert Removal(NOW, [(10, 16)]).takes(header) is None
    assert Removal(NOW, [(16, 17)]).takes(header) is None
    assert Removal(NOW, [(17, 18)]).takes(header) is False
    # No record is there, which only the column tells.
    assert Removal(NOW, [(11, 16)]).takes(header) is None
    assert Removal(NOW, [(11, 16)]).kept(column_of(gapped([0, 6], [b"v", b"w"]))) == (b"\1\1", 0)


@pytest.mark.parametrize("make", [lambda each: column_of(frame_of(each)), run_of], ids=["frame", "run"])
def test_a_record_has_expired_exactly_at_its_time(make):
    column = make([NOW - 1, NOW, NOW + 1, NEVER, NOW])
    assert Removal(NOW, []).kept(column) == (b"\0\0\1\1\0", 3)
    assert Removal(NOW - 1, []).kept(column) == (b"\0\1\1\1\1", 1)
    assert Removal(NOW + 1, []).kept(column) == (b"\0\0\0\1\0", 4)
    # What is deleted as well counts as expired; the others were deleted.
    assert Removal(NOW, [(10, 12), (13, 14)]).kept(column) == (b"\0\0\1\0\0", 3)


def test_one_expiry_for_all_records():
    column = column_of(frame_of(NOW))
    assert isinstance(column.expiry, int)
    assert Removal(NOW - 1, []).kept(column) == (b"\1" * 5, 0)
    assert Removal(NOW, []).kept(column) == (bytes(5), 5)
    assert Removal(NOW - 1, [(11, 13)]).kept(column) == (b"\1\0\0\1\1", 0)


OFFSETS = [0, 1, 4, 5, 9]
KINDS = {
    "dense": (lambda: column_of(frame_of()), [BASE + at for at in range(COUNT)]),
    "gaps": (lambda: column_of(gapped(OFFSETS, [b"v"] * 5)), [BASE + at for at in OFFSETS]),
    "late": (lambda: column_of(gapped([2, 3, 7], [b"v"] * 3)), [BASE + at for at in (2, 3, 7)]),
    "run": (lambda: run_of([NEVER] * COUNT), [BASE + at for at in range(COUNT)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_one_and_two_ranges(kind):
    """All ranges around the records, which begin and end before, at, between and after them."""
    make, offsets = KINDS[kind]
    column = make()
    for bounds in (*combinations(range(8, 22), 2), *combinations(range(8, 22), 4)):
        ranges = [*zip(bounds[::2], bounds[1::2], strict=True)]
        expected = bytes([not any(first <= offset < stop for first, stop in ranges) for offset in offsets])
        assert Removal(NOW, ranges).kept(column) == (expected, 0)


def test_what_is_said_of_a_frame_is_true_of_its_records(rng):
    for _ in range(600):
        pool = [NOW, NOW + 1, NOW + SECOND, *([NEVER] if rng.random() < 0.3 else [])]
        expiry = rng.choice([0, rng.choice(pool[:3]), [rng.choice(pool) for _ in range(COUNT)]])
        frame = frame_of(expiry)
        bounds = sorted(rng.sample(range(7, 19), rng.choice([0, 2, 4])))
        ranges = [*zip(bounds[::2], bounds[1::2], strict=True)]
        removal = Removal(NOW + rng.choice([-1, 0, 1, 2, SECOND - 1, SECOND]), ranges)
        each = [expiry or NEVER] * COUNT if isinstance(expiry, int) else expiry
        alive = [time > removal.now_us for time in each]
        expected = [
            lives and not any(first <= BASE + at < stop for first, stop in ranges) for at, lives in enumerate(alive)
        ]
        assert removal.kept(column_of(frame)) == (bytes(expected), alive.count(False))
        takes = removal.takes(header_of(frame))
        assert takes is None or expected == [not takes] * COUNT
        assert not removal.is_over(header_of(frame)) or not any(alive)


@pytest.mark.parametrize(
    ("removed", "kept"),
    [
        ([], b"\1\1\1\1\1"),
        # Ranges begin before the segment, and end there or within it.
        ([(990, 1_000)], b"\1\1\1\1\1"),
        ([(990, 1_001)], b"\0\1\1\1\1"),
        ([(0, 3), (990, 1_003), (1_010, 1_011)], b"\0\0\0\1\1"),
        ([(1_000, 1_001), (1_004, 1_005)], b"\0\1\1\1\0"),
        ([(0, 1), (999, 1_000), (1_002, 1_003)], b"\1\1\0\1\1"),
        ([(999, 1_005)], bytes(5)),
        ([(1_005, 1_006)], b"\1\1\1\1\1"),
        ([(0, 1 << 40)], bytes(5)),
    ],
)
@pytest.mark.parametrize("given", [list, Ranges.of], ids=["list", "ranges"])
def test_offsets_of_a_partition_are_taken_from_a_segment(removed, kept, given):
    """What is given is not changed."""
    ranges = given(removed)
    removal = Removal.within(1_000, NOW, ranges)
    assert removal.kept(column_of(frame_of(), 0)) == (kept, 0)
    takes = removal.takes(header_of(frame_of(), 0))
    assert takes is {0: True, 5: False}.get(kept.count(1))
    assert [*ranges] == removed
