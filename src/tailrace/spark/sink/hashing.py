"""Hashes of many keys at once: computes from Arrow columns the partitions that the library's partitioner chooses."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any
from zlib import crc32

from tailrace.bulk import key_hash
from tailrace.extras import pyarrow, require

# Repeated keys are hashed once each; a sample of this many rows shows whether keys repeat.
SAMPLE_ROWS = 2_048
# Keys of one length are hashed together; longer keys, or few of a length, are quicker one by one.
ROWS_PER_LENGTH_MIN = 256
TOGETHER_BYTES_MAX = {"crc32": 24, "murmur2": 256}
# Columns of this many rows stay in the processor's cache from step to step.
ROWS_AT_ONCE = 16_384
_MULTIPLIER = 0x5BD1E995


def partitions_of(keys: Any, count: int, partitioner: str) -> Any:
    """Return the partition of each key as an int32 array; `keys` is a binary array without nulls."""
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    hashes = _hashes(keys, partitioner)
    if count & (count - 1) == 0:
        return compute.bit_wise_and(hashes, pa.scalar(count - 1, pa.uint32())).cast(pa.int32())
    size = pa.scalar(count, pa.uint32())
    # Arrow has no remainder function.
    whole = compute.multiply(compute.divide(hashes, size), size)
    return compute.subtract(hashes, whole).cast(pa.int32())


def _hashes(keys: Any, partitioner: str) -> Any:
    sample = keys.slice(0, SAMPLE_ROWS)
    if 2 * len(sample.unique()) > len(sample):
        return _hash_each(keys, partitioner)
    encoded = keys.dictionary_encode()
    return _hash_each(encoded.dictionary, partitioner).take(encoded.indices)


def _hash_each(keys: Any, partitioner: str) -> Any:
    """Hash keys that mostly differ."""
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    lengths = compute.binary_length(keys)
    counts = sorted((item["values"].as_py(), item["counts"].as_py()) for item in compute.value_counts(lengths))
    if not counts or counts[-1][0] > TOGETHER_BYTES_MAX[partitioner] or len(counts) * ROWS_PER_LENGTH_MIN > len(keys):
        return _one_by_one(keys, partitioner)
    if len(counts) == 1:
        return _hash_alike(keys, counts[0][0], partitioner)
    order = compute.sort_indices(lengths)
    grouped = keys.take(order)
    made, at = [], 0
    for length, size in counts:
        made.append(_hash_alike(grouped.slice(at, size), length, partitioner))
        at += size
    # The position of each key in the sorted order is where its hash is.
    return pa.concat_arrays(made).take(compute.sort_indices(order))


def _one_by_one(keys: Any, partitioner: str) -> Any:
    pa = pyarrow()
    hashes = array("I", map(key_hash(partitioner), keys.to_pylist()))
    return pa.Array.from_buffers(pa.uint32(), len(hashes), [None, pa.py_buffer(hashes)], null_count=0)


def _hash_alike(keys: Any, length: int, partitioner: str) -> Any:
    """Hash keys of one length, each step for many of them together."""
    pa = pyarrow()
    together = _murmur2 if partitioner == "murmur2" else _crc32
    if not length:
        return pa.repeat(pa.scalar(key_hash(partitioner)(b""), pa.uint32()), len(keys))
    # Few keys do not justify the larger tables.
    pairs = length % 2 == 0 and len(keys) >= ROWS_AT_ONCE
    made = [together(keys.slice(at, ROWS_AT_ONCE), length, pairs) for at in range(0, len(keys), ROWS_AT_ONCE)]
    return made[0] if len(made) == 1 else pa.concat_arrays(made)


def _columns(keys: Any, length: int, kind: Any) -> list[Any]:
    """Return keys of one length as columns of numbers: the first byte (or bytes) of all keys, then the next, etc."""
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    width = kind.bit_width // 8
    _, offsets, data = keys.buffers()
    first = pa.Array.from_buffers(pa.int32(), 1, [None, offsets], null_count=0, offset=keys.offset)[0].as_py()
    data = data.slice(first, len(keys) * length)
    if data.address % width:
        data = pa.py_buffer(data.to_pybytes())
    places = compute.multiply(_numbers().slice(0, len(keys)), pa.scalar(length // width, pa.int32()))
    return [
        compute.take(
            pa.Array.from_buffers(kind, (data.size - at) // width, [None, data.slice(at)], null_count=0),
            places,
            boundscheck=False,
        )
        for at in range(0, length, width)
    ]


@lru_cache(maxsize=1)
def _numbers() -> Any:
    return pyarrow().array(range(ROWS_AT_ONCE), pyarrow().int32())


def _crc32(keys: Any, length: int, pairs: bool) -> Any:
    """Compute zlib.crc32: the XOR of the contributions of each byte, which depend on how many bytes follow it."""
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    table, kind = (_crc32_pair_table, pa.uint16()) if pairs else (_crc32_table, pa.uint8())
    mixed: Any = pa.scalar(crc32(bytes(length)), pa.uint32())
    following = length
    for column in _columns(keys, length, kind):
        following -= 2 if pairs else 1
        mixed = compute.bit_wise_xor(compute.take(table(following), column, boundscheck=False), mixed)
    return mixed


@lru_cache(maxsize=TOGETHER_BYTES_MAX["crc32"] // 2)
def _crc32_pair_table(following: int) -> Any:
    """Return the contribution of each pair of bytes, the first in the lower half, with `following` bytes after it."""
    compute = require("pyarrow.compute", "arrow")
    low, high = _halves()
    return compute.bit_wise_xor(
        compute.take(_crc32_table(following + 1), low), compute.take(_crc32_table(following), high)
    )


@lru_cache(maxsize=1)
def _halves() -> tuple[Any, Any]:
    """Return the lower and the upper byte of every 16-bit number."""
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    numbers = pa.array(range(1 << 16), pa.int32())
    return compute.bit_wise_and(numbers, pa.scalar(255, pa.int32())), compute.shift_right(
        numbers, pa.scalar(8, pa.int32())
    )


@lru_cache(maxsize=TOGETHER_BYTES_MAX["crc32"])
def _crc32_table(following: int) -> Any:
    """Return what each byte value contributes to the CRC of a key of zeros with `following` bytes after it."""
    zeros = bytes(following)
    nothing = crc32(bytes(following + 1))
    return pyarrow().array([crc32(bytes([value]) + zeros) ^ nothing for value in range(256)], pyarrow().uint32())


def _murmur2(keys: Any, length: int, _: bool) -> Any:
    """Compute partitioner.murmur2."""
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    multiplier = pa.scalar(_MULTIPLIER, pa.uint32())

    def scramble(numbers: Any, bits: int) -> Any:
        return compute.bit_wise_xor(numbers, compute.shift_right(numbers, pa.scalar(bits, pa.uint32())))

    words = _words(keys, length)
    mixed: Any = pa.repeat(pa.scalar(0x9747B28C ^ length, pa.uint32()), len(keys))
    for word in words[: length // 4]:
        word = compute.multiply(scramble(compute.multiply(word, multiplier), 24), multiplier)
        mixed = compute.bit_wise_xor(compute.multiply(mixed, multiplier), word)
    if length % 4:
        mixed = compute.multiply(compute.bit_wise_xor(mixed, words[-1]), multiplier)
    mixed = scramble(compute.multiply(scramble(mixed, 13), multiplier), 15)
    return compute.bit_wise_and(mixed, pa.scalar(0x7FFFFFFF, pa.uint32()))


def _words(keys: Any, length: int) -> list[Any]:
    """Return keys of one length as columns of 32-bit words, the first byte lowest; the last may have fewer bytes."""
    pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
    if length % 4 == 0:
        return _columns(keys, length, pa.uint32())
    octets = _columns(keys, length, pa.uint8())
    words = []
    for at in range(0, length, 4):
        word = octets[at].cast(pa.uint32())
        for place, octet in enumerate(octets[at + 1 : at + 4], 1):
            shifted = compute.shift_left(octet.cast(pa.uint32()), pa.scalar(8 * place, pa.uint32()))
            word = compute.bit_wise_or(word, shifted)
        words.append(word)
    return words
