"""SQLite as a log: what it is told to keep it gives back in order, at the level that it names."""

from __future__ import annotations

import pytest

from tailrace.bench.sqlite import LEVELS, SqliteLog


@pytest.fixture
def log(tmp_path):
    made = SqliteLog(tmp_path / "log.db", "NORMAL")
    yield made
    made.close()


def test_values_come_back_in_order(log):
    assert (log.last(), log.scan(), log.after(0)) == (0, 0, [])
    log.append(b"one")
    log.extend([b"two", b"three"])
    assert (log.last(), log.scan()) == (3, 3)
    assert log.after(1) == [(2, b"two"), (3, b"three")]


def test_keys_stand_beside_their_values(log):
    log.extend([b"v", b"w"], [b"k", b"l"])
    assert log.connection.execute("SELECT key, value FROM log").fetchall() == [(b"k", b"v"), (b"l", b"w")]
    # A batch that does not fit together is refused, and nothing of it stays.
    with pytest.raises(ValueError, match="zip"):
        log.extend([b"x", b"y"], [b"k"])
    log.connection.rollback()
    assert log.scan() == 2


@pytest.mark.parametrize("synchronous", LEVELS)
def test_the_level_is_that_of_the_connection(tmp_path, synchronous):
    log = SqliteLog(tmp_path / "log.db", synchronous)
    assert log.level() == LEVELS[synchronous]
    assert log.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    log.close()


def test_a_checkpoint_empties_the_write_ahead_log(log, tmp_path):
    log.append(b"one")
    assert (tmp_path / "log.db-wal").stat().st_size > 0
    log.checkpoint()
    assert (tmp_path / "log.db-wal").stat().st_size == 0
    assert log.scan() == 1
