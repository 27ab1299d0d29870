"""Vacuum of deleted records: they go from the disk, their marks are forgotten, and no reader sees one again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import tailrace
from tailrace import bulk
from tailrace.errors import CorruptionError, RecordGoneError
from tailrace.marks import find_marks


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


def filled(log, count=400, **settings):
    topic = log.topic("orders", mutable=True, segment_bytes="16KiB", **settings)
    for number in range(count):
        topic.append(b"secret-%06d." % number + bytes(200), key=b"k%d" % (number % 7))
    return topic


def stored(log) -> bytes:
    """Every byte of the segments of the topic."""
    return b"".join(path.read_bytes() for path in sorted(Path(log.location, "topics").glob("*-orders/**/*.seg")))


def offsets(topic):
    return [record.offset for record in topic.read()]


def shown(topic):
    return {record.offset: record.value for record in topic.read()}


def marks_of(log):
    marks = find_marks(log.engine, log.engine.entry("orders").id, 0)
    assert marks is not None
    return marks.follow().table


def test_deleted_records_go_from_the_disk_also_from_the_active_segment(log):
    topic = filled(log)
    gone = [0, 1, 2, 50, 51, 199, 397, 399]
    assert topic.delete(gone) == len(gone)
    left = [number for number in range(400) if number not in gone]
    assert offsets(topic) == left
    before = {record.offset: (record.key, record.value, record.timestamp_us) for record in topic.read()}
    assert all(b"secret-%06d." % number in stored(log) for number in gone)
    dry = log.vacuum(dry_run=True)
    assert sum(note.records for note in dry.rewritten) == len(gone)
    assert all(b"secret-%06d." % number in stored(log) for number in gone)
    report = log.vacuum()
    assert sum(note.records for note in report.rewritten) == len(gone)
    assert "were deleted" in report.rewritten[0].why
    assert not any(b"secret-%06d." % number in stored(log) for number in gone)
    assert {record.offset: (record.key, record.value, record.timestamp_us) for record in topic.read()} == before
    assert [*marks_of(log)] == []
    assert topic.read().count() == len(left) == log.topics()[0].records
    with pytest.raises(RecordGoneError) as caught:
        topic.get(50)
    assert caught.value.reason == "deleted"
    assert log.vacuum().rewritten == ()
    assert log.verify().ok
    # What is gone stays gone: deleting it again counts nothing, and the next record has the next offset.
    assert topic.delete(gone) == 0
    assert topic.append(b"next").offset == 400


def test_readers_that_have_the_old_version_open_never_show_a_deleted_record(log):
    topic = filled(log)
    log.sync()
    reader = iter(topic.read())
    backward = iter(topic.read(reverse=True))
    batches = topic.read().batches(5)
    plan = bulk.plan(log, "orders")
    shown = [next(reader).offset for _ in range(10)]
    assert [next(backward).offset for _ in range(3)] == [399, 398, 397]
    next(batches)
    # A loop over records has made up to 256 of them; those further on, in either direction, are deleted.
    gone, early = [*range(300, 320), *range(330, 395, 2)], [*range(100, 130)]
    topic.delete([*gone, *early])
    log.vacuum()
    topic.delete([395])
    log.vacuum()
    assert [*marks_of(log)] == []
    for rest in ([record.offset for record in reader], [record.offset for batch in batches for record in batch]):
        assert not {*rest} & {*gone, 395}
        assert rest[-1] == 399
    assert shown == [*range(10)]
    assert not {record.offset for record in backward} & {*early}
    # A plan finds its offsets in the new versions; what is left of them is shown.
    found = [record.offset for part in plan for batch in bulk.read(part) for record in batch]
    assert found == [number for number in range(400) if number not in (*gone, *early, 395)]


def test_a_deletion_from_a_rewritten_segment_is_as_short_as_from_another(log):
    topic = filled(log)
    topic.delete([5])
    log.vacuum()
    marks = find_marks(log.engine, log.engine.entry("orders").id, 0)
    assert marks is not None
    assert marks.left(marks.follow(), [(0, 20)]) == [(0, 5), (6, 20)]


def test_backup_and_restore_between_delete_and_vacuum(log, tmp_path):
    topic = filled(log)
    topic.delete(range(100, 150))
    log.backup(tmp_path / "marked")
    log.vacuum()
    log.backup(tmp_path / "rewritten")
    for name in ("marked", "rewritten"):
        tailrace.Log.restore(tmp_path / name, tmp_path / f"{name}-restored")
        with tailrace.open(tmp_path / f"{name}-restored") as other:
            assert offsets(other.topic("orders")) == [*range(100), *range(150, 400)]
            other.vacuum()
            assert offsets(other.topic("orders")) == [*range(100), *range(150, 400)]
            assert b"secret-000120." not in stored(other)
            assert other.verify().ok


def test_random_deletes_lives_and_vacuums_against_a_model(tailrace_log, tailrace_clock, rng: Random):
    log = tailrace_log
    tailrace_clock.freeze(1_790_000_000_000_000)
    topic = log.topic("orders", mutable=True, segment_bytes="4KiB")
    model: dict[int, tuple[bytes, int | None]] = {}
    for turn in range(300):
        act = rng.random()
        if act < 0.5:
            life = rng.choice([None, 5, 50])
            value = b"%d" % turn + bytes(rng.randrange(300))
            ends = None if life is None else tailrace_clock.now_us + life * 1_000_000
            for offset in topic.extend([value] * rng.randrange(1, 4), ttl=life)[0]:
                model[offset] = (value, ends)
        elif act < 0.8 and model:
            some = rng.sample([*model], min(len(model), rng.randrange(1, 6)))
            topic.delete(some)
            for offset in some:
                del model[offset]
        elif act < 0.9:
            tailrace_clock.advance(rng.randrange(1, 10))
        else:
            log.vacuum()
        now = tailrace_clock.now_us
        model = {offset: kept for offset, kept in model.items() if kept[1] is None or kept[1] > now}
        if turn % 5 == 0:
            assert shown(topic) == {at: kept[0] for at, kept in model.items()}
            assert topic.read().count() == len(model)
            assert [record.offset for record in topic.read(last=3)] == [*sorted(model)][-3:]
    log.vacuum()
    assert shown(topic) == {at: kept[0] for at, kept in model.items()}
    assert log.verify().ok


def test_verify_reports_a_segment_that_is_older_than_its_marks(log):
    """As a copy with `cp -r` beside a vacuum may bring it: no reader shows a record of it."""
    topic = filled(log)
    topic.delete([0, 1])
    path = min(Path(log.location, "topics").glob("*-orders/0/*.seg"))
    old = path.read_bytes()
    log.vacuum()
    assert log.verify().ok
    log.close()
    path.write_bytes(old)
    with tailrace.open(log.location) as other:
        (damage,) = other.verify().damage
        assert (damage.topic, damage.first, damage.file) == ("orders", 0, str(path))
        assert "older than the marks" in damage.reason
        with pytest.raises(CorruptionError, match="older than the marks"):
            offsets(other.topic("orders"))


@pytest.mark.parametrize("damage", ["body", "header", "file"])
def test_a_repaired_segment_is_as_new_as_its_marks_say(log, damage):
    """Readers refuse a segment that is older than the marks say: a repair keeps the number of its rewrites."""
    topic = filled(log)
    topic.delete([0, 1, 2, 90])
    log.vacuum()
    path = min(Path(log.location, "topics").glob("*-orders/0/*.seg"))
    data = bytearray(path.read_bytes())
    log.close()
    if damage == "file":
        path.unlink()
    else:
        data[20 if damage == "header" else len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    with tailrace.open(log.location) as other:
        other.repair()
        assert other.verify().damage == ()
        topic = other.topic("orders")
        found = [record.offset for record in topic.read(on_damage="skip")]
        assert not {0, 1, 2, 90} & {*found}
        # What is lost is told as lost; where only the header was damaged, nothing is.
        if damage == "header":
            assert found == offsets(topic) == [number for number in range(400) if number not in (0, 1, 2, 90)]
        else:
            with pytest.raises(CorruptionError, match="Stored records were lost"):
                offsets(topic)
        topic.delete([found[0]])
        other.vacuum()
        assert [record.offset for record in topic.read(on_damage="skip")] == found[1:]
        assert [*marks_of(other)] == []
