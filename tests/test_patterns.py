"""Patterns: reading every topic that matches, from where, in which order, and what changes while it is read."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace
from tailrace.disk.reader import Reader
from tailrace.disk.tails import INCARNATION
from tailrace.errors import (
    CorruptionError,
    InvalidNameError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from tailrace.names import validate_pattern
from tailrace.read import follow
from tailrace.read import request as requests
from tailrace.read.request import matching
from tailrace.settings import Tuning

READERS_OPEN_MAX = Tuning().readers_open_max
TIME = 1_700_000_000_000_000
# Generous, because a busy machine must not look like a bug.
WAIT = 20


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


@pytest.fixture
def sensors(log):
    """Three topics under `sensors.`, of 1, 2 and 1 partitions, whose times interleave, and two others."""
    for number, (name, partitions) in enumerate((("b", 2), ("a", 1), ("c.x", 1))):
        topic = log.topic(f"sensors.{name}", partitions=partitions)
        for at in range(6):
            topic.append(f"{name}{at}", partition=at % partitions, timestamp=TIME + at * 10 + number)
    log.topic("orders").append("no")
    log.topic("sensorsx").append("no")
    return log


def texts(scan):
    return [record.text for record in scan]


def later(seconds, action):
    thread = threading.Timer(seconds, action)
    thread.start()
    return thread


class TestWhatMatches:
    @pytest.mark.parametrize(
        ("pattern", "topics"),
        [
            ("sensors.*", ["sensors.a", "sensors.b"]),
            ("sensors...", ["sensors.a", "sensors.b", "sensors.c.x"]),
            ("*", ["orders", "sensorsx"]),
            ("*.*.x", ["sensors.c.x"]),
            ("...", ["orders", "sensors.a", "sensors.b", "sensors.c.x", "sensorsx"]),
            ("orders...", ["orders"]),
        ],
    )
    def test_every_match_and_no_other(self, sensors, pattern, topics):
        scan = sensors.topic(pattern).read()
        assert list(dict.fromkeys(record.topic for record in scan)) == topics
        assert [entry.name for entry in matching(sensors.engine, [pattern])] == topics

    def test_internal_topics_never_match(self, sensors):
        tailrace.bulk.commit(
            sensors, [tailrace.bulk.InlinePart("orders", 0, tailrace.bulk.build(["x"]))], marker=("job", 1)
        )
        assert any(name.startswith("__") for name in sensors.engine.refresh().by_name)
        for pattern in ("...", "*"):
            assert not any(record.topic.startswith("__") for record in sensors.topic(pattern).read())
        assert (
            matching(sensors.engine, [next(name for name in sensors.engine.refresh().by_name if name[:2] == "__")])
            == []
        )

    def test_several_names_and_patterns_each_once(self, sensors):
        found = matching(sensors.engine, ["sensors.*", "orders", "sensors.a", "nothing", "*.b"])
        assert [entry.name for entry in found] == ["orders", "sensors.a", "sensors.b"]
        assert matching(sensors.engine, []) == []

    def test_nothing_matches(self, sensors):
        scan = sensors.topic("nothing.*").read()
        for ask in (lambda: list(scan), scan.count, scan.first, scan.to_arrow, lambda: list(scan.batches())):
            with pytest.raises(TopicNotFoundError, match=r"^No topic matches 'nothing\.\*'\.$"):
                ask()

    @pytest.mark.parametrize("pattern", ["a...b", "..a", "*..", "....", "..a...", "a.*....b", "__...", "*\n", "a.*x.*"])
    def test_what_is_no_pattern(self, log, pattern):
        with pytest.raises(InvalidNameError):
            log.topic(pattern)

    @pytest.mark.parametrize("pattern", ["*", "...", "a.*", "a...", "a....", "*.b...", "_a.*"])
    def test_what_is_one(self, log, pattern):
        assert validate_pattern(pattern) is pattern
        assert log.topic(pattern).name == pattern

    @pytest.mark.parametrize("text", ["sensor_*", "sensors.*x", "sensor*..."])
    def test_a_star_inside_of_a_level_is_refused_wherever_topics_are_named(self, log, text):
        log.topic("sensors.a").append("1")
        assert len([*log.consumer("sensors.*", "g", stop="now")]) == 1
        for use in (
            log.topic,
            log.topics,
            log.verify,
            lambda text: log.consumer(text, "g"),
            lambda text: log.reset_group("g", "earliest", topics=[text]),
            lambda text: log.process(text, lambda record: None, "out", group="g"),
        ):
            with pytest.raises(InvalidNameError, match=r"\* stands for a whole level, as in 'sensors\.\*'"):
                use(text)
        assert [info.name for info in log.topics()] == ["sensors.a"]


class TestForms:
    def test_topics_by_name_then_partitions(self, sensors):
        scan = sensors.topic("sensors...").read()
        expected = (
            [f"a{at}" for at in range(6)] + ["b0", "b2", "b4", "b1", "b3", "b5"] + [f"c.x{at}" for at in range(6)]
        )
        assert texts(scan) == expected
        assert [record.text for batch in scan.batches(4) for record in batch] == expected
        assert texts(sensors.topic("sensors...").read(reverse=True)) == expected[::-1]
        assert scan.count() == 18
        assert scan.first().text == "a0"

    def test_merged_by_time_over_topics(self, sensors):
        merged = [f"{name}{at}" for at in range(6) for name in ("b", "a", "c.x")]
        pattern = sensors.topic("sensors...")
        assert texts(pattern.read(order="time")) == merged
        assert texts(pattern.read(order="time", reverse=True)) == merged[::-1]
        assert texts(pattern.read(order="time", limit=4)) == merged[:4]

    def test_tables_say_which_topic(self, sensors):
        pattern = sensors.topic("sensors.*")
        for order in ("offset", "time"):
            scan = pattern.read(order=order)
            records = list(scan)
            table = scan.to_arrow()
            assert table.column("topic").to_pylist() == [record.topic for record in records]
            assert table.column("value").to_pylist() == [record.value for record in records]
            assert [*scan.to_pandas()["topic"]] == [record.topic for record in records]
            assert scan.to_polars()["topic"].to_list() == [record.topic for record in records]
        scan = pattern.read()
        counts = duckdb.sql("SELECT topic, count(*) FROM scan GROUP BY topic ORDER BY topic").fetchall()
        assert counts == [("sensors.a", 6), ("sensors.b", 6)]

    def test_json_of_several_topics(self, log):
        log.topic("a.x").append(json={"n": 1})
        log.topic("a.y").append(json={"n": 2})
        table = log.topic("a.*").read().to_arrow(json=True)
        assert (table.column("topic").to_pylist(), table.column("n").to_pylist()) == (["a.x", "a.y"], [1, 2])

    def test_repr(self, sensors):
        pattern = sensors.topic("sensors.*")
        scan = pattern.read()
        assert repr(pattern).startswith("<Topics 'sensors.*' of ")
        assert "'sensors.*'" in repr(scan)
        list(scan)
        assert "from positions in 2 topics" in repr(pattern.read(scan.positions, scan.positions))

    def test_a_handle_can_be_pickled(self, sensors):
        copied = pickle.loads(pickle.dumps(sensors.topic("sensors.*")))
        assert copied.read().count() == 12
        with pytest.raises(InvalidNameError):
            copied.append("x")
        copied.log.close()


class TestPlaces:
    def test_last_is_a_count_in_total_of_the_newest(self, sensors):
        pattern = sensors.topic("sensors...")
        assert texts(pattern.read(last=4)) == ["a5", "b5", "c.x4", "c.x5"]
        assert texts(pattern.read(last=4, order="time")) == ["c.x4", "b5", "a5", "c.x5"]
        assert texts(pattern.read(last=0)) == []
        assert texts(pattern.read(last=99)) == texts(pattern.read())

    def test_last_of_a_time(self, log):
        now = time.time_ns() // 1_000
        log.topic("s.a").extend(["old", "new"], timestamps=[now - 7_200_000_000, now])
        log.topic("s.b").extend(["old"], timestamps=[now - 7_200_000_000])
        assert texts(log.topic("s.*").read(last="1h")) == ["new"]

    def test_times(self, sensors):
        pattern = sensors.topic("sensors.*")
        moment = datetime.fromtimestamp((TIME + 40) / 1e6, UTC)
        assert texts(pattern.read(moment, order="time")) == ["b4", "a4", "b5", "a5"]
        assert texts(pattern.read(stop=moment, order="time", last=None))[-1] == "a3"
        assert pattern.read("latest").count() == 0

    def test_partitions_of_topics_that_have_them(self, sensors):
        pattern = sensors.topic("sensors...")
        assert texts(pattern.read(partition=1)) == ["b1", "b3", "b5"]
        assert pattern.read(partition=[0, 1]).count() == 18
        with pytest.raises(ValueError, match=r"matches 'sensors\.\.\.' has a partition 2: 'sensors.b' has the most, 2"):
            list(pattern.read(partition=2))
        with pytest.raises(ValueError, match="has a partition 7"):
            pattern.read(partition=[0, 7]).count()

    def test_an_offset_needs_one_partition(self, sensors):
        pattern = sensors.topic("sensors.*")
        for arguments in ({"start": 3}, {"stop": 3}):
            with pytest.raises(
                ValueError, match=r"=3 is an offset in one partition, and 3 partitions match 'sensors\.\*'"
            ):
                list(pattern.read(**arguments))
        with pytest.raises(ValueError, match=r"write start=\{\('sensors.a', 0\): 3, \.\.\.\}"):
            list(pattern.read({0: 3}))
        assert texts(pattern.read(1, partition=1)) == ["b3", "b5"]
        assert texts(sensors.topic("*.a").read(4)) == ["a4", "a5"]
        assert texts(sensors.topic("*.b").read({0: 1}, {1: 2})) == ["b2", "b4", "b1", "b3"]

    def test_positions_go_on_where_another_scan_was(self, sensors):
        pattern = sensors.topic("sensors.*")
        scan = pattern.read(order="time")
        first = texts(islice(iter(scan), 7))
        assert scan.positions == {("sensors.a", 0): 3, ("sensors.b", 0): 2, ("sensors.b", 1): 2}
        sensors.topic("sensors.new").append("n0", timestamp=TIME + 1_000)
        rest = pattern.read(scan.positions, order="time")
        assert first + texts(rest) == [f"{name}{at}" for at in range(6) for name in ("b", "a")] + ["n0"]
        assert texts(pattern.read(stop=scan.positions, order="time")) == [*first, "n0"]
        assert texts(pattern.read({("sensors.a", 0): 4}, {("sensors.b", 0): 1, ("sensors.b", 1): 0})) == [
            "a4", "a5", "b0", "n0",
        ]  # fmt: skip

    def test_positions_of_others_do_not_count(self, sensors):
        scan = sensors.topic("...").read()
        list(scan)
        assert sensors.topic("sensors...").read(scan.positions).count() == 0
        assert texts(sensors.topic("sensors.a").read(stop=scan.positions)) == [f"a{at}" for at in range(6)]
        with pytest.raises(ValueError, match=r"positions of 'orders' and none of a topic that matches 'sensors\.\*'"):
            sensors.topic("sensors.*").read({("orders", 0): 1})
        with pytest.raises(TypeError, match="positions of a scan"):
            sensors.topic("sensors.*").read({("sensors.a", 0): 1, 0: 1})
        with pytest.raises(OffsetOutOfRangeError, match=r"sensors.a\[0\]"):
            list(sensors.topic("sensors.*").read({("sensors.a", 0): 99}))
        with pytest.raises(ValueError, match=r"There is no partition 3: the topic 'sensors\.a'"):
            list(sensors.topic("sensors.*").read({("sensors.a", 3): 0}))

    def test_positions_of_a_reverse_scan_are_where_to_stop(self, sensors):
        pattern = sensors.topic("sensors.*")
        scan = pattern.read(reverse=True)
        first = texts(islice(iter(scan), 8))
        rest = texts(pattern.read(stop=scan.positions, reverse=True))
        assert first + rest == texts(pattern.read(reverse=True))

    def test_positions_after_a_close_are_exact(self, sensors):
        scan = sensors.topic("sensors.a").read()
        iterator = iter(scan)
        assert texts(islice(iterator, 2)) == ["a0", "a1"]
        iterator.close()
        assert scan.positions == {("sensors.a", 0): 2}
        assert next(iterator, None) is None
        assert scan.positions == {("sensors.a", 0): 2}

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=40), st.integers(0, 45))
    def test_the_same_as_reading_each_topic(self, tmp_path_factory, appended, count):
        with tailrace.open(tmp_path_factory.mktemp("log"), durable=False) as log:
            for number in range(4):
                log.topic(f"t.{number}", partitions=1)
            for at, (number, moment) in enumerate(sorted(appended, key=lambda each: each[1])):
                log.topic(f"t.{number}").append(str(at), timestamp=TIME + moment)
            each = [list(log.topic(f"t.{number}").read()) for number in range(4)]
            pattern = log.topic("t.*")
            assert list(pattern.read()) == [*chain.from_iterable(each)]
            assert sorted(pattern.read(order="time")) == sorted(chain.from_iterable(each))
            assert [*reversed([*pattern.read(order="time")])] == [*pattern.read(order="time", reverse=True)]
            newest = list(pattern.read(order="time", reverse=True, limit=count))
            assert sorted(pattern.read(last=count)) == sorted(newest)
            scan = pattern.read(order="time")
            some = list(islice(iter(scan), count))
            assert some + list(pattern.read(scan.positions, order="time")) == list(pattern.read(order="time"))


class TestRefused:
    @pytest.mark.parametrize(
        "call",
        [
            lambda topic: topic.append("x"),
            lambda topic: topic.append(),
            lambda topic: topic.extend(["x"], partition=0),
            lambda topic: topic.producer(),
            lambda topic: topic.alter(partitions=2),
            lambda topic: topic.trim(3),
            lambda topic: topic.drop(),
            lambda topic: topic.get(0),
            lambda topic: topic.offset_at(TIME),
            lambda topic: topic.offsets(),
            lambda topic: topic.partitions,
            lambda topic: topic.settings,
        ],
    )
    def test_everything_but_reading(self, sensors, call):
        topic = sensors.topic("sensors.*")
        with pytest.raises(InvalidNameError, match=r"^'sensors\.\*' is a pattern .* not in this release\.$") as told:
            call(topic)
        assert told.value.hint.startswith("Nothing was changed; name one topic")

    def test_settings_and_transactions(self, sensors):
        before = [info.name for info in sensors.topics()]
        with pytest.raises(InvalidNameError, match="which can be read and nothing else"):
            sensors.topic("new.*", partitions=2)
        for target in ("sensors.*", sensors.topic("sensors.*")):
            with pytest.raises(InvalidNameError, match="is a pattern"), sensors.transaction() as transaction:
                transaction.append(target, "x")
            with pytest.raises(InvalidNameError, match="is a pattern"), sensors.transaction() as transaction:
                transaction.extend(target, ["x"])
        assert [info.name for info in sensors.topics()] == before

    def test_names_are_text(self, log):
        for name in (None, 7, b"a.*"):
            with pytest.raises(TypeError, match="must be str"):
                log.topic(name)


class TestFollow:
    def test_topics_that_are_made_later(self, log):
        log.topic("s.a").append("old")
        iterator = iter(log.topic("s.*").read("latest", follow=True, timeout=WAIT))
        thread = later(0.1, lambda: (log.topic("other").append("no"), log.topic("s.b", partitions=2).append("b0")))
        assert next(iterator).text == "b0"
        thread.join()
        log.topic("s.b").append("b1", partition=1)
        log.topic("s.a").append("new")
        assert {next(iterator).text, next(iterator).text} == {"b1", "new"}

    def test_later_ones_are_read_from_their_beginning(self, log):
        log.topic("s.a").append("old")
        iterator = iter(log.topic("s.*").read("latest", follow=True, timeout=WAIT))
        thread = later(0.1, lambda: log.topic("s.b").extend(["1", "2", "3"]))
        assert texts(islice(iterator, 3)) == ["1", "2", "3"]
        thread.join()

    @pytest.mark.parametrize(
        "arguments", [{}, {"start": "latest"}, {"last": 2}, {"start": "2020-01-01T00:00Z"}, {"order": "time"}]
    )
    def test_nothing_matches_yet(self, log, arguments):
        iterator = iter(log.topic("s...").read(follow=True, timeout=WAIT, **arguments))
        thread = later(0.1, lambda: log.topic("s.b").extend(["1", "2", "3"]))
        assert texts(islice(iterator, 3)) == ["1", "2", "3"]
        thread.join()

    def test_partitions_that_are_added(self, log):
        topic = log.topic("s.a", partitions=1)
        topic.append("old")
        iterator = iter(log.topic("s.*").read("latest", follow=True, timeout=WAIT))
        thread = later(0.1, lambda: (topic.alter(partitions=3), topic.append("new", partition=2)))
        assert next(iterator).partition == 2
        thread.join()

    def test_a_chosen_partition_that_comes_later(self, log):
        log.topic("s.a", partitions=2).append("a", partition=1)
        narrow = log.topic("s.b", partitions=1)
        narrow.append("no")
        iterator = iter(log.topic("s.*").read(partition=1, follow=True, timeout=WAIT))
        assert next(iterator).text == "a"
        narrow.alter(partitions=3)
        narrow.append("no", partition=2)
        narrow.append("b", partition=1)
        assert next(iterator).text == "b"
        log.topic("s.c", partitions=1).append("no")
        log.topic("s.d", partitions=2).append("d", partition=1)
        assert next(iterator).text == "d"

    def test_last_then_what_follows(self, sensors):
        scan = sensors.topic("sensors...").read(last=3, order="time", follow=True, timeout=WAIT)
        iterator = iter(scan)
        assert texts(islice(iterator, 3)) == ["b5", "a5", "c.x5"]
        sensors.topic("sensors.a").append("a6")
        assert next(iterator).text == "a6"
        assert scan.positions["sensors.a", 0] == 7

    def test_going_on_with_positions(self, sensors):
        scan = sensors.topic("sensors.*").read()
        list(scan)
        sensors.topic("sensors.new").append("n")
        sensors.topic("sensors.b").append("b", partition=1)
        follower = sensors.topic("sensors.*").read(scan.positions, follow=True, timeout=WAIT, limit=2)
        assert texts(follower) == ["b", "n"]

    def test_a_dropped_topic_leaves(self, log):
        for name in ("a", "b"):
            log.topic(f"s.{name}").append(name)
        scan = log.topic("s.*").read(follow=True, timeout=WAIT)
        iterator = iter(scan)
        assert texts(islice(iterator, 2)) == ["a", "b"]
        log.topic("s.a").drop()
        log.topic("s.b").append("b2")
        assert next(iterator).text == "b2"
        assert scan.positions == {("s.b", 0): 2}
        # A successor of the same name is another topic, read from its beginning.
        log.topic("s.a").append("again")
        assert next(iterator).text == "again"
        assert scan.positions == {("s.a", 0): 1, ("s.b", 0): 2}
        log.topic("s.a").drop()
        log.topic("s.a").append("third")
        assert next(iterator).text == "third"
        assert scan.positions == {("s.a", 0): 1, ("s.b", 0): 2}

    @pytest.mark.parametrize("order", ["offset", "time"])
    def test_topics_dropped_while_their_records_are_read(self, log, order):
        topics = [log.topic(f"s.{number}", segment_bytes=4096) for number in range(4)]
        for topic in topics:
            for _ in range(40):
                topic.extend([topic.name] * 20)
        scan = log.topic("s.*").read(follow=True, timeout=0.3, order=order)
        iterator = iter(scan)
        seen = [next(iterator)]
        topics[0].drop()
        topics[2].drop()
        seen += iterator
        for number in (1, 3):
            assert [record.offset for record in seen if record.topic == f"s.{number}"] == [*range(800)]
        assert set(scan.positions) == {("s.1", 0), ("s.3", 0)}

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_topic_dropped_while_it_is_opened(self, log, monkeypatch, begun):
        log.topic("s.b").append("b")
        iterator = iter(log.topic("s.*").read(follow=True, timeout=WAIT))
        if begun:
            assert next(iterator).text == "b"
        log.topic("s.a").append("a")
        log.topic("s.c").append("c")
        dropped = []
        real = requests.open_span

        def open_span(engine, entry, index, request):
            if entry.name == "s.c" and not dropped:
                dropped.append(entry)
                log.topic("s.c").drop()
            return real(engine, entry, index, request)

        monkeypatch.setattr(requests, "open_span", open_span)
        monkeypatch.setattr(follow, "open_span", open_span)
        assert next(iterator).text == "a"
        log.topic("s.a").append("a2")
        assert "a2" in texts(islice(iterator, 1 if begun else 2))
        assert dropped

    def test_what_only_looks_like_a_drop_is_not_passed_over(self, log):
        log.topic("s.a").append("a")
        iterator = iter(log.topic("s.*").read(follow=True, timeout=WAIT))
        assert next(iterator).text == "a"
        log.topic("s.a").append("b")
        engine = log.engine
        partition = engine.partition(engine.entry("s.a"), 0)
        for file in Path(partition.path).glob("*.seg"):
            file.rename(file.with_suffix(".away"))
        words = engine.store.tails.words
        words[partition.word + INCARNATION] += 1
        try:
            with pytest.raises(TopicNotFoundError, match=r"'s\.a' was dropped"):
                list(log.topic("s.*").read(follow=True, timeout=WAIT))
        finally:
            words[partition.word + INCARNATION] -= 1

    def test_every_topic_is_dropped_and_one_is_made(self, log):
        log.topic("s.a").append("1")
        iterator = iter(log.topic("s.*").read(follow=True, stop="latest", timeout=WAIT))
        assert next(iterator).text == "1"
        assert next(iterator, None) is None
        iterator = iter(log.topic("s.*").read(follow=True, timeout=WAIT))
        assert next(iterator).text == "1"
        log.topic("s.a").drop()
        thread = later(0.1, lambda: log.topic("s.b").append("2"))
        assert next(iterator).text == "2"
        thread.join()

    def test_bounded_scans_raise_when_a_topic_is_dropped(self, log):
        for name in ("a", "b"):
            log.topic(f"s.{name}").extend([name] * 300)
        iterator = log.topic("s.*").read().batches(10)
        next(iterator)
        log.topic("s.b").drop()
        with pytest.raises(TopicNotFoundError, match=r"The topic 's\.b' was dropped"):
            list(iterator)

    def test_stops(self, sensors):
        pattern = sensors.topic("sensors.*")
        scan = pattern.read(follow=True, stop={("sensors.a", 0): 8, ("sensors.b", 0): 3, ("sensors.b", 1): 3})
        iterator = iter(scan)
        assert len(list(islice(iterator, 12))) == 12
        sensors.topic("sensors.a").extend(["a6", "a7", "a8"])
        assert texts(iterator) == ["a6", "a7"]
        assert pattern.read(follow=True, stop="latest").count() == 15
        assert sensors.topic("*.a").read(follow=True, stop=5).count() == 5
        moment = datetime.fromtimestamp((TIME + 40) / 1e6, UTC)
        assert pattern.read(follow=True, stop=moment).count() == 8

    def test_arguments_that_fit_nothing(self, sensors):
        with pytest.raises(ValueError, match="has a partition 9"):
            list(sensors.topic("sensors.*").read(partition=9, follow=True, timeout=1))
        with pytest.raises(ValueError, match=r"and no topic matches 'nothing\.\*'"):
            list(sensors.topic("nothing.*").read(3, follow=True, timeout=1))
        assert list(sensors.topic("nothing.*").read(partition=9, follow=True, timeout=0.05)) == []

    def test_the_end_of_a_timeout_and_of_the_log(self, sensors):
        assert sensors.topic("sensors.*").read(follow=True, timeout=0.05).count() == 12
        with tailrace.open(sensors.location, "r") as reading:
            iterator = iter(reading.topic("nothing.*").read(follow=True))
            thread = later(0.1, reading.close)
            assert next(iterator, None) is None
            thread.join()

    def test_another_process_makes_topics(self, log):
        code = (
            "import sys, tailrace\n"
            "with tailrace.open(sys.argv[1], durable=False) as log:\n"
            "    for number in range(30):\n"
            "        log.topic(f's.{number:02}', partitions=2).append(str(number), partition=number % 2)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", code, log.location])
        found = texts(log.topic("s.*").read(follow=True, timeout=WAIT, limit=30))
        assert process.wait() == 0
        assert sorted(map(int, found)) == [*range(30)]

    def test_topics_come_and_go_under_a_follower(self, log):
        """Every record of a topic that stays is met once; nothing of the others disturbs it."""
        found = []
        scan = log.topic("s...").read(follow=True, order="time", timeout=WAIT)

        def read():
            for record in scan:
                found.append(record)
                if record.text == "end":
                    return

        thread = threading.Thread(target=read)
        thread.start()
        for number in range(40):
            log.topic("s.stays").append(str(number))
            passing = log.topic(f"s.{number % 5}.x")
            passing.extend(["p"] * 10)
            if number % 3 == 0:
                passing.drop()
        log.topic("s.stays").append("end")
        thread.join(WAIT)
        assert not thread.is_alive()
        assert [record.text for record in found if record.topic == "s.stays"] == [*map(str, range(40)), "end"]
        assert {record.topic for record in found} <= {"s.stays", *(f"s.{number}.x" for number in range(5))}


class TestDamage:
    def test_damage_in_one_topic_is_named(self, log):
        for name in ("a", "b", "c"):
            log.topic(f"s.{name}").extend([name] * 50)
        log.sync()
        (file,) = Path(log.location).glob("topics/*-s.b/0/*.seg")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
        for waiting in (False, True):
            seen = []
            with pytest.raises(CorruptionError) as told:
                seen.extend(log.topic("s.*").read(follow=waiting))
            assert (told.value.topic, told.value.partition) == ("s.b", 0)
            assert {record.topic for record in seen} == {"s.a"}

    @pytest.mark.parametrize("order", ["offset", "time"])
    def test_in_one_of_many_topics_what_stands_before_it_is_given(self, log, order):
        for number in range(READERS_OPEN_MAX + 6):
            for at in range(5):
                log.topic(f"s.{number:03}").append(str(at), timestamp=TIME + at)
        log.sync()
        (file,) = Path(log.location).glob("topics/*-s.010/0/*.seg")
        content = bytearray(file.read_bytes())
        at = content.index(b"3", content.index(b"2", 100))
        content[at] ^= 0xFF
        file.write_bytes(content)
        seen = []
        with pytest.raises(CorruptionError) as told:
            seen.extend(log.topic("s.*").read(order=order))
        assert told.value.topic == "s.010"
        assert [r.offset for r in seen if r.topic == "s.010"] == [*range(told.value.first)]


@pytest.mark.parametrize("order", ["offset", "time"])
def test_a_follower_of_many_keeps_few_files_open(log, order):
    topics = [log.topic(f"s.{number:03}", partitions=1) for number in range(2 * READERS_OPEN_MAX + 10)]
    iterator = iter(log.topic("s.*").read(follow=True, timeout=WAIT, order=order))

    def files():
        # Of this log: what other tests left for the collector does not count.
        readers = [each for each in gc.get_objects() if isinstance(each, Reader)]
        return sum(each.segment is not None and each.partition.context.path == log.location for each in readers)

    # One after the other, then all at once, then a few of them again and again.
    for topic in topics:
        topic.append(topic.name)
        assert next(iterator).text == topic.name
    assert 0 < files() <= READERS_OPEN_MAX
    for topic in topics:
        topic.extend([topic.name] * 3)
    assert len(list(islice(iterator, 3 * len(topics)))) == 3 * len(topics)
    for number in range(50):
        topics[number % 3].append(str(number))
        assert next(iterator).text == str(number)
    assert 3 <= files() <= READERS_OPEN_MAX


MANY = """
import json, os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, 1_024))
import tailrace

