"""Repairing where files are not the log's own, where the tails say nothing, and where a directory is gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tailrace
from tailrace import bulk
from tailrace.disk.salvage.source import READ_BYTES
from tailrace.disk.segment import HEADER_BYTES
from tailrace.disk.tails import HEADER_BYTES as TAILS_HEADER_BYTES
from tailrace.disk.tails import SLOT_BYTES
from tests.repairing import check, everything, flip, frames, path, segments
from tests.tuning import tuned

__all__ = ["path"]


def values(path: Path, topic: str = "orders") -> list[str]:
    with tailrace.open(path, "r") as log:
        return [record.text for record in log.topic(topic).read(on_damage="skip")]


def diverged(path: Path, sizes: tuple[int, int], batch: int) -> None:
    """Segments of a copy that lived on stand beside the log's own, as after `rsync` without `--delete`."""
    with tailrace.open(path, durable=False) as log:
        topic = log.topic("orders", segment_bytes=4_096)
        for number in range(5):
            topic.extend([f"common {number} {each}" for each in range(batch)])
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    for place, size in ((path, sizes[0]), (copy, sizes[1])):
        with tailrace.open(place, durable=False) as log:
            for number in range(200 // batch):
                log.topic("orders").extend([f"{place.name} {number} {each} ".ljust(size, "x") for each in range(batch)])
    own = {file.name for file in segments(path)}
    strays = [file for file in segments(copy) if file.name not in own]
    assert len(strays) > 2
    for file in strays:
        shutil.copy(file, segments(path)[0].with_name(file.name))


@pytest.mark.parametrize("batch", [1, 20])
def test_segments_of_a_copy_that_lived_on_do_not_take_the_place_of_the_logs_own(tmp_path, batch):
    path = tmp_path / "log"
    diverged(path, (50, 90), batch)
    before = [f"common {number} {each}" for number in range(5) for each in range(batch)]
    before += [f"log {number} {each} ".ljust(50, "x") for number in range(200 // batch) for each in range(batch)]
    planned = tailrace.repair(path, dry_run=True)
    assert not planned.lost
    report = tailrace.repair(path)
    assert not report.lost
    assert report.quarantine
    assert any("claims offsets that another segment has" in step.why for step in report.steps)
    assert values(path) == before
    assert not tailrace.repair(path).steps
    with tailrace.open(path) as log:
        assert log.verify().ok
        assert log.topic("orders").append("on").offset == len(before)


def test_a_missing_segment_is_not_made_up_from_one_of_a_copy(tmp_path):
    path = tmp_path / "log"
    diverged(path, (50, 90), 1)
    own = [file for file in segments(path) if not (path.with_name("copy") / file.relative_to(path)).exists()]
    gone = own[1]
    lost = [offset for _, _, offset in frames(gone)]
    gone.unlink()
    report = tailrace.repair(path)
    assert {offset for each in report.lost for offset in range(each.first, each.last + 1)} == set(lost)
    assert not any(value.startswith("copy") for value in values(path))
    assert len(values(path)) == 205 - len(lost)


@pytest.mark.parametrize("name", [150, 303, 450])
def test_a_stray_copy_of_an_adopted_segment_costs_no_record(tmp_path, monkeypatch, name):
    path = tmp_path / "log"
    with tuned(adopt_alone_bytes_min=1), tailrace.open(path) as log:
        log.topic("bulk", partitions=1)
        for number in range(3):
            staged = bulk.stage(log, "bulk", 0, bulk.build([f"{number} {each}" for each in range(300)]))
            bulk.commit(log, [staged], ("job", number))
    file = segments(path, "bulk")[1]
    shutil.copy(file, file.with_name(f"{name:020d}.seg"))
    before = [f"{number} {each}" for number in range(3) for each in range(300)]
    assert not tailrace.repair(path).lost
    assert values(path, "bulk") == before
    assert not tailrace.repair(path).steps


def test_a_segment_that_was_written_over_by_its_copys_does_not_take_those_behind_it(tmp_path):
    """It begins where the one before it ends, but the ones that lead to the end are the log's own."""
    path = tmp_path / "log"
    diverged(path, (50, 90), 1)
    copy = path.with_name("copy")
    both = [file for file in segments(path) if (copy / file.relative_to(path)).exists()]
    own = [file for file in segments(path) if file not in both]
    for file in segments(path):
        if file not in both and file not in own:
            file.unlink()
    shutil.copy(copy / both[-1].relative_to(path), both[-1])
    tailrace.repair(path)
    last = frames(segments(copy)[len(both) - 1])[-1][2]
    assert [value for value in values(path) if value.startswith("log")][-1].startswith("log 199 ")
    assert all(not value.startswith("copy") for value in values(path)[last + 1 :])


@pytest.mark.parametrize("boot", ["same", "other"])
def test_a_foreign_segment_over_the_newest_says_nothing_of_the_end(path, tmp_path, boot):
    with tailrace.open(tmp_path / "other") as log:
        log.topic("first", partitions=1)
        log.topic("many").extend([b"x"] * 5_000)
    shutil.copy(segments(tmp_path / "other", "many")[0], segments(path)[-1])
    lost = set(range(int(segments(path)[-1].stem), 100))
    if boot == "same":
        check(path, lost)
        return
    reboot(path)
    given_up = tailrace.repair(path).lost
    # Nobody remembers how many there were.
    assert {offset for each in given_up for offset in range(each.first, each.last + 1)} <= lost
    assert values(path) == [f"value {offset:04d}" + "x" * 40 for offset in range(min(lost))]


@pytest.mark.parametrize("boot", ["same", "other"])
def test_a_stray_far_behind_the_end_makes_no_offsets_up(path, boot):
    file = segments(path)[1]
    shutil.copy(file, file.with_name(f"{int(file.stem) + 500:020d}.seg"))
    if boot == "same":
        check(path, set())
        return
    reboot(path)
    assert not tailrace.repair(path).lost
    assert tailrace.repair(path).sound
    assert values(path) == [f"value {offset:04d}" + "x" * 40 for offset in range(100)]
    with tailrace.open(path) as log:
        assert log.topic("orders").append("on").offset == 100


@pytest.mark.parametrize("name", [5, 99_999])
def test_a_damaged_copy_under_another_name_does_not_replace_the_segment(path, name):
    own = segments(path)[1]
    stray = own.with_name(f"{name:020d}.seg")
    shutil.copy(own, stray)
    flip(stray, frames(stray)[3][0] + 85)
    report = check(path, set())
    assert any("where another segment stands" in step.why for step in report.steps)
    assert len(report.quarantine) == 1
    assert not stray.exists()


def test_a_stray_with_zeros_before_its_bytes_is_kept_aside(path):
    """Far behind its header, which is damaged: it takes more than one read to find them."""
    newest = segments(path)[-1]
    header = bytearray(newest.read_bytes()[:HEADER_BYTES])
    header[20] ^= 0xFF
    newest.with_name(f"{5_000:020d}.seg").write_bytes(bytes(header) + bytes(READ_BYTES + 100) + b"precious")
    (kept,) = check(path, set()).quarantine
    assert Path(kept).read_bytes().endswith(b"precious")


def test_what_was_trimmed_is_not_lost(path):
    first = segments(path)[1]
    with tailrace.open(path) as log:
        log.topic("orders").trim(int(first.stem) + 10)
    at, _, _ = frames(first)[3]
    flip(first, at + 90)
    assert not tailrace.repair(path, dry_run=True).lost
    assert not tailrace.repair(path).lost


# Tails that say nothing.


def write(path: Path, at: int, data: bytes) -> None:
    descriptor = os.open(path / "tails", os.O_RDWR)
    try:
        os.pwrite(descriptor, data, at)
    finally:
        os.close(descriptor)


def reboot(path: Path) -> None:
    write(path, 16, os.urandom(16))


SLOT = TAILS_HEADER_BYTES + SLOT_BYTES

LOSSES: dict[str, Callable[[Path], None]] = {
    "cut behind the header": lambda path: os.truncate(path / "tails", TAILS_HEADER_BYTES),
    "cut in the slot": lambda path: os.truncate(path / "tails", SLOT + 100),
    "words cleared": lambda path: write(path, SLOT, bytes(64)),
    "slot cleared": lambda path: write(path, SLOT, bytes(SLOT_BYTES)),
    "slot garbled": lambda path: write(path, SLOT, b"\xa5" * SLOT_BYTES),
    "blocks cleared": lambda path: write(path, SLOT + 64, bytes(192)),
    "blocks and end cleared": lambda path: (write(path, SLOT + 64, bytes(192)), write(path, SLOT, bytes(16)))[0],
    "all slots cleared": lambda path: write(path, TAILS_HEADER_BYTES, bytes(4_096)),
    "gone": lambda path: (path / "tails").unlink(),
}


@pytest.mark.parametrize("copied", [False, True], ids=["in place", "copied"])
@pytest.mark.parametrize("loss", LOSSES)
def test_damage_takes_nothing_behind_it_when_the_tails_are_lost_too(tmp_path, loss, copied):
    if copied and loss in ("slot cleared", "all slots cleared", "blocks cleared", "blocks and end cleared"):
        pytest.skip("a copy may have been made before the slot was written: nothing tells")
    path = tmp_path / "log"
    with tailrace.open(path, durable=True) as log:
        for number in range(100):
            log.topic("orders").append(f"value {number}" + "x" * 40)
    if copied:
        shutil.copytree(path, tmp_path / "copy")
        path = tmp_path / "copy"
    file = segments(path)[-1]
    flip(file, frames(file)[30][0] + 90)
    LOSSES[loss](path)
    report = tailrace.repair(path)
    assert [(each.first, each.last) for each in report.lost] == [(30, 30)]
    assert len(values(path)) == 99
    with tailrace.open(path) as log:
        assert log.topic("orders").append("on").offset == 100


# A directory that is gone, and somebody else's log.


@pytest.mark.parametrize("which", ["0", "", ".."])
def test_a_directory_that_is_gone_is_made_again(tmp_path, which):
    path = tmp_path / "log"
    with tailrace.open(path) as log:
        log.topic("empty", partitions=2)
    shutil.rmtree((next(path.glob("topics/*-empty")) / which).resolve())
    before = everything(path)
    assert tailrace.repair(path, dry_run=True).steps
    assert everything(path) == before
    report = tailrace.repair(path)
    assert not report.lost
    assert any("its directory is missing" in step.why for step in report.steps)
    assert not tailrace.repair(path).steps
    with tailrace.open(path) as log:
        for partition in range(2):
            assert log.topic("empty").append("on", partition=partition).offset == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can repair somebody else's log")
@pytest.mark.parametrize("boot", ["same", "other"])
def test_what_the_administrator_repairs_stays_its_owners(path, boot):
    somebody = 65_534
    os.chown(path, somebody, somebody)
    os.chmod(path, 0o770)
    for file in path.rglob("*"):
        os.chown(file, somebody, somebody)
        os.chmod(file, 0o770 if file.is_dir() else 0o660)
    for file in segments(path)[1:]:
        flip(file, frames(file)[0][0] + 90)
    if boot == "other":
        reboot(path)
    assert tailrace.repair(path).quarantine
    with tailrace.open(path) as log:
        log.topic("new").append("by the administrator")
    for file in path.rglob("*"):
        stat = file.stat()
        assert (stat.st_uid, stat.st_gid) == (somebody, somebody), file
        assert stat.st_mode & 0o777 == (0o770 if file.is_dir() else 0o660), file
