"""Sets of ranges: against plain sets of offsets, in chunks of every size, and changes that leave the rest as it is."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.disk.range_set import CHUNK_RANGES_MAX, INSERTED_MAX, NO_RANGES, RangeSet
from tailrace.ranges import Ranges, normalized


def offsets_of(ranges):
    return {offset for first, stop in ranges for offset in range(first, stop)}


def drawn(random: Random, space: int, count: int) -> list[tuple[int, int]]:
    return [(at := random.randrange(space), at + random.choice([1, 1, 2, 7])) for _ in range(count)]


@pytest.mark.parametrize("chunk_max", [1, 2, 5, 64, CHUNK_RANGES_MAX])
def test_against_a_set(rng, chunk_max):
    for _ in range(12):
        space = rng.choice([40, 400, 4_000])
        known, model = NO_RANGES, set()
        for _ in range(14):
            if rng.random() < 0.75:
                ranges = drawn(rng, space, rng.choice([1, 2, 5, INSERTED_MAX, INSERTED_MAX + 1, 200]))
                added = ranges if rng.random() < 0.5 else Ranges.of(normalized(ranges))
                known, model = known.adding(added, chunk_max), model | offsets_of(ranges)
            else:
                first = rng.randrange(space)
                stop = first + rng.choice([0, 1, 9, space])
                known, model = known.outside(first, stop, chunk_max), model - {*range(first, stop)}
            listed = [*known]
            assert offsets_of(listed) == model
            # In order, and none touches the next one.
            assert listed == normalized(listed) == [*known.joined()]
            assert len(known) == len(listed)
            assert known.stop == max(model, default=-1) + 1
            assert all(0 < len(chunk) <= chunk_max for chunk in known._chunks)
            first, stop = sorted((rng.randrange(space + 9), rng.randrange(space + 9)))
            inside = {offset for offset in model if first <= offset < stop}
            assert offsets_of(known.within(first, stop)) == inside
            assert known.touches(first, stop) == bool(inside)
            asked = normalized(drawn(rng, space, 5))
            assert offsets_of(known.lacking(asked)) == offsets_of(asked) - model
            assert known.bounds(first, stop) == ((min(inside), max(inside) + 1) if inside else None)


def test_a_change_keeps_the_chunks_beside_it():
    known = RangeSet.of(Ranges.of([(at, at + 1) for at in range(0, 200, 2)]), 10)
    assert len(known._chunks) == 10
    for changed, kept in [
        (known.adding([(61, 62)], 10), 9),
        (known.outside(64, 65, 10), 9),
        # Two that are far from each other change two chunks.
        (known.adding([(1, 2), (199, 200)], 10), 8),
        # One that reaches into the next chunk joins both.
        (known.adding([(19, 20)], 10), 8),
        (known.adding([(500, 501)], 10), 9),
    ]:
        assert sum(any(chunk is each for each in changed._chunks) for chunk in known._chunks) == kept
    # A set never changes.
    assert [*known] == [(at, at + 1) for at in range(0, 200, 2)]


def test_nothing_is_added():
    known = NO_RANGES.adding([(3, 5)])
    assert known.adding([]) is known
    assert known.adding([(7, 7)]) is known
    assert known.adding(Ranges.of([])) is known
    assert NO_RANGES.outside(0, 9) is NO_RANGES
    assert NO_RANGES.stop == 0


def test_large_chunks_are_shared_out_evenly():
    known = RangeSet.of(Ranges.of([(2 * at, 2 * at + 1) for at in range(21)]), 10)
    assert [len(chunk) for chunk in known._chunks] == [7, 7, 7]
