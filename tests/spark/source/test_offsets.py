"""Where a query starts and ends in each partition, and the form of that in a checkpoint."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import tailrace
from tailrace.bulk import TopicBounds
from tailrace.errors import OffsetOutOfRangeError, SettingsMismatchError, TopicNotFoundError
from tailrace.spark.source.offsets import (
    IDENTITY,
    StreamOffsets,
    adopt,
    beside,
    check_order,
    check_present,
    foreign,
    from_json,
    places_of,
    topics_in,
    topics_of,
    unfinished,
)
from tailrace.spark.source.options import parse_options
from tests.spark.plain import batch, expected, places

# An even number of milliseconds.
TIME = 1_763_200_000_000_000

BOUNDS = {
    "b": TopicBounds(2, [0, 0], [7, 8]),
    "a": TopicBounds(1, [5, 0, 0], [9, 4, 0]),
}


def options(**given):
    return parse_options({"log": "/data/log", **given})


def selection(**given):
    return options(**given).selection


class TestPartitions:
    def test_those_of_all_topics_in_order(self):
        assert places_of(BOUNDS, selection(subscribe="...")) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
        assert places_of({}, selection(subscribe="...")) == []

    def test_those_that_are_assigned_and_exist(self):
        assert places_of(BOUNDS, selection(assign='{"a": [2, 0, 3], "b": [1], "c": [0]}')) == [
            ("a", 0), ("a", 2), ("b", 1),
        ]  # fmt: skip

    def test_topics_of_partitions_each_once(self):
        assert topics_of([("b", 1), ("a", 0), ("b", 0)]) == ["b", "a"]


class TestPresence:
    @pytest.fixture
    def log(self, tmp_path):
        with tailrace.open(tmp_path / "log") as opened:
            opened.topic("orders", partitions=1)
            yield opened

    def test_a_named_topic_must_exist(self, log):
        with pytest.raises(TopicNotFoundError, match="no topic 'order': did you mean 'orders'"):
            check_present(log, BOUNDS, selection(subscribe="a,order"), matched=False)

    def test_an_assigned_partition_must_exist(self, log):
        check_present(log, BOUNDS, selection(assign='{"a": [2]}'), matched=True)
        with pytest.raises(ValueError, match="names partition 3 of 'a', which has 3 partitions, 0 to 2"):
            check_present(log, BOUNDS, selection(assign='{"a": [3]}'), matched=True)

    def test_only_a_batch_needs_a_topic_for_its_wildcards(self, log):
        check_present(log, {}, selection(subscribe="x.*"), matched=False)
        check_present(log, {}, selection(subscribePattern="x"), matched=True)
        check_present(log, BOUNDS, selection(subscribe="*"), matched=True)
        with pytest.raises(TopicNotFoundError, match=r"No topic matches x\.\*, y\.\*"):
            check_present(log, {}, selection(subscribe="x.*,y.*"), matched=True)


class TestOrder:
    START = '{"a": {"0": 5}}'

    def check(self, start, stop, **given):
        check_order({("a", 0): start}, {("a", 0): stop}, options(subscribe="a", **given))

    def test_offsets_in_the_wrong_order_are_an_error(self):
        given = {"startingOffsets": self.START, "endingOffsets": self.START}
        self.check(5, 5, **given)
        with pytest.raises(ValueError, match=r"endingOffsets \(4\) is before startingOffsets \(5\) for a\[0\]"):
            self.check(5, 4, **given)

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"startingOffsets": START},
            {"endingOffsets": START},
            {"startingTimestamp": "5", "endingOffsets": START},
            {"startingOffsets": START, "endingTimestamp": "5"},
        ],
        ids=str,
    )
    def test_anything_else_reads_nothing(self, given):
        self.check(5, 4, **given)


class TestCheckpoints:
    """What a log's checkpoints hold: a change of this form is a change of the format."""

    WHOLE = StreamOffsets(
        {("a", 0): 7, ("a", 1): 0, ("ä b", 0): 3}, {"ä b": 2, "a": 1}, {("a", 0): 5, ("a", 1): 0}, "id"
    )

    def test_the_form(self):
        assert self.WHOLE.to_json() == {
            "a": {"0": 7, "1": 0},
            "ä b": {"0": 3},
            '__tailrace {"log":"id","topics":{"a":1,"ä b":2},"from":{"a":{"0":5}}}': {"0": 0},
        }

    def test_partitions_that_are_no_longer_read_are_apart(self):
        found = self.WHOLE.to_json(left=[("a", 1), ("ä b", 0)])
        (name,) = (name for name in found if name.startswith(IDENTITY))
        assert found == {"a": {"0": 7}, name: {"0": 0}}
        assert json.loads(name.removeprefix(IDENTITY))["left"] == {"a": {"1": 0}, "ä b": {"0": 3}}

    @pytest.mark.parametrize("left", [[], [("a", 1)], [("a", 0), ("a", 1), ("ä b", 0)]], ids=str)
    def test_everything_is_read_again(self, left):
        found = from_json(json.loads(json.dumps(self.WHOLE.to_json(left))))
        # A start of 0 is not written.
        assert found == self.WHOLE._replace(begin={("a", 0): 5})

    @pytest.mark.parametrize("begin", [None, {}])
    def test_a_start_at_the_very_beginning_is_not_an_unknown_one(self, begin):
        assert from_json(StreamOffsets({("a", 0): 1}, {"a": 1}, begin, "id").to_json()).begin == begin

    def test_offsets_of_kafka_are_of_no_log(self):
        assert from_json({"a": {"0": 5, "11": 0}}) == StreamOffsets({("a", 0): 5, ("a", 11): 0}, {}, None, None)
        assert from_json({}) == StreamOffsets({}, {}, None, None)

    @pytest.mark.parametrize(
        "stored",
        [5, None, "text", [], {"a": 5}, {"a": {"x": 5}}, {"a": {"0": "5"}}, {"a": {"0": -1}}, {"a": {"0": True}},
         {"a": {"0": 1.5}}],
        ids=str,
    )  # fmt: skip
    def test_what_is_no_offset_is_of_another_source(self, stored):
        with pytest.raises(SettingsMismatchError, match="was not made by reading this log"):
            from_json(stored)

    def test_without_the_identity_of_its_log(self):
        assert topics_in(self.WHOLE.to_json()) == {"a": {"0": 7, "1": 0}, "ä b": {"0": 3}}


