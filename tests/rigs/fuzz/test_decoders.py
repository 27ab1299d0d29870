"""Every decoder under mutated bytes whose checksums are right: a part of `python -m tests.rigs.fuzz`."""

from __future__ import annotations

import pytest

from tailrace.disk import codec, frame
from tailrace.disk.codec import CodecError
from tailrace.disk.columns import columns
from tests.meaning import record_meaning
from tests.rigs.fuzz.running import Fuzzed, decode, fuzz
from tests.rigs.fuzz.target import NOW, Target
from tests.rigs.fuzz.targets import TARGETS

EXAMPLES = 120
TURNS_MAX = 5


def is_decoded(target: Target, data: bytes) -> bool:
    try:
        return target.decode(data) is not None
    except target.raises:
        return False


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_decoder_keeps_its_promises(target, seed):
    fuzzed = Fuzzed()
    # Something beside the valid inputs must get past the checksum, or nothing was tested: of some decoders few changed
    # inputs do, and by chance none of a hundred.
    valid = sum(is_decoded(target, each) for each in target.seeds())
    for turn in range(1, TURNS_MAX + 1):
        fuzz(target, EXAMPLES, fuzzed, seed + turn)
        if fuzzed.decoded[target.name] > turn * valid:
            break
    assert fuzzed.examples[target.name] >= EXAMPLES
    assert fuzzed.decoded[target.name] > turn * valid
    record_meaning(decoder_inputs=fuzzed.examples.total())


def test_a_fuzzer_that_meets_a_bug_says_so(seed):
    def clumsy(data: bytes) -> object:
        if data[:1] == b"\xff":
            raise KeyError(data)
        return data

    with pytest.raises(KeyError):
        fuzz(Target("clumsy", clumsy, lambda: [b"abc"]), 2_000, Fuzzed(), seed)
    with pytest.raises(AssertionError, match="bytes were taken"):
        decode(Target("greedy", lambda data: bytes(50 << 20), list), b"abc", Fuzzed())


def bomb(number: int, raw: bytes, claimed: int) -> tuple[frame.Header, bytes]:
    """A frame whose body unpacks to far more than its header says."""
    body = codec.compress(number, raw)
    made = frame.Prepared(number, 0, 1, body, max(claimed, len(body)), frame.crc32c(body), 1, NOW, NOW)
    header = frame.read_header(frame.place_one(made, 0, 0)[0])
    assert header is not None
    return header, body


@pytest.mark.parametrize("number", [codec.ZSTD, codec.LZ4])
def test_a_bomb_takes_no_more_than_its_header_promises(number):
    header, body = bomb(number, bytes(300 << 20), 2 << 20)
    target = Target("bomb", lambda data: columns(header, data, 0), list, raises=(CodecError,))
    # What is unpacked is put together of pieces, so for a moment it is there twice.
    target = target._replace(claim=lambda data: 2 * header.raw_length)
    fuzzed = Fuzzed()
    decode(target, body, fuzzed)
    assert fuzzed.refused["bomb"] == 1
    assert fuzzed.most_bytes < 8 << 20
