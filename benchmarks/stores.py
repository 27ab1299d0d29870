"""Stores: embedded databases and queues that can keep records in the order of their appends, behind the same calls.

What each does with the disk, by its documentation, its source and for those on SQLite by the connection itself:

- SQLite: journal_mode=WAL; FULL syncs the log at every commit, NORMAL only at checkpoints.
- LMDB: a commit is one fdatasync of the pages and one synchronous write of the page that names them; metasync=False
  leaves out the second, so that a power cut may undo the last commit; sync=False leaves out both.
- rocksdict (RocksDB): every write is a record in its write-ahead log; sync=True syncs that. One process at a time.
- persist-queue, litequeue and diskcache as in `benchmarks.peers`. The first two have no commit of several values.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import peers
from tailrace.bench.sqlite import SqliteLog

ON_DISK = "on disk"
NOT_ON_DISK = "survives kill, not power cut"
LMDB_MAP_BYTES = 64 << 30
MODULES = {
    "lmdb": "lmdb",
    "rocksdict": "rocksdict",
    "persist-queue": "persistqueue",
    "litequeue": "litequeue",
    "diskcache": "diskcache",
}


class Store:
    """Records in the order in which they were appended."""

    def append(self, value: bytes) -> None:
        """Append one record in one commit."""
        raise NotImplementedError

    def extend(self, values: Sequence[bytes], keys: Sequence[bytes] | None = None) -> None:
        """Append many records in one commit."""
        raise NotImplementedError

    def scan(self) -> int:
        """Read every record, and return their number."""
        raise NotImplementedError

    def another(self) -> Store:
        """Return the store that one of several threads uses."""
        return self

    def level(self) -> str:
        raise NotImplementedError

    def settle(self) -> None:
        """Bring what was written into its final form."""

    def close(self) -> None:
        raise NotImplementedError


class Sqlite(Store):
    """The SQLite of the standard library."""

    def __init__(self, directory: Path, synchronous: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = SqliteLog(directory / "log.db", synchronous)
        self.append = self.log.append  # type: ignore[method-assign]  # nothing in between
        self.lock = threading.Lock()

    def extend(self, values: Sequence[bytes], keys: Sequence[bytes] | None = None) -> None:
        self.log.extend(values, keys)

    def scan(self) -> int:
        return self.log.scan()

    def another(self) -> Store:
        return SqliteThread(self)

    def level(self) -> str:
        return self.log.level()

    def settle(self) -> None:
        self.log.checkpoint()

    def close(self) -> None:
        self.log.close()


class SqliteThread(Store):
    """The store of one of several threads: one shared connection, since separate connections wait by polling."""

    def __init__(self, store: Sqlite) -> None:
        self.log = store.log
        self.lock = store.lock

    def append(self, value: bytes) -> None:
        with self.lock:
            self.log.append(value)

    def close(self) -> None:
        """Do nothing: the store closes the connection."""


class Lmdb(Store):
    """LMDB with offsets as keys, appended in order."""

    def __init__(self, directory: Path, **settings: bool) -> None:
        lmdb = importlib.import_module("lmdb")
        self.settings = settings
        directory.mkdir(parents=True, exist_ok=True)
        self.environment = lmdb.open(str(directory), map_size=LMDB_MAP_BYTES, **settings)
        with self.environment.begin() as transaction:
            cursor = transaction.cursor()
            self.offset = int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 0

    def append(self, value: bytes) -> None:
        # begin() admits one writer at a time, so the offsets of threads are in order.
        with self.environment.begin(write=True) as transaction:
            transaction.put(self.offset.to_bytes(8, "big"), value, append=True)
            self.offset += 1

    def extend(self, values: Sequence[bytes], keys: Sequence[bytes] | None = None) -> None:
        with self.environment.begin(write=True) as transaction:
            first = self.offset
            items = [
                ((first + index).to_bytes(8, "big"), keys[index] + value if keys else value)
                for index, value in enumerate(values)
            ]
            transaction.cursor().putmulti(items, append=True)
            self.offset += len(values)

    def scan(self) -> int:
        with self.environment.begin() as transaction:
            return sum(1 for _ in transaction.cursor())

    def level(self) -> str:
        if not self.settings.get("sync", True):
            return f"sync=False: {NOT_ON_DISK}"
        if not self.settings.get("metasync", True):
            return "metasync=False: a power cut may undo the last commit"
        return f"sync=True: {ON_DISK}"

    def close(self) -> None:
        self.environment.close()


class Rocks(Store):
    """RocksDB by rocksdict, with offsets as keys."""

    def __init__(self, directory: Path, *, sync: bool) -> None:
        self.rocks = importlib.import_module("rocksdict")
        options = self.rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        # Like Tailrace, which compresses nothing unless told to.
        options.set_compression_type(self.rocks.DBCompressionType.none())
        self.database = self.rocks.Rdict(str(directory), options)
        self.sync = sync
        self.write_options = self.rocks.WriteOptions()
        self.write_options.sync = sync
        self.database.set_write_options(self.write_options)
        self.offset = self.database.latest_sequence_number()

    def append(self, value: bytes) -> None:
        self.offset += 1
        self.database[self.offset.to_bytes(8, "big")] = value

    def extend(self, values: Sequence[bytes], keys: Sequence[bytes] | None = None) -> None:
        batch = self.rocks.WriteBatch(raw_mode=True)
        first = self.offset + 1
        for index, value in enumerate(values):
            batch.put((first + index).to_bytes(8, "big"), keys[index] + value if keys else value)
        self.offset += len(values)
        self.database.write(batch, self.write_options)

    def scan(self) -> int:
        return sum(1 for _ in self.database.items())

    def another(self) -> Store:
        return RocksThread(self)

    def level(self) -> str:
        return f"sync=True: {ON_DISK}" if self.sync else f"sync=False: {NOT_ON_DISK}"

    def settle(self) -> None:
        self.database.flush()

    def close(self) -> None:
        self.database.close()


class RocksThread(Store):
    """The store of one of several threads: keys of its own range, because nothing orders their offsets."""

    threads = 0

    def __init__(self, store: Rocks) -> None:
        RocksThread.threads += 1
        self.database = store.database
        self.offset = RocksThread.threads << 40

    def append(self, value: bytes) -> None:
        self.offset += 1
        self.database[self.offset.to_bytes(8, "big")] = value

    def close(self) -> None:
        """Do nothing: the store closes the database."""


class Queue(Store):
    """One of the queues of `benchmarks.peers`; `many` puts several values in one commit."""

    def __init__(self, queue: peers.Peer, many: Callable[[Any, Sequence[bytes]], None] | None = None) -> None:
        self.queue = queue
        self.many = many
        self.append = queue.put  # type: ignore[method-assign]  # nothing in between

    def extend(self, values: Sequence[bytes], keys: Sequence[bytes] | None = None) -> None:
        assert self.many is not None
        self.many(self.queue, values)

    def level(self) -> str:
        return self.queue.level()

    def close(self) -> None:
        self.queue.close()


def _put_in_transaction(queue: peers.DiskcacheDeque, values: Sequence[bytes]) -> None:
    with queue.deque.transact():
        queue.deque.extend(values)


class StoreKind(NamedTuple):
    """A store that can be opened, and what it can do."""

    key: str
    package: str
    system: str
    one: str
    many: str
    open: Callable[[Path], Store]
    # Whether a commit is on disk; only stores of the same level are compared.
    durable: bool
    # Whether all records can be read without removing them.
    scans: bool = True
    # Whether several threads may append at once.
    threads: bool = False

    @property
    def label(self) -> str:
        return f"{self.system} {version(self.package)}"


def version(package: str) -> str:
    return sqlite3.sqlite_version if package == "sqlite3" else importlib.metadata.version(package)


KINDS = (
    StoreKind(
        "sqlite-full", "sqlite3", "SQLite", "INSERT, FULL", "executemany, FULL",
        lambda path: Sqlite(path, "FULL"), durable=True, threads=True,
    ),
    StoreKind(
        "sqlite-normal", "sqlite3", "SQLite", "INSERT, NORMAL", "executemany, NORMAL",
        lambda path: Sqlite(path, "NORMAL"), durable=False,
    ),
    StoreKind("lmdb", "lmdb", "LMDB", "put", "putmulti", Lmdb, durable=True, threads=True),
    StoreKind(
        "lmdb-metasync", "lmdb", "LMDB", "put, metasync=False", "putmulti, metasync=False",
        lambda path: Lmdb(path, metasync=False), durable=False, scans=False,
    ),
    StoreKind(
        "lmdb-nosync", "lmdb", "LMDB", "put, sync=False", "putmulti, sync=False",
        lambda path: Lmdb(path, sync=False), durable=False, scans=False,
    ),
    StoreKind(
        "rocksdict", "rocksdict", "rocksdict", "put, sync=True", "WriteBatch, sync=True",
        lambda path: Rocks(path, sync=True), durable=True, threads=True,
    ),
    StoreKind(
        "rocksdict-nosync", "rocksdict", "rocksdict", "put, sync=False", "WriteBatch, sync=False",
        lambda path: Rocks(path, sync=False), durable=False, scans=False,
    ),
    StoreKind(
        "persist-sqlite", "persist-queue", "persist-queue SQLiteQueue", "put", "",
        lambda path: Queue(peers.PersistSqlite(path)), durable=True, scans=False,
    ),
    StoreKind(
        "persist-file", "persist-queue", "persist-queue Queue", "put", "",
        lambda path: Queue(peers.PersistFile(path)), durable=False, scans=False,
    ),
    StoreKind(
        "litequeue-full", "litequeue", "litequeue", "put; told FULL", "",
        lambda path: Queue(peers.Lite(path, full=True)), durable=True, scans=False,
    ),
    StoreKind(
        "litequeue", "litequeue", "litequeue", "put", "",
        lambda path: Queue(peers.Lite(path)), durable=False, scans=False,
    ),
    StoreKind(
        "diskcache-full", "diskcache", "diskcache Deque", "append; told FULL", "extend in transact(); told FULL",
        lambda path: Queue(peers.DiskcacheDeque(path, full=True), _put_in_transaction), durable=True, scans=False,
    ),
    StoreKind(
        "diskcache", "diskcache", "diskcache Deque", "append", "extend in transact()",
        lambda path: Queue(peers.DiskcacheDeque(path), _put_in_transaction), durable=False, scans=False,
    ),
)  # fmt: skip
# The databases, measured at every size of a value.
DATABASES = ("sqlite3", "lmdb", "rocksdict")


def kind_named(key: str) -> StoreKind:
    return next(kind for kind in KINDS if kind.key == key)


def installed() -> list[StoreKind]:
    """Return the stores whose packages are installed."""
    absent = missing()
    return [kind for kind in KINDS if kind.package not in absent]


def missing() -> list[str]:
    """Return the packages that are not installed."""
    return [package for package, module in MODULES.items() if importlib.util.find_spec(module) is None]


def files_of(directory: Path) -> Iterator[Path]:
    """Yield every file below a directory."""
    return (path for path in directory.rglob("*") if path.is_file())
