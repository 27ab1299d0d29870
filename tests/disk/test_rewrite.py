"""Rewriting: what stays of a segment, as frames and for every way to read; what a rewrite refuses and cleans up."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from random import Random

import pytest

import tailrace
from tailrace import bulk
from tailrace.disk import rewrite as rewriting
from tailrace.disk.files import Files
from tailrace.disk.frame import salt_chain
from tailrace.disk.rewrite import (
    Rewritten,
    finish_interrupted,
    remove_leftovers,
    rewrite,
    rewrites_of,
)
from tailrace.disk.segment import (
    HEADER_BYTES,
    lost_ranges,
    read_footer,
    read_segment_header,
    reading,
    segment_base,
    walk,
)
from tailrace.engine import engine as engines
from tailrace.errors import CorruptionError, RecordGoneError, StorageError
from tailrace.local import log as local

HOUR = 3_600
COUNT = 90


class Clock(Files):
    """The real files with a clock that can be set forward."""

    __slots__ = ("ahead_us", "failing")

    def __init__(self) -> None:
        self.ahead_us = 0
        self.failing = False

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us

    def forward(self, seconds: float) -> None:
        self.ahead_us += round(seconds * 1e6)

    def sync_directory(self, path: str) -> None:
        if self.failing:
            raise OSError(5, "Input/output error", path)
        super().sync_directory(path)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engines, "FILES", clock)
    # These tests rewrite without the vacuum lock, so nothing happens by itself. The facade sets it when it is loaded.
    monkeypatch.setattr(local.worker, "chores", None)
    return clock


@pytest.fixture
def log(tmp_path, clock):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield log


def partition_of(log, name="t", index=0):
    return log.engine.partition(log.engine.entry(name), index)


def bases(partition):
    return sorted(
        base for name in partition.files.list_directory(partition.path) if (base := segment_base(name)) is not None
    )


def close_segment(log, name="t", index=0):
    """Seal the active segment and begin the next."""
    partition = partition_of(log, name, index)

    def roll():
        partition.seal()
        partition.begin_successor()

    log.engine.store.inside(partition, roll)
    return partition


def run(steps):
    """Do all steps of a generator, and return what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def rewrite_all(log, removed=(), name="t", index=0):
    """Rewrite every sealed segment of a partition."""
    partition = partition_of(log, name, index)
    now = partition.files.now_us()
    newest = rewriting._state_of(partition).base
    return [run(rewrite(log.engine.store, partition, base, now, removed)) for base in bases(partition) if base < newest]


@contextmanager
def opened(partition, base):
    files = partition.files
    descriptor = files.open(f"{partition.path}/{base:020d}.seg")
    try:
        header = read_segment_header(files, descriptor)
        yield descriptor, header, read_footer(files, descriptor, header.salt)
    finally:
        files.close(descriptor)


def frames_of(partition, base):
    """The headers of the frames of a segment; its footer fits them."""
    with opened(partition, base) as (descriptor, header, footer):
        read = reading(partition.files, descriptor)
        found = [*walk(read, HEADER_BYTES, 0, salt_chain(header.salt), footer.position, bodies=True)]
        assert found[-1].position + found[-1].header.size == footer.position
        assert found[-1].header.base + found[-1].header.span == footer.span
        assert sum(each.header.count for each in found) == footer.records
        return [each.header for each in found]


def every_read(log, name="t"):
    """Every way to read a topic, as plain values."""
    topic = log.topic(name)

    def plain(records):
        return [(r.partition, r.offset, r.timestamp, r.key, r.value, dict(r.headers)) for r in records]

    found = {"all": plain(topic.read()), "reverse": plain(topic.read(reverse=True)), "last": plain(topic.read(last=7))}
    found["batches"] = plain(record for batch in topic.read().batches(16) for record in batch)
    found["arrow"] = topic.read().to_arrow().to_pylist()
    found["count"] = topic.read().count()
    found["planned"] = plain(
        record for part in bulk.plan(log, name, target_bytes=512) for batch in bulk.read(part) for record in batch
    )
    bounds = topic.offsets()
    for partition, bound in bounds.items():
        for start in range(bound.earliest, bound.latest, 7):
            found[f"from {partition}/{start}"] = plain(islice(topic.read(start, partition=partition), 5))
            found[f"count {partition}/{start}"] = topic.read(start, stop=start + 11, partition=partition).count()
        for offset in range(bound.earliest, bound.latest, 5):
            try:
                found[f"get {partition}/{offset}"] = plain([topic.get(offset, partition=partition)])
            except RecordGoneError:
                found[f"get {partition}/{offset}"] = "gone"
        times = [record[2] for record in found["all"] if record[0] == partition]
        for time in times[::5]:
            found[f"at {partition}/{time}"] = topic.offset_at(time, partition=partition)
    with log.consumer(name, f"g{len(log.groups())}", stop="now") as consumer:
        found["group"] = plain(consumer)
    return found


