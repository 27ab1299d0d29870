"""Losses: records that were removed before the group had read them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import tailrace
from tailrace import errors
from tailrace.groups.losses import Losses
from tailrace.types import Lost
from tests.consuming import cursor, fill, numbers


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


class TestLost:
    """Records that were removed before the group had read them."""

    @pytest.fixture
    def behind(self, log):
        """A group at 2 in a topic that begins at 6."""
        fill(log, "t", 10)
        with log.consumer("t", "g") as consumer:
            consumer.poll(2)
            consumer.commit()
        log.topic("t").trim(6)

    @pytest.mark.usefixtures("behind")
    def test_is_an_error_by_default(self, log):
        with log.consumer("t", "g") as consumer:
            for read in (consumer.poll, consumer.peek, lambda: next(consumer)):
                with pytest.raises(errors.OffsetOutOfRangeError, match="4 records of t") as caught:
                    read()
                assert (caught.value.earliest, caught.value.latest) == (6, 10)
                assert "on_lost" in caught.value.hint
            assert cursor(log) == 2
            consumer.seek("earliest")
            assert numbers(consumer.poll()) == [6, 7, 8, 9]

    @pytest.mark.usefixtures("behind")
    def test_nothing_is_stored_by_an_error(self, log):
        with pytest.raises(errors.OffsetOutOfRangeError), log.consumer("t", "g") as consumer:
            list(consumer)
        assert cursor(log) == 2

    @pytest.mark.usefixtures("behind")
    @pytest.mark.parametrize(("policy", "found", "lost"), [("earliest", [6, 7, 8, 9], 4), ("latest", [], 8)])
    def test_may_be_skipped_and_is_told(self, log, caplog, policy, found, lost):
        with log.consumer("t", "g", on_lost=policy, stop="now") as consumer:
            consumer.peek()
            consumer.peek()
            assert numbers(consumer) == found
            assert consumer.lost == [tailrace.types.Lost("t", 0, 2, 2 + lost - 1)]
        assert f"{lost} records of t[0]" in caplog.text
        assert log.group("g").partitions[0].lost == lost
        assert cursor(log) == 10

    @pytest.mark.usefixtures("behind")
    def test_is_told_though_what_came_after_is_in_hand(self, log):
        with log.consumer("t", "g", on_lost="earliest") as consumer:
            assert next(consumer).offset == 6
        partition = log.group("g").partitions[0]
        assert (partition.position, partition.lost) == (6, 4)
        with log.consumer("t", "g", on_lost="earliest", stop="now") as consumer:
            assert numbers(consumer) == [6, 7, 8, 9]
            assert consumer.lost == []

    def test_while_it_reads(self, log):
        fill(log, "t", 100)
        with log.consumer("t", "g", on_lost="earliest") as consumer:
            assert numbers(consumer.poll(10)) == list(range(10))
            log.topic("t").trim(50)
            assert numbers(consumer.poll(10)) == list(range(50, 60))
            log.topic("t").trim(55)
            assert numbers(consumer.poll(10)) == list(range(60, 70))
            assert consumer.lost == [tailrace.types.Lost("t", 0, 10, 49)]

    def test_with_removed_files(self, log):
        topic = log.topic("t", segment_bytes=4_096)
        for number in range(64):
            topic.append(str(number).rjust(500))
        with log.consumer("t", "g", on_lost="earliest") as consumer:
            assert next(consumer).offset == 0
            consumer.commit()
            topic.trim(40)
            consumer.seek(40)
            assert next(consumer).offset == 40
        with log.consumer("t", "h", on_lost="error") as consumer:
            assert next(consumer).offset == 40

    def test_one_partition_of_several_does_not_hide_the_others(self, log):
        topic = log.topic("t", partitions=2)
        for partition in range(2):
            topic.extend(["a", "b", "c", "d"], partition=partition)
        with log.consumer("t", "g") as consumer:
            consumer.seek(1, partition=0)
            consumer.seek(1, partition=1)
        topic.trim(3, partition=0)
        found = []
        with pytest.raises(errors.OffsetOutOfRangeError), log.consumer("t", "g", stop="now") as consumer:
            found.extend((record.partition, record.offset) for record in consumer)
        with log.consumer("t", "g", stop="now", on_lost="earliest") as consumer:
            found += [(record.partition, record.offset) for record in consumer]
        assert sorted(set(found)) == [(0, 3), (1, 1), (1, 2), (1, 3)]


class TestWhatIsStored:
    """Without a disk: a feed is an offset and the bounds of its partition."""

    class Feed:
        def __init__(self, handed, start, end, index=0):
            self.topic, self.handed, self.place = "t", handed, (1, index)
            self.partition = SimpleNamespace(start=start, end=end, index=index)

        def seek(self, offset):
            self.handed = offset

    def test_losses_add_up_until_they_are_stored(self):
        losses = Losses("g", "earliest")
        feed = self.Feed(0, 5, 10)
        losses.skip(feed)
        feed.partition.start = 7
        losses.skip(feed)
        assert feed.handed == 7
        assert losses.found == [Lost("t", 0, 0, 4), Lost("t", 0, 5, 6)]
        assert losses.of([(1, 0), (2, 0)]) == [(1, 0, 7)]
        losses.stored()
        assert losses.of([(1, 0)]) == []
        assert len(losses.found) == 2

    def test_what_another_member_reads_is_its_to_store(self):
        losses = Losses("g", "latest")
        for index in range(2):
            losses.skip(self.Feed(0, 5, 10, index))
        losses.forget([(1, 1), (9, 9)])
        assert losses.unstored == {(1, 0): 10}

    def test_a_cursor_after_the_end_goes_back_to_it_or_is_refused(self):
        feed = self.Feed(20, 5, 10)
        with pytest.raises(errors.OffsetOutOfRangeError, match=r"up to 20, and the topic ends at 10") as caught:
            Losses("g", "error").go_back_to_end(feed, 20)
        assert (caught.value.earliest, caught.value.latest, feed.handed) == (5, 10, 20)
        losses = Losses("g", "earliest")
        losses.go_back_to_end(feed, 20)
        assert feed.handed == 10
        # Nothing was skipped.
        assert (losses.found, losses.unstored) == ([], {})
