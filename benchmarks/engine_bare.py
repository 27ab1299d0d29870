"""Bare loops: the steps of an append without the append, which show what is left to gain where a goal is far away.

No other process could write or read what they write, and nothing is checked. `zeros_ahead` is the file as the engine
has it, and with some work between two syncs it shows the cost of a pause between disk requests. `gathered` is a group
commit and nothing else. `lean` makes frames and state blocks as the engine does, under a lock, in one function, and
waits for the disk over zeros if it is told to.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.bench.plain import sync_file
from tailrace.bench.workers import worker_threads
from tailrace.disk.files import Files
from tailrace.disk.frame import place_one, prepare_one
from tailrace.disk.tails import BLOCK_BYTES, HAS_SEGMENT, State, pack_block

ZEROS_BYTES = 256 << 10


class _Zeros:
    """A file with zeros ahead of what is written to it."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        self.position = self.zeroed = 0

    def write(self, data: bytes) -> None:
        """Write, and sync what was written."""
        if self.position + len(data) > self.zeroed:
            os.pwrite(self.file, bytes(ZEROS_BYTES), self.zeroed)
            self.zeroed += ZEROS_BYTES
        os.pwrite(self.file, data, self.position)
        sync_file(self.file)
        self.position += len(data)


@contextmanager
def _zeros(path: Path) -> Iterator[_Zeros]:
    made = _Zeros(path)
    try:
        yield made
    finally:
        os.close(made.file)
        path.unlink(missing_ok=True)


@contextmanager
def zeros_ahead(path: Path, data: bytes, work_us: int = 0) -> Iterator[Callable[[int], None]]:
    """Yield a function that writes the same bytes over zeros and syncs them, repeatedly, with work in between."""
    with _zeros(path) as made:

        def write(count: int) -> None:
            for _ in range(count):
                made.write(data)
                until = time.perf_counter_ns() + 1_000 * work_us
                while work_us and time.perf_counter_ns() < until:
                    pass

        yield write


@contextmanager
def gathered(path: Path, data: bytes, threads: int) -> Iterator[Callable[[int], object]]:
    """Yield a function for threads that share syncs: one syncs for all that came during the last sync."""
    with _zeros(path) as made:
        waiting: list[threading.Lock] = []
        mutex = threading.Lock()
        busy = [False]

        def append() -> None:
            gate = threading.Lock()
            gate.acquire()
            with mutex:
                waiting.append(gate)
                lead, busy[0] = not busy[0], True
            if not lead:
                gate.acquire()
                return
            while True:
                with mutex:
                    served = waiting[:]
                    waiting.clear()
                    if not served:
                        busy[0] = False
                        return
                made.write(data * len(served))
                for each in served:
                    each.release()

        def repeat(count: int) -> None:
            for _ in range(count):
                append()

        with worker_threads([repeat] * threads) as run:
            yield run


@contextmanager
def lean(path: Path, value: bytes, zeros_bytes: int = 0) -> Iterator[Callable[[int], None]]:
    """Yield a loop of the minimum of an append: lock, frame, write, state, unlock; over zeros, also a sync."""
    file = zeros_file(path, zeros_bytes)
    lock = os.open(path.parent, os.O_RDONLY)
    shared = memoryview(bytearray(BLOCK_BYTES))
    flock, pwrite, now, start_writing = fcntl.flock, os.pwrite, time.time_ns, Files().start_writing
    held = threading.RLock()
    end = position = chain = 0

    def append(count: int) -> None:
        nonlocal end, position, chain
        for _ in range(count):
            frame = prepare_one(value, None, b"", now() // 1_000)
            held.acquire()
            flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data, chain = place_one(frame, end, chain)
            pwrite(file, data, position)
            if zeros_bytes:
                start_writing(file, position, len(data))
            end += 1
            last, position = position, position + len(data)
            block = pack_block(end, State(end, 0, position, chain, HAS_SEGMENT, 1, 0, 0, last, 0, 0), 1)
            if zeros_bytes:
                sync_file(file)
            shared[:] = block
            flock(lock, fcntl.LOCK_UN)
            held.release()

    try:
        yield append
    finally:
        os.close(lock)
        os.close(file)
        path.unlink(missing_ok=True)


def zeros_file(path: Path, size: int) -> int:
    """Create a file of zeros on disk, and return its descriptor."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    zeros = bytes(1 << 20)
    for start in range(0, size, len(zeros)):
        os.pwrite(file, zeros, start)
    sync_file(file)
    return file
