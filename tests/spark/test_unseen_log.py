"""Tasks on a machine that does not see the log: what they say, and that nothing is taken for removed."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

import tailrace
from tailrace import bulk
from tailrace.errors import NotALogError, OffsetOutOfRangeError, StorageError
from tests.spark import plain
from tests.spark.tasks import Job


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("a", partitions=2).extend([str(number) for number in range(100)], keys=[*map(str, range(100))])
        yield log


@pytest.fixture
def unseen(log, tmp_path):
    """Makes the directory of the log go away, as it is on a machine that does not share it."""

    def hide():
        (tmp_path / "log").rename(tmp_path / "elsewhere")

    yield hide
    if (tmp_path / "elsewhere").exists():
        (tmp_path / "elsewhere").rename(tmp_path / "log")


@pytest.mark.parametrize("lose", [True, False])
def test_reading_says_what_to_do_and_skips_nothing(log, unseen, lose):
    made = plain.source(path=log.location, subscribe="a", failOnDataLoss=not lose)
    schema = made.schema()
    reader = made.reader(schema)
    planned = reader.partitions()
    unseen()
    with pytest.raises(NotALogError, match=r"There is no log at .* on ") as caught:
        plain.read_tasks(reader, planned, schema)
    assert "under the same path" in caught.value.__notes__[0]


def test_a_removed_file_is_still_something_else(log):
    (part, *_) = bulk.plan(log, "a")
    log.topic("a").drop()
    with pytest.raises(OffsetOutOfRangeError, match="are gone"):
        [*bulk.read(part)]


def rows(count, size):
    values = [f"{number:0{size}d}" for number in range(count)]
    return pa.table({"value": values, "key": values})


def test_small_tasks_need_no_files(log, unseen, tmp_path):
    job = Job("value string, key string", path=log.location, topic="a")
    job.writer = job.plan()
    unseen()
    messages = job.tasks([rows(500, 20), rows(500, 30)])
    (tmp_path / "elsewhere").rename(tmp_path / "log")
    job.commit(messages)
    assert sum(1 for _ in log.topic("a").read()) == 1_100


def test_large_tasks_say_what_to_do(log, unseen):
    job = Job("value string, key string", path=log.location, topic="a")
    job.writer = job.plan()
    unseen()
    with pytest.raises(NotALogError, match=r"There is no log at .*\(1,000,000 bytes\)") as caught:
        job.task(rows(2_000, 1_000))
    assert "repartition" in caught.value.__notes__[0]
    assert pickle.loads(pickle.dumps(caught.value)).hint == caught.value.hint


def test_a_missing_directory_of_a_log_that_is_there_is_no_such_thing(log, tmp_path):
    job = Job("value string, key string", path=log.location, topic="a")
    job.writer = job.plan()
    for place in (tmp_path / "log" / "topics").glob("*-a/*"):
        place.rename(f"{place}-away")
    with pytest.raises(StorageError, match="Staging a segment failed"):
        job.task(rows(2_000, 1_000))
    for place in (tmp_path / "log" / "topics").glob("*-a/*-away"):
        place.rename(str(place).removesuffix("-away"))
