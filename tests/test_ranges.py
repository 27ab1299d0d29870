"""Ranges of offsets: single offsets in any order become sorted ranges, and numbers are compared all at once."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from tailrace.ranges import Ranges, is_rising, normalized, single_offsets, total, without


def joined(offsets):
    ranges: list[tuple[int, int]] = []
    for offset in sorted({*offsets}):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


def test_single_offsets_against_a_model(rng):
    for _ in range(300):
        offsets = [rng.randrange(rng.choice([8, 80, 1 << 40])) for _ in range(rng.choice([0, 1, 2, 20]))]
        made = single_offsets(offsets)
        assert [*made] == joined(offsets)
        assert len(made) == len(joined(offsets))
        if isinstance(made, Ranges):
            assert made.total == len({*offsets})


@pytest.mark.parametrize("large", [(1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 90])
def test_offsets_that_no_log_reaches(large):
    """They are refused later, with the end of the partition."""
    assert [*single_offsets([7, large])] == [(7, 8), (large, large + 1)]
    assert [*single_offsets([large])] == [(large, large + 1)]


def test_ranges_are_a_sequence():
    ranges = Ranges.of([(1, 3), (5, 6), (8, 9)])
    assert ranges[-1] == (8, 9)
    assert ranges[1:] == [(5, 6), (8, 9)]
    assert ranges[:0] == []
    assert ranges == Ranges.of([(1, 3), (5, 6), (8, 9)]) != Ranges.of([(1, 3)])
    assert ranges != {(1, 3)}
    assert ranges.total == 4
    assert ranges.words().tolist() == [1, 3, 5, 6, 8, 9]
    assert repr(ranges) == "Ranges.of([(1, 3), (5, 6), (8, 9)])"
    assert single_offsets([1, 3])[1:].single  # type: ignore[union-attr]
    with pytest.raises(IndexError):
        ranges[3]
    with pytest.raises(TypeError):
        hash(ranges)


@pytest.mark.parametrize("by", [1, 2])
def test_numbers_that_rise(rng, by):
    for _ in range(400):
        top = rng.choice([4, 40, 1 << 62, 1 << 63, 1 << 64])
        numbers = [rng.randrange(top) for _ in range(rng.choice([0, 1, 2, 3, 9]))]
        if rng.random() < 0.7:
            numbers.sort()
        if rng.random() < 0.3 and numbers and numbers[0] + 9 < 1 << 64:
            numbers = [numbers[0] + step for step in (0, 1, 2)][: rng.choice([2, 3])]
        expected = all(after - before >= by for before, after in pairwise(numbers))
        assert is_rising(array("Q", numbers), by) == expected


def test_ranges_put_in_order():
    assert normalized([(5, 6), (1, 3), (3, 4), (2, 3), (9, 9)]) == [(1, 4), (5, 6)]
    ordered = Ranges.of([(1, 2)])
    assert normalized(ordered) is ordered


def test_ranges_without_others():
    assert without([(0, 10), (20, 30)], [(2, 3), (8, 22), (29, 40)]) == [(0, 2), (3, 8), (22, 29)]
    untouched = [(5, 9)]
    assert without(untouched, [(0, 5), (9, 12)]) == untouched
    assert without(untouched, []) is untouched
    assert without([], untouched) == []


def test_a_total():
    assert total([(1, 4), (6, 7)]) == total(Ranges.of([(1, 4), (6, 7)])) == 4
