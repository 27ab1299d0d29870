"""The partitioner: chooses the partition of a record."""

from __future__ import annotations

from collections.abc import Callable
from os import getpid
from struct import unpack_from
from typing import TYPE_CHECKING
from zlib import crc32

from tailrace.limits import STICKY_BYTES_MAX, STICKY_US_MAX

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the hash of Kafka's Java client, with the sign bit cleared as that client does."""
    length = len(key)
    mixed = 0x9747B28C ^ length
    for word in unpack_from(f"<{length // 4}I", key):
        word = word * _MULTIPLIER & _WORD
        word = (word ^ word >> 24) * _MULTIPLIER & _WORD
        mixed = mixed * _MULTIPLIER & _WORD ^ word
    rest = key[length & ~3 :]
    if rest:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _WORD
    mixed = (mixed ^ mixed >> 13) * _MULTIPLIER & _WORD
    return (mixed ^ mixed >> 15) & 0x7FFFFFFF


def _murmur2_any(key: ReadableBuffer) -> int:
    return murmur2(bytes(memoryview(key)))


HASHES: dict[str, Callable[[ReadableBuffer], int]] = {"crc32": crc32, "murmur2": _murmur2_any}


class Sticky:
    """The partition of keyless records: the same for a while, so that they share frames and syncs, then the next.

    Threads may share it without a lock: a race only moves to the next partition too early or too late.
    """

    __slots__ = ("index", "room", "since")

    def __init__(self) -> None:
        # Processes that start together start with different partitions.
        self.index = getpid()
        self.room = 0
        self.since = 0

    def one(self, count: int, size: int, now_us: int) -> int:
        """Return the partition of a single record of `size` bytes."""
        if self.room <= 0 or not 0 <= now_us - self.since < STICKY_US_MAX:
            self.index += 1
            self.room = STICKY_BYTES_MAX
            self.since = now_us
        self.room -= size
        return self.index % count

    def next(self, count: int) -> int:
        """Return the partition of a whole batch, and move to the next one."""
        self.index += 1
        return self.index % count
