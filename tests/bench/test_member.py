"""The member: it opens the log, does each count that it is told, and ends with its input."""

from __future__ import annotations

import io

import pytest

import tailrace
from tailrace import errors
from tailrace.bench import member
from tailrace.bench.jobs import Job


@pytest.mark.parametrize("threads", [1, 2])
def test_each_count_is_done_and_reported(tmp_path, monkeypatch, threads):
    path = tmp_path / "log"
    spec = {"path": str(path), "threads": threads, "job": Job("write", "t", 8, 1, False)._asdict()}
    events = []
    monkeypatch.setattr(member, "request", lambda **_: spec)
    monkeypatch.setattr(member, "say", events.append)
    monkeypatch.setattr("sys.stdin", io.StringIO("4\n6\n"))
    member.main()
    assert events == ["ready", "done", "done"]
    with tailrace.open(path, "r") as log:
        assert log.topic("t").read().count() == 10


def test_a_job_that_fails_ends_it(tmp_path, monkeypatch):
    spec = {"path": str(tmp_path / "log"), "threads": 1, "job": Job("records", "missing")._asdict()}
    events = []
    monkeypatch.setattr(member, "request", lambda **_: spec)
    monkeypatch.setattr(member, "say", events.append)
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n"))
    with pytest.raises(errors.TopicNotFoundError):
        member.main()
    assert events == ["ready"]
