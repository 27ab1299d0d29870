"""The peers: other queues that are stored in files, each behind the same few calls.

What each of them does with the disk is read from its source, and for those on SQLite from the very connection that is
measured, because the default of `synchronous` depends on the installed SQLite:

- persist-queue, SQLiteQueue and SQLiteAckQueue: journal_mode=WAL, and synchronous is left as SQLite has it (FULL).
- persist-queue, Queue: put() flushes to the page cache and syncs only where a file of 100 items ends; the file with
  the read position is replaced without a sync.
- litequeue: journal_mode=WAL, synchronous=NORMAL; it has no setting, but its connection can be set to FULL.
- huey, SqliteStorage: journal_mode=WAL; fsync=None leaves synchronous as SQLite has it (FULL), fsync=True sets FULL.
- diskcache, Deque: journal_mode=WAL, synchronous=NORMAL; the setting sqlite_synchronous changes that.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

LEVELS = {
    0: "synchronous=OFF: survives kill, not power cut",
    1: "synchronous=NORMAL: survives kill, not power cut",
    2: "synchronous=FULL: on disk",
    3: "synchronous=EXTRA: on disk",
}
PAGE_CACHE = "page cache: survives kill, not power cut"
INSTALL = 'pip install -e ".[bench]"'


class Peer:
    """One queue: `put` a value, `take` the oldest, `ack` what was taken last."""

    # Whether taking and acknowledging are two steps; without, a value is gone when it is taken.
    acknowledges = False

    def put(self, value: bytes) -> None:
        raise NotImplementedError

    def take(self) -> bytes | None:
        """Return the oldest value, or None."""
        raise NotImplementedError

    def ack(self) -> None:
        """Acknowledge what was taken."""

    def take_many(self, count: int) -> int:
        """Take and acknowledge values in one step, if the library has one; return how many there were."""
        raise NotImplementedError

    def level(self) -> str:
        """Return what survives a kill and a power cut once a call has returned."""
        raise NotImplementedError

    def fill(self, values: list[bytes]) -> None:
        """Put values without waiting for the disk, and sync at the end; this is never measured."""
        for value in values:
            self.put(value)

    def tidy(self) -> None:
        """Remove what the library keeps of acknowledged values."""

    def close(self) -> None:
        raise NotImplementedError


class SqlitePeer(Peer):
    """A queue on SQLite, whose level of syncing can be set."""

    def pragma(self, text: str) -> Any:
        raise NotImplementedError

    def level(self) -> str:
        journal, synchronous = self.pragma("journal_mode"), int(self.pragma("synchronous"))
        return f"{str(journal).upper()}, {LEVELS[synchronous]}"

    def fill(self, values: list[bytes]) -> None:
        synchronous = int(self.pragma("synchronous"))
        self.pragma("synchronous=0")
        super().fill(values)
        self.pragma(f"synchronous={synchronous}")
        # Otherwise the first measured commit would write all of them to the disk.
        self.pragma("wal_checkpoint(TRUNCATE)")


class PersistSqlite(SqlitePeer):
    """persist-queue's SQLiteQueue: get() deletes."""

    def __init__(self, directory: Path, *, each: bool = True) -> None:
        queues = importlib.import_module("persistqueue")
        self.queue = queues.SQLiteQueue(str(directory), auto_commit=each)
        self.empty = queues.Empty

    def pragma(self, text: str) -> Any:
        return _pragma(self.queue._putter, text)

    def put(self, value: bytes) -> None:
        self.queue.put(value)

    def take(self) -> bytes | None:
        try:
            return self.queue.get_nowait()  # type: ignore[no-any-return]  # what was put
        except self.empty:
            return None

    def take_many(self, count: int) -> int:
        taken = sum(self.take() is not None for _ in range(count))
        self.queue.task_done()
        return taken

    def fill(self, values: list[bytes]) -> None:
        super().fill(values)
        self.queue.task_done()

    def close(self) -> None:
        self.queue.close()


class PersistAck(PersistSqlite):
    """persist-queue's SQLiteAckQueue: get() marks, ack() marks again."""

    acknowledges = True

    def __init__(self, directory: Path) -> None:
        queues = importlib.import_module("persistqueue")
        self.queue = queues.SQLiteAckQueue(str(directory))
        self.empty = queues.Empty

    def take(self) -> bytes | None:
        self.taken = super().take()
        return self.taken

    def ack(self) -> None:
        self.queue.ack(self.taken)

    def tidy(self) -> None:
        self.queue.clear_acked_data(max_delete=1_000_000, keep_latest=0)


class PersistFile(Peer):
    """persist-queue's Queue over files: task_done() stores the read position."""

    acknowledges = True

    def __init__(self, directory: Path) -> None:
        queues = importlib.import_module("persistqueue")
        # Its temporary files have to be on the same file system as its queue.
        directory.mkdir(parents=True, exist_ok=True)
        self.queue = queues.Queue(str(directory), tempdir=str(directory))
        self.empty = queues.Empty

    def put(self, value: bytes) -> None:
        self.queue.put(value)

    def take(self) -> bytes | None:
        try:
            return self.queue.get_nowait()  # type: ignore[no-any-return]  # what was put
        except self.empty:
            return None

    def ack(self) -> None:
        self.queue.task_done()

    def level(self) -> str:
        return PAGE_CACHE

    def close(self) -> None:
        self.queue.headf.close()
        self.queue.tailf.close()


