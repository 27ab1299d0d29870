"""The segments of a log as the doctor sees them: damaged, missing, and under each other's names."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tests.doctoring import codes, diagnose, only, shell


@pytest.fixture(autouse=True)
def _small_journals(monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "256KiB")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "log"


def fill(path: Path, topic: str = "orders", *, segments: int = 3, **settings) -> None:
    """A topic of one partition with several segments."""
    with tailrace.open(path) as log:
        made = log.topic(topic, segment_bytes="16KiB", **settings)
        for number in range(segments):
            made.extend([b"%06d" % (number * 100 + each) + bytes(140) for each in range(100)])


def segments(path: Path, topic: str = "orders") -> list[Path]:
    return sorted(path.glob(f"topics/*-{topic}/0/*.seg"))


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x40
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("which", "position", "reason"),
    [(0, 20, "header"), (0, -20, "footer"), (1, -20, "footer"), (-1, 100, "damaged")],
)
def test_damaged_segments(path, which, position, reason):
    fill(path, segments=4)
    flip(segments(path)[which], position)
    found = next(each for each in diagnose(path) if each.code == "damaged-range")
    assert "orders[0]" in found.what
    assert reason in found.what
    assert found.damage
    assert found.severity == "error"


def test_a_missing_segment(path):
    fill(path, segments=4)
    first, second, *_ = segments(path)
    second.unlink()
    found = only(path, "damaged-range")
    assert "the segment is missing" in found.what
    assert str(second) in found.what
    assert str(first) not in found.what
    first.unlink()
    assert "a segment is missing" in only(path, "damaged-range").what


def repaired(path: Path, code: str, *, lost: bool = False) -> list[str]:
    """Run what a finding tells to run, then the repair itself; the codes that are left."""
    found = next(each for each in diagnose(path) if each.code == code)
    assert found.run.startswith("tailrace repair")
    shell(f"{found.run} --dry-run", code=5 if lost else 0)
    shell(f"{found.run.replace(' --dry-run', '')} --yes", code=5 if lost else 0)
    return codes(path)


def test_segments_under_each_others_names(path):
    fill(path, segments=4)
    first, second, *_ = segments(path)
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    assert "says that its first record is" in only(path, "damaged-range").what
    assert repaired(path, "damaged-range") == []
    with tailrace.open(path) as log:
        assert [record.value[:6] for record in log.topic("orders").read()] == [b"%06d" % each for each in range(400)]
