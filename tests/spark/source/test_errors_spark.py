"""What a user is shown of an error on real Spark: our sentence, short and last, in batches, in streams and in SQL."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

import tailrace
from tests.spark.source.test_options import MALFORMED, slips

# Spark adds lines of its own above a sentence: which step failed, and a few of a traceback. How much of the source a
# traceback shows beneath each place depends on the version of Python.
LINES_ABOVE_MAX = 6


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        opened.topic("orders").append("x")
        yield opened


def options_of(made, options):
    for name, value in options.items():
        made = made.option(name, value)
    return made


@pytest.fixture
def load(spark, log):
    def load(schema=None, **options):
        reader = options_of(spark.read.format("tailrace").option("path", log.location), options)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture
def stream(spark, log, checkpoint):
    def stream(schema=None, **options):
        reader = options_of(spark.readStream.format("tailrace").option("path", log.location), options)
        frame = (reader if schema is None else reader.schema(schema)).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    return stream


def told(action, kind=AnalysisException):
    """The sentence that stands where a reader's eye ends up, below what Spark says and above its codes."""
    with pytest.raises(PySparkException) as caught:
        action()
    text = str(caught.value)
    assert isinstance(caught.value, kind), text
    for noise in ("\tat ", "Caused by", "During handling", "UnboundLocalError", "direct cause"):
        assert noise not in text, text
    lines = text.split("\n=== Streaming Query")[0].split("\n SQLSTATE")[0].splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith(("ValueError: ", "tailrace.errors."))]
    assert len([line for line in lines[:first] if not line.startswith("    ")]) <= LINES_ABOVE_MAX, text
    return " ".join(lines[first:]).partition(": ")[2]


def test_slips_in_names(load):
    # All take the same way through Spark, and each costs it a process: those of test_source_options.py are complete.
    for name, slip in list(slips())[::4]:
        assert told(lambda slip=slip: load(subscribe="orders", **{slip: "1"})).endswith(f"did you mean {name}?")


def malformed_values():
    """One for each option."""
    return {next(reversed(options), ""): (options, words) for options, words in MALFORMED}.values()


def test_a_malformed_value_of_every_option(load):
    for options, words in malformed_values():
        found = told(lambda options=options: load(**options))
        assert re.search(words, found), (options, found)


@pytest.mark.parametrize("way", ["stream", "sql"])
def test_malformed_values_elsewhere(spark, log, stream, way):
    def view(**options):
        given = ", ".join(f"{name} '{value}'" for name, value in {"log": log.location, **options}.items())
        spark.sql(f"CREATE TEMPORARY VIEW malformed USING tailrace OPTIONS ({given})")

    # In SQL Spark has its own use for a path, and does not show it to a source.
    values = [each for each in malformed_values() if not {"path", "paths"} & each[0].keys()]
    for options, words in values[5::6]:
        found = told(lambda options=options: (stream if way == "stream" else view)(**options))
        assert re.search(words, found), (options, found)


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        (None, {"subscribe": "order"}, "There is no topic 'order': did you mean 'orders'? Nothing was created"),
        (None, {"subscribe": "sensors.*"}, "No topic matches sensors.*. Nothing was read"),
        (None, {"assign": '{"orders": [3]}'}, "assign names partition 3 of 'orders', which has one partition, 0."),
        (None, {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 99}}'}, "the next record will be 1. "),
        (None, {"subscribe": "orders", "startingOffsets": "latest"}, "startingOffsets=latest is for streams"),
        (None, {"subscribe": "orders", "startingTimestamp": "9999999999999"}, "startingOffsetsByTimestampStrategy"),
        (None, {"subscribe": "orders", "namespace": "tenant"}, "no namespace 'tenant'"),
        ("vale binary", {"subscribe": "orders"}, "A record has no column 'vale': did you mean value?"),
        ("value string", {"subscribe": "orders"}, "write CAST(value AS STRING) in the query."),
        ("value binary", {"subscribe": "orders", "minPartitions": "x"}, "minPartitions='x' is no positive number."),
        ("a interval day", {"subscribe": "orders", "valueFormat": "json"}, "The field a cannot be read as interval"),
    ],
)
def test_when_a_batch_is_planned(load, schema, options, words):
    assert words in told(load(schema, **options).collect)


def test_json_without_a_schema(load):
    assert "needs the fields of the values: write .schema(" in told(
        lambda: load(subscribe="orders", valueFormat="json")
    )


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        (None, {"subscribe": "order"}, "There is no topic 'order': did you mean 'orders'? Nothing was created"),
        (
            None,
            {"subscribe": "orders", "endingOffsets": "latest"},
            "endingOffsets is for batches: a stream has no end.",
        ),
        (
            None,
            {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 1, "7": 1}}'},
            "names orders[7], which this query does not read.",
        ),
        ("value string", {"subscribe": "orders"}, "write CAST(value AS STRING) in the query."),
        ("value binary", {"subscribe": "orders", "maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
    ],
)
def test_when_a_stream_is_started(stream, schema, options, words):
    assert words in told(lambda: stream(schema, **options), StreamingQueryException)


def test_in_sql(spark, log):
    where = f"log '{log.location}'"
    create = f"CREATE TABLE slip USING tailrace OPTIONS ({where}, "
    assert told(lambda: spark.sql(create + "subscribed 'orders')")).endswith("did you mean subscribe?")
    assert told(lambda: spark.sql(create + "topic 'orders')")).startswith("Say which topics to read")
    spark.sql(create + "subscribe 'order')")
    try:
        assert told(lambda: spark.sql("SELECT count(*) FROM slip").collect()).startswith("There is no topic 'order'")
    finally:
        spark.sql("DROP TABLE slip")


def test_no_log(spark, tmp_path):
    def load(*where):
        return spark.read.format("tailrace").option("subscribe", "orders").load(*where).collect

    assert told(load(str(tmp_path / "nowhere"))).startswith("There is no log at")
    assert not (tmp_path / "nowhere").exists()
    assert told(load()).startswith('Say which log to read: .load("/data/log")')
    assert told(lambda: load("s3://bucket/log")).endswith("that all executors see, as /data/log.")
    assert told(lambda: load(["/a", "/b"])).endswith("give one path, not several.")


class TestWhileReading:
    def test_records_that_go_under_a_query(self, log, load):
        topic = log.topic("clicks", segment_bytes="4KiB")
        for _ in range(20):
            topic.extend([b"x" * 100] * 20)
        frame, patient = load(subscribe="clicks"), load(subscribe="clicks", failOnDataLoss="false")
        assert frame.count() == patient.count() == 400
        topic.trim(200)
        # Both were planned before, and are not planned again.
        words = told(frame.collect, PySparkException)
        assert words.startswith("The records 0 to ")
        assert "of clicks[0] were removed, by retention or a trim" in words
        assert "set failOnDataLoss to false" in words
        assert 200 <= patient.count() < 400
        assert load(subscribe="clicks").count() == 200

    def test_damage_is_told_and_never_skipped(self, log, load):
        from pathlib import Path

        frame = load(subscribe="orders", failOnDataLoss="false")
        assert frame.count() == 1
        (segment,) = Path(log.location).glob("topics/*orders/0/*.seg")
        content = bytearray(segment.read_bytes())
        content[120] ^= 0xFF
        segment.write_bytes(content)
        words = told(frame.collect, PySparkException)
        assert words.startswith("Stored records are damaged (orders[0], offsets 0 to 0, file ")
        assert words.endswith("run: tailrace repair --dry-run")
