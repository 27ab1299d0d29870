"""Removals: segments at the beginning that retention releases, also after a death in the middle."""

from __future__ import annotations

import pytest

from tests.vacuuming import HOUR, bases, clock, files, fill, log, size, tune, values

__all__ = ["clock", "log", "tune"]


def test_by_age(log, clock):
    topic = log.topic("orders", segment_bytes=4096, retain="1h")
    fill(topic, 3)
    clock.forward(2 * HOUR)
    fill(topic, 2)
    dry = log.vacuum(dry_run=True)
    assert (dry.segments, dry.records, dry.dry_run) == (3, 9, True)
    assert bases(topic) == [0, 3, 6, 9, 12]
    report = log.vacuum()
    assert [note[:6] for note in report.removed] == [note[:6] for note in dry.removed]
    assert (report.segments, report.records, report.bytes) == (3, 9, dry.bytes)
    assert report.removed[0].why == "newest record is 2h old, kept for 1h"
    assert [note.why for note in report.kept] == [report.kept[0].why, "active segment"]
    assert report.kept[0].why.endswith("kept for 1h")
    assert bases(topic) == [9, 12]
    assert values(topic) == [*range(9, 15)]
    assert topic.offsets()[0].earliest == 9
    assert log.vacuum().segments == 0


def test_by_size(log):
    topic = log.topic("orders", partitions=2, segment_bytes=4096, retain_bytes=16_384)
    for _ in range(10):
        fill(topic, 1, 0)
        fill(topic, 1, 1)
    before = size(topic)
    report = log.vacuum()
    assert report.bytes == before - size(topic) > 0
    assert 16_384 <= size(topic) <= 16_384 + 2 * 4096
    assert report.removed[0].why.startswith("above the limit of 16KiB:")
    assert {note.partition for note in report.removed} == {0, 1}
    topic.alter(retain_bytes=None)
    assert log.vacuum().segments == 0


def test_a_damaged_segment_keeps_what_is_behind_it(log, clock):
    topic = log.topic("orders", segment_bytes=4096, retain="1h")
    fill(topic, 4)
    path = files(topic)[1]
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(data)
    clock.forward(2 * HOUR)
    report = log.vacuum()
    assert [note.first for note in report.removed] == [0]
    assert report.kept[0].why == "it is damaged; run: tailrace verify"
    assert report.kept[1].why == "older records before it stay, from 3 on"


def test_a_removal_that_was_cut_short_is_finished(log, clock, monkeypatch):
    topic = log.topic("orders", segment_bytes=4096, retain="1h")
    plain = log.topic("plain", segment_bytes=4096)
    fill(topic, 4)
    fill(plain, 4)
    clock.forward(2 * HOUR)

    class Died(BaseException):
        pass

    def die(*_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr("tailrace.disk.partition.Partition.sweep", die)
        with pytest.raises(Died):
            log.vacuum()
        with pytest.raises(Died):
            plain.trim(7)
    assert bases(topic) == bases(plain) == [0, 3, 6, 9]
    assert (topic.offsets()[0].earliest, plain.offsets()[0].earliest) == (12, 7)
    log.vacuum()
    assert (bases(topic), bases(plain)) == ([12], [6, 9])


def test_a_trim_that_the_catalog_alone_has_is_finished(log, clock, monkeypatch):
    topic = log.topic("orders", segment_bytes=4096)
    fill(topic, 3)

    class Died(BaseException):
        pass

    def die(*_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr("tailrace.disk.partition.Partition.forget", die)
        with pytest.raises(Died):
            topic.trim(3)
    assert topic.offsets()[0].earliest == 0
    log.vacuum()
    assert (topic.offsets()[0].earliest, bases(topic)) == (3, [3, 6])


def test_what_was_trimmed_by_hand_to_its_end_goes(log):
    topic = log.topic("orders")
    topic.extend([b"x" * 1_000] * 50)
    assert topic.trim("latest") == 50
    assert (size(topic), topic.offsets()[0]) == (64, (50, 50, 50))
