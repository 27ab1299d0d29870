"""Keys that are hashed together go where the library's partitioner puts each."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.spark.sink.hashing import ROWS_AT_ONCE, TOGETHER_BYTES_MAX, partitions_of
from tailrace.write.partitioner import HASHES


class TestHashing:
    @pytest.mark.parametrize("partitioner", ["crc32", "murmur2"])
    @pytest.mark.parametrize("lengths", [[0], [1], [3], [16], [24], [36], [300], range(20), range(90)], ids=str)
    @pytest.mark.parametrize("repeated", [False, True])
    def test_as_the_library(self, partitioner, lengths, repeated, rng):
        keys = [rng.randbytes(rng.choice(lengths)) for _ in range(20_000)]
        if repeated:
            keys = [rng.choice(keys[:100]) for _ in keys]
        expected = [HASHES[partitioner](key) % 13 for key in keys]
        assert partitions_of(pa.array(keys, pa.binary()), 13, partitioner).to_pylist() == expected
        # A slice begins in the middle of its buffers.
        assert partitions_of(pa.array(keys, pa.binary()).slice(777), 13, partitioner).to_pylist() == expected[777:]

    @given(st.lists(st.binary(max_size=40)), st.integers(1, 4_096), st.sampled_from(["crc32", "murmur2"]))
    def test_any_keys(self, keys, count, partitioner):
        expected = [HASHES[partitioner](key) % count for key in keys]
        assert partitions_of(pa.array(keys, pa.binary()), count, partitioner).to_pylist() == expected


@pytest.mark.parametrize("partitioner", ["crc32", "murmur2"])
@pytest.mark.parametrize("length", [0, 1, 2, 7, 8, 15, 16, 24])
@pytest.mark.parametrize("count", [4, 6])
def test_many_keys_of_one_length_are_hashed_as_the_library_does(partitioner, length, count):
    assert length <= TOGETHER_BYTES_MAX[partitioner]
    # Behind a key of an odd length, so that nothing lies at an even address; the last stretch is a short one.
    keys = [os.urandom(length) for _ in range(ROWS_AT_ONCE + 1_001)]
    column = pa.array([b"odd", *keys], pa.binary()).slice(1)
    expected = [HASHES[partitioner](key) % count for key in keys]
    assert partitions_of(column, count, partitioner).to_pylist() == expected
