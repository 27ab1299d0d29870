"""The place of a measurement: a directory of its own on the disk in question, gone when it is over."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.names import IDENTITY_NAME

PREFIX = "tailrace-bench-"


def log_around(path: Path) -> Path | None:
    """The log that a directory is, or lies in; None when it is neither."""
    whole = path.resolve()
    return next((each for each in (whole, *whole.parents) if (each / IDENTITY_NAME).is_file()), None)


@contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """A new directory in another one; it and everything in it is removed, however the block ends."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        yield directory
    finally:
        with _unheard(signal.SIGINT), _unheard(signal.SIGTERM), _unheard(signal.SIGHUP):
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _unheard(number: signal.Signals) -> Iterator[None]:
    """Inside, a signal does nothing: a second Ctrl-C must not leave behind what the first one has removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)
