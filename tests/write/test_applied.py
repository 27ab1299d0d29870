"""Applied markers: one batch of an application is committed once, whoever commits it."""

from __future__ import annotations

import pytest

import tailrace
from tailrace import bulk
from tailrace.disk.frame import prepare
from tailrace.disk.staging import Write
from tailrace.errors import CorruptionError
from tailrace.write.applied import Marker, MarkerState, Repeated, last_marker, open_markers
from tests.processes import in_fork
from tests.rigs.sim.mutation import mutate, never


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        log.topic("t", partitions=1).append("0")
        yield log


def race(log, mine, others):
    """Commit a marker with a record, after another process has committed another; the number of records then."""
    engine = log.engine
    partition = engine.partition(engine.entry("t"), 0)
    write = open_markers(engine).write_marker(*mine)
    parts = [bulk.InlinePart("t", 0, bulk.build([b"theirs"]))]
    assert in_fork(lambda: bulk.commit(log, parts, (others[0], others[1].batch), others[1].witness).applied)
    try:
        engine.store.transact([Write(partition, prepare([b"mine"], None, None, 0)), write])
    finally:
        records = log.topic("t").read().count()
    return records


def test_a_batch_that_another_process_committed_meanwhile(log):
    with pytest.raises(Repeated):
        race(log, ("app", Marker(3)), ("app", Marker(3, "theirs")))
    assert log.topic("t").read().count() == 2
    assert last_marker(log.engine, "app") == Marker(3, "theirs")


def test_a_batch_before_the_last_one(log):
    with pytest.raises(Repeated):
        race(log, ("app", Marker(3)), ("app", Marker(4)))


def test_without_the_rule(log, monkeypatch):
    mutate(monkeypatch, never("one batch once"))
    assert race(log, ("app", Marker(3)), ("app", Marker(3))) == 3


@pytest.mark.parametrize("other", [("other", Marker(7)), ("app", Marker(2))])
def test_what_is_not_this_batch_does_not_matter(log, other):
    assert race(log, ("app", Marker(3, "mine")), other) == 3
    assert last_marker(log.engine, "app") == Marker(3, "mine")


def test_the_highest_batch_counts():
    state = MarkerState()
    for key, value in ((b"a", b"3 x"), (b"a", b"2 y"), (b"b", b"0"), (b"a", b"3")):
        state.apply(key, value)
    assert state.markers == {"a": Marker(3), "b": Marker(0)}
    assert (state.last("a"), state.last("c")) == (3, -1)
    again = MarkerState()
    records = state.snapshot(())
    for key, value in zip(records.keys, records.values, strict=True):
        again.apply(key, value)
    assert again.markers == state.markers
    assert vars(state.copy()) == vars(state)


@pytest.mark.parametrize(("key", "value"), [(b"a", b"many"), (b"\xff", b"1"), (b"a", b"\xff")])
def test_a_marker_that_cannot_be_understood(key, value):
    with pytest.raises(CorruptionError, match="marker"):
        MarkerState().apply(key, value)