def fill(topic, random, *, frame, compress=None):
    """Frames of about one size, of which some records expire in an hour and others in a day or never."""
    offset = 0
    while offset < COUNT:
        count = 1 if frame == 1 else random.randint(1, 2 * frame)
        for each in range(offset, offset + count):
            kind = random.choice(["dead", "dead", "day", "never"])
            ttl = {"dead": "1h", "day": "1d", "never": "never"}[kind]
            value = None if each % 3 and each % 13 == 5 else f"value {each}".encode() * random.randint(1, 30)
            key = f"k{each % 4}" if each % 3 else None
            headers = {"n": str(each)} if each % 5 == 0 else None
            topic.append(value, key=key, headers=headers, ttl=ttl, partition=0)
        offset += count


@pytest.mark.parametrize("compress", ["none", "zstd"])
@pytest.mark.parametrize("joined", [1, 9])
def test_a_rewrite_changes_no_visible_record(log, clock, joined, compress):
    """I14: every way to read gives the same before and after, also where whole frames, runs and ends are gone."""
    random = Random(joined)
    topic = log.topic("t", partitions=1, segment_bytes=4096, ttl="1d", compress=compress)
    fill(topic, random, frame=joined)
    topic.extend([f"joined {each}" for each in range(40)], partition=0)
    for each in range(30):
        topic.append(f"late {each}", ttl="1h" if each % 7 else "never", partition=0)
    close_segment(log)
    log.sync()
    clock.forward(2 * HOUR)
    before = every_read(log)
    records = [*topic.read()]
    done = rewrite_all(log)
    assert all(isinstance(each, Rewritten) for each in done)
    assert sum(each.records for each in done) == topic.offsets()[0].latest - len(records)
    assert sum(each.bytes_after for each in done) < sum(each.bytes_before for each in done)
    assert every_read(log) == before
    again = rewrite_all(log)
    assert [each.records for each in again] == [0] * len(again)
    assert [each.rewrites for each in again] == [2] * len(again)
    assert every_read(log) == before
    assert log.verify().damage == ()


def test_ranges_are_taken_out(log, clock):
    """Removed offsets: single ones, whole frames, beginning and end of the segment, and ranges that reach beyond it."""
    topic = log.topic("t", partitions=1, segment_bytes="1MiB")
    for first in range(0, 60, 10):
        topic.extend([f"v{offset}" for offset in range(first, first + 10)], partition=0)
    partition = close_segment(log)
    removed = [(0, 3), (10, 20), (25, 26), (58, 90)]
    [done] = rewrite_all(log, removed)
    assert done.records == 16
    assert done.end == 60
    gone = {offset for first, stop in removed for offset in range(first, stop)}
    assert [record.offset for record in topic.read()] == [offset for offset in range(60) if offset not in gone]
    assert [record.value for record in topic.read()] == [b"v%d" % offset for offset in range(60) if offset not in gone]
    assert topic.read().count() == 44
    with opened(partition, 0) as (descriptor, header, footer):
        assert (header.rewrites, header.base, header.origin != header.salt) == (1, 0, True)
        assert footer.records == 44
        # No header is walked for it.
        assert lost_ranges(partition.files, descriptor) == []
    assert frames_of(partition, 0)[-1].removed
    assert log.verify().ok


def test_everything_gone_is_one_placeholder(log, clock):
    topic = log.topic("t", partitions=1, segment_bytes="1MiB")
    for offset in range(30):
        topic.append(f"v{offset}", ttl="1h")
    partition = close_segment(log)
    clock.forward(2 * HOUR)
    [done] = rewrite_all(log)
    assert done.records == 30
    assert [(header.removed, header.count, header.span) for header in frames_of(partition, 0)] == [(True, 0, 30)]
    assert done.bytes_after < 400
    assert [*topic.read()] == [*topic.read(reverse=True)] == []
    topic.append("next")
    assert [record.offset for record in topic.read()] == [30]