peak = 0
def counted(scan):
    global peak
    total = 0
    for record in scan:
        total += 1
        if total % 500 == 0:
            peak = max(peak, len(os.listdir("/proc/self/fd")))
    return total

topics = int(sys.argv[2])
with tailrace.open(sys.argv[1], durable=False) as log:
    for number in range(topics):
        log.topic(f"many.room{number % 7}.t{number}").extend([str(number)] * 3)
with tailrace.open(sys.argv[1], "r") as log:
    pattern = log.topic("many...")
    facts = {
        "count": pattern.read().count(),
        "last": counted(pattern.read(last=10)),
        "arrow": pattern.read(order="time").to_arrow().num_rows,
        "follow": counted(pattern.read(follow=True, limit=3 * topics)),
        "follow time": counted(pattern.read(follow=True, limit=3 * topics, order="time")),
        "follow until": counted(pattern.read(follow=True, limit=3 * topics, stop="2100-01-01T00:00Z")),
    }
    for order in ("offset", "time"):
        for reverse in (False, True):
            facts[f"{order} {reverse}"] = counted(pattern.read(order=order, reverse=reverse))
facts["peak"] = peak
print(json.dumps(facts))
"""


def test_a_thousand_topics_under_the_usual_limit_of_files(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path / "log"), "1000"], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts.pop("peak") < 2 * READERS_OPEN_MAX
    assert facts.pop("last") == 10
    assert set(facts.values()) == {3_000}
