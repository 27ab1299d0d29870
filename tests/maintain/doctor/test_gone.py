"""The doctor where whole files and directories are gone, or are of a newer version; verify and repair agree with it."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import tailrace
from tailrace.cli.app import root
from tailrace.disk import opening
from tailrace.disk.frame import crc32c
from tailrace.engine.engine import Engine
from tailrace.errors import CorruptionError, NotALogError, VersionError
from tailrace.maintain import doctor
from tailrace.maintain.doctor.segments import SegmentSurvey
from tests.doctoring import codes, contents, diagnose, only, shell


@pytest.fixture(autouse=True)
def _small_journals(monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "256KiB")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "log"


def fill(path: Path, namespace: str | None = None) -> None:
    """Two partitions with 100 records each, and one that never had any."""
    with tailrace.open(path, namespace=namespace) as log:
        orders = log.topic("orders", partitions=2, segment_bytes="4KiB")
        for partition in range(2):
            for number in range(100):
                orders.append(f"{number:060}", partition=partition, durable=False)
        log.topic("empty", partitions=1)


def directory(path: Path, topic: str, partition: int) -> Path:
    (found,) = path.glob(f"topics/*-{topic}/{partition}")
    return found


def verified(path: Path) -> list[str]:
    """The reasons that verify gives for damage."""
    with tailrace.open(path, "r") as log:
        return [damage.reason for damage in log.verify().damage]


def command(*words: str, path: Path, code: int) -> str:
    done = CliRunner().invoke(root, [*words, "-L", str(path)], prog_name="tailrace")
    assert done.exit_code == code, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def mended(path: Path, run: str, *, lost: bool = False) -> None:
    """Run what a finding says, then the repair without --dry-run."""
    assert run.startswith("tailrace repair")
    shell(f"{run} --dry-run", code=5 if lost else 0)
    shell(f"{run.replace(' --dry-run', '')} --yes", code=5 if lost else 0)


# Directories.


def test_a_partition_without_its_directory(path):
    fill(path)
    shutil.rmtree(directory(path, "orders", 1))
    found = only(path, "damaged-range")
    assert found.damage
    assert "orders[1]" in found.what
    assert "offsets 0 to 99 (its directory is missing)" in found.what
    assert verified(path) == ["a segment is missing"]
    mended(path, found.run, lost=True)
    assert codes(path) == ["lost-range"]


def test_a_partition_without_any_of_its_segments(path):
    fill(path)
    for segment in directory(path, "orders", 1).iterdir():
        segment.unlink()
    assert "offsets 0 to 99 (a segment is missing)" in only(path, "damaged-range").what


def test_all_topics_are_gone(path):
    fill(path)
    shutil.rmtree(path / "topics")
    found = diagnose(path)
    assert sorted(each.code for each in found) == ["damaged-directory", "damaged-range", "damaged-range"]
    assert all(each.damage for each in found)
    mended(path, found[0].run, lost=True)
    assert set(codes(path)) == {"lost-range"}


def test_a_partition_without_records_and_without_its_directory(path):
    fill(path)
    directory(path, "empty", 0).rmdir()
    found = only(path, "damaged-directory")
    assert "empty[0]" in found.what
    mended(path, found.run)
    assert codes(path) == []
    with tailrace.open(path) as log:
        assert log.topic("empty").append("x").offset == 0


def test_a_partition_that_was_trimmed_to_its_end(path):
    fill(path)
    with tailrace.open(path) as log:
        log.topic("orders").trim({1: 100})
    assert codes(path) == []
    shutil.rmtree(directory(path, "orders", 1))
    assert "orders[1]" in only(path, "damaged-directory").what
    mended(path, only(path, "damaged-directory").run)
    with tailrace.open(path) as log:
        assert log.topic("orders").append("x", partition=1).offset == 100


def test_the_journal_is_gone(path):
    fill(path)
    shutil.rmtree(path / "journal")
    found = only(path, "journal-damaged")
    assert f"the directory {path}/journal is missing" in found.what
    mended(path, found.run)
    assert codes(path) == []


# The identity.


def test_a_log_without_its_identity(path):
    fill(path)
    (path / "tailrace.json").unlink()
    before = contents(path)
    found = only(path, "identity-damaged")
    assert found.damage
    assert "tailrace.json is missing" in found.what
    for mode in ("a", "x", "r"):
        with pytest.raises(CorruptionError, match=r"tailrace\.json is missing, though a log lies here") as caught:
            tailrace.open(path, mode)
        assert caught.value.path == f"{path}/tailrace.json"
        assert caught.value.hint.endswith("tailrace repair")
    assert contents(path) == before
    assert f"tailrace -L {path} repair" in command("read", "orders", path=path, code=5)
    mended(path, found.run)
    assert codes(path) == []
    with tailrace.open(path) as log:
        assert log.topic("orders").read().count() == 200


def test_a_foreign_file_does_not_hide_a_log(path):
    fill(path)
    (path / "tailrace.json").unlink()
    (path / "notes.txt").write_text("mine")
    assert only(path, "identity-damaged").damage
    with pytest.raises(CorruptionError):
        tailrace.open(path)


def test_what_only_looks_like_a_log_is_none(path):
    for name in ("catalog", "topics"):
        (path / name).mkdir(parents=True)
        (path / name / "tea.csv").write_text("green")
    assert only(path, "not-a-log").run.startswith("ls ")
    with pytest.raises(NotALogError):
        tailrace.open(path, "r")


def test_a_creation_that_died_is_finished(path):
    for name in ("journal", "catalog", "topics"):
        (path / name).mkdir(parents=True)
    assert codes(path) == ["not-a-log"]
    with pytest.raises(NotALogError):
        tailrace.open(path, "r")
    fill(path)
    assert codes(path) == []


# Namespaces.


def test_a_namespace_without_its_identity(path):
    fill(path)
    fill(path, "in ner")
    (inner,) = path.glob("namespaces/*")
    (inner / "tailrace.json").unlink()
    found = only(path, "identity-damaged")
    assert found.what.startswith("Namespace 'in ner': ")
    assert "-N 'in ner'" in found.run
    assert diagnose(path, "in ner")[0].run == found.run
    assert verified(path) == ["the identity of the namespace 'in ner' is missing"]
    for mode in ("a", "r"):
        with pytest.raises(CorruptionError, match="is missing, though a log lies here"):
            tailrace.open(path, mode, namespace="in ner")
    assert "in ner" in command("repair", "--dry-run", path=path, code=0)
    mended(path, found.run)
    assert codes(path) == []
    with tailrace.open(path, "r", namespace="in ner") as log:
        assert log.topic("orders").read().count() == 200


@pytest.mark.parametrize("gone", [["catalog"], ["topics"], ["tailrace.json", "catalog"]])
def test_a_repair_looks_at_a_namespace_whatever_is_missing_of_it(path, gone):
    fill(path)
    fill(path, "inner")
    for name in gone:
        each = path / "namespaces" / "inner" / name
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    assert any(each.damage for each in diagnose(path))
    assert verified(path) or command("verify", path=path, code=5)
    assert "inner" in command("repair", "--yes", path=path, code=5)
    assert not any(each.damage for each in diagnose(path))
    command("verify", path=path, code=0)


def test_what_a_removal_leaves_is_no_namespace(path):
    """Names are removed in their order, and the topics last; what is left of it must not stop a repair."""
    fill(path)
    fill(path, "inner")
    inner = path / "namespaces" / "inner"
    for each in inner.iterdir():
        if each.name != "topics":
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    assert codes(path) == []
    assert verified(path) == []
    command("repair", "--dry-run", path=path, code=0)


def test_a_removal_that_is_under_way_is_no_damage(path, monkeypatch):
    fill(path)
    fill(path, "inner")
    inner = path / "namespaces" / "inner"
    (inner / "tailrace.json").unlink()
    files = tailrace.engine.engine.FILES
    plain = type(files).sleep

    def sleep(self: object, seconds: float) -> None:
        if seconds == opening.LOOK_AGAIN_SECONDS:
            next(inner.glob("topics/*-orders/*/*.seg")).unlink()
        plain(files, seconds)

    monkeypatch.setattr(type(files), "sleep", sleep)
    assert codes(path) == []


@pytest.mark.parametrize("name", ["dropped~0123", "Somebody's"])
def test_a_repair_leaves_directories_alone_that_are_no_namespaces(path, name):
    fill(path)
    fill(path, "inner")
    (path / "namespaces" / "inner").rename(path / "namespaces" / name)
    assert codes(path) == []
    command("repair", "--dry-run", path=path, code=0)


@pytest.mark.parametrize("again", [False, True])
def test_a_namespace_that_is_dropped_while_it_is_looked_at_is_no_damage(path, monkeypatch, again):
    fill(path)
    fill(path, "inner")
    plain = doctor.survey

    def survey(engine: Engine) -> SegmentSurvey:
        if engine.path.endswith("/inner"):
            with tailrace.open(path) as log:
                log.drop_namespace("inner")
            if again:
                fill(path, "inner")
        return plain(engine)

    monkeypatch.setattr(doctor, "survey", survey)
    assert codes(path) == []


# A newer version.


def put(file: Path, position: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(data)


def raise_version(file: Path, at: int, length: int, version: int, form: str) -> None:
    """Store another version in a checksummed header and make its checksum right again."""
    data = bytearray(file.read_bytes()[at : at + length])
    struct.pack_into(form, data, version, 2)
    data[-4:] = struct.pack("<I", crc32c(bytes(data[:-4])))
    put(file, at, bytes(data))


def segment_header(path: Path) -> None:
    raise_version(sorted(directory(path, "orders", 0).glob("*.seg"))[1], 0, 64, 8, "<I")


def segment_footer(path: Path) -> None:
    file = sorted(directory(path, "orders", 0).glob("*.seg"))[1]
    raise_version(file, file.stat().st_size - 96, 96, 8, "<I")


def first_frame(path: Path) -> None:
    raise_version(sorted(directory(path, "orders", 0).glob("*.seg"))[0], 64, 96, 4, "<B")


def journal(path: Path) -> None:
    (file,) = path.glob("journal/*.wal")
    for at in (0, 4096):
        if any(file.read_bytes()[at : at + 68]):
            raise_version(file, at, 68, 8, "<I")


def catalog(path: Path) -> None:
    (file,) = path.glob("catalog/*.seg")
    raise_version(file, 64, 96, 4, "<B")


@pytest.mark.parametrize("change", [segment_header, segment_footer, first_frame, journal, catalog])
def test_what_a_newer_version_wrote(path, change: Callable[[Path], None]):
    fill(path)
    with tailrace.open(path) as log, log.transaction() as transaction:
        transaction.append("orders", "a")
        transaction.append("pay", "b")
    change(path)
    found = only(path, "newer-version")
    assert not found.damage
    assert found.run == "pip install --upgrade tailrace"
    assert "version 2" in found.what
    command("doctor", path=path, code=1)
    assert "pip install --upgrade tailrace" in command("verify", path=path, code=1)


def test_damage_outweighs_a_newer_version(path):
    fill(path)
    segment_header(path)
    with tailrace.open(path, "r") as log, pytest.raises(VersionError, match=r"\.seg: A segment has version 2"):
        log.verify()
    shutil.rmtree(directory(path, "orders", 1))
    assert verified(path)[0] == "a segment is missing"
    assert "A segment has version 2" in verified(path)[1]


def test_a_newer_namespace_hides_no_damage(path):
    fill(path)
    fill(path, "inner")
    inner = path / "namespaces" / "inner"
    segment_header(inner)
    assert not json.loads(command("verify", "-o", "json", path=path, code=1).partition('{"error"')[0])["ok"]
    shutil.rmtree(directory(path, "orders", 1))
    assert "a segment is missing" in command("verify", path=path, code=5)
