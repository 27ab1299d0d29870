"""Handles that travel: opened in the process that uses them, each closed by itself."""

from __future__ import annotations

import pickle

import tailrace
from tailrace import bulk


def test_a_handle_opens_at_its_first_use(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("a").append("1")
        location = log.location
    handle = pickle.loads(pickle.dumps(bulk.handle(location, 30.0)))
    assert (handle.location, handle.mode, handle.backend.timeout, handle.backend.live) == (location, "a", 30.0, None)
    with handle:
        handle.topic("a").append("2")
        assert [record.text for record in handle.topic("a").read()] == ["1", "2"]


def test_a_reopened_handle_lives_on_without_the_first(tmp_path):
    with tailrace.open(tmp_path / "log", mode="x") as log:
        log.topic("a").append("1")
        again = bulk.reopened(log)
        assert again is not log
        assert again.backend.live is not None
        assert bulk.log_id(again) == bulk.log_id(log)
    with again:
        again.topic("a").append("2")
        assert again.topic("a").read().count() == 2
