"""Commits: parts of many workers in one transaction, and markers that keep a batch from coming twice."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tailrace
from tailrace.bulk import (
    CommitResult,
    Frames,
    InlinePart,
    abandon,
    applied,
    build,
    commit,
    stage,
    sweep_staged,
)
from tailrace.errors import (
    CommittedNotVisibleError,
    StorageError,
    TopicNotFoundError,
)
from tailrace.write import applied as markers
from tests.tuning import retune


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


def staged_files(log):
    return sorted(Path(log.location).glob("topics/*/*/*.staged"))


class TestCommit:
    def test_inline_and_staged_parts_in_one_commit(self, log):
        log.topic("orders", partitions=3)
        log.topic("orders").append("before", partition=1)
        large = build([bytes(1_000)] * 2_000)
        staged = [stage(log, "orders", 0, build([b"s1", b"s2"])), stage(log, "orders", 1, build([b"s3"]))]
        assert log.topic("orders").read().count() == 1
        result = commit(
            log,
            [
                InlinePart("orders", 0, build([b"i1"])),
                staged[0],
                staged[1],
                InlinePart("orders", 2, large),
                InlinePart("orders", 2, build([b"i2"])),
                InlinePart("orders", 2, Frames()),
            ],
        )
        assert result.applied
        assert [tuple(each) for each in result.ranges] == [
            ("orders", 0, 0, 3),
            ("orders", 1, 1, 2),
            ("orders", 2, 0, 2_001),
        ]
        topic = log.topic("orders")
        assert [record.value for record in topic.read(partition=0)] == [b"i1", b"s1", b"s2"]
        assert [record.value for record in topic.read(partition=1)] == [b"before", b"s3"]
        assert topic.read(partition=2, last=1).first().value == b"i2"
        assert staged_files(log) == []
        assert log.verify().ok
        topic.append("after", partition=0)
        assert log.verify().ok

    def test_a_partition_that_was_never_written_to(self, log):
        log.topic("orders", partitions=2)
        part = pickle.loads(pickle.dumps(stage(log, "orders", 1, build([b"x"] * 10))))
        assert part.records == 10
        assert commit(log, [part]).ranges[0].stop == 10

    def test_many_workers_stage_for_one_partition(self, log):
        log.topic("orders", partitions=1)
        parts = [stage(log, "orders", 0, build([f"{worker}"] * 500)) for worker in range(5)]
        assert commit(log, parts).ranges[0].stop == 2_500
        assert [record.text for record in log.topic("orders").read()][::500] == ["0", "1", "2", "3", "4"]
        assert staged_files(log) == []
        assert log.verify().ok

    def test_a_repeated_batch_changes_nothing(self, log):
        log.topic("orders", partitions=1)
        assert applied(log, "query") is None
        first = commit(log, [InlinePart("orders", 0, build([b"1"]))], ("query", 7))
        assert first.applied
        assert applied(log, "query") == 7
        again = stage(log, "orders", 0, build([b"1"]))
        assert commit(log, [again], ("query", 7)) == CommitResult(False, ())
        assert commit(log, [], ("query", 3)) == CommitResult(False, ())
        assert staged_files(log) == []
        assert log.topic("orders").read().count() == 1
        assert commit(log, [], ("query", 8)).applied
        assert commit(log, [InlinePart("orders", 0, build([b"2"]))], ("other", 0)).applied
        assert (applied(log, "query"), applied(log, "other")) == (8, 0)
        assert [info.name for info in log.topics()] == ["orders"]

    def test_markers_survive_and_reach_other_processes(self, log):
        log.topic("orders", partitions=1)
        commit(log, [InlinePart("orders", 0, build([b"1"]))], ("query", 1))
        script = (
            "import sys, tailrace\n"
            "from tailrace.bulk import *\n"
            "with tailrace.open(sys.argv[1]) as log:\n"
            "    assert applied(log, 'query') == 1\n"
            "    print(commit(log, [InlinePart('orders', 0, build([b'1']))], ('query', 1)).applied)\n"
            "    print(commit(log, [InlinePart('orders', 0, build([b'2']))], ('query', 2)).applied)\n"
        )
        run = subprocess.run([sys.executable, "-c", script, log.location], capture_output=True, check=True, text=True)
        assert run.stdout.split() == ["False", "True"]
        assert applied(log, "query") == 2
        assert not commit(log, [InlinePart("orders", 0, build([b"2"]))], ("query", 2)).applied
        assert log.topic("orders").read().count() == 2

    def test_the_same_batch_from_many_threads_is_applied_once(self, log):
        log.topic("orders", partitions=1)
        log.topic("other", partitions=1)
        for batch in range(5):
            results = []
            barrier = threading.Barrier(4)

            def run(batch=batch, barrier=barrier, results=results):
                barrier.wait()
                parts = [InlinePart(name, 0, build([str(batch)])) for name in ("orders", "other")]
                results.append(commit(log, parts, ("query", batch)).applied)

            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(results) == [False, False, False, True]
        assert [record.text for record in log.topic("orders").read()] == ["0", "1", "2", "3", "4"]
        assert log.topic("other").read().count() == 5

    def test_markers_do_not_pile_up(self, log):
        retune(log, applied_records_max=20)
        log.topic("orders", partitions=1)
        for batch in range(120):
            assert commit(log, [InlinePart("orders", 0, build([b"x"]))], (f"query-{batch % 3}", batch)).applied
        partition = log.engine.partition(log.engine.entry(markers.TOPIC), 0)
        assert partition.end - partition.start < 60
        assert [applied(log, f"query-{number}") for number in range(3)] == [117, 118, 119]
        fresh = markers.Markers(log.engine, log.engine.entry(markers.TOPIC)).follow()
        assert [fresh.last(f"query-{number}") for number in range(3)] == [117, 118, 119]
        assert not commit(log, [], ("query-0", 117)).applied

    def test_what_is_gone_is_not_committed(self, log):
        topic = log.topic("orders")
        topic.append("x")
        part = stage(log, "orders", 0, build([b"1"]))
        assert abandon(log, [part]) == 1
        assert abandon(log, [part]) == 0
        with pytest.raises(StorageError, match="gone"):
            commit(log, [part])
        used = stage(log, "orders", 0, build([b"1"]))
        commit(log, [used])
        with pytest.raises(StorageError, match="gone"):
            commit(log, [used])
        assert topic.read().count() == 2
        old = stage(log, "orders", 0, build([b"1"]))
        topic.drop()
        log.topic("orders").append("y")
        with pytest.raises(TopicNotFoundError, match="dropped"):
            commit(log, [old])
        with pytest.raises(ValueError, match="no records"):
            stage(log, "orders", 0, Frames())

    def test_sweeping(self, log):
        log.topic("orders", partitions=1)
        stage(log, "orders", 0, build([b"1"]))
        assert sweep_staged(log) == 0
        assert len(staged_files(log)) == 1
        assert sweep_staged(log, older_than=0) == 1
        assert staged_files(log) == []

    def test_a_failed_commit_leaves_nothing_behind(self, log):
        log.topic("orders", partitions=1)
        part = stage(log, "orders", 0, build([b"1"]))
        with pytest.raises(TopicNotFoundError):
            commit(log, [part, InlinePart("orders", 0, build([b"2"])), InlinePart("absent", 0, build([b"3"]))])
        assert [str(file) for file in staged_files(log)] == [part.path]
        assert log.topic("orders").read().count() == 0
        assert commit(log, [part]).applied


def test_sweeping_leaves_what_a_failed_partition_waits_for(tmp_path, tailrace_faults, monkeypatch):
    """A commit whose rename fails is decided: the journal names the staged file, and recovery adopts it."""
    log = tailrace.open(tmp_path / "shelf")
    log.topic("a", partitions=1)
    part = stage(log, "a", 0, build(["1", "2"]))
    fault = tailrace_faults.fail("rename", errno=5)
    with pytest.raises(CommittedNotVisibleError):
        commit(log, [part], ("job", 1))
    assert fault.fired
    assert sweep_staged(log, older_than=0) == 0
    log.close()
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    with tailrace.open(tmp_path / "shelf") as again:
        assert [record.text for record in again.topic("a").read()] == ["1", "2"]
