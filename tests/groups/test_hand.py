"""Hand: which of the records that a consumer delivered count as processed."""

from __future__ import annotations

import pytest

import tailrace
from tests.consuming import cursor, fill, numbers

# ruff: noqa: PT012  # What a block leaves behind that raises in its middle is what is tested here.


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


class TestWhatCounts:
    """Asking for the next record marks the ones before as processed; what is in hand is not."""

    def test_the_record_that_raised_is_not_committed(self, log):
        fill(log, "t", 10)
        with pytest.raises(KeyError), log.consumer("t", "g") as consumer:
            for record in consumer:
                if record.offset == 4:
                    raise KeyError
        assert cursor(log) == 4

    def test_the_record_that_a_break_left_in_hand_is_not_committed(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g") as consumer:
            for record in consumer:
                if record.offset == 4:
                    break
        assert cursor(log) == 4

    def test_the_first_record(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g") as consumer:
            next(consumer)
        assert cursor(log) is None
        with log.consumer("t", "g") as consumer:
            assert next(consumer).offset == 0

    def test_the_last_record_of_a_loop_is_processed(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g", stop="now") as consumer:
            for _ in consumer:
                pass
            assert cursor(log) == 3

    def test_a_second_loop_goes_on(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g", stop="now") as consumer:
            for record in consumer:
                if record.offset == 4:
                    break
            assert numbers(consumer) == [5, 6, 7, 8, 9]
        assert cursor(log) == 10

    def test_in_hand_over_several_partitions(self, log):
        topic = log.topic("t", partitions=2)
        for number in range(6):
            topic.append(str(number), partition=number % 2)
        with pytest.raises(KeyError), log.consumer("t", "g") as consumer:
            handed = []
            for record in consumer:
                handed.append((record.partition, record.offset))
                if len(handed) == 5:
                    raise KeyError
        last = handed.pop()
        for partition in (0, 1):
            done = [offset for index, offset in handed if index == partition]
            assert cursor(log, partition=partition) == (max(done) + 1 if done else None)
        with log.consumer("t", "g", stop="now") as consumer:
            again = [(record.partition, record.offset) for record in consumer]
        assert last in again
        assert sorted(again + handed) == [(partition, offset) for partition in (0, 1) for offset in range(3)]

    def test_a_batch_in_hand_is_not_committed(self, log):
        fill(log, "t", 10)
        with pytest.raises(KeyError), log.consumer("t", "g") as consumer:
            assert len(consumer.poll(4)) == 4
            assert len(consumer.poll(3)) == 3
            raise KeyError
        assert cursor(log) == 4

    def test_iteration_and_poll_mixed(self, log):
        fill(log, "t", 20)
        with log.consumer("t", "g") as consumer:
            assert next(consumer).offset == 0
            assert numbers(consumer.poll(3)) == [1, 2, 3]
            assert next(consumer).offset == 4
            assert next(consumer).offset == 5
            assert numbers(consumer.peek(2)) == [6, 7]
            assert numbers(consumer.poll(2)) == [6, 7]
        assert cursor(log) == 6

    def test_looking_around_keeps_the_record_in_hand(self, log):
        fill(log, "t", 10)
        fill(log, "other", 3)
        with pytest.raises(KeyError), log.consumer(["t", "other"], "g") as consumer:
            consumer.pause("other")
            for record in consumer:
                if record.offset == 4:
                    consumer.peek()
                    consumer.pause("t")
                    consumer.resume("t")
                    assert consumer.lag().records == 8
                    consumer.seek("latest", topic="other")
                    raise KeyError
        assert cursor(log) == 4
        assert cursor(log, topic="other") == 3

    def test_looking_around_keeps_the_batch_in_hand(self, log):
        fill(log, "t", 10)
        fill(log, "other", 3)
        with log.consumer(["t", "other"], "g") as consumer:
            consumer.pause("other")
            consumer.poll(4)
            consumer.poll(4)
            consumer.peek(3)
            consumer.seek("latest", topic="other")
            consumer.resume()
        assert cursor(log) == 4
