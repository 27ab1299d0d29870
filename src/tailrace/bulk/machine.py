"""The machine of an engine: its clock, and the files in which an engine keeps its own progress."""

from __future__ import annotations

from tailrace.engine import engine as engines


def now_us() -> int:
    """Return the time in microseconds since 1970, by the clock that gives records their timestamps."""
    return engines.FILES.now_us()


def read_durable(path: str) -> bytes:
    """Return the content of a file that another program wrote, once the file and its name are on disk."""
    files = engines.FILES
    descriptor = files.open(path)
    try:
        content = files.read(descriptor, files.stat_open(descriptor).size, 0)
        files.sync_data(descriptor)
    finally:
        files.close(descriptor)
    sync_directory(path.rpartition("/")[0] or ("/" if path.startswith("/") else "."))
    return content


def sync_directory(path: str) -> None:
    """Put the names in a directory on disk."""
    engines.FILES.sync_directory(path)
