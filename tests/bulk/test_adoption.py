"""Several staged segments for one partition: adopted in one commit, whole or absent wherever a process dies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tailrace
from tailrace import bulk, settings, testing
from tailrace.bulk import InlinePart, build, commit, stage
from tailrace.errors import TailraceError

COUNT = 3


@pytest.fixture(autouse=True)
def _adopt_small_ones(monkeypatch):
    monkeypatch.setattr(settings, "TUNING", settings.TUNING._replace(adopt_alone_bytes_min=1))
    # A log for each death: what a journal is filled with would be most of the work.
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "256KiB")


@pytest.fixture
def steering():
    with testing.steered() as steered:
        yield steered


def numbers(topic, partition=None):
    return [int(record.text) for record in topic.read(partition=partition)]


def staged_files(log):
    return sorted(Path(log.location).glob("topics/*/*/*.staged"))


def parts_of(log, first=0):
    """Segments of several tasks for two partitions, and some frames that come along."""
    made = []
    for at in range(COUNT):
        for partition in (0, 1):
            low = first + 100 * at + 50 * partition
            made.append(stage(log, "a", partition, build([str(number) for number in range(low, low + 50)])))
    return [*made, InlinePart("a", 1, build([str(first + 100 * COUNT)]))]


def test_each_becomes_a_segment_without_a_copy(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("a", partitions=2)
        topic.append("7777", partition=0)
        parts = parts_of(log)
        inodes = {Path(part.path).stat().st_ino for part in parts if isinstance(part, bulk.StagedPart)}
        result = commit(log, parts, ("job", 1))
        assert result.applied
        assert result.ranges == (bulk.Committed("a", 0, 1, 151), bulk.Committed("a", 1, 0, 151))
        assert numbers(topic, 0) == [7777, *range(50), *range(100, 150), *range(200, 250)]
        assert numbers(topic, 1) == [*range(50, 100), *range(150, 200), *range(250, 300), 300]
        kept = {path.stat().st_ino for path in Path(log.location).glob("topics/*/*/*")}
        assert inodes <= kept
        assert staged_files(log) == []
        topic.extend(["1", "2"], partition=0)
        assert numbers(topic, 0)[-2:] == [1, 2]
        assert log.verify().ok
    with tailrace.open(tmp_path / "log", "r") as log:
        assert len(numbers(log.topic("a"))) == 304


def test_a_copied_log_recovers(tmp_path, monkeypatch):
    """Nothing of the tails is believed there: what the segments and the journal say must be enough."""
    with tailrace.open(tmp_path / "log") as log:
        log.topic("a", partitions=2)
        commit(log, parts_of(log), ("job", 1))
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        (tmp_path / "copy" / "tails").unlink()
    with tailrace.open(tmp_path / "copy") as log:
        assert sorted(numbers(log.topic("a"))) == [*range(301)]
        assert bulk.applied(log, "job") == 1
        assert log.verify().ok


def run(log):
    commit(log, parts_of(log), ("job", 1))


def test_killed_at_every_point(tmp_path, steering):
    with tailrace.open(tmp_path / "survey") as log:
        log.topic("a", partitions=2)
        commit(log, [], ("warm", 1))
        passed = steering.faults.kill(run, log, at="removed", n=10**6, check=False).passed
    assert passed["rename"] == 2 * COUNT + 1
    deaths = [
        (point, n)
        for point, count in passed.items()
        for n in (range(1, count + 1) if "rename" in point else sorted({1, (count + 1) // 2, count}))
    ]
    for number, (point, n) in enumerate(deaths):
        # Every other one is met on another boot, as far as the log can tell: journal and segments are all there is.
        copied = bool(number % 2)
        folder = tmp_path / f"{point}-{n}"
        log = tailrace.open(folder)
        try:
            topic = log.topic("a", partitions=2)
            commit(log, [], ("warm", 1))
            steering.faults.kill(run, log, at=point, n=n)
            if copied:
                shutil.copytree(folder, f"{folder}-copy")
                log.close()
                log = tailrace.open(f"{folder}-copy")
                topic = log.topic("a")
            topic.append("9999", partition=0)
            found = sorted(numbers(topic))
            assert found in ([9999], [*range(301), 9999]), (point, n, copied, len(found))
            commit(log, parts_of(log), ("job", 1))
            assert sorted(numbers(topic)) == [*range(301), 9999], (point, n, copied)
            bulk.sweep_staged(log, 0)
            assert staged_files(log) == []
            assert log.verify().ok
        finally:
            log.close()


@pytest.mark.parametrize("n", range(1, 2 * COUNT + 2))
def test_a_rename_that_fails_shows_nothing_of_its_partition(tmp_path, steering, n):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("a", partitions=2)
        fault = steering.faults.fail("rename", n, 28)
        with pytest.raises(TailraceError):
            run(log)
        assert fault.fired
        # A full disk: the commit is decided, and the next write finishes it.
        topic.append("9999", partition=0)
        topic.append("9998", partition=1)
        assert sorted(numbers(topic)) == [*range(301), 9998, 9999]
        assert log.verify().ok


def test_frames_and_a_segment_for_one_partition_are_refused(tmp_path):
    from tailrace.disk.staging import Write

    with tailrace.open(tmp_path / "log") as log:
        log.topic("a", partitions=1)
        partition = log.engine.partition(log.engine.entry("a"), 0)
        frames, segment = build(["1"]).prepared, stage(log, "a", 0, build(["2"])).segment
        for writes in (
            [Write(partition, frames), Write(partition, (), None, segment)],
            [Write(partition, (), None, segment), Write(partition, frames)],
        ):
            with pytest.raises(ValueError, match="several segments"):
                log.engine.store.committer.commit(writes)
        assert numbers(log.topic("a")) == []
        log.topic("a").append("3")
        assert numbers(log.topic("a")) == [3]
