"""Processing: records through a function into another topic, and cursors in transactions: whole or absent."""

from __future__ import annotations

import signal
import threading
import time
from datetime import UTC, datetime

import pytest

import tailrace
from tailrace import errors
from tests.processes import start

LONG = 30.0


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


def texts(log, topic="out"):
    return [record.text for record in log.topic(topic).read()]


def exists(log, topic):
    return topic in [info.name for info in log.topics()]


def cursor(log, group="g", partition=0):
    return {each.partition: each.position for each in log.group(group).partitions}.get(partition)


def upper(record):
    return record.text.upper()


class TestProcess:
    def test_an_identity(self, log):
        log.topic("in").extend(["a", "b", "c"])
        assert log.process("in", lambda record: record.value, "out", group="g", stop="now") == 3
        assert texts(log) == ["a", "b", "c"]
        assert cursor(log) == 3
        assert log.process("in", lambda record: record.value, "out", group="g", stop="now") == 0
        log.topic("in").append("d")
        assert log.process("in", lambda record: record.value, "out", group="g", stop="now") == 1
        assert texts(log) == ["a", "b", "c", "d"]

    @pytest.mark.parametrize(
        ("made", "expected"),
        [(None, []), (b"x", [b"x"]), ("ä", ["ä".encode()]), (bytearray(b"y"), [b"y"]), (memoryview(b"z"), [b"z"]),
         (b"", [b""]), ("", [b""]), ([], []), ([b"x", "y"], [b"x", b"y"]), ([None, b"x", None], [b"x"])],
    )  # fmt: skip
    def test_what_a_function_may_return(self, log, made, expected):
        log.topic("in").append("a")
        assert log.process("in", lambda _: made, "out", group="g", stop="now") == 1
        assert cursor(log) == 1
        assert ([record.value for record in log.topic("out").read()] if expected else exists(log, "out")) == (
            expected or False
        )

    @pytest.mark.parametrize("made", [5, 1.5, {"a": 1}, ("x",), {"x"}, [["x"]], [5], object(), True])
    def test_what_it_may_not_return(self, log, made):
        log.topic("in").extend(["a", "b"])
        with pytest.raises(TypeError, match=r"made a \w+ of in\[0\]@0: return None"):
            log.process("in", lambda _: made, "out", group="g", stop="now")
        assert not exists(log, "out")
        assert cursor(log) is None

    def test_a_generator_is_named(self, log):
        log.topic("in").append("a")
        with pytest.raises(TypeError, match="generator"):
            log.process("in", lambda _: (each for each in "ab"), "out", group="g", stop="now")

    def test_key_headers_and_time_are_kept(self, log):
        time_us = 1_700_000_000_000_000
        log.topic("in").append("a", key="k", headers={"h": b"1"}, timestamp=time_us)
        log.topic("in").append("b", timestamp=time_us + 1)
        log.process("in", lambda record: [upper(record), record.value], "out", group="g", stop="now")
        found = [(each.key, dict(each.headers), each.timestamp_us, each.text) for each in log.topic("out").read()]
        assert found == [
            (b"k", {"h": b"1"}, time_us, "A"),
            (b"k", {"h": b"1"}, time_us, "a"),
            (None, {}, time_us + 1, "B"),
            (None, {}, time_us + 1, "b"),
        ]

    def test_a_record_brings_its_own(self, log):
        log.topic("in").append("a", key="k", headers={"h": b"1"})

        def change(record):
            other = record._replace(value=b"v", key=b"other", headers={"n": b"2"}, timestamp_us=1_700_000_000_000_000)
            # Text is taken as UTF-8, here as everywhere.
            return [other, record._replace(value=record.text.upper(), key="käse", headers={"n": "ü"})]

        log.process("in", change, "out", group="g", stop="now")
        one, two = log.topic("out").read()
        assert (one.key, one.value, dict(one.headers)) == (b"other", b"v", {"n": b"2"})
        assert one.timestamp == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
        assert (two.key, two.value, dict(two.headers)) == ("käse".encode(), b"A", {"n": "ü".encode()})

    def test_a_record_with_something_else_in_it(self, log):
        log.topic("in").append("a")
        for change in ({"value": 5}, {"key": 5}, {"timestamp_us": "x"}, {"headers": {"h": 5}}, {"headers": 5}):
            with pytest.raises((TypeError, ValueError)) as caught:
                log.process("in", lambda record: record._replace(**change), "out", group="g", stop="now")  # noqa: B023
            assert len(str(caught.value)) > 20
        assert not exists(log, "out")
        assert cursor(log) is None

    def test_a_tombstone(self, log):
        log.topic("in").append(None, key="k")
        log.topic("in").append("a", key="k")
        log.process("in", lambda record: record, "out", group="g", stop="now")
        assert [(each.key, each.value) for each in log.topic("out").read()] == [(b"k", None), (b"k", b"a")]
        # A function that gives the value of a tombstone gives None, which drops it.
        log.process("in", lambda record: record.value, "other", group="h", stop="now")
        assert texts(log, "other") == ["a"]

    def test_a_record_that_is_too_large(self, log):
        log.topic("in").extend(["a", "b"])
        log.topic("out", max_record_bytes=10)
        with pytest.raises(errors.RecordTooLargeError):
            log.process("in", lambda record: record.value * 11, "out", group="g", stop="now")
        assert texts(log) == []
        assert cursor(log) is None

    def test_keys_choose_partitions_and_order_is_kept(self, log):
        source = log.topic("in", partitions=3)
        log.topic("out", partitions=4)
        keys = [str(number % 20) for number in range(400)]
        source.extend([str(number) for number in range(400)], keys=keys)
        assert log.process("in", lambda record: record.value, "out", group="g", stop="now", batch=17) == 400
        seen: dict[bytes, list[int]] = {}
        places: dict[bytes, set[int]] = {}
        for record in log.topic("out").read():
            seen.setdefault(record.key, []).append(int(record.text))
            places.setdefault(record.key, set()).add(record.partition)
        assert sorted(number for numbers in seen.values() for number in numbers) == list(range(400))
        assert all(numbers == sorted(numbers) for numbers in seen.values())
        assert all(len(each) == 1 for each in places.values())

    def test_a_function_that_raises_ends_it_behind_what_precedes(self, log):
        log.topic("in").extend([str(number) for number in range(10)])

        def fail(record):
            if record.offset == 7:
                raise KeyError(record.offset)
            return record.value

        with pytest.raises(KeyError):
            log.process("in", fail, "out", group="g", stop="now", batch=3)
        assert texts(log) == ["0", "1", "2", "3", "4", "5", "6"]
        assert cursor(log) == 7
        assert log.group("g").members == ()
        assert log.process("in", lambda record: record.value, "out", group="g", stop="now", batch=3) == 3
        assert texts(log) == [str(number) for number in range(10)]

    def test_what_a_batch_takes(self, log):
        log.topic("in").extend([str(number) for number in range(10)])
        seen = []

        def look(record):
            seen.append((record.offset, cursor(log) or 0))
            return record.value

        assert log.process("in", look, "out", group="g", stop="now", batch=4) == 10
        assert seen == [(offset, offset // 4 * 4) for offset in range(10)]

    def test_stops(self, log):
        base = 1_700_000_000_000_000
        log.topic("in").extend(list("abcd"), timestamps=[base + number * 1_000_000 for number in range(4)])
        assert log.process("in", upper, "out", group="g", stop=1) == 1
        assert log.process("in", upper, "out", group="g", stop=datetime.fromtimestamp(base / 1e6 + 2, UTC)) == 1
        assert log.process("in", upper, "out", group="g", stop={0: 3}) == 1
        assert log.process("in", upper, "out", group="g", stop="now") == 1
        assert texts(log) == ["A", "B", "C", "D"]

    def test_goes_on_until_the_log_is_closed(self, tmp_path):
        log = tailrace.open(tmp_path / "log", durable=False)
        log.topic("in").append("a")
        done = []
        thread = threading.Thread(target=lambda: done.append(log.process("in", upper, "out", group="g")))
        thread.start()
        out = iter(log.topic("out").read(follow=True, timeout=LONG))
        assert next(out).text == "A"
        log.topic("in").append("b")
        assert next(out).text == "B"
        log.close()
        thread.join(LONG)
        assert done == [2]

    def test_several_members_share_the_work(self, log):
        log.topic("in", partitions=4).extend([str(n) for n in range(400)], keys=[str(n) for n in range(400)])
        done = []

        def work():
            def slow(record):
                time.sleep(0.0002)
                return record.value

            done.append(log.process("in", slow, "out", group="g", stop="now", batch=10))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert sum(done) == 400
        assert sorted(map(int, texts(log))) == list(range(400))
        assert log.group("g").lag_records == 0

    def test_patterns_and_lists_as_sources(self, log):
        for name in ("in.a", "in.b", "other"):
            log.topic(name).append(name)
        assert log.process("in.*", lambda record: record.value, "out", group="g", stop="now") == 2
        assert sorted(texts(log)) == ["in.a", "in.b"]
        assert log.process(["in.a", "other"], lambda record: record.value, "out2", group="h", stop="now") == 2
        assert sorted(texts(log, "out2")) == ["in.a", "other"]

    @pytest.mark.parametrize("source", ["out", ["in", "out"], "...", "*"])
    def test_reading_what_it_writes_is_refused(self, log, source):
        log.topic("in").append("a")
        with pytest.raises(ValueError, match="would read what it writes"):
            log.process(source, upper, "out", group="g", stop="now")
        assert log.groups() == []
        assert not exists(log, "out")

    @pytest.mark.parametrize(
        ("arguments", "settings", "kind", "said"),
        [(("in", "upper", "out"), {}, TypeError, "function"), (("in", None, "out"), {}, TypeError, "function"),
         (("in", upper, "a.*"), {}, errors.InvalidNameError, "pattern"),
         (("in", upper, "__out"), {}, errors.InvalidNameError, "__out"),
         (("in", upper, ""), {}, errors.InvalidNameError, "empty"), (("in", upper, None), {}, TypeError, "topic name"),
         (("in", upper, "out"), {"batch": 0}, ValueError, "batch"),
         (("in", upper, "out"), {"batch": "5"}, TypeError, "batch"),
         (("in", upper, "out"), {"on_error": "ignore"}, ValueError, "'raise', 'skip' or 'dead-letter'"),
         (("in", upper, "out"), {"on_error": None}, ValueError, "on_error=None"),
         (("in", upper, "a" * 252), {"on_error": "dead-letter"}, errors.InvalidNameError, "bytes"),
         (("in", upper, "out"), {"stop": "soon"}, ValueError, "stop"),
         (("in", upper, "out"), {"group": "a..b"}, errors.InvalidNameError, "group"),
         ((5, upper, "out"), {}, TypeError, "topics"), (([], upper, "out"), {}, ValueError, "topics"),
         (("missing", upper, "out"), {}, errors.TopicNotFoundError, "missing")],
    )  # fmt: skip
    def test_wrong_arguments(self, log, arguments, settings, kind, said):
        log.topic("in").append("a")
        with pytest.raises(kind, match=said):
            log.process(*arguments, **{"group": "g", "stop": "now", **settings})
        assert log.groups() == []
        assert [info.name for info in log.topics()] == ["in"]

    def test_a_read_only_handle_cannot(self, log):
        log.topic("in").append("a")
        with tailrace.open(log.location, "r") as reader, pytest.raises(errors.ReadOnlyError):
            reader.process("in", upper, "out", group="g", stop="now")

    def test_a_target_with_more_partitions_than_a_transaction_takes(self, log):
        names = [str(number) for number in range(900)]
        log.topic("in").extend(names, keys=names)
        log.topic("out", partitions=260)
        assert log.process("in", lambda record: record.value, "out", group="g", stop="now") == 900
        assert sorted(map(int, texts(log))) == list(range(900))
        assert cursor(log) == 900

    def test_more_of_one_record_than_a_transaction_takes(self, log):
        log.topic("in").append("a")
        log.topic("out", partitions=300)
        keys = [str(number) for number in range(2_000)]
        with pytest.raises(errors.LimitError, match="256"):
            log.process("in", lambda record: [record._replace(key=key) for key in keys], "out", group="g", stop="now")
        assert texts(log) == []

    def test_a_chain(self, log):
        log.topic("a").extend([str(number) for number in range(50)])
        log.process("a", lambda record: [record.value] * 2, "b", group="one", stop="now", batch=7)
        log.process("b", lambda record: None if int(record.text) % 2 else record.value, "c", group="two", stop="now")
        assert texts(log, "c") == [str(number) for number in range(0, 50, 2) for _ in range(2)]

    def test_the_function_may_use_the_log(self, log):
        log.topic("in").extend(["a", "b"])

        def look(record):
            log.topic("seen").append(record.value)
            return [each.value for each in log.topic("in").read(limit=1)]

        assert log.process("in", look, "out", group="g", stop="now") == 2
        assert texts(log) == ["a", "a"]

    def test_an_eviction_stops_it_and_nothing_comes_twice(self, log):
        log.topic("in").extend([str(number) for number in range(10)])

        def evicted(record):
            if record.offset == 5:
                log.evict_member("g", log.group("g").members[0].id)
            return record.value

        with pytest.raises(errors.PartitionLostError):
            log.process("in", evicted, "out", group="g", stop="now", batch=4)
        assert texts(log) == ["0", "1", "2", "3"]
        log.process("in", lambda record: record.value, "out", group="g", stop="now", batch=4)
        assert texts(log) == [str(number) for number in range(10)]

    @pytest.mark.parametrize("at", ["journal-write", "journal-sync", "write"])
    def test_killed_at_any_point_nothing_comes_twice(self, tailrace_log, tailrace_faults, at):
        log = tailrace_log
        log.topic("in").extend([str(number) for number in range(40)])
        log.topic("out", partitions=1)

        def work():
            log.process("in", lambda record: record.value, "out", group="g", stop="now", batch=5)

        deaths = 0
        for n in range(1, 6):
            ending = tailrace_faults.kill(work, at=at, n=n, check=False)
            deaths += ending.killed
            found = texts(log)
            assert found == [str(number) for number in range(len(found))]
            assert (cursor(log) or 0) == len(found)
            assert len(found) % 5 == 0
        assert deaths >= 2
        work()
        assert texts(log) == [str(number) for number in range(40)]

    def test_killed_from_outside_again_and_again(self, log):
        total = 4_000
        log.topic("in", partitions=2).extend([str(n) for n in range(total)], keys=[str(n) for n in range(total)])
        log.topic("out", partitions=2)
        program = """
            import sys, tailrace
            with tailrace.open(sys.argv[1]) as log:
                print("ready", flush=True)
                log.process("in", lambda record: record.value, "out", group="g", stop="now", batch=50)
        """
        kills = 0
        for number in range(12):
            process = start(program, log.location)
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.004 * number)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += process.returncode == -signal.SIGKILL
        assert kills > 3
        log.process("in", lambda record: record.value, "out", group="g", stop="now")
        assert sorted(map(int, texts(log))) == list(range(total))
