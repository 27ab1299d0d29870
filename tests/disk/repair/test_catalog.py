"""A damaged catalog: topics that come back, and those whose names are lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tailrace
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.errors import (
    CorruptionError,
)
from tests.repairing import COUNT, flip, frames, path, readable, segments

__all__ = ["path"]


def catalog(path: Path) -> Path:
    return sorted((path / "catalog").glob("*.seg"))[-1]


def test_a_topic_whose_creation_is_lost_comes_back(path):
    with tailrace.open(path) as log:
        log.topic("later", partitions=3).extend([b"a", b"b"], keys=[b"1", b"2"])
    flip(catalog(path), frames(catalog(path))[0][0] + FRAME_HEADER_BYTES + 3)
    with pytest.raises(CorruptionError, match="catalog") as caught:
        tailrace.open(path)
    assert "tailrace repair" in caught.value.hint
    report = tailrace.repair(path)
    assert any("'orders' is back with default settings" in note for note in report.notes)
    with tailrace.open(path) as log:
        assert sorted(info.name for info in log.topics()) == ["later", "orders"]
        assert len(list(log.topic("orders").read())) == COUNT
        assert log.topic("later").partitions == 3
        assert log.topic("orders").append(b"x").offset == COUNT
        log.topic("new").append(b"x")
        assert log.verify().ok
    assert tailrace.repair(path).sound


def test_a_beginning_that_nothing_explains_is_noted(path):
    """The record of a trim may be what the catalog lost, so a first segment that is missing cannot be told from one."""
    segments(path)[0].unlink()
    flip(catalog(path), frames(catalog(path))[0][0] + 90)
    planned = tailrace.repair(path, dry_run=True)
    report = tailrace.repair(path)
    assert planned.notes == report.notes
    assert any(note.startswith("orders[0] begins at 28 now: the records 0 to 27 ") for note in report.notes)
    with tailrace.open(path) as log:
        assert log.topic("orders").offsets()[0].earliest == 28


def test_a_segment_of_the_catalog_under_a_wrong_name(path):
    """Its records are those of the offsets that it says, or every topic would get another id."""
    with tailrace.open(path) as log:
        log.topic("later", retain="3d").append(b"kept")
    catalog(path).rename(catalog(path).with_name(f"{5:020d}.seg"))
    with pytest.raises(CorruptionError), tailrace.open(path):
        pass
    assert tailrace.repair(path).lost == ()
    with tailrace.open(path) as log:
        assert [record.value for record in log.topic("later").read()] == [b"kept"]
        assert log.topic("later").settings["retain"] == "3d"
        assert readable(log) == [*range(COUNT)]


def test_a_topic_behind_the_end_of_the_catalog_comes_back(path):
    """Without tails the last record of the catalog, damaged, looks like a write that was cut off."""
    with tailrace.open(path) as log:
        log.topic("later").append(b"kept")
    flip(catalog(path), frames(catalog(path))[-1][0] + 8)
    (path / "tails").unlink()
    report = tailrace.repair(path)
    assert any("'later' is back" in note for note in report.notes)
    with tailrace.open(path) as log:
        assert [record.value for record in log.topic("later").read()] == [b"kept"]
        assert len(list(log.topic("orders").read())) == COUNT
        assert log.topic("orders").settings["segment_bytes"] == 4_544
    assert tailrace.repair(path).sound


def test_a_catalog_that_is_gone_is_made_of_the_directories(path):
    for file in (path / "catalog").glob("*.seg"):
        file.unlink()
    report = tailrace.repair(path)
    assert not report.sound
    with tailrace.open(path) as log:
        assert len(list(log.topic("orders").read())) == COUNT


def test_a_topic_that_has_no_name_any_more_is_kept_aside(path):
    with tailrace.open(path) as log:
        log.topic("ÄÖÜ").append(b"kept")
    places = frames(catalog(path))
    flip(catalog(path), places[1][0] + FRAME_HEADER_BYTES + 3)
    report = tailrace.repair(path)
    assert any("name of the topic" in note for note in report.notes)
    (kept,) = [each for each in report.quarantine if os.path.isdir(each)]
    assert b"kept" in next(Path(kept).rglob("*.seg")).read_bytes()
    with tailrace.open(path) as log:
        assert [info.name for info in log.topics()] == ["orders"]
        assert log.topic("orders").settings["segment_bytes"] == 4_544
