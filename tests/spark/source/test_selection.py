"""Which topics and partitions a query reads, and from where to where."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from pyspark.sql.datasource import CaseInsensitiveDict

from tailrace.arguments import StartPoint
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.selection import (
    EARLIEST,
    LATEST,
    Point,
    Selection,
    parse_start,
    parse_stop,
    refuse_latest_start,
)


def parse(**options):
    return parse_options(CaseInsensitiveDict({"path": "/data/log", **options}))


class TestOptions:
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

    def test_a_time_goes_before_times_and_those_before_offsets(self):
        everything = {"endingOffsets": "latest", "endingTimestamp": "1000", "endingOffsetsByTimestamp": "{}"}
        assert parse_stop(everything) == Point("endingTimestamp", "time", 1_000_000)
        assert parse_stop({"endingOffsets": " LATEST "}) == Point("endingOffsets", "latest")
        assert parse_stop({}) is None

    def test_a_table_that_has_no_options_is_explained(self):
        """Spark keeps the options of a table with columns to itself."""
        with pytest.raises(ValueError, match="CREATE TEMPORARY VIEW"):
            parse_options({})
        with pytest.raises(ValueError, match="Say which topics to read") as caught:
            parse()
        assert "VIEW" not in str(caught.value)


class TestSelection:
    def test_names_wildcards_and_expressions(self):
        assert Selection("subscribe", ("a", "b.*")).wants("b.c")
        assert not Selection("subscribe", ("a", "b.*")).wants("a.b")
        assert Selection("subscribePattern", expression="a|b").wants("b")
        assert not Selection("subscribePattern", expression="a|b").wants("ab")

    def test_a_partition_of_a_topic_that_is_not_assigned_is_not_read(self):
        chosen = Selection("assign", ("a",), partitions={"a": (0, 2)})
        assert [place for place in (("a", 0), ("a", 1), ("a", 2), ("b", 0)) if chosen.includes(place)] == [
            ("a", 0), ("a", 2),
        ]  # fmt: skip

    def test_all_partitions_of_a_topic_are_read_otherwise(self):
        chosen = Selection("subscribe", ("a",))
        assert chosen.includes(("a", 99))
        assert not chosen.includes(("b", 0))

    def test_only_names_in_full_must_exist(self):
        assert Selection("subscribe", ("a", "b.*", "c...")).exact == ["a"]
        assert Selection("assign", ("a",), partitions={"a": (0,)}).exact == ["a"]
        assert Selection("subscribePattern", expression="a").exact == []

    def test_as_it_is_shown(self):
        assert str(Selection("subscribe", ("a", "b.*"))) == "a, b.*"
        assert str(Selection("subscribePattern", expression="a|b")) == "a|b"


class TestPoints:
    @pytest.mark.parametrize(
        ("point", "start"),
        [
            (Point("x", "earliest"), StartPoint("earliest")),
            (Point("x", "latest"), StartPoint("latest")),
            (Point("x", "time", 5_000), StartPoint("time", 5_000)),
            # Milliseconds, as Kafka has them.
            (Point("x", "times", by_partition={"a": {1: 5}}), StartPoint("time", 5_000)),
            (Point("x", "offsets", by_partition={"a": {1: 5, 0: 6}}), StartPoint("offset", 5)),
            (Point("x", "offsets", by_partition={"a": {1: EARLIEST}}), StartPoint("earliest")),
            (Point("x", "offsets", by_partition={"a": {1: LATEST}}), StartPoint("latest")),
        ],
        ids=str,
    )
    def test_in_one_partition(self, point, start):
        assert point.of(("a", 1)) == start

    def test_a_batch_does_not_start_at_the_end(self):
        refuse_latest_start(Point("startingOffsets", "earliest"))
        refuse_latest_start(Point("startingOffsets", "offsets", by_partition={"a": {0: EARLIEST, 1: 5}}))
        with pytest.raises(ValueError, match="startingOffsets=latest is for streams"):
            refuse_latest_start(Point("startingOffsets", "latest"))
        with pytest.raises(ValueError, match=r"startingOffsets gives -1 \(latest\) for a\[1\]"):
            refuse_latest_start(Point("startingOffsets", "offsets", by_partition={"a": {0: 5, 1: LATEST}}))

    def test_a_query_does_not_end_at_the_beginning(self):
        with pytest.raises(ValueError, match="endingOffsets=earliest would read nothing"):
            parse_stop({"endingOffsets": "earliest"})
        with pytest.raises(ValueError, match=r"endingOffsets gives -2 \(earliest\) for a\[0\]"):
            parse_stop({"endingOffsets": '{"a": {"0": -2}}'})
        assert parse_stop({"endingOffsets": '{"a": {"0": -1}}'}).by_partition == {"a": {0: LATEST}}

    def test_what_a_missing_time_means_is_for_the_start_alone(self):
        assert parse_start({"startingTimestamp": "1"}).strategy == "error"
        given = {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "LATEST"}
        assert parse_start(given).strategy == "latest"
        assert parse_stop({"endingTimestamp": "1"}).strategy == "latest"
