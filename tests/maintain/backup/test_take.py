"""Backups of real logs: beside processes that write in every way, the second time, damaged, refused, restored."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import tailrace
from tailrace.disk.backup_point import LINKS
from tailrace.errors import (
    CorruptionError,
    DiskFullError,
    LockedError,
    NotALogError,
    OpenError,
    ReadOnlyError,
    StorageError,
)


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        yield log


def fill(log, name="orders", count=300, **settings):
    topic = log.topic(name, **{"partitions": 3, "segment_bytes": 4096, **settings})
    # In small writes, since one write lies in one segment.
    for first in range(0, count, 50):
        numbers = range(first, min(count, first + 50))
        topic.extend(
            [f"{name} {number}" for number in numbers], keys=[str(number) for number in numbers], durable=False
        )
    return topic


def texts(log, name="orders"):
    return [(record.partition, record.offset, record.key, record.value) for record in log.topic(name).read()]


def restored(tmp_path, backup="backup", to="again"):
    tailrace.Log.restore(tmp_path / backup, tmp_path / to)
    return tailrace.open(tmp_path / to)


def segments(path: Path):
    return sorted(path.glob("topics/*-orders/*/*.seg"))


# What it holds.


def test_everything_is_as_it_was(log, tmp_path):
    topic = fill(log)
    topic.append("with all", key="k", headers={"a": "1"}, timestamp=1_700_000_000_000_000)
    topic.append(None, key="gone")
    topic.trim({1: 20})
    fill(log, "packed", compress="zstd", retain="7d")
    with log.transaction() as tx:
        tx.append("orders", "both")
        tx.append("packed", "both")
    with log.consumer("orders", "billing", stop="now", commit="manual") as consumer:
        for number, _ in enumerate(consumer):
            if number == 99:
                consumer.commit()
                break
    log.sync()
    before = {name: texts(log, name) for name in ("orders", "packed")}
    offsets = {name: log.topic(name).offsets() for name in before}
    groups, settings = log.group("billing").to_json(), [info.settings for info in log.topics()]
    report = log.backup(tmp_path / "backup")
    assert (report.topics, report.partitions, report.damage) == (2, 6, ())
    assert report.records == sum(map(len, before.values()))
    assert report.copied_files == report.files >= 8
    assert report.copied_bytes == report.bytes
    with restored(tmp_path) as again:
        assert {name: texts(again, name) for name in before} == before
        assert {name: again.topic(name).offsets() for name in offsets} == offsets
        assert [info.settings for info in again.topics()] == settings
        shown = again.group("billing").to_json()
        for each in (groups, shown):
            for partition in each["partitions"]:
                partition.pop("lag_seconds")
        assert shown["partitions"] == groups["partitions"]
        assert again.verify().ok
        assert again.stats().id != log.stats().id
        again.topic("orders").append("goes on")
        again.topic("new").append("goes on")
    with tailrace.open(tmp_path / "again") as again:
        assert texts(again, "new") == [(0, 0, None, b"goes on")]


def test_markers_of_bulk_commits_are_there(log, tmp_path):
    from tailrace import bulk

    log.topic("orders", partitions=1)
    builder = bulk.FrameBuilder()
    builder.extend([b"tea"], None)
    part = bulk.InlinePart("orders", 0, builder.finish())
    assert bulk.commit(log, [part], ("app", 7)).applied
    log.backup(tmp_path / "backup")
    with restored(tmp_path) as again:
        assert not bulk.commit(again, [part], ("app", 7)).applied
        assert len(texts(again)) == 1


def test_an_empty_log(log, tmp_path):
    assert log.backup(tmp_path / "backup").records == 0
    with restored(tmp_path) as again:
        assert again.topics() == []
        again.topic("orders").append("tea")


def test_namespaces(log, tmp_path):
    fill(log, count=5)
    inner = log.namespace("Ten ant/1")
    fill(inner, count=7)
    with inner.namespace("deep") as deep:
        fill(deep, count=9)
    report = log.backup(tmp_path / "backup")
    assert (report.namespaces, report.records) == (2, 21)
    alone = inner.backup(tmp_path / "alone")
    assert (alone.namespaces, alone.records) == (1, 16)
    with restored(tmp_path) as again:
        assert again.namespaces() == ["Ten ant/1"]
        with again.namespace("Ten ant/1") as space, space.namespace("deep") as deep:
            assert (len(texts(again)), len(texts(space)), len(texts(deep))) == (5, 7, 9)
            assert len({again.stats().id, space.stats().id, deep.stats().id}) == 3
    with restored(tmp_path, "alone", "alone-again") as again:
        assert (len(texts(again)), again.namespaces()) == (7, ["deep"])
    inner.close()
    log.drop_namespace("Ten ant/1")
    assert log.backup(tmp_path / "backup").namespaces == 0
    assert len(list((tmp_path / "backup" / "data").iterdir())) == 1


def test_a_placeholder_of_a_dropped_and_trimmed_topic_is_not_copied(log, tmp_path):
    topic = fill(log, count=600)
    fill(log, "other", count=10)
    log.backup(tmp_path / "backup")
    before = {path.name for path in (tmp_path / "backup").glob("data/*/*")}
    topic.trim({0: 150, 1: 150, 2: 150})
    log.topic("other").drop()
    report = log.backup(tmp_path / "backup")
    after = {path.name for path in (tmp_path / "backup").glob("data/*/*")}
    assert len(after) == report.files < len(before)
    with restored(tmp_path) as again:
        assert texts(again) == texts(log)
        assert [info.name for info in again.topics()] == ["orders"]


# The second time.


def test_a_partition_with_the_slot_of_a_dropped_topic(log, tmp_path):
    """Slots that a drop freed are given to new partitions, so that a second one may stand before the first."""
    first, orders = log.topic("first", partitions=1), log.topic("orders", partitions=1)
    first.drop()
    orders.alter(partitions=2)
    orders.append("in the second", partition=1)
    log.backup(tmp_path / "backup")
    with restored(tmp_path) as copy:
        assert texts(copy) == texts(log) == [(1, 0, None, b"in the second")]


# Where it may go.


def test_what_is_refused(log, tmp_path):
    fill(log, count=3)
    with pytest.raises(OpenError, match="inside the log"):
        log.backup(tmp_path / "log" / "backup")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(OpenError, match="inside the log"):
        log.backup(tmp_path / "link" / "backup")
    with pytest.raises(OpenError, match="lies inside"):
        log.backup(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    with pytest.raises(NotALogError, match="letter"):
        log.backup(tmp_path / "full")
    (tmp_path / "file").write_text("dear")
    with pytest.raises(NotALogError, match="a file"):
        log.backup(tmp_path / "file")
    assert sorted(path.name for path in (tmp_path / "full").iterdir()) == ["letter"]
    log.backup(tmp_path / "backup")
    with tailrace.open(tmp_path / "other") as other, pytest.raises(OpenError, match="another log"):
        other.backup(tmp_path / "backup")
    with tailrace.open(tmp_path / "log", "r") as reader, pytest.raises(ReadOnlyError):
        reader.backup(tmp_path / "third")
    with pytest.raises(TypeError):
        log.backup(7)
    with pytest.raises(TypeError):
        log.backup(tmp_path / "third", progress=7)
    with pytest.raises(ValueError, match="empty"):
        log.backup("")
    assert not (tmp_path / "third").exists()


def test_one_at_a_time(log, tmp_path):
    """A backup holds its directory's lock, a restore shares it."""
    fill(log, count=3)
    log.backup(tmp_path / "backup")
    seen = []

    def progress(done, total):
        if not seen:
            seen.append((done, total))
            with pytest.raises(LockedError, match="in use"):
                log.backup(tmp_path / "backup")
            with pytest.raises(LockedError, match="being written"):
                tailrace.Log.restore(tmp_path / "backup", tmp_path / "again")

    log.topic("orders").append("one more")
    report = log.backup(tmp_path / "backup", progress=progress)
    assert seen
    assert seen[0][1] == report.copied_bytes


