"""Rewrites: segments without their deleted and expired records, also after a death in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace.disk.marks import Rewrite
from tailrace.maintain import rewrites
from tailrace.marks import Marks, find_marks


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


def filled(log, count=400, **settings):
    topic = log.topic("orders", mutable=True, segment_bytes="16KiB", **settings)
    for number in range(count):
        topic.append(b"secret-%06d." % number + bytes(200), key=b"k%d" % (number % 7))
    return topic


def stored(log) -> bytes:
    """Every byte of the segments of the topic."""
    return b"".join(path.read_bytes() for path in sorted(Path(log.location, "topics").glob("*-orders/**/*.seg")))


def offsets(topic):
    return [record.offset for record in topic.read()]


def marks_of(log):
    marks = find_marks(log.engine, log.engine.entry("orders").id, 0)
    assert marks is not None
    return marks.follow().table


def test_marks_made_while_a_segment_is_rewritten_stay(log, monkeypatch):
    topic = filled(log)
    topic.delete([5])
    real = rewrites.rewrite

    def rewriting(*arguments, **options):
        made = yield from real(*arguments, **options)
        topic.delete([7])
        return made

    monkeypatch.setattr(rewrites, "rewrite", rewriting)
    log.vacuum()
    monkeypatch.undo()
    assert [*marks_of(log)] == [(7, 8)]
    assert offsets(topic) == [number for number in range(400) if number not in (5, 7)]
    log.vacuum()
    assert [*marks_of(log)] == []
    assert b"secret-000007." not in stored(log)


def test_the_note_of_a_rewrite_is_repeated_after_a_death_before_it(log, monkeypatch):
    topic = filled(log)
    topic.delete([5, 6])
    monkeypatch.setattr(Marks, "note_rewrite", _dies)
    with pytest.raises(Died):
        log.vacuum()
    monkeypatch.undo()
    assert [*marks_of(log)] == [(5, 7)]
    assert offsets(topic)[:6] == [0, 1, 2, 3, 4, 7]
    assert topic.delete([5]) == 0
    log.vacuum()
    assert [*marks_of(log)] == []
    (noted,) = marks_of(log).rewrites
    assert noted == Rewrite(0, noted.stop, 1)
    assert offsets(topic)[:6] == [0, 1, 2, 3, 4, 7]


def test_marks_without_a_record_are_forgotten(log):
    """A transaction does not look whether a record is removed already, and neither does a mark hide anything then."""
    topic = filled(log)
    topic.delete([5, 6])
    log.vacuum()
    with log.transaction() as transaction:
        transaction.delete(topic, [5, 6])
    assert [*marks_of(log)] == [(5, 7)]
    assert log.vacuum().rewritten == ()
    assert [*marks_of(log)] == []
    assert offsets(topic)[:6] == [0, 1, 2, 3, 4, 7]


def test_the_newest_time_after_the_active_segment_was_rewritten(log):
    topic = filled(log)
    topic.delete([399])
    newest = log.topics()[0].newest
    log.vacuum()
    assert log.topics()[0].newest == log.stats().newest == newest is not None
    log.close()
    with tailrace.open(log.location) as other:
        assert other.topics()[0].newest == newest
        other.topic("orders").delete(range(400))
        other.vacuum()
        assert other.topics()[0].newest is None


class Died(Exception):  # noqa: N818  # what happens to a process
    pass


def _dies(*_):
    raise Died
