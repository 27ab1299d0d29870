"""Spans: a frame gives any number of runs of visible records, and everything that hands out records takes them.

The one function that cuts frames is replaced by one that hides any records, and every way to read is compared with the
records of the log without those that are hidden.
"""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

import tailrace
from tailrace import bulk
from tailrace.bulk import plans
from tailrace.errors import OffsetOutOfRangeError
from tailrace.read import span
from tailrace.read.visibility import visible_parts

TIME = 1_700_000_000_000_000
COUNT = 120
PARTITIONS = 3
# Generous, because a busy machine must not look like a bug.
WAIT = 20

HIDDEN = {
    "nothing": lambda partition, offset: False,
    "every second run": lambda partition, offset: offset // 3 % 2 == 1,
    "single records": lambda partition, offset: offset % 4 == 1,
    "all but a few": lambda partition, offset: offset % 37 != 5,
    "the beginning": lambda partition, offset: offset < 33 + partition,
    "the end": lambda partition, offset: offset >= COUNT - 33 - partition,
    "whole frames": lambda partition, offset: offset // 20 % 2 == partition % 2,
    "one partition": lambda partition, offset: partition == 1,
    "everything": lambda partition, offset: True,
    "at random": lambda partition, offset: Random(offset * 31 + partition).random() < 0.5,
}


def filled(log, frame):
    """A topic of three partitions whose times interleave, in frames of one size; all of it is safe on disk."""
    topic = log.topic("orders", partitions=PARTITIONS, segment_bytes=4096)
    for partition in range(PARTITIONS):
        for first in range(0, COUNT, frame):
            offsets = range(first, min(first + frame, COUNT))
            times = [TIME + offset * 10 + partition * 3 for offset in offsets]
            texts = [f"{partition}/{offset}" for offset in offsets]
            topic.extend(texts, timestamps=times, partition=partition, durable=offsets.stop == COUNT)
    return topic


@pytest.fixture(scope="module", params=[1, 8, COUNT], ids=["single records", "small frames", "one frame"])
def topic(tmp_path_factory, request):
    """A topic that no test here appends to."""
    with tailrace.open(tmp_path_factory.mktemp("span") / "log", durable=False) as log:
        yield filled(log, request.param)


@pytest.fixture
def growing(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield filled(log, 8)


@pytest.fixture(params=HIDDEN)
def hidden(request, hide):
    hide(HIDDEN[request.param])
    return HIDDEN[request.param]


@pytest.fixture
def hide(monkeypatch):
    """Makes records invisible to everything that reads."""

    def hide(hidden):
        cut = real(hidden)
        monkeypatch.setattr(span, "visible_parts", cut)
        monkeypatch.setattr(plans, "visible_parts", cut)

    return hide


def real(hidden, whole=visible_parts):
    def cut(topic, partition, column, after, start, stop, clock):
        parts = []
        for part in whole(topic, partition, column, after, start, stop, clock):
            at = part.first
            while at < part.stop:
                first = at
                gone = hidden(partition, column.offset(first))
                while at < part.stop and hidden(partition, column.offset(at)) == gone:
                    at += 1
                if not gone:
                    parts.append(part._replace(first=first, stop=at))
        return parts

    return cut


def places(records):
    return [(record.partition, record.offset) for record in records]


def visible(hidden):
    return [(each, at) for each in range(PARTITIONS) for at in range(COUNT) if not hidden(each, at)]


def by_time(found):
    return sorted(found, key=lambda place: (place[1] * 10 + place[0] * 3, place))


def in_order(found, order):
    return by_time(found) if order == "time" else sorted(found)


def arrow_places(table):
    return [*zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)]


ENDS = {("orders", partition): COUNT for partition in range(PARTITIONS)}
STARTS = {("orders", partition): 0 for partition in range(PARTITIONS)}


