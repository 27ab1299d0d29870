"""How a repair ends that cannot do all of its work, and what is told where files of a log are gone or are no files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tailrace
from tailrace.cli.app import root
from tailrace.disk.files import BOOT_ID_VARIABLE, Files
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.segment import HEADER_BYTES
from tailrace.errors import CorruptionError, DiskFullError, StorageError
from tests.doctoring import codes, only, shell

# Two full segments, and half of a third.
COUNT = 50


@pytest.fixture(autouse=True)
def _small_journals(monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "256KiB")


@pytest.fixture
def path(tmp_path) -> Path:
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders", segment_bytes="4KiB")
        for number in range(COUNT):
            topic.append(f"value {number:04d}" + "x" * 100, durable=False)
        with log.namespace("tenant") as tenant:
            tenant.topic("orders").append("inner")
    return tmp_path / "log"


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("topics/*-orders/0/*.seg"))


def damage(file: Path) -> None:
    """Change a byte in the body of the first frame."""
    data = bytearray(file.read_bytes())
    data[HEADER_BYTES + FRAME_HEADER_BYTES + 8] ^= 0xFF
    file.write_bytes(data)


def append(path: Path) -> int:
    with tailrace.open(path) as log:
        return log.topic("orders").append("more").offset


def told(path: Path, *words: str) -> Result:
    return CliRunner().invoke(root, [*words, "-L", str(path)], prog_name="tailrace")


# A repair that finds no room.


def failing(kind: type[BaseException], wanted: Callable[[str], bool]) -> Callable[..., None]:
    write = Files.write

    def fail(self: Files, descriptor: int, data: bytes, at: int) -> None:
        if wanted(os.readlink(f"/proc/self/fd/{descriptor}")):
            raise kind(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, descriptor, data, at)

    return fail


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("which", ["quarantine", ".seg.new"])
@pytest.mark.parametrize("also_older", [False, True], ids=["newest", "older too"])
def test_a_partition_takes_appends_after_a_repair_that_could_not_replace_its_newest_segment(
    path, monkeypatch, kind, which, also_older
):
    newest = segments(path)[-1]
    damage(newest)
    if also_older:
        damage(segments(path)[0])
    assert append(path) == COUNT
    assert segments(path)[-1] == newest

    def wanted(name: str) -> bool:
        return which in name and newest.name[:20].lstrip("0") in name.rpartition("/")[2]

    with monkeypatch.context() as full:
        full.setattr(Files, "write", failing(kind, wanted))
        with pytest.raises(DiskFullError if kind is OSError else KeyboardInterrupt) as error:
            tailrace.repair(path)
    if isinstance(error.value, StorageError):
        assert "the rest is as it was: no record is lost by this; free some space" in error.value.hint
    assert append(path) == COUNT + 1
    report = tailrace.repair(path)
    assert not report.sound
    assert append(path) == COUNT + 2
    with tailrace.open(path) as log:
        assert [record.offset for record in log.topic("orders").read(on_damage="skip")][-3:] == [
            COUNT, COUNT + 1, COUNT + 2,
        ]  # fmt: skip
        assert not log.verify().damage


def test_one_whose_newest_segment_was_replaced_waits_for_the_next_repair(path, monkeypatch):
    """Nothing may be appended by a state that tells of another file; the hint says so."""
    damage(segments(path)[-1])
    sync = Files.sync_directory
    directory = str(segments(path)[-1].parent)

    def fail(self: Files, name: str) -> None:
        if name == directory:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(self, name)

    with monkeypatch.context() as failing:
        failing.setattr(Files, "sync_directory", fail)
        with pytest.raises(StorageError) as error:
            tailrace.repair(path)
    assert "the partition it was at is read-only until it is repaired" in error.value.hint
    with pytest.raises(CorruptionError, match="read-only"):
        append(path)
    tailrace.repair(path)
    assert append(path) == COUNT


# Namespaces that a repair cannot look at.


def hide_all(spaces: Path) -> None:
    spaces.rename(spaces.parent.parent / "away")
    spaces.symlink_to("/nowhere/to/be/found")


def hide_one(spaces: Path) -> None:
    (spaces / "tenant").rename(spaces.parent.parent / "away")
    (spaces / "tenant").symlink_to("/nowhere/to/be/found")


def turn_to_file(spaces: Path) -> None:
    shutil.rmtree(spaces)
    spaces.touch()


@pytest.mark.parametrize("words", [("repair", "--dry-run"), ("repair", "-y")], ids=["dry", "wet"])
@pytest.mark.parametrize("hide", [hide_all, hide_one, turn_to_file], ids=lambda hide: hide.__name__)
def test_namespaces_that_cannot_be_looked_at_are_told(path, hide, words):
    hide(path / "namespaces")
    done = told(path, *words)
    assert done.exit_code == 7
    assert "Namespaces cannot be looked at" in done.stderr
    assert str(path / "namespaces") in done.stderr
    assert "Nothing is wrong" not in done.stderr


@pytest.mark.parametrize("which", ["namespaces", "tenant"])
def test_namespaces_that_may_not_be_looked_at_are_told(path, which, monkeypatch):
    """Root may look at everything, so the refusal is made up."""

    def refused(name: str, call: Callable[[str], object]) -> object:
        if os.fspath(name).startswith(str(path / "namespaces")) and which in str(name):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return call(name)

    listdir, stat = os.listdir, os.stat
    if which == "namespaces":
        monkeypatch.setattr(os, "listdir", lambda name=".": refused(name, listdir))
    else:
        monkeypatch.setattr(os, "stat", lambda name, **options: refused(name, lambda each: stat(each, **options)))
    done = told(path, "repair", "--dry-run", "-o", "json")
    assert done.exit_code == 8
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "not-allowed"
    assert str(path / "namespaces") in error["message"]
    assert error["hint"].startswith("Nothing was changed")


def test_what_is_no_namespace_is_not_told(path):
    (path / "namespaces" / "Their Link").symlink_to("/nowhere/to/be/found")
    (path / "namespaces" / "letter").touch()
    done = told(path, "repair", "--dry-run")
    assert done.exit_code == 0
    assert "Nothing is wrong" in done.stderr


# A journal that is gone.


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_recovery_without_the_directory_of_the_journal_names_it(path, mode, monkeypatch):
    shutil.rmtree(path / "journal")
    monkeypatch.setenv(BOOT_ID_VARIABLE, "another")
    with pytest.raises(CorruptionError, match="journal is missing") as error:
        tailrace.open(path, mode)
    assert error.value.path == str(path / "journal")
    assert error.value.hint.endswith("tailrace repair")
    assert codes(path) == ["journal-damaged"]
    tailrace.repair(path)
    assert append(path) == COUNT


# What is no file.


@pytest.mark.parametrize("name", ["tailrace.json", "lock", "stats"])
def test_the_doctor_does_not_wait_for_a_pipe(path, name):
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    found: list[str] = []
    looking = threading.Thread(target=lambda: found.extend(codes(path)), daemon=True)
    looking.start()
    looking.join(20)
    assert not looking.is_alive()
    assert found == (["identity-damaged"] if name == "tailrace.json" else [])


def test_what_the_doctor_says_of_an_unfinished_restore_can_be_run(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "restore.unfinished").touch()
    found = only(tmp_path / "log", "not-a-log")
    assert "restore" in found.what
    assert "restore.unfinished" in shell(found.run)
