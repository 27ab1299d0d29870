"""What a decoder under the fuzzers is: its seeds, what it may raise, how much it may take."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tailrace.disk.files import Files
from tailrace.disk.journal import journal_name
from tailrace.limits import MIB
from tests.rigs.fuzz.mutating import Stretches

# A decoder may take so much, and so many times the bytes it was given: Python's objects are larger than what they say.
# What a compressed body unpacks to is bounded by its header, and that by FRAME_BODY_BYTES_MAX.
TAKEN_BYTES_MAX = MIB
TAKEN_TIMES_MAX = 100

NOW = 1_700_000_000_000_000
LOG_ID = bytes(range(16))


class Target(NamedTuple):
    """One decoder."""

    name: str
    decode: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    fix: Callable[[bytes], bytes] = bytes
    # What it may raise; anything else is a bug.
    raises: tuple[type[BaseException], ...] = ()
    # Bytes that it may take besides, by what the input claims.
    claim: Callable[[bytes], int] = lambda data: 0
    # Where most edits fall, and whether the seeds are JSON.
    focus: Callable[[bytes], Stretches] = lambda data: ()
    json: bool = False


class Broken(AssertionError):  # noqa: N818  # the word says it
    """A decoded value that is not what the decoder promises."""


def hold(promise: bool, what: str) -> None:
    if not promise:
        raise Broken(what)


FILES = Files()
_scratch: list[tuple[int, int, str]] = []


def scratch(data: bytes) -> tuple[int, str]:
    """A file in memory with these bytes, the same one for every call of a process."""
    if not _scratch or _scratch[0][0] != os.getpid():
        _scratch.clear()
        folder = tempfile.mkdtemp(prefix="tailrace-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        path = f"{folder}/{journal_name(1)}"
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _scratch.append((os.getpid(), os.open(path, os.O_RDWR | os.O_CREAT), path))
    _, descriptor, path = _scratch[0]
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
    return descriptor, path
