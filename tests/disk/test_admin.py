"""Changes of the catalog on real files: drops and trims that meet others there, and the slots of dropped topics."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import tailrace
from tailrace.disk.files import Files
from tailrace.errors import StorageError, TopicNotFoundError


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders", partitions=2, segment_bytes=4_096)
        for _ in range(10):
            topic.extend([b"x" * 100] * 20, partition=0)
        log.topic("other").append("stays")
        yield log


def directories(log: tailrace.Log, name: str = "orders") -> list[Path]:
    return sorted((Path(log.location) / "topics").glob(f"*-{name}"))


def test_a_file_that_is_made_meanwhile_goes_as_well(log, monkeypatch):
    """Somebody who stages a large write does not know yet that the topic is dropped."""
    remove = Files.remove_directory
    made: list[str] = []

    def late(self: Files, path: str) -> None:
        if "-orders/" in path and len(made) < 3:
            made.append(f"{path}/late-{len(made)}.staged")
            Path(made[-1]).write_bytes(b"late")
        remove(self, path)

    monkeypatch.setattr(Files, "remove_directory", late)
    log.topic("orders").drop()
    assert len(made) == 3
    assert directories(log) == []


def test_a_file_that_is_taken_away_meanwhile_is_not_missed(log, monkeypatch):
    (directory,) = directories(log)
    staged = directory / "0" / "late.staged"
    staged.write_bytes(b"late")
    remove, met = Files.remove_file, []

    def first(self: Files, path: str) -> None:
        if path == str(staged) and not met:
            met.append(path)
            os.unlink(path)
        remove(self, path)

    monkeypatch.setattr(Files, "remove_file", first)
    log.topic("orders").drop()
    assert met
    assert directories(log) == []


@pytest.fixture
def refused(monkeypatch):
    """Segments that nobody may remove, as in a directory without the right to write."""
    remove = Files.remove_file

    def refuse(self: Files, path: str) -> None:
        if path.endswith(".seg"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        remove(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(Files, "remove_file", refuse)
        yield patched


def test_a_drop_that_cannot_remove_the_files_says_that_the_topic_is_gone(log, refused):
    with pytest.raises(StorageError) as caught:
        log.topic("orders").drop()
    (left,) = directories(log)
    assert caught.value.hint.startswith("The topic is dropped;")
    assert str(left) in caught.value.hint
    with pytest.raises(TopicNotFoundError):
        log.topic("orders").read().count()
    # The next one of that name is another one, in a directory of its own.
    log.topic("orders").append("new")
    assert len(directories(log)) == 2
    refused.undo()
    log.vacuum(dry_run=True)
    assert left.exists()
    log.vacuum()
    assert not left.exists()
    assert [record.text for record in log.topic("orders").read()] == ["new"]
    assert [record.text for record in log.topic("other").read()] == ["stays"]
    assert log.verify().ok


def test_a_vacuum_leaves_directories_that_are_nobody_s(log):
    topics = Path(log.location) / "topics"
    later = topics / "00ffffff-later"
    for kept in (later, topics / "notes", topics / "0000000g-odd"):
        kept.mkdir()
    log.vacuum()
    assert {later.name, "notes", "0000000g-odd"} <= {entry.name for entry in topics.iterdir()}


def test_a_trim_that_cannot_remove_the_files_says_that_the_records_are_gone(log, refused):
    topic = log.topic("orders")
    before = len(list(directories(log)[0].glob("0/*.seg")))
    with pytest.raises(StorageError) as caught:
        topic.trim(190, partition=0)
    assert caught.value.hint.startswith("The records are trimmed;")
    assert topic.offsets()[0][0] == 190
    refused.undo()
    log.vacuum()
    assert len(list(directories(log)[0].glob("0/*.seg"))) < before
    assert topic.read(partition=0).count() == 10


# Slots.


def come_and_go(log: tailrace.Log, count: int) -> tuple[int, int]:
    """Make and drop topics one after another; how many slots there are then, and the size of the tails."""
    for number in range(count):
        topic = log.topic(f"passing.{number}", partitions=2)
        topic.append(b"x", partition=0, durable=False)
        topic.drop()
    log.engine.refresh()
    return log.engine.store.tails.slots(), (Path(log.location) / "tails").stat().st_size


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=pytest.mark.long)])
def test_slots_of_dropped_topics_are_used_again(log, count):
    few = come_and_go(log, 10)
    assert come_and_go(log, count) == few
    path = log.location
    log.close()
    os.unlink(f"{path}/tails")
    with tailrace.open(path) as again:
        assert come_and_go(again, 3) == few
        assert again.topic("orders").read().count() == 200
        assert again.verify().ok


def test_the_lowest_slots_are_given_first(log):
    engine = log.engine
    for name in "abcd":
        log.topic(name, partitions=2).append("x", partition=0)
    slots = {name: engine.entry(name).slots for name in "abcd"}
    log.topic("c").drop()
    log.topic("a").drop()
    log.topic("e", partitions=3).append("x", partition=0)
    assert engine.entry("e").slots == (*slots["a"], slots["c"][0])
    log.topic("b").alter(partitions=3)
    assert engine.entry("b").slots == (*slots["b"], slots["c"][1])
    log.topic("f").append("x")
    assert engine.entry("f").slots == (slots["d"][1] + 1,)


def test_who_holds_a_dropped_topic_never_sees_its_successor_in_the_slot(log, tmp_path):
    orders = log.topic("orders")
    entry = log.engine.entry("orders")
    scan = iter(orders.read(partition=0))
    first = next(scan)
    producer = orders.producer()
    with tailrace.open(log.location, "r") as reader, log.transaction() as tx:
        other = reader.topic("orders")
        assert other.get(0, partition=0).value == first.value
        tx.append("other", "more")
        orders.drop()
        successor = log.topic("successor", partitions=2)
        for _ in range(300):
            successor.append("successor", partition=0, durable=False)
        assert log.engine.entry("successor").slots == entry.slots
        with pytest.raises(TopicNotFoundError):
            other.get(0, partition=0)
        with pytest.raises(TopicNotFoundError):
            log.engine.partition(entry, 0)
        assert reader.topic("successor").read().count() == 300
    try:
        assert all(record.value == b"x" * 100 for record in scan)
    except TopicNotFoundError:
        pass
    producer.append("goes to a topic of the old name")
    producer.close()
    assert [record.text for record in log.topic("orders").read()] == ["goes to a topic of the old name"]
    assert log.topic("successor").read().count() == 300
    assert log.verify().ok