def test_gathered_frames_are_bounded(log, clock):
    topic = log.topic("t", partitions=1, segment_bytes="64MiB", compress="none")
    for offset in range(400):
        topic.append(bytes(20_000), ttl="1h" if offset % 2 else "never")
    partition = close_segment(log)
    clock.forward(2 * HOUR)
    steps = 0
    pending = rewrite(log.engine.store, partition, 0, clock.now_us())
    while True:
        try:
            next(pending)
            steps += 1
        except StopIteration as end:
            done = end.value
            break
    assert steps == 2
    assert done.bytes_after < done.bytes_before * 0.51
    sizes = [header.raw_length for header in frames_of(partition, 0)]
    assert max(sizes) < 1.1 * (1 << 20)
    # The last one is a placeholder for the last record.
    assert len(sizes) == 5


def test_a_reader_finishes_the_old_version(log, clock):
    topic = log.topic("t", partitions=1, segment_bytes="1MiB")
    for offset in range(300):
        topic.append(f"v{offset}" * 40, ttl="1h" if offset % 3 else "never")
    close_segment(log)
    before = [record.offset for record in topic.read()]
    scan, back = iter(topic.read()), iter(topic.read(reverse=True))
    found, reverse = [next(scan).offset for _ in range(5)], [next(back).offset for _ in range(5)]
    clock.forward(2 * HOUR)
    rewrite_all(log)
    found += [record.offset for record in scan]
    reverse += [record.offset for record in back]
    for offsets in (found, reverse[::-1]):
        assert offsets == sorted(set(offsets))
        assert {offset for offset in before if offset % 3 == 0} <= set(offsets)


def test_a_reverse_read_returns_no_record_twice(log, clock, monkeypatch):
    """The frames of the new version begin elsewhere than the stretches of the old one."""
    topic = log.topic("t", partitions=1, segment_bytes="4MiB")
    for offset in range(400):
        topic.append(bytes(1_000) + b"%d" % offset, ttl="1h" if offset % 5 == 0 else "never")
    partition = close_segment(log)
    clock.forward(2 * HOUR)
    expected = [offset for offset in range(400) if offset % 5]
    for taken in (1, 70, 140, 200, 319):
        scan = iter(topic.read(reverse=True))
        offsets = [next(scan).offset for _ in range(taken)]
        rewrite_all(log, [(taken, taken + 1)])
        expected = [offset for offset in expected if offset != taken]
        offsets += [record.offset for record in scan]
        assert len(offsets) == len(set(offsets))
        assert set(expected) <= set(offsets)
    assert partition.rewrites == 10


def test_a_trimmed_segment_does_not_come_back(log, clock):
    """A trim between the reading and the rename: the new version is discarded."""
    topic = log.topic("t", partitions=1, segment_bytes="1MiB")
    topic.append("dead", ttl="1h")
    partition = close_segment(log)
    topic.append("live")
    clock.forward(2 * HOUR)
    pending = rewrite(log.engine.store, partition, 0, clock.now_us())
    next(pending)
    topic.trim(1)
    assert run(pending) is None
    assert bases(partition) == [1]
    assert partition.rewrites == 0
    assert not [name for name in partition.files.list_directory(partition.path) if name.endswith(".rewrite")]


def test_another_version_is_not_replaced(log, clock):
    topic = log.topic("t", partitions=1, segment_bytes="1MiB")
    topic.append("dead", ttl="1h")
    topic.append("live")
    partition = close_segment(log)
    clock.forward(2 * HOUR)
    first = rewrite(log.engine.store, partition, 0, clock.now_us())
    next(first)
    assert run(rewrite(log.engine.store, partition, 0, clock.now_us())).rewrites == 1
    assert run(first) is None
    assert partition.rewrites == 2


def test_a_dropped_topic_ends_a_rewrite(log, clock):
    topic = log.topic("t", partitions=1, segment_bytes="1MiB")
    topic.append("dead", ttl="1h")
    partition = close_segment(log)
    pending = rewrite(log.engine.store, partition, 0, clock.now_us())
    next(pending)
    topic.drop()
    assert run(pending) is None


def test_an_abandoned_rewrite_leaves_nothing(log, clock):
    topic = log.topic("t", partitions=1, segment_bytes="1MiB")
    topic.append("dead", ttl="1h")
    partition = close_segment(log)
    pending = rewrite(log.engine.store, partition, 0, clock.now_us())
    next(pending)
    assert any(name.endswith(".rewrite") for name in partition.files.list_directory(partition.path))
    pending.close()
    assert bases(partition) == [0, 1]
    assert len(partition.files.list_directory(partition.path)) == 2


