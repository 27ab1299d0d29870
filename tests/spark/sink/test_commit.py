"""A commit happens once or not at all: replays, failures, other writers, batches over very many partitions."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

import tailrace
from tailrace import bulk, testing
from tailrace.bulk import InlinePart, StagedPart
from tailrace.engine import engine as engines
from tailrace.errors import NotALogError, SettingsMismatchError, TailraceError, TopicNotFoundError
from tailrace.spark import handles, limits
from tailrace.spark.sink import commit as committing
from tailrace.spark.sink import outbox
from tailrace.spark.sink import task as staging
from tailrace.write.partitioner import HASHES
from tests.spark.tasks import Job, context
from tests.tuning import limit

DDL = "value string, key string"


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        opened.topic("a", partitions=4)
        yield opened
    handles.close_all()


@pytest.fixture
def steering():
    with testing.steered() as steered:
        yield steered
        handles.close_all()


def table(count, first=0, size=20):
    values = [f"{number}".rjust(size, "0") for number in range(first, first + count)]
    return pa.table({"value": values, "key": [f"k{int(value) % 997}" for value in values]})


def numbers(topic):
    return sorted(int(record.text) for record in topic.read())


def staged_files(log):
    return sorted(Path(log.location).glob("topics/*/*/*.staged"))


def job(log, **options):
    return Job(DDL, **{"path": log.location, "topic": "a", **options})


class TestBatchJobs:
    def test_a_job_is_whole_or_absent(self, log):
        write = job(log)
        messages = write.tasks([table(500), table(500, 500)])
        assert numbers(log.topic("a")) == []
        write.commit(messages)
        assert numbers(log.topic("a")) == [*range(1_000)]

    def test_without_a_name_nothing_is_taken_for_a_repetition(self, log):
        for _ in range(3):
            job(log).run(table(10))
        assert numbers(log.topic("a")) == sorted([*range(10)] * 3)

    def test_a_version_is_written_once(self, log):
        for version in (0, 0, 7, 7, 3, 8):
            job(log, txnAppId="nightly", txnVersion=version).run(table(10, 10 * version))
        assert numbers(log.topic("a")) == sorted([*range(10), *range(70, 80), *range(80, 90)])
        assert bulk.applied(log, "nightly") == 8
        job(log, txnAppId="weekly", txnVersion=0).run(table(1, 1_000))
        assert 1_000 in numbers(log.topic("a"))

    def test_two_writes_of_one_foreach_batch(self, log):
        log.topic("b", partitions=1)
        for _ in range(2):
            for batch in range(3):
                for topic in ("a", "b"):
                    Job(DDL, path=log.location, topic=topic, txnAppId=f"query-{topic}", txnVersion=batch).run(
                        table(5, 5 * batch)
                    )
        assert numbers(log.topic("a")) == numbers(log.topic("b")) == [*range(15)]

    def test_a_task_without_a_message(self, log):
        write = job(log)
        messages = write.tasks([table(5)])
        with pytest.raises(RuntimeError, match="nothing of it was written"):
            write.commit([*messages, None])
        assert numbers(log.topic("a")) == []

    def test_abort_touches_nothing(self, log):
        write = job(log)
        messages = write.tasks([table(5)])
        write.commit(messages)
        write.abort([*messages, None])
        assert numbers(log.topic("a")) == [*range(5)]


class Checkpoint:
    """What Spark writes down of a query before it runs a batch."""

    def __init__(self, path):
        self.path = str(path)
        (path / "offsets").mkdir(parents=True)
        (path / "metadata").write_text('{"id": "q"}')

    def write(self, batch, offsets, time=0):
        run = f'{{"batchTimestampMs": {time}}}'
        Path(self.path, "offsets", str(batch)).write_text(f"v1\n{run}\n{offsets}")


class TestStreams:
    def test_a_batch_is_appended_once(self, log):
        for batch in range(4):
            for _ in range(3):
                job(log, query="q").run(table(10, 10 * batch), table(0), batch=batch)
        assert numbers(log.topic("a")) == [*range(40)]

    def test_only_the_last_batch_can_come_again(self, log):
        """Spark goes on behind the last batch of its checkpoint: an older one comes from an older checkpoint."""
        for batch in range(3):
            job(log, query="q").run(table(10, 10 * batch), batch=batch)
        with pytest.raises(SettingsMismatchError, match="older than what the query has written") as caught:
            job(log, query="q").run(table(20, 10), batch=1)
        assert "put back the newest" in caught.value.hint
        assert numbers(log.topic("a")) == [*range(30)]

    def test_a_batch_that_comes_again_with_other_records_is_refused(self, log, tmp_path):
        """After a checkpoint was put back from a copy: its rows were not written, so they must not be passed over."""
        checkpoint = Checkpoint(tmp_path / "checkpoint")
        for batch in range(2):
            checkpoint.write(batch, f'{{"a": {{"0": {batch}}}}}')
            for _ in range(2):
                job(log, query="q", checkpointLocation=checkpoint.path).run(table(10, 10 * batch), batch=batch)
        # The time of the run is in the file as well, and says nothing about its records.
        checkpoint.write(1, '{"a": {"0": 1}}', time=99)
        job(log, query="q", checkpointLocation=checkpoint.path).run(table(10, 10), batch=1)
        checkpoint.write(1, '{"a": {"0": 7}}')
        for place in (checkpoint.path, f"file:{checkpoint.path}"):
            with pytest.raises(SettingsMismatchError, match="batch 1 comes again with other records"):
                job(log, query="q", checkpointLocation=place).run(table(60, 10), batch=1)
        checkpoint.write(2, '{"a": {"0": 9}}')
        job(log, query="q", checkpointLocation=checkpoint.path).run(table(10, 20), batch=2)
        # Where a checkpoint cannot be seen, the number of the batch alone counts.
        job(log, query="q", checkpointLocation="hdfs://host/checkpoint").run(table(10, 20), batch=2)
        assert numbers(log.topic("a")) == [*range(30)]

    def test_the_checkpoint_is_on_disk_before_the_log_is(self, log, tmp_path, monkeypatch):
        """A power cut must not take away what a batch was made of and leave what came of it."""
        checkpoint = Checkpoint(tmp_path / "checkpoint")
        checkpoint.write(0, '{"a": {"0": 1}}')
        done = []
        files = engines.FILES
        opened = {}

        class Watched(type(files)):
            def open(self, path, **how):
                descriptor = super().open(path, **how)
                opened[descriptor] = path
                return descriptor

            def sync_data(self, fd):
                super().sync_data(fd)
                done.append(opened.get(fd, ""))

            def sync_directory(self, path):
                super().sync_directory(path)
                done.append(path)

        write = job(log, query="q", checkpointLocation=checkpoint.path)
        messages = write.tasks([table(10)])
        monkeypatch.setattr(engines, "FILES", Watched())
        inner = committing.bulk.commit
        monkeypatch.setattr(committing.bulk, "commit", lambda *given: done.append("commit") or inner(*given))
        write.commit(messages)
        root = checkpoint.path
        before = done[: done.index("commit")]
        assert {f"{root}/offsets/0", f"{root}/offsets", f"{root}/metadata", root, str(tmp_path)} <= set(before)

    def test_another_checkpoint_is_another_query(self, log):
        """Whoever deletes a checkpoint wants the rows again, also when the job has kept its name."""
        for query in ("first", "second"):
            job(log, query=query, txnAppId="same").run(table(10))
        assert numbers(log.topic("a")) == sorted([*range(10)] * 2)
        job(log, query="second", txnAppId="same").run(table(10))
        job(log, query="second", txnAppId="other").run(table(1, 500))
        assert numbers(log.topic("a")) == sorted([*range(10)] * 2 + [500])

    def test_an_empty_batch_counts(self, log):
        job(log, query="q").run(table(0), batch=0)
        assert bulk.applied(log, "spark-stream:q") == 0
        job(log, query="q").run(table(5), batch=0)
        assert numbers(log.topic("a")) == []
        job(log, query="q").run(table(5), batch=1)
        assert numbers(log.topic("a")) == [*range(5)]

    def test_a_query_that_is_not_known(self, log):
        write = job(log, query="q")
        message = write.task(table(5), batch=3)
        with pytest.raises(RuntimeError, match="nothing was written"):
            write.commit([message], batch=4)
        message.query = None
        with pytest.raises(RuntimeError, match="did not say which batch of which query"):
            write.commit([message], batch=3)
        assert numbers(log.topic("a")) == []

    def test_two_queries_and_others_into_one_topic(self, log):
        """Threads stand for processes here; tests with Spark have real ones."""
        stop = threading.Event()

        def append():
            number = 10_000_000
            while not stop.is_set():
                log.topic("a").append(f"{number}", key=f"{number}")
                number += 1
            return number

        foreign: list[int] = []
        writer = threading.Thread(target=lambda: foreign.append(append()))
        writer.start()
        try:
            for batch in range(15):
                for query, first in (("one", 0), ("two", 1_000_000)):
                    tables = [table(20, first + 40 * batch), table(20, first + 40 * batch + 20)]
                    for _ in range(1 + batch % 2):
                        job(log, query=query).run(*tables, batch=batch)
        finally:
            stop.set()
            writer.join()
        expected = [*range(600), *range(1_000_000, 1_000_600), *range(10_000_000, foreign[0])]
        assert numbers(log.topic("a")) == expected


class TestStaging:
    def test_tasks_never_open_the_log(self, log, monkeypatch):
        """They may run on another machine, where its locks and its mapped memory mean nothing."""
        from tailrace.log import Log

        write = job(log)
        write.writer = write.plan()
        with monkeypatch.context() as patched:
            patched.setattr(Log, "engine", property(lambda self: pytest.fail("opened")))
            small, large = write.tasks([table(1_000), table(30_000, 1_000, size=100)])
        assert all(isinstance(part, InlinePart) for part in small.parts)
        assert any(isinstance(part, StagedPart) for part in large.parts)
        write.commit([small, large])
        assert numbers(log.topic("a")) == [*range(31_000)]

    def test_a_large_task_stages_its_largest_parts(self, log):
        write = job(log)
        messages = write.tasks([table(5_000, size=400), table(5_000, 5_000, size=400)])
        kinds = [sorted(type(part).__name__ for part in message.parts) for message in messages]
        assert (
            kinds == [["InlinePart"] + ["StagedPart"] * 3] * 2 or kinds == [["InlinePart"] * 2 + ["StagedPart"] * 2] * 2
        )
        assert all(
            sum(part.frames.bytes for part in message.parts if isinstance(part, InlinePart))
            <= limits.LIMITS.message_bytes_max
            for message in messages
        )
        assert numbers(log.topic("a")) == []
        assert staged_files(log)
        write.commit(messages)
        assert numbers(log.topic("a")) == [*range(10_000)]
        assert staged_files(log) == []

    def test_a_task_larger_than_memory(self, log, monkeypatch):
        limit(monkeypatch, limits, gathered_bytes_max=100_000, segment_bytes=300_000, task_bytes_max=700_000)
        most = 0
        real = staging.Staging.spill

        def spill(self, task):
            nonlocal most
            real(self, task)
            most = max(most, task.bytes)

        monkeypatch.setattr(staging.Staging, "spill", spill)
        write = job(log, query="q")
        for _ in range(2):
            write.run(table(50_000, size=100), batch=0)
        assert most < 1_000_000
        assert numbers(log.topic("a")) == [*range(50_000)]
        assert staged_files(log) == []
        for partition in range(4):
            found = [int(record.text) for record in log.topic("a").read(partition=partition)]
            assert found == sorted(found)

    def test_a_task_that_fails_leaves_nothing(self, log, monkeypatch):
        limit(monkeypatch, limits, gathered_bytes_max=100_000, segment_bytes=50_000)
        writer = job(log).plan()

        def batches():
            yield from table(50_000).to_batches(max_chunksize=1_000)
            assert staged_files(log)
            raise ZeroDivisionError

        with context(0, None, 0), pytest.raises(ZeroDivisionError):
            writer.write(batches())
        assert staged_files(log) == []

    def test_a_topic_that_is_created_by_a_large_task(self, log):
        write = Job("value string, topic string", path=log.location, createTopics=True, partitions=2)
        values = table(30_000, size=100).column("value")
        messages = write.tasks([pa.table({"value": values, "topic": ["new"] * 30_000})])
        # Its directory is not there yet, so it is staged in the outbox.
        assert [part.topic for part in messages[0].parts] == [outbox.TOPIC]
        write.commit(messages)
        assert numbers(log.topic("new")) == [*range(30_000)]
        assert log.topic("new").partitions == 2
        assert staged_files(log) == []

    def test_a_replayed_batch_removes_what_it_staged(self, log):
        for _ in range(2):
            job(log, query="q").run(table(30_000, size=100))
            assert staged_files(log) == []
        assert numbers(log.topic("a")) == [*range(30_000)]

    def test_what_a_dead_attempt_staged_is_swept_after_a_day(self, tmp_path, steering, monkeypatch):
        with tailrace.open(tmp_path / "log") as log:
            log.topic("a", partitions=4)
            job(log).tasks([table(30_000, size=100)])
            orphans = staged_files(log)
            assert orphans
            steering.clock.advance("23h")
            fresh = job(log)
            messages = fresh.tasks([table(30_000, size=100)])
            steering.clock.advance("2h")
            monkeypatch.setattr(committing, "_swept", {})
            job(log).run(table(5))
            left = staged_files(log)
            assert set(left).isdisjoint(orphans)
            # What others are about to commit is left alone.
            assert left
            fresh.commit(messages)
            assert numbers(log.topic("a")) == sorted([*range(30_000), *range(5)])
            handles.close_all()


class TestFailures:
    @pytest.mark.parametrize("point", ["journal-write", "journal-sync"])
    def test_a_commit_that_fails_and_comes_again(self, tmp_path, steering, point):
        with tailrace.open(tmp_path / "log") as log:
            log.topic("a", partitions=4)
            write = job(log, query="q")
            messages = write.tasks([table(20), table(20_000, 20, size=100)])
            fault = steering.faults.fail(point)
            with pytest.raises(TailraceError):
                write.commit(messages)
            assert fault.fired
            # Spark aborts then, and runs the batch again when the query is restarted.
            write.abort(messages)
            job(log, query="q").run(table(20_020))
            assert numbers(log.topic("a")) == [*range(20_020)]
            handles.close_all()

    def test_a_full_disk(self, tmp_path, steering):
        with tailrace.open(tmp_path / "log") as log:
            log.topic("a", partitions=4)
            steering.faults.fill_disk()
            with pytest.raises(TailraceError, match=r"space|full") as caught:
                job(log, query="q").run(table(30_000, size=100))
            assert caught.value.hint in caught.value.__notes__
            steering.faults.free_disk()
            job(log, query="q").run(table(30_000, size=100))
            assert numbers(log.topic("a")) == [*range(30_000)]
            handles.close_all()

    def test_a_log_that_vanished(self, log, tmp_path):
        write = job(log)
        messages = write.tasks([table(5)])
        handles.close_all()
        log.close()
        shutil.rmtree(tmp_path / "log")
        with pytest.raises(NotALogError, match="no longer a log"):
            write.commit(messages)
        assert not (tmp_path / "log").exists()

    def test_another_log_at_the_same_path(self, log, tmp_path):
        job(log).run(table(5))
        log.close()
        shutil.rmtree(tmp_path / "log")
        with tailrace.open(tmp_path / "log") as second:
            second.topic("a", partitions=2)
            job(second).run(table(5))
            assert numbers(second.topic("a")) == [*range(5)]
            handles.close_all()

    def test_another_log_at_the_same_path_whose_topics_have_fewer_partitions(self, log, tmp_path):
        """Rows are not sorted for the partitions of the log that was there before."""
        rows = pa.table({"value": ["x"] * 50, "key": [str(at) for at in range(50)], "topic": ["a"] * 50})
        log.close()
        for partitions in (4, 2):
            handles.close_all()
            shutil.rmtree(tmp_path / "log")
            with tailrace.open(tmp_path / "log") as made:
                topic = made.topic("a", partitions=partitions)
                Job("value string, key string, topic string", path=made.location).run(rows)
                expected = [made.topic("twin", partitions=partitions).append(b"", key=str(at)) for at in range(50)]
                found = {record.key: record.partition for record in topic.read()}
                assert found == {str(at).encode(): where.partition for at, where in enumerate(expected)}
                handles.close_all()

    def test_a_topic_that_was_dropped_meanwhile(self, log):
        write = job(log)
        messages = write.tasks([table(50)])
        log.topic("a").drop()
        with pytest.raises(TopicNotFoundError):
            write.commit(messages)
        log.topic("a", partitions=4)
        with pytest.raises(SettingsMismatchError, match="dropped and created again"):
            write.commit(messages)
        stream = job(log, query="q")
        messages = stream.tasks([table(50)])
        log.topic("a").drop()
        log.topic("a", partitions=8, partitioner="murmur2")
        # The driver of a stream makes a new writer for the commit, which must not believe what it sees now.
        with pytest.raises(SettingsMismatchError, match="dropped and created again"):
            stream.commit(messages)

    def test_a_topic_that_grew_meanwhile(self, log):
        write = job(log)
        messages = write.tasks([table(50)])
        log.topic("a").alter(partitions=9)
        write.commit(messages)
        assert numbers(log.topic("a")) == [*range(50)]
        job(log).run(table(50))
        assert {record.partition for record in log.topic("a").read()} - {*range(4)}

    def test_a_topic_that_another_process_created_meanwhile(self, log):
        write = Job("value string, topic string", path=log.location, createTopics=True)
        messages = write.tasks([pa.table({"value": ["0"], "topic": ["new"]})])
        log.topic("new", partitions=3)
        with pytest.raises(SettingsMismatchError) as caught:
            write.commit(messages)
        assert "run the write again" in "".join(caught.value.__notes__)
        write.run(pa.table({"value": ["0"], "topic": ["new"]}))
        assert numbers(log.topic("new")) == [0]

    def test_a_topic_that_another_process_created_with_a_schema_meanwhile(self, log):
        write = Job("value string, topic string", path=log.location, createTopics=True)
        messages = write.tasks([pa.table({"value": ["0"], "topic": ["new"]})])
        log.topic("new", partitions=1, schema={"type": "string"})
        with pytest.raises(SettingsMismatchError, match="The schema of the topic 'new' was changed"):
            write.commit(messages)
        assert log.topic("new").read().count() == 0

    def test_a_schema_that_was_changed_meanwhile(self, log):
        log.topic("checked", partitions=2, schema={"type": "integer"})
        for large in (False, True):
            write = job(log, topic="checked")
            values = [str(number).ljust(1_000) for number in range(1, 3_001 if large else 11)]
            messages = write.tasks([pa.table({"value": values, "key": values})])
            log.topic("checked").alter(schema={"type": "integer", "minimum": int(large)})
            with pytest.raises(SettingsMismatchError, match="The schema of the topic 'checked' was changed"):
                write.commit(messages)
            assert numbers(log.topic("checked")) == []
        log.topic("checked").alter(schema=None)
        write.commit(messages)
        assert numbers(log.topic("checked")) == [*range(1, 3_001)]


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


def test_handles_are_closed_when_they_are_idle(log, monkeypatch):
    limit(monkeypatch, limits, idle_seconds=0.05)
    handles.close_all()
    job(log).run(table(5))
    waited = threading.Event()
    for _ in range(100):
        if not handles._kept:
            break
        waited.wait(0.05)
    assert handles._kept == {}
    job(log).run(table(5))
    assert len(numbers(log.topic("a"))) == 10
    assert os.path.exists(log.location)
