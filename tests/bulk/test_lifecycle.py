"""How staged segments end: committed, removed or swept, and never removed where they may be committed."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

import tailrace
from tailrace import bulk, testing
from tailrace.bulk import InlinePart, abandon, build, commit, commits, stage, sweep_staged
from tailrace.disk import staging
from tailrace.disk.commit import Committer
from tailrace.disk.files import Files
from tailrace.disk.staging import Write
from tailrace.errors import (
    CommittedNotVisibleError,
    DiskFullError,
    DurabilityError,
    StorageError,
    TopicNotFoundError,
)
from tests.tuning import retune, tuned

BIG = [b"y" * 100_000] * 12
HOUR_AND_MORE = 4_000.0


@pytest.fixture(autouse=True)
def _small_journal(monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "256KiB")


@pytest.fixture
def steering():
    with testing.steered() as steered:
        yield steered


@pytest.fixture
def log(tmp_path, steering):
    with tailrace.open(tmp_path / "log") as opened:
        opened.topic("a", partitions=1)
        opened.topic("b", partitions=1)
        yield opened


@pytest.fixture
def full(monkeypatch):
    """Adoptions into the topic "a" find no room while this is set."""
    flag = threading.Event()
    rename = Files.rename

    def refuse(files, source, target):
        if flag.is_set() and source.endswith(".staged") and "-a/" in source:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(files, source, target)

    monkeypatch.setattr(Files, "rename", refuse)
    return flag


def texts(log, topic="a"):
    return [record.text for record in log.topic(topic).read()]


def staged_files(log):
    return sorted(str(path) for path in Path(log.location).glob("topics/*/*/*.staged"))


def on_another_boot(log, tmp_path, monkeypatch):
    """What a recovery finds."""
    log.close()
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    with tailrace.open(tmp_path / "log") as again:
        assert again.verify().ok
        return texts(again)


class TestAbandon:
    @pytest.mark.parametrize(("point", "number"), [("rename", errno.ENOSPC), ("journal-sync", errno.EIO)])
    def test_what_the_next_commit_finishes_stays(self, log, steering, tmp_path, monkeypatch, point, number):
        part = stage(log, "a", 0, build(["1", "2"]))
        fault = steering.faults.fail(point, errno=number)
        with pytest.raises((CommittedNotVisibleError, DurabilityError)):
            commit(log, [part, InlinePart("b", 0, build(["x"]))])
        assert fault.fired
        assert abandon(log, [part]) == 0
        log.topic("a").append("3")
        assert texts(log) == ["1", "2", "3"]
        assert texts(log, "b") == ["x"]
        assert on_another_boot(log, tmp_path, monkeypatch) == ["1", "2", "3"]

    def test_what_waits_in_a_failed_partition_stays(self, log, steering, tmp_path, monkeypatch):
        part = stage(log, "a", 0, build(["1", "2"]))
        steering.faults.fail("rename", errno=errno.EIO)
        with pytest.raises(CommittedNotVisibleError):
            commit(log, [part])
        assert abandon(log, [part]) == 0
        assert staged_files(log) == [part.path]
        assert on_another_boot(log, tmp_path, monkeypatch) == ["1", "2"]

    def test_what_a_failed_journal_may_have_decided_stays(self, log, steering, tmp_path, monkeypatch):
        part, other = (stage(log, topic, 0, build(["1", "2"])) for topic in "ab")
        for n in (1, 2):
            steering.faults.fail("journal-sync", n)
        with pytest.raises(DurabilityError):
            commit(log, [part])
        # The look at what was decided fails too, and with it the log.
        assert abandon(log, [part, other]) == 0
        assert abandon(log, [part, other]) == 0
        assert sorted(staged_files(log)) == sorted([part.path, other.path])
        steering.faults.clear()
        with pytest.raises(DurabilityError):
            log.topic("a").append("3")
        with pytest.raises(DurabilityError):
            log.close()
        assert on_another_boot(log, tmp_path, monkeypatch) == ["1", "2"]

    def test_on_a_full_disk_what_no_commit_names_goes(self, log, full):
        named, other = stage(log, "a", 0, build(["1", "2"])), stage(log, "b", 0, build(["x"]))
        full.set()
        with pytest.raises(CommittedNotVisibleError):
            commit(log, [named])
        assert abandon(log, [named, other]) == 1
        assert staged_files(log) == [named.path]
        full.clear()
        log.topic("a").append("3")
        assert texts(log) == ["1", "2", "3"]

    def test_a_commit_under_way_is_waited_for(self, log, monkeypatch):
        """Between its look at the file and the rename of it."""
        part = stage(log, "a", 0, build(["1", "2"]))
        journal = Committer._journal
        removed = []
        thread = threading.Thread(target=lambda: removed.append(abandon(log, [part])))

        def held(committer, file, steps):
            thread.start()
            # Whoever does not wait for the lock is done by then.
            thread.join(0.3)
            journal(committer, file, steps)

        monkeypatch.setattr(Committer, "_journal", held)
        assert commit(log, [part]).applied
        thread.join()
        assert removed == [0]
        assert texts(log) == ["1", "2"]
        assert log.verify().ok

    def test_a_part_of_a_dropped_topic_is_gone_with_it(self, log):
        part = stage(log, "a", 0, build(["1"]))
        log.topic("a").drop()
        assert abandon(log, [part]) == 0
        log.topic("a").append("2")
        assert abandon(log, [part]) == 0
        assert texts(log) == ["2"]

    def test_only_parts_of_this_log_go(self, log, tmp_path):
        with tailrace.open(tmp_path / "other") as other:
            other.topic("a").append("1")
            part = stage(other, "a", 0, build(["2"]))
            assert abandon(log, [part]) == 0
            assert commit(other, [part]).applied


def test_a_repeated_batch_leaves_what_the_first_waits_for(log, full):
    """The marker is to be seen already, the rest of its commit has yet to find room."""
    part = stage(log, "a", 0, build(["1", "2"]))
    full.set()
    with pytest.raises(CommittedNotVisibleError):
        commit(log, [part], ("job", 1))
    assert bulk.applied(log, "job") == 1
    assert not commit(log, [part], ("job", 1)).applied
    assert staged_files(log) == [part.path]
    full.clear()
    log.topic("a").append("3")
    assert texts(log) == ["1", "2", "3"]


class TestOnce:
    @pytest.mark.parametrize("large", [True, False])
    def test_a_part_given_twice_is_refused(self, log, monkeypatch, large):
        if large:
            retune(log, adopt_alone_bytes_min=1)
        part = stage(log, "a", 0, build(["1", "2"]))
        for marker in (None, ("job", 1)):
            with pytest.raises(ValueError, match="given twice"):
                commit(log, [part, InlinePart("b", 0, build(["x"])), part], marker)
        assert texts(log) == texts(log, "b") == []
        assert staged_files(log) == [part.path]
        assert bulk.applied(log, "job") is None
        assert commit(log, [part]).applied
        assert texts(log) == ["1", "2"]

    @pytest.mark.parametrize("alone", [True, False])
    def test_a_part_committed_before_is_gone(self, log, alone):
        part = stage(log, "a", 0, build(["1"]))
        commit(log, [part] if alone else [part, InlinePart("a", 0, build(["2"]))])
        before = texts(log)
        for parts in ([part], [part, InlinePart("a", 0, build(["3"]))]):
            with pytest.raises(StorageError, match="gone") as caught:
                commit(log, parts)
            assert "if its records are not in the topic" in caught.value.hint
        assert texts(log) == before
        assert staged_files(log) == []

    def test_a_copied_part_is_looked_at_again_under_the_locks(self, log, monkeypatch):
        """What was abandoned while it was copied is not committed."""
        part = stage(log, "a", 0, build(["1"]))

        def then(partition, frames):
            made = combine(partition, frames)
            assert abandon(log, [part]) == 1
            return made

        combine = commits.combine
        monkeypatch.setattr(commits, "combine", then)
        with pytest.raises(StorageError, match="gone"):
            commit(log, [part, InlinePart("a", 0, build(["2"]))])
        assert texts(log) == []
        assert staged_files(log) == []

    def test_a_part_that_waits_for_room_is_not_copied_into_another_commit(self, log, full):
        part = stage(log, "a", 0, build(["1"]))
        full.set()
        with pytest.raises(CommittedNotVisibleError):
            commit(log, [part])
        full.clear()
        with pytest.raises(StorageError, match="gone"):
            commit(log, [part, InlinePart("a", 0, build(["2"]))])
        assert texts(log) == ["1"]
        assert staged_files(log) == []


class TestDrops:
    """The topic is dropped while a segment is staged in it, before or after its file is made."""

    @pytest.fixture(params=["salted", "place"])
    def dropping(self, log, request, monkeypatch):
        def into(module):
            function = getattr(module, request.param)

            def then(*args):
                monkeypatch.setattr(module, request.param, function)
                log.topic("a").drop()
                return function(*args)

            monkeypatch.setattr(module, request.param, then)

        return into

    def test_a_large_part_goes_to_the_successor(self, log, dropping):
        dropping(staging)
        with log.transaction() as transaction:
            transaction.extend("a", BIG)
            transaction.append("b", "x")
        assert log.topic("a").read().count() == len(BIG)
        assert texts(log, "b") == ["x"]
        assert staged_files(log) == []

    def test_the_commit_itself_says_so(self, log, dropping):
        partitions = [log.engine.partition(log.engine.entry(topic), 0) for topic in "ba"]
        dropping(staging)
        with pytest.raises(TopicNotFoundError, match="dropped"):
            log.engine.store.committer.commit([Write(each, build(BIG).prepared) for each in partitions])
        assert staged_files(log) == []
        assert texts(log, "b") == []

    def test_staging_says_so(self, log, dropping):
        dropping(staging)
        with pytest.raises(TopicNotFoundError, match="dropped"):
            stage(log, "a", 0, build(["1"]))
        assert staged_files(log) == []

    def test_a_commit_that_copies_says_so(self, log, dropping):
        part = stage(log, "a", 0, build(["1"]))
        dropping(staging)
        with pytest.raises(TopicNotFoundError, match="dropped"):
            commit(log, [part, InlinePart("a", 0, build(["2"]))])
        assert staged_files(log) == []

    def test_a_commit_that_finds_its_parts_gone_says_so(self, log, monkeypatch):
        part = stage(log, "a", 0, build(["1"]))
        look = commits.check_present

        def then(files, each):
            log.topic("a").drop()
            look(files, each)

        monkeypatch.setattr(commits, "check_present", then)
        with pytest.raises(TopicNotFoundError, match="dropped"):
            commit(log, [part])


# The smaller ones are staged too, because the journal has no room for them.
@pytest.mark.parametrize("size", [1_200_000, 300_000])
def test_a_full_disk_leaves_nothing_of_a_commit(log, steering, size):
    """Also not of those parts that had room: these were staged before the one that had none."""

    def write():
        with log.transaction() as transaction:
            for topic in "ab":
                transaction.append(topic, bytes(size))

    log.topic("a").append("1")
    log.topic("b").append("1")
    steering.faults.fill_disk(size * 3 // 2)
    with pytest.raises(DiskFullError, match="staging"):
        write()
    assert staged_files(log) == []
    steering.faults.free_disk()
    assert texts(log) == texts(log, "b") == ["1"]
    write()
    assert log.topic("b").read(last=1).first().value == bytes(size)
    assert staged_files(log) == []


class TestSweeping:
    @pytest.mark.parametrize("content", [b"", b"TRSEGMT1 and no more"])
    def test_a_file_without_a_header_goes_when_it_is_old(self, log, content):
        folder = Path(log.engine.partition(log.engine.entry("a"), 0).path)
        old, young = folder / f"{'ab' * 8}.staged", folder / f"{'cd' * 8}.staged"
        for path in (old, young):
            path.write_bytes(content)
        made = log.engine.files.now_us() / 1e6 - HOUR_AND_MORE
        os.utime(old, (made, made))
        assert sweep_staged(log) == 1
        assert staged_files(log) == [str(young)]

    def test_on_a_full_disk_what_no_commit_names_goes(self, log, full):
        named = stage(log, "a", 0, build(["1", "2"]))
        stage(log, "b", 0, build(["x"]))
        full.set()
        with pytest.raises(CommittedNotVisibleError):
            commit(log, [named])
        assert sweep_staged(log, older_than=0) == 1
        assert staged_files(log) == [named.path]
        full.clear()
        log.topic("a").append("3")
        assert texts(log) == ["1", "2", "3"]


class TestTheDoorOfTheStore:
    """Commits with staged segments and markers keep descriptors bounded and are counted, as other writes are."""

    def test_descriptors_stay_bounded(self, tmp_path):
        with tuned(open_partitions_max=10), tailrace.open(tmp_path / "many") as log:
            log.topic("wide", partitions=60)
            before = len(os.listdir("/proc/self/fd"))
            for batch in range(4):
                chosen = range(batch * 15, batch * 15 + 15)
                parts = [InlinePart("wide", index, build([f"{batch} {index}"])) for index in chosen]
                staged = stage(log, "wide", batch * 15, build(["staged"]))
                assert commit(log, [*parts[1:], staged], ("job", batch)).applied
            after = len(os.listdir("/proc/self/fd"))
        # Two descriptors a partition: its lock and its segment.
        assert after - before < 2 * (10 + 15 + 5)

    @pytest.mark.parametrize("marker", [None, ("job", 1)])
    def test_their_records_are_counted(self, tmp_path, marker):
        with tailrace.open(tmp_path / "counted") as log:
            log.topic("a", partitions=2)
            staged = stage(log, "a", 0, build(["1", "2", "3"]))
            assert commit(log, [staged, InlinePart("a", 1, build(["4"]))], marker).applied
        with tailrace.open(tmp_path / "counted", "r") as log:
            stats = log.stats()
        assert stats.appended_records == 4 + (marker is not None)
        assert stats.appended_bytes > 0

    def test_frames_beside_a_staged_segment_of_their_partition_become_one(self, log):
        parts = [stage(log, "a", 0, build(["1"])), InlinePart("a", 0, build(["2"])), stage(log, "a", 0, build(["3"]))]
        assert commit(log, parts).applied
        assert texts(log) == ["1", "2", "3"]