@pytest.mark.parametrize("order", ["offset", "time"])
class TestScan:
    @pytest.mark.parametrize("reverse", [False, True])
    def test_records_batches_and_arrow(self, topic, hidden, order, reverse):
        expected = in_order(visible(hidden), order)[:: -1 if reverse else 1]
        scan = topic.read(order=order, reverse=reverse)
        assert places(scan) == expected
        assert scan.positions == (STARTS if reverse else ENDS)
        for most in (1, 7, 1_000):
            batches = [*scan.batches(most)]
            assert places(record for batch in batches for record in batch) == expected
            assert [value for batch in batches for value in batch.values()] == [b"%d/%d" % place for place in expected]
            assert all(0 < len(batch) <= most for batch in batches)
            assert scan.positions == (STARTS if reverse else ENDS)
        assert arrow_places(scan.to_arrow()) == expected
        assert scan.to_arrow()["value"].to_pylist() == [b"%d/%d" % place for place in expected]

    def test_limit_first_last_and_count(self, topic, hidden, order):
        found = visible(hidden)
        expected = in_order(found, order)
        for count in (0, 1, 5, 64, 1_000):
            newest = in_order(by_time(found)[max(0, len(found) - count) :], order)
            assert places(topic.read(order=order, limit=count)) == expected[:count]
            assert places(topic.read(order=order, limit=count, reverse=True)) == expected[::-1][:count]
            assert places(topic.read(order=order, last=count)) == newest
            assert places(topic.read(order=order, last=count, reverse=True)) == newest[::-1]
            # Footers do not know what is visible: this is the count that reads.
            assert topic.read(order=order, last=count, on_damage="skip").count() == len(newest)
        assert topic.read(order=order, on_damage="skip").count() == len(expected)
        first = topic.read(order=order).first()
        assert places([] if first is None else [first]) == expected[:1]

    def test_any_range(self, topic, hidden, order):
        random = Random(COUNT)
        for _ in range(12):
            low = [random.randrange(COUNT) for _ in range(PARTITIONS)]
            high = [random.randrange(COUNT + 1) for _ in range(PARTITIONS)]
            wanted = [(each, at) for each, at in visible(hidden) if low[each] <= at < high[each]]
            scan = topic.read(dict(enumerate(low)), dict(enumerate(high)), order=order)
            assert places(scan) == in_order(wanted, order)
            assert scan.positions == {("orders", each): max(low[each], high[each]) for each in range(PARTITIONS)}

    @pytest.mark.parametrize("reverse", [False, True])
    def test_positions_go_on_where_it_was_left(self, topic, hidden, order, reverse):
        expected = in_order(visible(hidden), order)[:: -1 if reverse else 1]
        for count in (1, 10, 50, 200):
            scan = topic.read(order=order, reverse=reverse)
            taken = places(islice(scan, count))
            go_on = {"stop": scan.positions} if reverse else {"start": scan.positions}
            assert taken + places(topic.read(**go_on, order=order, reverse=reverse)) == expected
            batches = scan.batches(count)
            taken = places(next(batches, ()))
            go_on = {"stop": scan.positions} if reverse else {"start": scan.positions}
            assert taken + places(topic.read(**go_on, order=order, reverse=reverse)) == expected

    def test_more_partitions_than_files(self, topic, hidden, order, monkeypatch):
        engine = topic.log.engine
        monkeypatch.setattr(engine, "tuning", engine.tuning._replace(readers_open_max=1))
        expected = in_order(visible(hidden), order)
        assert places(topic.read(order=order)) == expected
        assert places(topic.read(order=order, reverse=True)) == expected[::-1]
        assert places(topic.read(order=order, last=9)) == in_order(by_time(expected)[-9:], order)

    def test_a_follower_reads_what_is_there(self, topic, hidden, order):
        expected = in_order(visible(hidden), order)
        scan = topic.read(order=order, follow=True, timeout=0)
        assert places(scan) == expected
        assert scan.positions == ENDS
        assert places(topic.read(order=order, follow=True, stop="latest")) == expected