def test_an_error_of_the_caller_is_the_callers(log, tmp_path):
    fill(log, count=3)

    def progress(done, total):
        raise OSError(errno.EPIPE, "theirs")

    with pytest.raises(BrokenPipeError):
        log.backup(tmp_path / "backup", progress=progress)
    assert not list((tmp_path / "log" / LINKS).iterdir())
    assert log.backup(tmp_path / "backup").records == 3


# Damage.


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("allowed", [False, True])
def test_a_damaged_catalog_never_replaces_a_good_backup(log, tmp_path, allowed):
    fill(log)
    log.backup(tmp_path / "backup")
    before = texts(log)
    log.topic("new").append("there")
    flip(min((tmp_path / "log" / "catalog").glob("*.seg")), 64 + 96 + 9)
    with pytest.raises(CorruptionError, match="was not backed up"):
        log.backup(tmp_path / "backup", allow_damage=allowed)
    with restored(tmp_path) as again:
        assert texts(again) == before


def test_a_backup_with_a_damaged_catalog_is_refused_whatever_is_allowed(log, tmp_path):
    fill(log)
    log.backup(tmp_path / "backup")
    (catalog,) = (tmp_path / "backup").glob("data/*/00000000-00000-*.seg")
    flip(catalog, catalog.stat().st_size - 3)
    with pytest.raises(CorruptionError, match="The backup is damaged: its checksum is wrong") as told:
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "again", allow_damage=True)
    assert told.value.path == str(catalog)
    assert "allow" not in (told.value.hint or "")
    assert not (tmp_path / "again" / "tailrace.json").exists()


