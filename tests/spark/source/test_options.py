"""Every option is read as the documents say, and every slip gets an answer in the words of whoever made it."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from pyspark.sql.datasource import CaseInsensitiveDict

from tailrace.errors import InvalidNameError
from tailrace.spark.source.options import IGNORED_OPTIONS, SOURCE_OPTIONS, parse_options

# Options that cannot be understood, and what is answered.
# fmt: off
MALFORMED = [
    ({}, r"Say which topics to read: .option\(.subscribe., .orders.\)"),
    ({"topic": "orders"}, "to read it, write .*subscribe.*orders"),
    ({"subscribe": "a", "assign": '{"a": [0]}'}, "subscribe and assign are given"),
    ({"subscribe": "a", "group.id": "x"}, r"no option 'group.id': settings of Kafka's client .* its checkpoint says"),
    ({"subscribe": "a", "Bootstrap.Servers": "x"}, "with kafka. in front, and do nothing here: leave it out"),
    ({"subscribe": " , "}, "names no topic"),
    ({"subscribe": ""}, "subscribe is empty"),
    ({"subscribe": "__group.x"}, "internal"),
    ({"subscribePattern": "*.orders"}, "no regular expression: nothing to repeat.*wildcards.*subscribe"),
    ({"subscribePattern": "a("}, "no regular expression"),
    ({"assign": "orders"}, r"cannot be understood .*write '{\"orders\": \[0, 1\]}'"),
    ({"assign": '{"orders": 0}'}, "no list of partitions for 'orders'"),
    ({"assign": '{"orders": ["0"]}'}, "no list of partitions for 'orders'"),
    ({"assign": '{"orders": [-1]}'}, "no list of partitions for 'orders'"),
    ({"assign": "{}"}, "names no partition"),
    ({"assign": '{"orders.*": [0]}'}, "by their full names"),
    ({"subscribe": "a", "startingOffsets": "earlist"}, "did you mean earliest"),
    ({"subscribe": "a", "startingOffsets": "12"}, "write earliest, latest, or JSON such as"),
    ({"subscribe": "a", "startingOffsets": '{"a": {"0": 5}'}, "Expecting ',' delimiter at character 15"),
    ({"subscribe": "a", "startingOffsets": '{"a": 5}'}, "says 5 for 'a', not partitions"),
    ({"subscribe": "a", "startingOffsets": '{"a": {"x": 5}}'}, "names 'x' as a partition of 'a'"),
    ({"subscribe": "a", "startingOffsets": '{"a": {"0": "5"}}'}, r'says "5" for a\[0\]'),
    ({"subscribe": "a", "startingOffsets": '{"a": {"0": 1.5}}'}, r"says 1.5 for a\[0\]"),
    ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, r"says -3 for a\[0\].*-2 is earliest"),
    ({"subscribe": "a", "startingOffsets": '{"a": {"0": 1, "0": 2}}'}, "names something twice"),
    ({"subscribe": "a", "startingOffsets": "{" * 100_000}, "cannot be understood"),
    ({"subscribe": "a", "endingOffsets": "earliest"}, "would read nothing"),
    ({"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}, r"-2 \(earliest\) for a\[0\]"),
    ({"subscribe": "a", "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
    ({"subscribe": "a", "startingTimestamp": "-5"}, "milliseconds since 1970"),
    ({"subscribe": "a", "endingTimestamp": "1e12"}, "milliseconds since 1970"),
    ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "milliseconds"),
    ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "earliest"}, "write error or latest"),
    ({"subscribe": "a", "since": "10m"}, "write '-10m' for that long ago"),
    ({"subscribe": "a", "since": "2026-11-15T20:00"}, "has no zone"),
    ({"subscribe": "a", "since": "-10m", "startingOffsets": "earliest"}, "both say where to begin"),
    ({"subscribe": "a", "minPartitions": "many"}, "minPartitions='many' is no positive number"),
    ({"subscribe": "a", "maxRecordsPerPartition": "0"}, "no positive number"),
    ({"subscribe": "a", "maxOffsetsPerTrigger": "-1"}, "no positive number"),
    ({"subscribe": "a", "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "greater than"),
    ({"subscribe": "a", "maxTriggerDelay": "5"}, "has no unit"),
    ({"subscribe": "a", "failOnDataLoss": "perhaps"}, "neither true nor false"),
    ({"subscribe": "a", "includeHeaders": "all"}, "neither true nor false"),
    ({"subscribe": "a", "valueFormat": "avro"}, "write binary or json"),
    ({"subscribe": "a", "path": "s3://bucket/log"}, "is not a directory"),
    ({"subscribe": "a", "path": " "}, "path is empty"),
    ({"subscribe": "a", "paths": '["/a", "/b"]'}, "one path, not several"),
    ({"subscribe": "a", "log": "hdfs://host/log"}, "log='hdfs://host/log' is not a directory"),
    ({"subscribe": "a", "namespace": "n" * 90}, "The namespace name .* 90 bytes"),
    ({"subscribe": "a..b"}, "a..b"),
    ({"subscribe": "b, sensor_*"}, r"'sensor_\*' has \* inside of a level: \* stands for a whole level"),
    ({"subscribe": "sensor*.b..."}, "stands for a whole level"),
    ({"subscribe": "a", "groupId": "x..y"}, "x..y"),
    ({"subscribe": "a", "startFromKafkaOffsets": "maybe"}, "startFromKafkaOffsets='maybe' is neither true nor false"),
    ({"subscribe": "a", "endingOffsetsByTimestamp": '{"a": [5]}'}, r"says \[5\] for 'a', not partitions"),
    ({"subscribe": "a", "minOffsetsPerTrigger": "1.5"}, "minOffsetsPerTrigger='1.5' is no positive number"),
    ({"subscribe": "a", "columnNameOfCorruptRecord": ""}, "columnNameOfCorruptRecord is empty"),
    ({"subscribe": "a", "metadataPrefix": " "}, "metadataPrefix is empty"),
]
# fmt: on


def test_a_consumer_group_of_kafka_is_not_taken_for_ours():
    """Many queries may share one there; the group of a log is of one query."""
    with pytest.raises(ValueError) as caught:
        parse_options({"subscribe": "a", "group.id": "x"})
    assert "groupId" not in str(caught.value)
    assert parse_options({"subscribe": "a", "kafka.group.id": "x", "groupIdPrefix": "y"}).group is None


def slips():
    """Every option, with a name that differs by a letter and is none."""
    for name in SOURCE_OPTIONS:
        slip = name[:-2] + name[-1] if len(name) > 4 else f"{name}s"
        taken = slip.lower() in {each.lower() for each in (*SOURCE_OPTIONS, "paths")}
        yield name, f"x{name}" if taken else slip


def parse(**options):
    return parse_options(CaseInsensitiveDict({"path": "/data/log", **options}))


class TestAccepted:
    def test_defaults(self):
        found = parse(subscribe="orders")
        assert found.selection.names == ("orders",)
        assert (found.start, found.stop, found.min_partitions, found.group) == (None, None, None, None)
        assert found.fail_on_data_loss
        assert not found.include_headers
        assert found.value_format == "binary"

    @pytest.mark.parametrize(
        ("options", "place"),
        [
            ({"path": "/a"}, "/a"),
            ({"path": "/a", "log": "/b"}, "/b"),
            ({"path": "file:/a/b"}, "/a/b"),
            ({"path": "file:///a/b%20c"}, "/a/b c"),
            ({"path": "data/log"}, "data/log"),
            ({}, None),
        ],
    )
    def test_the_directory(self, options, place):
        assert parse_options(CaseInsensitiveDict({"subscribe": "a", **options})).location == place

    def test_what_belongs_to_kafka_or_spark_is_ignored(self):
        ignored = {"kafka.bootstrap.servers": "x:9092", "kafka.group.id": "g", "checkpointLocation": "/c", "topic": "t"}
        ignored |= dict.fromkeys(IGNORED_OPTIONS, "1")
        assert parse(subscribe="a", **ignored) == parse(subscribe="a")

    def test_keys_are_told_apart_by_their_letters_alone(self):
        assert parse(SUBSCRIBE="a", MinPartitions="3").min_partitions == 3


class TestRefused:
    @pytest.mark.parametrize(("name", "slip"), list(slips()))
    def test_a_slip_in_any_name_is_answered_with_the_name(self, name, slip):
        with pytest.raises(ValueError, match=f"did you mean {name}"):
            parse(subscribe="a", **{slip: "1"})

    def test_a_name_that_is_like_no_other(self):
        with pytest.raises(ValueError, match="no option 'wibble': there are path, log"):
            parse(subscribe="a", wibble="1")

    @pytest.mark.parametrize(("options", "told"), MALFORMED)
    def test_a_malformed_value(self, options, told):
        with pytest.raises((ValueError, InvalidNameError), match=told):
            parse(**options)

    def test_every_option_is_among_them(self):
        named = {name for options, _ in MALFORMED for name in options}
        assert set(SOURCE_OPTIONS) <= named

    @pytest.mark.parametrize("options", [{"subscribe": "a..b"}, {"subscribe": "a", "groupId": "x..y"}])
    def test_names_that_no_topic_or_group_can_have(self, options):
        with pytest.raises(InvalidNameError):
            parse(**options)