class TestFollower:
    @pytest.fixture
    def small_reads(self, monkeypatch):
        """What followers got of one small read at the end, each time that it had everything."""
        found = []

        def newest(self, stop, read=span.Span.newest):
            before = self.next
            parts = read(self, stop)
            if self.next > before:
                found.append(len(parts))
            return parts

        monkeypatch.setattr(span.Span, "newest", newest)
        return found

    def test_what_comes_later_is_cut_as_well(self, growing, hide):
        hide(lambda partition, offset: offset % 5 != 0)
        scan = growing.read({0: COUNT}, partition=0, follow=True, timeout=WAIT)
        iterator = iter(scan)
        growing.append("first", partition=0)
        found = [next(iterator).offset]
        for _ in range(22):
            growing.append("new", partition=0)
        found += [next(iterator).offset for _ in range(4)]
        growing.extend(["new"] * 23, partition=0)
        found += [next(iterator).offset for _ in range(5)]
        assert found == [*range(COUNT, COUNT + 50, 5)]
        assert scan.positions == {("orders", 0): COUNT + 46}

    def test_several_parts_of_one_small_read(self, growing, hide, small_reads):
        hide(lambda partition, offset: offset % 3 == 1)
        batches = growing.read({0: COUNT}, partition=0, follow=True, timeout=WAIT).batches()
        growing.append("first", partition=0)
        assert places(next(batches)) == [(0, COUNT)]
        for _ in range(6):
            growing.append("more", partition=0)
        assert places(next(batches)) == [(0, COUNT + at) for at in (2, 3, 5, 6)]
        assert small_reads[-1] == 2

    def test_hidden_records_at_the_end_are_passed(self, growing, hide, small_reads):
        hide(lambda partition, offset: offset > COUNT)
        scan = growing.read({1: COUNT}, partition=1, follow=True, timeout=0.2)
        iterator = iter(scan)
        growing.append("first", partition=1)
        assert next(iterator).offset == COUNT
        for _ in range(5):
            growing.append("new", partition=1)
        assert list(iterator) == []
        assert small_reads[-1] == 0
        assert scan.positions == {("orders", 1): COUNT + 6}


class TestConsumer:
    @pytest.fixture
    def group(self, topic):
        """A name that no group has, and what is left of its groups is dropped."""
        yield "g"
        for info in topic.log.groups():
            topic.log.drop_group(info.name)

    def test_iteration_polls_and_cursors(self, topic, hidden, group):
        log, expected = topic.log, visible(hidden)
        with log.consumer("orders", group, stop="now") as consumer:
            assert sorted(places(consumer)) == expected
        for most in (1, 7, 1_000):
            with log.consumer("orders", f"{group}-{most}", stop="now") as consumer:
                found = []
                while batch := consumer.poll(most):
                    assert len(batch) <= most
                    found += places(batch)
                assert sorted(found) == expected
        infos = log.groups()
        assert len(infos) == 4
        for info in infos:
            # Hidden records behind the last one that was read do not hold a cursor back.
            assert [(each.position, each.lag_records, each.lost) for each in info.partitions] == [
                (COUNT, 0, 0)
            ] * PARTITIONS
        assert consumer.lost == []

    def test_a_consumer_goes_on_where_another_stopped(self, topic, hidden, group):
        found = []
        for most in (1, 10, 30, 100, 1_000):
            with topic.log.consumer("orders", group, stop="now", commit_every=1) as consumer:
                found += places(islice(consumer, most))
                consumer.commit()
        assert sorted(found) == visible(hidden)

    def test_what_was_looked_at_comes_again(self, topic, hidden, group):
        with topic.log.consumer("orders", group, stop="now") as consumer:
            first = places(consumer.peek(5))
            assert places(consumer.peek(5)) == first
            assert len(first) == min(5, len(visible(hidden)))
            assert sorted(places(consumer)) == visible(hidden)


def test_one_record_by_its_offset(topic, hidden):
    for partition in range(PARTITIONS):
        for offset in range(0, COUNT, 7):
            if hidden(partition, offset):
                with pytest.raises(OffsetOutOfRangeError):
                    topic.get(offset, partition)
            else:
                assert places([topic.get(offset, partition)]) == [(partition, offset)]


def test_plans(topic, hidden):
    parts = bulk.plan(topic.log, "orders", target_bytes=512)
    assert len(parts) >= PARTITIONS
    read = [record for part in parts for batch in bulk.read(part) for record in batch]
    assert places(read) == visible(hidden)
    tables = [bulk.read_arrow(part).read_all() for part in parts]
    assert [place for table in tables for place in arrow_places(table)] == visible(hidden)
