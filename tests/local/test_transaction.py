"""A transaction in a directory: topics that grow, or are dropped and made again, between its appends and its end."""

from __future__ import annotations

import pytest

import tailrace
from tailrace import errors
from tailrace.local.transaction import Share
from tests.recreating import CHANGES, KEYS, again, check_places, once


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        yield log


@pytest.mark.parametrize(("partitions", "change"), CHANGES)
def test_a_transaction_places_its_records_by_the_topic_that_takes_them(log, monkeypatch, partitions, change):
    topic = log.topic("orders", partitions=partitions)
    calls = once(monkeypatch, Share, "frames", lambda: change(log))
    with log.transaction() as tx:
        tx.append("orders", "0", key=KEYS[0])
        tx.extend("orders", [str(number) for number in range(1, len(KEYS))], keys=KEYS[1:])
        tx.append("other", "beside")
    assert calls
    check_places(topic)
    assert [record.text for record in log.topic("other").read()] == ["beside"]
    [_, first], [_, rest], _ = tx.positions
    [(index, offsets)] = first.items()
    assert topic.get(offsets[0], index).value == b"0"
    values = {topic.get(offset, index).text for index, offsets in rest.items() for offset in offsets}
    assert values == {str(number) for number in range(1, len(KEYS))}


def test_a_transaction_for_a_partition_that_is_gone_writes_nothing(log, monkeypatch):
    topic = log.topic("orders", partitions=3)
    log.topic("other").append("there")
    once(monkeypatch, Share, "frames", lambda: again(log, partitions=2))
    tx = log.transaction().__enter__()
    tx.append("orders", "lost", partition=2)
    tx.append("other", "lost")
    with pytest.raises(ValueError, match="no partition 2: the topic has 2"):
        tx.__exit__(None)
    assert topic.read().count() == 0
    assert log.topic("other").read().count() == 1


def test_a_transaction_that_expects_an_offset_in_a_partition_that_is_gone(log, monkeypatch):
    """While the topic beside it is still to be made, which is when offsets are compared before anything is."""
    topic = log.topic("orders", partitions=3)
    once(monkeypatch, Share, "frames", lambda: again(log, partitions=1))
    tx = log.transaction().__enter__()
    tx.append("orders", "lost", partition=2, expect_offset=0)
    tx.append("other", "lost")
    with pytest.raises(ValueError, match="no partition 2: the topic has 1"):
        tx.__exit__(None)
    assert topic.read().count() == 0
    assert {info.records for info in log.topics()} == {0}


def test_a_transaction_whose_topic_has_another_maximum_by_now(log, monkeypatch):
    log.topic("orders", max_record_bytes=100)
    once(monkeypatch, Share, "frames", lambda: again(log, max_record_bytes=10))
    with pytest.raises(errors.RecordTooLargeError), log.transaction() as tx:
        tx.append("orders", "x" * 50)
    assert log.topic("orders").read().count() == 0
