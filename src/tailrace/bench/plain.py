"""Plain files and memory: the limits of any log, each only moving the same bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FDATASYNC = "write, fdatasync"
PAGE_CACHE = "write"
ON_DISK = "on disk"
SURVIVES_KILL = "page cache: survives kill, not power cut"
MEMORY = "memory: survives nothing"
# Size of the target buffer, so that the copies do not all stay in the processor's cache.
MEMORY_BYTES = 64 << 20


def _syncing() -> Callable[[int], object]:
    """Return the call that brings the bytes of a file to the medium: on macOS neither fsync nor fdatasync does."""
    if sys.platform == "darwin":
        import fcntl

        return lambda file: fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    return os.fdatasync


sync_file = _syncing()


@contextmanager
def appended(path: Path, data: bytes, *, synced: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that appends the same bytes to a file repeatedly; the file is removed afterwards."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o600)

    def write(count: int) -> None:
        for _ in range(count):
            os.write(file, data)

    def write_synced(count: int) -> None:
        for _ in range(count):
            os.write(file, data)
            sync_file(file)

    try:
        yield write_synced if synced else write
    finally:
        os.close(file)
        path.unlink(missing_ok=True)


@contextmanager
def copied(data: bytes, memory_bytes: int = MEMORY_BYTES) -> Iterator[Callable[[int], None]]:
    """Yield a function that copies the same bytes into memory, one copy after the other."""
    size = len(data)
    target = memoryview(bytearray(max(memory_bytes, size)))
    last = len(target) - size

    def copy(count: int) -> None:
        position = 0
        for _ in range(count):
            if position > last:
                position = 0
            target[position : position + size] = data
            position += size

    yield copy


@contextmanager
def file_read(path: Path, chunk_bytes: int) -> Iterator[Callable[[int], int]]:
    """Yield a function that reads a file from its start to its end a given number of times, and ignores the bytes."""
    file = os.open(path, os.O_RDONLY)

    def read(count: int) -> int:
        total = 0
        for _ in range(count):
            position = 0
            while data := os.pread(file, chunk_bytes, position):
                position += len(data)
            total += position
        return total

    try:
        yield read
    finally:
        os.close(file)
