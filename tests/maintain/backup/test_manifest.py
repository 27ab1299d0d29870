"""The manifest of a backup: damage and nonsense are told as that."""

from __future__ import annotations

import pytest

import tailrace
from tailrace.errors import CorruptionError
from tests.backing_up import everything, fill


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        yield log


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
