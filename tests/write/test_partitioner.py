"""The hashes agree with other clients, and keyless records move on."""

from __future__ import annotations

from collections import Counter

import pytest

from tailrace.limits import STICKY_BYTES_MAX, STICKY_US_MAX
from tailrace.write.partitioner import HASHES, Sticky, murmur2


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_client(key, java):
    assert murmur2(key) == java & 0x7FFFFFFF
    assert HASHES["murmur2"](memoryview(key)) == java & 0x7FFFFFFF


def test_crc32_is_that_of_librdkafka():
    assert HASHES["crc32"](b"123456789") == 0xCBF43926


def test_keyless_records_stay_until_the_bytes_are_full():
    sticky = Sticky()
    first = sticky.one(3, STICKY_BYTES_MAX - 1, 0)
    assert sticky.one(3, 1, 0) == first
    assert sticky.one(3, 1, 0) == (first + 1) % 3


def test_keyless_records_stay_until_the_time_is_up_and_a_clock_may_go_back():
    sticky = Sticky()
    first = sticky.one(4, 1, 1_000_000)
    assert sticky.one(4, 1, 1_000_000 + STICKY_US_MAX - 1) == first
    assert sticky.one(4, 1, 1_000_000 + STICKY_US_MAX) == (first + 1) % 4
    assert sticky.one(4, 1, 0) == (first + 2) % 4


def test_batches_take_turns():
    sticky = Sticky()
    assert Counter(sticky.next(3) for _ in range(9)) == {0: 3, 1: 3, 2: 3}
