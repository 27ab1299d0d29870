"""What a backup refuses, and what it never removes: good copies of a damaged log, and files that are not its own."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from random import Random

import pytest

import tailrace
from tailrace.disk.backup_point import LINKS, Moment
from tailrace.disk.files import Files, remove_tree
from tailrace.errors import CorruptionError, NotALogError, OpenError, ReadOnlyError, StorageError
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


def fill(log, count=100):
    topic = log.topic("orders", segment_bytes=8192)
    for number in range(count):
        topic.append(f"order {number} " + "x" * 300, durable=False)
    log.sync()
    return topic


def texts(log, name="orders"):
    return [record.text for record in log.topic(name).read()]


def restored(backup: Path) -> list[str]:
    to = backup.parent / "again"
    shutil.rmtree(to, ignore_errors=True)
    tailrace.Log.restore(backup, to)
    with tailrace.open(to) as again:
        return texts(again)


def everything(path: Path) -> dict[str, bytes | str | None]:
    """All that lies below a directory: bytes of files, targets of links, None for directories."""
    found: dict[str, bytes | str | None] = {}
    for each in sorted(path.rglob("*")):
        name = str(each.relative_to(path))
        if each.is_symlink():
            found[name] = os.readlink(each)
        else:
            found[name] = each.read_bytes() if each.is_file() else None
    return found


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


def _photos(to: Path, other: Path) -> str:
    (to / "data" / "photos").mkdir(parents=True)
    (to / "data" / "photos" / "a.jpg").write_text("precious")
    return "data/photos"


def _linked_data(to: Path, other: Path) -> str:
    to.mkdir()
    (to / "data").symlink_to(other)
    return "data"


def _data_file(to: Path, other: Path) -> str:
    to.mkdir()
    (to / "data").write_text("precious")
    return "data"


def _linked_lock(to: Path, other: Path) -> str:
    to.mkdir()
    (to / "lock").symlink_to(other / "new")
    return "lock"


def _hexadecimal(to: Path, other: Path) -> str:
    inside = to / "data" / ("0123456789abcdef" * 2)
    inside.mkdir(parents=True)
    (inside / "letter").write_text("precious")
    return f"data/{inside.name}/letter"


FOREIGN = [_photos, _linked_data, _data_file, _linked_lock, _hexadecimal]


@pytest.mark.parametrize("make", FOREIGN)
def test_a_directory_of_somebody_else_is_left_alone(log, tmp_path, make):
    fill(log, 3)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis").write_text("precious")
    name = make(tmp_path / "to", other)
    before = everything(tmp_path / "to"), everything(other)
    with pytest.raises(NotALogError, match=f"it holds '{name}'") as told:
        log.backup(tmp_path / "to")
    assert "Nothing was written" in told.value.hint
    assert (everything(tmp_path / "to"), everything(other)) == before


@pytest.mark.parametrize("where", [".DS_Store", "0123", "link", "LOG/sub", "LOG/letter", "LOG/link", "LOG/linked.seg"])
def test_what_somebody_put_into_a_backup_is_named_and_left_alone(log, tmp_path, where):
    topic = fill(log)
    backup, other = tmp_path / "backup", tmp_path / "other"
    report = log.backup(backup)
    other.mkdir()
    (other / "thesis").write_text("precious")
    where = where.replace("LOG", report.id)
    path = backup / "data" / where
    if where.endswith("linked.seg"):
        # It has the very name of a copy.
        path = max(path.parent.iterdir())
        where = f"{report.id}/{path.name}"
        path.rename(other / path.name)
        path.symlink_to(other / path.name)
    elif where.endswith("link"):
        path.symlink_to(other)
    elif where.endswith(("sub", "0123")):
        path.mkdir()
    else:
        path.write_text("precious")
    before = everything(backup), everything(other)
    topic.append("new")
    with pytest.raises(NotALogError, match=f"'data/{where}'.*which no backup makes") as told:
        log.backup(backup)
    assert "move this away" in told.value.hint
    assert (everything(backup), everything(other)) == before
    if not where.endswith(".seg"):
        path.rename(tmp_path / "aside")
        assert log.backup(backup).records == 101


def test_what_comes_into_a_backup_while_it_is_made_is_left_alone(log, tmp_path):
    """It is swept at the end, but not of what is somebody else's: the next backup names that."""
    topic = fill(log)
    backup, other = tmp_path / "backup", tmp_path / "other"
    log.backup(backup)
    topic.append("new")
    other.mkdir()
    (other / "thesis").write_text("precious")

    def progress(done, total):
        (backup / "data" / "letter").write_text("precious")
        for name in ("link", "0123456789abcdef" * 2):
            if not (backup / "data" / name).is_symlink():
                (backup / "data" / name).symlink_to(other)

    assert log.backup(backup, progress=progress).records == 101
    assert (backup / "data" / "letter").read_text() == (other / "thesis").read_text() == "precious"
    assert (backup / "data" / "link").is_symlink()
    with pytest.raises(NotALogError, match="which no backup makes"):
        log.backup(backup)


