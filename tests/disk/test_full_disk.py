"""A full disk: what a refused write took is given back, a trim frees space. On real file systems, tmpfs and ext4."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import tailrace
from tailrace import bulk
from tailrace import log as log_module
from tailrace.disk import partition as partitions
from tailrace.engine import background as workers
from tailrace.errors import DiskFullError
from tests.full_disk import free_bytes, mounted, take_all_space
from tests.processes import run
from tests.tuning import retune, tuned

MB = 1_000_000
# What a refused write may keep: a block or two of a directory, or of a segment that it created.
KEPT_BYTES = 32_768


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request, tmp_path):
    with mounted(tmp_path, request.param, 30 * MB) as place:
        yield place


@pytest.fixture
def log(disk, monkeypatch):
    """Topics with a record in each partition, and a journal of 8 MiB."""
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "8MiB")
    with tailrace.open(disk / "log") as log:
        for name in ("one", "two", "three", "other"):
            log.topic(name).append("x")
        for partition in range(8):
            log.topic("wide", partitions=8).append("x", partition=partition)
        with log.transaction() as tx:
            tx.append("one", "x")
            tx.append("two", "x")
        log.sync()
        yield log


def expect_refused(log, write) -> None:
    """A write is refused, the space is as before, and what fits is written by this process and by another."""
    place = Path(log.location).parent
    ends = {info.name: log.topic(info.name).offsets() for info in log.topics()}
    before = free_bytes(place)
    with pytest.raises(DiskFullError):
        write()
    assert free_bytes(place) >= before - KEPT_BYTES
    assert {info.name: log.topic(info.name).offsets() for info in log.topics()} == ends
    fits = b"y" * (before // 3)
    end = ends["other"][0].latest
    assert log.topic("other").append(fits).offset == end
    program = """
        import sys, tailrace
        with tailrace.open(sys.argv[1]) as log:
            print(log.topic("other").append(b"y" * int(sys.argv[2])).offset)
    """
    assert run(program, log.location, len(fits)).split() == [str(end + 1)]
    assert log.topic("other").get(end + 1).value == fits
    assert log.verify().ok
    assert not [finding for finding in log.doctor() if finding.severity == "error" and finding.code != "disk-full"]


def transact(log, size: int, *names: str) -> None:
    with log.transaction() as tx:
        for name in names:
            tx.append(name, os.urandom(size))


def test_a_journal_file_that_does_not_fit_is_given_back(disk):
    """By default it takes more than the whole disk."""
    with tailrace.open(disk / "log") as log:
        for name in ("one", "two", "other"):
            log.topic(name).append("x")
        log.sync()
        expect_refused(log, lambda: transact(log, 100, "one", "two"))
        expect_refused(log, lambda: transact(log, 100, "one", "two"))


def test_zeros_of_a_process_that_died_in_a_journal_file_are_given_back(disk):
    with tailrace.open(disk / "log") as log:
        for name in ("one", "two", "other"):
            log.topic(name).append("x")
        log.sync()
        before = free_bytes(disk)
        (disk / "log" / "journal" / "00000001.wal").write_bytes(bytes(20 * MB))
        with pytest.raises(DiskFullError, match="32MiB"):
            transact(log, 100, "one", "two")
        assert free_bytes(disk) >= before - KEPT_BYTES


def test_staged_parts_of_a_transaction_are_given_back(log):
    expect_refused(log, lambda: transact(log, 9 * MB, "one", "two", "three"))


def test_room_that_a_transaction_reserved_is_given_back(log, disk):
    """Parts below 1 MiB are reserved in their segments, one after another."""
    take_all_space(disk / "filler", 1_200_000)

    def write() -> None:
        with log.transaction() as tx:
            for partition in range(8):
                tx.append("wide", os.urandom(250_000), partition=partition)

    expect_refused(log, write)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("count", [1, 40])
def test_a_large_write_to_one_partition_is_given_back(log, durable, count):
    value = os.urandom(40 * MB // count)
    expect_refused(log, lambda: log.topic("one").extend([value] * count, durable=durable))


def test_a_write_that_is_refused_leaves_the_last_bytes_to_others(log, disk):
    take_all_space(disk / "filler", 300_000)
    expect_refused(log, lambda: log.topic("one").append(os.urandom(700_000), durable=False))


def test_zeros_ahead_of_a_write_leave_the_last_bytes_to_others(log, disk):
    """They are written behind a synced append where there is room, and are no reason to take the last of it."""
    take_all_space(disk / "filler", 400_000)
    log.topic("one").append(os.urandom(250_000))
    assert free_bytes(disk) >= 200_000
    assert log.topic("two").append(os.urandom(150_000)).offset == 2


def test_what_a_bulk_commit_wrote_is_given_back(log):
    frames = bulk.build([os.urandom(MB)] * 8)
    expect_refused(
        log, lambda: bulk.commit(log, [bulk.InlinePart(name, 0, frames) for name in ("one", "two", "three")])
    )


def test_what_a_bulk_stage_wrote_is_given_back(log):
    frames = bulk.build([os.urandom(MB)] * 30)
    expect_refused(log, lambda: bulk.stage(log, "one", 0, frames))


def test_appends_of_several_threads_need_no_journal_file_that_does_not_fit(disk):
    """Together they would be one commit by the journal; without room for that they are written one by one."""
    with tailrace.open(disk / "log") as log, ThreadPoolExecutor(4) as threads:
        topics = [log.topic(f"t{number}") for number in range(4)]

        def append(topic) -> list[int]:
            return [topic.append(b"x" * 1_000).offset for _ in range(50)]

        assert [*threads.map(append, topics)] == [[*range(50)]] * 4
        assert free_bytes(disk) > 20 * MB


# Freeing space.


def fill_up(log, disk) -> int:
    """One topic takes the disk, in one segment that is still written; not a byte is left. How many records it has."""
    topic = log.topic("large")
    with suppress(DiskFullError):
        while True:
            topic.append(os.urandom(20_000), durable=False)
    take_all_space(disk / "filler")
    assert free_bytes(disk) == 0
    return topic.offsets()[0].latest


@pytest.fixture
def quiet(monkeypatch):
    """No vacuum runs by itself."""
    monkeypatch.setattr(workers, "chores", None)


def test_a_trim_of_everything_frees_a_full_disk(disk, quiet):
    with tailrace.open(disk / "log") as log:
        log.topic("other").append("x")
        count = fill_up(log, disk)
        assert log.topic("large").trim("latest") == count
        assert free_bytes(disk) > 20 * MB
        assert (log.vacuum(dry_run=True).bytes, log.vacuum().bytes) == (0, 0), "nothing was left"
        assert log.topic("large").append("next").offset == count
        assert log.verify().ok
    with tailrace.open(disk / "log") as log:
        assert [record.text for record in log.topic("large").read()] == ["next"]


def test_a_trim_of_everything_frees_a_full_disk_at_a_shell(disk, quiet):
    with tailrace.open(disk / "log") as log:
        count = fill_up(log, disk)
    assert free_bytes(disk) == 0
    trim = ["topic", "trim", "large", "--before", "latest", "--yes"]
    command = [sys.executable, "-m", "tailrace", "-L", str(disk / "log"), *trim]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"Trimmed {count:,} records, 2\d(\.\d)? MiB freed\.\n", done.stderr), done.stderr
    assert free_bytes(disk) > 20 * MB


def test_a_vacuum_reports_what_a_trim_had_to_leave(disk, quiet, monkeypatch):
    """Here not even the zeros of the catalog are lent."""
    with tuned(catalog_lent_bytes=0), tailrace.open(disk / "log") as log:
        topic = log.topic("large")
        count = fill_up(log, disk)
        with pytest.raises(DiskFullError) as caught:
            topic.trim("latest")
        assert "are trimmed" in caught.value.hint
        assert "vacuum" in caught.value.hint
        assert topic.offsets()[0].earliest == count
        full = log.vacuum()
        assert (full.bytes, full.segments) == (0, 0)
        assert [(note.topic, note.first, note.last) for note in full.kept] == [("large", 0, count - 1)]
        assert "no room" in full.kept[0].why
        (disk / "filler").unlink()
        planned = log.vacuum(dry_run=True)
        before = free_bytes(disk)
        report = log.vacuum()
        assert (report.bytes, report.segments, report.records) == (planned.bytes, 1, 0)
        assert report.removed[0]._replace(sealed=True) == planned.removed[0]._replace(sealed=True)
        assert report.removed[0].why == "all of its records were trimmed"
        assert abs(free_bytes(disk) - before - report.bytes) <= KEPT_BYTES
        assert log.vacuum().bytes == 0


def test_a_trim_takes_along_what_an_earlier_one_left(disk, quiet, monkeypatch):
    with tailrace.open(disk / "log") as log:
        topic = log.topic("large")
        fill_up(log, disk)
        kept = log.engine.tuning.catalog_lent_bytes
        retune(log, catalog_lent_bytes=0)
        with pytest.raises(DiskFullError):
            topic.trim("latest")
        retune(log, catalog_lent_bytes=kept)
        assert topic.trim("latest") == 0
        assert free_bytes(disk) > 20 * MB


@pytest.mark.parametrize("begun", [False, True])
def test_a_trimmed_segment_that_could_not_go_is_no_damage(tmp_path, quiet, monkeypatch, begun):
    """It is sealed without room for its successor, or its process died before it was removed."""

    def fail(*_) -> None:
        raise OSError(errno.ENOSPC, "full") if begun else DiskFullError("full")

    location = tmp_path / "log"
    with tailrace.open(location) as log:
        topic = log.topic("large")
        for _ in range(20):
            topic.append(os.urandom(20_000))
        with monkeypatch.context() as patch:
            patch.setattr(partitions.Partition, "_remove" if begun else "_create", fail)
            with pytest.raises(DiskFullError):
                topic.trim("latest")
        assert log.verify().ok
        log.backup(tmp_path / "backup")
    assert not [each for each in tailrace.Log.diagnose(location) if each.severity == "error"]
    assert log_module.repair(location, dry_run=True).sound
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    tailrace.Log.restore(tmp_path / "backup", tmp_path / "restored")
    for place in (location, tmp_path / "restored"):
        with tailrace.open(place) as log:
            assert log.verify().ok
            assert log.topic("large").append("x").offset == 20
            log.vacuum()
            assert len([*(Path(log.location) / "topics").glob("*large/0/*")]) == 1


LEND = """
import sys
import tailrace

with tailrace.open(sys.argv[1]) as log:
    log.topic("first").append("x")
    store = log.engine.live
    catalog, ahead = store.catalog_partition, log.engine.tuning.catalog_ahead_bytes
    # As on a disk that is full, where there is no room to restore them.
    store.inside(catalog, lambda: catalog.lend(2 * ahead, ahead // 2))
"""


def test_zeros_that_another_process_lent_are_written_again(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("zero", partitions=1)
        catalog = log.engine.live.catalog_partition
        run(LEND, tmp_path / "log")
        lent = os.fstat(catalog.descriptor).st_size - catalog.state.position
        assert lent < log.engine.tuning.catalog_ahead_bytes
        log.topic("second", partitions=1)
        ahead = os.fstat(catalog.descriptor).st_size - catalog.state.position
        assert ahead >= log.engine.tuning.catalog_ahead_bytes