class TestForeign:
    def test_a_long_offset_is_shown_by_its_beginning(self):
        short, long = str(foreign({"a": 1})), str(foreign({"a": "x" * 1_000}))
        assert 'it says {"a": 1}, and' in short
        assert '{"a": "xxx' in long
        assert len(long) < 250

    def test_two_hints(self):
        assert "startFromKafkaOffsets" in foreign({}).hint
        # Without its start the first batch cannot be read again, whatever the option says.
        assert "startFromKafkaOffsets" not in unfinished({}).hint
        assert "startingOffsets of the old query" in unfinished({}).hint

    def adopt(self, positions, **given):
        chosen = selection(**(given or {"subscribe": "a,b"}))
        bounds = {topic: found for topic, found in BOUNDS.items() if chosen.wants(topic)}
        return adopt(StreamOffsets(positions, {}), bounds, chosen, "here")

    def test_offsets_of_kafka_become_those_of_this_log(self):
        positions = {("a", 0): 5, ("a", 1): 4, ("b", 1): 8}
        assert self.adopt(positions) == StreamOffsets(positions, {"a": 1, "b": 2}, None, "here")

    @pytest.mark.parametrize("offset", [4, 10])
    def test_an_offset_without_a_record_is_refused(self, offset):
        with pytest.raises(OffsetOutOfRangeError, match=rf"offset {offset} of a\[0\], .* from 5 to before 9") as caught:
            self.adopt({("b", 0): 0, ("a", 0): offset})
        assert (caught.value.earliest, caught.value.latest) == (5, 9)

    @pytest.mark.parametrize(
        ("place", "given", "why"),
        [
            (("a", 3), {"subscribe": "a"}, r"a\[3\], and this log has no such partition"),
            (("c", 0), {"subscribe": "a,c"}, r"c\[0\], and this log has no such partition"),
            (("b", 0), {"subscribe": "a"}, r"b\[0\], and this query does not read it"),
            (("a", 1), {"assign": '{"a": [0]}'}, r"a\[1\], and this query does not read it"),
        ],
    )
    def test_a_partition_that_is_not_read_is_refused(self, place, given, why):
        with pytest.raises(SettingsMismatchError, match=why):
            self.adopt({place: 5}, **given)


def test_latest_offsets_can_be_subtracted_from_the_end_of_a_batch():
    end = {"a": {"0": 5, "1": 2}, "gone": {"0": 3}, f"{IDENTITY}{{}}": {"0": 0}}
    latest = StreamOffsets({("a", 0): 9, ("b", 0): 4}, {"a": 1, "b": 2}, None, "id")
    assert beside(latest, end) == {
        "a": {"0": 9, "1": 2}, "b": {"0": 4}, "gone": {"0": 3}, f"{IDENTITY}{{}}": {"0": 0},
    }  # fmt: skip
    assert end["a"] == {"0": 5, "1": 2}


