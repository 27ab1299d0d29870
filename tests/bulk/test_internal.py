"""Internal topics of engines: created once, written by commits, trimmed by their engine."""

from __future__ import annotations

import threading

import pytest

import tailrace
from tailrace import bulk
from tailrace.bulk import InlinePart, InternalTopic
from tailrace.errors import ReadOnlyError


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


def test_it_is_created_once(log):
    topic = InternalTopic(log, "__own", 3, 1 << 20)
    assert not topic.exists
    made = []
    threads = [threading.Thread(target=lambda: made.append(topic.create())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert topic.exists
    assert len(made) == 8
    assert set(made) == {bulk.find_topic(log, "__own").id}
    assert [*log.topics()] == []


def test_its_records_are_committed_read_and_trimmed(log):
    topic = InternalTopic(log, "__own", 2, 1 << 20)
    topic.create()
    assert topic.bounds(1) == (0, 0)
    bulk.commit(log, [InlinePart("__own", 1, bulk.build([b"a", b"b", b"c"]))])
    assert topic.bounds(1) == (0, 3)
    topic.trim(1, 2)
    assert topic.bounds(0) == (0, 0)
    assert topic.bounds(1) == (2, 3)
    topic.trim(1, 1)
    assert topic.bounds(1) == (2, 3)
    values = [value for part in bulk.plan(log, "__own") for batch in bulk.read(part) for value in batch.values()]
    assert values == [b"c"]


def test_its_name_is_internal(log):
    with pytest.raises(ValueError, match="two underscores"):
        InternalTopic(log, "own", 1, 1 << 20)


def test_a_reader_does_not_create_it(log):
    with tailrace.open(log.location, "r") as reader:
        topic = InternalTopic(reader, "__own", 1, 1 << 20)
        assert not topic.exists
        with pytest.raises(ReadOnlyError):
            topic.create()
    assert not InternalTopic(log, "__own", 1, 1 << 20).exists
