"""Every format version that was ever released opens, reads the same and can be appended to."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import tailrace
from tests.golden.make import describe

GOLDEN = sorted(Path(__file__).parent.glob("*.tar.gz"))


def test_there_is_a_golden_log_of_this_format():
    from tailrace.disk.opening import FORMAT_VERSION

    assert f"format-{FORMAT_VERSION}.tar.gz" in [path.name for path in GOLDEN]


@pytest.mark.parametrize("archive", GOLDEN, ids=lambda path: path.name)
def test_a_golden_log_reads_as_it_did(archive, tmp_path):
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    expected = json.loads(archive.with_suffix("").with_suffix(".json").read_text())
    with tailrace.open(tmp_path / "log") as log:
        assert describe(log) == expected
        assert log.verify().ok
        before = log.topic("plain").offsets()
        position = log.topic("plain").append("more", partition=0)
        assert position.offset == before[0].latest
    with tailrace.open(tmp_path / "log", "r") as log:
        assert log.topic("plain").get(position.offset).value == b"more"
