"""Batches of a stream: each appended once, known by its query, its number and its checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tailrace import bulk
from tailrace.engine import engine as engines
from tailrace.errors import SettingsMismatchError
from tailrace.spark.sink import commit as committing
from tests.spark.sink.jobs import job, numbers, table


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
