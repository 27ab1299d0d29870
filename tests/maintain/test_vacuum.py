"""The vacuum on real files: what goes and what stays, readers beside it, the thread that does it, a full disk."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import tailrace
from tailrace import errors
from tailrace.disk import admin as admins
from tests.full_disk import mounted, take_all_space
from tests.processes import run, start
from tests.tuning import retune
from tests.vacuuming import HOUR, Clock, bases, clock, files, fill, log, size, tune, values

__all__ = ["clock", "log", "tune"]


# What goes.


def test_a_topic_without_a_limit_is_not_touched(log, clock):
    topic = log.topic("orders", segment_bytes=4096)
    fill(topic, 2)
    clock.forward(1_000 * HOUR)
    report = log.vacuum()
    assert (report.segments, [note.why for note in report.kept]) == (0, ["no limit is set"] * 2)
    assert values(topic) == [*range(6)]


def test_an_empty_partition_is_recovered_with_its_end(tmp_path, clock, tune, monkeypatch):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders", segment_bytes=4096, retain="1h")
        fill(topic, 2)
        clock.forward(2 * HOUR)
        assert log.vacuum().segments == 2
        assert bases(topic) == [6]
    (tmp_path / "log" / "tails").unlink()
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    with tailrace.open(tmp_path / "log") as log:
        assert log.topic("orders").offsets()[0] == (6, 6, 6)
        assert log.topic("orders").append("x").offset == 6
        assert log.verify().ok
    (segment,) = (tmp_path / "log" / "topics").rglob("*.seg")
    segment.unlink()
    (tmp_path / "log" / "tails").unlink()
    with tailrace.open(tmp_path / "log") as log, pytest.raises(errors.CorruptionError):
        log.topic("orders").append("y")


def test_segments_that_are_not_set_keep_the_bound(log):
    topic = log.topic("orders", retain_bytes="1MiB")
    for _ in range(40):
        topic.extend([b"x" * 10_000] * 10)
    log.vacuum()
    assert 1 << 20 <= size(topic) <= (1 << 20) + (128 << 10)
    assert log.topics()[0].derived == ("segment_bytes",)


def test_segments_that_are_not_set_follow_an_altered_limit_with_the_next_roll(log, tmp_path):
    topic = log.topic("orders")
    topic.extend([b"x" * 10_000] * 100)
    assert (topic.settings["segment_bytes"], log.topics()[0].derived) == (256 << 20, ())
    alter = "log.topic('orders').alter(retain_bytes='64KiB')"
    run(f"import sys, tailrace\nwith tailrace.open(sys.argv[1]) as log: {alter}", tmp_path / "log")
    assert topic.settings["segment_bytes"] == 8_192
    fill(topic, 30)
    log.vacuum()
    assert size(topic) <= 65_536 + 8_192
    topic.alter(retain_bytes=None)
    assert topic.settings["segment_bytes"] == 256 << 20


def test_settings_altered_by_another_process_count_at_once(log, clock, tmp_path):
    topic = log.topic("orders", segment_bytes=4096, retain="1h")
    fill(topic, 3)
    clock.forward(2 * HOUR)
    run(
        "import sys, tailrace\nwith tailrace.open(sys.argv[1]) as log: log.topic('orders').alter(retain='forever')",
        tmp_path / "log",
    )
    assert log.vacuum().segments == 0
    assert len(values(topic)) == 9


def test_settings_altered_in_the_middle_of_a_vacuum_count(log, clock, monkeypatch):
    topic = log.topic("orders", segment_bytes=4096, retain="1h")
    fill(topic, 3)
    clock.forward(2 * HOUR)
    forget = admins.Admin.forget

    def altered_before(self, cuts):
        topic.alter(retain="forever")
        return forget(self, cuts)

    with monkeypatch.context() as patch:
        patch.setattr(admins.Admin, "forget", altered_before)
        report = log.vacuum()
    assert report.segments == 0
    assert report.kept[-1].why.startswith("its topic was changed meanwhile")
    assert len(values(topic)) == 9


def test_nothing_is_recorded_for_a_partition_that_is_damaged(log, tmp_path):
    topic = log.topic("orders", segment_bytes=4096, retain_bytes=4096)
    fill(topic, 4)
    newest, last = files(topic)[-1], log.engine.partition(log.engine.entry("orders"), 0).state.last
    log.close()
    with newest.open("r+b") as file:
        file.seek(last)
        file.write(b"\xff" * 8)
    with tailrace.open(tmp_path / "log") as again:
        report = again.vacuum()
        assert not report.removed
        assert any("read-only" in note.why for note in report.kept)
        assert again.engine.entry("orders").trims == {}
        assert again.topic("orders").offsets()[0].earliest == 0


def test_internal_topics_are_not_touched(log, clock):
    topic = log.topic("orders", retain="1h", segment_bytes=4096)
    fill(topic, 2)
    with log.consumer("orders", group="billing") as consumer:
        assert len(consumer.poll(100)) == 6
        consumer.commit()
    clock.forward(1_000 * HOUR)
    report = log.vacuum()
    assert report.segments == 2
    assert {note.topic for note in (*report.removed, *report.kept)} == {"orders"}
    assert [group.name for group in log.groups()] == ["billing"]


# Groups.


def read(log, group: str, count: int) -> None:
    with log.consumer("orders", group=group, commit="manual") as consumer:
        assert len(consumer.poll(count)) == count
        consumer.commit()


def test_what_every_group_has_read_goes(log, clock):
    topic = log.topic("orders", segment_bytes=4096, retain="read")
    fill(topic, 4)
    assert {note.why for note in log.vacuum().kept} == {"no group reads the topic", "active segment"}
    read(log, "billing", 7)
    read(log, "audit", 5)
    report = log.vacuum()
    assert [(note.first, note.why) for note in report.removed] == [(0, "read by every group: audit, billing")]
    assert report.kept[0].why == "group audit has not read it: it is at 5"
    read(log, "audit", 7)
    read(log, "billing", 5)
    assert log.vacuum().segments == 2
    assert bases(topic) == [9]
    clock.forward(61)
    assert log.vacuum().segments == 1
    assert topic.offsets()[0] == (12, 12, 12)
    read_on = topic.append("x")
    assert read_on.offset == 12
    read(log, "billing", 1)


def test_what_is_due_waits_for_the_groups_that_are_named(log, clock):
    topic = log.topic("orders", segment_bytes=4096, retain="1h", keep_unread=["billing"])
    fill(topic, 3)
    read(log, "audit", 1)
    clock.forward(2 * HOUR)
    report = log.vacuum()
    assert report.segments == 0
    assert report.kept[0].why == "group billing is waited for, and does not read the topic yet"
    read(log, "billing", 4)
    assert [note.first for note in log.vacuum().removed] == [0]
    topic.alter(keep_unread=True)
    assert log.vacuum().kept[0].why == "group audit has not read it: it is at 1"
    topic.alter(keep_unread=False)
    assert log.vacuum().records == 6


# Readers beside it.


@pytest.mark.parametrize("io", ["pread", "mmap"])
def test_a_scan_in_a_segment_that_goes(tmp_path, clock, tune, io):
    with tailrace.open(tmp_path / "log", io=io) as log:
        topic = log.topic("orders", segment_bytes=4096, retain="1h")
        fill(topic, 400)
        scans = {name: topic.read(start, reverse=back) for name, start, back in
                 (("earliest", "earliest", False), ("offset", 5, False), ("reverse", 5, True))}  # fmt: skip
        running = {name: iter(scan) for name, scan in scans.items()}
        for iterator in running.values():
            next(iterator)
        unread = iter(topic.read())
        clock.forward(2 * HOUR)
        fill(topic, 2)
        assert log.vacuum().segments == 400
        for name, iterator in running.items():
            seen: list[tailrace.Record] = []
            with pytest.raises(errors.OffsetOutOfRangeError) as caught:
                seen.extend(iterator)
            assert len(seen) < 1_200, name
            assert (caught.value.earliest, caught.value.latest) == (1_200, 1_206)
        assert [record.offset for record in unread] == [*range(1_200, 1_206)]
        with pytest.raises(errors.OffsetOutOfRangeError) as caught:
            topic.get(7)
        assert caught.value.earliest == 1_200


def test_readers_and_writers_go_on(log, tmp_path):
    """A writer and readers of two processes beside a vacuum that never stops: nothing but gone offsets is raised."""
    topic = log.topic("orders", segment_bytes=4096, retain_bytes=20_000)
    fill(topic, 8)
    reader = start(
        """
        import sys, tailrace
        from tailrace import errors
        seen, gone = 0, 0
        with tailrace.open(sys.argv[1], "r") as log:
            print("ready", flush=True)
            while True:
                try:
                    for record in log.topic("orders").read():
                        seen += 1
                        if record.value == b"end":
                            print(seen, gone)
                            sys.exit()
                except errors.OffsetOutOfRangeError:
                    gone += 1
        """,
        tmp_path / "log",
    )
    assert reader.stdout is not None
    assert reader.stdout.readline().strip() == "ready"
    deadline = time.monotonic() + 2.0
    written = removed = 0
    while time.monotonic() < deadline:
        fill(topic, 2)
        written += 6
        removed += log.vacuum().segments
        assert size(topic) <= 20_000 + 4096
    topic.append("end")
    printed, complaint = reader.communicate(timeout=60)
    assert reader.returncode == 0, complaint
    assert removed >= 3
    assert int(printed.split()[0]) > 0
    assert topic.offsets()[0].latest == 24 + written + 1


def test_moving_through_many_segments_lists_the_directory_once(log, monkeypatch):
    topic = log.topic("orders", segment_bytes=4096, durable=False)
    fill(topic, 60)
    listed = []
    monkeypatch.setattr(Clock, "list_directory", lambda self, path: (listed.append(path), sorted(os.listdir(path)))[1])
    assert values(topic) == [*range(180)]
    assert len(listed) == 1
    assert [record.offset for record in topic.read(reverse=True)] == [*range(179, -1, -1)]
    assert len(listed) == 2


def test_it_needs_a_handle_that_writes_unless_it_is_dry(tmp_path, log, clock):
    topic = log.topic("orders", segment_bytes=4096, retain="1h")
    fill(topic, 3)
    clock.forward(2 * HOUR)
    with tailrace.open(tmp_path / "log", "r") as reading:
        assert reading.vacuum(dry_run=True).segments == 3
        with pytest.raises(errors.ReadOnlyError):
            reading.vacuum()
    with pytest.raises(TypeError, match="dry_run"):
        log.vacuum(dry_run=1)  # type: ignore[arg-type]
    log.close()
    with pytest.raises(errors.ClosedError):
        log.vacuum()


# The catalog.


@pytest.fixture
def small_catalog(log):
    retune(log, catalog_segment_bytes=2_000, catalog_topic_bytes=1)


def catalog(log) -> list[str]:
    return sorted(path.name for path in (Path(log.location) / "catalog").glob("*.seg"))


def test_old_catalog_segments_go(log, small_catalog, tmp_path, monkeypatch):
    follower = start(
        """
        import sys, tailrace
        with tailrace.open(sys.argv[1]) as log:
            log.topics()
            print("ready", flush=True)
            sys.stdin.readline()
            print([topic.name for topic in log.topics()], log.topic("b").append("x").offset)
        """,
        tmp_path / "log",
    )
    assert follower.stdout is not None
    assert follower.stdout.readline().strip() == "ready"
    log.topic("a").append("x")
    for _ in range(30):
        log.topic("b").append("x")
        log.topic("b").drop()
    log.topic("b").append("x")
    assert len(catalog(log)) > 2
    log.vacuum()
    assert len(catalog(log)) == 1
    assert catalog(log)[0] > "0" * 20
    printed, complaint = follower.communicate("\n", timeout=30)
    assert printed.strip() == "['a', 'b'] 1", complaint
    assert log.verify().ok
    log.close()
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    with tailrace.open(tmp_path / "log") as again:
        assert [topic.name for topic in again.topics()] == ["a", "b"]
        again.topic("c").append("x")


def test_a_catalog_may_begin_later_only_with_a_snapshot(log, small_catalog, tmp_path, monkeypatch):
    for number in range(20):
        log.topic(f"t{number}").append("x")
    first, *others = catalog(log)
    assert others
    log.close()
    folder = tmp_path / "log" / "catalog"
    shutil.copytree(tmp_path / "log", tmp_path / "other")
    # Without the first segment nothing is lost, since the second says it all.
    (folder / first).unlink()
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    with tailrace.open(tmp_path / "log") as again:
        assert len(again.topics()) == 20
    # A first segment under a later name is no beginning.
    folder = tmp_path / "other" / "catalog"
    for name in others:
        (folder / name).unlink()
    (folder / first).rename(folder / others[0])
    with pytest.raises(errors.CorruptionError, match="catalog is damaged"):
        tailrace.open(tmp_path / "other")


def test_the_catalog_keeps_room_for_removals(log):
    log.topic("orders").append("x")
    (name,) = catalog(log)
    position = log.engine.store.tails.read_block(0)[1].position
    assert (Path(log.location) / "catalog" / name).stat().st_size >= position + log.engine.tuning.catalog_ahead_bytes


# A full disk.


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request, tmp_path):
    """A real file system of 16 MiB, where this user may mount one."""
    with mounted(tmp_path, request.param, 16 << 20) as place:
        yield place


def append_until_full(topic, written: list[int]) -> None:
    for number in range(10_000):
        topic.append(os.urandom(20_000), partition=number % 2)
        written[number % 2] += 1


def test_a_really_full_disk_can_be_vacuumed(small_disk, tune):
    with tailrace.open(small_disk / "log", durable=False) as log:
        topic = log.topic("orders", partitions=2, segment_bytes="128KiB", retain_bytes="512KiB")
        written = [0, 0]
        with pytest.raises(errors.DiskFullError):
            append_until_full(topic, written)
        take_all_space(small_disk / "filler")
        assert log.stats().free_bytes == 0
        assert log.stats().nearly_full
        with pytest.raises(errors.DiskFullError):
            append_until_full(topic, written)
        before = topic.offsets()
        report = log.vacuum()
        assert report.segments > 10
        assert log.stats().free_bytes > 1 << 20
        after = topic.offsets()
        assert [after[index].latest for index in (0, 1)] == [before[index].latest for index in (0, 1)] == written
        assert len(values(topic)) == sum(bounds.latest - bounds.earliest for bounds in after.values())
        assert topic.append(os.urandom(20_000), partition=0).offset == written[0]
    with tailrace.open(small_disk / "log") as log:
        assert log.verify().ok


def test_hundreds_of_removals_fit_on_a_full_disk(small_disk, tune):
    """Each frees next to nothing, and something else takes it at once."""
    with tailrace.open(small_disk / "log", durable=False) as log:
        topic = log.topic("orders", segment_bytes=4096)
        fill(topic, 210)
        log.sync()
        take_all_space(small_disk / "filler")
        for number in range(200):
            assert topic.trim(3 * number + 1) > 0
            take_all_space(small_disk / "filler")
        assert topic.offsets()[0].earliest == 598


# Restarts under load.


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [8, pytest.param(20, marks=pytest.mark.long)])
def test_restarts_under_load_keep_the_bound(tmp_path, restarts):
    """Two writers at a time, killed without warning every other time: limit plus one segment a partition."""
    program = """
        import os, sys, time, tailrace
        from tailrace import settings
        from tailrace.settings import Tuning
        settings.TUNING = Tuning(vacuum_seconds=0.05, flush_seconds=0.02)
        log = tailrace.open(sys.argv[1], durable=False)
        topic = log.topic("orders", partitions=3, segment_bytes=16_384, retain_bytes=131_072)
        number = 0
        until = time.monotonic() + 0.4
        while time.monotonic() < until:
            topic.append(os.urandom(1_000), partition=number % 3)
            number += 1
            time.sleep(0.0005)
        if sys.argv[2] == "killed":
            os._exit(1)
        log.close()
    """
    bound = 131_072 + 3 * 16_384
    peaks = []
    for restart in range(restarts):
        ending = "killed" if restart % 2 else "closed"
        writers = [start(program, tmp_path / "log", ending) for _ in range(2)]
        for writer in writers:
            _, complaint = writer.communicate(timeout=60)
            assert writer.returncode == (restart % 2), complaint
        with tailrace.open(tmp_path / "log") as log:
            topic = log.topic("orders")
            peaks.append(size(topic))
            log.vacuum()
            assert size(topic) <= bound
            starts = [bounds.earliest for bounds in topic.offsets().values()]
            assert len(values(topic)) == sum(bounds.latest - bounds.earliest for bounds in topic.offsets().values())
    # By itself, without the vacuum by hand above, it is never far beyond.
    assert max(peaks) <= bound + 3 * 16_384, peaks
    assert all(starts)
