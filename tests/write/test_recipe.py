"""Settings that frames are built from, altered between the building of a frame and its write."""

from __future__ import annotations

import threading

import pytest

import tailrace
from tailrace.disk import codec
from tailrace.disk.commit import Committer
from tailrace.disk.partition import Partition
from tailrace.disk.writer import Writer
from tests.recreating import once

pytest.importorskip("lz4")
VALUE = b"a value that a codec can make smaller " * 40


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        yield log


def codecs(log: tailrace.Log, name: str = "orders") -> list[int]:
    """The codec of every frame of a topic, by partition and offset."""
    found = []
    for partition in log.topic(name).backend.route(log.engine).partitions:
        reader = log.engine.store.reader(partition)
        found += [frame.header.codec for frame in reader.frames(partition.start, partition.end)]
        reader.close()
    return found


def appended(log: tailrace.Log) -> None:
    log.topic("orders").append(VALUE)


def appended_without_waiting(log: tailrace.Log) -> None:
    log.topic("orders").append(VALUE, durable=False)


def extended(log: tailrace.Log) -> None:
    log.topic("orders").extend([VALUE, VALUE], partition=0)


def extended_over_partitions(log: tailrace.Log) -> None:
    log.topic("orders").extend([VALUE] * 8, keys=[b"%d" % number for number in range(8)])


def produced(log: tailrace.Log) -> None:
    with log.topic("orders").producer() as producer:
        producer.append(VALUE)


def transacted(log: tailrace.Log) -> None:
    with log.transaction() as tx:
        tx.append("orders", VALUE, partition=0)
        tx.append("others", VALUE)


WRITES = (appended, appended_without_waiting, extended, extended_over_partitions, produced, transacted)


@pytest.mark.parametrize("write", WRITES)
def test_what_was_built_before_an_alter_is_built_again(log, monkeypatch, write):
    """The catalog is compared under the partition's lock, the last moment at which it can be."""
    log.topic("orders", partitions=3)
    log.topic("others").append(b"there")
    altered = []

    def alter() -> None:
        if not altered:
            altered.append(True)
            log.topic("orders").alter(compress="lz4")

    enter = Partition.enter

    def entering(partition: Partition, *arguments: object, **named: object) -> None:
        # Before the first lock of a writer: the frames are built, the lock is not taken.
        if partition.slot and threading.current_thread() not in altering:
            altering.add(threading.current_thread())
            alter()
            altering.discard(threading.current_thread())
        enter(partition, *arguments, **named)

    altering: set[threading.Thread] = set()
    if write in (transacted, extended_over_partitions):
        # A journalled commit holds the journal lock when it enters partitions, and an alter needs that lock.
        once(monkeypatch, Committer, "commit", alter)
    else:
        monkeypatch.setattr(Partition, "enter", entering)
    write(log)
    monkeypatch.undo()
    assert altered, "the settings changed in the middle of the write"
    assert set(codecs(log)) == {codec.LZ4}
    assert {record.value for record in log.topic("orders").read()} == {VALUE}
    assert log.verify().ok


def test_a_record_that_is_too_large_by_then_is_refused(log, monkeypatch):
    log.topic("orders").append(b"there")
    append = Writer.append

    def appending(*arguments: object, **named: object) -> int:
        log.topic("orders").alter(max_record_bytes=100)
        return append(*arguments, **named)

    topic = log.topic("orders")
    topic.append(b"there")
    route = topic.backend.route(log.engine)
    monkeypatch.setattr(route, "append", appending.__get__(log.engine.store.writer))
    with pytest.raises(tailrace.errors.RecordTooLargeError):
        topic.append(VALUE)
    assert topic.offsets()[0].latest == 2


def test_an_alter_waits_for_writers_that_have_compared_the_catalog(log, monkeypatch):
    """Without the wait, a frame built from the old settings would be published after the alter has returned."""
    topic = log.topic("orders")
    topic.append(b"there")
    inside, going_on = threading.Event(), threading.Event()
    write = Partition.write

    def writing(partition: Partition, *arguments: object) -> int:
        if partition.slot and threading.current_thread() is writer:
            inside.set()
            assert going_on.wait(20)
        return write(partition, *arguments)

    monkeypatch.setattr(Partition, "write", writing)
    writer = threading.Thread(target=lambda: topic.append(VALUE, durable=False))
    writer.start()
    assert inside.wait(20)
    altering = threading.Thread(target=lambda: log.topic("orders").alter(compress="lz4"))
    altering.start()
    altering.join(0.2)
    assert altering.is_alive()
    going_on.set()
    altering.join(20)
    writer.join(20)
    assert codecs(log) == [codec.NONE, codec.NONE]
    topic.append(VALUE)
    assert codecs(log) == [codec.NONE, codec.NONE, codec.LZ4]


def test_an_alter_that_meets_a_stopped_writer_says_that_the_settings_are_changed(tmp_path):
    """The alter is recorded before it waits: the caller learns that, and that old settings may still be used once."""
    with tailrace.open(tmp_path / "shop", timeout=0.2) as log:
        topic = log.topic("orders")
        topic.append(b"there")
        partition = topic.backend.route(log.engine).partitions[0]
        holding, done = threading.Event(), threading.Event()

        def hold() -> None:
            holding.set()
            assert done.wait(20)

        thread = threading.Thread(target=lambda: log.engine.store.inside(partition, hold))
        thread.start()
        try:
            assert holding.wait(20)
            with pytest.raises(tailrace.errors.LockedError) as caught:
                log.topic("orders").alter(compress="lz4")
        finally:
            done.set()
            thread.join(20)
        assert caught.value.hint == (
            "The settings are changed, but that process may still write one record with the old ones; "
            "let it finish or end it, then alter the topic once more."
        )
        assert log.topic("orders").settings["compress"] == "lz4"
        log.topic("orders").alter(compress="lz4")
        topic.append(VALUE)
        assert codecs(log) == [codec.NONE, codec.LZ4]


def test_an_alter_of_other_settings_waits_for_no_writer(log):
    topic = log.topic("orders")
    topic.append(b"there")
    partition = topic.backend.route(log.engine).partitions[0]
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        holding.set()
        assert done.wait(20)

    thread = threading.Thread(target=lambda: log.engine.store.inside(partition, hold))
    thread.start()
    assert holding.wait(20)
    topic.alter(retain="7d")
    done.set()
    thread.join(20)
    assert topic.settings["retain"] == "7d"
