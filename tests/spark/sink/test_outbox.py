"""The outbox: batches over more partitions than one transaction takes, and their delivery."""

from __future__ import annotations

import random
import threading

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

import tailrace
from tailrace import bulk
from tailrace.bulk import FrameBuilder, Frames, InlinePart, StagedPart
from tailrace.errors import TailraceError
from tailrace.spark import handles, limits
from tailrace.spark.sink import outbox
from tailrace.spark.sink.rows import TargetPartition
from tailrace.write.partitioner import HASHES
from tests.spark.sink.jobs import DDL, job, numbers, staged_files, table
from tests.spark.tasks import Job, context
from tests.tuning import limit


def target(partition, topic="wide"):
    return TargetPartition(topic, partition)


def frames(*values):
    builder = FrameBuilder()
    builder.extend(values)
    return builder.finish()


def packed(log, given):
    """Parts of the outbox, as a task stages them, and as others read them."""
    outbox.topic_of(log).create()
    return bulk.stage(log, outbox.TOPIC, 0, outbox.pack(given))


def steps(log, given):
    """The partitions of each step in which packed frames are delivered."""
    staged = packed(log, given)
    return [[part.partition for part in step.parts] for step in outbox._steps(outbox._records_of(staged))]


class TestLanes:
    def test_an_application_keeps_its_lane(self):
        """Batches of a lane are delivered in order; what waits in one is found again by a later version."""
        assert [outbox.lane_of(name) for name in ("", "nightly", "spark-stream:q", "ä")] == [0, 2, 1, 3]

    def test_applications_fill_all_lanes(self):
        assert {outbox.lane_of(f"job {number}") for number in range(200)} == {*range(outbox.LANES)}


