"""The follower: what it is sent, and what it reads of Tailrace and of SQLite, with the age of each value."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import pytest

import tailrace
from tailrace.bench import follower
from tailrace.bench.latencies import stamp
from tailrace.bench.sqlite import SqliteLog


def test_values_of_a_pipe_have_their_ages_until_it_closes(monkeypatch):
    said = []
    sent = iter([stamp(20), stamp(100), b""])
    monkeypatch.setattr(follower, "say", said.append)
    monkeypatch.setattr(follower, "request", lambda **_: {"way": "pipe"})
    monkeypatch.setattr(follower, "os", SimpleNamespace(read=lambda *_: next(sent)))
    follower.main()
    assert said[0] == "ready"
    assert len(said) == 3
    assert all(age > 0 for age in said[1:])


def test_a_topic_is_followed_from_where_it_ends_at_the_readiness(tmp_path, monkeypatch):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("followed", partitions=1)
        topic.append(b"before")
        monkeypatch.setattr(follower, "say", lambda word: topic.append(f"after {word}"))
        followed = follower._followed({"path": log.location, "topic": "followed"})
        assert next(followed) == b"after ready"
        followed.close()


def test_a_table_is_polled_until_rows_come(tmp_path, monkeypatch):
    path = tmp_path / "log.db"
    log = SqliteLog(path, "NORMAL")
    log.append(b"before")
    said, slept = [], []

    def sleep(seconds):
        slept.append(seconds)
        log.extend([b"one", b"two"])

    monkeypatch.setattr(follower, "say", said.append)
    monkeypatch.setattr(follower, "sleep", sleep)
    polled = follower._polled({"path": str(path), "synchronous": "NORMAL"})
    assert [next(polled), next(polled)] == [b"one", b"two"]
    assert (said, slept) == (["ready"], [follower.POLL_SECONDS])
    connection = polled.gi_frame.f_locals["log"].connection
    polled.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
    log.close()


def test_the_age_is_that_of_the_stamp_before_the_filling(monkeypatch):
    said = []
    monkeypatch.setattr(follower, "say", said.append)
    monkeypatch.setattr(follower, "request", lambda **_: {"way": "follow"})
    monkeypatch.setattr(follower, "_followed", lambda _: iter([stamp(1_000)]))
    follower.main()
    assert 0 < said[0] < 60e9
