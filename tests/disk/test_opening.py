"""A log that uses what this version does not know is refused, before anything is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tailrace
from tailrace.disk.frame import crc32c
from tailrace.errors import CorruptionError, VersionError


@pytest.fixture
def path(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").append("one")
        with log.namespace("inner") as inner:
            inner.topic("orders").append("two")
        log.backup(tmp_path / "backup")
    return tmp_path / "log"


def everything(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def edit(directory: Path, **changes: object) -> None:
    identity = directory / "tailrace.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), **changes}))


def refuse(action, path: Path) -> None:
    before = everything(path)
    with pytest.raises(VersionError, match="written by a newer version of Tailrace: it uses 'encryption'") as caught:
        action()
    assert "upgrade" in caught.value.hint
    assert everything(path) == before


def test_a_new_log_needs_nothing(path):
    assert json.loads((path / "tailrace.json").read_text())["features"] == []


@pytest.mark.parametrize("recovered", [False, True])
def test_an_unknown_feature_is_refused_in_every_mode(path, tmp_path, recovered):
    edit(path, features=["encryption"])
    if recovered:
        (path / "tails").unlink()
    for mode in ("a", "r"):
        refuse(lambda mode=mode: tailrace.open(path, mode), path)
    refuse(lambda: tailrace.open(path, exclusive=True), path)
    refuse(lambda: tailrace.repair(path, dry_run=True), path)
    before = {name: data for name, data in everything(path).items() if name != "lock"}
    with pytest.raises(VersionError, match="encryption"):
        tailrace.repair(path)
    assert {name: data for name, data in everything(path).items() if name != "lock"} == before


def test_an_unknown_feature_of_a_namespace_is_refused(path, tmp_path):
    inner = path / "namespaces" / "inner"
    edit(inner, features=["encryption"])
    with tailrace.open(path) as log:
        refuse(lambda: log.namespace("inner").topic("orders").read("earliest"), inner)
        assert log.topic("orders").read().count() == 1
        with pytest.raises(VersionError, match="encryption"):
            log.backup(tmp_path / "backup")
    with tailrace.open(path, "r") as log, pytest.raises(VersionError, match="encryption"):
        log.namespace("inner").topic("orders")


def test_an_unknown_feature_of_a_backup_is_refused(path, tmp_path):
    manifest = tmp_path / "backup" / "backup.json"
    head, _, body = manifest.read_bytes().partition(b"\n")
    record = json.loads(body)
    assert [log["features"] for log in record["logs"]] == [[], []]
    record["logs"][1]["features"] = ["encryption"]
    body = json.dumps(record).encode()
    about = {**json.loads(head), "crc32c": f"{crc32c(body):08x}", "bytes": len(body)}
    manifest.write_bytes(json.dumps(about).encode() + b"\n" + body)
    refuse(lambda: tailrace.Log.restore(tmp_path / "backup", tmp_path / "to"), tmp_path / "backup")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("features", [None, "encryption", [1], {"encryption": True}])
def test_features_that_are_no_words_are_damage(path, features):
    edit(path, features=features)
    with pytest.raises(CorruptionError, match="cannot be understood"):
        tailrace.open(path)


def test_what_is_no_feature_is_passed_over(path):
    edit(path, made_by="a newer version")
    with tailrace.open(path) as log:
        assert log.topic("orders").read().count() == 1