def test_leftovers_are_removed(log, clock, tmp_path):
    log.topic("t", partitions=1).append("x")
    partition = partition_of(log)
    for name in ("00000000000000000000.seg.rewrite", "unrelated.rewrite"):
        (tmp_path / "log" / partition.path.split("/log/", 1)[1] / name).write_bytes(b"x" * 100)
    assert remove_leftovers(partition.files, partition.path) == 1
    assert "unrelated.rewrite" in partition.files.list_directory(partition.path)


def test_damage_is_not_rewritten(log, clock, tmp_path):
    """A rewrite of damaged frames would make the damage look like removed records."""
    topic = log.topic("t", partitions=1, segment_bytes="1MiB")
    for offset in range(20):
        topic.append(f"v{offset}" * 20, ttl="1h" if offset % 2 else "never")
    partition = close_segment(log)
    clock.forward(2 * HOUR)
    with open(f"{partition.path}/{0:020d}.seg", "r+b") as file:
        file.seek(1_000)
        file.write(b"damage")
    with pytest.raises(CorruptionError):
        rewrite_all(log)
    assert len(partition.files.list_directory(partition.path)) == 2
    assert partition.rewrites == 0


def test_a_failed_sync_of_the_name_is_repeated_by_a_rename(log, clock):
    """The count stays odd, nothing is cached, and the next rewrite writes the segment once more, then its own."""
    topic = log.topic("t", partitions=1, segment_bytes="1MiB")
    for _ in range(2):
        topic.append("dead", ttl="1h")
        topic.append("live")
        partition = close_segment(log)
    clock.forward(2 * HOUR)
    clock.failing = True
    with pytest.raises(StorageError):
        run(rewrite(log.engine.store, partition, 0, clock.now_us()))
    clock.failing = False
    assert rewrites_of(rewriting._state_of(partition)) == 1
    assert topic.read().count() == 2
    assert partition.path not in log.engine.store.indexes.facts.known
    done = run(rewrite(log.engine.store, partition, 2, clock.now_us()))
    assert (done.base, done.rewrites) == (2, 1)
    with opened(partition, 0) as (_, header, _):
        assert header.rewrites == 2
    assert partition.rewrites % 2 == 0
    assert [record.offset for record in topic.read()] == [1, 3]
    run(finish_interrupted(log.engine.store, partition))
    assert topic.read().count() == 2
    assert partition.path in log.engine.store.indexes.facts.known


def test_the_count_stays_odd_until_the_last_is_renamed(log, clock):
    """Three segments may not have their names on disk: a death after the first leaves the count odd."""
    topic = log.topic("t", partitions=1, segment_bytes="1MiB")
    for _ in range(3):
        topic.append("dead", ttl="1h")
        partition = close_segment(log)
    clock.forward(2 * HOUR)
    rewrite_all(log)
    store = log.engine.store
    store.inside(partition, lambda: partition.count_rewrites(7))
    seen = [partition.rewrites & 1 for _ in finish_interrupted(store, partition)]
    assert seen == [1, 1, 1]
    assert partition.rewrites == 14
    for base in range(3):
        with opened(partition, base) as (_, header, _):
            assert header.rewrites == 2


def test_a_recovery_finds_rewritten_segments(tmp_path, clock):
    """Their spans are unchanged, leftovers go, and the count is even and not 0."""
    path = tmp_path / "log"
    with tailrace.open(path, durable=False) as log:
        topic = log.topic("t", partitions=1, segment_bytes="1MiB")
        for offset in range(40):
            topic.append(f"v{offset}", ttl="1h" if offset % 4 else "never")
        partition = close_segment(log)
        topic.append("newest")
        clock.forward(2 * HOUR)
        rewrite_all(log)
        log.engine.store.inside(partition, lambda: partition.count_rewrites(5))
        before = [(record.offset, record.value) for record in topic.read()]
        directory = partition.path
    (path / "tails").unlink()
    with open(f"{directory}/{0:020d}.seg.rewrite", "wb") as file:
        file.write(b"left")
    with tailrace.open(path) as log:
        partition = partition_of(log)
        assert [(record.offset, record.value) for record in log.topic("t").read()] == before
        assert rewrites_of(rewriting._state_of(partition)) == 2
        assert not any(name.endswith(".rewrite") for name in partition.files.list_directory(directory))
        assert log.verify().ok
