"""Jobs: appending and reading, as plain values that another process can do too."""

from __future__ import annotations

import pytest

import tailrace
from tailrace.bench import jobs
from tailrace.bench.jobs import Job, job_of, values_of


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield log


@pytest.mark.parametrize("size", [1, 7, 20, 100])
def test_values_have_their_size(size):
    assert {len(value) for value in values_of(size, 12)} == {size}


def test_values_are_distinct_as_far_as_their_size_allows():
    assert len(set(values_of(2, 100))) == 100
    assert len(set(values_of(1, 100))) == 10


@pytest.mark.parametrize("batch", [1, 3])
def test_a_job_that_writes(log, batch):
    job_of(log, Job("write", "t", 8, batch, False))(4)
    values = [record.value for record in log.topic("t").read()]
    assert values == values_of(8, batch) * 4


@pytest.mark.parametrize("way", ["records", "values", "arrow"])
def test_a_job_that_reads_sees_every_record_each_time(log, way, monkeypatch):
    log.topic("t").extend([b"a", b"b", b"c"])
    assert jobs.READS[way](log.topic("t")) == 3
    calls = []
    monkeypatch.setitem(jobs.READS, way, lambda topic: calls.append(topic.name))
    job_of(log, Job(way, "t"))(5)
    assert calls == ["t"] * 5


def test_a_job_travels_as_a_mapping():
    job = Job("write", "t", 8, 2, "50ms")
    assert Job(**job._asdict()) == job
