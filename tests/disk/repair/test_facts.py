"""What a repair plans, as plain values: what is lost, and whether anything is to be done."""

from __future__ import annotations

import pytest

from tailrace.disk.catalog import SlotPlace
from tailrace.disk.repair.facts import LostRange, PartitionPlan, SegmentPlan
from tailrace.disk.salvage.scan import FrameRun, Hole

PLACE = SlotPlace(1, 1, 1, 0, "topics/00000001-orders/0", 0, 1 << 20, 3_600.0)
RUN = FrameRun(128, 228, 0, 2, 7, 2, 0, 0)


def segment(*pieces, base=100, after=110, path="/p/a.seg"):
    return SegmentPlan(base, after, path, (), pieces, "damaged")


def test_holes_are_lost_in_the_offsets_of_the_partition():
    planned = segment(RUN, Hole(228, 300, 2, 5, "the checksum does not fit"), FrameRun(300, 400, 5, 10, 7, 5, 0, 0))
    assert planned.lost == [LostRange(102, 104, "/p/a.seg", 228, "the checksum does not fit")]


def test_a_break_at_which_no_offset_is_missing_loses_nothing():
    assert segment(RUN, Hole(228, 260, 2, 2, "the chain breaks")).lost == []


def test_a_segment_of_which_nothing_is_left_has_no_file():
    (lost,) = segment(Hole(0, 0, 0, 10, "the segment is missing"), path=None).lost
    assert (lost.first, lost.last, lost.file) == (100, 109, "")


def test_what_was_trimmed_is_not_lost():
    pieces = (Hole(228, 300, 2, 5, "first"), Hole(300, 400, 7, 9, "second"))
    planned = PartitionPlan(PLACE, 110, 103, (segment(*pieces),))
    assert [(lost.first, lost.last) for lost in planned.lost] == [(103, 104), (107, 108)]
    assert [(lost.first, lost.last) for lost in planned._replace(start=105).lost] == [(107, 108)]


def test_a_sound_partition_has_nothing_to_do():
    assert PartitionPlan(PLACE, 110, 0).sound
    # What is known of it is no work.
    assert PartitionPlan(PLACE, 110, 0, why=("it was read",)).sound


@pytest.mark.parametrize(
    "work",
    [
        {"segments": (segment(RUN),)},
        {"reset": True},
        {"aside": ("/p/a.seg",)},
        {"leftovers": ("/p/a.seg.new",)},
        {"misnamed": (("/p/a.seg", 5),)},
        {"homeless": True},
    ],
    ids=lambda work: next(iter(work)),
)
def test_any_work_makes_it_unsound(work):
    assert not PartitionPlan(PLACE, 110, 0, **work).sound
