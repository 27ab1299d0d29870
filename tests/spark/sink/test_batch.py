"""Batch jobs: what is checked when a write begins, and a job that is whole or absent."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import tailrace
from tailrace import bulk
from tailrace.errors import NotALogError, TopicNotFoundError
from tests.spark.sink.jobs import DDL, job, numbers, table
from tests.spark.tasks import Job


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


class TestPlans:
    """What is found out when a write begins, before any row is computed."""

    @pytest.fixture
    def path(self, tmp_path):
        with tailrace.open(tmp_path / "log") as log:
            log.topic("clicks", partitions=2)
        return str(tmp_path / "log")

    def test_which_topic(self, path):
        with pytest.raises(ValueError, match=r"not said which topic .* add a column topic"):
            Job("value string", path=path).plan()

    def test_which_log(self, monkeypatch):
        monkeypatch.delenv("TAILRACE_LOG", raising=False)
        with pytest.raises(ValueError, match=r"Say where the log is: .*INSERT INTO t WITH"):
            Job("value string", topic="clicks").plan()

    def test_the_log_of_the_environment(self, path, monkeypatch):
        monkeypatch.setenv("TAILRACE_LOG", path)
        assert Job("value string", topic="clicks").plan().sink.handle.location == path

    def test_no_log_there(self, tmp_path):
        with pytest.raises(NotALogError) as caught:
            Job("value string", path=tmp_path / "nothing", topic="clicks").plan()
        assert 'option("createTopics", "true")' in "".join(caught.value.__notes__)
        assert not (tmp_path / "nothing").exists()

    def test_no_such_topic(self, path):
        with pytest.raises(TopicNotFoundError, match="did you mean 'clicks'") as caught:
            Job("value string", path=path, topic="cliks").plan()
        assert 'option("createTopics", "true")' in "".join(caught.value.__notes__)

    def test_a_topic_is_created_when_that_is_asked_for(self, path):
        Job("value string", path=path, topic="new", createTopics=True, partitions=5).plan()
        with tailrace.open(path) as log:
            assert log.topic("new").partitions == 5
        # An existing one stays as it is.
        Job("value string", path=path, topic="clicks", createTopics=True, partitions=5).plan()
        with tailrace.open(path) as log:
            assert log.topic("clicks").partitions == 2

    def test_a_log_is_created_when_that_is_asked_for(self, tmp_path):
        Job("value string", path=tmp_path / "new", topic="clicks", createTopics=True).plan()
        with tailrace.open(tmp_path / "new", "r") as log:
            assert [topic.name for topic in log.topics()] == ["clicks"]

    def test_namespaces(self, path):
        with tailrace.open(path, namespace="eu") as log:
            log.topic("orders", partitions=3)
        plan = Job("value string", path=path, namespace="eu", topic="orders").plan()
        assert plan.sink.targets.shapes["orders"].partitions == 3
        with pytest.raises(TopicNotFoundError):
            Job("value string", path=path, topic="orders").plan()

    def test_overwriting(self, path):
        with pytest.raises(ValueError, match='use mode\\("append"\\)'):
            Job("value string", path=path, topic="clicks", overwrite=True).plan()
        # A stream in complete mode asks for it too, and appends.
        assert Job("value string", path=path, topic="clicks", overwrite=True, query="q").plan().sink.streaming
