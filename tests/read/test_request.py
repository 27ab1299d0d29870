"""Requests: a set of topics that are named or matched, and the offset that a place stands for in a partition."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace import bulk
from tailrace.arguments import StartPoint, parse_start
from tailrace.errors import TopicNotFoundError
from tailrace.read.iteration import Iteration, Records
from tailrace.read.request import Request, lookup, resolve_point, select

TIME = 1_700_000_000_000_000
WAIT = 20


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


@pytest.fixture
def three(log):
    for name in ("orders.eu", "orders.us", "refunds"):
        log.topic(name).extend([f"{name} {number}" for number in range(3)], timestamps=[TIME, TIME + 10, TIME + 20])
    return log


def iteration(log, *topics, start="earliest", follow=False, **more):
    request = Request(topics, parse_start(start), **more)
    return Iteration(log.engine, request, None, follow, WAIT if follow else None, lambda: log.engine.closed)


def texts(iteration):
    return [record.text for record in Records(iteration)]


class TestSet:
    def test_names_and_patterns_together_stand_for_each_topic_once(self, three):
        expected = [f"{name} {number}" for name in ("orders.eu", "orders.us", "refunds") for number in range(3)]
        assert texts(iteration(three, "refunds", "orders.*", "orders.eu")) == expected
        assert texts(iteration(three, "refunds", "orders.eu")) == expected[:3] + expected[6:]

    def test_a_plain_name_is_a_set_of_one(self, three):
        assert texts(iteration(three, "refunds", start=1)) == ["refunds 1", "refunds 2"]
        assert Request(("refunds",), StartPoint("earliest")).single == "refunds"
        assert Request(("orders.*",), StartPoint("earliest")).single is None
        assert Request(("refunds", "orders.*"), StartPoint("earliest")).single is None

    def test_a_named_topic_that_is_missing_is_an_error_beside_a_pattern_that_matches(self, three):
        with pytest.raises(TopicNotFoundError, match="'refund'"):
            texts(iteration(three, "refund", "orders.*"))
        with pytest.raises(TopicNotFoundError, match=r"No topic matches 'sensors.\*, a...'"):
            texts(iteration(three, "sensors.*", "a..."))

    def test_offsets_go_by_topic(self, three):
        starts = {"refunds": {0: 2}, "orders.eu": {0: 1}}
        found = texts(iteration(three, "refunds", "orders.eu", starts=starts))
        assert found == ["orders.eu 1", "orders.eu 2", "refunds 2"]
        with pytest.raises(ValueError, match=r"2 partitions match 'refunds, orders.eu'"):
            texts(iteration(three, "refunds", "orders.eu", start=1))

    def test_a_follower_reads_what_is_named_and_what_matches_later(self, three):
        iterator = Records(iteration(three, "refunds", "orders.*", follow=True))
        found = [next(iterator).text for _ in range(9)]
        three.topic("orders.jp").append("later")
        three.topic("payments").append("not asked for")
        assert next(iterator).text == "later"
        three.topic("orders.us").drop()
        three.topic("refunds").append("more")
        assert next(iterator).text == "more"
        assert len(set(found)) == 9

    def test_a_follower_ends_with_an_error_when_a_named_topic_is_dropped(self, three):
        iterator = Records(iteration(three, "refunds", "orders.*", follow=True))
        for _ in range(9):
            next(iterator)
        three.topic("refunds").drop()
        with pytest.raises(TopicNotFoundError, match="'refunds' was dropped"):
            next(iterator)


class TestPoint:
    def test_every_place_in_one_partition(self, three):
        (span,) = select(three.engine, Request(("refunds",), StartPoint("earliest")))
        look = lookup(span.reader, span.visibility)
        found = {
            start: resolve_point(parse_start(start), 0, 1, 3, look)
            for start in ("earliest", "latest", 0, 2, 99, "2020-01-01", "2030-01-01")
        }
        # Times are found within the bounds; an offset is what it says, and whether it is refused is not decided here.
        assert found == {"earliest": 1, "latest": 3, 0: 0, 2: 2, 99: 99, "2020-01-01": 1, "2030-01-01": 3}
        assert resolve_point(StartPoint("time", TIME + 11), 0, 0, 3, look) == 2
        assert resolve_point(StartPoint("offsets", 0, {0: 2}), 0, 0, 3, look) == 2
        assert resolve_point(StartPoint("offsets", 0, {1: 2}), 0, 0, 3, look) is None


class TestActive:
    @pytest.fixture
    def topic(self, log):
        """A topic of two partitions, of which the first has several segments."""
        topic = log.topic("orders", partitions=2, segment_bytes=4096)
        for number in range(300):
            topic.append(str(number), partition=0)
        topic.append("alone", partition=1)
        return topic

    @staticmethod
    def base(topic):
        (path,) = Path(topic.log.location).glob("topics/*-orders/0")
        return max(int(file.stem) for file in path.glob("*.seg"))

    @staticmethod
    def seal(topic):
        engine = topic.log.engine
        partition = engine.partition(engine.entry(topic.name), 0)
        engine.write(lambda: engine.store.inside(partition, partition.seal))

    def test_it_is_the_first_record_of_the_segment_that_is_being_written(self, topic):
        base = self.base(topic)
        assert 0 < base < 299
        active = [record.text for record in topic.read("active")]
        assert active == [*map(str, range(base, 300)), "alone"]
        assert [record.offset for record in topic.read(stop="active")] == [*range(base)]
        assert topic.read("active").count() == len(active)
        assert [record.text for record in topic.read("active", reverse=True)] == active[::-1]
        assert len(list(topic.log.topic("*").read("active"))) == len(active)
        assert repr(topic.read("active")) == "<Scan of 'orders': from active>"

    def test_where_no_segment_is_being_written_it_is_the_end(self, topic):
        self.seal(topic)
        assert [record.text for record in topic.read("active")] == ["alone"]
        assert [record.offset for record in topic.read(stop="active", partition=0)] == [*range(300)]
        topic.append("new", partition=0)
        assert [record.offset for record in topic.read("active", partition=0)] == [300]

    def test_a_trim_into_it_moves_it_up(self, topic):
        topic.trim({0: 299})
        assert [record.offset for record in topic.read("active", partition=0)] == [299]
        topic.trim({0: 300})
        assert list(topic.read("active", partition=0)) == []

    def test_a_follower_begins_and_ends_there(self, topic):
        base = self.base(topic)
        iterator = iter(topic.read("active", partition=0, follow=True, timeout=WAIT))
        assert next(iterator).offset == base
        bounded = topic.read(stop="active", partition=0, follow=True, timeout=WAIT)
        assert [record.offset for record in bounded] == [*range(base)]
        later = topic.log.topic("later").read("active", follow=True, timeout=WAIT)
        topic.log.topic("later").append("first")
        assert next(iter(later)).text == "first"

    def test_a_damaged_sealed_segment_does_not_matter(self, topic):
        base = self.base(topic)
        (path,) = Path(topic.log.location).glob("topics/*-orders/0/" + "0" * 20 + ".seg")
        path.write_bytes(path.read_bytes()[:100])
        assert [record.offset for record in topic.read("active", partition=0)] == [*range(base, 300)]

    def test_groups_plans_and_seeks_know_it(self, topic):
        log, base = topic.log, self.base(topic)
        with log.consumer("orders", "g", start="active", stop="now") as consumer:
            assert next(consumer).offset == base
            consumer.seek("latest")
            consumer.seek("active")
            offsets = sorted((record.partition, record.offset) for record in consumer)
            assert offsets == [*((0, offset) for offset in range(base, 300)), (1, 0)]
        with log.consumer("orders", "h", stop="active") as consumer:
            assert [record.offset for record in consumer] == [*range(base)]
        assert log.reset_group("g", "active", dry_run=True) == {"orders": {0: base, 1: 0}}
        topic.append("x", partition=0, durable=True)
        parts = bulk.plan(log, "orders", "active", partitions=0)
        assert [record.offset for part in parts for batch in bulk.read(part) for record in batch] == [*range(base, 301)]
