"""Every option is read as the documents say, and every slip gets an answer in the words of whoever made it."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from pyspark.sql.datasource import CaseInsensitiveDict

from tailrace.errors import InvalidNameError
from tailrace.spark.source.options import IGNORED_OPTIONS, SOURCE_OPTIONS, parse_options
from tailrace.spark.source.schema import default_schema, layout_of
from tailrace.spark.source.selection import Point
from tests.spark.ddl import struct

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

    def test_names_and_wildcards_go_into_subscribe(self):
        chosen = parse(subscribe=" orders, sensors.* ,orders,logs... ").selection
        assert chosen.names == ("orders", "sensors.*", "logs...")
        assert chosen.exact == ["orders"]
        names = ("orders", "orders.eu", "sensors.a", "sensors.a.b", "logs", "logs.a.b")
        assert [name for name in names if chosen.wants(name)] == ["orders", "sensors.a", "logs", "logs.a.b"]

    def test_a_pattern_is_a_regular_expression_over_whole_names(self):
        chosen = parse(subscribePattern="ord.*|x[0-9]").selection
        assert [name for name in ("orders", "my.orders", "x1", "x12") if chosen.wants(name)] == ["orders", "x1"]

    def test_partitions_are_assigned(self):
        chosen = parse(assign='{"orders": [2, 0], "b": [1]}').selection
        assert chosen.partitions == {"orders": (0, 2), "b": (1,)}
        assert chosen.includes(("orders", 2))
        assert not chosen.includes(("orders", 1))

    @pytest.mark.parametrize(
        ("options", "point"),
        [
            ({"startingOffsets": "earliest"}, Point("startingOffsets", "earliest")),
            ({"startingOffsets": "LATEST"}, Point("startingOffsets", "latest")),
            (
                {"startingOffsets": '{"a": {"0": 5, "1": -2, "2": -1}}'},
                Point("startingOffsets", "offsets", 0, {"a": {0: 5, 1: -2, 2: -1}}),
            ),
            ({"startingTimestamp": "1000"}, Point("startingTimestamp", "time", 1_000_000, {}, "error")),
            (
                {"startingTimestamp": "1000", "startingOffsets": "earliest", "startingOffsetsByTimestamp": "{}"},
                Point("startingTimestamp", "time", 1_000_000, {}, "error"),
            ),
            (
                {"startingOffsetsByTimestamp": '{"a": {"0": 7}}', "startingOffsetsByTimestampStrategy": "latest"},
                Point("startingOffsetsByTimestamp", "times", 0, {"a": {0: 7}}, "latest"),
            ),
            ({"since": "2026-11-15T20:00Z"}, Point("since", "time", 1_794_772_800_000_000)),
            ({"since": "2026-11-15"}, Point("since", "time", 1_794_700_800_000_000)),
        ],
    )
    def test_where_to_begin(self, options, point):
        assert parse(subscribe="a", **options).start == point

    def test_offsets_that_a_stream_reported_can_be_copied(self):
        point = parse(subscribe="a", startingOffsets='{"a": {"0": 5}, "__tailrace {}": {"0": 0}}').start
        assert point.by_partition == {"a": {0: 5}}

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


class TestColumns:
    def test_as_kafka(self):
        assert default_schema(parse(subscribe="a")).simpleString() == (
            "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
        )
        assert default_schema(parse(subscribe="a", includeHeaders="true")).fields[-1].dataType.simpleString() == (
            "array<struct<key:string,value:binary>>"
        )

    def layout(self, text, **options):
        return layout_of(struct(text), parse(subscribe="a", **options))

    def test_a_schema_is_a_choice(self):
        assert self.layout("offset bigint, VALUE binary").sources == ("offset", "value")

    def test_fields_and_metadata_of_json(self):
        found = self.layout(
            "offset string, _offset bigint not null, _TimestampType int, _corrupt_record string, _id string",
            valueFormat="json",
        )
        assert found.sources == (None, "offset", "timestampType", "corrupt", None)
        assert found.fields.names == ["offset", "_id"]
        other = self.layout("_offset string, m_offset bigint, bad binary", valueFormat="json", metadataPrefix="m_",
                            columnNameOfCorruptRecord="bad")  # fmt: skip
        assert other.sources == (None, "offset", "corrupt")

    @pytest.mark.parametrize(
        ("ddl", "told"),
        [
            ("vale binary", "no column 'vale': did you mean value"),
            ("amount double", "no column 'amount': there are key, value.*valueFormat=json"),
            ("value string", r"value is binary, not string: read it as binary and write CAST\(value AS STRING\)"),
            ("offset int", "offset is bigint, not int"),
            ("timestamp bigint", "timestamp is timestamp, not bigint"),
            ("headers array<string>", "headers is array<struct<key:string,value:binary>>"),
            ("value binary not null", "may be null, as in a tombstone"),
            ("value binary, VALUE binary", "twice"),
        ],
    )
    def test_columns_that_cannot_be_had(self, ddl, told):
        with pytest.raises(ValueError, match=told):
            self.layout(ddl)

    @pytest.mark.parametrize(
        ("ddl", "told"),
        [
            ("user string not null", "user may be missing"),
            ("user struct<name: string not null>", r"user.name may be missing"),
            ("_key string", "_key is binary.*metadataPrefix"),
            ("_corrupt_record int", "make it a string"),
            ("a map<int, string>", "field a cannot be read as map<int,string>"),
            ("a interval day to second", "cannot be read as interval"),
        ],
    )
    def test_fields_that_cannot_be_had(self, ddl, told):
        with pytest.raises(ValueError, match=told):
            self.layout(ddl, valueFormat="json")

    def test_json_needs_a_schema(self):
        with pytest.raises(ValueError, match=r"write .schema\("):
            default_schema(parse(subscribe="a", valueFormat="json"))
