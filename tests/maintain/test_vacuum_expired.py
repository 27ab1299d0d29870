"""The vacuum of topics whose records expire: what is trimmed, what is rewritten, by hand and by itself."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest

import tailrace
from tailrace import bulk, errors, settings
from tailrace.disk import rewrite as rewriting
from tailrace.disk.files import Files
from tailrace.disk.segment import segment_base
from tailrace.engine import background as workers
from tailrace.engine import engine as engines
from tailrace.local import log as local
from tailrace.settings import Tuning

HOUR = 3_600


class Clock(Files):
    """The real files with a clock that can be set forward, and a disk that has only so much room."""

    __slots__ = ("ahead_us", "room")

    def __init__(self) -> None:
        self.ahead_us = 0
        self.room: int | None = None

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us

    def forward(self, seconds: float) -> None:
        self.ahead_us += round(seconds * 1e6)

    def free_bytes(self, path: str) -> int:
        return super().free_bytes(path) if self.room is None else self.room


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engines, "FILES", clock)
    return clock


@pytest.fixture
def quiet(monkeypatch):
    """Nothing happens by itself."""
    # The facade sets it when it is loaded.
    assert local.worker is workers
    monkeypatch.setattr(workers, "chores", None)


@pytest.fixture
def log(tmp_path, clock, quiet):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield log


def files_of(log, name="t", index=0):
    partition = log.engine.partition(log.engine.entry(name), index)
    return {
        base: path.stat().st_size
        for path in Path(partition.path).iterdir()
        if (base := segment_base(path.name)) is not None
    }


def offsets(topic):
    return [record.offset for record in topic.read()]


def test_a_beginning_that_expired_is_trimmed(log, clock):
    topic = log.topic("t", partitions=1, segment_bytes=4096, ttl="1h")
    for _ in range(10):
        topic.append(bytes(1_000))
    clock.forward(2 * HOUR)
    for _ in range(3):
        topic.append(bytes(1_000))
    report = log.vacuum()
    assert report.segments == 3
    assert all(note.why == "all of its records have expired" for note in report.removed)
    assert topic.offsets()[0].earliest == 9
    # The rest is in a segment that was active, and is rewritten.
    assert [(note.first, note.last, note.records) for note in report.rewritten] == [(9, 11, 1)]
    assert offsets(topic) == [10, 11, 12]


def test_an_active_segment_full_of_expired_records_goes(log, clock):
    topic = log.topic("t", partitions=1, ttl="1h")
    topic.append("dead")
    assert log.vacuum().segments == 0
    clock.forward(2 * HOUR)
    report = log.vacuum()
    assert (report.segments, report.records, report.rewritten) == (1, 1, ())
    assert topic.offsets()[0][:2] == (1, 1)
    topic.append("next")
    assert offsets(topic) == [1]


def test_nine_tenths_expired_takes_little_more_than_what_lives(log, clock):
    """At most 1.3 times the live bytes, whatever the frames are."""
    for name, many in (("single", 1), ("batches", 50)):
        topic = log.topic(name, partitions=1, segment_bytes="256KiB", ttl="10h")
        live = 0
        for number in range(3_000 // many):
            ttl = "10h" if number % 10 == 3 else "1h"
            if many == 1:
                topic.append(b"%06d" % number * 20, ttl=ttl)
            else:
                topic.extend([b"%06d" % number * 20] * many, ttl=ttl)
            live += many if ttl == "10h" else 0
        fresh = log.topic(f"{name} live", partitions=1, segment_bytes="256KiB", ttl="10h")
        for _ in range(live // many):
            fresh.append(bytes(120)) if many == 1 else fresh.extend([bytes(120)] * many)
    clock.forward(2 * HOUR)
    before = {name: offsets(log.topic(name)) for name in ("single", "batches")}
    report = log.vacuum()
    assert {note.topic for note in report.rewritten} == {"single", "batches"}
    for name, found in before.items():
        assert offsets(log.topic(name)) == found
        log.topic(f"{name} live").append("x", ttl="never")
        live = sum(files_of(log, f"{name} live").values())
        assert sum(files_of(log, name).values()) <= 1.3 * live
    assert log.verify().ok


def test_a_dry_run_says_what_a_vacuum_does(log, clock):
    topic = log.topic("t", partitions=1, segment_bytes="64KiB", ttl="1d")
    for number in range(300):
        topic.append(bytes(1_000), ttl="1h" if number % 3 else "1d")
    clock.forward(2 * HOUR)
    before = files_of(log)
    dry = log.vacuum(dry_run=True)
    assert files_of(log) == before
    real = log.vacuum()
    told = [(*note[:4], note.records, note.why) for note in dry.rewritten]
    assert told == [(*note[:4], note.records, note.why) for note in real.rewritten]
    assert sum(note.records for note in dry.rewritten) == 200
    for one, other in zip(dry.rewritten, real.rewritten, strict=True):
        assert abs(one.bytes_after - other.bytes_after) < 0.2 * other.bytes_before
    assert {note.first: note.bytes_after for note in real.rewritten}.items() <= files_of(log).items()
    assert log.vacuum().rewritten == ()
    assert dry.to_json()["rewritten"][0]["records"] == dry.rewritten[0].records
    assert pickle.loads(pickle.dumps(real)).rewritten == real.rewritten


def test_records_of_a_topic_without_a_ttl(log, clock):
    """A ttl of single records is enough for both."""
    topic = log.topic("t", partitions=1, segment_bytes=4096)
    for number in range(12):
        topic.append(bytes(1_000), ttl="1h" if number < 3 or number > 4 else None)
    clock.forward(2 * HOUR)
    report = log.vacuum()
    assert report.segments == 1
    assert [note.records for note in report.rewritten] == [1, 3, 3]
    assert offsets(topic) == [3, 4]
    assert log.topics()[0].records == 2


def test_unread_records_are_not_trimmed_but_rewritten(log, clock):
    """A group that is waited for keeps its cursor in the partition; the space of what expired comes back."""
    topic = log.topic("t", partitions=1, segment_bytes=4096, ttl="1h", keep_unread=["g"])
    for _ in range(9):
        topic.append(bytes(1_000))
    topic.append("newest", ttl="never")
    clock.forward(2 * HOUR)
    report = log.vacuum()
    assert report.segments == 0
    assert sum(note.records for note in report.rewritten) == 9
    assert topic.offsets()[0].earliest == 0
    with log.consumer("t", "g", stop="now") as consumer:
        assert [record.offset for record in consumer] == [9]
        assert consumer.lost() == [] if callable(consumer.lost) else consumer.lost == []


def test_rewrites_wait_on_a_full_disk_and_trims_go_on(log, clock):
    topic = log.topic("t", partitions=2, segment_bytes=4096, ttl="1h")
    for number in range(12):
        topic.append(bytes(1_000), partition=0)
        topic.append(bytes(1_000), partition=1, ttl="1h" if number % 2 else "never")
    clock.forward(2 * HOUR)
    clock.room = 1_000
    report = log.vacuum()
    assert report.segments == 4
    assert [(note.records, note.bytes_after == note.bytes_before) for note in report.rewritten] == [(0, True)]
    assert "room" in report.rewritten[0].why
    clock.room = None
    assert sum(note.records for note in log.vacuum().rewritten) == 6


def test_damage_is_left_alone_and_said(log, clock):
    topic = log.topic("t", partitions=1, segment_bytes=4096, ttl="1h")
    for number in range(8):
        topic.append(bytes(1_000), ttl="1h" if number % 2 else "never")
    partition = log.engine.partition(log.engine.entry("t"), 0)
    with open(f"{partition.path}/{0:020d}.seg", "r+b") as file:
        file.seek(1_300)
        file.write(b"damage")
    clock.forward(2 * HOUR)
    report = log.vacuum()
    assert [note.why.startswith("it cannot be rewritten") for note in report.rewritten] == [True, False, False]


def test_leftovers_of_a_dead_rewrite_go(log, clock):
    topic = log.topic("t", partitions=1)
    topic.append("x")
    left = Path(log.engine.partition(log.engine.entry("t"), 0).path) / f"{0:020d}.seg.rewrite"
    left.write_bytes(b"left")
    log.vacuum(dry_run=True)
    assert left.exists()
    log.vacuum()
    assert not left.exists()


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_happens_by_itself(tmp_path, clock, monkeypatch):
    """Half of a segment has expired: it is rewritten in the background, one segment a round; less is left alone."""
    monkeypatch.setattr(settings, "TUNING", Tuning(vacuum_seconds=0.05, flush_seconds=0.05, rewrite_bytes_min=100_000))
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("t", partitions=1, segment_bytes="512KiB", ttl="1d", durable=False)
        for number in range(80):
            # Two thirds of the first segments, a tenth of the others.
            dead = 2 <= number % 15 < 13 if number < 30 else number % 10 == 0
            topic.append(bytes(33_000), ttl="1h" if dead else "1d")
        before = files_of(log)
        clock.forward(2 * HOUR)
        topic.append("wake")
        found = offsets(topic)
        wait_for(lambda: sum(files_of(log)[base] < 0.5 * size for base, size in before.items()) == 2)
        time.sleep(0.3)
        assert sum(files_of(log)[base] < size for base, size in before.items()) == 2
        assert offsets(topic) == found
        partition = log.engine.partition(log.engine.entry("t"), 0)
        assert partition.rewrites == 4


def test_a_failed_name_is_finished_by_the_next_vacuum(log, clock, monkeypatch):
    topic = log.topic("t", partitions=1, segment_bytes=4096, ttl="1h")
    for number in range(8):
        topic.append(bytes(1_000), ttl="1h" if number % 2 else "never")
    clock.forward(2 * HOUR)
    partition = log.engine.partition(log.engine.entry("t"), 0)
    real = Files.sync_directory

    def fail(self, path):
        if path == partition.path and any(Path(path).glob("*.seg")) and partition.rewrites & 1:
            raise OSError(5, "Input/output error", path)
        real(self, path)

    monkeypatch.setattr(Clock, "sync_directory", fail, raising=False)
    report = log.vacuum()
    assert all(note.why.startswith("it cannot be rewritten") for note in report.rewritten)
    assert partition.rewrites & 1
    monkeypatch.undo()
    monkeypatch.setattr(workers, "chores", None)
    log.vacuum()
    assert partition.rewrites & 1 == 0
    assert offsets(topic) == [0, 2, 4, 6]


def test_a_plan_from_before_reads_the_new_version(log, clock):
    topic = log.topic("t", partitions=1, segment_bytes="64KiB", ttl="1d")
    for number in range(200):
        topic.append(b"%d" % number * 300, ttl="1h" if number % 4 else "1d")
    log.sync()
    parts = bulk.plan(log, "t", target_bytes="64KiB")
    assert len(parts) == 3
    clock.forward(2 * HOUR)
    expected = [(record.offset, record.value) for record in topic.read()]

    def planned(parts):
        return [(record.offset, record.value) for part in parts for batch in bulk.read(part) for record in batch]

    log.vacuum()
    # The moment of the plan does not bring back what the rewrite took out.
    assert planned(pickle.loads(pickle.dumps(parts))) == expected
    later = bulk.plan(log, "t")
    clock.forward(24 * HOUR)
    topic.append("newest")
    assert planned(later) == expected
    log.vacuum()
    with pytest.raises(errors.OffsetOutOfRangeError, match="gone"):
        planned(later)


def test_a_plan_of_another_segment_is_planned_again(log, clock):
    """A file with another origin under the same name, as after a repair: OffsetOutOfRangeError, no damage."""
    topic = log.topic("t", partitions=1, segment_bytes=4096)
    for _ in range(8):
        topic.append(bytes(1_000))
    log.sync()
    [first, *_] = bulk.plan(log, "t", target_bytes=512)
    with pytest.raises(errors.OffsetOutOfRangeError, match="plan again") as caught:
        [*bulk.read(first._replace(salt=first.salt ^ 1, origin=first.origin ^ 1))]
    assert "plan again" in str(caught.value) or "plan again" in (caught.value.hint or "")


def half_expired(log, clock, name="t"):
    """Three segments: two of which two of three records have expired, and an active one."""
    topic = log.topic(name, partitions=1, segment_bytes=4096, ttl="1d")
    for number in range(8):
        topic.append(b"%d" % number * 1_000, ttl="1h" if number % 3 else "1d")
    clock.forward(2 * HOUR)
    return topic


def test_counts_leave_out_what_a_rewrite_removed(log, clock, tmp_path):
    """Statistics, topics, lag and the report of a backup; also after a restore and a recovery."""
    topic = half_expired(log, clock)
    with log.consumer("t", "g", stop="now") as consumer:
        next(consumer)
    assert log.topics()[0].records == 8
    log.vacuum()
    assert topic.read().count() == 3
    assert log.topics()[0].records == log.stats().records == 3
    assert log.topics()[0].lost_records == 0
    assert log.backup(tmp_path / "backup").records == 3
    # A second backup has the same segments, and knows it from its manifest.
    again = log.backup(tmp_path / "backup")
    assert (again.records, again.copied_files) == (3, 0)
    assert log.group("g").lag_records == 3
    assert log.verify().lost == ()
    assert not [finding for finding in log.doctor() if finding.severity == "error"]
    tailrace.Log.restore(tmp_path / "backup", tmp_path / "restored")
    with tailrace.open(tmp_path / "restored") as restored:
        assert [record.offset for record in restored.topic("t").read()] == [0, 3, 6]
        assert restored.topics()[0].records == 3
        restored.topic("t").append("next")
        assert restored.topics()[0].records == 4


def test_lost_records_stay_lost(tmp_path, clock, quiet):
    """A repair's placeholder is kept by a rewrite, and still told."""
    path = tmp_path / "log"
    with tailrace.open(path) as log:
        half_expired(log, clock)
        partition = log.engine.partition(log.engine.entry("t"), 0)
        file = Path(partition.path) / f"{3:020d}.seg"
    data = bytearray(file.read_bytes())
    at = data.index(b"3" * 1_000)
    data[at : at + 4] = b"xxxx"
    file.write_bytes(data)
    tailrace.repair(path)
    with tailrace.open(path) as log:
        assert [note.records for note in log.vacuum().rewritten] == [2, 2, 1]
        info = log.topics()[0]
        assert (info.records, info.lost_records) == (2, 1)
        assert [(each.first, each.last) for each in log.verify().lost] == [(3, 3)]
        assert [record.offset for record in log.topic("t").read(on_damage="skip")] == [0, 6]
        with pytest.raises(errors.CorruptionError, match="3"):
            [*log.topic("t").read()]
        report = log.backup(tmp_path / "backup")
        assert (report.records, report.lost_records) == (2, 1)


