"""Staging: a segment that no reader sees is whole on disk, or is not there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import tailrace
from tailrace.disk.files import Files
from tailrace.disk.frame import prepare, prepare_one
from tailrace.disk.segment import read_footer, read_segment_header
from tailrace.disk.staging import WRITE_BYTES, StagedWriter, Write, discard, gone, stage, staged_name
from tailrace.disk.tails import INCARNATION
from tailrace.errors import DiskFullError, TopicNotFoundError
from tests.full_disk import FullDisk

TIME = 1_700_000_000_000_000


@pytest.fixture
def partition(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        log.topic("orders", partitions=1)
        yield log.engine.partition(log.engine.entry("orders"), 0)


def frames(count, first=0, size=0):
    return [
        prepare_one(b"%d" % number + bytes(size), None, b"", TIME + number) for number in range(first, first + count)
    ]


def test_a_staged_segment_is_sealed_and_not_yet_a_segment(partition):
    staged = stage(partition, frames(5))
    assert staged.name == staged_name(staged.salt)
    assert (staged.span, staged.records) == (5, 5)
    assert partition.end == 0
    descriptor = partition.files.open(f"{partition.path}/{staged.name}")
    header = read_segment_header(partition.files, descriptor)
    footer = read_footer(partition.files, descriptor, staged.salt)
    partition.files.close(descriptor)
    assert (header.topic_id, header.partition, header.salt) == (partition.topic_id, 0, staged.salt)
    assert (footer.position, footer.span, footer.chain) == (staged.position, 5, staged.chain)
    assert (footer.min_time, footer.max_time) == (TIME, TIME + 4)


def test_frames_come_in_several_calls_and_are_written_in_large_pieces(partition):
    writer = StagedWriter(partition.files, partition.path, partition.topic_id, 0)
    size = WRITE_BYTES // 4
    writer.add(frames(2, size=size))
    waiting = len(writer.waiting)
    writer.add(frames(10, 2, size=size))
    assert waiting > 0
    assert writer.written > WRITE_BYTES
    writer.flush()
    assert (writer.written, writer.waiting) == (writer.bytes, [])
    assert writer.finish().span == 12


def test_without_an_end_it_is_removed(partition):
    writer = StagedWriter(partition.files, partition.path, partition.topic_id, 0)
    writer.add(frames(2))
    assert Path(writer.path).exists()
    writer.abandon()
    writer.abandon()
    assert not Path(writer.path).exists()


def test_a_full_disk_leaves_nothing_and_is_told(tmp_path):
    disk = FullDisk()
    writer = StagedWriter(disk, str(tmp_path), 1, 0)
    writer.add(frames(2))
    disk.full = True
    with pytest.raises(DiskFullError, match="staging a segment failed") as caught:
        writer.finish()
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_a_topic_that_was_dropped_meanwhile_is_told(partition):
    files = Path(partition.path)
    files.rmdir()
    partition.context.tails.words[partition.word + INCARNATION] = 0
    with pytest.raises(TopicNotFoundError):
        stage(partition, frames(1))


def test_the_span_of_a_write_is_that_of_its_frames_or_of_its_segment(partition):
    (many,) = prepare([b"a", b"b", b"c"], None, None, TIME)
    assert Write(partition, [many, *frames(2)]).span == 5
    assert Write(partition, (), None, stage(partition, frames(4))).span == 4


def test_a_file_that_is_gone(tmp_path):
    path = str(tmp_path / staged_name(7))
    assert not discard(Files(), path)
    Path(path).write_bytes(b"")
    assert discard(Files(), path)
    error = gone(path)
    assert path in str(error)
    assert "Stage it again" in error.hint
