"""Deleting single records: what is hidden where, from when on, and what is refused."""

from __future__ import annotations

import time

import pytest

import tailrace
from tailrace import bulk
from tailrace.errors import (
    ImmutableError,
    InvalidNameError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
    RecordGoneError,
    SettingsMismatchError,
    TopicNotFoundError,
)
from tests.processes import in_fork


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield log


@pytest.fixture
def topic(log):
    return log.topic("orders", mutable=True)


def fill(topic, count=10, first=0):
    topic.extend([str(number) for number in range(first, first + count)])


def offsets(scan):
    return [record.offset for record in scan]


def move(log, name, offset, **options):
    with log.transaction() as tx:
        tx.append("moved", "x", **options)
        tx.delete(name, offset)


class TestRefused:
    def test_a_topic_that_is_not_mutable(self, log):
        topic = log.topic("plain")
        topic.append("1")
        with pytest.raises(ImmutableError) as raised:
            topic.delete(0)
        assert (raised.value.code, raised.value.topic) == ("immutable", "plain")
        with pytest.raises(ImmutableError):
            move(log, "plain", 0)
        assert offsets(topic.read()) == [0]
        assert [name for name in log.engine.refresh().by_name if name.startswith("__")] == []

    def test_mutable_is_fixed_at_creation(self, log, topic):
        fill(topic)
        assert topic.settings["mutable"] is True
        with pytest.raises(SettingsMismatchError):
            topic.alter(mutable=False)
        with pytest.raises(TypeError, match="mutable must be True or False"):
            log.topic("other", mutable="yes")

    def test_no_such_topic(self, log):
        with pytest.raises(TopicNotFoundError):
            log.topic("none").delete(0)
        with pytest.raises(InvalidNameError):
            log.topic("orders.*").delete(0)

    @pytest.mark.parametrize("wrong", ["1", b"1", 1.5, [1, "2"], {1: 2}, None])
    def test_not_offsets(self, topic, wrong):
        fill(topic)
        with pytest.raises(TypeError):
            topic.delete(wrong)

    def test_no_such_partition(self, topic):
        fill(topic)
        with pytest.raises(ValueError, match="partition"):
            topic.delete(0, partition=1)
        with pytest.raises(ValueError, match="offsets"):
            topic.delete(-1)

    def test_offsets_at_or_above_the_end(self, log, topic):
        fill(topic)
        with pytest.raises(OffsetOutOfRangeError) as raised:
            topic.delete([3, 10])
        assert raised.value.latest == 10
        with pytest.raises(OffsetOutOfRangeError):
            move(log, "orders", 10)
        assert topic.read().count() == 10
        assert "__marks.1" not in log.engine.refresh().by_name


class TestCount:
    def test_what_was_there(self, topic):
        fill(topic)
        assert topic.delete(3) == 1
        assert topic.delete(3) == 0
        assert topic.delete([2, 3, 4]) == 2
        assert topic.delete([]) == 0
        assert topic.delete(range(0)) == 0
        assert topic.delete(range(10)) == 7

    def test_trimmed_records_are_gone_already(self, topic):
        fill(topic)
        topic.trim(5)
        assert topic.delete(range(10)) == 5

    def test_a_call_writes_one_record(self, log, topic):
        fill(topic, 5000)
        topic.delete(range(0, 2000, 2))
        topic.delete(range(0, 2000, 2))
        entry = log.engine.find("__marks.1")
        assert log.engine.partition(entry, 0).end == 1

    def test_many_take_a_few_milliseconds(self, topic):
        fill(topic, 20_000)
        spent = []
        for number in range(5):
            began = time.perf_counter()
            assert topic.delete(range(number, 20_000, 20)) == 1000
            spent.append(time.perf_counter() - began)
        assert min(spent) < 0.03


