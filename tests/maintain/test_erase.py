"""Erase: no byte of a key's records is left in segments or journal, and the report says what is out of reach."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace.disk.commit import Committer
from tailrace.errors import CorruptionError, ImmutableError, StorageError, TopicNotFoundError
from tailrace.maintain import erase as erasing
from tailrace.maintain import rewrites

SECRET = b"the secret of customer 42"


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


def filled(log, **settings):
    """Records of two keys in several partitions, segments, frames, by appends, batches and transactions."""
    topic = log.topic("customers", mutable=True, segment_bytes="4KiB", partitions=3, **settings)
    for number in range(60):
        topic.append(b"%s %d" % (SECRET, number), key="customer-42", partition=number % 3)
        topic.append(b"open %d" % number + bytes(300), key="customer-43", partition=number % 3)
    topic.extend([b"%s in a batch" % SECRET, b"open"] * 20, keys=["customer-42", "customer-43"] * 20)
    with log.transaction() as transaction:
        transaction.append(topic, b"%s in a transaction" % SECRET, key="customer-42")
        transaction.append("orders", b"an order", key="customer-43")
    return topic


def files_with(log, text=SECRET):
    return [path for path in Path(log.location).rglob("*") if path.is_file() and text in path.read_bytes()]


def others(topic):
    return sorted((*record[1:3], record.value) for record in topic.read() if record.key != b"customer-42")


@pytest.mark.parametrize("compress", ["none", "lz4"])
def test_nothing_of_the_key_is_left_in_any_file(log, compress):
    topic = filled(log, compress=compress)
    kept = others(topic)
    assert compress != "none" or any("journal" in path.parts for path in files_with(log)), "the journal has it too"
    report = topic.erase("customer-42")
    assert report.records == 81
    assert sum(map(len, report.offsets.values())) == 81
    assert report.segments > 3
    assert files_with(log) == []
    assert others(topic) == kept
    assert not [record for record in topic.read() if record.key == b"customer-42"]
    assert "backups" in str(report.unreached)
    assert report.to_json()["records"] == 81
    assert topic.erase("customer-42").records == 0
    assert log.verify().ok
    # Others go on, with offsets that were never used before.
    assert topic.append(b"later", key="customer-42", partition=0).offset == topic.offsets()[0].latest - 1
    log.close()
    with tailrace.open(log.location) as again:
        assert others(again.topic("customers")) == kept
        assert again.verify().ok


def test_deleted_and_expired_records_are_erased_too(tailrace_log, tailrace_clock):
    log, topic = tailrace_log, tailrace_log.topic("customers", mutable=True)
    topic.append(SECRET, key="customer-42")
    topic.append(SECRET, key="customer-42", ttl=1)
    topic.append(b"open", key="customer-43")
    topic.delete(0)
    tailrace_clock.advance(2)
    assert [record.value for record in topic.read()] == [b"open"]
    assert files_with(log)
    assert topic.erase("customer-42").records == 2
    assert files_with(log) == []


@pytest.mark.parametrize("place", ["rewrite_topic", "checkpoint"])
def test_a_repeat_finishes_what_a_death_interrupted(log, monkeypatch, place):
    topic = filled(log)
    kept = others(topic)

    class Died(BaseException):
        pass

    def dies(*_, **__):
        raise Died

    monkeypatch.setattr(*((erasing, place) if place == "rewrite_topic" else (Committer, "checkpoint")), dies)
    with pytest.raises(Died):
        topic.erase("customer-42")
    monkeypatch.undo()
    assert not [record for record in topic.read() if record.key == b"customer-42"], "hidden from the first step on"
    assert files_with(log)
    report = topic.erase("customer-42")
    assert report.records == (81 if place == "rewrite_topic" else 0)
    assert files_with(log) == []
    assert others(topic) == kept


def test_an_erase_that_cannot_rewrite_says_so_and_hides_the_records(log, monkeypatch):
    topic = filled(log)

    def refuses(*_, **__):
        raise StorageError("the disk is full of sand")
        yield

    monkeypatch.setattr(rewrites, "rewrite", refuses)
    with pytest.raises(StorageError, match=r"still on disk.*full of sand") as caught:
        topic.erase("customer-42")
    assert "erase the key again" in caught.value.hint
    monkeypatch.undo()
    assert not [record for record in topic.read() if record.key == b"customer-42"]
    topic.erase("customer-42")
    assert files_with(log) == []


def test_damage_is_no_excuse(log):
    topic = filled(log)
    segment = min(Path(log.location, "topics").glob("*-customers/1/*.seg"))
    data = bytearray(segment.read_bytes())
    data[300] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        topic.erase("customer-42")
    assert (caught.value.topic, caught.value.partition) == ("customers", 1)


def test_quarantine_and_staged_segments_are_named(log):
    topic = log.topic("customers", mutable=True)
    topic.append(SECRET, key="customer-42")
    Path(log.location, "quarantine").mkdir()
    next(Path(log.location, "topics").glob("*-customers/0")).joinpath("0123456789abcdef.staged").write_bytes(b"")
    told = str(topic.erase("customer-42").unreached)
    assert "quarantine" in told
    assert "1 staged" in told


def test_bad_input(log):
    log.topic("plain").append(b"x", key="k")
    topic = log.topic("customers", mutable=True)
    with pytest.raises(TypeError, match="erase needs a key"):
        topic.erase(None)
    with pytest.raises(TypeError):
        topic.erase(42)
    with pytest.raises(ImmutableError, match="not mutable, so none of its records can be erased"):
        log.topic("plain").erase("k")
    with pytest.raises(TopicNotFoundError):
        log.topic("missing").erase("k")
    assert topic.erase("unknown").records == 0
    with tailrace.open(log.location, "r") as reading, pytest.raises(tailrace.errors.ReadOnlyError):
        reading.topic("customers").erase("k")
