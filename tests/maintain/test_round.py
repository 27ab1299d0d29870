"""Round: the topics that a run examines, and the marks that it may rely on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import tailrace
from tailrace.disk.marks import NO_MARKS, MarkTable
from tailrace.errors import CorruptionError
from tailrace.maintain.retention import Rule
from tailrace.maintain.round import Round


@pytest.fixture
def store(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        log.topic("plain", partitions=1)
        log.topic("aged", partitions=1, retain="1h")
        with log.consumer("plain", "g") as consumer:
            consumer.poll(timeout=0)
        log.engine.store.refresh()
        yield log.engine.store


def unmarked(entry, index):
    return None


def examined(run):
    return [entry.name for entry, rule in run.topics() if isinstance(rule, Rule)]


def test_in_the_background_only_topics_with_a_limit_are_examined(store):
    run = Round(store, unmarked)
    run.inventory.follow()
    assert examined(run) == ["aged"]


def test_a_full_run_examines_all_topics_but_internal_ones_by_name(store):
    assert examined(Round(store, unmarked, full=True)) == ["aged", "plain"]
    only = store.catalog.by_name["plain"].id
    assert examined(Round(store, unmarked, full=True, only=only)) == ["plain"]


def test_a_partition_without_marks_has_none(store):
    assert Round(store, unmarked).table(store.catalog.by_name["plain"], 0) is NO_MARKS


def test_the_published_marks_count(store):
    table = MarkTable().adding([(3, 5)])
    marks = SimpleNamespace(follow=lambda: SimpleNamespace(table=table))
    assert Round(store, lambda *_: marks).table(store.catalog.by_name["plain"], 0) is table


def test_marks_that_cannot_be_read_take_nothing_out(store):
    def damaged(entry, index):
        raise CorruptionError("damaged", first=0, last=1)

    assert Round(store, damaged).table(store.catalog.by_name["plain"], 0) is NO_MARKS


def test_the_moment_is_that_of_the_log(tailrace_log, tailrace_clock):
    tailrace_clock.freeze("2031-05-06T07:08:09Z")
    run = Round(tailrace_log.engine.store, unmarked)
    assert run.now_us == tailrace_clock.now_us
