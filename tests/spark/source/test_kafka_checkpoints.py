"""Checkpoints of Kafka's source under a query over a log, without a JVM: refused, or taken over when told so."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import tailrace
from tailrace.errors import OffsetOutOfRangeError, SettingsMismatchError
from tests.spark.plain import Stream


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        topic = opened.topic("orders", partitions=2)
        topic.extend([b"x"] * 150, partition=0)
        topic.extend([b"x"] * 30, partition=1)
        yield opened


@pytest.fixture
def resume(log):
    """Starts a query over offsets that are in its checkpoint already, of which all but `waiting` are committed."""
    made = []

    def resume(*stored, waiting=0, **options):
        chosen = {"path": log.location, "subscribe": "orders", "startingOffsets": "earliest", **options}
        texts = [each if isinstance(each, str) else json.dumps(each) for each in stored]
        made.append(Stream(texts, list(range(len(texts) - waiting)), None, **chosen))
        return made[-1]

    yield resume
    for query in made:
        query.stop()


KAFKA = {"orders": {"1": 20, "0": 100}}


def expected(*ranges):
    return [("orders", partition, offset) for partition, offsets in ranges for offset in offsets]


class TestRefused:
    @pytest.mark.parametrize("options", [{}, {"failOnDataLoss": False}])
    def test_offsets_that_name_no_log(self, resume, options):
        with pytest.raises(SettingsMismatchError, match="was not made by reading this log") as caught:
            resume(KAFKA, **options).poll()
        (hint,) = caught.value.__notes__
        assert "startFromKafkaOffsets set to true" in hint
        assert "a new checkpoint" in hint

    def test_a_batch_that_was_planned_over_kafka(self, resume):
        with pytest.raises(SettingsMismatchError, match="was not made by reading this log"):
            resume({"orders": {"0": 0, "1": 0}}, KAFKA, waiting=1).run()

    @pytest.mark.parametrize("stored", ["5", "null", '{"logOffset": 5}', '{"a": {"0": "5"}}', '{"a": {"b": 5}}'])
    @pytest.mark.parametrize("options", [{}, {"startFromKafkaOffsets": True}])
    def test_offsets_of_other_sources(self, resume, stored, options):
        with pytest.raises(SettingsMismatchError, match="was not made by reading this log") as caught:
            resume(stored, **options).poll()
        assert stored in str(caught.value)

    def test_a_long_one_is_shortened(self, resume):
        with pytest.raises(SettingsMismatchError) as caught:
            resume({f"topic-{number}": {"0": 1} for number in range(1_000)}).poll()
        assert len(caught.value.message) < 250


class TestTakenOver:
    def test_from_the_offsets_of_kafka(self, log, resume):
        query = resume(KAFKA, startFromKafkaOffsets=True)
        assert query.everything() == expected((0, range(100, 150)), (1, range(20, 30)))
        log.topic("orders").append(b"x", partition=1)
        # From now on it is a checkpoint of this log, and the option may go or stay.
        for options in ({}, {"startFromKafkaOffsets": True}):
            again = resume(*query.offsets, **options)
            assert again.everything() == [("orders", 1, 30)]

    def test_also_when_there_is_nothing_new(self, resume):
        query = resume({"orders": {"0": 150, "1": 30}}, startFromKafkaOffsets=True)
        assert query.batch().num_rows == 0
        assert query.batch() is None
        assert resume(*query.offsets).batch() is None

    def test_the_first_batch_again_after_a_crash(self, log, resume):
        query = resume(KAFKA, startFromKafkaOffsets=True)
        query.poll()
        log.topic("orders").append(b"x", partition=0)
        again = resume(*query.offsets, waiting=1)
        assert again.run().num_rows == 60
        again.commit()
        assert again.everything() == [("orders", 0, 150)]

    def test_a_batch_that_was_planned_over_kafka(self, resume):
        query = resume({"orders": {"0": 90, "1": 20}}, KAFKA, waiting=1, startFromKafkaOffsets=True)
        assert query.run().num_rows == 10
        query.commit()
        assert query.everything() == expected((0, range(100, 150)), (1, range(20, 30)))

    def test_not_the_very_first_batch_of_kafka(self, resume):
        """Spark does not tell a Python source where that one began."""
        with pytest.raises(SettingsMismatchError) as caught:
            resume(KAFKA, waiting=1, startFromKafkaOffsets=True).run()
        assert "the startingOffsets of the old query" in caught.value.__notes__[0]

    def test_partitions_that_kafka_had_not(self, resume):
        query = resume({"orders": {"0": 149}}, startFromKafkaOffsets=True)
        assert query.everything() == expected((0, range(149, 150)), (1, range(30)))

    @pytest.mark.parametrize("options", [{}, {"failOnDataLoss": False}])
    @pytest.mark.parametrize(
        ("stored", "told"),
        [
            (
                {"orders": {"0": 151, "1": 0}},
                r"offset 151 of orders\[0\], whose records are those from 10 to before 150",
            ),
            ({"orders": {"0": 9, "1": 0}}, r"at offset 9 of orders\[0\]"),
        ],
    )
    def test_offsets_that_the_topic_does_not_have(self, log, resume, stored, told, options):
        log.topic("orders").trim({0: 10})
        with pytest.raises(OffsetOutOfRangeError, match=told):
            resume(stored, startFromKafkaOffsets=True, **options).poll()

    @pytest.mark.parametrize(
        ("stored", "told"),
        [
            ({"orders": {"2": 0}}, r"names orders\[2\], and this log has no such partition"),
            ({"clicks": {"0": 0}}, r"names clicks\[0\], and this query does not read it"),
        ],
    )
    def test_partitions_that_are_not_here(self, resume, stored, told):
        with pytest.raises(SettingsMismatchError, match=told):
            resume(stored, startFromKafkaOffsets=True).poll()
