"""Lag and progress without a JVM: from a progress with the offsets that the source gives."""

from __future__ import annotations

import json
import shutil
import uuid

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from pyspark.sql.streaming.listener import StreamingQueryProgress

import tailrace
import tailrace.spark
from tailrace.errors import SettingsMismatchError
from tests.spark.plain import Stream

ADDRESS = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStreamWithTriggerAvailableNow@5f"


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        topic = opened.topic("orders", partitions=2)
        topic.extend([b"x"] * 30, partition=0)
        topic.extend([b"x"] * 10, partition=1)
        yield opened


def told(*sources):
    """A progress as Spark tells it, of sources with their start, end and latest offset."""
    whole = {
        "id": str(uuid.uuid4()), "runId": str(uuid.uuid4()), "name": None, "timestamp": "2026-11-15T20:00:00.000Z",
        "batchId": 3, "batchDuration": 5, "numInputRows": 4, "stateOperators": [],
        "sink": {"description": "memory", "numOutputRows": 4},
        "sources": [
            {
                "description": ADDRESS, "startOffset": start, "endOffset": end, "latestOffset": latest,
                "numInputRows": 4, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0,
            }
            for start, end, latest in sources
        ],
    }  # fmt: skip
    return StreamingQueryProgress.fromJson(whole)


@pytest.fixture
def batches(log):
    """The offsets of the batches of a query: start, end, latest."""

    def batches(**options):
        chosen = {"path": log.location, "subscribe": "orders", "startingOffsets": "earliest", **options}
        query = Stream([], [], None, **{name: value for name, value in chosen.items() if value is not None})
        found = []
        start = None
        while query.batch() is not None:
            found.append((start, query.start(), query.reader.reportLatestOffset()))
            start = query.start()
        query.stop()
        return found

    return batches


class TestProgress:
    def test_as_kafka_shows_it(self, batches):
        offsets = batches(maxOffsetsPerTrigger=20)
        shown = tailrace.spark.progress(told(offsets[0]))
        (source,) = shown.sources
        assert (source.startOffset, source.description) == ("null", "tailrace[orders]")
        assert json.loads(source.endOffset) == {"orders": {"0": 15, "1": 5}}
        assert json.loads(source.latestOffset) == {"orders": {"0": 30, "1": 10}}
        assert source.metrics == {
            "avgOffsetsBehindLatest": "10.0",
            "maxOffsetsBehindLatest": "15",
            "minOffsetsBehindLatest": "5",
        }
        assert (shown.batchId, shown["batchId"]) == (3, 3)
        assert json.loads(shown.json)["sources"][0]["metrics"] == source.metrics
        (source,) = tailrace.spark.progress(told(offsets[1])).sources
        assert json.loads(source.startOffset) == {"orders": {"0": 15, "1": 5}}
        assert set(source.metrics.values()) == {"0.0", "0"}

    def test_other_sources_are_left_as_they_are(self, batches):
        kafka = ({"a": {"0": 1}}, {"a": {"0": 2}}, {"a": {"0": 9}})
        sources = tailrace.spark.progress(told(kafka, batches()[0], ("3", "4", None))).sources
        assert [source.description == ADDRESS for source in sources] == [True, False, True]
        assert sources[0].metrics == sources[2].metrics == {}
        assert tailrace.spark.lag(told(kafka, ("3", "4", None))) == {}

    def test_a_batch_that_was_repeated(self, batches):
        """Spark did not ask for the end then."""
        start, end, _ = batches(maxOffsetsPerTrigger=20)[0]
        again = told((start, end, None))
        assert tailrace.spark.progress(again).sources[0].metrics == {}
        assert tailrace.spark.lag(again) == {}

    def test_a_query_without_any(self):
        class Started:
            lastProgress = None  # noqa: N815

        assert tailrace.spark.progress(Started()) is None
        assert tailrace.spark.lag(Started()) == {}


class TestLag:
    def test_when_the_last_batch_was_planned_and_now(self, log, batches):
        first, last = batches(maxOffsetsPerTrigger=20)
        assert tailrace.spark.lag(told(first)) == {"orders": {0: 15, 1: 5}}
        assert tailrace.spark.lag(told(last)) == {"orders": {0: 0, 1: 0}}
        log.topic("orders").extend([b"x"] * 7, partition=1)
        assert tailrace.spark.lag(told(last)) == {"orders": {0: 0, 1: 0}}
        for given in (log, log.location):
            assert tailrace.spark.lag(told(last), given) == {"orders": {0: 0, 1: 7}}
        log.topic("orders").trim({0: 20})
        assert tailrace.spark.lag(told(first), log) == {"orders": {0: 10, 1: 12}}

    def test_only_what_the_query_reads(self, log, batches):
        (last,) = batches(subscribe=None, assign='{"orders": [1]}')
        log.topic("clicks").append(b"x")
        assert tailrace.spark.lag(told(last), log) == {"orders": {1: 0}}

    def test_the_further_of_two_sources(self, batches):
        first, last = batches(maxOffsetsPerTrigger=20)
        assert (
            tailrace.spark.lag(told(first, last)) == tailrace.spark.lag(told(last, first)) == {"orders": {0: 15, 1: 5}}
        )

    def test_a_topic_that_was_made_again(self, log, batches):
        last = batches()[-1]
        log.topic("orders").drop()
        assert tailrace.spark.lag(told(last), log) == {}
        log.topic("orders", partitions=2).extend([b"x"] * 40, partition=0)
        assert tailrace.spark.lag(told(last), log) == {"orders": {0: 40, 1: 0}}

    def test_another_log(self, log, batches):
        last = batches()[-1]
        place = log.location
        log.close()
        shutil.rmtree(place)
        with tailrace.open(place) as other, pytest.raises(SettingsMismatchError, match="those of another one"):
            tailrace.spark.lag(told(last), other)

    def test_a_query_that_reads_two_logs(self, log, batches, tmp_path):
        """Each can be given, and counts for the sources that read it alone."""
        with tailrace.open(tmp_path / "second") as second, tailrace.open(tmp_path / "third") as third:
            second.topic("clicks", partitions=1).extend([b"x"] * 4)
            (other,) = batches(path=second.location, subscribe="clicks")
            both = told(batches(maxOffsetsPerTrigger=20)[0], other)
            second.topic("clicks").append(b"x")
            assert tailrace.spark.lag(both, log) == {"orders": {0: 15, 1: 5}}
            assert tailrace.spark.lag(both, second) == {"clicks": {0: 1}}
            with pytest.raises(SettingsMismatchError, match="those of another one"):
                tailrace.spark.lag(both, third)

    def test_a_topic_that_was_made_again_between_the_end_of_a_batch_and_the_look_at_what_there_is(self, log, batches):
        start, end, latest = batches()[-1]
        shorter = told((start, end, {**latest, "orders": {"0": 3, "1": 12}}))
        assert tailrace.spark.lag(shorter) == {"orders": {0: 0, 1: 2}}
        assert tailrace.spark.progress(shorter).sources[0].metrics["minOffsetsBehindLatest"] == "0"
