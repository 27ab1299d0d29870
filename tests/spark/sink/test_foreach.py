"""Batches that a function of foreachBatch writes: each once, in any output mode."""

from __future__ import annotations

import pickle
import shutil

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

import tailrace
from tailrace import bulk
from tailrace.errors import InvalidNameError, SettingsMismatchError
from tailrace.spark import handles, write_batch
from tests.spark.sink.test_stream_spark import feed, forget, numbers, stream
from tests.spark.sink.test_stream_spark import inputs as inputs
from tests.spark.tasks import Job


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        opened.topic("a", partitions=1)
        yield opened
    handles.close_all()


def run(made, function, checkpoint, mode="append"):
    write = made.writeStream.foreachBatch(function).outputMode(mode).option("checkpointLocation", checkpoint)
    query = write.trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert query.exception() is None
    return query


class TestWithoutSpark:
    def test_options_are_checked_before_a_query_starts(self, log):
        with pytest.raises(ValueError, match="no option 'topci': did you mean topic"):
            write_batch(log.location, topci="a")
        with pytest.raises(ValueError, match="a stream counts its batches itself"):
            write_batch(log.location, topic="a", txnAppId="x", txnVersion=1)
        with pytest.raises(ValueError, match="is not a directory"):
            write_batch("s3a://bucket/log", topic="a")
        with pytest.raises(InvalidNameError, match="namespace"):
            write_batch(log.location, topic="a", namespace="n" * 86)
        with pytest.raises(ValueError, match="no option 'txnwitness'"):
            write_batch(log.location, topic="a", txnwitness="abc")

    def test_upper_and_lower_case_are_not_told_apart(self, log):
        made = write_batch(log.location, TOPIC="a", txnappid="errors")
        assert (made.name, made.options) == ("errors", {"path": log.location, "TOPIC": "a"})
        with pytest.raises(ValueError, match="a stream counts its batches itself"):
            write_batch(log.location, topic="a", txnversion=1)

    def test_a_log_that_is_named_in_several_ways_is_one(self, log, tmp_path, monkeypatch):
        """Otherwise the second write of a batch under one name would be left out without a word."""
        (tmp_path / "link").symlink_to(log.location)
        monkeypatch.setenv("TAILRACE_LOG", log.location)
        places = ((log.location,), (tmp_path / "link",), ())
        named = [write_batch(*place, topic="a") for place in places]
        assert len({made.place for made in named}) == 1

    def test_it_travels_without_what_belongs_to_a_process(self, tmp_path):
        made = write_batch(tmp_path / "log", topic="a", createTopics=True, checkpointLocation="file:///data/ck")
        made._root = made._query = lambda: None
        far = pickle.loads(pickle.dumps(made))
        assert far.options == {"path": str(tmp_path / "log"), "topic": "a", "createTopics": "true"}
        assert (far.name, far.checkpoint, far._query) == ("a", "/data/ck", None)
        assert far._root is not made._root

    def test_a_batch_that_comes_again_with_other_records_is_refused(self, log):
        """As the sink of a stream refuses it: taken for a repetition, its rows would be lost."""

        def write(version, witness, value):
            options = {"topic": "a", "txnAppId": "spark-stream:q:a", "txnVersion": version, "txnWitness": witness}
            Job("value string", path=log.location, **options).run(pa.table({"value": [value]}))

        write(0, "unknown", "zero")
        write(1, "abc", "one")
        write(1, "abc", "repeated")
        write(1, "unknown", "repeated")
        with pytest.raises(SettingsMismatchError, match="batch 1 comes again with other records"):
            write(1, "abd", "other")
        with pytest.raises(SettingsMismatchError, match="batch 1 was written already"):
            write(0, "unknown", "older")
        assert [record.text for record in log.topic("a").read()] == ["zero", "one"]


def test_an_aggregate_in_update_mode(spark, log, inputs, checkpoint):
    """An updated row is one more record, and a batch that comes again changes nothing."""
    for batch in range(2):
        feed(inputs, batch)
    counts = stream(spark, inputs).selectExpr("cast(cast(value AS int) % 3 AS string) AS key").groupBy("key").count()
    counts = counts.selectExpr("key", "cast(count AS string) AS value")
    expected = [(b"0", b"34"), (b"0", b"67"), (b"1", b"33"), (b"1", b"67"), (b"2", b"33"), (b"2", b"66")]
    for _ in range(2):
        query = run(counts, write_batch(log.location, topic="a"), checkpoint, "update")
        assert sorted((record.key, record.value) for record in log.topic("a").read()) == expected
        assert bulk.applied(log, f"spark-stream:{query.id}:a") == 1
        assert bulk.applied_witness(log, f"spark-stream:{query.id}:a")
        forget(checkpoint, 1)


def test_several_writes_of_a_batch(spark, log, checkpoint, tmp_path):
    source = log.topic("in", partitions=1)
    options = {"subscribe": "in", "startingOffsets": "earliest"}
    made = spark.readStream.format("tailrace").options(**options).load(log.location).selectExpr("value")
    everything = write_batch(log.location, topic="a")
    even = write_batch(log.location, topic="even", createTopics=True)
    also = write_batch(log.location, topic="even", txnAppId="also")
    told = []

    def split(batch, number):
        # What tells one run of a query from the next is not the job group, which a function may set.
        spark.sparkContext.setJobGroup("mine", "jobs of this function")
        everything(batch, number)
        some = batch.where("cast(cast(value AS string) AS int) % 2 = 0")
        even(some, number)
        also(some.selectExpr("concat('1', cast(value AS string)) AS value"), number)
        for write, which in ((even, number), (everything, number + 1)):
            with pytest.raises(ValueError) as caught:
                write(batch, which)
            told.append(str(caught.value))

    source.extend([str(number) for number in range(10)])
    first = run(made, split, checkpoint)
    shutil.copytree(checkpoint, tmp_path / "kept")
    source.extend([str(number) for number in range(10, 20)])
    run(made, split, checkpoint)
    forget(checkpoint, 1)
    assert run(made, split, checkpoint).id == first.id
    assert numbers(log.topic("a")) == [*range(20)]
    evens = range(0, 20, 2)
    assert numbers(log.topic("even")) == sorted([*evens, *(int(f"1{each}") for each in evens)])
    assert "Batch 0 is written a second time under the name 'even'" in told[0]
    assert "Batch 0 is written under the number 1: give the one that foreachBatch gave" in told[1]
    # With a checkpoint that was put back batch 1 has other records, so it is no repetition.
    source.append("20")
    write = made.writeStream.foreachBatch(everything).option("checkpointLocation", str(tmp_path / "kept"))
    query = write.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="batch 1 comes again with other records than before"):
        query.awaitTermination(120)
    assert numbers(log.topic("a")) == [*range(20)]


def test_outside_of_a_stream(spark, log):
    with pytest.raises(ValueError, match="Nothing says of which query this batch is"):
        write_batch(log.location, topic="a")(spark.range(1).selectExpr("'x' AS value"), 0)