class TestWhere:
    @pytest.fixture
    def topic(self, log):
        topic = log.topic("orders", partitions=2)
        for partition in range(2):
            for number in range(10):
                topic.append(str(number), timestamp=TIME + number * 1_000_000, partition=partition)
        topic.trim({0: 2})
        return topic

    @pytest.mark.parametrize(
        ("options", "ranges"),
        [
            ({}, [(0, range(2, 10)), (1, range(10))]),
            ({"startingOffsets": "earliest", "endingOffsets": "latest"}, [(0, range(2, 10)), (1, range(10))]),
            ({"startingOffsets": '{"orders": {"0": 5, "1": -2}}'}, [(0, range(5, 10)), (1, range(10))]),
            ({"endingOffsets": '{"orders": {"0": 5, "1": -1}}'}, [(0, range(2, 5)), (1, range(10))]),
            ({"startingTimestamp": TIME // 1_000 + 7_000}, [(0, range(7, 10)), (1, range(7, 10))]),
            ({"startingTimestamp": 0}, [(0, range(2, 10)), (1, range(10))]),
            ({"endingTimestamp": TIME // 1_000 + 3_000}, [(0, range(2, 3)), (1, range(3))]),
            ({"endingTimestamp": 10**15}, [(0, range(2, 10)), (1, range(10))]),
            (
                {"startingOffsetsByTimestamp": json.dumps({"orders": {"0": TIME // 1_000 + 4_000, "1": 0}}),
                 "endingOffsetsByTimestamp": json.dumps({"orders": {"0": 10**13, "1": TIME // 1_000 + 1_000}})},
                [(0, range(4, 10)), (1, range(1))],
            ),
            ({"startingTimestamp": 10**13, "startingOffsetsByTimestampStrategy": "latest"}, []),
            ({"since": "-1m"}, []),
            ({"since": "2025-11-15T09:46:48Z"}, [(0, range(8, 10)), (1, range(8, 10))]),
            ({"startingTimestamp": TIME // 1_000 + 7_000, "endingTimestamp": TIME // 1_000 + 2_000}, []),
        ],
    )  # fmt: skip
    def test_places(self, topic, path, options, ranges):
        assert places(batch(path=path, subscribe="orders", **options)) == expected("orders", *ranges)

    def test_assigned_partitions(self, topic, path):
        assert places(batch(path=path, assign='{"orders": [1]}')) == expected("orders", (1, range(10)))

    @pytest.mark.parametrize(
        ("options", "kind", "told"),
        [
            ({"startingOffsets": "latest"}, ValueError, "latest is for streams"),
            ({"startingOffsets": '{"orders": {"0": -1, "1": 0}}'}, ValueError, r"-1 \(latest\) for orders\[0\]"),
            ({"startingOffsets": '{"orders": {"0": 5}}'}, ValueError, r"says nothing of orders\[1\]: name every"),
            ({"startingOffsets": '{"orders": {"0": 5, "1": 1, "2": 1}}'}, ValueError, r"names orders\[2\], which"),
            ({"endingOffsets": '{"other": {"0": 5}}'}, ValueError, r"names other\[0\], which this query does not"),
            ({"startingOffsets": '{"orders": {"0": 1, "1": 0}}'}, OffsetOutOfRangeError, "the earliest record is 2"),
            ({"startingOffsets": '{"orders": {"0": 11, "1": 0}}'}, OffsetOutOfRangeError, "next record will be 10"),
            ({"endingOffsets": '{"orders": {"0": 5, "1": 11}}'}, OffsetOutOfRangeError, "next record will be 10"),
            (
                {"startingOffsets": '{"orders": {"0": 8, "1": 0}}', "endingOffsets": '{"orders": {"0": 5, "1": 5}}'},
                ValueError, r"endingOffsets \(5\) is before startingOffsets \(8\) for orders\[0\]",
            ),
            ({"startingTimestamp": 10**13}, ValueError, "no record at or after .*startingOffsetsByTimestampStrategy"),
        ],
    )  # fmt: skip
    def test_places_that_are_not_there(self, topic, path, options, kind, told):
        with pytest.raises(kind, match=told):
            batch(path=path, subscribe="orders", **options)

    def test_what_is_gone_may_be_left_out(self, topic, path):
        rows = batch(
            path=path, subscribe="orders", failOnDataLoss=False, startingOffsets='{"orders": {"0": 0, "1": 99}}',
            endingOffsets='{"orders": {"0": 4, "1": 99}}',
        )  # fmt: skip
        assert places(rows) == expected("orders", (0, range(2, 4)))