def test_a_backup_is_not_made_inside_another(log, tmp_path):
    fill(log, 3)
    report = log.backup(tmp_path / "backup")
    before = everything(tmp_path / "backup")
    for below in ("inner", "data/inner", f"data/{report.id}/inner"):
        with pytest.raises(OpenError, match="lies inside the backup"):
            log.backup(tmp_path / "backup" / below)
    assert everything(tmp_path / "backup") == before
    # One that was moved there is not removed either.
    log.backup(tmp_path / "second")
    (tmp_path / "second").rename(tmp_path / "backup" / "data" / ("ab" * 16))
    before = everything(tmp_path / "backup")
    with pytest.raises(NotALogError, match=r"backup\.json"):
        log.backup(tmp_path / "backup")
    assert everything(tmp_path / "backup") == before


def test_copies_of_another_log_are_not_removed_for_want_of_a_manifest(log, tmp_path):
    fill(log, 3)
    with tailrace.open(tmp_path / "other") as other:
        other.topic("orders").append("only copy")
        other.backup(tmp_path / "backup")
    (tmp_path / "backup" / "backup.json").rename(tmp_path / "backup.json")
    before = everything(tmp_path / "backup")
    with pytest.raises(OpenError, match="copies of another log"):
        log.backup(tmp_path / "backup")
    assert everything(tmp_path / "backup") == before
    (tmp_path / "backup.json").rename(tmp_path / "backup" / "backup.json")
    assert restored(tmp_path / "backup") == ["only copy"]


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


def test_leftovers_are_removed_before_anything_is_copied(log, tmp_path):
    """Of a killed backup: they may take the room that the next one needs."""
    topic = fill(log)
    backup = tmp_path / "backup"
    report = log.backup(backup)
    named = everything(backup)
    data = backup / "data"
    whole = f"00000001-00000-{0:020d}-{1:016x}-a0-{2:08x}"
    left = [
        data / report.id / f"00000001-00000-{80:020d}.part",
        data / report.id / f"{whole}.seg",
        data / report.id / f"{whole}-damaged-{3:08x}.seg",
        data / ("ab" * 16) / f"{whole}.seg",
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(160))
    topic.append("new")
    seen = []

    def progress(done, total):
        if not seen:
            seen.append({name for name in everything(backup) if not name.endswith(".part")})

    log.backup(backup, progress=progress)
    assert seen == [set(named)]
    assert len(restored(backup)) == 101


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


# Manifests.


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: good.replace(b'"bytes": ', b'"bytes": 1e999, "x": ', 1),
        lambda good: b"[" * 4_096 + b"\n",
        lambda good: b'{"tailrace_backup": 1e999}\n',
        lambda good: b"7\n",
        lambda good: b"",
    ],
)
def test_a_damaged_manifest_is_always_told_as_that(log, tmp_path, damage):
    fill(log, 3)
    backup = tmp_path / "backup"
    log.backup(backup)
    path = backup / "backup.json"
    path.write_bytes(damage(path.read_bytes()))
    before = everything(backup)
    with pytest.raises(CorruptionError, match="manifest"):
        log.backup(backup)
    with pytest.raises(CorruptionError, match="manifest"):
        tailrace.Log.restore(backup, tmp_path / "again")
    assert everything(backup) == before


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 50_000,
        b"7",
        b'{"made_us": 1, "logs": []}',
        b'{"made_us": 1, "logs": [7]}',
        b'{"made_us": 1e999, "logs": []}',
        b'{"made_us": 1, "logs": [{"id": "ab", "namespace": ["/"], "settings": {}, "topics": {}, "partitions": []}]}',
        b'{"made_us": 1, "logs": [{"partitions": [[1, 0, 1, [], [[]]]]}]}',
    ],
)
def test_a_manifest_of_nonsense_with_a_right_checksum(body):
    from tailrace.disk.frame import crc32c
    from tailrace.maintain.backup.manifest import decode

    head = b'{"tailrace_backup": 1, "crc32c": "%08x", "bytes": %d}\n' % (crc32c(body), len(body))
    with pytest.raises(CorruptionError, match="manifest"):
        decode(head + body, "backup.json")
