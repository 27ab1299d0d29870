"""Columns: which of many times are after another one."""

from array import array

import pytest

from tailrace.disk.columns import later
from tailrace.disk.frame import NEVER

NOW = 1_700_000_000_000_000


def viewed(times):
    return memoryview(array("q", times))


@pytest.mark.parametrize("now", [0, 1, 255, 256, NOW, NOW | 0xFFFF_FFFF, 1 << 62, NEVER - 1])
def test_later_of_any_times(rng, now):
    """Times that differ from the other one in any number of bytes, the highest and the lowest ones."""
    near = [now, min(now + 1, NEVER), max(now - 1, 0), NEVER, 0]
    for count in (1, 2, 8, 63, 1_000):
        for _ in range(20):
            bits = rng.randint(0, 62)
            times = [
                rng.choice([rng.choice(near), now ^ rng.getrandbits(bits), rng.getrandbits(63)]) for _ in range(count)
            ]
            expected = bytes([time > now for time in times])
            assert later(viewed(times), now) == expected
            assert later(times, now) == expected


def test_later_where_all_are_alike():
    for times, expected in (([NOW] * 9, bytes(9)), ([NOW + 1] * 9, b"\1" * 9), ([NOW - 1] * 9, bytes(9)), ([], b"")):
        assert later(viewed(times), NOW) == expected


def test_later_of_times_and_moments_that_no_version_writes(rng):
    assert later(viewed([-5, NOW + 1]), NOW) == b"\x00\x01"
    assert later(viewed([5, NOW + 1]), -1) == b"\x01\x01"
    assert later(viewed([5, NEVER]), NEVER) == b"\x00\x00"
    for now in (0, 1, NOW, NEVER - 1):
        for count in (1, 2, 7, 100):
            times = rng.choices([0, 1, NOW - 1, NOW, NOW + 1, NEVER, -1, -NEVER], k=count)
            assert later(viewed(times), now) == bytes([time > now for time in times])
