"""What engines ask of a log besides parts: some columns only, where topics stand, and to be told of progress."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from tailrace.bulk import Survey, TopicBounds, plan, plans, read, read_arrow, record_progress
from tailrace.disk.files import Files
from tailrace.errors import CorruptionError
from tailrace.read.arrow import schema


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


class TestColumns:
    @pytest.fixture
    def topic(self, log):
        topic = log.topic("orders")
        topic.extend([str(n) for n in range(500)], keys=[str(n) for n in range(500)])
        for number in range(100):
            topic.append(f"single {number}", headers={"n": str(number)})
        topic.append(None, key="gone")
        return topic

    @pytest.mark.parametrize(
        "names",
        [("value",), ("offset", "key"), ("headers", "timestamp"), ("topic", "partition"), tuple(schema().names)],
    )
    def test_only_these_in_this_order(self, log, topic, names):
        for start, stop in ((0, 601), (490, 520), (505, 600)):
            (part,) = plan(log, "orders", start, stop)
            whole, some = read_arrow(part).read_all(), read_arrow(part, names).read_all()
            assert some.schema.names == list(names)
            assert some.num_rows == stop - start
            for name in names:
                assert some.column(name).to_pylist() == whole.column(name).to_pylist()

    def test_a_column_that_does_not_exist(self, log, topic):
        with pytest.raises(ValueError, match="no column 'vlaue': there are topic, partition"):
            read_arrow(plan(log, "orders")[0], ["vlaue"])

    def test_the_bytes_of_a_frame_are_not_copied(self, log):
        log.topic("orders").extend([b"x" * 1_000] * 1_000)
        before = pa.total_allocated_bytes()
        batches = list(read_arrow(plan(log, "orders")[0], ["value"]))
        assert sum(batch.num_rows for batch in batches) == 1_000
        assert pa.total_allocated_bytes() - before < 100_000


class TestLargeParts:
    """A part of a megabyte and more is read through memory where its file lies on a disk."""

    @pytest.fixture
    def part(self, log):
        topic = log.topic("orders")
        for number in range(4):
            topic.extend([f"{number}{at}".encode() * 100 for at in range(2_000)])
        (part,) = plan(log, "orders")
        assert part.bytes > plans.MAPPED_BYTES_MIN
        return part

    def test_the_same_either_way(self, part, monkeypatch):
        mapped = read_arrow(part).read_all()
        assert mapped.num_rows == 8_000
        monkeypatch.setattr(plans, "major", lambda device: 0)
        assert read_arrow(part).read_all().equals(mapped)

    def test_a_file_that_is_cut_short_is_damaged(self, part):
        size = Path(part.path).stat().st_size
        os.truncate(part.path, size // 2)
        with pytest.raises(CorruptionError) as caught:
            read_arrow(part).read_all()
        assert 0 < caught.value.first <= caught.value.last < 8_000

    def test_a_file_that_is_removed_meanwhile_is_read_to_its_end(self, part):
        batches = iter(read_arrow(part, ["value"], 1_000))
        rows = next(batches).num_rows
        os.unlink(part.path)
        assert rows + sum(batch.num_rows for batch in batches) == 8_000

    def test_a_segment_that_is_sealed_meanwhile(self, log, part):
        batches = iter(read_arrow(part, ["value"], 1_000))
        rows = next(batches).num_rows
        before = Path(part.path).stat().st_size
        log.topic("orders").alter(segment_bytes="4KiB")
        log.topic("orders").append(b"rolls")
        assert Path(part.path).stat().st_size != before
        assert rows + sum(batch.num_rows for batch in batches) == 8_000


class TestPlanning:
    def test_only_the_segments_of_a_range_are_opened(self, log, monkeypatch):
        from tailrace.disk.reader import Reader

        topic = log.topic("orders", segment_bytes="4KiB")
        for number in range(40):
            topic.extend([str(number) * 50] * 20)
        assert len({part.path for part in plan(log, "orders")}) > 10
        opened = []
        look = Reader._open
        monkeypatch.setattr(Reader, "_open", lambda self, base: opened.append(base) or look(self, base))
        parts = plan(log, "orders", 390, 400)
        assert [(part.first, part.stop) for part in parts] == [(390, 400)]
        assert len(set(opened)) == 1

    @pytest.mark.parametrize(("start", "stop"), [(0, 3), (0, 2), (1, 3), (1, 2)])
    def test_of_many_small_partitions_nothing_is_opened(self, log, monkeypatch, start, stop):
        topic = log.topic("orders", partitions=20)
        for index in range(20):
            topic.extend([f"{index}a", f"{index}b"], partition=index)
            topic.append(f"{index}c", partition=index)
        wanted = dict.fromkeys(range(20), start), dict.fromkeys(range(20), stop)
        asked = []
        for name in ("open", "list_directory"):
            real = getattr(Files, name)
            monkeypatch.setattr(
                Files, name, lambda self, path, real=real, **how: asked.append(path) or real(self, path, **how)
            )

        def asked_for_segments():
            """What the background threads of the log open meanwhile, such as its statistics, is no part of a plan."""
            return [path for path in asked if path.startswith(f"{log.location}/topics/")]

        parts = plan(log, "orders", *wanted)
        assert asked_for_segments() == []
        with monkeypatch.context() as patch:
            patch.setattr(plans, "_plan_newest", lambda engine, span, now: None)
            slow = plan(log, "orders", *wanted)
        assert asked_for_segments()
        assert [part._replace(moment=0) for part in parts] == [part._replace(moment=0) for part in slow]
        monkeypatch.undo()
        texts = [record.text for part in parts for batch in read(part) for record in batch]
        assert texts == [f"{index}{letter}" for index in range(20) for letter in "abc"[start:stop]]

    def test_a_newest_segment_that_is_missing_is_named(self, log):
        topic = log.topic("orders")
        topic.append("a")
        (part,) = plan(log, "orders")
        Path(part.path).unlink()
        with pytest.raises(CorruptionError):
            plan(log, "orders")

    def test_frames_before_a_range_are_checked_and_not_decoded(self, log, monkeypatch):
        topic = log.topic("orders")
        for number in range(20):
            topic.append(str(number))
        (part,) = plan(log, "orders", 15, 18)
        assert part.offset < part.first
        decoded = []
        decode = plans.columns
        monkeypatch.setattr(
            plans, "columns", lambda header, body, first: decoded.append(first) or decode(header, body, first)
        )
        assert read_arrow(part).read_all().column("offset").to_pylist() == decoded == [15, 16, 17]
        flip(part.path, part.position + 30)
        with pytest.raises(CorruptionError):
            read_arrow(part).read_all()


class TestJoins:
    """Parts join without a gap, and a part that does not fit between its neighbours is damage."""

    @pytest.fixture
    def parts(self, log):
        topic = log.topic("orders", segment_bytes="64KiB")
        for number in range(100):
            topic.extend([str(number) * 100] * 20)
        return plan(log, "orders", 7, 1_990, target_bytes="4KiB")

    def test_each_goes_on_where_the_one_before_it_ends(self, parts):
        assert parts[0].first == 7
        assert parts[-1].stop == 1_990
        for one, other in itertools.pairwise(parts):
            assert one.stop == other.first
            if one.path == other.path:
                assert (one.stop_position, one.stop_chain) == (other.position, other.chain)
        assert sum(read_arrow(part).read_all().num_rows for part in parts) == 1_983

    def test_one_that_does_not_join_the_next(self, parts):
        with pytest.raises(CorruptionError, match="do not join"):
            read_arrow(parts[1]._replace(stop_chain=parts[1].stop_chain ^ 1)).read_all()

    def test_one_that_does_not_join_the_one_before(self, parts):
        with pytest.raises(CorruptionError, match="damaged"):
            read_arrow(parts[1]._replace(chain=parts[1].chain ^ 1)).read_all()

    def test_another_file_of_the_same_name(self, parts):
        os.replace(parts[-1].path, parts[0].path)
        with pytest.raises(CorruptionError, match="not the one that was planned"):
            read_arrow(parts[0]).read_all()


def flip(path, position):
    with open(path, "r+b") as file:
        file.seek(position)
        (before,) = file.read(1)
        file.seek(position)
        file.write(bytes([before ^ 0xFF]))


class TestSurvey:
    def test_topics_come_change_and_go(self, log):
        survey = Survey(log, lambda name: name.startswith("o"))
        assert survey.look() == {}
        first = log.topic("orders", partitions=2)
        log.topic("other.x", partitions=1)
        log.topic("clicks").append(b"x")
        first.extend([b"x"] * 5, partition=1)
        ids = {entry.name: entry.id for entry in log.engine.refresh().by_name.values()}
        assert survey.look() == {
            "orders": TopicBounds(ids["orders"], [0, 0], [0, 5]),
            "other.x": TopicBounds(ids["other.x"], [0], [0]),
        }
        first.trim({1: 3})
        first.alter(partitions=3)
        log.topic("other.x").drop()
        assert survey.look() == {"orders": TopicBounds(ids["orders"], [0, 3, 0], [0, 5, 0])}
        first.drop()
        log.topic("orders").append(b"x")
        again = survey.look()["orders"]
        assert again.id != ids["orders"]
        assert again.durable == [1]

    def test_internal_topics_are_not_seen(self, log):
        log.topic("orders").append(b"x")
        record_progress(log, "g", {("orders", 0): 1})
        assert list(Survey(log, lambda name: True).look()) == ["orders"]

    def test_names_are_matched_only_when_topics_change(self, log):
        asked = []
        survey = Survey(log, lambda name: asked.append(name) or True)
        log.topic("orders").append(b"x")
        survey.look()
        for _ in range(5):
            log.topic("orders").append(b"x")
            survey.look()
        assert asked == ["orders"]
        assert survey.look()["orders"].durable == [6]

    def test_a_thousand_partitions_in_well_under_a_millisecond(self, log):
        log.topic("orders", partitions=1_000)
        survey = Survey(log, lambda name: True)
        survey.look()
        best = 1.0
        for _ in range(50):
            before = time.process_time()
            survey.look()
            best = min(best, time.process_time() - before)
        assert best < 0.002

    def test_through_a_handle_that_reads(self, log):
        log.topic("orders").append(b"x")
        with tailrace.open(log.location, "r") as reading:
            survey = Survey(reading, lambda name: True)
            assert survey.look()["orders"].durable == [1]
            assert not survey.frozen

    def test_while_topics_are_dropped_and_made(self, log):
        """What is told of a topic is never another's, which took over its place."""
        stop = threading.Event()

        def churn():
            while not stop.is_set():
                log.topic("small").extend([b"x"] * 3)
                log.topic("small").drop()
                log.topic("large").extend([b"x"] * 1_000)
                log.topic("large").drop()

        survey = Survey(log, lambda name: True)
        writer = threading.Thread(target=churn)
        writer.start()
        try:
            end = time.monotonic() + 1
            while time.monotonic() < end:
                for name, found in survey.look().items():
                    assert found.durable in ([0], [3 if name == "small" else 1_000])
        finally:
            stop.set()
            writer.join()
