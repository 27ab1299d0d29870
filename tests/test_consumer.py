"""The consumer: what it hands out, what it remembers, and every way in which it ends or is disturbed."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tailrace
from tailrace import errors
from tests.processes import in_fork, run, start

# ruff: noqa: PT012  # What a block leaves behind that raises in its middle is what is tested here.

LONG = 30.0


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


def fill(log, topic, count, first=0, **where):
    log.topic(topic).extend([str(number) for number in range(first, first + count)], **where)


def texts(records):
    return [record.text for record in records]


def numbers(records):
    return [int(record.text) for record in records]


def cursor(log, group="g", topic="t", partition=0):
    """The stored cursor of a partition."""
    for each in log.group(group).partitions:
        if (each.topic, each.partition) == (topic, partition):
            return each.position
    return None


def locks(log):
    """The lock files of members, of all groups."""
    folder = f"{log.location}/members"
    return [name for _, _, names in os.walk(folder) for name in names] if os.path.isdir(folder) else []


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def in_thread(function):
    """Run a function in a thread; call the result to join it and to have what it returned, or raised."""
    outcome = []

    def call():
        try:
            outcome.append((function(), None))
        except BaseException as error:  # noqa: BLE001  # raised in the thread that joins
            outcome.append((None, error))

    thread = threading.Thread(target=call)
    thread.start()

    def join():
        thread.join(LONG)
        assert not thread.is_alive(), "the thread hangs"
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    return join


def wait_until(condition, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.001)


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
            with pytest.raises(errors.InvalidNameError, match="group"):
                call()
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


class TestClosing:
    def test_twice(self, log):
        fill(log, "t", 3)
        consumer = log.consumer("t", "g")
        next(consumer)
        next(consumer)
        consumer.close()
        consumer.close()
        assert cursor(log) == 1

    @pytest.mark.parametrize("whose", ["consumer", "log"])
    def test_inside_its_own_loop(self, tmp_path, whose):
        log = tailrace.open(tmp_path / "log", durable=False)
        fill(log, "t", 10)
        consumer = log.consumer("t", "g")
        found = []
        for record in consumer:
            found.append(record.offset)
            if record.offset == 3:
                (consumer if whose == "consumer" else log).close()
        assert found == [0, 1, 2, 3]
        log.close()
        with tailrace.open(tmp_path / "log") as log:
            assert cursor(log) == 3

    def test_what_left_the_block_is_not_hidden_by_the_close(self, log):
        fill(log, "t", 10)
        with pytest.raises(KeyError), log.consumer("t", "g") as consumer:
            consumer.poll(2)
            consumer.poll(2)
            log.evict_member("g", consumer.member)
            raise KeyError
        assert cursor(log) is None
        assert locks(log) == []

    def test_afterwards_everything_is_refused(self, log):
        fill(log, "t", 3)
        consumer = log.consumer("t", "g")
        next(consumer)
        consumer.close()
        calls = (
            consumer.poll, consumer.peek, consumer.commit, consumer.lag, consumer.pause, consumer.resume,
            lambda: consumer.seek("earliest"), lambda: iter(consumer),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(errors.ClosedError, match="consumer is closed"):
                call()
        assert consumer.assigned == []

    def test_from_another_thread_ends_a_wait(self, log):
        log.topic("t", partitions=1)
        for read in (tailrace.consumer.Consumer.poll, list):
            consumer = log.consumer("t", "g")
            ended = in_thread(lambda: read(consumer))  # noqa: B023
            wait_until(lambda: consumer.assigned)  # noqa: B023
            time.sleep(0.01)
            began = time.monotonic()
            consumer.close()
            assert len(ended()) == 0
            assert time.monotonic() - began < 2
        assert locks(log) == []

    def test_from_another_thread_never_surprises_a_loop_of_polls(self, log):
        """Whether the close comes in a wait or between two polls: the loop just ends."""
        fill(log, "t", 5_000)
        for turn in range(20):
            consumer = log.consumer("t", f"g{turn}", commit="manual")

            def loop(consumer=consumer):
                count = 0
                while batch := consumer.poll(10):
                    count += len(batch)
                return count

            ended = in_thread(loop)
            wait_until(lambda: consumer.assigned)  # noqa: B023
            time.sleep(0.0002 * turn)
            consumer.close()
            assert ended() <= 5_000

    def test_from_another_thread_never_surprises_a_loop_of_records(self, log):
        fill(log, "t", 5_000)
        for turn in range(20):
            # Between two records it looks after the group a thousand times a second.
            consumer = log.consumer("t", f"g{turn}", commit_every="1ms")

            def loop(consumer=consumer):
                for _ in consumer:
                    time.sleep(0.0001)

            ended = in_thread(loop)
            wait_until(lambda: consumer.assigned)  # noqa: B023
            time.sleep(0.0005 * turn)
            consumer.close()
            ended()

    def test_from_another_thread_ends_a_loop(self, log):
        fill(log, "t", 1_000)
        consumer = log.consumer("t", "g")
        handed = []

        def loop():
            for record in consumer:
                handed.append(record.offset)
                time.sleep(0.001)

        ended = in_thread(loop)
        wait_until(lambda: len(handed) > 5)
        consumer.close()
        ended()
        assert len(handed) < 1_000
        # All but the one that was in hand, and perhaps one that was handed out at that very moment.
        assert len(handed) - 2 <= cursor(log) <= len(handed) - 1

    def test_the_log_closes_its_consumers(self, tmp_path):
        log = tailrace.open(tmp_path / "log", durable=False)
        fill(log, "t", 10)
        one, two = log.consumer("t", "one"), log.consumer("t", "two", commit="manual")
        assert numbers(one.poll(4)) == [0, 1, 2, 3]
        assert next(one).offset == 4
        assert len(two.poll(3)) == 3
        log.close()
        assert len(one.poll()) == 0
        assert list(one) == []
        with pytest.raises(errors.ClosedError):
            one.commit()
        with tailrace.open(tmp_path / "log", durable=False) as log:
            assert cursor(log, "one") == 4
            assert cursor(log, "two") is None
            assert log.group("one").members == ()
            assert locks(log) == []

    def test_the_log_ends_loops_and_waits_of_other_threads(self, tmp_path):
        log = tailrace.open(tmp_path / "log", durable=False)
        fill(log, "t", 3)
        consumers = [log.consumer("t", f"g{number}") for number in range(4)]
        found = [in_thread(lambda each=each: numbers(each)) for each in consumers]
        wait_until(lambda: all(each.assigned for each in consumers))
        time.sleep(0.02)
        log.close()
        assert [each() for each in found] == [[0, 1, 2]] * 4
        with tailrace.open(tmp_path / "log") as log:
            assert [cursor(log, f"g{number}") for number in range(4)] == [3] * 4

    def test_another_handle_of_the_log_leaves_it_alone(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g") as consumer:
            assert next(consumer).offset == 0
            with tailrace.open(log.location) as other, other.consumer("t", "other", stop="now") as theirs:
                assert len(list(theirs)) == 3
            assert next(consumer).offset == 1

    def test_a_forgotten_consumer_warns_and_frees_its_place(self, log):
        fill(log, "t", 3)
        consumer = log.consumer("t", "g")
        next(consumer)
        with pytest.warns(ResourceWarning, match="unclosed consumer of the group 'g'"):  # noqa: PT031  # both are it
            del consumer
            gc.collect()
        with log.consumer("t", "g", stop="now") as consumer:
            assert numbers(consumer) == [0, 1, 2]

    def test_a_consumer_that_was_never_asked_is_forgotten_quietly(self, log):
        consumer = log.consumer("t", "g")
        del consumer
        gc.collect()

    def test_at_exit_what_was_processed_is_stored(self, tmp_path):
        program = """
            import sys, tailrace
            log = tailrace.open(sys.argv[1])
            log.topic("t").extend(list("abcde"))
            consumer = log.consumer("t", "g")
            for record in consumer:
                if record.offset == 3:
                    break
        """
        process = start(program, tmp_path / "log")
        process.communicate()
        with tailrace.open(tmp_path / "log") as log:
            assert cursor(log) == 3
            assert log.group("g").members == ()

    def test_nothing_is_left_open(self, log):
        log.topic("t", partitions=4)
        for partition in range(4):
            log.topic("t").extend(["a"] * 10, partition=partition)
        before = threads = 0
        for _ in range(3):
            # The first round opens what the log keeps open for a partition that is written to.
            before, threads = descriptors(), threading.active_count()
            for number in range(6):
                with log.consumer("t", f"g{number}", stop="now" if number % 2 else None) as consumer:
                    consumer.peek(3)
                    consumer.poll(2)
                    consumer.lag()
                    next(consumer)
                log.group(f"g{number}")
            log.groups()
        assert threading.active_count() == threads
        assert descriptors() <= before
        assert locks(log) == []

    def test_nothing_is_left_open_by_what_was_refused(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g") as consumer:
            next(consumer)
        before = descriptors()
        for _ in range(10):
            with pytest.raises(errors.TopicNotFoundError):
                log.consumer("missing", "g", stop="now")
            with pytest.raises(errors.OffsetOutOfRangeError):
                log.consumer("t", "other", start=99)
        assert descriptors() <= before


class TestThreadsAndProcesses:
    def test_two_threads_at_once_are_refused(self, log):
        log.topic("t", partitions=1)
        with log.consumer("t", "g") as consumer:
            ended = in_thread(lambda: len(consumer.poll(timeout=LONG)))
            wait_until(lambda: consumer.assigned)
            calls = (
                lambda: consumer.poll(timeout=0), lambda: next(consumer), consumer.peek, consumer.commit, consumer.lag,
                consumer.pause, consumer.resume, lambda: consumer.seek("earliest"),
            )  # fmt: skip
            for call in calls:
                with pytest.raises(errors.ThreadError, match="Another thread"):
                    call()
            fill(log, "t", 1)
            assert ended() == 1
            assert len(consumer.poll(timeout=0)) == 0

    def test_one_thread_after_another_is_fine(self, log):
        fill(log, "t", 4)
        with log.consumer("t", "g", stop="now") as consumer:
            for number in range(4):
                assert in_thread(lambda: next(consumer).offset)() == number

    def test_consumers_cannot_be_pickled(self, log):
        with log.consumer("t", "g") as consumer, pytest.raises(TypeError, match="pickle its Log"):
            pickle.dumps(consumer)

    def test_a_log_that_came_by_pickle_has_consumers(self, log):
        fill(log, "t", 2)
        with pickle.loads(pickle.dumps(log)) as other, other.consumer("t", "g", stop="now") as consumer:
            assert numbers(consumer) == [0, 1]

    def test_a_fork_does_not_inherit_it(self, log):
        fill(log, "t", 10)
        consumer = log.consumer("t", "g")
        assert next(consumer).offset == 0

        def child():
            refused = 0
            for call in (lambda: next(consumer), consumer.poll, consumer.peek, consumer.commit, consumer.close):
                try:
                    call()
                except errors.ForkedError:
                    refused += 1
            # The partitions are the parent's, who lives.
            with log.consumer("t", "g") as mine:
                assert len(mine.poll(timeout=0.05)) == 0
            with log.consumer("t", "other", stop="now") as mine:
                return refused, len(list(mine))

        assert in_fork(child) == (5, 10)
        assert next(consumer).offset == 1
        consumer.close()
        assert cursor(log) == 1

    def test_a_fork_does_not_keep_a_dead_parent_alive(self, log):
        fill(log, "t", 3)
        program = """
            import os, sys, time, tailrace
            log = tailrace.open(sys.argv[1], durable=False)
            consumer = log.consumer("t", "g")
            next(consumer)
            if os.fork() == 0:
                os.close(1)
                os.close(2)
                sys.stdin.readline()
                os._exit(0)
            print("ready", flush=True)
            time.sleep(60)
        """
        process = start(program, log.location)
        assert process.stdout.readline() == "ready\n"
        with log.consumer("t", "g") as consumer:
            assert len(consumer.poll(timeout=0)) == 0
            process.kill()
            assert len(consumer.poll(timeout=LONG)) == 3
        process.communicate()

    def test_a_read_only_handle_has_none(self, log):
        fill(log, "t", 1)
        with tailrace.open(log.location, "r") as reader, pytest.raises(errors.ReadOnlyError):
            reader.consumer("t", "g")

    def test_a_handle_that_is_closed_has_none(self, tmp_path):
        log = tailrace.open(tmp_path / "log")
        log.close()
        with pytest.raises(errors.ClosedError):
            log.consumer("t", "g")

    def test_two_in_one_thread_do_not_wait_for_each_other(self, log):
        topic = log.topic("t", partitions=2)
        for partition in range(2):
            topic.extend(["0", "1"], partition=partition)
        with log.consumer("t", "g") as one, log.consumer("t", "g", stop="now") as two:
            assert next(one).offset == 0
            for read in (lambda: next(two), two.poll):
                with pytest.raises(errors.GroupBusyError, match="in this very thread"):
                    read()
            assert len(two.poll(timeout=0)) == 0
            one.close()
            assert sorted(numbers(two)) == [0, 0, 1, 1]

    def test_a_full_disk_loses_no_record(self, tailrace_log, tailrace_faults):
        log = tailrace_log
        fill(log, "t", 10)
        with log.consumer("t", "g", commit="manual") as consumer:
            assert len(consumer.poll(4)) == 4
            tailrace_faults.fill_disk()
            with pytest.raises(errors.DiskFullError):
                consumer.commit()
            tailrace_faults.free_disk()
            consumer.commit()
            assert cursor(log) == 4
            assert numbers(consumer.poll(2)) == [4, 5]

    def test_a_full_disk_at_the_close_leaves_nobody_behind(self, tailrace_log, tailrace_faults):
        log = tailrace_log
        fill(log, "t", 10)
        consumer = log.consumer("t", "g")
        consumer.poll(4)
        consumer.poll(4)
        tailrace_faults.fill_disk()
        with pytest.raises(errors.DiskFullError):
            consumer.close()
        consumer.close()
        assert locks(log) == []
        tailrace_faults.free_disk()
        with log.consumer("t", "g", stop="now") as consumer:
            assert len(list(consumer)) == 10

    def test_a_disk_that_is_full_when_it_joins(self, tailrace_log, tailrace_faults):
        log = tailrace_log
        fill(log, "t", 10)
        with log.consumer("t", "g", stop="now") as consumer:
            tailrace_faults.fill_disk()
            for _ in range(3):
                with pytest.raises(errors.DiskFullError):
                    consumer.poll()
            assert locks(log) == []
            tailrace_faults.free_disk()
            # An error on the way is not the end of a bounded read.
            assert len(consumer.poll()) == 10

    @pytest.mark.parametrize("n", range(1, 6))
    def test_a_failed_write_on_the_way_loses_nothing(self, tailrace_log, tailrace_faults, n):
        log = tailrace_log
        fill(log, "t", 10)
        found = []
        with log.consumer("t", "g", stop="now", commit_every=1) as consumer:
            fault = tailrace_faults.fail_write(n, topic="__group.g")
            for _ in range(20):
                try:
                    if not (batch := consumer.poll(3)):
                        break
                except errors.StorageError:
                    continue
                found += numbers(batch)
            assert fault.fired
        assert found == list(range(10))
        assert cursor(log) == 10

    def test_a_full_disk_before_a_hand_out_skips_nothing(self, tailrace_log, tailrace_faults):
        log = tailrace_log
        fill(log, "t", 10)
        with log.consumer("t", "g", commit="before") as consumer:
            assert next(consumer).offset == 0
            tailrace_faults.fill_disk()
            for read in (lambda: next(consumer), lambda: consumer.poll(3)):
                with pytest.raises(errors.DiskFullError):
                    read()
            tailrace_faults.free_disk()
            assert next(consumer).offset == 1
            assert numbers(consumer.poll(3)) == [2, 3, 4]


# Interrupts as fast as they come, but one a call at most, so that the test itself is spared.
STORM = """
    import random, signal, sys, tailrace

    def interrupt(*_):
        global armed
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, longest))
        if armed:
            armed = False
            raise KeyboardInterrupt

    path, total, by_batch, settings = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "poll", eval(sys.argv[4])
    # What waits for the disk needs more time between two interrupts to get anywhere.
    longest = {"before": 0.02, "after": 0.006, "manual": 0.002}[settings["commit"]]
    log = tailrace.open(path, durable=False)
    consumer = log.consumer("t", "g", stop="now", **settings)
    consumer.peek()
    found, count, armed, ended = [], 0, False, False
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    batches = []
    while not ended:
        try:
            armed = True
            # Taken and kept in C: no interrupt falls between the two.
            if by_batch:
                batches.extend(map(consumer.poll, (10,)))
            else:
                found.extend(consumer)
                ended = True
            armed = False
            ended = ended or len(batches[-1]) == 0
        except KeyboardInterrupt:
            count += 1
    armed = False
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    found += [record for batch in batches for record in batch]
    assert [record.offset for record in found] == list(range(total)), [record.offset for record in found][:100]
    assert len(log.group("g").members) <= 1
    consumer.close()
    log.close()
    print(count)
