"""The directory of a measurement: a temporary one on the disk in question, removed at the end."""

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
    """Return the log that a directory is, or is inside of; None if it is neither."""
    whole = path.resolve()
    return next((each for each in (whole, *whole.parents) if (each / IDENTITY_NAME).is_file()), None)


@contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """Create a directory in `parent` for the block; it is removed with its contents however the block ends."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        yield directory
    finally:
        with _ignoring(signal.SIGINT), _ignoring(signal.SIGTERM), _ignoring(signal.SIGHUP):
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _ignoring(number: signal.Signals) -> Iterator[None]:
    """Ignore a signal in the block: a second Ctrl-C must not interrupt the removal that the first one started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)
