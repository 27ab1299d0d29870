"""Batch jobs of a real Spark that write to a log."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

import tailrace
from tailrace import bulk
from tailrace.write.partitioner import HASHES


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        opened.topic("a", partitions=4)
        yield opened


def numbers(topic):
    return sorted(int(record.text) for record in topic.read())


def frame(spark, count, first=0):
    return spark.range(first, first + count).selectExpr("cast(id AS string) AS value", "cast(id % 97 AS string) AS key")


def save(made, log, **options):
    made.write.format("tailrace").mode("append").options(**{"topic": "a", **options}).save(log.location)


def test_rows_become_records(spark, log):
    made = spark.range(2_000).selectExpr(
        "cast(id AS string) AS value",
        "cast(cast(id % 97 AS string) AS binary) AS key",
        "array(struct('from' AS key, cast('spark' AS binary) AS value)) AS headers",
        "timestamp_micros(1763200000000000 + id) AS timestamp",
        "cast(null AS int) AS partition",
        "'a' AS topic",
    )
    made.write.format("tailrace").mode("append").save(log.location)
    records = list(log.topic("a").read())
    assert sorted(int(record.text) for record in records) == [*range(2_000)]
    for record in records:
        assert record.partition == HASHES["crc32"](record.key) % 4
        assert record.headers == {"from": b"spark"}
        assert record.timestamp_us == 1_763_200_000_000_000 + int(record.text)


def test_the_other_session_time_zone_changes_nothing(spark, log, settings):
    settings({"spark.sql.session.timeZone": "Asia/Kathmandu"})
    made = spark.sql("SELECT '1' AS value, timestamp_micros(1763200000000000) AS timestamp")
    save(made, log)
    assert next(iter(log.topic("a").read())).timestamp_us == 1_763_200_000_000_000


def test_a_version_is_written_once_and_without_one_every_time(spark, log):
    for _ in range(2):
        save(frame(spark, 100), log, txnAppId="job", txnVersion=3)
    assert numbers(log.topic("a")) == [*range(100)]
    assert bulk.applied(log, "job") == 3
    for _ in range(2):
        save(frame(spark, 5, 1_000), log)
    assert numbers(log.topic("a")) == sorted([*range(100), *[*range(1_000, 1_005)] * 2])


def test_large_tasks(spark, log):
    made = spark.range(0, 60_000, 1, 3).selectExpr("lpad(cast(id AS string), 100, '0') AS value", "uuid() AS key")
    save(made, log)
    assert numbers(log.topic("a")) == [*range(60_000)]


def test_an_empty_frame(spark, log):
    save(frame(spark, 0), log)
    assert numbers(log.topic("a")) == []


def test_topics_by_row(spark, log):
    made = spark.range(100).selectExpr("cast(id AS string) AS value", "concat('t.', id % 3) AS topic")
    with pytest.raises(PythonException, match=r"There is no topic 't\.\d'(.|\n)*createTopics"):
        made.write.format("tailrace").mode("append").save(log.location)
    made.write.format("tailrace").mode("append").options(createTopics=True, partitions=2).save(log.location)
    assert sum(len(numbers(log.topic(f"t.{at}"))) for at in range(3)) == 100
    assert log.topic("t.0").partitions == 2


def test_a_failing_row_writes_nothing(spark, log):
    made = spark.range(0, 1_000, 1, 2).selectExpr(
        "cast(assert_true(id < 900) AS string) AS n", "cast(id AS string) AS value"
    )
    with pytest.raises(Exception, match=r"assert_true|USER_RAISED"):
        save(made.select("value", made["n"].alias("key")), log)
    assert numbers(log.topic("a")) == []


@pytest.mark.parametrize(
    ("expressions", "options", "said"),
    [
        (["'x' AS value"], {"topci": "a"}, "no option 'topci': did you mean topic?"),
        (["'x' AS value"], {"topic": "b"}, "There is no topic 'b'."),
        (["1 AS value"], {}, "The column 'value' is int: it must be binary or string"),
        (["1 AS id"], {}, "There is no column 'value' among id"),
        (["'x' AS value"], {"txnAppId": "x"}, "txnAppId is given without txnVersion"),
    ],
    ids=["option", "topic", "type", "column", "transaction"],
)
def test_errors_in_the_words_of_the_user(spark, log, expressions, options, said):
    with pytest.raises(AnalysisException) as caught:
        save(spark.range(1).selectExpr(*expressions), log, **options)
    assert said in str(caught.value)
    assert "\n\tat " not in str(caught.value)


# What is wrong, and what is said of it: every option of the sink at least once.
WRONG = [
    ({"paht": "x"}, "no option 'paht': did you mean path?"),
    ({"lgo": "x"}, "no option 'lgo': there are path, log, namespace, topic, createTopics, partitions, txnAppId"),
    ({"namespaces": "x"}, "no option 'namespaces': did you mean namespace?"),
    ({"topics": "x"}, "no option 'topics': did you mean topic?"),
    ({"createTopic": "x"}, "no option 'createtopic': did you mean createTopics?"),
    ({"partition": "2"}, "no option 'partition': did you mean partitions?"),
    ({"txnId": "x"}, "no option 'txnid': did you mean txnAppId?"),
    ({"txnVersoin": "1"}, "no option 'txnversoin': did you mean txnVersion?"),
    ({"subscribe": "a"}, "subscribe is an option for reading: the topic that is written to is named by topic"),
    ({"log": "s3a://bucket/log"}, "log='s3a://bucket/log' is not a directory"),
    ({"log": "/nowhere/at/all"}, "There is no log at /nowhere/at/all"),
    ({"namespace": "no such"}, "no such"),
    ({"topic": ""}, "The option topic is empty"),
    ({"topic": "b"}, "There is no topic 'b'"),
    ({"topic": "a.*"}, "a.*"),
    ({"createTopics": "maybe"}, "createTopics='maybe' is neither true nor false"),
    ({"partitions": "2"}, 'add .option("createTopics", "true")'),
    ({"partitions": "many", "createTopics": "true"}, "partitions='many' is not a whole number from 1 to"),
    ({"txnAppId": "x" * 2_000}, "txnAppId has more than 1024 bytes"),
]
# What is wrong only with a batch job, and only with a stream.
WRONG_IN_A_BATCH = [
    ({"txnAppId": "x"}, "txnAppId is given without txnVersion"),
    ({"txnVersion": "1"}, "txnVersion is given without txnAppId"),
    ({"txnAppId": "x", "txnVersion": "one"}, "txnVersion='one' is not a whole number"),
]
WRONG_IN_A_STREAM = [({"txnVersion": "1"}, "a stream counts its batches itself")]


def test_every_option_that_is_wrong(spark, log):
    made = frame(spark, 1)
    for options, said in [*WRONG, *WRONG_IN_A_BATCH]:
        write = made.write.format("tailrace").mode("append").options(**{"topic": "a", **options})
        with pytest.raises(AnalysisException) as caught:
            write.save(log.location)
        assert said in str(caught.value), options
        assert "\n\tat " not in str(caught.value), options
    assert numbers(log.topic("a")) == []


def test_every_option_that_is_wrong_in_a_stream(spark, log, tmp_path):
    """A stream says it when its first batch is planned, so there it is whoever waits for the query that is told."""
    made = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    made = made.selectExpr("cast(value AS string) AS value")
    for number, (options, said) in enumerate([*WRONG, *WRONG_IN_A_STREAM]):
        write = made.writeStream.format("tailrace").options(**{"topic": "a", **options})
        write = write.option("checkpointLocation", str(tmp_path / f"checkpoint{number}"))
        with pytest.raises(StreamingQueryException) as caught:
            write.trigger(availableNow=True).start(log.location).awaitTermination(60)
        assert said in str(caught.value), options
        assert "\n\tat " not in str(caught.value), options
    assert numbers(log.topic("a")) == []


def test_modes(spark, log):
    write = frame(spark, 1).write.format("tailrace").option("topic", "a")
    with pytest.raises(AnalysisException, match='use mode\\("append"\\)'):
        write.mode("overwrite").save(log.location)
    with pytest.raises(AnalysisException, match="Append"):
        write.mode("errorifexists").save(log.location)
    with pytest.raises(AnalysisException, match="Append"):
        write.mode("ignore").save(log.location)


def test_sql(spark, log):
    log.topic("one", partitions=1)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW unused AS SELECT '{log.location}'")
    spark.sql(f"CREATE TABLE sink_test USING tailrace OPTIONS (log '{log.location}', subscribe 'one')")
    try:
        spark.sql(
            f"INSERT INTO sink_test WITH (log = '{log.location}', topic = 'one') (key, value) "
            "VALUES (cast('k' AS binary), cast('v' AS binary))"
        )
        with pytest.raises(AnalysisException, match="INSERT INTO t WITH"):
            spark.sql("INSERT INTO sink_test (key, value) VALUES (cast('k' AS binary), cast('v' AS binary))")
    finally:
        spark.sql("DROP TABLE sink_test")
    assert [(record.key, record.value) for record in log.topic("one").read()] == [(b"k", b"v")]


def test_a_schema_is_checked_in_the_tasks(spark, log):
    topic = log.topic("checked", partitions=2, schema={"type": "object", "properties": {"id": {"maximum": 99}}})
    rows = spark.range(100).selectExpr("to_json(struct(*)) AS value", "cast(id AS string) AS key")
    save(rows, log, topic="checked")
    assert topic.read().count() == 100
    with pytest.raises(Exception, match="field id: 100 is greater than the maximum of 99"):
        save(spark.range(101).selectExpr("to_json(struct(*)) AS value"), log, topic="checked")
    assert topic.read().count() == 100
