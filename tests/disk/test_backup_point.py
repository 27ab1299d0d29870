"""Backup point: topics that are dropped and made beside it, and links that keep its segments."""

from __future__ import annotations

import pytest

import tailrace
from tailrace.disk.backup_point import Moment
from tailrace.disk.catalog import SlotPlace


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders", partitions=2, segment_bytes=4_096)
        for _ in range(10):
            topic.extend([b"x" * 100] * 20, partition=0)
        log.topic("other").append("stays")
        yield log


@pytest.mark.parametrize("when", ["_find", "_standing"])
def test_a_backup_beside_somebody_who_drops_and_makes_topics(log, tmp_path, monkeypatch, when):
    """By another thread of this process, which takes in what the catalog says as soon as it is written."""
    plain = getattr(Moment, when)
    met = []

    def beside(self: Moment, *arguments: object) -> object:
        if not met:
            met.append(when)
            log.topic("orders").drop()
            for number in range(5):
                log.topic(f"made-{number}", partitions=3).append("new")
        return plain(self, *arguments)

    monkeypatch.setattr(Moment, when, beside)
    report = log.backup(tmp_path / "backup")
    assert met
    assert not report.damage
    restored = tmp_path / "restored"
    tailrace.Log.restore(tmp_path / "backup", restored)
    with tailrace.open(restored) as copy:
        assert copy.verify().ok
        assert [record.text for record in copy.topic("other").read()] == ["stays"]
        names = {topic.name for topic in copy.topics()}
        # What counts is the moment under the journal lock.
        if when == "_find":
            assert names == {"other", *(f"made-{number}" for number in range(5))}
        else:
            assert names == {"orders", "other"}
            assert copy.topic("orders").read().count() == 200


def test_a_backup_while_a_slot_gets_another_topic(log, tmp_path, monkeypatch):
    find, done = Moment._find, []

    def found(self: Moment, place: SlotPlace, newest: int) -> None:
        find(self, place, newest)
        if place.slot == log.engine.store.catalog.next_slot - 1 and not done:
            done.append(place.slot)
            slots = log.engine.entry("orders").slots
            log.topic("orders").drop()
            for _ in range(60):
                log.topic("successor", partitions=2, segment_bytes=4_096).append("y" * 100, partition=0)
            assert log.engine.entry("successor").slots == slots

    monkeypatch.setattr(Moment, "_find", found)
    log.backup(tmp_path / "backup")
    assert done
    assert not tailrace.Log.restore(tmp_path / "backup", tmp_path / "to").damage
    with tailrace.open(tmp_path / "to") as again:
        assert [record.text for record in again.topic("successor").read()] == ["y" * 100] * 60
        assert [info.name for info in again.topics()] == ["other", "successor"]
        assert again.verify().ok
