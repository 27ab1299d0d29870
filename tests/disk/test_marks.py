"""Marks: the table of removed offsets, and the records that add up to it."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from tailrace.disk.marks import NO_MARKS, MarkTable, Rewrite, pack_remove, pack_rewritten
from tailrace.errors import CorruptionError, VersionError
from tailrace.names import marked_topic, marks_topic
from tailrace.ranges import normalized
from tailrace.ranges import without as ranges_without


def offsets_of(ranges):
    return {offset for first, stop in ranges for offset in range(first, stop)}


class TestTable:
    def test_against_a_set(self, seed):
        random = Random(seed)
        for _ in range(200):
            table, model = NO_MARKS, set()
            for _ in range(12):
                ranges = [
                    (at := random.randrange(60), at + random.randrange(1, 6)) for _ in range(random.choice((1, 3, 80)))
                ]
                if random.random() < 0.7:
                    table, model = table.applied([pack_remove(99, normalized(ranges))]), model | offsets_of(ranges)
                elif random.random() < 0.5:
                    base = random.randrange(50)
                    stop = base + random.randrange(1, 12)
                    stays = table.within(base + 1, stop)
                    table = table.applied([pack_rewritten(Rewrite(base, stop, 1), stays)])
                    model -= set(range(base, stop)) - offsets_of(stays)
                else:
                    table = MarkTable().applied(table.snapshot())
                assert offsets_of(table) == model
                assert [*table] == normalized(table)
                first, stop = sorted((random.randrange(70), random.randrange(70)))
                inside = {offset for offset in model if first <= offset < stop}
                assert offsets_of(table.within(first, stop)) == inside
                assert table.count(first, stop) == len(inside)
                assert table.touches(first, stop) == bool(inside)
                assert (
                    offsets_of(table.unmarked([(first, stop)] if first < stop else [])) == {*range(first, stop)} - model
                )
                assert all(table.covers(offset) == (offset in model) for offset in range(70))
                assert table.applied(table.snapshot()) == table

    def test_ranges(self):
        assert normalized([(5, 6), (1, 3), (3, 4), (2, 3), (9, 9)]) == [(1, 4), (5, 6)]
        assert ranges_without([(0, 10), (20, 30)], [(2, 3), (8, 22), (29, 40)]) == [(0, 2), (3, 8), (22, 29)]

    def test_rewrites(self):
        table = NO_MARKS.adding([(0, 30)]).rewritten(Rewrite(10, 20, 2), [(12, 13)])
        assert [*table] == [(0, 10), (12, 13), (20, 30)]
        assert table.rewrite_of(19) == Rewrite(10, 20, 2)
        assert table.rewrite_of(9) is table.rewrite_of(20) is None
        # A round that repeats a record of an earlier version takes nothing back.
        assert table.rewritten(Rewrite(10, 20, 1), []).rewrite_of(10) == Rewrite(10, 20, 2)
        assert table.between(11, 25).rewrites == (Rewrite(10, 20, 2),)
        assert [*table.between(11, 25)] == [(12, 13), (20, 25)]
        assert table.end == 30

    def test_a_large_snapshot_is_several_records(self):
        table = NO_MARKS.adding([(at, at + 1) for at in range(0, 16, 2)]).rewritten(Rewrite(90, 99, 1), [])
        records = table.snapshot(ranges_max=3)
        assert len(records) == 3
        assert NO_MARKS.adding([(77, 78)]).applied(records) == table

    @pytest.mark.parametrize(
        "torn",
        [
            *(b"", b"1234567", bytes(8), pack_remove(1, [(0, 1)])[:-8], pack_remove(1, [(2, 1)])),
            *(pack_rewritten(Rewrite(0, 9, 1), [])[:-8], NO_MARKS.snapshot()[0][:-8]),
            array("Q", (3, 0, 1, 5, 5, 0)).tobytes(),
        ],
    )
    def test_torn_records(self, torn):
        with pytest.raises(CorruptionError):
            NO_MARKS.applied([torn])

    def test_a_record_of_a_newer_version(self):
        with pytest.raises(VersionError):
            NO_MARKS.applied([bytes([9, *bytes(15)])])

    def test_since_when_records_are_marked(self):
        minute = 60_000_000
        table = NO_MARKS.applied(
            [pack_remove(9_999, [(3, 4)]), pack_remove(9_999, [(5_000, 5_001)]), pack_remove(9_999, [(7, 8)])],
            [minute, 3 * minute, 9 * minute],
        )
        assert table.marked_since(0, 100) == minute
        assert table.marked_since(4, 100) == 9 * minute
        assert table.marked_since(100, 9_999) == 3 * minute
        assert table.marked_since(9_000, 9_999) is None
        # A mark that stays keeps its time, which does not count before the rewrite.
        noted = table.applied([pack_rewritten(Rewrite(0, 100, 1, 5 * minute), [(7, 8)])], 11 * minute)
        assert noted.marked_since(0, 100) == 9 * minute
        assert noted.applied([pack_remove(9_999, [(50, 51)])], 0).marked_since(0, 100) == 5 * minute
        # Another snapshot knows the same, whatever its own time is.
        assert NO_MARKS.applied(noted.snapshot(ranges_max=1), 99 * minute) == noted
        assert noted.between(100, 9_999).ages.ages == noted.ages.ages[1:]
        many = [(4 * at, 4 * at + 1) for at in range(200)]
        assert NO_MARKS.applied([pack_remove(9_999, many)], minute).marked_since(700, 720) == minute

    def test_names(self):
        assert marked_topic(marks_topic(17)) == 17
        assert marked_topic("__group.1") is marked_topic("__marks.x") is None


@pytest.mark.parametrize("count", [1, 64, 65, 66, 200])
def test_removals_of_any_size_add_up(rng, count):
    """Few and many, in order and not, between known marks and across them, in one record and in several."""
    for _ in range(40):
        space = range(rng.choice([3 * count, 20 * count]))
        known = rng.sample(space, rng.choice([0, 1, 3, count // 2]))
        table = MarkTable().adding(normalized([(offset, offset + 1) for offset in known]))
        low = rng.choice([0, len(space) // 2])
        begun = [offset + low for offset in rng.sample(space, count)]
        ranges = [(offset, offset + rng.choice([1, 1, 2])) for offset in begun]
        ordered = rng.choice([ranges, normalized(ranges), sorted({(first, first + 1) for first, _ in ranges})])
        half = rng.choice([0, len(ordered) // 2])
        table = table.applied([pack_remove(0, part) for part in (ordered[:half], ordered[half:]) if part])
        assert offsets_of(table) == {*known, *offsets_of(ordered)}
        # Sorted, and none touches the next one.
        assert [*table] == normalized([*table])
        assert all(stop < first for (_, stop), (first, _) in zip([*table], [*table][1:], strict=False))