# Links.


def test_retention_does_not_take_what_is_being_copied(log, tmp_path):
    """Every record is trimmed when the first byte was copied: the backup has them all the same."""
    topic = fill(log, partitions=1, count=2_000)
    before = texts(log)
    trimmed = []

    def progress(done, total):
        if not trimmed:
            trimmed.append(topic.trim({0: 1_999}))

    log.backup(tmp_path / "backup", progress=progress)
    assert trimmed
    assert len(segments(tmp_path / "log")) == 1
    assert not list((tmp_path / "log" / LINKS).iterdir())
    with restored(tmp_path) as again:
        assert texts(again) == before


def test_links_of_a_dead_backup_are_swept(log, tmp_path):
    fill(log, count=3)
    left = tmp_path / "log" / LINKS / "0123456789abcdef"
    left.mkdir(parents=True)
    os.link(segments(tmp_path / "log")[0], left / "1-x.seg")
    log.backup(tmp_path / "backup")
    assert not left.exists()


def test_without_hard_links(log, tmp_path, monkeypatch):
    def link(source, target):
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr("tailrace.disk.files.os.link", link)
    topic = fill(log, partitions=1, count=2_000)
    log.backup(tmp_path / "backup")
    calls = []

    def progress(done, total):
        calls.append(topic.trim({0: 1_990}) if not calls else None)

    fill(log, "other", count=1_000)
    log.backup(tmp_path / "second", progress=progress)
    with restored(tmp_path, "second") as again:
        assert texts(again) == texts(log)

    def trim_always(done, total):
        fill(log, "busy", partitions=1, count=200)
        log.topic("busy").trim({0: log.topic("busy").offsets()[0].latest})

    fill(log, "busy", partitions=1, count=200)
    with pytest.raises((StorageError, CorruptionError)):
        log.backup(tmp_path / "third", progress=trim_always)
    assert not (tmp_path / "third" / "backup.json").exists()


def test_a_full_disk_is_told(log, tmp_path, monkeypatch):
    """The target has no room: the error names it, the backup of before stays, and the next one works."""
    fill(log, count=3)
    log.backup(tmp_path / "backup")
    before = (tmp_path / "backup" / "backup.json").read_bytes()
    log.topic("orders").append("more")

    def progress(done, total):
        monkeypatch.setattr(type(log.engine.files), "sync_data", full)

    def full(self, fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskFullError, match="backup") as told:
        log.backup(tmp_path / "backup", progress=progress)
    monkeypatch.undo()
    assert told.value.path == str(tmp_path / "backup")
    assert "backup that was there before is whole" in told.value.hint
    assert (tmp_path / "backup" / "backup.json").read_bytes() == before
    assert log.backup(tmp_path / "backup").records == 4


def test_a_full_log_disk(log, tmp_path, monkeypatch):
    """There is no room for links beside the log: the backup is made without them."""
    fill(log, count=3)
    make = type(log.engine.files).make_directory

    def no_room(self, path, exist_ok=True):
        if LINKS in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return make(self, path, exist_ok)

    monkeypatch.setattr(type(log.engine.files), "make_directory", no_room)
    assert log.backup(tmp_path / "backup").records == 3


# Killed.

KILLED = """
import os, signal, sys, tailrace
log = tailrace.open(sys.argv[1])
print(log.stats().id, flush=True)
calls = 0
def progress(done, total):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
log.backup(sys.argv[2], progress=progress)
"""


def test_a_killed_backup_leaves_the_one_before(log, tmp_path):
    topic = fill(log, count=1_000)
    log.backup(tmp_path / "backup")
    before = texts(log)
    topic.extend([f"later {number}" for number in range(1_000)], keys=[str(number) for number in range(1_000)])
    command = [sys.executable, "-c", KILLED, str(tmp_path / "log"), str(tmp_path / "backup"), "5"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60, check=False).returncode == -signal.SIGKILL
    assert list((tmp_path / "log" / LINKS).iterdir())
    with restored(tmp_path) as again:
        assert texts(again) == before
    log.backup(tmp_path / "backup")
    assert not list((tmp_path / "log" / LINKS).iterdir())
    assert not list((tmp_path / "backup").glob("data/*/*.part"))
    with restored(tmp_path, to="third") as again:
        assert texts(again) == texts(log)


# Beside others.


