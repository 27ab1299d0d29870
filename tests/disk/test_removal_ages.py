"""Since when records are removed: against a model, bounded, and never younger than they are."""

from __future__ import annotations

from random import Random

from tailrace.disk import removal_ages
from tailrace.disk.removal_ages import LIMITS, NO_AGES, STEP_US, Age, RemovalAges
from tests.tuning import limit


def told(ages: RemovalAges, offset: int) -> int | None:
    return ages.oldest(offset, offset + 1)


def test_single_removals_keep_their_times():
    ages = NO_AGES.adding([Age(5, 6, 100), Age(9_000, 9_001, 2 * STEP_US), Age(5_000, 5_002, 4 * STEP_US)])
    assert [told(ages, offset) for offset in (4, 5, 6, 5_001, 9_000)] == [None, 100, None, 4 * STEP_US, 2 * STEP_US]
    assert ages.oldest(6, 10_000) == 2 * STEP_US
    assert ages.oldest(6, 5_000) is None
    # What was removed before keeps its time, and only the rest gets another one.
    again = ages.adding([Age(0, 10_000, 9 * STEP_US)])
    assert [told(again, offset) for offset in (4, 5, 6, 5_001, 9_000)] == [
        *(9 * STEP_US, 100, 9 * STEP_US, 4 * STEP_US, 2 * STEP_US)
    ]
    assert again.is_sorted()


def test_removals_close_to_each_other_are_one_range():
    for order in (range(0, 50_000, 100), range(50_000, 0, -100)):
        ages = NO_AGES.adding([Age(offset, offset + 1, number) for number, offset in enumerate(order)])
        assert len(ages.ages) == 1
        assert ages.oldest(0, 60_000) == 0
    far = NO_AGES.adding([Age(0, 1, 0), Age(LIMITS.step_offsets + 2, LIMITS.step_offsets + 3, 0)])
    late = NO_AGES.adding([Age(0, 1, 0), Age(1, 2, STEP_US)])
    assert len(far.ages) == len(late.ages) == 2


def test_cuts():
    ages = NO_AGES.adding([Age(0, 100, 7), Age(5_000, 5_100, 2 * STEP_US)])
    assert ages.outside(200, 4_000) is ages
    assert ages.outside(50, 5_050).ages == (Age(0, 50, 7), Age(5_050, 5_100, 2 * STEP_US))
    assert ages.outside(10, 20).ages[:2] == (Age(0, 10, 7), Age(20, 100, 7))
    assert ages.outside(0, 9_999) == NO_AGES
    assert ages.between(90, 5_001).ages == (Age(90, 100, 7), Age(5_000, 5_001, 2 * STEP_US))


def test_damage_is_told():
    assert not RemovalAges((Age(5, 5, 0),)).is_sorted()
    assert not RemovalAges((Age(5, 9, 0), Age(8, 10, 0))).is_sorted()


def test_against_a_model(rng: Random, monkeypatch):
    """Exact as long as ranges are not joined; with a small maximum never younger than the model, and bounded."""
    limit(monkeypatch, removal_ages, step_offsets=0)
    for most in (10_000, 8):
        limit(monkeypatch, removal_ages, ages_max=most)
        for _ in range(60):
            ages, model = NO_AGES, {}
            for turn in range(40):
                first = rng.randrange(200)
                stop = first + rng.randrange(1, 20)
                if rng.random() < 0.8:
                    ages = ages.adding([Age(first, stop, turn * STEP_US)])
                    model = {**dict.fromkeys(range(first, stop), turn * STEP_US), **model}
                else:
                    ages = ages.outside(first, stop)
                    model = {offset: time for offset, time in model.items() if not first <= offset < stop}
                assert ages.is_sorted()
                assert len(ages.ages) <= most
                for offset in range(220):
                    found = told(ages, offset)
                    if most > 8:
                        assert found == model.get(offset)
                    elif offset in model:
                        assert found is not None
                        assert found <= model[offset]