class TestHidden:
    @pytest.fixture
    def topic(self, log):
        topic = log.topic("orders", mutable=True)
        fill(topic)
        for number in range(10, 15):
            topic.append(str(number))
        assert topic.delete([0, 4, 9, 10, 14]) == 5
        return topic

    LEFT = (1, 2, 3, 5, 6, 7, 8, 11, 12, 13)

    def test_iteration_in_both_directions(self, topic):
        assert offsets(topic.read()) == [*self.LEFT]
        assert offsets(topic.read(reverse=True)) == [*reversed(self.LEFT)]
        assert offsets(topic.read(order="time")) == [*self.LEFT]
        assert offsets(topic.read(4, 11)) == [5, 6, 7, 8]
        assert offsets(topic.read(limit=4)) == [1, 2, 3, 5]
        assert offsets(topic.read(limit=4, reverse=True)) == [13, 12, 11, 8]
        assert [record.text for record in topic.read(last=3)] == ["11", "12", "13"]

    def test_batches_and_arrow(self, topic):
        pytest.importorskip("pyarrow")
        assert [offset for batch in topic.read().batches(3) for offset in offsets(batch)] == [*self.LEFT]
        assert topic.read().to_arrow()["offset"].to_pylist() == [*self.LEFT]

    def test_count(self, topic):
        assert topic.read().count() == 10
        assert topic.read(4, 11).count() == 4
        assert topic.read(last=12).count() == 10

    def test_get(self, topic):
        assert topic.get(5).text == "5"
        with pytest.raises(RecordGoneError, match="was deleted") as raised:
            topic.get(4)
        assert (raised.value.reason, raised.value.earliest, raised.value.latest) == ("deleted", 0, 15)

    def test_by_time(self, topic):
        topic.append("late", timestamp=2_000_000_000_000_000)
        topic.append("later", timestamp=2_000_000_000_000_001)
        topic.delete(15)
        assert topic.offset_at(2_000_000_000_000_000) == 16

    def test_a_consumer(self, log, topic):
        with log.consumer("orders", group="g") as consumer:
            assert [record.offset for record in consumer.poll(100, timeout=1)] == [*self.LEFT]
            topic.append("15")
            topic.append("16")
            topic.delete([15, 16])
            consumer.poll(timeout=0.01)
            consumer.commit()
            assert consumer.lag().records == 0
        assert log.group("g").lag_records == 0

    def test_a_plan(self, log, topic):
        log.sync()
        parts = bulk.plan(log, "orders")
        topic.delete(1)
        read = [record.offset for part in parts for batch in bulk.read(part) for record in batch]
        assert read == [*self.LEFT]
        assert [part.removed for part in parts] == [((0, 1), (4, 5), (9, 11), (14, 15))]
        again = [record.offset for part in bulk.plan(log, "orders") for batch in bulk.read(part) for record in batch]
        assert again == [*self.LEFT[1:]]

    def test_another_process(self, log, topic):
        def child():
            assert offsets(topic.read()) == [*self.LEFT]
            assert topic.delete([5, 9]) == 1

        in_fork(child)
        assert offsets(topic.read()) == [1, 2, 3, 6, 7, 8, 11, 12, 13]

    def test_reopened(self, log, topic, tmp_path):
        log.close()
        with tailrace.open(tmp_path / "log") as again:
            assert offsets(again.topic("orders").read()) == [*self.LEFT]
            assert again.topic("orders").delete([4, 5]) == 1
        with tailrace.open(tmp_path / "log", "r") as again:
            assert again.topic("orders").read().count() == 9

    def test_the_offsets_are_not_given_again(self, topic):
        assert topic.append("15").offset == 15
        topic.delete(15)
        assert topic.append("16").offset == 16