class TestPacking:
    def test_what_is_packed_comes_out_again(self, log):
        given = {target(0): frames(b"a", b"b"), target(299): frames(b"c"), target(1, "ä.b"): frames(*[b"d" * 50] * 9)}
        parts = [*outbox.unpack(packed(log, given))]
        assert [(part.topic, part.partition) for part in parts] == [*given]
        assert [part.frames.to_bytes() for part in parts] == [some.to_bytes() for some in given.values()]

    @pytest.mark.parametrize("chunk", [1, 7, 100, 10_000])
    def test_frames_that_are_larger_than_a_record_are_cut(self, log, monkeypatch, chunk):
        limit(monkeypatch, limits, chunk_bytes_max=chunk)
        given = {target(at): frames(b"x" * 40, b"y" * at) for at in range(3)}
        size = sum(-(-len(some.to_bytes()) // chunk) for some in given.values())
        staged = packed(log, given)
        assert staged.records == size
        assert [part.frames.to_bytes() for part in outbox.unpack(staged)] == [
            some.to_bytes() for some in given.values()
        ]

    def test_a_step_has_no_more_partitions_than_a_transaction(self, log, monkeypatch):
        limit(monkeypatch, limits, places_max=3)
        given = {target(at): frames(b"x") for at in range(8)}
        assert steps(log, given) == [[0, 1, 2], [3, 4, 5], [6, 7]]

    def test_a_step_ends_when_it_is_large(self, log, monkeypatch):
        one = len(frames(b"x" * 100).to_bytes())
        limit(monkeypatch, limits, step_bytes_max=2 * one)
        given = {target(at): frames(b"x" * 100) for at in range(5)}
        assert steps(log, given) == [[0, 1], [2, 3], [4]]

    def test_the_offset_after_a_step_is_its_number(self, log, monkeypatch):
        """Two processes that deliver the same records number the steps alike, so that each is taken once."""
        limit(monkeypatch, limits, places_max=2, chunk_bytes_max=60)
        given = {target(at): frames(b"x" * 100) for at in range(3)}
        records = [*outbox._records_of(packed(log, given))]
        each = len(records) // 3
        assert each > 1
        assert [step.stop for step in outbox._steps(iter(records))] == [2 * each, 3 * each]


class TestPut:
    def parts(self, *values):
        return [InlinePart("a", at, frames(value)) for at, value in enumerate(values)]

    def test_a_batch_is_decided_and_delivered_once(self, log):
        assert outbox.put(log, 3, self.parts(b"1", b"2"), ("job", 7), "w")
        assert not outbox.put(log, 3, self.parts(b"1", b"2"), ("job", 7), "w")
        assert numbers(log.topic("a")) == [1, 2]
        assert (bulk.applied(log, "job"), bulk.applied_witness(log, "job")) == (7, "w")

    def test_without_a_marker_every_batch_is_another_one(self, log):
        for _ in range(2):
            assert outbox.put(log, 3, self.parts(b"1", b"2"), None)
        assert numbers(log.topic("a")) == [1, 1, 2, 2]

    def test_what_was_delivered_is_forgotten(self, log):
        outbox.put(log, 3, self.parts(b"1", b"2"), None)
        start, end = outbox.topic_of(log).bounds(3)
        assert start == end > 0
        assert outbox._waiting(log, 3) == (end, end)

    def test_it_is_decided_before_it_is_delivered(self, log, monkeypatch):
        monkeypatch.setattr(outbox, "deliver", lambda log, lane: None)
        outbox.put(log, 3, self.parts(b"1", b"2"), ("job", 0))
        assert numbers(log.topic("a")) == []
        assert bulk.applied(log, "job") == 0
        monkeypatch.undo()
        assert not outbox.put(log, 3, self.parts(b"8", b"9"), ("job", 0))
        outbox.deliver(log, 3)
        assert numbers(log.topic("a")) == [1, 2]

    def test_an_empty_part_takes_no_room(self, log):
        empty = [InlinePart("a", partition, Frames()) for partition in (2, 3)]
        assert outbox.put(log, 3, [empty[0], *self.parts(b"1"), empty[1]], ("job", 0))
        assert numbers(log.topic("a")) == [1]
        assert outbox.topic_of(log).bounds(3)[1] == 1

    def test_a_large_batch_is_held_in_several_pieces(self, log, monkeypatch):
        limit(monkeypatch, limits, held_bytes_max=1)
        held = []
        real = outbox._hold
        monkeypatch.setattr(
            outbox, "_hold", lambda log, lane, frames: held.append([*frames]) or real(log, lane, frames)
        )
        outbox.put(log, 3, self.parts(b"1", b"2", b"3"), None)
        assert held == [[target(at, "a")] for at in range(3)]
        assert numbers(log.topic("a")) == [1, 2, 3]

    def test_parts_of_one_partition_are_joined_in_order(self, log, monkeypatch):
        held = []
        real = outbox._hold
        monkeypatch.setattr(
            outbox, "_hold", lambda log, lane, frames: held.append([*frames]) or real(log, lane, frames)
        )
        outbox.put(log, 3, [*self.parts(b"1"), *self.parts(b"2"), *self.parts(b"3")], None)
        assert held == [[target(0, "a")]]
        assert [record.text for record in log.topic("a").read()] == ["1", "2", "3"]


class TestWaiting:
    def left(self, log, monkeypatch, lane):
        """Leave a batch undelivered, as a process does that dies."""
        with monkeypatch.context() as patched:
            patched.setattr(outbox, "deliver", lambda log, lane: None)
            outbox.put(log, lane, [InlinePart("a", 0, frames(b"1"))], None)

    def test_without_an_outbox_there_is_nothing_to_do(self, log):
        outbox.deliver_waiting(log, 0)
        assert not outbox.topic_of(log).exists

    def test_ones_own_lane_is_delivered_at_once(self, log, monkeypatch):
        self.left(log, monkeypatch, 2)
        outbox.deliver_waiting(log, 2)
        assert numbers(log.topic("a")) == [1]

    @pytest.mark.parametrize(("patience_us", "delivered"), [(10_000_000, []), (-1, [1])])
    def test_another_lane_is_left_to_its_process_for_a_while(self, log, monkeypatch, patience_us, delivered):
        limit(monkeypatch, limits, patience_us=patience_us)
        self.left(log, monkeypatch, 2)
        outbox.deliver_waiting(log, 5)
        assert numbers(log.topic("a")) == delivered

    def test_an_error_is_that_of_the_lane_alone(self, log, monkeypatch):
        limit(monkeypatch, limits, patience_us=-1)
        self.left(log, monkeypatch, 2)

        def broken(log, lane):
            raise TailraceError("a partition is damaged")

        monkeypatch.setattr(outbox, "deliver", broken)
        outbox.deliver_waiting(log, 5)
        with pytest.raises(TailraceError, match="damaged"):
            outbox.deliver_waiting(log, 2)

    def test_records_of_a_partition_that_is_gone_are_dropped(self, log, monkeypatch):
        self.left(log, monkeypatch, 2)
        log.topic("a").drop()
        log.topic("b", partitions=1)
        outbox.deliver(log, 2)
        assert outbox._waiting(log, 2) == (1, 1)
        assert [topic.name for topic in log.topics()] == ["b"]


class TestWide:
    """Batches over more partitions than one transaction takes."""

    COUNT = 300

    @pytest.fixture
    def wide(self, log):
        return log.topic("wide", partitions=self.COUNT)

    def rows(self, count=4_000, size=20):
        values = [f"{number}".rjust(size, "0") for number in range(count)]
        return pa.table({"value": values, "key": values})

    def check(self, wide, count=4_000):
        assert numbers(wide) == [*range(count)]
        for record in wide.read(limit=200):
            assert HASHES["crc32"](record.key) % self.COUNT == record.partition

    def test_a_batch_over_a_thousand_partitions(self, log):
        topic = log.topic("thousand", partitions=1_000)
        for batch in (0, 0, 1):
            job(log, topic="thousand", query="q").run(self.rows(), batch=batch)
        assert numbers(topic) == sorted([*range(4_000)] * 2)

    def test_a_replay(self, log, wide):
        for _ in range(2):
            job(log, topic="wide", query="q").run(self.rows())
            self.check(wide)
        job(log, topic="wide", query="q").run(self.rows(0), batch=1)
        assert outbox._waiting(log, outbox.lane_of("spark-stream:q"))[0] > 0

    def test_a_large_one(self, log, wide):
        """Tasks put small parts for many partitions into one segment."""
        write = job(log, topic="wide", txnAppId="x", txnVersion=1)
        everything = self.rows(20_000, 150)
        messages = write.tasks([everything.slice(0, 10_000), everything.slice(10_000)])
        assert all(
            [part.topic for part in message.parts if isinstance(part, StagedPart)] == [outbox.TOPIC]
            for message in messages
        )
        write.commit(messages)
        self.check(wide, 20_000)
        assert staged_files(log) == []
        write.run(everything)
        self.check(wide, 20_000)

    def test_a_job_inside_of_a_stream(self, log, wide):
        """In foreachBatch a batch job is told of the query around it, which says nothing about what it writes."""
        write = job(log, topic="wide")
        write.writer = write.plan()
        with context(0, "around", 3):
            message = write.writer.write(iter(self.rows(20_000, 150).to_batches()))
        assert (message.query, message.batch) == (None, None)
        write.commit([message])
        self.check(wide, 20_000)
        assert bulk.applied(log, "spark-stream:around") is None

    def test_segments_of_single_partitions_among_them(self, log, wide, monkeypatch):
        limit(monkeypatch, limits, segment_bytes=60_000, gathered_bytes_max=100_000)
        limit(monkeypatch, limits, held_bytes_max=200_000, step_bytes_max=50_000)
        many = pa.table({"value": [f"{n}".rjust(40, "0") for n in range(4_000, 9_000)], "key": ["same"] * 5_000})
        write = job(log, topic="wide")
        messages = write.tasks([self.rows(), many])
        assert any(isinstance(part, StagedPart) and part.topic == "wide" for part in messages[1].parts)
        write.commit(messages)
        self.check(wide, 9_000)
        assert staged_files(log) == []

    def test_small_parts_of_few_partitions_stay_one_transaction(self, log, monkeypatch):
        limit(monkeypatch, limits, message_bytes_max=10_000)
        monkeypatch.setattr(outbox, "deliver", None)
        topic = log.topic("hundred", partitions=100)
        write = job(log, topic="hundred", query="q")
        messages = write.tasks([self.rows(), pa.table({"value": ["4000"], "key": ["x"]})])
        assert [part.topic for part in messages[0].parts if isinstance(part, StagedPart)] == [outbox.TOPIC]
        write.commit(messages)
        assert numbers(topic) == [*range(4_001)]
        assert staged_files(log) == []

    def test_a_topic_that_is_dropped_before_delivery(self, log, wide, monkeypatch):
        log.topic("other", partitions=1)
        both = pa.table(
            {
                "value": [f"{number}" for number in range(4_001)],
                "key": [f"{number}" for number in range(4_001)],
                "topic": ["other"] + ["wide"] * 4_000,
            }
        )
        monkeypatch.setattr(outbox, "deliver", lambda log, lane: None)
        write = Job(f"{DDL}, topic string", path=log.location, query="q")
        write.run(both)
        log.topic("other").drop()
        monkeypatch.undo()
        write.run(both.slice(1))
        assert numbers(wide) == [*range(1, 4_001)]

    def test_what_was_decided_is_delivered_although_the_replay_is_different(self, log, wide, monkeypatch):
        """A query that is not deterministic may compute other rows for the same batch."""
        steps = 0
        real = bulk.commit

        def commit(*args, **kwargs):
            nonlocal steps
            steps += 1
            if steps == 3:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        monkeypatch.setattr(bulk, "commit", commit)
        with pytest.raises(KeyboardInterrupt):
            job(log, topic="wide", query="q").run(self.rows())
        monkeypatch.undo()
        some = len(numbers(wide))
        assert 0 < some < 4_000
        mixed = self.rows().take(pa.array(random.sample(range(4_000), 4_000)))
        job(log, topic="wide", query="q").run(mixed, pa.table({"value": ["9999999"], "key": ["x"]}))
        self.check(wide)

    def test_what_was_decided_is_delivered_although_the_schema_was_changed(self, log, monkeypatch):
        topic = log.topic("wide", partitions=self.COUNT, schema={"type": "integer"})
        rows = pa.table({"value": [str(number) for number in range(4_000)], "key": [str(n) for n in range(4_000)]})
        monkeypatch.setattr(outbox, "deliver", lambda log, lane: None)
        job(log, topic="wide", query="q").run(rows)
        monkeypatch.undo()
        assert numbers(topic) == []
        topic.alter(schema={"type": "string"})
        job(log, topic="wide", query="q").run(pa.table({"value": ['"x"'], "key": ["x"]}), batch=1)
        values = sorted(record.text for record in topic.read())
        assert values == sorted(['"x"', *map(str, range(4_000))])

    def test_others_finish_what_the_dead_left(self, tmp_path, steering, monkeypatch):
        with tailrace.open(tmp_path / "log") as log:
            wide = log.topic("wide", partitions=self.COUNT)
            log.topic("a", partitions=1)
            monkeypatch.setattr(outbox, "deliver", lambda log, lane: None)
            job(log, topic="wide", query="q").run(self.rows())
            monkeypatch.undo()
            job(log, query="another").run(table(1))
            assert numbers(wide) == []
            steering.clock.advance("11s")
            job(log, query="another").run(table(1, 1), batch=1)
            self.check(wide)
            handles.close_all()

    def test_many_deliver_at_once(self, log, wide, monkeypatch):
        lane = outbox.lane_of("spark-stream:q")
        monkeypatch.setattr(outbox, "deliver", lambda log, lane: None)
        for batch in range(3):
            job(log, topic="wide", query="q").run(self.rows(), batch=batch)
        monkeypatch.undo()
        errors = []

        def deliver():
            try:
                outbox.deliver(log, lane)
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=deliver) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert numbers(wide) == sorted([*range(4_000)] * 3)

    def test_a_batch_does_not_overtake_the_one_before(self, log, wide, monkeypatch):
        """When delivery fails, the next batch of the same query fails as well instead of going ahead."""
        real = outbox.deliver
        monkeypatch.setattr(outbox, "deliver", lambda log, lane: None)
        job(log, topic="wide", query="q").run(self.rows())

        def broken(log, lane):
            raise TailraceError("a partition is damaged")

        monkeypatch.setattr(outbox, "deliver", broken)
        with pytest.raises(TailraceError, match="damaged"):
            job(log, topic="wide", query="q").run(table(1, 5_000), batch=1)
        # Others go on.
        limit(monkeypatch, limits, patience_us=-1)
        other = next(
            f"q{n}" for n in range(99) if outbox.lane_of(f"spark-stream:q{n}") != outbox.lane_of("spark-stream:q")
        )
        job(log, query=other).run(table(1))
        assert numbers(log.topic("a")) == [0]
        monkeypatch.setattr(outbox, "deliver", real)
        job(log, topic="wide", query="q").run(table(1, 5_000), batch=1)
        assert numbers(wide) == [*range(4_000), 5_000]
