"""A file system of a few megabytes that is really full: a part of `python -m tests.rigs.faults full`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.meaning import record_meaning
from tests.rigs.faults import filesystem

IMAGE_BYTES = 14 << 20
# One that waits for the disk at every write, and one that does not.
WAITING = ("append", "extend", "transaction", "roll")
NOT_WAITING = ("append-not-waiting", "extend-not-waiting", "adoption")


def is_mounted(path: Path) -> bool:
    return str(path) in Path("/proc/mounts").read_text()


@pytest.fixture(autouse=True)
def _can_mount():
    if reason := filesystem.missing():
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [WAITING, NOT_WAITING], ids=["waiting", "not-waiting"])
def test_a_full_file_system(tmp_path, rng, kinds):
    filled = filesystem.Filled()
    filesystem.run(tmp_path / "full", rng.choice(kinds), filled, IMAGE_BYTES)
    assert not is_mounted(tmp_path)
    assert not filled.faults, "\n".join(filled.faults[:10])
    assert filled.times_full == 4
    assert filled.errors["DiskFullError"] >= 4 * 6
    assert (filled.lost, filled.acknowledged > 100) == (0, True)
    record_meaning(acknowledged=filled.acknowledged, acknowledged_lost=filled.lost, disk_full=filled.refused)


def test_it_is_unmounted_after_a_failure(tmp_path):
    def fail() -> None:
        with filesystem.small_filesystem(tmp_path / "small", 4 << 20) as mounted:
            assert is_mounted(mounted)
            (mounted / "there").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not is_mounted(tmp_path)
    assert not (tmp_path / "small" / "image").exists()