class TestFromTheNextBatchOn:
    def test_records_that_were_read_ahead_at_most(self, log, topic):
        fill(topic, 5000)
        records = iter(topic.read())
        assert next(records).offset == 0
        topic.delete(range(1, 5000))
        assert len([*records]) <= 255

    @pytest.mark.parametrize("options", [{}, {"reverse": True}, {"order": "time"}])
    def test_the_first_removal_ever(self, log, topic, options):
        fill(topic, 1000)
        other = log.topic("other", mutable=True)
        fill(other, 1000)
        batches = log.topic("...").read(**options).batches(100)
        seen = [record.offset for record in next(batches) if record.topic == "orders"]
        topic.delete(range(1000))
        assert "orders" not in {record.topic for batch in batches for record in batch}
        assert len(seen) <= 100

    def test_a_follower(self, log, topic):
        fill(topic, 3)
        batches = topic.read(follow=True, timeout=0.05).batches(2)
        assert [record.offset for record in next(batches)] == [0, 1]
        in_fork(lambda: topic.delete(2))
        topic.append("3")
        assert [record.offset for batch in batches for record in batch] == [3]

    def test_a_consumer(self, log, topic):
        fill(topic, 10)
        with log.consumer("orders", group="g") as consumer:
            assert [record.offset for record in consumer.poll(2, timeout=1)] == [0, 1]
            topic.delete([2, 4, 9])
            assert [record.offset for record in consumer.poll(100, timeout=1)] == [3, 5, 6, 7, 8]

    def test_a_limit_counts_what_is_returned(self, topic):
        fill(topic, 100)
        batches = topic.read(limit=50).batches(10)
        next(batches)
        topic.delete(range(10, 30))
        assert [record.offset for batch in batches for record in batch] == [*range(30, 70)]

    def test_many_scattered_ones(self, topic):
        fill(topic, 1000)
        topic.delete(range(0, 1000, 3))
        left = [number for number in range(1000) if number % 3]
        assert offsets(topic.read()) == left
        assert [record.text for record in topic.read()] == [str(number) for number in left]
        assert topic.read().count() == len(left)


class TestPlaces:
    def test_first_and_last_of_frames_and_segments(self, log):
        topic = log.topic("orders", mutable=True, segment_bytes="64KiB")
        for first in range(0, 2000, 100):
            topic.extend([str(number) + "x" * 100 for number in range(first, first + 100)])
        info = [*log.engine.store.reader(log.engine.partition(log.engine.find("orders"), 0)).layout().infos()]
        assert len(info) > 2
        gone = {0, 99, 100, 1999, info[1].base, info[1].base - 1, info[1].end - 1}
        assert topic.delete(gone) == len(gone)
        left = [number for number in range(2000) if number not in gone]
        assert offsets(topic.read()) == left
        assert offsets(topic.read(reverse=True)) == left[::-1]
        assert topic.read().count() == len(left)
        assert topic.delete(range(info[1].base, info[1].end)) == info[1].end - info[1].base - 2
        left = [number for number in left if not info[1].base <= number < info[1].end]
        assert offsets(topic.read()) == left
        assert topic.read().count() == len(left)
        assert offsets(topic.read(last=len(left) - 10)) == left[10:]

    def test_partitions_are_separate_and_grow(self, log):
        topic = log.topic("orders", mutable=True, partitions=2)
        for index in (0, 1):
            topic.extend(["a", "b"], partition=index)
        assert topic.delete(0, partition=1) == 1
        topic.alter(partitions=4)
        topic.extend(["a", "b"], partition=3)
        assert topic.delete(1, partition=3) == 1
        seen = [(record.partition, record.offset) for record in topic.read()]
        assert seen == [(0, 0), (0, 1), (1, 1), (3, 0)]
        assert len(log.engine.find("__marks.1").slots) == 4

    def test_a_dropped_topic_takes_its_marks_along(self, log, topic):
        fill(topic)
        topic.delete(3)
        topic.drop()
        assert not log.engine.refresh().by_name
        fill(topic)
        assert topic.read().count() == 10


class TestTransactions:
    def test_whole_or_absent(self, log, topic):
        fill(topic)
        with log.transaction() as tx:
            tx.append("done", "3")
            tx.delete("orders", [3, 5])
            tx.delete(topic, 4)
        assert offsets(topic.read()) == [0, 1, 2, 6, 7, 8, 9]
        with pytest.raises(OffsetMismatchError):
            move(log, "orders", 6, expect_offset=77)
        with log.transaction() as tx:
            tx.delete("orders", [3, 6])
            tx.delete("orders", [])
        assert offsets(topic.read()) == [0, 1, 2, 7, 8, 9]
        assert log.topic("done").read().count() == 1
