"""SQLite as a log: one table, one row per record, in WAL mode at a given level of `synchronous`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

LEVELS = {
    "FULL": "WAL, synchronous=FULL: on disk",
    "NORMAL": "WAL, synchronous=NORMAL: survives kill, not power cut",
}
# How long a writer waits for the lock of another; SQLite has no queue.
BUSY_SECONDS = 60.0
_INSERT = "INSERT INTO log (value) VALUES (?)"
_INSERT_KEYED = "INSERT INTO log (key, value) VALUES (?, ?)"

_AFTER = "SELECT offset, value FROM log WHERE offset > ? ORDER BY offset"


class SqliteLog:
    """One connection, for the thread that uses it; every append is a transaction."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self.path = path
        self.synchronous = synchronous
        self.connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute(f"PRAGMA synchronous={synchronous}")
        # Without it a sync on macOS does not reach the medium; elsewhere it has no effect.
        self.connection.execute("PRAGMA fullfsync=1")
        self.connection.execute("CREATE TABLE IF NOT EXISTS log (offset INTEGER PRIMARY KEY, key BLOB, value BLOB)")

    def level(self) -> str:
        """Return what survives a power cut, from the setting of the connection itself."""
        names = {1: "NORMAL", 2: "FULL"}
        return LEVELS[names[self.connection.execute("PRAGMA synchronous").fetchone()[0]]]

    def append(self, value: bytes) -> None:
        self.connection.execute(_INSERT, (value,))

    def extend(self, values: Sequence[bytes], keys: Sequence[bytes] | None = None) -> None:
        """Insert all values in one transaction."""
        self.connection.execute("BEGIN IMMEDIATE")
        if keys is None:
            self.connection.executemany(_INSERT, [(value,) for value in values])
        else:
            self.connection.executemany(_INSERT_KEYED, list(zip(keys, values, strict=True)))
        self.connection.execute("COMMIT")

    def scan(self) -> int:
        """Read every record, and return their number."""
        return sum(1 for _ in self.connection.execute("SELECT offset, value FROM log ORDER BY offset"))

    def last(self) -> int:
        """Return the offset of the newest record, 0 if there is none."""
        found: int = self.connection.execute("SELECT coalesce(max(offset), 0) FROM log").fetchone()[0]
        return found

    def after(self, offset: int) -> list[tuple[int, bytes]]:
        """Return offsets and values after an offset."""
        return self.connection.execute(_AFTER, (offset,)).fetchall()

    def checkpoint(self) -> None:
        """Move the write-ahead log of SQLite into its database."""
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self.connection.close()
