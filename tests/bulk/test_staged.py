"""Staged parts: written by workers without the log, read back before their commit, and discarded."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace import bulk
from tailrace.bulk import PartWriter
from tailrace.errors import CorruptionError, NotALogError, StorageError


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        opened.topic("a", partitions=2)
        yield opened


def writer_on(log, partition=1, location=None):
    return PartWriter(location or log.location, "a", bulk.find_topic(log, "a").id, partition)


def staged_files(log):
    return sorted(Path(log.location).glob("topics/*/*/*.staged"))


def test_a_worker_stages_and_the_coordinator_commits(log):
    writer = writer_on(log)
    writer.add(bulk.build([b"1", b"2"]))
    assert writer.bytes > 0
    writer.flush()
    writer.add(bulk.build([b"3"], [b"key"]))
    part = pickle.loads(pickle.dumps(writer.finish()))
    assert (part.topic, part.partition, part.records) == ("a", 1, 3)
    assert [str(path) for path in staged_files(log)] == [part.path]
    assert bulk.commit(log, [part]).ranges == (("a", 1, 0, 3),)
    assert [(record.partition, record.value) for record in log.topic("a").read()] == [(1, b"1"), (1, b"2"), (1, b"3")]
    assert log.verify().ok


def test_a_process_without_the_log(log):
    program = (
        "import pickle, sys\n"
        "from tailrace.bulk import PartWriter, build\n"
        "writer = PartWriter(sys.argv[1], 'a', int(sys.argv[2]), 0)\n"
        "writer.add(build([b'x'] * 5))\n"
        "sys.stdout.buffer.write(pickle.dumps(writer.finish()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, log.location, str(bulk.find_topic(log, "a").id)],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert bulk.commit(log, [pickle.loads(done.stdout)]).applied
    assert log.topic("a").read().count() == 5


def test_a_part_is_read_before_its_commit(log):
    writer = writer_on(log)
    writer.add(bulk.build([b"%d" % number for number in range(1_000)]))
    part = writer.finish()
    records = [record for batch in bulk.read(part.as_read_part()) for record in batch]
    assert [record.offset for record in records] == list(range(1_000))
    assert records[-1].value == b"999"


@pytest.mark.parametrize("max_bytes", [1, 3_000, 1 << 30])
def test_its_frames_come_in_pieces(log, max_bytes):
    writer = writer_on(log)
    for number in range(20):
        writer.add(bulk.build([b"%d" % number * 500]))
    part = writer.finish()
    pieces = [*bulk.staged_frames(log, part, max_bytes)]
    assert len(pieces) == {1: 20, 1 << 30: 1}.get(max_bytes, len(pieces))
    assert sum(piece.records for piece in pieces) == 20
    bulk.commit(log, [bulk.InlinePart("a", 0, piece) for piece in pieces])
    assert [record.value for record in log.topic("a").read()] == [b"%d" % number * 500 for number in range(20)]


def test_damaged_pieces_are_noticed(log):
    writer = writer_on(log)
    writer.add(bulk.build([b"value" * 100]))
    part = writer.finish()
    data = bytearray(Path(part.path).read_bytes())
    data[part.bytes // 2] ^= 1
    Path(part.path).write_bytes(data)
    with pytest.raises(CorruptionError, match="staged segment"):
        list(bulk.staged_frames(log, part, 1 << 20))


def test_what_was_not_handed_over_is_removed(log):
    finished, begun = writer_on(log), writer_on(log)
    finished.add(bulk.build([b"1"]))
    part = finished.finish()
    begun.add(bulk.build([b"2"]))
    begun.abandon()
    begun.abandon()
    finished.abandon()
    assert [str(path) for path in staged_files(log)] == [part.path]
    assert bulk.discard_staged([part]) == 1
    assert bulk.discard_staged([part]) == 0
    assert staged_files(log) == []


def test_a_log_that_is_not_seen(log, tmp_path):
    with pytest.raises(
        NotALogError, match=r"There is no log at .*elsewhere on .*, which was to stage .* a\[1\]"
    ) as caught:
        writer_on(log, location=str(tmp_path / "elsewhere"))
    assert "Nothing of it was written" in caught.value.hint


def test_a_partition_that_is_not_there(log):
    with pytest.raises(StorageError, match="Staging a segment failed"):
        writer_on(log, partition=7)
    assert staged_files(log) == []
