"""The consumer: what it hands out, and what it remembers."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

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
