"""The directory of a backup: what is not its own is named and left alone, leftovers are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace.errors import NotALogError, OpenError
from tests.backing_up import everything, fill, restored


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        yield log


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
