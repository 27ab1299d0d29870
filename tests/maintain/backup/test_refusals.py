"""What a backup refuses, and what it never removes: good copies of a damaged log, and files that are not its own."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

import tailrace
from tailrace.disk.backup_point import LINKS, Moment
from tailrace.disk.files import Files, remove_tree
from tailrace.errors import CorruptionError, ReadOnlyError, StorageError
from tests.backing_up import everything, fill, restored, texts
from tests.processes import in_fork
from tests.rigs.sim import PASSIVE, Fail, Process
from tests.rigs.sim.backups import Bench, back_up, operations
from tests.rigs.sim.engine import open_store, small_limits
from tests.rigs.sim.mutation import mutate, without
from tests.rigs.sim.witness import Finding


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        yield log


# A log of which something is missing.


@pytest.mark.parametrize("which", [0, 2, -1], ids=["first", "middle", "newest"])
def test_a_segment_that_went_missing_does_not_cost_its_copy(tmp_path, which):
    backup = tmp_path / "backup"
    with tailrace.open(tmp_path / "log") as log:
        fill(log)
        log.backup(backup)
        good = texts(log)
    found = sorted((tmp_path / "log").glob("topics/*/0/*.seg"))
    first = int(found[which].name[:20])
    last = [*(int(path.name[:20]) for path in found[1:]), len(good)][which] - 1
    found[which].unlink()
    before = everything(backup)
    with tailrace.open(tmp_path / "log") as log:
        with pytest.raises(CorruptionError, match="not backed up") as told:
            log.backup(backup)
        assert (told.value.topic, told.value.first, told.value.last) == ("orders", first, last)
        assert "whole records of the previous backup are given up" in told.value.hint
        assert everything(backup) == before
        assert restored(backup) == good
        report = log.backup(backup, allow_damage=True)
        assert [(each.topic, each.first, each.last) for each in report.damage] == [("orders", first, last)]
        assert "an earlier backup here had it whole, and was replaced" in report.damage[0].reason
        # It is told for as long as it is so.
        again = log.backup(backup, allow_damage=True)
        assert (again.damage, again.copied_files) == (report.damage, 0)
    assert tailrace.Log.restore(backup, tmp_path / "damaged").damage == report.damage
    with tailrace.open(tmp_path / "damaged", "r") as damaged:
        assert damaged.topic("orders").read(on_damage="skip")
        with pytest.raises(CorruptionError):
            texts(damaged)


def test_a_first_backup_of_a_damaged_log_speaks_of_none_before(log, tmp_path):
    fill(log)
    sorted((tmp_path / "log").glob("topics/*/0/*.seg"))[2].unlink()
    with pytest.raises(CorruptionError) as told:
        log.backup(tmp_path / "backup")
    assert "given up" not in told.value.hint
    assert "earlier" not in log.backup(tmp_path / "backup", allow_damage=True).damage[0].reason


# Files that are not its own.


def test_a_tree_is_removed_and_not_what_its_links_lead_to(tmp_path):
    tree, other = tmp_path / "tree", tmp_path / "other"
    for each in (tree / "sub", other):
        each.mkdir(parents=True)
        (each / "file").write_text("x")
    (tree / "link").symlink_to(other)
    (tree / "sub" / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "tree.link").symlink_to(other)
    for name in ("tree", "tree.link"):
        remove_tree(Files(), str(tmp_path / name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other"]
    assert (other / "file").read_text() == "x"


# Others at work.


def test_a_topic_that_is_made_while_it_looks(tmp_path, monkeypatch):
    """It is there after the catalog was followed, or after the tails were read: it is in the backup, or not in it."""
    with tailrace.open(tmp_path / "log") as log:
        log.topic("a").append("first")
    look = Moment._look
    made = []

    def create():
        with tailrace.open(tmp_path / "log") as other:
            other.topic(f"fresh{len(made)}").append("hello")

    for moment in ("before", "after"):
        monkeypatch.undo()
        calls = []

        def slow(self, moment=moment, calls=calls):
            calls.append(len(calls))
            if len(calls) == 1 and moment == "before":
                in_fork(create)
            found = look(self)
            if len(calls) == 1 and moment == "after":
                in_fork(create)
            return found

        monkeypatch.setattr(Moment, "_look", slow)
        with tailrace.open(tmp_path / "log") as log:
            made.append(moment)
            report = log.backup(tmp_path / "backup")
        assert (report.damage, report.records, report.topics) == ((), 1 + len(made), 1 + len(made))


def test_a_namespace_that_is_dropped_meanwhile_does_not_come_back(log, tmp_path):
    for name in ("a", "b"):
        with log.namespace(name) as inner:
            inner.topic("t").append(f"in {name}")
    links = tmp_path / "log" / "namespaces" / "a" / LINKS

    def progress(done, total):
        if "b" in log.namespaces() and links.is_dir() and any(links.iterdir()):
            log.drop_namespace("b")

    report = log.backup(tmp_path / "backup", progress=progress)
    assert (log.namespaces(), report.namespaces) == (["a"], 1)
    assert not (tmp_path / "log" / "namespaces" / "b").exists()


@pytest.mark.parametrize("allowed", [False, True])
def test_without_links_what_is_trimmed_too_fast_is_no_damage(log, tmp_path, monkeypatch, allowed):
    def link(source, target):
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr("tailrace.disk.files.os.link", link)
    topic = fill(log)
    log.topic("aa").append("first")

    def progress(done, total):
        fill(log)
        topic.trim({0: topic.offsets()[0].latest - 1})

    with pytest.raises(StorageError, match="removed faster") as told:
        log.backup(tmp_path / "backup", progress=progress, allow_damage=allowed)
    assert "No damage was found" in told.value.hint
    assert log.verify().ok
    assert not (tmp_path / "backup" / "backup.json").exists()
    assert log.backup(tmp_path / "backup").damage == ()


def test_without_links_a_damaged_header_is_damage(log, tmp_path, monkeypatch):
    def link(source, target):
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr("tailrace.disk.files.os.link", link)
    fill(log)
    path = min((tmp_path / "log").glob("topics/*/0/*.seg"))
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptionError, match="header"):
        log.backup(tmp_path / "backup")


# What is left over.


def _doubtful_manifest(seed: int) -> tuple[int, Finding | None]:
    """The sync of a manifest's name fails, another backup begins, and the power goes before each of its operations."""
    bench = Bench(seed)
    at = [number for number, kind in operations(Bench(seed), "backup") if kind == "sync_directory"][-1]
    bench.disk.plan(Fail(at, process="backup"))
    with pytest.raises(OSError, match="Input"):
        bench.run()
    bench.disk.plan()
    random = Random(seed)
    tried = 0
    wrong: Finding | None = None

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal tried, wrong
        if process.name != "third" or kind in PASSIVE or wrong is not None:
            return
        for choice in bench.disk.crash_states(random, 6):
            tried += 1
            try:
                wrong = wrong or bench.look(bench.disk.crash(choice))
            except CorruptionError as error:
                wrong = Finding(f"before {kind} {detail}: {error}")

    store = open_store(Process(bench.disk, "third"))
    bench.disk.observer = observe
    back_up(store)
    bench.disk.observer = None
    return tried, wrong


