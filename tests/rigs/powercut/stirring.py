"""Stirring: the kernel brings what was written to the disk whenever it likes, and here it likes to do so often.

Left alone, a short run would end before the kernel's own write-back begins, and a power cut would find either what was
synced or nothing. sync_file_range starts the same write-back, of one file, without a flush and without waiting: all of
it may still be lost, any part of it may stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

PAUSE_SECONDS = 0.004
_START_WRITE_BACK = 2

_libc = ctypes.CDLL(None, use_errno=True)


def start_write_back(path: str) -> None:
    """Let the kernel begin to write a file's pages; a file that is gone has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        _libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(_START_WRITE_BACK))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def stirred(directory: Path) -> Iterator[None]:
    """Inside, some of the files below a directory are written back every few milliseconds."""
    over = threading.Event()
    # Which files: not seeded, since what runs beside it is not repeated to the microsecond either.
    draw = random.Random()

    def stir() -> None:
        while not over.wait(PAUSE_SECONDS * draw.random() * 2):
            for place, _, names in os.walk(directory):
                for name in names:
                    if draw.random() < 0.5:
                        start_write_back(os.path.join(place, name))

    thread = threading.Thread(target=stir, name="stirring", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
