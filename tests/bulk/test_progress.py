"""Progress: how far an engine has read, as the cursors of a group."""

from __future__ import annotations

import time

import pytest

import tailrace
from tailrace.bulk import record_progress
from tailrace.errors import GroupBusyError, InvalidNameError, ReadOnlyError


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


class TestProgress:
    def test_it_is_a_group(self, log):
        topic = log.topic("orders", partitions=2)
        topic.extend([b"x"] * 10, partition=0)
        record_progress(log, "report", {("orders", 0): 4, ("orders", 1): 0})
        info = log.group("report")
        assert info.topics == ("orders",)
        assert info.members == ()
        assert [(each.position, each.lag_records) for each in info.partitions] == [(4, 6), (0, 0)]
        record_progress(log, "report", {("orders", 0): 10, ("orders", 1): 0})
        assert log.group("report").lag_records == 0

    def test_a_consumer_goes_on_from_there(self, log):
        log.topic("orders").extend([str(n) for n in range(10)])
        record_progress(log, "report", {("orders", 0): 7})
        with log.consumer("orders", "report", stop="now") as consumer:
            assert [record.text for record in consumer] == ["7", "8", "9"]

    def test_patterns_reach_topics_that_come_later(self, log):
        log.topic("orders.eu").append(b"x")
        record_progress(log, "report", {("orders.eu", 0): 1}, topics=["orders.*"])
        log.topic("orders.us").extend([b"x"] * 3)
        assert [(each.topic, each.lag_records) for each in log.group("report").partitions] == [
            ("orders.eu", 0),
            ("orders.us", 3),
        ]

    def test_never_above_what_is_safe(self, tmp_path):
        from tailrace.disk.tails import SAFE

        with tailrace.open(tmp_path / "log", durable=False) as log:
            log.topic("orders").extend([b"x"] * 10)
            log.engine.store.tails.words[log.engine.partition(log.engine.entry("orders"), 0).word + SAFE] = 6
            record_progress(log, "report", {("orders", 0): 10})
            assert log.group("report").partitions[0].position == 6

    def test_what_did_not_move_is_not_written_again(self, log):
        log.topic("orders").extend([b"x"] * 10)
        record_progress(log, "report", {("orders", 0): 10})
        partition = log.engine.partition(log.engine.entry("__group.report"), 0)
        end = partition.end
        record_progress(log, "report", {("orders", 0): 10})
        assert partition.end == end
        record_progress(log, "report", {("orders", 0): 9})
        assert partition.end == end + 1

    def test_topics_that_are_gone_are_left_out(self, log):
        log.topic("orders").append(b"x")
        record_progress(log, "report", {("orders", 0): 1, ("dropped", 0): 5, ("orders", 7): 1})
        assert [(each.topic, each.partition) for each in log.group("report").partitions] == [("orders", 0)]
        record_progress(log, "nothing", {})
        assert log.group("nothing").partitions == ()

    def test_retention_waits_for_it(self, log):
        topic = log.topic("orders", segment_bytes="4KiB", retain="1ms", keep_unread=["report"])
        for _ in range(10):
            topic.extend([b"x" * 100] * 20)
        record_progress(log, "report", {("orders", 0): 100})
        time.sleep(0.01)
        log.vacuum()
        assert 0 < topic.offsets()[0].earliest <= 100

    def test_a_dropped_group_is_made_again(self, log):
        log.topic("orders").append(b"x")
        record_progress(log, "report", {("orders", 0): 1})
        log.drop_group("report")
        record_progress(log, "report", {("orders", 0): 1})
        assert log.group("report").topics == ("orders",)

    def test_members_at_work_keep_their_group(self, log):
        log.topic("orders").append(b"x")
        with log.consumer("orders", "shop") as consumer:
            consumer.poll(timeout=1)
            with pytest.raises(GroupBusyError) as caught:
                record_progress(log, "shop", {("orders", 0): 1})
            assert caught.value.members == (consumer.member,)
        record_progress(log, "shop", {("orders", 0): 1})

    def test_bad_arguments(self, log):
        with pytest.raises(InvalidNameError):
            record_progress(log, "a..b", {("orders", 0): 1})
        with tailrace.open(log.location, "r") as reading, pytest.raises(ReadOnlyError):
            record_progress(reading, "g", {})
