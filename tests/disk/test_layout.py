"""The layout of a partition: its segments, by facts where they are known and by a look where they are not."""

from __future__ import annotations

from array import array

import pytest

from tailrace.disk.frame import EXPIRY_OPEN
from tailrace.disk.layout import OffsetRange, SegmentInfo, SegmentLayout, is_expired
from tailrace.disk.segment_facts import Key, SegmentFact, SegmentFacts

SECOND = 1_000_000


def info(base, end, *, sealed=True, records=None):
    count = end - base if records is None else records
    return SegmentInfo(base, end, f"/p/{base:020d}.seg", 0, sealed, 0, count, base, end - 1, 0)


class Layout:
    """Three sealed segments of ten offsets each and an active one from 30 on; the time of a record is its offset."""

    def __init__(self, facts=None, end=35, newest=30):
        self.looked = []
        listed = array("q", (0, 10, 20, 30))
        known = [self.fact(10), self.fact(20), self.fact(30)] if facts is None else facts
        made = SegmentFacts(Key(1, newest, 0), listed, 5).extended(known)
        self.layout = SegmentLayout(made, end, "/p", self.look)

    @staticmethod
    def fact(end, records=10, expiry=(0, 0)):
        return SegmentFact(end, 1_000, records, end - 10, end - 1, 0, 7, *expiry)

    def look(self, base, stop, walked):
        self.looked.append((base, stop, walked))
        return info(base, stop, sealed=False)

    def ranges(self, start, stop, now_us=0):
        return [*self.layout.ranges(start, stop, now_us)]


@pytest.mark.parametrize(
    ("high", "now", "expired"),
    [(0, 10**18, False), (5, 5 * SECOND - 1, False), (5, 5 * SECOND, True), (EXPIRY_OPEN, 10**18, False)],
)
def test_all_have_expired_when_the_last_has(high, now, expired):
    assert is_expired(high, now) == expired


def test_only_the_newest_segment_is_looked_at():
    made = Layout()
    found = [*made.layout.infos()]
    assert [(each.base, each.end, each.sealed) for each in found] == [
        (0, 10, True),
        (10, 20, True),
        (20, 30, True),
        (30, 35, False),
    ]
    assert found[1].path == f"/p/{10:020d}.seg"
    assert made.looked == [(30, 35, True)]


def test_a_segment_that_begins_at_or_after_the_end_was_made_later():
    made = Layout(end=30)
    assert [each.base for each in made.layout.infos()] == [0, 10, 20]
    assert made.looked == []


def test_a_segment_without_facts_ends_where_the_next_begins():
    made = Layout([Layout.fact(10), None, Layout.fact(30)])
    assert [each.base for each in made.layout.infos()] == [0, 10, 20, 30]
    assert made.looked == [(10, 20, True), (30, 35, True)]


def test_segments_from_a_time_on():
    made = Layout()
    assert [each.base for each in made.layout.from_time(15)] == [10, 20, 30]
    assert [each.base for each in made.layout.from_time(34)] == [30]
    assert [each.base for each in made.layout.from_time(99)] == []


def test_runs_end_at_a_gap():
    assert [*Layout().layout.runs()] == [(0, 30), (30, 35)]
    made = Layout([Layout.fact(10), Layout.fact(18), Layout.fact(30)])
    assert [*made.layout.runs()] == [(0, 18), (20, 30), (30, 35)]
    # The newest is not walked: only its bounds are asked for.
    assert made.looked == [(30, 35, False)]


def test_ranges_hold_every_offset_once_and_count_records():
    made = Layout()
    assert made.ranges(0, 35) == [
        OffsetRange(0, 10, 10),
        OffsetRange(10, 20, 10),
        OffsetRange(20, 30, 10),
        OffsetRange(30, 35, 5),
    ]
    assert made.ranges(3, 22) == [OffsetRange(3, 10, 7), OffsetRange(10, 20, 10), OffsetRange(20, 22, 2)]
    assert made.ranges(12, 12) == []


def test_of_a_segment_with_gaps_only_the_whole_is_counted():
    made = Layout([Layout.fact(10, records=4), Layout.fact(20), Layout.fact(30)])
    assert made.ranges(0, 10) == [OffsetRange(0, 10, 4)]
    assert made.ranges(2, 10) == [OffsetRange(2, 10, None)]


def test_once_a_record_may_have_expired_only_reading_can_tell():
    made = Layout([Layout.fact(10, expiry=(5, 9)), Layout.fact(20), Layout.fact(30)])
    counts = {now: made.ranges(0, 20, now * SECOND) for now in (4, 5, 9)}
    assert counts == {
        4: [OffsetRange(0, 10, 10), OffsetRange(10, 20, 10)],
        5: [OffsetRange(0, 10, None), OffsetRange(10, 20, 10)],
        9: [OffsetRange(0, 10, 0), OffsetRange(10, 20, 10)],
    }
