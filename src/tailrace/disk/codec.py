"""Compression of frame bodies, with bounded decompression."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from tailrace.errors import MissingExtraError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NONE, ZSTD, LZ4 = 0, 1, 2
NAMES = ("none", "zstd", "lz4")
KNOWN = frozenset((NONE, ZSTD, LZ4))


class CodecError(ValueError):
    """Bytes that are not what a frame's header says they are."""


def codec_of(name: str) -> int:
    """Return the number of a codec on disk."""
    try:
        return NAMES.index(name)
    except ValueError:
        raise ValueError(f"compress must be one of {', '.join(NAMES)}, not {name!r}.") from None


def compress(codec: int, data: ReadableBuffer) -> bytes:
    """Compress a body; NONE returns the same bytes."""
    if codec == NONE:
        return bytes(data)
    if codec == ZSTD:
        return bytes(_zstd().compress(data))
    if codec == LZ4:
        return bytes(_lz4().compress(data, store_size=False))
    raise CodecError(f"The codec {codec} is unknown.")


def decompress(codec: int, data: ReadableBuffer, raw_length: int) -> bytes:
    """Undo compress(); raise CodecError unless exactly raw_length bytes come out, and never produce more."""
    if codec == NONE:
        raw, whole = bytes(data), True
    elif codec == ZSTD:
        raw, whole = _decompress_zstd(data, raw_length)
    elif codec == LZ4:
        raw, whole = _decompress_lz4(data, raw_length)
    else:
        raise CodecError(f"The codec {codec} is unknown.")
    if not whole or len(raw) != raw_length:
        raise CodecError(f"A {NAMES[codec]} body does not unpack to the {raw_length} bytes its header promises.")
    return raw


def _decompress_zstd(data: ReadableBuffer, raw_length: int) -> tuple[bytes, bool]:
    zstd = _zstd()
    unpacker = zstd.ZstdDecompressor()
    try:
        # One byte more than promised is requested, so that the end of a frame of exactly this size is detected.
        raw = unpacker.decompress(data, raw_length + 1)
    except zstd.ZstdError as error:
        raise CodecError(f"A zstd body is damaged: {error}.") from None
    return raw, unpacker.eof and not unpacker.unused_data


def _decompress_lz4(data: ReadableBuffer, raw_length: int) -> tuple[bytes, bool]:
    unpacker = _lz4().LZ4FrameDecompressor()
    try:
        raw = unpacker.decompress(bytes(data), max_length=raw_length + 1)
    except (RuntimeError, EOFError) as error:
        raise CodecError(f"An lz4 body is damaged: {error}.") from None
    return raw, unpacker.eof and not unpacker.unused_data


@cache
def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


@cache
def _lz4() -> Any:
    try:
        import lz4.frame
    except ImportError:
        raise MissingExtraError('The lz4 codec needs lz4: pip install "tailrace[lz4]"', extra="lz4") from None
    return lz4.frame
