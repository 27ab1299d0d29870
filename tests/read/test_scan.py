"""Scans: what a read gives, in which order, from where, and what it says when it cannot.

Every log is real: records are appended through the public interface, damage is bytes changed in the files.
"""

from __future__ import annotations

import pickle
import re
import tomllib
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest

import tailrace
from tailrace.errors import (
    ClosedError,
    CorruptionError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)

TIME = 1_700_000_000_000_000


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


def numbered(topic, count, frame=7, partition=0, time=TIME, step=1, first=0):
    """Append `count` records with their number as value, `frame` at a time, one `step` of microseconds apart."""
    for at in range(first, first + count, frame):
        numbers = range(at, min(at + frame, first + count))
        topic.extend(
            [str(number) for number in numbers],
            timestamps=[time + number * step for number in numbers],
            partition=partition,
        )


def values(scan):
    return [int(record.value) for record in scan]


def segments(topic, partition=0):
    found = Path(topic.log.location).glob(f"topics/*-{topic.name}/{partition}/*.seg")
    return sorted(found)


class TestForms:
    def test_records_batches_and_arrow_hold_the_same(self, log):
        topic = log.topic("orders", partitions=2)
        topic.extend([b"a", b"", b"c"], keys=[b"k", None, b"k2"], headers=[{"h": b"1"}, None, {}], partition=0)
        topic.append(None, key=b"gone", partition=1)
        scan = topic.read()
        records = list(scan)
        assert [(record.partition, record.offset, record.key, record.value) for record in records] == [
            (0, 0, b"k", b"a"),
            (0, 1, None, b""),
            (0, 2, b"k2", b"c"),
            (1, 0, b"gone", None),
        ]
        assert dict(records[0].headers) == {"h": b"1"}
        assert [record for batch in scan.batches() for record in batch] == records
        table = scan.to_arrow()
        assert table.column("value").to_pylist() == [record.value for record in records]
        assert table.column("offset").to_pylist() == [0, 1, 2, 0]
        assert table.column("timestamp").to_pylist() == [record.timestamp for record in records]
        assert scan.count() == 4
        assert scan.first() == records[0]

    def test_a_scan_is_lazy_and_starts_anew_each_time(self, log):
        topic = log.topic("orders")
        scan = topic.read()
        with pytest.raises(TopicNotFoundError):
            list(scan)
        topic.append("1")
        assert values(scan) == [1]
        topic.append("2")
        assert values(scan) == [1, 2]

    def test_one_iteration_sees_the_end_that_stood_when_it_began(self, log):
        topic = log.topic("orders")
        numbered(topic, 20, frame=1)
        iterator = iter(topic.read())
        assert next(iterator).value == b"0"
        numbered(topic, 5, first=20)
        assert len(list(iterator)) == 19

    def test_pandas_polars_and_json(self, log):
        topic = log.topic("orders")
        topic.extend([{"id": 1, "name": "a"}, {"id": 2}], json=True)
        assert topic.read().to_arrow(json=True).column("id").to_pylist() == [1, 2]
        assert topic.read().to_polars(json=True)["name"].to_list() == ["a", None]
        assert list(topic.read().to_pandas(json=True)["id"]) == [1, 2]
        assert topic.read().to_polars()["value"].to_list()[1] == b'{"id":2}'

    def test_duckdb_and_polars_read_a_scan_as_it_is(self, log):
        topic = log.topic("orders", partitions=2)
        numbered(topic, 100, partition=0)
        numbered(topic, 50, partition=1)
        scan = topic.read()
        assert duckdb.sql('select count(*), max("offset") from scan').fetchall() == [(150, 99)]
        assert polars.DataFrame(scan).height == 150
        reader = pa.RecordBatchReader.from_stream(scan)
        assert sum(batch.num_rows for batch in reader) == 150

    def test_duckdb_gives_times_keys_and_json_to_python(self, log):
        topic = log.topic("orders")
        topic.extend([{"id": 1}, {"name": "a"}], keys=["k", "l"], json=True, timestamps=[TIME, TIME + 1])
        scan = topic.read()
        assert scan.count() == 2
        rows = duckdb.sql("select decode(key), decode(value)->>'id', timestamp from scan").fetchall()
        assert [row[:2] for row in rows] == [("k", "1"), ("l", None)]
        assert [row[2] for row in rows] == [record.timestamp for record in topic.read()]
        topic.append(b"\xff")
        assert duckdb.sql("select try(decode(value))->>'id' from scan").fetchall() == [("1",), (None,), (None,)]

    def test_the_extra_for_duckdb_brings_what_its_times_need(self):
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
        packages = {re.match("[a-z]+", text)[0] for text in project["optional-dependencies"]["sql"]}
        assert packages == {"duckdb", "pyarrow", "pytz"}

    def test_batches_are_cut_at_the_limit(self, log):
        topic = log.topic("orders")
        numbered(topic, 50, frame=20)
        sizes = [len(batch) for batch in topic.read().batches(max_records=15)]
        assert sum(sizes) == 50
        assert max(sizes) == 15
        assert [int(record.value) for batch in topic.read().batches(15) for record in batch] == [*range(50)]
        with pytest.raises(ValueError, match="max_records"):
            topic.read().batches(0)

    def test_a_batch_of_large_records_stays_small(self, log):
        topic = log.topic("blobs")
        for _ in range(6):
            topic.append(bytes(5 << 20))
        assert [len(batch) for batch in topic.read().batches()] == [4, 2]

    def test_repr_says_what_is_read(self, log):
        scan = log.topic("orders").read(start=5, limit=3, order="time")
        assert repr(scan) == "<Scan of 'orders': from 5, at most 3, by time>"


