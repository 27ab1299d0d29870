"""Tailing: the cases of a pipe, of Tailrace and of SQLite, each with a follower of its own."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

import tailrace
from tailrace.bench import tail
from tailrace.bench.sqlite import LEVELS, SqliteLog


@pytest.fixture
def followers(monkeypatch):
    """The requests of the followers that were started; each value that is put is read by `receive` at once."""
    requests = []

    @contextmanager
    def started(module, request):
        assert module == tail.FOLLOWER
        requests.append(request)
        yield Sender()

    def receive(child, put, seconds, value_bytes):
        put(b"." * value_bytes)
        return [seconds]

    monkeypatch.setattr(tail, "started", started)
    monkeypatch.setattr(tail, "receive", receive)
    return requests


class Sender:
    """A child that takes anything."""

    def send(self, data):
        assert data == b"....."


def test_the_limit_is_a_pipe(followers):
    case = tail.pipe_case("tail", 5)
    assert case.measure(2.0) == [2.0]
    assert followers == [{"way": "pipe"}]
    assert (case.name, case.against, case.apart) == ("pipe tail", "", True)


@pytest.mark.parametrize(("durable", "level"), [(True, "on disk before it is visible"), (False, "page cache")])
def test_tailrace_is_followed(tmp_path, followers, durable, level):
    with tailrace.open(tmp_path / "log") as log:
        case = tail.follow_case("tail", log, durable, 5)
        assert case.level.startswith(level)
        assert case.measure(1.0) == [1.0]
        assert followers == [{"way": "follow", "path": log.location, "topic": tail.TOPIC}]
        assert [record.value for record in log.topic(tail.TOPIC).read()] == [b"....."]
    assert (case.against, case.told) == ("pipe tail", "a pipe")


@pytest.mark.parametrize("synchronous", LEVELS)
def test_sqlite_is_polled(tmp_path, followers, synchronous):
    case = tail.sqlite_case("tail", tmp_path, synchronous, 5)
    assert case.measure(1.0) == [1.0]
    (request,) = followers
    log = SqliteLog(tmp_path / f"follow-{synchronous}.db", synchronous)
    assert request == {"way": "sqlite", "path": str(log.path), "synchronous": synchronous}
    assert log.after(0) == [(1, b".....")]
    log.close()
    assert (case.level, case.how) == (LEVELS[synchronous], "INSERT to SELECT, asked every 1 ms")
