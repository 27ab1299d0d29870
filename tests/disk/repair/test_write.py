"""What a repair writes: side files, placeholders, and nothing half."""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

import tailrace
from tailrace import settings
from tailrace.disk.files import Files
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.settings import Tuning
from tests.repairing import check, flip, frames, path, put_back, segments

__all__ = ["path"]


def a_missing_segment(path: Path) -> set[int]:
    segments(path)[1].unlink()
    return set(range(28, 56))


def test_the_side_file_has_the_bytes_and_says_what_they_were(path):
    file = segments(path)[0]
    places = frames(file)
    flip(file, places[3][0] + 8)
    flip(file, places[9][0] + FRAME_HEADER_BYTES, 10)
    for number in (15, 21):
        flip(file, places[number][0] + 8)
    content = file.read_bytes()
    report = tailrace.repair(path)
    (side,) = [Path(each) for each in report.quarantine]
    assert side.parent == path / "quarantine"
    assert side.name.endswith("-00000001-orders-0-0.bytes")
    lines = [json.loads(line) for line in side.with_suffix(".json").read_text().splitlines()]
    assert [(line["first"], line["last"]) for line in lines] == [(3, 3), (9, 9), (15, 15), (21, 21)]
    for line in lines:
        assert (line["topic"], line["partition"]) == ("orders", 0)
        assert (path / line["file"]) == file
        kept = side.read_bytes()[line["at"] : line["at"] + line["length"]]
        assert kept == content[line["position"] : line["position"] + line["length"]]
        assert line["reason"]
        assert line["time"].endswith("+00:00")


def test_a_hole_of_several_megabytes_is_kept_as_it_was(tmp_path):
    path = tmp_path / "log"
    with tailrace.open(path, durable=False) as log:
        for value in (b"before", Random(1).randbytes(3_000_000), b"behind"):
            log.topic("orders").append(value)
    (file,) = segments(path)
    position, stop, _ = frames(file)[1]
    flip(file, position + 1_500_000)
    damaged = file.read_bytes()[position:stop]
    report = tailrace.repair(path)
    assert [(each.first, each.last) for each in report.lost] == [(1, 1)]
    (side,) = report.quarantine
    assert Path(side).read_bytes() == damaged


def test_more_than_one_placeholder_for_a_long_range(path, monkeypatch):
    monkeypatch.setattr(settings, "TUNING", Tuning(lost_span_max=10))
    check(path, a_missing_segment(path))
    assert [offset for _, _, offset in frames(segments(path)[1])] == [28, 38, 48]


def test_what_a_dead_repair_left_is_removed_where_nothing_else_is_wrong(path):
    left = segments(path)[1].with_suffix(".seg.new")
    left.write_bytes(b"half")
    report = check(path, set())
    assert any("left by a repair that died" in step.why for step in report.steps)
    assert not left.exists()


def test_the_side_file_says_nothing_of_a_break_without_bytes(path):
    file = segments(path)[0]
    flip(file, frames(file)[9][0] + FRAME_HEADER_BYTES + 5)
    put_back(file, 5, b"o" * 50)
    (side,) = tailrace.repair(path).quarantine
    lines = [json.loads(line) for line in Path(side).with_suffix(".json").read_text().splitlines()]
    assert [(line["first"], line["last"], line["at"]) for line in lines] == [(9, 9, 0)]


def test_a_full_disk_keeps_nothing_half(path, tmp_path, monkeypatch):
    """What a repair cannot finish it takes away again, since it may be the last of the room; the next one goes on."""
    file = segments(path)[1]
    position, _, offset = frames(file)[3]
    flip(file, position + FRAME_HEADER_BYTES)
    write = Files.write
    failed: list[str] = []
    written = 0

    def full(self: Files, descriptor: int, data: bytes, at: int) -> None:
        nonlocal written
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if "/quarantine/" in name or name.endswith(".seg.new"):
            written += 1
            if written > len(failed):
                failed.append(name)
                write(self, descriptor, data[: len(data) // 2], at)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, descriptor, data, at)

    monkeypatch.setattr(Files, "write", full)
    while True:
        written = 0
        copy = tmp_path / f"copy{len(failed)}"
        shutil.copytree(path, copy)
        before = len(failed)
        with suppress(tailrace.errors.DiskFullError):
            tailrace.repair(copy)
        if len(failed) == before:
            break
        assert not os.path.exists(failed[-1])
        assert not list(copy.rglob("*.seg.new"))
        with monkeypatch.context() as mended:
            mended.setattr(Files, "write", write)
            check(copy, {offset})
    kinds = {name.rpartition(".")[2] for name in failed}
    assert kinds == {"bytes", "json", "new"}
