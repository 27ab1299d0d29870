"""The consumer: what it hands out, and what it remembers."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tailrace
from tailrace import errors
from tests.consuming import LONG, cursor, fill, locks, numbers, texts
from tests.processes import start

# ruff: noqa: PT012  # What a block leaves behind that raises in its middle is what is tested here.


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


class TestIteration:
    def test_reads_what_the_group_has_not_read_and_goes_on_there(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", stop="now") as consumer:
            assert numbers(consumer) == [0, 1, 2, 3, 4]
            assert list(consumer) == []
        assert cursor(log) == 5
        fill(log, "t", 2, 5)
        with log.consumer("t", "g", stop="now") as consumer:
            record = next(consumer)
            assert (record.topic, record.partition, record.offset, record.text) == ("t", 0, 5, "5")
            assert numbers(consumer) == [6]
        with log.consumer("t", "g", stop="now") as consumer:
            assert list(consumer) == []

    def test_two_groups_know_nothing_of_each_other(self, log):
        fill(log, "t", 3)
        for group in ("a", "b"):
            with log.consumer("t", group, stop="now") as consumer:
                assert numbers(consumer) == [0, 1, 2]

    def test_an_empty_topic(self, log):
        log.topic("t", partitions=3)
        with log.consumer("t", "g", stop="now") as consumer:
            assert list(consumer) == []
            assert not consumer.poll()
            assert not consumer.peek()
        assert [partition.position for partition in log.group("g").partitions] == [None] * 3

    def test_waits_for_records_of_another_thread(self, log):
        log.topic("t", partitions=2)
        with log.consumer("t", "g") as consumer:
            writer = threading.Timer(0.05, lambda: fill(log, "t", 1))
            writer.start()
            began = time.monotonic()
            assert next(consumer).text == "0"
            assert 0.02 < time.monotonic() - began < 5
            writer.join()

    def test_waits_for_records_of_another_process(self, log):
        log.topic("t")
        program = """
            import sys, tailrace
            with tailrace.open(sys.argv[1], durable=False) as log:
                sys.stdin.readline()
                log.topic("t").append("from afar")
        """
        process = start(program, log.location)
        with log.consumer("t", "g") as consumer:
            assert not consumer.poll(timeout=0)
            process.stdin.write("go\n")
            process.stdin.close()
            assert next(consumer).text == "from afar"
        assert process.wait(LONG) == 0
        process.stdout.close()
        process.stderr.close()

    def test_partitions_are_read_in_turns_and_each_in_order(self, log):
        topic = log.topic("t", partitions=3)
        for partition in range(3):
            for number in range(50):
                topic.append(str(number), partition=partition)
        with log.consumer("t", "g", stop="now") as consumer:
            assert consumer.assigned == []
            found = [(record.partition, int(record.text)) for record in consumer]
        assert sorted(found) == [(partition, number) for partition in range(3) for number in range(50)]
        for partition in range(3):
            assert [number for index, number in found if index == partition] == list(range(50))

    def test_a_busy_partition_does_not_starve_the_others(self, log):
        topic = log.topic("t", partitions=2)
        topic.extend([str(number) for number in range(5_000)], partition=0)
        topic.append("other", partition=1)
        with log.consumer("t", "g") as consumer:
            seen = [record.partition for record in consumer.poll(10)]
            seen += [record.partition for record in consumer.poll(10)]
        assert 1 in seen

    def test_several_topics(self, log):
        for name in ("a", "b", "c"):
            log.topic(name).append(name)
        with log.consumer(["a", "b", "a"], "g", stop="now") as consumer:
            assert sorted(texts(consumer)) == ["a", "b"]

    def test_nothing_is_joined_before_the_first_question(self, log):
        fill(log, "t", 1)
        with log.consumer("t", "g") as consumer:
            assert (consumer.member, consumer.assigned, consumer.lost) == (None, [], [])
            assert "0 partitions" in repr(consumer)
        assert log.groups() == []
        assert "closed" in repr(consumer)

    def test_members_have_names(self, log):
        fill(log, "t", 1)
        with log.consumer("t", "g", member="worker-1") as consumer:
            next(consumer)
            assert consumer.member.startswith("worker-1-")
            assert consumer.assigned == [("t", 0)]
            assert locks(log) == [consumer.member]
        assert consumer.member is None
        assert locks(log) == []


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


class TestPoll:
    def test_a_batch(self, log):
        fill(log, "t", 1_000)
        with log.consumer("t", "g", stop="now") as consumer:
            batch = consumer.poll()
            assert isinstance(batch, tailrace.Batch)
            assert numbers(batch) == list(range(500))
            assert numbers(consumer.poll(10)) == list(range(500, 510))
            assert numbers(consumer.poll(10_000)) == list(range(510, 1_000))
            assert not consumer.poll()
        assert cursor(log) == 1_000

    def test_the_loop_of_the_documentation(self, log):
        fill(log, "t", 100)
        found = []
        with log.consumer("t", "g", stop="now") as consumer:
            while batch := consumer.poll(7):
                found += numbers(batch)
        assert found == list(range(100))

    def test_arrow(self, log):
        pytest.importorskip("pyarrow")
        fill(log, "t", 100)
        log.topic("t").append("alone", key="k")
        with log.consumer("t", "g", stop="now") as consumer:
            table = consumer.poll(30).to_arrow()
            assert table["offset"].to_pylist() == list(range(30))
            rest = consumer.poll().to_arrow()
            assert rest["value"].to_pylist()[-1] == b"alone"
            assert consumer.poll().to_arrow().num_rows == 0

    def test_max_bytes(self, log):
        log.topic("t").extend([b"x" * 1_000] * 100)
        with log.consumer("t", "g") as consumer:
            assert len(consumer.poll(max_bytes=10_000)) == 10
            assert len(consumer.poll(max_bytes="5kB")) == 5
            # One record at least, however large it is.
            assert len(consumer.poll(max_bytes=1)) == 1
            assert len(consumer.poll(3, max_bytes="1MB")) == 3
            assert consumer.poll(1)[0].offset == 19

    def test_max_bytes_over_partitions(self, log):
        topic = log.topic("t", partitions=4)
        for partition in range(4):
            topic.extend([b"x" * 1_000] * 10, partition=partition)
        found = []
        with log.consumer("t", "g", stop="now") as consumer:
            while batch := consumer.poll(max_bytes=3_500):
                assert len(batch) == 3 or len(found) > 30
                found += [(record.partition, record.offset) for record in batch]
        assert sorted(found) == [(partition, offset) for partition in range(4) for offset in range(10)]

    def test_timeout(self, log):
        log.topic("t", partitions=1)
        with log.consumer("t", "g") as consumer:
            for timeout, least in ((0, 0.0), (0.05, 0.05), ("60ms", 0.06), (timedelta(milliseconds=20), 0.02)):
                began = time.monotonic()
                assert len(consumer.poll(timeout=timeout)) == 0
                assert least <= time.monotonic() - began < least + 2

    @pytest.mark.parametrize(
        ("arguments", "kind"),
        [
            ({"max_records": 0}, ValueError),
            ({"max_records": -1}, ValueError),
            ({"max_records": "5"}, TypeError),
            ({"max_records": 2.5}, TypeError),
            ({"max_bytes": -1}, ValueError),
            ({"max_bytes": "many"}, ValueError),
            ({"timeout": -1}, ValueError),
            ({"timeout": "5"}, ValueError),
            ({"timeout": "soon"}, ValueError),
        ],
    )
    def test_wrong_arguments(self, log, arguments, kind):
        fill(log, "t", 1)
        with log.consumer("t", "g") as consumer:
            with pytest.raises(kind, match=next(iter(arguments))):
                consumer.poll(**arguments)
            assert consumer.member is None
            assert len(consumer.poll()) == 1


class TestPeek:
    def test_moves_nothing(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g") as consumer:
            assert numbers(consumer.peek()) == [0]
            assert numbers(consumer.peek(3)) == [0, 1, 2]
            assert consumer.lag().records == 10
            assert numbers(consumer.poll(2)) == [0, 1]
            assert numbers(consumer.peek(2)) == [2, 3]
            assert next(consumer).offset == 2
            assert numbers(consumer.peek(2)) == [3, 4]
            assert next(consumer).offset == 3
        assert cursor(log) == 3

    def test_of_several_partitions_gives_the_same_again(self, log):
        topic = log.topic("t", partitions=3)
        for partition in range(3):
            topic.append(str(partition), partition=partition)
        with log.consumer("t", "g", stop="now") as consumer:
            first = numbers(consumer.peek(2))
            assert numbers(consumer.peek(2)) == first
            assert numbers(consumer.poll(2)) == first
            assert sorted([*first, *numbers(consumer)]) == [0, 1, 2]

    def test_does_not_wait_and_stores_nothing(self, log):
        log.topic("t", partitions=1)
        with log.consumer("t", "g", commit="before") as consumer:
            assert len(consumer.peek(5)) == 0
            fill(log, "t", 3)
            assert numbers(consumer.peek(5)) == [0, 1, 2]
        assert cursor(log) is None

    def test_the_same_again_when_records_went_meanwhile(self, log):
        """A partition that fails is asked again, and its turn stays its turn."""
        topic = log.topic("t", partitions=3)
        for partition in range(3):
            topic.extend(["a", "b", "c", "d"], partition=partition)
        with log.consumer("t", "g", commit="manual", on_lost="earliest") as consumer:
            consumer.peek()
            for partition in range(3):
                topic.trim(2, partition=partition)
            first = [(record.partition, record.offset) for record in consumer.peek(2)]
            assert first == [(first[0][0], 2), (first[0][0], 3)]
            assert [(record.partition, record.offset) for record in consumer.peek(2)] == first
            assert [(record.partition, record.offset) for record in consumer.poll(2)] == first

    def test_nothing_of_a_topic_that_was_dropped(self, log):
        fill(log, "t", 6)
        with log.consumer("t", "g", commit="manual") as consumer:
            assert numbers(consumer.poll(1)) == [0]
            log.topic("t").drop()
            assert numbers(consumer.peek(3)) == []
            assert (consumer.lag().records, consumer.assigned) == (0, [])
            with pytest.raises(ValueError, match="no such partition"):
                consumer.seek("earliest")

    def test_who_only_peeked_begins_at_the_earliest_record(self, log):
        fill(log, "t", 6)
        with log.consumer("t", "g") as consumer:
            consumer.peek(4)
            log.topic("t").trim(3)
            assert numbers(consumer.poll(timeout=0)) == [3, 4, 5]
            assert consumer.lost == []

    def test_wrong_count(self, log):
        with log.consumer("t", "g") as consumer, pytest.raises(ValueError, match="max_records"):
            consumer.peek(0)


class TestCommit:
    def test_manual(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g", commit="manual", commit_every=1) as consumer:
            consumer.poll(3)
            consumer.poll(3)
            consumer.commit()
            assert cursor(log) == 6
            consumer.poll(3)
        assert cursor(log) == 6

    def test_manual_of_a_loop_that_came_to_its_end(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g", commit="manual", stop="now") as consumer:
            assert numbers(consumer) == [0, 1, 2]
            assert cursor(log) is None
            consumer.commit()
            assert cursor(log) == 3
            assert list(consumer) == []

    def test_manual_and_never_committed(self, log):
        fill(log, "t", 3)
        for _ in range(2):
            with log.consumer("t", "g", commit="manual", stop="now") as consumer:
                assert numbers(consumer) == [0, 1, 2]

    def test_commit_includes_what_is_in_hand(self, log):
        fill(log, "t", 10)
        with pytest.raises(KeyError), log.consumer("t", "g") as consumer:
            for record in consumer:
                if record.offset == 3:
                    consumer.commit()
                    assert cursor(log) == 4
                if record.offset == 5:
                    raise KeyError
        assert cursor(log) == 5
        with pytest.raises(KeyError), log.consumer("t", "g") as consumer:
            for _ in consumer:
                consumer.commit()
                raise KeyError
        assert cursor(log) == 6

    def test_commit_before_anything_was_read(self, log):
        fill(log, "t", 1)
        with log.consumer("t", "g") as consumer:
            consumer.commit()
            consumer.peek()
            consumer.commit()
            assert numbers(consumer.poll()) == [0]

    def test_before_is_at_most_once(self, log):
        fill(log, "t", 10)
        with pytest.raises(KeyError), log.consumer("t", "g", commit="before") as consumer:
            for record in consumer:
                assert cursor(log) == record.offset + 1
                if record.offset == 3:
                    raise KeyError
        assert cursor(log) == 4
        with pytest.raises(KeyError), log.consumer("t", "g", commit="before") as consumer:
            assert numbers(consumer.poll(3)) == [4, 5, 6]
            assert cursor(log) == 7
            raise KeyError
        assert cursor(log) == 7

    def test_every_so_many_records(self, log):
        fill(log, "t", 100)
        stored = []
        with log.consumer("t", "g", commit_every=10) as consumer:
            for record in consumer:
                stored.append(cursor(log) or 0)
                if record.offset == 45:
                    break
        assert stored == [offset // 10 * 10 for offset in range(46)]
        assert cursor(log) == 45

    def test_every_record(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g", commit_every=1, stop="now") as consumer:
            assert [cursor(log) or 0 for _ in consumer] == list(range(10))

    def test_every_so_many_records_by_poll(self, log):
        fill(log, "t", 100)
        with log.consumer("t", "g", commit_every=10) as consumer:
            stored = []
            for _ in range(6):
                consumer.poll(4)
                stored.append(cursor(log))
        assert stored == [None, None, None, 12, 12, 12]

    def test_every_so_often(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g", commit_every="50ms") as consumer:
            next(consumer)
            next(consumer)
            assert cursor(log) is None
            time.sleep(0.06)
            next(consumer)
            assert cursor(log) == 2

    def test_every_so_often_while_it_waits(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g", commit_every=timedelta(milliseconds=30)) as consumer:
            assert len(consumer.poll()) == 3
            assert len(consumer.poll(timeout=0.3)) == 0
            assert cursor(log) == 3

    def test_a_default_second_is_not_every_record(self, log):
        fill(log, "t", 1_000)
        with log.consumer("t", "g", stop="now") as consumer:
            for _ in consumer:
                pass
        # The join, the take, and the end with its cursor.
        assert log.engine.find("__group.g") is not None
        assert log.engine.partition(log.engine.find("__group.g"), 0).end < 8

    @pytest.mark.parametrize(
        ("every", "kind"),
        [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), ("5", ValueError), ("x", ValueError),
         (None, TypeError)],
    )  # fmt: skip
    def test_wrong_rhythms(self, log, every, kind):
        with pytest.raises(kind, match="commit_every"):
            log.consumer("t", "g", commit_every=every)

    def test_a_cursor_is_never_above_safe(self, log):
        topic = log.topic("t", partitions=2)
        for partition in range(2):
            for number in range(20):
                topic.append(str(number), partition=partition)
        with log.consumer("t", "g", commit_every=1) as consumer:
            for _ in range(4):
                consumer.poll(7, timeout=0)
                for partition, bounds in topic.offsets().items():
                    assert (cursor(log, partition=partition) or 0) <= bounds.durable
        for partition, bounds in topic.offsets().items():
            assert 0 < cursor(log, partition=partition) <= bounds.durable

    def test_a_cursor_is_never_above_safe_of_another_writer(self, log):
        program = """
            import sys, tailrace
            log = tailrace.open(sys.argv[1], durable=False)
            for number in range(10):
                log.topic("t").append(str(number))
            print("ready", flush=True)
            sys.stdin.readline()
        """
        process = start(program, log.location)
        assert process.stdout.readline() == "ready\n"
        with log.consumer("t", "g", commit="before") as consumer:
            assert len(consumer.poll()) == 10
            assert cursor(log) == 10 == log.topic("t").offsets()[0].durable
        process.kill()
        process.communicate()

    def test_starts_are_never_above_safe(self, log):
        topic = log.topic("t", partitions=1)
        for number in range(5):
            topic.append(str(number))
        with log.consumer("t", "g", start="latest") as consumer:
            consumer.peek()
            assert cursor(log) == 5 == topic.offsets()[0].durable


class TestStop:
    def test_now_is_when_the_consumer_was_made(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g", stop="now") as consumer:
            fill(log, "t", 3, 3)
            assert numbers(consumer) == [0, 1, 2]
        with log.consumer("t", "g", stop="latest") as consumer:
            assert numbers(consumer) == [3, 4, 5]

    def test_an_offset(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", stop=3) as consumer:
            assert numbers(consumer) == [0, 1, 2]
        with log.consumer("t", "g", stop=3) as consumer:
            assert list(consumer) == []
        with log.consumer("t", "g", stop="4") as consumer:
            assert numbers(consumer) == [3]

    def test_an_offset_that_is_not_there_yet(self, log):
        fill(log, "t", 2)
        with log.consumer("t", "g", stop=4) as consumer:
            assert numbers(consumer.poll()) == [0, 1]
            assert len(consumer.poll(timeout=0)) == 0
            fill(log, "t", 9, 2)
            assert numbers(consumer) == [2, 3]

    def test_offsets_by_partition(self, log):
        topic = log.topic("t", partitions=3)
        for partition in range(3):
            topic.extend(["a", "b", "c"], partition=partition)
        with log.consumer("t", "g", stop={0: 1, 2: 2}) as consumer:
            found = sorted((record.partition, record.offset) for record in consumer)
        # A partition that is not named ends where it ends now.
        assert found == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]

    def test_a_time_that_was(self, log):
        base = 1_700_000_000_000_000
        log.topic("t").extend(list("abcd"), timestamps=[base + number * 1_000_000 for number in range(4)])
        with log.consumer("t", "g", stop=datetime.fromtimestamp(base / 1e6 + 2, UTC)) as consumer:
            assert texts(consumer) == ["a", "b"]
        with log.consumer("t", "g", stop="2023-11-14T22:13:23Z") as consumer:
            assert texts(consumer) == ["c"]
        with log.consumer("t", "g", stop="-1h") as consumer:
            assert texts(consumer) == ["d"]
        with log.consumer("t", "g", stop="-1h") as consumer:
            assert list(consumer) == []

    def test_a_time_that_comes(self, log):
        fill(log, "t", 2)
        with log.consumer("t", "g", stop=datetime.now(UTC) + timedelta(seconds=0.3)) as consumer:
            assert numbers(consumer.poll()) == [0, 1]
            fill(log, "t", 1, 2)
            began = time.monotonic()
            assert numbers(consumer) == [2]
            assert time.monotonic() - began < 5
        assert cursor(log) == 3

    @pytest.mark.parametrize(
        ("stop", "kind"),
        [("earliest", ValueError), ("soon", ValueError), (-1, ValueError), (1.5, TypeError), ({}, ValueError),
         (datetime(2026, 1, 1), ValueError), (5, ValueError), ({7: 1}, ValueError)],  # noqa: DTZ001
    )  # fmt: skip
    def test_wrong_stops(self, log, stop, kind):
        log.topic("t", partitions=2)
        with pytest.raises(kind, match="stop"):
            log.consumer("t", "g", stop=stop)
        assert log.groups() == []

    def test_partitions_that_are_added_later_are_not_part_of_it(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g", stop="now") as consumer:
            log.topic("t").alter(partitions=2)
            log.topic("t").append("late", partition=1)
            assert numbers(consumer) == [0, 1, 2]
        with log.consumer("t", "g", stop="now") as consumer:
            assert texts(consumer) == ["late"]


class TestStart:
    def test_a_fresh_group_begins_at_the_earliest_record(self, log):
        fill(log, "t", 5)
        log.topic("t").trim(2)
        with log.consumer("t", "g", stop="now") as consumer:
            assert numbers(consumer) == [2, 3, 4]
            assert consumer.lost == []

    def test_latest(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", start="latest") as consumer:
            fill(log, "t", 1, 5)
            assert numbers(consumer.poll()) == [5]

    def test_latest_is_remembered_though_nothing_was_read(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", start="latest") as consumer:
            assert len(consumer.poll(timeout=0)) == 0
        fill(log, "t", 1, 5)
        with log.consumer("t", "g", start="earliest", stop="now") as consumer:
            assert numbers(consumer) == [5]

    def test_an_offset_and_offsets(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", start=3, stop="now") as consumer:
            assert numbers(consumer) == [3, 4]
        topic = log.topic("two", partitions=2)
        for partition in range(2):
            topic.extend(["a", "b"], partition=partition)
        with log.consumer("two", "g", start={1: 1}, stop="now") as consumer:
            found = sorted((record.partition, record.offset) for record in consumer)
        assert found == [(0, 0), (0, 1), (1, 1)]

    def test_a_time(self, log):
        base = 1_700_000_000_000_000
        log.topic("t").extend(list("abcd"), timestamps=[base + number * 1_000_000 for number in range(4)])
        with log.consumer("t", "g", start=datetime.fromtimestamp(base / 1e6 + 2, UTC), stop="now") as consumer:
            assert texts(consumer) == ["c", "d"]

    def test_a_group_that_knows_its_place_is_not_asked_again(self, log):
        fill(log, "t", 6)
        with log.consumer("t", "g", start=1, stop="now") as consumer:
            assert numbers(consumer) == [1, 2, 3, 4, 5]
        log.topic("t").trim(4)
        # The same program starts again, after the offset that it names was removed.
        with log.consumer("t", "g", start=1, stop="now") as consumer:
            assert list(consumer) == []
        with pytest.raises(errors.OffsetOutOfRangeError) as caught:
            log.consumer("t", "fresh", start=1)
        assert (caught.value.earliest, caught.value.latest) == (4, 6)

    def test_a_member_that_comes_later_does_not_move_what_is_being_read(self, log):
        fill(log, "t", 6)
        with log.consumer("t", "g") as first:
            assert next(first).offset == 0
            with log.consumer("t", "g", start="latest") as second:
                assert len(second.poll(timeout=0)) == 0
                assert cursor(log) is None
        with log.consumer("t", "g", stop="now") as consumer:
            assert numbers(consumer) == [0, 1, 2, 3, 4, 5]

    @pytest.mark.parametrize(
        ("start", "kind"),
        [("soon", ValueError), ("now", ValueError), (-1, ValueError), (None, TypeError), (7, ValueError),
         ({9: 0}, ValueError), ({0: 99}, errors.OffsetOutOfRangeError)],
    )  # fmt: skip
    def test_wrong_starts(self, log, start, kind):
        log.topic("t", partitions=2)
        with pytest.raises(kind, match="start"):
            log.consumer("t", "g", start=start)

    def test_partitions_that_come_later_begin_at_their_earliest_record(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g", start="latest") as consumer:
            assert len(consumer.poll(timeout=0)) == 0
            log.topic("t").alter(partitions=2)
            log.topic("t").append("new", partition=1)
            assert texts(consumer.poll()) == ["new"]


class TestSeek:
    def test_everywhere_a_start_goes(self, log):
        base = 1_700_000_000_000_000
        log.topic("t").extend(list("abcd"), timestamps=[base + number * 1_000_000 for number in range(4)])
        with log.consumer("t", "g") as consumer:
            consumer.seek(2)
            assert texts(consumer.poll()) == ["c", "d"]
            consumer.seek("earliest")
            assert texts(consumer.poll(1)) == ["a"]
            consumer.seek("latest")
            assert len(consumer.poll(timeout=0)) == 0
            consumer.seek(datetime.fromtimestamp(base / 1e6 + 1, UTC))
            assert next(consumer).text == "b"
            consumer.seek({0: 3}, topic="t", partition=0)
            assert next(consumer).text == "d"
        assert cursor(log) == 3

    def test_in_a_loop(self, log):
        fill(log, "t", 5)
        found = []
        with log.consumer("t", "g", stop="now") as consumer:
            for record in consumer:
                found.append(record.offset)
                if found == [0, 1, 2]:
                    consumer.seek(1)
        assert found == [0, 1, 2, 1, 2, 3, 4]
        assert cursor(log) == 5

    def test_back_is_stored(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", stop="now") as consumer:
            list(consumer)
        with log.consumer("t", "g") as consumer:
            consumer.seek(2)
        assert cursor(log) == 2

    def test_back_to_the_cursor_of_before_is_stored(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g", commit="manual") as consumer:
            assert numbers(consumer.poll(2)) == [0, 1]
            consumer.commit()
        with log.consumer("t", "g", commit="manual") as consumer:
            assert numbers(consumer.poll(3)) == [2, 3, 4]
            consumer.commit()
            assert cursor(log) == 5
            consumer.seek(2)
            consumer.commit()
            assert cursor(log) == 2
        with log.consumer("t", "g", commit="manual") as consumer:
            assert numbers(consumer.poll(1)) == [2]

    def test_is_stored_at_once_where_cursors_come_first(self, log):
        fill(log, "t", 5)
        with log.consumer("t", "g", commit="before") as consumer:
            assert next(consumer).offset == 0
            consumer.seek("latest")
            assert cursor(log) == 5
            assert len(consumer.poll(timeout=0)) == 0
        assert cursor(log) == 5

    def test_one_partition_of_several(self, log):
        topic = log.topic("t", partitions=2)
        for partition in range(2):
            topic.extend(["a", "b"], partition=partition)
        with log.consumer("t", "g", stop="now") as consumer:
            consumer.seek(1, partition=1)
            assert sorted((record.partition, record.offset) for record in consumer) == [(0, 0), (0, 1), (1, 1)]

    def test_what_is_refused(self, log):
        log.topic("t", partitions=2)
        with log.consumer("t", "g") as consumer:
            with pytest.raises(ValueError, match="partition: offset"):
                consumer.seek(1)
            with pytest.raises(errors.OffsetOutOfRangeError):
                consumer.seek(1, partition=0)
            with pytest.raises(ValueError, match="assigned"):
                consumer.seek("earliest", partition=5)
            with pytest.raises(ValueError, match="assigned"):
                consumer.seek("earliest", topic="other")
            with pytest.raises(ValueError, match="now"):
                consumer.seek("now")
            with pytest.raises(TypeError):
                consumer.seek(None)


class TestPause:
    def test_and_resume(self, log):
        fill(log, "a", 2)
        fill(log, "b", 2)
        with log.consumer(["a", "b"], "g") as consumer:
            consumer.pause("a")
            assert {record.topic for record in consumer.poll(timeout=0)} == {"b"}
            assert len(consumer.poll(timeout=0)) == 0
            consumer.resume("a")
            assert {record.topic for record in consumer.poll(timeout=0)} == {"a"}

    def test_all(self, log):
        fill(log, "a", 2)
        fill(log, "b", 2)
        with log.consumer(["a", "b"], "g") as consumer:
            consumer.pause()
            assert len(consumer.poll(timeout=0)) == 0
            assert len(consumer.peek()) == 0
            consumer.resume("a")
            assert {record.topic for record in consumer.poll(timeout=0)} == {"a"}
            consumer.resume()
            assert {record.topic for record in consumer.poll(timeout=0)} == {"b"}

    def test_patterns_and_topics_that_come_later(self, log):
        with log.consumer("...", "g") as consumer:
            consumer.pause("logs.*")
            fill(log, "logs.a", 1)
            fill(log, "orders", 1)
            assert {record.topic for record in consumer.poll()} == {"orders"}
            assert len(consumer.poll(timeout=0)) == 0
            consumer.resume("logs.*")
            assert {record.topic for record in consumer.poll()} == {"logs.a"}

    def test_in_a_loop_what_was_read_ahead_waits_too(self, log):
        fill(log, "a", 5)
        fill(log, "b", 5)
        found = []
        with log.consumer(["a", "b"], "g", stop="now") as consumer:
            for record in consumer:
                if not found:
                    other = "b" if record.topic == "a" else "a"
                    consumer.pause(record.topic)
                found.append((record.topic, record.offset))
                if len(found) == 6:
                    assert {topic for topic, _ in found[1:]} == {other}
                    consumer.resume()
        assert sorted(found) == [(topic, offset) for topic in ("a", "b") for offset in range(5)]

    def test_a_paused_partition_still_belongs_to_the_consumer(self, log):
        fill(log, "t", 2)
        with log.consumer("t", "g") as consumer:
            consumer.peek()
            consumer.pause()
            assert consumer.assigned == [("t", 0)]
            assert consumer.lag().records == 2

    def test_nothing_ends_while_something_is_paused(self, log):
        fill(log, "t", 2)
        for stop in ("now", datetime.now(UTC)):
            with log.consumer("t", f"g{stop == 'now'}", stop=stop) as consumer:
                consumer.pause()
                assert len(consumer.poll(timeout=0.01)) == 0
                consumer.resume()
                assert numbers(consumer) == [0, 1]


class TestTopics:
    def test_a_missing_topic_of_a_bounded_read(self, log):
        fill(log, "orders", 1)
        with pytest.raises(errors.TopicNotFoundError, match="did you mean 'orders'") as caught:
            log.consumer("order", "g", stop="now")
        assert caught.value.suggestion == "orders"
        with pytest.raises(errors.TopicNotFoundError, match="'order'"):
            log.consumer(["orders", "order"], "g", stop="now")
        with pytest.raises(errors.TopicNotFoundError, match="No topic matches 'x"):
            log.consumer("x.*", "g", stop="now")
        with log.consumer(["orders", "x.*"], "g", stop="now") as consumer:
            assert numbers(consumer) == [0]

    def test_a_missing_topic_is_waited_for(self, log):
        with log.consumer("t", "g") as consumer:
            assert len(consumer.poll(timeout=0)) == 0
            assert consumer.lag().records == 0
            assert log.topics() == []
            writer = threading.Timer(0.05, lambda: fill(log, "t", 2))
            writer.start()
            assert next(consumer).text == "0"
            writer.join()

    def test_a_pattern_and_topics_that_come_later(self, log):
        fill(log, "s.a", 2)
        fill(log, "s.a.deep", 1)
        fill(log, "other", 1)
        with log.consumer("s.*", "g") as consumer:
            assert {(record.topic, record.offset) for record in consumer.poll()} == {("s.a", 0), ("s.a", 1)}
            writer = threading.Timer(0.05, lambda: fill(log, "s.b", 1))
            writer.start()
            assert next(consumer).topic == "s.b"
            writer.join()
            assert consumer.assigned == [("s.a", 0), ("s.b", 0)]
        with log.consumer("s...", "h", stop="now") as consumer:
            assert {record.topic for record in consumer} == {"s.a", "s.b", "s.a.deep"}

    def test_no_pattern_covers_internal_topics(self, log):
        fill(log, "t", 1)
        with log.consumer("...", "g", stop="now") as consumer:
            assert numbers(consumer) == [0]
        with log.consumer("...", "g", stop="now") as consumer:
            assert list(consumer) == []
        assert [info.name for info in log.topics()] == ["t"]
        with pytest.raises(errors.InvalidNameError, match="internal"):
            log.consumer("__group.g", "g")

    def test_partitions_that_are_added(self, log):
        fill(log, "t", 1)
        with log.consumer("t", "g") as consumer:
            assert numbers(consumer.poll()) == [0]
            log.topic("t").alter(partitions=4)
            for partition in range(4):
                log.topic("t").append(str(partition), partition=partition)
            found = []
            while len(found) < 4:
                found += numbers(consumer.poll())
            assert sorted(found) == [0, 1, 2, 3]
            assert consumer.assigned == [("t", index) for index in range(4)]

    def test_dropped_and_created_again_under_a_consumer(self, log):
        fill(log, "t", 50)
        with log.consumer("t", "g", commit_every=1) as consumer:
            assert len(consumer.poll(30)) == 30
            log.topic("t").drop()
            assert len(consumer.poll(timeout=0)) == 0
            assert consumer.assigned == []
            fill(log, "t", 3, 100)
            assert numbers(consumer.poll()) == [100, 101, 102]
            consumer.commit()
            assert cursor(log) == 3

    def test_dropped_and_created_again_in_a_loop(self, log):
        fill(log, "t", 50)
        found = []
        with log.consumer("t", "g") as consumer:
            for record in consumer:
                found.append(int(record.text))
                if found[-1] == 10:
                    log.topic("t").drop()
                    fill(log, "t", 3, 100)
                    # Between two records the group is looked after from time to time.
                    time.sleep(0.06)
                if found[-1] == 102:
                    break
        # What was read ahead may still come; the new topic is read from its start, and none of it is skipped.
        assert found[:11] == list(range(11))
        assert found[-3:] == [100, 101, 102]
        assert cursor(log) == 2

    def test_dropped_and_created_again_between_two_consumers(self, log):
        fill(log, "t", 50)
        with log.consumer("t", "g", stop="now") as consumer:
            assert len(list(consumer)) == 50
        log.topic("t").drop()
        fill(log, "t", 3)
        with log.consumer("t", "g", stop="now") as consumer:
            assert numbers(consumer) == [0, 1, 2]

    def test_dropped_under_a_bounded_read(self, log):
        fill(log, "t", 50)
        with log.consumer("t", "g", stop="now") as consumer:
            assert len(consumer.poll(10)) == 10
            log.topic("t").drop()
            assert len(consumer.poll()) == 0
        assert log.group("g").lag_records == 0

    @pytest.mark.parametrize(
        ("topics", "kind"),
        [([], ValueError), (None, TypeError), (b"t", TypeError), (5, TypeError), ([5], TypeError),
         ({"t": 1}, TypeError), ("a..b", errors.InvalidNameError), ("", errors.InvalidNameError),
         ("...a", errors.InvalidNameError)],
    )  # fmt: skip
    def test_wrong_topics(self, log, topics, kind):
        with pytest.raises(kind):
            log.consumer(topics, "g")

    @pytest.mark.parametrize("group", ["", "a..b", ".", "__g", "a.*", "...", "x" * 248, "a\nb", "\ud800"])
    def test_wrong_groups(self, log, group):
        for call in (lambda: log.consumer("t", group), lambda: log.group(group), lambda: log.drop_group(group)):
            with pytest.raises(errors.InvalidNameError, match="group") as caught:
                call()
            assert "1 to 247 bytes" in caught.value.hint
        with pytest.raises(TypeError, match="group"):
            log.consumer("t", group.encode(errors="replace"))

    @pytest.mark.parametrize("group", ["a", "a.b-c_d", "G" * 247, "Käufer", "ein raum"])
    def test_right_groups(self, log, group):
        fill(log, "t", 1)
        with log.consumer("t", group, stop="now") as consumer:
            assert len(list(consumer)) == 1
        assert [info.name for info in log.groups()] == [group]

    @pytest.mark.parametrize(
        ("arguments", "kind"),
        [({"commit": "later"}, ValueError), ({"commit": None}, ValueError), ({"on_lost": "skip"}, ValueError),
         ({"member": ""}, ValueError), ({"member": "a/b"}, ValueError), ({"member": "x" * 101}, ValueError),
         ({"member": 5}, TypeError), ({"commit": []}, ValueError)],
    )  # fmt: skip
    def test_wrong_choices(self, log, arguments, kind):
        with pytest.raises(kind, match=next(iter(arguments))):
            log.consumer("t", "g", **arguments)


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


class TestDamage:
    def test_one_damaged_partition_does_not_keep_the_others_from_being_read(self, log):
        log.topic("a").extend([b"x" * 100] * 100, durable=True)
        fill(log, "b", 3)
        (segment,) = (Path(log.location) / "topics").glob("*-a/0/*.seg")
        data = bytearray(segment.read_bytes())
        data[500:550] = b"\xff" * 50
        segment.write_bytes(data)
        found, damage = [], []
        with log.consumer(["a", "b"], "g") as consumer:
            for _ in range(6):
                try:
                    found += numbers(consumer.poll(timeout=0))
                except errors.CorruptionError as error:
                    damage.append(error)
            assert found == [0, 1, 2]
            assert {(error.topic, error.partition, error.first, error.last) for error in damage} == {("a", 0, 0, 99)}
            # Neither does it hide how far the group is, and the range that is lost can be stepped over.
            assert consumer.lag().records == 100
            assert log.group("g").lag_records == 103
            consumer.seek(100, topic="a")
            log.topic("a").append("3")
            assert numbers(consumer.poll()) == [3]


class TestLag:
    def test_in_records_and_seconds(self, log):
        now = time.time()
        log.topic("t").extend(list("abc"), timestamps=[int((now - 60 + number * 10) * 1e6) for number in range(3)])
        with log.consumer("t", "g") as consumer:
            lag = consumer.lag()
            assert lag.records == 3
            assert 59 < lag.seconds < 70
            assert lag.partitions[("t", 0)] == (lag.records, pytest.approx(lag.seconds))
            next(consumer)
            lag = consumer.lag()
            assert lag.records == 2
            assert 49 < lag.seconds < 60
            assert lag.to_json()["partitions"][0]["lag_records"] == 2
            consumer.poll()
            assert consumer.lag() == (0, 0.0, {("t", 0): (0, 0.0)})

    def test_counts_what_comes(self, log):
        log.topic("t", partitions=2)
        with log.consumer("t", "g") as consumer:
            assert consumer.lag().records == 0
            for partition in range(2):
                log.topic("t").extend(["a", "b"], partition=partition)
            assert consumer.lag().records == 4
            assert consumer.lag().partitions[("t", 1)][0] == 2

    def test_does_not_count_what_was_removed(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g") as consumer:
            consumer.peek()
            log.topic("t").trim(6)
            assert consumer.lag().records == 4
