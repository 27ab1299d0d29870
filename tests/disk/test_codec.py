"""Compression is undone exactly, or not at all."""

from __future__ import annotations

import builtins
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.disk import codec
from tailrace.errors import MissingExtraError

ALL = (codec.NONE, codec.ZSTD, codec.LZ4)
PACKING = (codec.ZSTD, codec.LZ4)


def test_names_give_the_numbers_on_disk() -> None:
    assert [codec.codec_of(name) for name in ("none", "zstd", "lz4")] == [0, 1, 2]
    with pytest.raises(ValueError, match="gzip"):
        codec.codec_of("gzip")


@pytest.mark.parametrize("number", ALL)
@given(data=st.binary(max_size=2_000))
def test_round_trip(number: int, data: bytes) -> None:
    assert codec.decompress(number, codec.compress(number, data), len(data)) == data
    assert codec.decompress(number, memoryview(codec.compress(number, memoryview(data))), len(data)) == data


@pytest.mark.parametrize("number", ALL)
@pytest.mark.parametrize("wrong", [-1, 1, 1_000])
def test_another_length_than_promised_is_an_error(number: int, wrong: int) -> None:
    data = b"tailrace" * 500
    with pytest.raises(codec.CodecError):
        codec.decompress(number, codec.compress(number, data), len(data) + wrong)


@pytest.mark.parametrize("number", PACKING)
def test_a_bomb_is_not_unpacked(number: int) -> None:
    bomb = codec.compress(number, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(codec.CodecError):
            codec.decompress(number, bomb, 1_000)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", PACKING)
def test_trailing_bytes_are_an_error(number: int) -> None:
    packed = codec.compress(number, b"tailrace" * 100)
    with pytest.raises(codec.CodecError):
        codec.decompress(number, packed + b"x", 800)
    with pytest.raises(codec.CodecError):
        codec.decompress(number, packed + packed, 800)


@pytest.mark.parametrize("number", PACKING)
@given(data=st.data())
def test_damage_is_an_error_or_harmless(number: int, data: st.DataObject) -> None:
    raw = b"a durable log in a directory, " * 40
    packed = bytearray(codec.compress(number, raw))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        # The frame's CRC finds every such damage; here nothing but CodecError may come out of it.
        assert len(codec.decompress(number, bytes(packed), len(raw))) == len(raw)
    except codec.CodecError:
        pass


@pytest.mark.parametrize("number", PACKING)
def test_a_cut_body_is_an_error(number: int) -> None:
    raw = b"a durable log in a directory, " * 40
    packed = codec.compress(number, raw)
    for length in range(len(packed)):
        with pytest.raises(codec.CodecError):
            codec.decompress(number, packed[:length], len(raw))


def test_an_unknown_codec_is_an_error() -> None:
    with pytest.raises(codec.CodecError):
        codec.compress(3, b"x")
    with pytest.raises(codec.CodecError):
        codec.decompress(3, b"x", 1)


def test_without_lz4_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith("lz4"):
            raise ImportError(name)
        return real(name, *rest)

    codec._lz4.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r'pip install "tailrace\[lz4\]"'):
        codec.compress(codec.LZ4, b"x")
