"""A commit happens once or not at all: what tasks staged, failures, and other writers."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

import tailrace
from tailrace.bulk import InlinePart, StagedPart
from tailrace.errors import NotALogError, SettingsMismatchError, TailraceError, TopicNotFoundError
from tailrace.spark import handles, limits
from tailrace.spark.sink import commit as committing
from tailrace.spark.sink import outbox
from tailrace.spark.sink import task as staging
from tests.spark.sink.jobs import job, numbers, staged_files, table
from tests.spark.tasks import Job, context
from tests.tuning import limit


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