def _work(path: Path, name: str, seconds: float) -> None:
    """One process that writes in many ways, and notes what it was promised."""
    notes = os.open(path.parent / f"{name}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with tailrace.open(path) as log:
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            number += 1
            value = f"{name}.{number}"
            step = number % 10
            if step < 5:
                log.topic("plain").append(value, key=value, durable=step < 2)
                os.write(notes, f"plain {value}\n".encode())
            elif step < 8:
                with log.transaction() as tx:
                    tx.append("left", value, key=value)
                    tx.append("right", value * 20, key=value)
                os.write(notes, f"left {value}\n".encode())
            elif step == 8:
                log.topic("passing").append(value * 50, durable=False)
                latest = log.topic("passing").offsets()[0].latest
                if number % 50 == 8:
                    log.topic("passing").trim({0: latest - 1})
            elif number % 30 == 9:
                log.topic(f"short.{name}").append(value)
                log.topic(f"short.{name}").drop()
                log.vacuum()
        log.sync()


def _consume(path: Path, seconds: float) -> None:
    """One process that copies topic left to out, exactly once, and reads plain for a group."""
    with tailrace.open(path) as log:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            log.process("left", lambda record: record.value, "out", group="copier", stop="now", batch=16)
            with log.consumer("plain", "reader", stop="now", commit_every=10) as consumer:
                for _ in consumer:
                    pass


def _spawn(action, *arguments) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action(*arguments)
            code = 0
        finally:
            os._exit(code)
    return pid


@pytest.mark.slow
def test_beside_processes_that_write(tmp_path):
    """Backups one after another: what was acknowledged before each is in it, nothing is torn, no cursor is ahead."""
    path = tmp_path / "log"
    seconds = 7.0
    with tailrace.open(path) as log:
        for name in ("plain", "left", "right", "out"):
            log.topic(name, partitions=2, segment_bytes=8_192)
        log.topic("passing", segment_bytes=8_192, retain_bytes=20_000)
    pids = [_spawn(_work, path, f"w{number}", seconds) for number in range(3)] + [_spawn(_consume, path, seconds)]
    held, backups = [], 0
    try:
        with tailrace.open(path) as log:
            time.sleep(0.5)
            while os.waitpid(pids[0], os.WNOHANG) == (0, 0):
                promised = [line for notes in tmp_path.glob("*.notes") for line in notes.read_text().splitlines()]
                report = log.backup(tmp_path / "backup")
                held.append(report.journal_held_ms)
                backups += 1
                if backups % 4 == 1:
                    to = tmp_path / f"again{backups}"
                    tailrace.Log.restore(tmp_path / "backup", to)
                    _check(to, promised)
    finally:
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids[1:]]
    assert codes == [0, 0, 0]
    assert backups > 4
    assert min(held) < 50


def _check(path: Path, promised: list[str]) -> None:
    with tailrace.open(path) as log:
        assert log.verify().ok
        found = {name: [record.value.decode() for record in log.topic(name).read()] for name in ("plain", "left")}
        for name, values in found.items():
            wanted = [line.split()[1] for line in promised if line.split()[0] == name]
            assert not set(wanted) - set(values), f"lost from {name}"
            assert not [value for value, count in Counter(values).items() if count > 1]
        right = {record.key for record in log.topic("right").read()}
        assert right == {record.key for record in log.topic("left").read()}, "a transaction is torn"
        out = Counter(record.value.decode() for record in log.topic("out").read())
        assert not [value for value, count in out.items() if count > 1]
        for info in log.groups():
            latest = {}
            for partition in info.partitions:
                latest[partition.topic] = log.topic(partition.topic).offsets()
                assert (partition.position or 0) <= latest[partition.topic][partition.partition].latest
                if info.name == "copier":
                    position = partition.position or 0
                    left = list(log.topic("left").read(partition=partition.partition))
                    assert {each.text for each in left if each.offset < position} <= set(out)
                    assert not {each.text for each in left if each.offset >= position} & set(out)
        log.topic("plain").append("goes on")


@pytest.mark.parametrize("allowed", [False, True])
def test_a_partition_whose_slot_was_cleared_is_not_left_out_in_silence(tmp_path, allowed):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").extend(["tea", "milk"])
        log.topic("other").append("x")
        log.backup(tmp_path / "backup")
    with (tmp_path / "log" / "tails").open("r+b") as file:
        file.seek(4_096 + 256)
        file.write(bytes(256))
    with tailrace.open(tmp_path / "log") as log:
        with pytest.raises(CorruptionError, match=r"cleared.*orders") as caught:
            log.backup(tmp_path / "backup", allow_damage=allowed)
        assert (caught.value.topic, caught.value.partition, caught.value.first) == ("orders", 0, 0)
        with pytest.raises(CorruptionError, match="tails"):
            log.topic("orders").offsets()
        assert log.topic("other").offsets()[0].latest == 1
    with restored(tmp_path) as again:
        assert texts(again) == [(0, 0, None, b"tea"), (0, 1, None, b"milk")]
    tailrace.repair(tmp_path / "log")
    with tailrace.open(tmp_path / "log") as log:
        assert log.backup(tmp_path / "backup").records == 3