def test_leftovers_that_the_manifest_on_disk_may_name_are_kept(seed):
    """What is read may not be what is on disk: before anything is removed, the manifest is brought there."""
    with small_limits():
        for shift in range(4):
            tried, wrong = _doubtful_manifest(seed + shift)
            assert wrong is None, wrong
            assert tried > 20


def test_without_the_manifest_made_anew_they_are_lost(seed, monkeypatch):
    mutate(monkeypatch, without("doubtful manifest written again"))
    with small_limits():
        assert any(_doubtful_manifest(seed + shift)[1] is not None for shift in range(4))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_what_cannot_be_swept_is_told_beside_a_new_backup(log, tmp_path, monkeypatch, number):
    topic = fill(log)
    backup = tmp_path / "backup"
    log.backup(backup)
    topic.append("new")
    remove = Files.remove_file

    def fail(self, path):
        if path.endswith(".seg") and str(backup) in path:
            raise OSError(number, os.strerror(number), path)
        remove(self, path)

    monkeypatch.setattr(Files, "remove_file", fail)
    with pytest.raises(StorageError, match=r"is new and whole.*\.seg") as told:
        log.backup(backup)
    monkeypatch.undo()
    assert "before" not in told.value.hint
    assert told.value.errno == number
    assert len(restored(backup)) == 101
    files = log.backup(backup).files
    assert len(list(backup.glob("data/*/*"))) == files


def test_a_read_only_disk_of_the_backup_is_told(log, tmp_path, monkeypatch):
    fill(log, 3)
    log.backup(tmp_path / "backup")
    files_open = Files.open

    def refuse(self, path, **options):
        if path == str(tmp_path / "backup" / "lock"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return files_open(self, path, **options)

    monkeypatch.setattr(Files, "open", refuse)
    with pytest.raises(ReadOnlyError, match="backup is read-only") as told:
        log.backup(tmp_path / "backup")
    assert "file system of the backup" in told.value.hint
