"""Bulk work: plans are read from files alone, and a commit of many parts happens once or not at all."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from tailrace.bulk import (
    FrameBuilder,
    build,
    plan,
    read,
    read_arrow,
)
from tailrace.errors import (
    CorruptionError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


def fill(topic, count, frame=100, partition=0, first=0):
    for at in range(first, first + count, frame):
        topic.extend([f"{number:08d}" * 5 for number in range(at, at + frame)], partition=partition)


def offsets(parts):
    return [(record.partition, record.offset) for part in parts for batch in read(part) for record in batch]


class TestPlans:
    def test_parts_hold_every_record_once_and_in_order(self, log):
        topic = log.topic("orders", partitions=2, segment_bytes="256KiB")
        fill(topic, 20_000)
        fill(topic, 3_000, partition=1)
        parts = plan(log, "orders", target_bytes="64KiB")
        assert len(parts) > 10
        assert all(part.bytes < 3 * 65_536 for part in parts)
        assert offsets(parts) == [(0, offset) for offset in range(20_000)] + [(1, offset) for offset in range(3_000)]
        tables = [read_arrow(part).read_all() for part in parts]
        assert pa.concat_tables(tables).column("value").to_pylist() == [record.value for record in topic.read()]

    def test_a_huge_segment_is_split_by_its_index(self, log):
        topic = log.topic("orders")
        fill(topic, 20_000)
        parts = plan(log, ["orders"], target_bytes=200_000)
        assert len({part.path for part in parts}) == 1
        assert len(parts) >= 4
        assert [part.first for part in parts[1:]] == [part.stop for part in parts[:-1]]
        assert [part.chain for part in parts[1:]] == [part.stop_chain for part in parts[:-1]]
        assert offsets(parts) == [(0, offset) for offset in range(20_000)]
        assert len(plan(log, "orders")) == 1

    @pytest.mark.parametrize(("start", "stop"), [(0, 1), (150, 151), (3_333, 9_999), (9_950, 10_000), (500, 500)])
    def test_a_range(self, log, start, stop):
        topic = log.topic("orders", segment_bytes="128KiB")
        fill(topic, 10_000)
        parts = plan(log, "orders", start, stop, target_bytes=1)
        assert offsets(parts) == [(0, offset) for offset in range(start, stop)]

    def test_partitions_and_mappings(self, log):
        topic = log.topic("orders", partitions=3)
        for partition in range(3):
            fill(topic, 200, partition=partition)
        assert {part.partition for part in plan(log, "orders", partitions=[0, 2])} == {0, 2}
        parts = plan(log, "orders", start={0: 150, 1: 200}, stop={2: 10})
        assert offsets(parts) == [(0, offset) for offset in range(150, 200)] + [(2, offset) for offset in range(10)]
        with pytest.raises(TopicNotFoundError):
            plan(log, "absent")

    def test_only_what_is_safe_is_planned(self, tmp_path):
        from tailrace.disk.tails import SAFE

        with tailrace.open(tmp_path / "log", durable=False) as log:
            topic = log.topic("orders")
            fill(topic, 500)
            log.sync()
            partition = log.engine.partition(log.engine.entry("orders"), 0)
            fill(topic, 300, first=500)
            # As if the flusher had not come by yet.
            log.engine.store.tails.words[partition.word + SAFE] = 500
            assert offsets(plan(log, "orders")) == [(0, offset) for offset in range(500)]

    def test_another_process_reads_without_opening_the_log(self, log, tmp_path):
        topic = log.topic("orders", compress="zstd")
        fill(topic, 5_000)
        parts = plan(log, "orders", target_bytes=10_000)
        (tmp_path / "parts").write_bytes(pickle.dumps(parts))
        script = (
            "import pickle, sys\n"
            "from tailrace.bulk import read\n"
            "parts = pickle.load(open(sys.argv[1], 'rb'))\n"
            "print(sum(len(batch) for part in parts for batch in read(part)))\n"
        )
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script, tmp_path / "parts"], capture_output=True, check=True
        )
        assert run.stdout.strip() == b"5000"

    def test_records_that_come_later_are_not_read(self, log):
        topic = log.topic("orders")
        fill(topic, 150, frame=50)
        parts = plan(log, "orders", stop=120)
        fill(topic, 100, first=150)
        assert offsets(parts) == [(0, offset) for offset in range(120)]

    def test_damage_and_loss_are_typed(self, log):
        topic = log.topic("orders", segment_bytes="128KiB")
        fill(topic, 5_000)
        parts = plan(log, "orders", target_bytes=1)
        part = parts[1]
        file = Path(part.path)
        content = bytearray(file.read_bytes())
        content[part.position + 106] ^= 0xFF
        file.write_bytes(content)
        with pytest.raises(CorruptionError) as caught:
            list(read(part))
        assert (caught.value.topic, caught.value.first, caught.value.last) == ("orders", part.first, part.first + 99)
        assert list(read(parts[0]))
        other = plan(log, "orders", 4_990)[0]
        with pytest.raises(OffsetOutOfRangeError, match="plan again"):
            list(read(other._replace(salt=1)))
        topic.trim(4_000)
        with pytest.raises(OffsetOutOfRangeError):
            list(read(part))


class TestFrames:
    def test_frames_travel_as_checksummed_bytes(self):
        frames = build([b"a", None, "c"], [b"k", b"l", None], [{"h": b"1"}, None, None], compress="zstd")
        again = pickle.loads(pickle.dumps(frames))
        assert (again.records, again.bytes) == (frames.records, frames.bytes) == (3, frames.bytes)
        assert again.prepared == frames.prepared
        data = pickle.dumps(build([b"x" * 100]))
        at = data.index(b"x" * 100) + 50
        with pytest.raises(CorruptionError):
            pickle.loads(data[:at] + b"y" + data[at + 1 :])

    def test_a_builder_gathers(self):
        builder = FrameBuilder()
        builder.extend([b"1", b"2"])
        builder.add(build(pa.array([b"3"], pa.binary())))
        assert builder.records == 3
        frames = builder.finish()
        assert builder.bytes == 0 < frames.bytes
        assert frames.records == 3
        assert builder.bytes == builder.finish().bytes == 0
        assert (frames + build([b"4"])).records == 4
