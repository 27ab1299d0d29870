"""The group's topic: snapshots keep it short and forget what is gone."""

from __future__ import annotations

import time

import pytest

import tailrace
from tailrace.groups import group_topic as group_log
from tests.groups.sharing import LONG, cursors, fill, settle
from tests.processes import start
from tests.tuning import retune


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


class TestSnapshots:
    def records(self, log, group="g"):
        partition = log.engine.partition(log.engine.find(f"__group.{group}"), 0)
        return partition.end - partition.start

    def test_many_commits_leave_few_records(self, log, monkeypatch):
        retune(log, group_records_max=50)
        topic = log.topic("t", partitions=2)
        for number in range(100):
            topic.append(str(number), partition=0, durable=True)
            topic.append(str(number), partition=1, durable=True)
        with log.consumer("t", "g", commit_every=1, stop="now") as consumer:
            assert len(list(consumer)) == 200
        assert self.records(log) < 60
        assert set(cursors(log).values()) == {100}
        # What a snapshot says is what the records said: whoever opens it now, sees the same.
        assert log.group("g").topics == ("t",)
        with tailrace.open(log.location) as again:
            assert set(cursors(again).values()) == {100}
            with again.consumer("t", "g", stop="now") as consumer:
                assert list(consumer) == []

    def test_members_and_owners_live_on_in_a_snapshot(self, log, monkeypatch):
        retune(log, group_records_max=20)
        log.topic("t", partitions=2)
        with log.consumer("t", "g", commit="manual") as one, log.consumer("t", "g", commit="manual") as two:
            settle(one, two)
            for number in range(60):
                fill(log, "t", 1, number)
                assert len(one.poll(timeout=LONG)) == 1
                one.commit()
            assert self.records(log) < 30
            assert len(two.poll()) == 60
            two.commit()
            assert set(cursors(log).values()) == {60}
            assert sorted(member.partitions for member in log.group("g").members) == [1, 1]
            # Somebody who never saw the records that the snapshot stands for.
            program = """
                import sys, tailrace
                with tailrace.open(sys.argv[1], durable=False) as log, log.consumer("t", "g") as consumer:
                    assert len(consumer.poll(timeout=0)) == 0
                    assert sorted(member.partitions for member in log.group("g").members) == [0, 1, 1]
            """
            process = start(program, log.location)
            _, complaint = process.communicate(timeout=LONG)
            assert process.returncode == 0, complaint

    def test_a_group_with_many_past_commits_opens_quickly(self, tmp_path, monkeypatch):
        with tailrace.open(tmp_path / "log", durable=False) as log:
            fill(log, "t", 1)
            with log.consumer("t", "g", stop="now") as consumer:
                list(consumer)
            group = group_log.existing_group(log.engine, "g")
            entry = log.engine.find("t")
            # What 12,000 commits leave behind, without waiting for the disk each time.
            monkeypatch.setattr(group_log.GroupLog, "shorten", lambda self: None)
            for number in range(12_000):
                group.append({"moves": [[entry.id, 0, number % 2]]}, durable=False)
            monkeypatch.undo()
            assert self.records(log) > 12_000
            group.append({"moves": [[entry.id, 0, 1]]}, durable=True)
            assert self.records(log) < 10
        with tailrace.open(tmp_path / "log") as log:
            began = time.perf_counter()
            assert cursors(log) == {("t", 0): 1}
            with log.consumer("t", "g", stop="now") as consumer:
                assert list(consumer) == []
            assert time.perf_counter() - began < 2

    def test_a_topic_that_was_dropped_is_forgotten(self, log, monkeypatch):
        retune(log, group_records_max=5)
        for name in ("a", "b"):
            log.topic(name).extend(["1", "2"])
        with log.consumer("...", "g", stop="now", commit_every=1) as consumer:
            list(consumer)
        log.topic("a").drop()
        for number in range(10):
            log.topic("b").append(str(number))
            with log.consumer("...", "g", stop="now") as consumer:
                list(consumer)
        assert cursors(log) == {("b", 0): 12}
        assert len(group_log.existing_group(log.engine, "g").view().cursors) == 1

    @pytest.mark.parametrize("polled", [False, True], ids=["at once", "after another poll"])
    def test_a_topic_dropped_within_a_transaction_takes_nothing_from_its_member(self, log, monkeypatch, polled):
        """A snapshot leaves the topic out; whoever owned it was not evicted, and the transaction stands."""
        retune(log, group_records_max=5)
        for name in ("s.a", "s.b"):
            log.topic(name).extend(["1", "2"])
        with log.consumer("s.*", "g", commit="manual") as consumer:
            handed = 0
            while handed < 4:
                handed += len(consumer.poll(timeout=1))
            member = consumer.member
            with log.transaction() as transaction:
                transaction.append("out", "x")
                consumer.commit(transaction)
                log.topic("s.b").drop()
                group = group_log.existing_group(log.engine, "g")
                for _ in range(20):
                    group.append({"gone": ["nobody"]}, durable=False)
                assert len(group.view().owners) == 1
                if polled:
                    consumer.poll(timeout=0)
            assert consumer.member == member
        assert cursors(log) == {("s.a", 0): 2}
        assert [record.value for record in log.topic("out").read()] == [b"x"]
