"""Sending batches into a topic that grows, or is dropped and made again, between the appends and the write."""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict

import pytest

import tailrace
from tailrace import errors
from tailrace.disk.store import Store
from tailrace.write.futures import PendingBatch
from tests.recreating import CHANGES, KEYS, again, check_places, grow, once


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        yield log


# Producers.


def check_futures(topic, futures):
    for number, future in enumerate(futures):
        position = future.result(20)
        assert topic.get(position.offset, position.partition).value == b"%d" % number


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(("partitions", "change"), CHANGES)
def test_a_producer_places_its_records_by_the_topic_that_takes_them(tmp_path, partitions, change, durable):
    with tailrace.open(tmp_path / "shop", durable=durable) as log:
        topic = log.topic("orders", partitions=partitions)
        with log.topic("orders").producer(linger="1h") as sending:
            futures = [sending.append(str(number), key=key) for number, key in enumerate(KEYS[:20])]
            change(log)
            # The buffer is the same, and its records keep their order.
            futures += [sending.append(str(number), key=key) for number, key in enumerate(KEYS[20:], 20)]
            told = []
            futures[3].add_done_callback(told.append)
        check_places(topic)
        check_futures(topic, futures)
        assert told == [futures[3]]


@pytest.mark.parametrize(("partitions", "change"), CHANGES[:4])
@pytest.mark.parametrize("durable", [True, False])
def test_a_topic_that_is_made_again_while_it_is_sent_to(tmp_path, monkeypatch, partitions, change, durable):
    with tailrace.open(tmp_path / "shop", durable=durable) as log:
        topic = log.topic("orders", partitions=partitions)
        with log.topic("orders").producer(linger="1h") as sending:
            futures = [sending.append(str(number), key=key) for number, key in enumerate(KEYS)]
            calls = once(monkeypatch, Store, "extend", lambda: change(log))
            sending.flush()
            assert len(calls) > 1
        check_places(topic)
        check_futures(topic, futures)


def test_a_topic_that_is_made_again_between_two_partitions_takes_what_is_left(tmp_path, monkeypatch):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        topic = log.topic("orders", partitions=3)
        with log.topic("orders").producer(linger="1h") as sending:
            futures = [sending.append(str(number), key=key) for number, key in enumerate(KEYS)]
            once(monkeypatch, Store, "extend", lambda: again(log, partitions=2), at=2)
            sending.flush()
        left = [number for number, key in enumerate(KEYS) if zlib.crc32(key) % 3]
        assert 0 < len(left) < len(KEYS)
        found = defaultdict(list)
        for record in topic.read():
            assert zlib.crc32(record.key) % 2 == record.partition
            found[record.partition].append(int(record.value))
        assert sorted(number for numbers in found.values() for number in numbers) == left
        assert all(numbers == sorted(numbers) for numbers in found.values())
        for number, future in enumerate(futures):
            position = future.result(20)
            if number in left:
                assert found[position.partition][position.offset] == number
            else:
                assert position.partition == 0


def test_a_key_is_where_the_others_of_it_are_after_partitions_were_added(log):
    topic = log.topic("orders", partitions=1)
    with log.topic("orders").producer(linger="1h") as sending:
        [sending.append("before", key=key) for key in KEYS]
        grow(log, 3)
        topic.extend(["between"] * len(KEYS), keys=KEYS)
        [sending.append("after", key=key) for key in KEYS]
    places = defaultdict(list)
    for record in topic.read():
        places[record.key].append((record.partition, record.text))
    for key in KEYS:
        index = zlib.crc32(key) % 3
        assert places[key] == [(index, "between"), (index, "before"), (index, "after")]


def test_records_without_a_key_go_to_a_partition_that_is_there(log):
    topic = log.topic("orders", partitions=8)
    with log.topic("orders").producer(linger="1h") as sending:
        futures = []
        for number in range(30):
            headers = {"n": str(number)} if number % 7 == 3 else None
            futures.append(sending.append(str(number), key=KEYS[number] if number % 5 == 4 else None, headers=headers))
        again(log, partitions=2)
    check_futures(topic, futures)
    keyless = [record for record in topic.read() if record.key is None]
    assert len({record.partition for record in keyless}) == 1
    assert [int(record.value) for record in keyless] == [number for number in range(30) if number % 5 != 4]
    for record in topic.read():
        assert record.headers == ({"n": record.value} if int(record.value) % 7 == 3 else {})


def test_a_topic_that_is_not_the_one_asked_for_fails_every_future(log):
    sending = log.topic("orders", partitions=3).producer(linger="1h")
    futures = [sending.append(str(number), key=key) for number, key in enumerate(KEYS)]
    again(log, partitions=2)
    with pytest.raises(errors.SettingsMismatchError):
        sending.close()
    assert {type(future.exception(20)) for future in futures} == {errors.SettingsMismatchError}
    assert log.topic("orders").read().count() == 0


def test_who_waits_for_one_partition_does_not_wait_for_the_next(tmp_path, monkeypatch):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        topic = log.topic("orders", partitions=2)
        told = threading.Event()
        with topic.producer(linger="1h") as sending:
            futures = [sending.append(str(number), key=key) for number, key in enumerate(KEYS)]
            first = next(number for number, key in enumerate(KEYS) if zlib.crc32(key) % 2 == 0)
            futures[first].add_done_callback(lambda future: told.set())
            seen = []
            once(monkeypatch, Store, "extend", lambda: seen.append(told.wait(20)), at=2)
        assert seen == [True]
        check_futures(topic, futures)


# What an interrupt leaves in a group.


class Interrupted(list):
    """A column whose next item is interrupted."""

    def append(self, item):
        super().append(item)
        raise KeyboardInterrupt


@pytest.mark.parametrize("column", ["values", "keys", "headers", "stamps"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_record_that_was_interrupted_harms_no_other(log, column, partitions):
    topic = log.topic("orders", partitions=partitions)
    with topic.producer(linger="1h") as sending:
        more = {"headers": {"a": "b"}, "timestamp": 1_700_000_000_000_000}
        futures = [sending.append("0", key="a", **more)]
        group = sending._group
        setattr(group, column, Interrupted(getattr(group, column)))
        with pytest.raises(KeyboardInterrupt):
            sending.append("lost", key="b", **more)
        setattr(group, column, [*getattr(group, column)])
        futures += [sending.append("1", key="b", **more), sending.append("2")]
    check_futures(topic, futures)
    assert topic.read().count() == 3


def test_a_record_with_a_key_that_was_interrupted_after_it_was_taken(log, monkeypatch):
    """The values that come after it alone must not go past the column that it began."""
    topic = log.topic("orders")
    add = PendingBatch.add

    def interrupted(*arguments):
        add(*arguments)
        raise KeyboardInterrupt

    with topic.producer(linger="1h") as sending:
        sending.append("0")
        monkeypatch.setattr(PendingBatch, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sending.append("1", key="a")
        monkeypatch.undo()
        futures = [sending.append("2"), sending.append("3")]
    assert [future.result(20).offset for future in futures] == [2, 3]
    assert [record.text for record in topic.read()] == ["0", "1", "2", "3"]
    assert [record.key for record in topic.read()] == [None, b"a", None, None]
