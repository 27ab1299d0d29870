"""Copying one log: only what is new, and what is damaged or missing told."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace.engine import engine as engines
from tailrace.errors import (
    CorruptionError,
)
from tailrace.maintain.backup.manifest import read_manifest


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        yield log


def fill(log, name="orders", count=300, **settings):
    topic = log.topic(name, **{"partitions": 3, "segment_bytes": 4096, **settings})
    # In small writes, since one write lies in one segment.
    for first in range(0, count, 50):
        numbers = range(first, min(count, first + 50))
        topic.extend(
            [f"{name} {number}" for number in numbers], keys=[str(number) for number in numbers], durable=False
        )
    return topic


def texts(log, name="orders"):
    return [(record.partition, record.offset, record.key, record.value) for record in log.topic(name).read()]


def restored(tmp_path, backup="backup", to="again"):
    tailrace.Log.restore(tmp_path / backup, tmp_path / to)
    return tailrace.open(tmp_path / to)


def segments(path: Path):
    return sorted(path.glob("topics/*-orders/*/*.seg"))


def test_only_what_is_new_is_copied(log, tmp_path):
    topic = fill(log, count=1_900)
    first = log.backup(tmp_path / "backup")
    same = log.backup(tmp_path / "backup")
    assert (same.copied_files, same.copied_bytes, same.files) == (0, 0, first.files)
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / "backup").glob("data/*/*")}
    topic.append("one more", partition=1)
    second = log.backup(tmp_path / "backup")
    assert second.copied_files == 1
    assert second.copied_bytes < 4096
    kept = {path.name: path.stat().st_ino for path in (tmp_path / "backup").glob("data/*/*")}
    assert sum(inodes.get(name) == inode for name, inode in kept.items()) == first.files - 1
    with restored(tmp_path) as again:
        assert texts(again) == texts(log)


def test_a_file_that_is_gone_from_the_backup_is_copied_again(log, tmp_path):
    fill(log)
    log.backup(tmp_path / "backup")
    gone, cut = sorted((tmp_path / "backup").glob("data/*/00000001-*"))[:2]
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    assert log.backup(tmp_path / "backup").copied_files == 2
    with restored(tmp_path) as again:
        assert texts(again) == texts(log)


def test_another_end_of_the_same_segment_is_copied_again(log, tmp_path):
    """A power cut takes the unsynced end of a segment away, and others come in its place with the same size."""
    fill(log, partitions=1, count=3)
    log.backup(tmp_path / "backup")
    (path,) = segments(tmp_path / "log")
    manifest = read_manifest(engines.FILES, str(tmp_path / "backup"))
    assert manifest is not None
    (part,) = [part for part in manifest.logs[0].partitions if part.slot]
    assert part.segments[0].chain == part.state.chain
    log.close()
    data = bytearray(path.read_bytes())
    position = part.state.position
    path.write_bytes(bytes(data[:64]) + bytes(position - 64))
    (tmp_path / "log" / "tails").unlink()
    with tailrace.open(tmp_path / "log") as other:
        other.topic("orders").extend([f"ORDERS {number}" for number in range(3)], keys=["0", "1", "2"])
        block = other.engine.store.tails.read_block(1)
        assert block is not None
        assert block[1].position == position
        assert other.backup(tmp_path / "backup").copied_files == 1
        with restored(tmp_path) as again:
            assert texts(again) == texts(other)


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_log(log, tmp_path):
    topic = fill(log, partitions=1, count=1_000)
    for number in range(40):
        topic.append(f"more {number}", durable=False)
    log.backup(tmp_path / "backup")
    before = (tmp_path / "backup" / "backup.json").read_bytes()
    good = texts(log)
    topic.append("new")
    newest = segments(tmp_path / "log")[-1]
    flip(newest, 64 + 96 + 9)
    log.close()
    with tailrace.open(tmp_path / "log") as log:
        with pytest.raises(CorruptionError, match="not backed up") as told:
            log.backup(tmp_path / "backup")
        assert (told.value.topic, told.value.partition) == ("orders", 0)
        assert told.value.first == int(newest.name[:20])
        assert (tmp_path / "backup" / "backup.json").read_bytes() == before
        with restored(tmp_path) as again:
            assert texts(again) == good
        report = log.backup(tmp_path / "backup", allow_damage=True)
        assert [(each.topic, each.partition, each.first) for each in report.damage] == [("orders", 0, told.value.first)]
        assert report.damage[0].last == told.value.last
        # Damaged once more: it is never taken for something that the backup has.
        assert log.backup(tmp_path / "backup", allow_damage=True).damage == report.damage
        result = tailrace.Log.restore(tmp_path / "backup", tmp_path / "damaged")
        assert result.damage == report.damage
        with tailrace.open(tmp_path / "damaged") as again:
            first, last = report.damage[0].first, report.damage[0].last
            with pytest.raises(CorruptionError) as read:
                list(again.topic("orders").read())
            assert (read.value.first, read.value.last) == (first, last)
            rest = [record.text for record in again.topic("orders").read(last + 1)]
            assert rest == [record.text for record in log.topic("orders").read(last + 1)]


def test_a_damaged_sealed_segment(log, tmp_path):
    fill(log, partitions=1, count=100)
    for number in range(150):
        log.topic("orders").append(f"more {number}", durable=False)
    first = segments(tmp_path / "log")[0]
    assert len(segments(tmp_path / "log")) > 2
    flip(first, first.stat().st_size - 20)
    with pytest.raises(CorruptionError, match="footer"):
        log.backup(tmp_path / "backup")
    assert not (tmp_path / "backup" / "backup.json").exists()
    flip(first, first.stat().st_size - 20)
    assert log.backup(tmp_path / "backup").damage == ()


def test_a_missing_segment(log, tmp_path):
    fill(log, partitions=1, count=100)
    for number in range(150):
        log.topic("orders").append(f"more {number}", durable=False)
    gone = segments(tmp_path / "log")[1]
    gone.rename(tmp_path / "aside")
    with pytest.raises(CorruptionError) as told:
        log.backup(tmp_path / "backup")
    assert told.value.topic == "orders"
    report = log.backup(tmp_path / "backup", allow_damage=True)
    assert report.damage[0].first == int(gone.name[:20])
    tailrace.Log.restore(tmp_path / "backup", tmp_path / "again")
    with tailrace.open(tmp_path / "again", "r") as again, pytest.raises(CorruptionError):
        list(again.topic("orders").read())


def test_what_a_repair_gave_up_is_no_new_damage(log, tmp_path):
    """A placeholder is copied like any frame: the restored log names the same lost range, and nothing else."""
    fill(log, partitions=1, count=300)
    log.sync()
    flip(segments(tmp_path / "log")[0], 64 + 96 + 9)
    log.repair()
    (lost,) = log.verify().lost
    report = log.backup(tmp_path / "backup")
    assert report.damage == ()
    with restored(tmp_path) as again:
        found = again.verify()
        assert [(each.topic, each.first, each.last) for each in found.lost] == [(lost.topic, lost.first, lost.last)]
        assert found.damage == ()
        with pytest.raises(CorruptionError) as told:
            list(again.topic("orders").read())
        assert (told.value.first, told.value.last) == (lost.first, lost.last)
        assert [r.value for r in again.topic("orders").read(lost.last + 1)] == [
            r.value for r in log.topic("orders").read(lost.last + 1)
        ]
        again.topic("orders").append("goes on")


def test_what_was_lost_and_trimmed_since_is_not_counted(log, tmp_path):
    topic = fill(log, partitions=1, count=300)
    log.sync()
    flip(segments(tmp_path / "log")[0], 64 + 96 + 9)
    log.repair()
    assert log.backup(tmp_path / "backup").lost_records == 50
    topic.trim({0: 100})
    report = log.backup(tmp_path / "backup")
    assert (report.records, report.lost_records) == (200, 0)
    result = tailrace.Log.restore(tmp_path / "backup", tmp_path / "again")
    assert (result.records, result.lost_records) == (200, 0)