class TestPlaces:
    def test_offsets(self, log):
        topic = log.topic("orders")
        numbered(topic, 30)
        assert values(topic.read(12, 15)) == [12, 13, 14]
        assert values(topic.read({0: 28})) == [28, 29]
        assert values(topic.read(stop=0)) == []
        assert values(topic.read(30)) == []
        assert values(topic.read(10, 5)) == []
        assert values(topic.read(27, 1000)) == [27, 28, 29]
        assert values(topic.read("latest")) == []
        assert topic.read(12, 15).count() == 3

    def test_an_offset_outside_says_what_there_is(self, log):
        topic = log.topic("orders", segment_bytes=4096)
        numbered(topic, 1000, frame=50)
        topic.trim(400)
        with pytest.raises(OffsetOutOfRangeError) as caught:
            list(topic.read(100))
        assert (caught.value.earliest, caught.value.latest) == (400, 1000)
        with pytest.raises(OffsetOutOfRangeError) as caught:
            list(topic.read(1001))
        assert (caught.value.earliest, caught.value.latest) == (400, 1000)
        assert values(topic.read())[0] == 400

    def test_an_offset_over_many_partitions_shows_the_mapping(self, log):
        topic = log.topic("orders", partitions=3)
        numbered(topic, 5, partition=1)
        with pytest.raises(ValueError, match=r"\{0: 2, 1: 2, \.\.\.\}"):
            list(topic.read(2))
        assert values(topic.read(2, partition=1)) == [2, 3, 4]
        assert values(topic.read({1: 3})) == [3, 4]
        with pytest.raises(ValueError, match="no partition 7"):
            list(topic.read({7: 0}))
        with pytest.raises(ValueError, match="0 to 2"):
            list(topic.read(partition=3))

    def test_times(self, log):
        topic = log.topic("orders")
        numbered(topic, 100, step=1_000_000)
        moment = datetime.fromtimestamp(TIME // 1_000_000 + 40, UTC)
        assert values(topic.read(moment, moment + timedelta(seconds=3))) == [40, 41, 42]
        assert values(topic.read(moment.isoformat(), limit=1)) == [40]
        assert values(topic.read("-10m")) == []
        topic.append("100")
        assert values(topic.read("-10m")) == [100]
        assert values(topic.read(last="1h")) == [100]
        with pytest.raises(ValueError, match="zone"):
            topic.read(datetime(2026, 1, 1))  # noqa: DTZ001  # the zone is what is missing

    def test_a_date_is_its_midnight_in_utc(self, log):
        topic = log.topic("orders")
        day = datetime(2026, 11, 15, tzinfo=UTC)
        times = [day - timedelta(microseconds=1), day, day + timedelta(hours=23), day + timedelta(days=1)]
        topic.extend(["before", "midnight", "evening", "after"], timestamps=times)
        for first, second in (("2026-11-15", "2026-11-16"), (day.date(), day.date() + timedelta(days=1))):
            assert [record.text for record in topic.read(first, second)] == ["midnight", "evening"]
            assert topic.offset_at(first) == 1
            assert [record.text for record in log.consumer("orders", "g", start=first, stop=second)] == [
                "midnight",
                "evening",
            ]
            log.drop_group("g")
        assert topic.trim("2026-11-15") == 1
        position = topic.append("dated", timestamp=day.date())
        assert topic.get(position.offset).timestamp == day

    def test_wrong_arguments(self, log):
        topic = log.topic("orders")
        for arguments in (
            {"start": "yesterday"},
            {"order": "random"},
            {"last": -1},
            {"limit": -1},
            {"partition": []},
            {"last": 5, "start": 3},
            {"reverse": True, "follow": True},
            {"timeout": 3},
        ):
            with pytest.raises(ValueError, match=r"\S"):
                topic.read(**arguments)
        for arguments in ({"last": 1.5}, {"start": 1.5}, {"partition": "0"}):
            with pytest.raises(TypeError):
                topic.read(**arguments)

    def test_positions_say_where_to_go_on(self, log):
        topic = log.topic("orders", partitions=2)
        numbered(topic, 20, partition=0)
        numbered(topic, 20, partition=1)
        scan = topic.read()
        assert scan.positions == {}
        iterator = iter(scan)
        taken = [next(iterator) for _ in range(9)]
        assert scan.positions == {("orders", 0): 9, ("orders", 1): 0}
        rest = list(topic.read(scan.positions))
        assert [*taken, *rest] == list(topic.read())
        batches = scan.batches(max_records=25)
        first = next(batches)
        assert [*first, *topic.read(scan.positions)] == list(topic.read())
        list(batches)
        assert scan.positions == {("orders", 0): 20, ("orders", 1): 20}
        list(topic.read(limit=3))

    def test_positions_of_a_merge_and_of_a_reverse_scan(self, log):
        topic = log.topic("orders", partitions=2)
        numbered(topic, 20, partition=0, step=2)
        numbered(topic, 20, partition=1, step=2, time=TIME + 1)
        scan = topic.read(order="time")
        iterator = iter(scan)
        taken = [next(iterator) for _ in range(7)]
        assert scan.positions == {("orders", 0): 4, ("orders", 1): 3}
        assert [*taken, *topic.read(scan.positions, order="time")] == list(topic.read(order="time"))
        scan = topic.read(partition=1, reverse=True)
        taken = [*islice(scan, 6)]
        left = scan.positions["orders", 1]
        assert [*taken, *topic.read(stop={1: left}, partition=1, reverse=True)] == [*topic.read(partition=1)][::-1]


def damaged(log):
    """A topic of 40 frames with a byte changed in the middle of them."""
    topic = log.topic("orders")
    numbered(topic, 2_000, frame=50)
    log.sync()
    (file,) = segments(topic)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    return topic


def read_records(topic, good):
    for record in topic.read():
        good.append(int(record.value))


def read_batches(topic, good):
    for batch in topic.read().batches(max_records=70):
        good += [int(record.value) for record in batch]


def read_arrow(topic, good):
    for batch in pa.RecordBatchReader.from_stream(topic.read()):
        good += [int(value) for value in batch.column("value").to_pylist()]


class TestDamage:
    @pytest.mark.parametrize("way", [read_records, read_batches])
    def test_damage_is_an_error_that_names_the_range(self, log, way):
        topic = damaged(log)
        good: list[int] = []
        with pytest.raises(CorruptionError) as caught:
            way(topic, good)
        error = caught.value
        assert (error.topic, error.partition, error.last - error.first) == ("orders", 0, 49)
        assert good == [*range(error.first)]
        assert values(topic.read(error.last + 1)) == [*range(error.last + 1, 2_000)]
        assert values(topic.read(stop=error.first)) == [*range(error.first)]

    def test_arrow_and_reverse_scans_meet_it_too(self, log):
        topic = damaged(log)
        for scan in (topic.read(), topic.read(reverse=True), topic.read(order="time")):
            with pytest.raises(CorruptionError):
                scan.to_arrow()
        with pytest.raises(CorruptionError):
            values(topic.read(reverse=True))
        good: list[int] = []
        with pytest.raises((CorruptionError, OSError, pa.ArrowException), match="damaged"):
            read_arrow(topic, good)
        assert good == [*range(len(good))]
        assert good

    def test_asked_again_it_says_the_same(self, log):
        iterator = iter(damaged(log).read())
        for _ in range(2):
            with pytest.raises(CorruptionError):
                list(iterator)


class TestMissingSegments:
    """A file that somebody removed is a named range, however the records are asked for."""

    @pytest.fixture
    def topic(self, log):
        topic = log.topic("orders", segment_bytes=4_096)
        for number in range(60):
            topic.append(b"x" * 500, timestamp=TIME + number)
        assert len(segments(topic)) == 10
        return topic

    @pytest.mark.parametrize(("removed", "first", "last"), [(0, 0, 5), (1, 6, 11), (-1, 54, 59)])
    @pytest.mark.parametrize(
        "ask",
        [
            lambda topic: list(topic.read()),
            lambda topic: topic.read().count(),
            lambda topic: topic.read(2).count(),
            lambda topic: list(topic.read(reverse=True)),
            lambda topic: topic.read().to_arrow(),
            lambda topic: list(topic.read(last=60)),
            lambda topic: list(topic.read(datetime.fromtimestamp(TIME // 10**6, UTC))),
            lambda topic: topic.read(datetime.fromtimestamp(TIME // 10**6, UTC)).count(),
        ],
    )
    def test_a_missing_segment_is_named(self, topic, removed, first, last, ask):
        path = segments(topic)[removed]
        path.unlink()
        with pytest.raises(CorruptionError, match="segment is missing") as caught:
            ask(topic)
        error = caught.value
        assert (error.topic, error.partition, error.first, error.last) == ("orders", 0, first, last)
        assert error.path == str(path)

    def test_what_is_beside_it_can_be_read_and_counted(self, topic):
        segments(topic)[1].unlink()
        assert topic.read(stop=6).count() == len(list(topic.read(stop=6))) == 6
        assert topic.read(12).count() == len(list(topic.read(12))) == 48
        with pytest.raises(CorruptionError, match="offsets 6 to 11"):
            topic.get(7)
        assert topic.get(12).offset == 12

    def test_a_time_in_front_of_a_missing_segment_leads_to_it(self, topic):
        paths = segments(topic)
        assert topic.offset_at(TIME + 6) == 6
        paths[0].unlink()
        assert topic.offset_at(TIME) == 0
        assert topic.offset_at(TIME + 8) == 8
        paths[-1].unlink()
        assert topic.offset_at(TIME + 1_000) == 54

    def test_a_trim_is_no_damage(self, topic):
        scan = topic.read()
        topic.trim(8)
        assert scan.count() == len(list(scan)) == 52
        assert topic.offset_at(TIME) == 8
        segments(topic)[0].unlink()
        with pytest.raises(CorruptionError, match="offsets 8 to 11") as caught:
            scan.count()
        assert caught.value.path == str(segments(topic)[0].parent)

    def test_counting_after_the_close_is_refused(self, log, topic):
        with tailrace.open(log.location) as other:
            scan = other.topic("orders").read()
        with pytest.raises(ClosedError):
            scan.count()


class TestPositionsAsStart:
    def test_empty_positions_are_the_default_start(self, log):
        topic = log.topic("orders")
        numbered(topic, 5)
        scan = topic.read(topic.read().positions)
        assert values(scan) == [0, 1, 2, 3, 4]
        assert values(topic.read({}, last=2)) == [3, 4]

    def test_positions_of_another_topic_are_refused(self, log):
        topic, other = log.topic("orders"), log.topic("clicks")
        numbered(topic, 5)
        numbered(other, 3)
        scan = other.read()
        list(scan)
        with pytest.raises(ValueError, match="positions of 'clicks' and none of 'orders'"):
            topic.read(scan.positions)
        assert values(topic.read({**scan.positions, ("orders", 0): 3})) == [3, 4]

    @pytest.mark.parametrize("start", [{("orders",): 1}, {("orders", 0): 1, 0: 1}, {(0, "orders"): 1}])
    def test_malformed_positions_are_refused(self, log, start):
        with pytest.raises(TypeError, match="positions of a scan"):
            log.topic("orders").read(start)

    @pytest.mark.parametrize("start", [{("orders", "x"): 1}, {("orders", 0): "x"}])
    def test_places_in_positions_are_numbers(self, log, start):
        with pytest.raises(TypeError, match="partition: offset"):
            log.topic("orders").read(start)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"follow": 1}, "follow must be True or False, not 1"),
        ({"reverse": "no"}, "reverse must be True or False"),
        ({"partition": {0: 1}}, "not dict"),
        ({"partition": {0}}, "not set"),
        ({"partition": memoryview(b"ab")}, "not memoryview"),
        ({"partition": bytearray(b"ab")}, "not bytearray"),
    ],
)
def test_switches_and_partitions_have_their_types(log, arguments, said):
    with pytest.raises(TypeError, match=said):
        log.topic("orders").read(**arguments)


def test_scans_and_batches_do_not_pickle(log):
    topic = log.topic("orders")
    numbered(topic, 3)
    scan = topic.read()
    with pytest.raises(TypeError, match=r"pickle its Topic and call read\(\)"):
        pickle.dumps(scan)
    with pytest.raises(TypeError, match="list of its records"):
        pickle.dumps(next(scan.batches()))
