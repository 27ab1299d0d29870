"""The peers: other queues that live in a file, with their default and with the strongest setting each of them has.

An item is acknowledged when the call that puts it has returned. It survived when it can be read after the cut, through
the library that wrote it. What a library does with the disk is not looked at here: it is counted.
"""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.rigs.powercut.systems import Acknowledge, Note, System, Verdict, value_of

# Opens at a directory, and gives a function that puts one value, one that reads all there are, and the connection.
Opened = tuple[Callable[[bytes], Any], Callable[[], Iterator[bytes]], Any]
Open = Callable[[Path], contextlib.AbstractContextManager[Opened]]


def _persist_files(**settings: Any) -> Open:
    @contextlib.contextmanager
    def opened(directory: Path) -> Iterator[Opened]:
        queues = importlib.import_module("persistqueue")
        # Its temporary files have to be on the file system of its queue.
        directory.mkdir(exist_ok=True)
        queue = queues.Queue(str(directory), tempdir=str(directory), **settings)
        yield queue.put, lambda: _drain(queue, queues.Empty), None

    return opened


def _persist_sqlite(**settings: Any) -> Open:
    @contextlib.contextmanager
    def opened(directory: Path) -> Iterator[Opened]:
        queues = importlib.import_module("persistqueue")
        queue = queues.SQLiteQueue(str(directory), **settings)
        yield queue.put, lambda: _drain(queue, queues.Empty), queue._putter
        queue.close()

    return opened


def _drain(queue: Any, empty: type[Exception]) -> Iterator[bytes]:
    while True:
        try:
            yield queue.get_nowait()
        except empty:
            return


def _lite(*pragmas: str) -> Open:
    @contextlib.contextmanager
    def opened(directory: Path) -> Iterator[Opened]:
        directory.mkdir(exist_ok=True)
        queue = importlib.import_module("litequeue").LiteQueue(directory / "queue.db")
        for pragma in pragmas:
            queue.conn.execute(f"PRAGMA {pragma}")

        def read() -> Iterator[bytes]:
            while (message := queue.pop()) is not None:
                yield message.data.encode()

        yield lambda value: queue.put(value.decode()), read, queue.conn
        queue.close()

    return opened


def _deque(**settings: Any) -> Open:
    @contextlib.contextmanager
    def opened(directory: Path) -> Iterator[Opened]:
        diskcache = importlib.import_module("diskcache")
        with diskcache.Cache(str(directory), eviction_policy="none", **settings) as cache:
            deque = diskcache.Deque.fromcache(cache)
            yield deque.append, lambda: iter(deque), cache._con

    return opened


def _cache(**settings: Any) -> Open:
    @contextlib.contextmanager
    def opened(directory: Path) -> Iterator[Opened]:
        diskcache = importlib.import_module("diskcache")
        with diskcache.Cache(str(directory), **settings) as cache:
            yield lambda value: cache.set(value[:8], value), lambda: (cache[key] for key in cache), cache._con

    return opened


def _sqlite(*pragmas: str) -> Open:
    @contextlib.contextmanager
    def opened(directory: Path) -> Iterator[Opened]:
        directory.mkdir(exist_ok=True)
        with contextlib.closing(sqlite3.connect(directory / "table.db", isolation_level=None)) as connection:
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("CREATE TABLE IF NOT EXISTS items (value BLOB)")
            yield (
                lambda value: connection.execute("INSERT INTO items VALUES (?)", (value,)),
                lambda: (row[0] for row in connection.execute("SELECT value FROM items")),
                connection,
            )

    return opened


def _level(connection: Any) -> str:
    """What SQLite says of itself: the default of `synchronous` belongs to the SQLite at hand."""
    if connection is None:
        return ""
    journal, synchronous = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    )
    return f"{journal.upper()}, {('OFF', 'NORMAL', 'FULL', 'EXTRA')[synchronous]}"


def _system(key: str, name: str, setting: str, opened: Open, package: str = "", module: str = "") -> System:
    def write(directory: Path, acknowledge: Acknowledge, count: int, pause: float) -> None:
        with opened(directory / "peer") as (put, _, connection):
            acknowledge({"level": _level(connection)})
            for number in range(count):
                put(value_of(number))
                acknowledge({"ack": number})
                time.sleep(pause)

    def check(directory: Path, acknowledged: list[Note], seed: int) -> Verdict:
        wanted = {value_of(note["ack"]) for note in acknowledged}
        found: set[bytes] = set()
        damaged = ""
        # What is left half made by a failed opening may complain when it is collected; the failure itself is counted.
        sys.unraisablehook = lambda _: None
        try:
            with opened(directory / "peer") as (_, read, _):
                for value in read():
                    found.add(value)
        except Exception as error:  # noqa: BLE001  # whatever it raises, it cannot be used as it is
            damaged = f"{type(error).__name__}: {error}"
        return Verdict(len(wanted), len(wanted & found), damaged)

    return System(key, name, setting, write, check, package, module)


PERSIST, LITE, DISKCACHE = (
    ("persist-queue", "persistqueue"), ("litequeue", "litequeue"), ("diskcache", "diskcache"),
)  # fmt: skip
SYSTEMS = (
    _system("persist-files", "persist-queue Queue", "default", _persist_files(), *PERSIST),
    _system(
        "persist-files-1", "persist-queue Queue", "chunksize=1: a file for every item",
        _persist_files(chunksize=1), *PERSIST,
    ),
    _system("persist-sqlite", "persist-queue SQLiteQueue", "default", _persist_sqlite(), *PERSIST),
    _system("litequeue", "litequeue", "default", _lite(), *LITE),
    _system("litequeue-full", "litequeue", "its connection told FULL", _lite("synchronous=FULL"), *LITE),
    _system("diskcache-deque", "diskcache Deque", "default", _deque(), *DISKCACHE),
    _system("diskcache-deque-full", "diskcache Deque", "told FULL", _deque(sqlite_synchronous=2), *DISKCACHE),
    _system("diskcache-cache", "diskcache Cache", "default", _cache(), *DISKCACHE),
    _system("diskcache-cache-full", "diskcache Cache", "told FULL", _cache(sqlite_synchronous=2), *DISKCACHE),
    _system("sqlite", "SQLite", "default", _sqlite()),
    _system("sqlite-extra", "SQLite", "told EXTRA", _sqlite("synchronous=EXTRA")),
    _system("sqlite-wal-normal", "SQLite", "told NORMAL", _sqlite("journal_mode=WAL", "synchronous=NORMAL")),
    _system("sqlite-wal-full", "SQLite", "told FULL", _sqlite("journal_mode=WAL", "synchronous=FULL")),
)  # fmt: skip
