"""Frames of Arrow columns: many partitions at once, within the sizes that the format allows."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import tailrace
from tailrace import bulk
from tailrace.bulk import Frames, InlinePart
from tailrace.errors import CorruptionError, RecordTooLargeError
from tailrace.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX


def test_bytes_there_and_back():
    frames = bulk.build([b"1", b"2"], [b"a", None], compress="zstd") + bulk.build([b"3"])
    again = Frames.from_bytes(frames.to_bytes())
    assert (again.records, again.bytes) == (frames.records, frames.bytes) == (3, again.bytes)
    assert again.to_bytes() == frames.to_bytes() == pickle.loads(pickle.dumps(frames)).to_bytes()
    assert Frames.from_bytes(b"").records == 0


@pytest.mark.parametrize("cut", [8, 60, 200])
def test_damaged_bytes(cut):
    data = bulk.build([b"value" * 100]).to_bytes()
    with pytest.raises(CorruptionError, match="damaged on their way"):
        Frames.from_bytes(data[:-cut])


def test_a_run_for_each_partition(tmp_path):
    values = pa.array([b"%d" % number for number in range(10)], pa.binary())
    keys = pa.array([None, *[b"k"] * 9], pa.binary())
    headers = pa.array([[{"name": "n", "value": b"v"}]] * 10)
    times = pa.array(range(10**15, 10**15 + 10), pa.timestamp("us", tz="UTC"))
    runs = bulk.build_runs(values, keys, headers, times, [3, 3, 10], "zstd")
    assert [run.records for run in runs] == [3, 0, 7]
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("a", partitions=3)
        bulk.commit(log, [InlinePart("a", index, run) for index, run in enumerate(runs)])
        records = [*topic.read()]
    assert [record.partition for record in records] == [0] * 3 + [2] * 7
    assert [record.value for record in records] == values.to_pylist()
    assert [record.key for record in records] == keys.to_pylist()
    assert [record.timestamp_us for record in records] == list(range(10**15, 10**15 + 10))
    assert records[0].headers["n"] == b"v"


def test_without_timestamps_it_is_the_time_of_the_call(tmp_path):
    before = bulk.now_us()
    (run,) = bulk.build_runs(pa.array([b"x"], pa.binary()), None, None, None, [1])
    after = bulk.now_us()
    with tailrace.open(tmp_path / "log") as log:
        log.topic("a", partitions=1)
        bulk.commit(log, [InlinePart("a", 0, run)])
        assert before <= log.topic("a").read().first().timestamp_us <= after


@pytest.mark.parametrize(
    ("value", "key", "told"),
    [(b"x" * (VALUE_BYTES_MAX + 1), b"k", "The value has"), (b"x", b"k" * (KEY_BYTES_MAX + 1), "The key has")],
    ids=["value", "key"],
)
def test_what_is_too_large_is_refused(value, key, told):
    with pytest.raises(RecordTooLargeError, match=told):
        bulk.build_runs(pa.array([value], pa.binary()), pa.array([key], pa.binary()), None, None, [1])