def test_a_damaged_rewritten_segment_is_repaired(tmp_path, clock, quiet):
    path = tmp_path / "log"
    with tailrace.open(path) as log:
        half_expired(log, clock)
        log.vacuum()
        partition = log.engine.partition(log.engine.entry("t"), 0)
        file = Path(partition.path) / f"{3:020d}.seg"
        (Path(partition.path) / f"{3:020d}.seg.rewrite").write_bytes(b"left")
    data = bytearray(file.read_bytes())
    at = data.index(b"3" * 1_000)
    data[at : at + 4] = b"xxxx"
    file.write_bytes(data)
    with tailrace.open(path) as log:
        assert [(each.first, each.last) for each in log.verify().damage] == [(3, 3)]
    tailrace.repair(path)
    assert not [*path.rglob("*.rewrite")]
    with tailrace.open(path) as log:
        assert log.verify().ok
        assert [record.offset for record in log.topic("t").read(on_damage="skip")] == [0, 6]
        assert log.topics()[0].lost_records == 1


def test_a_backup_waits_for_the_vacuum(log, clock, tmp_path):
    """And says which process vacuums, if it waits too long."""
    half_expired(log, clock)
    held: list[int] = []
    log.engine.worker.hold(0.0, held)
    try:
        log.engine.timeout = 0.2
        with pytest.raises(errors.LockedError, match="vacuum"):
            log.backup(tmp_path / "backup")
    finally:
        log.engine.worker.let_go(held)
    assert log.backup(tmp_path / "backup").records == 8


def test_an_interrupted_vacuum_leaves_no_file(log, clock, monkeypatch):
    """Its new version is gone before another process can get the lock."""
    half_expired(log, clock)
    partition = log.engine.partition(log.engine.entry("t"), 0)
    released = []
    real = log.engine.worker.let_go

    def let_go(held):
        released.append([path.name for path in Path(partition.path).glob("*.rewrite")])
        real(held)

    calls = 0

    def interrupt(files, descriptor):
        nonlocal calls
        calls += 1
        raise KeyboardInterrupt

    monkeypatch.setattr(log.engine.worker, "let_go", let_go)
    monkeypatch.setattr(rewriting.RewriteWriter, "finish", lambda writer: interrupt(writer, 0))
    with pytest.raises(KeyboardInterrupt):
        log.vacuum()
    assert calls == 1
    assert released == [[]]
    assert log.topic("t").read().count() == 3
