"""A backup of a log with namespaces that are there and cannot be read is refused, and none of their copies removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import tailrace
from tailrace.cli.app import root
from tailrace.errors import CorruptionError
from tailrace.maintain.backup import take as taking
from tests.doctoring import diagnose, shell


@pytest.fixture(autouse=True)
def _small_journals(monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "256KiB")


@pytest.fixture
def path(tmp_path) -> Path:
    """A log with a namespace in a namespace, and a backup of it."""
    path = tmp_path / "log"
    with tailrace.open(path) as log:
        log.topic("orders").append("outer")
        with log.namespace("tenant") as tenant:
            tenant.topic("orders").append("inner")
            with tenant.namespace("unit") as unit:
                unit.topic("orders").append("deep")
        assert log.backup(tmp_path / "backup").namespaces == 2
    return path


def everything(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def lose_identity(tenant: Path) -> None:
    (tenant / "tailrace.json").unlink()


def break_link(tenant: Path) -> None:
    tenant.rename(tenant.parents[2] / "away")
    tenant.symlink_to("/nowhere/to/be/found")


def break_all(tenant: Path) -> None:
    tenant.parent.rename(tenant.parents[2] / "away")
    tenant.parent.symlink_to("/nowhere/to/be/found")


def lose_disk(tenant: Path) -> None:
    """What is left is the directory to which its disk was mounted."""
    tenant.rename(tenant.parents[2] / "away")
    tenant.mkdir()


def lose_everything(tenant: Path) -> None:
    """Nothing says any more that a log was here, but that something is."""
    for name in ("tailrace.json", "catalog", "tails"):
        each = tenant / name
        shutil.rmtree(each) if each.is_dir() else each.unlink()


def turn_to_file(tenant: Path) -> None:
    shutil.rmtree(tenant)
    tenant.touch()


HIDDEN = [lose_identity, break_link, break_all]
LOST = [lose_disk, lose_everything, turn_to_file]


@pytest.mark.parametrize("nested", [False, True], ids=["tenant", "unit"])
@pytest.mark.parametrize("harm", [*HIDDEN, *LOST], ids=lambda harm: harm.__name__)
def test_what_cannot_be_read_is_refused_and_keeps_its_copies(path, tmp_path, harm, nested):
    tenant = path / "namespaces" / "tenant"
    harm(tenant / "namespaces" / "unit" if nested else tenant)
    before = everything(tmp_path / "backup")
    with tailrace.open(path) as log:
        log.topic("orders").append("more")
        for allow_damage in (False, True):
            with pytest.raises(CorruptionError, match="not backed up") as told:
                log.backup(tmp_path / "backup", allow_damage=allow_damage)
            assert (told.value.path or "").startswith(str(path / "namespaces"))
            assert "previous backup" in told.value.hint
    after = everything(tmp_path / "backup")
    assert {name: after.get(name) for name in before} == before
    tailrace.Log.restore(tmp_path / "backup", tmp_path / "again")
    with tailrace.open(tmp_path / "again", namespace="tenant") as again, again.namespace("unit") as unit:
        assert again.topic("orders").read().first().text == "inner"
        assert unit.topic("orders").read().first().text == "deep"


@pytest.mark.parametrize("harm", HIDDEN, ids=lambda harm: harm.__name__)
def test_a_first_backup_leaves_none_out(path, tmp_path, harm):
    harm(path / "namespaces" / "tenant")
    with tailrace.open(path) as log, pytest.raises(CorruptionError, match="not backed up"):
        log.backup(tmp_path / "first")
    assert not (tmp_path / "first" / "backup.json").exists()


@pytest.mark.parametrize("harm", HIDDEN, ids=lambda harm: harm.__name__)
def test_one_that_is_harmed_while_the_log_is_copied_is_noticed(path, tmp_path, harm, monkeypatch):
    copy = taking.Backup._copy

    def harmed(self, source):
        if not source.namespace:
            harm(path / "namespaces" / "tenant")
        return copy(self, source)

    monkeypatch.setattr(taking.Backup, "_copy", harmed)
    with tailrace.open(path) as log, pytest.raises(CorruptionError, match="not backed up"):
        log.backup(tmp_path / "first")


def test_what_was_repaired_is_backed_up_again(path, tmp_path):
    lose_identity(path / "namespaces" / "tenant")
    told = CliRunner().invoke(root, ["backup", str(tmp_path / "backup"), "-L", str(path)], prog_name="tailrace")
    assert told.exit_code == 5
    assert f"tailrace -L {path} repair" in told.stderr
    done = CliRunner().invoke(root, ["repair", "-y", "-L", str(path)], prog_name="tailrace")
    assert done.exit_code == 0, done.stderr
    with tailrace.open(path) as log:
        assert log.backup(tmp_path / "backup").namespaces == 2


@pytest.mark.parametrize("anew", [False, True], ids=["dropped", "made anew"])
def test_copies_of_one_that_was_dropped_go(path, tmp_path, anew):
    with tailrace.open(path) as log:
        log.drop_namespace("tenant")
        if anew:
            log.namespace("tenant").close()
        assert log.backup(tmp_path / "backup").namespaces == anew
    assert len(os.listdir(tmp_path / "backup" / "data")) == 1 + anew


def test_one_that_is_made_anew_while_the_log_is_copied_is_no_loss(path, tmp_path, monkeypatch):
    """Its directory is there and it is not in the backup, but it is another one."""
    with tailrace.open(path) as log:
        log.drop_namespace("tenant")
        look = taking.Backup._refuse_lacking

        def late(self, *arguments):
            log.namespace("tenant").close()
            look(self, *arguments)

        monkeypatch.setattr(taking.Backup, "_refuse_lacking", late)
        assert log.backup(tmp_path / "backup").namespaces == 0


def test_one_that_comes_back_while_the_log_is_copied_keeps_its_copies(path, tmp_path, monkeypatch):
    """As when its disk is mounted a moment too late."""
    tenant = path / "namespaces" / "tenant"
    tenant.rename(tmp_path / "away")
    look = taking.Backup._refuse_lacking

    def late(self, *arguments):
        (tmp_path / "away").rename(tenant)
        look(self, *arguments)

    before = everything(tmp_path / "backup")
    with tailrace.open(path) as log:
        monkeypatch.setattr(taking.Backup, "_refuse_lacking", late)
        with pytest.raises(CorruptionError, match="in the previous backup"):
            log.backup(tmp_path / "backup")
        monkeypatch.undo()
        after = everything(tmp_path / "backup")
        assert {name: after.get(name) for name in before} == before
        assert log.backup(tmp_path / "backup").namespaces == 2


def test_what_is_somebody_elses_stands_in_nobodys_way(path, tmp_path):
    (path / "namespaces" / "Their Link").symlink_to("/nowhere/to/be/found")
    (path / "namespaces" / "Their Directory").mkdir()
    (path / "namespaces" / "unmade").mkdir()
    with tailrace.open(path) as log:
        assert log.backup(tmp_path / "backup").namespaces == 2
    assert diagnose(path) == []


@pytest.mark.parametrize("harm", [break_link, break_all], ids=lambda harm: harm.__name__)
def test_the_doctor_names_a_link_that_leads_nowhere(path, harm):
    harm(path / "namespaces" / "tenant")
    (found,) = [each for each in diagnose(path) if each.severity == "error"]
    assert found.code == "unreadable"
    assert "leads nowhere" in found.what
    assert "nowhere/to/be/found" in shell(found.run)