class Lite(SqlitePeer):
    """litequeue: pop() marks, done() marks again."""

    acknowledges = True

    def __init__(self, directory: Path, *, full: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.queue = importlib.import_module("litequeue").LiteQueue(directory / "queue.db")
        if full:
            self.pragma("synchronous=FULL")

    def pragma(self, text: str) -> Any:
        return _pragma(self.queue.conn, text)

    def put(self, value: bytes) -> None:
        self.queue.put(value.decode())

    def take(self) -> bytes | None:
        self.message = self.queue.pop()
        return None if self.message is None else self.message.data.encode()

    def ack(self) -> None:
        self.queue.done(self.message.message_id)

    def tidy(self) -> None:
        self.queue.prune()

    def close(self) -> None:
        self.queue.close()


class Huey(SqlitePeer):
    """huey's SqliteStorage: dequeue() deletes."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        storage = importlib.import_module("huey.storage")
        self.storage = storage.SqliteStorage("bench", filename=str(directory / "huey.db"))

    def pragma(self, text: str) -> Any:
        return _pragma(self.storage.conn, text)

    def put(self, value: bytes) -> None:
        self.storage.enqueue(value)

    def take(self) -> bytes | None:
        return self.storage.dequeue()  # type: ignore[no-any-return]  # what was put

    def close(self) -> None:
        self.storage.close()


class DiskcacheDeque(SqlitePeer):
    """diskcache's Deque: popleft() deletes."""

    def __init__(self, directory: Path, *, full: bool = False) -> None:
        diskcache = importlib.import_module("diskcache")
        settings = {"sqlite_synchronous": 2} if full else {}
        self.cache = diskcache.Cache(str(directory), eviction_policy="none", **settings)
        self.deque = diskcache.Deque.fromcache(self.cache)

    def pragma(self, text: str) -> Any:
        return _pragma(self.cache._con, text)

    def put(self, value: bytes) -> None:
        self.deque.append(value)

    def take(self) -> bytes | None:
        try:
            return self.deque.popleft()  # type: ignore[no-any-return]  # what was put
        except IndexError:
            return None

    def take_many(self, count: int) -> int:
        with self.deque.transact():
            return sum(self.take() is not None for _ in range(count))

    def close(self) -> None:
        self.cache.close()


def _pragma(connection: sqlite3.Connection, text: str) -> Any:
    row = connection.execute(f"PRAGMA {text}").fetchone()
    return None if row is None else row[0]


class PeerKind(NamedTuple):
    """A peer that can be opened."""

    key: str
    package: str
    system: str
    how: str
    open: Callable[[Path], Peer]
    # Whether another process sees what is put; one that keeps its state in memory cannot be shared.
    shared: bool = True
    # Whether it takes many in one step, and then only that is measured.
    batches: bool = False

    @property
    def label(self) -> str:
        return f"{self.system} {importlib.metadata.version(self.package)}"


KINDS = (
    PeerKind("persist-sqlite", "persist-queue", "persist-queue SQLiteQueue", "get", PersistSqlite),
    PeerKind("persist-ack", "persist-queue", "persist-queue SQLiteAckQueue", "get, ack", PersistAck),
    PeerKind("persist-file", "persist-queue", "persist-queue Queue", "get, task_done", PersistFile, shared=False),
    PeerKind("litequeue", "litequeue", "litequeue", "pop, done", Lite),
    PeerKind("litequeue-full", "litequeue", "litequeue", "pop, done; told FULL", lambda path: Lite(path, full=True)),
    PeerKind("huey", "huey", "huey SqliteStorage", "dequeue", Huey),
    PeerKind("diskcache", "diskcache", "diskcache Deque", "popleft", DiskcacheDeque),
    PeerKind(
        "diskcache-full", "diskcache", "diskcache Deque", "popleft; told FULL",
        lambda path: DiskcacheDeque(path, full=True),
    ),
    PeerKind(
        "persist-batch", "persist-queue", "persist-queue SQLiteQueue", "get x {count}, task_done",
        lambda path: PersistSqlite(path, each=False), batches=True,
    ),
    PeerKind(
        "diskcache-batch", "diskcache", "diskcache Deque", "popleft x {count} in transact(); told FULL",
        lambda path: DiskcacheDeque(path, full=True), batches=True,
    ),
)  # fmt: skip
MODULES = {"persist-queue": "persistqueue", "litequeue": "litequeue", "huey": "huey", "diskcache": "diskcache"}


def kind_named(key: str) -> PeerKind:
    return next(kind for kind in KINDS if kind.key == key)


def installed() -> list[PeerKind]:
    """Return the peers whose packages are installed."""
    return [kind for kind in KINDS if kind.package not in missing()]


def missing() -> list[str]:
    """Return the packages that are not installed."""
    return [package for package, module in MODULES.items() if importlib.util.find_spec(module) is None]
