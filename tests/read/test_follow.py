"""Following: records arrive from other threads and processes, and every way in which that ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from statistics import median

import pytest

import tailrace
from tailrace.disk.reader import Reader
from tailrace.errors import CorruptionError, ThreadError, TopicNotFoundError
from tailrace.read.follow import WAIT_SECONDS_MAX

# Generous, because a busy machine must not look like a bug; what is printed is the figure.
LATENCY_SECONDS_MAX = 0.05

WRITER = """
import sys, time, tailrace
with tailrace.open(sys.argv[1], durable=False) as log:
    topic = log.topic("orders")
    topic.append(b"ready")
    sys.stdin.readline()
    for _ in range(int(sys.argv[2])):
        topic.append(str(time.monotonic_ns()))
        time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


def later(seconds, action):
    thread = threading.Timer(seconds, action)
    thread.start()
    return thread


def writer(log, count, pause=0.0):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, log.location, str(count), str(pause)], stdin=subprocess.PIPE, text=True
    )


class TestArrival:
    def test_records_of_another_process_arrive_at_once(self, log, capsys):
        process = writer(log, 100, 0.002)
        iterator = iter(log.topic("orders").read(follow=True, timeout=30, limit=101))
        assert next(iterator).value == b"ready"
        process.communicate("go\n")
        # Started anew, so that the writer's records are met one by one while it writes.
        process = writer(log, 100, 0.002)
        assert process.stdin is not None
        fresh = iter(log.topic("orders").read("latest", follow=True, timeout=30, limit=101))
        found: list[float] = []

        def follow():
            found.extend(
                (time.monotonic_ns() - int(record.value)) / 1e9 for record in fresh if record.value != b"ready"
            )

        thread = threading.Thread(target=follow)
        thread.start()
        process.communicate("go\n")
        thread.join(30)
        assert process.returncode == 0
        assert len(found) == 100
        with capsys.disabled():
            print(f"\nfollow across processes: median {median(found) * 1e6:.0f} us, worst {max(found) * 1e6:.0f} us")
        assert median(found) < LATENCY_SECONDS_MAX
        assert len(list(iterator)) == 100

    def test_nothing_is_missed_or_doubled_under_load(self, log):
        processes = [writer(log, 2_000) for _ in range(2)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        offsets = [record.offset for record in log.topic("orders").read(follow=True, timeout=30, limit=4_002)]
        assert offsets == [*range(4_002)]
        for process in processes:
            process.communicate()

    def test_batches_take_what_is_there(self, log):
        topic = log.topic("orders")
        topic.extend([b"a", b"b"])
        batches = topic.read(follow=True, timeout=30).batches()
        assert len(next(batches)) == 2
        thread = later(0.05, lambda: topic.extend([b"c", b"d", b"e"]))
        assert len(next(batches)) == 3
        thread.join()

    def test_many_segments_while_following(self, log):
        topic = log.topic("orders", segment_bytes=4096)
        topic.append("first")
        iterator = iter(topic.read(follow=True, timeout=5))
        seen = [next(iterator).offset]
        for _ in range(60):
            topic.extend([bytes(100)] * 10)
            seen += [next(iterator).offset for _ in range(10)]
        assert seen == [*range(601)]

    def test_partitions_merged_look_by_look(self, log):
        topic = log.topic("orders", partitions=2)
        now = time.time_ns() // 1000
        topic.extend([b"a", b"c"], partition=0, timestamps=[now, now + 2])
        topic.extend([b"b"], partition=1, timestamps=[now + 1])
        iterator = iter(topic.read(follow=True, order="time", timeout=10))
        assert [next(iterator).value for _ in range(3)] == [b"a", b"b", b"c"]
        topic.append(b"d", partition=1)
        assert next(iterator).value == b"d"

    def test_last_then_what_follows(self, log):
        topic = log.topic("orders")
        topic.extend([str(number) for number in range(50)])
        iterator = iter(topic.read(last=3, follow=True, timeout=10))
        assert [next(iterator).text for _ in range(3)] == ["47", "48", "49"]
        topic.append("50")
        assert next(iterator).text == "50"


class TestTopics:
    @pytest.mark.parametrize("start", ["earliest", "latest"])
    def test_a_missing_topic_is_waited_for(self, log, start):
        topic = log.topic("later")
        scan = topic.read(start, follow=True, timeout=10, limit=2)
        thread = later(0.1, lambda: topic.extend([b"1", b"2"]))
        assert [record.value for record in scan] == [b"1", b"2"]
        thread.join()

    def test_new_partitions_are_read_from_their_beginning(self, log):
        topic = log.topic("orders", partitions=1)
        topic.append("old")
        iterator = iter(topic.read("latest", follow=True, timeout=10))
        thread = later(0.1, lambda: (topic.alter(partitions=3), topic.append("new", partition=2)))
        record = next(iterator)
        assert (record.partition, record.value) == (2, b"new")
        thread.join()

    def test_a_dropped_topic_is_an_error(self, log):
        topic = log.topic("orders")
        topic.append("1")
        iterator = iter(topic.read(follow=True, timeout=10))
        next(iterator)
        thread = later(0.1, topic.drop)
        with pytest.raises(TopicNotFoundError, match="dropped"):
            next(iterator)
        thread.join()

    def test_a_topic_made_anew_is_another_topic(self, log):
        topic = log.topic("orders")
        topic.append("1")
        iterator = iter(topic.read(follow=True, timeout=10))
        next(iterator)
        topic.drop()
        log.topic("orders").append("2")
        with pytest.raises(TopicNotFoundError, match="dropped"):
            next(iterator)


class TestEnds:
    def test_idle_seconds(self, log):
        topic = log.topic("orders")
        topic.append("1")
        began = time.monotonic()
        assert [record.value for record in topic.read(follow=True, timeout="200ms")] == [b"1"]
        assert 0.2 <= time.monotonic() - began < 5

    def test_a_timeout_counts_from_the_last_record(self, log):
        topic = log.topic("orders")
        threads = [later(at * 0.4, lambda: topic.append("x")) for at in range(1, 4)]
        assert len(list(topic.read(follow=True, timeout=1.0))) == 3
        for thread in threads:
            thread.join()

    def test_limit_and_stop(self, log):
        topic = log.topic("orders")
        topic.extend([b"x"] * 5)
        assert len(list(topic.read(follow=True, limit=5))) == 5
        assert len(list(topic.read(follow=True, stop=5))) == 5
        thread = later(0.1, lambda: topic.extend([b"y"] * 10))
        assert len(list(topic.read(follow=True, stop=8))) == 8
        thread.join()
        assert topic.read(follow=True, limit=9).to_arrow().num_rows == 9

    def test_a_moment_to_stop_at(self, log):
        topic = log.topic("orders")
        now = time.time_ns() // 1000
        topic.append("before", timestamp=now)
        thread = later(0.1, lambda: topic.append("after", timestamp=now + 3_600_000_000))
        moment = topic.read(limit=1).first().timestamp
        found = list(topic.read(follow=True, stop=moment.replace(year=moment.year + 1), timeout=0.5))
        assert [record.text for record in found] == ["before", "after"]
        thread.join()
        assert [record.text for record in topic.read(follow=True, stop="-0s")] == ["before"]

    def test_closing_the_log(self, tmp_path):
        log = tailrace.open(tmp_path / "log", durable=False)
        topic = log.topic("orders")
        topic.append("1")
        iterator = iter(topic.read(follow=True))
        next(iterator)
        thread = later(0.1, log.close)
        assert list(iterator) == []
        thread.join()

    def test_closing_one_handle_of_two(self, tmp_path):
        first = tailrace.open(tmp_path / "log", durable=False)
        with tailrace.open(tmp_path / "log", durable=False) as second:
            topic = first.topic("orders")
            topic.append("1")
            iterator = iter(topic.read(follow=True))
            next(iterator)
            thread = later(0.1, first.close)
            assert list(iterator) == []
            thread.join()
            assert second.topic("orders").read().count() == 1

    def test_a_table_needs_an_end(self, log):
        scan = log.topic("orders").read(follow=True)
        for ask in (scan.to_arrow, scan.to_pandas, scan.to_polars, scan.count):
            with pytest.raises(ValueError, match="never ends"):
                ask()

    def test_a_waiting_follower_costs_next_to_nothing(self, log):
        topic = log.topic("orders")
        topic.append("1")
        began = time.process_time()
        assert len(list(topic.read(follow=True, timeout=1.0))) == 1
        assert time.process_time() - began < 0.3

    def test_wakes_for_others_do_not_keep_it_busy(self, log):
        """Another topic is written to all the time; the follower looks a thousand times a second at most."""
        quiet, busy = log.topic("quiet"), log.topic("busy")
        quiet.append("1")
        stop = threading.Event()
        written = []

        def write():
            while not stop.is_set():
                busy.append("x")
                written.append(1)

        looks = []
        find = log.engine.find
        log.engine.find = lambda name: (looks.append(name), find(name))[1]  # counts, and asks the real one
        thread = threading.Thread(target=write)
        thread.start()
        assert len(list(quiet.read(follow=True, timeout=0.5))) == 1
        stop.set()
        thread.join()
        del log.engine.find
        assert len(written) > 200
        assert len([name for name in looks if name == "quiet"]) < 1_000

    def test_two_threads_on_one_follower(self, log):
        topic = log.topic("orders")
        topic.append("1")
        batches = topic.read(follow=True, timeout=5).batches()
        next(batches)
        thread = threading.Thread(target=lambda: next(batches))
        thread.start()
        time.sleep(WAIT_SECONDS_MAX / 2)
        with pytest.raises(ThreadError):
            next(batches)
        topic.append("2")
        thread.join(5)
        assert not thread.is_alive()


class TestNewest:
    """The short way that a follower takes to the newest records."""

    def test_single_records_come_by_it_and_all_others_by_the_long_way(self, log, monkeypatch):
        topic = log.topic("orders", partitions=1, segment_bytes="64KiB")
        topic.append(b"before")
        iterator = iter(topic.read("latest", follow=True, timeout=10))
        short = []
        newest = Reader.read_newest

        def noted(reader, start, stop):
            run = newest(reader, start, stop)
            short.append(run is not None)
            return run

        monkeypatch.setattr(Reader, "read_newest", noted)
        later(0.05, lambda: topic.append(b"first"))
        assert next(iterator).value == b"first"
        expected = []
        for number in range(300):
            value = b"%d " % number * 200
            if number % 50 == 7:
                topic.extend([value, value])
                expected += [value, value]
            elif number % 50 == 9:
                topic.append(None, key=value[:9])
                expected.append(None)
            else:
                topic.append(value, durable=number % 100 == 11)
                expected.append(value)
            found = [next(iterator) for _ in range(2 if number % 50 == 7 else 1)]
            assert [record.value for record in found] == expected[-len(found) :]
        # Rolls and batches take the long way, and so does what comes first in a segment.
        assert 200 < sum(short) < len(short)
        assert [record.value for record in topic.read(2)] == expected

    def test_several_at_once_and_several_partitions(self, log):
        topic = log.topic("orders", partitions=2)
        iterator = iter(topic.read("latest", follow=True, timeout=5))
        later(0.05, lambda: topic.append(b"ready", partition=0))
        assert next(iterator).value == b"ready"
        for number in range(20):
            for each in range(number % 4):
                topic.append(b"%d" % each, partition=1)
            if number % 3:
                topic.append(b"other", partition=0)
            wanted = number % 4 + (number % 3 > 0)
            found = sorted((record.partition, record.value) for record in (next(iterator) for _ in range(wanted)))
            assert found == [(0, b"other")] * (number % 3 > 0) + [(1, b"%d" % each) for each in range(number % 4)]

    def test_a_stop_is_kept(self, log):
        topic = log.topic("orders", partitions=1)
        topic.append(b"0")
        iterator = iter(topic.read("latest", 4, follow=True, timeout=20))
        later(0.05, lambda: [topic.append(b"%d" % number) for number in range(1, 9)])
        assert [record.offset for record in iterator] == [1, 2, 3]

    def test_damage_is_met_there_too(self, log, tmp_path):
        topic = log.topic("orders", partitions=1)
        topic.append(b"0" * 16)
        iterator = iter(topic.read("latest", follow=True, timeout=20))
        later(0.05, lambda: topic.append(b"1" * 16))
        assert next(iterator).value == b"1" * 16
        (segment,) = (tmp_path / "log").glob("topics/*/0/*.seg")
        topic.append(b"2" * 16)
        data = bytearray(segment.read_bytes())
        data[data.rindex(b"2222")] ^= 1
        segment.write_bytes(data)
        with pytest.raises(CorruptionError) as caught:
            next(iterator)
        assert (caught.value.first, caught.value.last) == (2, 2)

    def test_what_was_found_is_handed_out_before_more_is_looked_for(self, log):
        topic = log.topic("orders", partitions=1)
        topic.append(b"0")
        batches = topic.read(follow=True, timeout=20).batches()
        assert [record.value for record in next(batches)] == [b"0"]
        topic.append(b"1")
        assert [record.value for record in next(batches)] == [b"1"]