"""


class TestInterrupts:
    def test_in_a_wait(self, log):
        log.topic("t", partitions=1)

        def interrupt(*_):
            raise KeyboardInterrupt

        old = signal.signal(signal.SIGALRM, interrupt)
        try:
            with log.consumer("t", "g") as consumer:
                for read in (lambda: next(consumer), consumer.poll):
                    signal.setitimer(signal.ITIMER_REAL, 0.03)
                    with pytest.raises(KeyboardInterrupt):
                        read()
                fill(log, "t", 3)
                assert next(consumer).offset == 0
                assert numbers(consumer.poll()) == [1, 2]
        finally:
            signal.signal(signal.SIGALRM, old)

    @pytest.mark.parametrize("how", ["poll", "loop"])
    @pytest.mark.parametrize("commit", ["after", "manual", "before"])
    def test_none_of_many_skips_a_record(self, log, how, commit):
        total = 15_000 if commit != "before" else 60 if how == "loop" else 600
        fill(log, "t", total)
        settings = {"commit": commit, "commit_every": 3_000}
        # On a quick disk little is left to interrupt where each record waits for it.
        assert int(run(STORM, log.location, total, how, settings)) > (3 if commit != "before" else 0)
        assert cursor(log) == (None if commit == "manual" else total)
        assert locks(log) == []

    def test_close_in_a_signal_handler(self, log):
        log.topic("t", partitions=1)
        consumer = log.consumer("t", "g")
        old = signal.signal(signal.SIGALRM, lambda *_: consumer.close())
        try:
            for read in (tailrace.consumer.Consumer.poll, list):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                assert len(read(consumer)) == 0
                assert consumer.member is None
                assert locks(log) == []
                consumer = log.consumer("t", "g")
        finally:
            signal.signal(signal.SIGALRM, old)
            consumer.close()

    def test_closing_the_log_in_a_signal_handler(self, tmp_path):
        program = """
            import signal, sys, tailrace
            log = tailrace.open(sys.argv[1])
            log.topic("t").extend(list("abc"))
            signal.signal(signal.SIGTERM, lambda *_: log.close())
            consumer = log.consumer("t", "g")
            found = []
            print("ready", flush=True)
            for record in consumer:
                found.append(record.text)
            print("".join(found), flush=True)
        """
        process = start(program, tmp_path / "log")
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.terminate()
        printed, complaint = process.communicate(timeout=LONG)
        assert (printed, complaint, process.returncode) == ("abc\n", "", 0)

    def test_a_handler_may_not_read_in_between(self, log):
        log.topic("t", partitions=1)
        seen = []
        with log.consumer("t", "g") as consumer:

            def read(*_):
                try:
                    consumer.poll(timeout=0)
                except errors.ThreadError as error:
                    seen.append(error)

            old = signal.signal(signal.SIGALRM, read)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                assert len(consumer.poll(timeout=0.2)) == 0
            finally:
                signal.signal(signal.SIGALRM, old)
        assert len(seen) == 1


class TestMany:
    def test_a_thousand_partitions_with_few_descriptors(self, tmp_path):
        program = """
            import os, resource, sys, tailrace
            resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, 1_024))
            with tailrace.open(sys.argv[1], durable=False) as log:
                topic = log.topic("t", partitions=1_000)
                topic.extend([str(n) for n in range(5_000)], keys=[str(n) for n in range(5_000)])
                before = len(os.listdir("/proc/self/fd"))
                found = []
                with log.consumer("t", "g", stop="now") as consumer:
                    while batch := consumer.poll(700):
                        found += [int(record.text) for record in batch]
                    assert consumer.assigned == []
                assert sorted(found) == list(range(5_000)), len(found)
                assert log.group("g").lag_records == 0
                topic.extend(["x"] * 10, keys=[str(n) for n in range(10)])
                with log.consumer("t", "g", stop="now") as consumer:
                    assert len([*consumer]) == 10
                print(len(os.listdir("/proc/self/fd")) - before)
        """
        assert int(run(program, tmp_path / "log")) < 100

    def test_a_hundred_topics_of_a_pattern(self, log):
        for number in range(100):
            log.topic(f"s.{number}").append(str(number))
        with log.consumer("s.*", "g", stop="now") as consumer:
            assert sorted(numbers(consumer)) == list(range(100))
        assert len(log.group("g").partitions) == 100

    def test_consumers_in_many_threads(self, log):
        topic = log.topic("t", partitions=8)
        topic.extend([str(number) for number in range(2_000)], keys=[str(number) for number in range(2_000)])

        def read(group):
            with log.consumer("t", group, stop="now", commit_every=50) as consumer:
                return numbers(consumer)

        found = [in_thread(lambda number=number: read(f"g{number}")) for number in range(8)]
        for each in found:
            assert sorted(each()) == list(range(2_000))

    def test_consumers_made_while_others_are_listed(self, log):
        """The log lists its consumers when it closes, and a member that waits lists those of its thread."""
        log.topic("t", partitions=2)
        ends = time.monotonic() + 0.5
        switch = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)

        def make():
            while time.monotonic() < ends:
                for consumer in [log.consumer("t", f"g{number}") for number in range(20)]:
                    consumer.close()

        def look():
            while time.monotonic() < ends:
                log._consumers()

        try:
            for join in [in_thread(each) for each in (make, make, look, look)]:
                join()
        finally:
            sys.setswitchinterval(switch)

    def test_idle_consumers_cost_next_to_nothing(self, log):
        log.topic("t", partitions=8)
        consumers = [log.consumer("t", "g") for _ in range(4)]
        ended = [in_thread(lambda each=each: list(each)) for each in consumers]
        wait_until(lambda: all(len(each.assigned) == 2 for each in consumers))
        time.sleep(0.3)
        before = time.process_time()
        time.sleep(1.0)
        spent = time.process_time() - before
        for each in consumers:
            each.close()
        for end in ended:
            assert end() == []
        assert spent < 0.3


class Model:
    """What a group of one member should do: a position and a stored cursor a partition, and nothing else."""

    def __init__(self, log, rng, commit):
        self.log = log
        self.rng = rng
        self.commit = commit
        self.starts, self.ends = {}, {}
        # Behind the last record handed out, the same without what is in hand, and what is stored.
        self.position, self.processed, self.stored = {}, {}, {}
        self.paused = set()
        for topic, partitions in (("a", 2), ("b", 1)):
            log.topic(topic, partitions=partitions)
            for partition in range(partitions):
                self.starts[topic, partition] = self.ends[topic, partition] = 0
        self.consumer = None
        self.open()

    def open(self):
        self.consumer = self.log.consumer(
            ["a", "b"], "g", commit=self.commit, commit_every=10**9, on_lost="earliest", member="only"
        )
        self.paused = set()
        self.position = {place: self.stored.get(place, start) for place, start in self.starts.items()}
        self.processed = dict(self.position)

    def available(self):
        return sum(
            self.ends[place] - max(self.position[place], self.starts[place])
            for place in self.position
            if place[0] not in self.paused
        )

    def handed(self, records, position):
        for record in records:
            place = (record.topic, record.partition)
            assert place[0] not in self.paused
            # What was removed is skipped, unless it was in memory already.
            assert record.offset in (position[place], max(position[place], self.starts[place])), place
            assert record.text == f"{place} {record.offset}"
            position[place] = record.offset + 1

    def ask(self):
        self.processed = dict(self.position)

    # What may happen.

    def append(self):
        place = self.rng.choice(list(self.ends))
        count = self.rng.choice([1, 1, 3, 40])
        values = [f"{place} {self.ends[place] + number}" for number in range(count)]
        self.log.topic(place[0]).extend(values, partition=place[1])
        self.ends[place] += count

    def next(self):
        if self.available():
            self.ask()
            self.handed([next(self.consumer)], self.position)
            self.stored_before()

    def several(self):
        for _ in range(self.rng.randrange(30)):
            self.next()

    def poll(self):
        self.ask()
        count = self.rng.choice([1, 2, 7, 100])
        batch = self.consumer.poll(count, timeout=0)
        assert len(batch) <= count
        assert bool(batch) == bool(self.available())
        self.handed(batch, self.position)
        self.stored_before()

    def stored_before(self):
        if self.commit == "before":
            self.stored = dict(self.position)

    def peek(self):
        count = self.rng.choice([1, 5, 100])
        batch = self.consumer.peek(count)
        assert bool(batch) == bool(self.available())
        self.handed(batch, dict(self.position))

    def commit_now(self):
        self.consumer.commit()
        self.ask()
        self.stored = dict(self.position)

    def seek(self):
        self.consumer.peek()
        topic, partition = place = self.rng.choice(list(self.ends))
        offset = self.rng.randint(self.starts[place], self.ends[place])
        self.consumer.seek(offset, topic=topic, partition=partition)
        self.position[place] = self.processed[place] = offset
        self.stored_before()

    def pause(self):
        topic = self.rng.choice(["a", "b"])
        if topic in self.paused:
            self.consumer.resume(topic)
        else:
            self.consumer.pause(topic)
        self.paused ^= {topic}

    def lag(self):
        expected = sum(self.ends[place] - max(self.position[place], self.starts[place]) for place in self.position)
        assert self.consumer.lag().records == expected

    def trim(self):
        topic, partition = place = self.rng.choice(list(self.ends))
        offset = self.rng.randint(self.starts[place], self.ends[place])
        self.log.topic(topic).trim(offset, partition)
        self.starts[place] = offset

    def transact(self, fails=False):
        try:
            with self.log.transaction() as tx:
                self.poll()
                self.consumer.commit(tx)
                if fails:
                    raise KeyError
        except KeyError:
            self.position = {place: self.stored.get(place, start) for place, start in self.starts.items()}
        else:
            self.stored = dict(self.position)
        self.ask()

    def fail_to_transact(self):
        self.transact(fails=True)

    def close(self):
        self.consumer.close()
        if self.commit == "after":
            self.stored.update(self.processed)
        for each in self.log.group("g").partitions if self.log.groups() else ():
            place = (each.topic, each.partition)
            # Nothing is stored for a group that stands at the beginning, and what was removed may be skipped or not.
            begins = self.starts[place]
            assert max(each.position or 0, begins) == max(self.stored.get(place) or 0, begins), place
            assert (each.position or 0) <= self.log.topic(each.topic).offsets()[each.partition].durable
        self.stored = {place: offset for place, offset in self.stored.items() if offset is not None}
        self.open()

    def evict(self):
        if self.consumer.member is not None:
            self.log.evict_member("g", self.consumer.member)
            with pytest.raises(errors.PartitionLostError):
                self.consumer.poll(timeout=0)
            self.position = {place: self.stored.get(place, start) for place, start in self.starts.items()}
            self.ask()


class TestAgainstAModel:
    @pytest.mark.parametrize("commit", ["after", "manual", "before"])
    @pytest.mark.parametrize("turn", range(3))
    def test_whatever_happens(self, log, rng, commit, turn):
        model = Model(log, rng, commit)
        steps = [
            model.append, model.append, model.next, model.several, model.poll, model.peek, model.commit_now, model.seek,
            model.pause, model.lag, model.trim, model.transact, model.fail_to_transact, model.close, model.evict,
        ]  # fmt: skip
        done = []
        try:
            for _ in range(150):
                step = rng.choice(steps)
                done.append(step.__name__)
                step()
        except BaseException:
            print(done)
            raise
        model.close()
        model.consumer.close()
