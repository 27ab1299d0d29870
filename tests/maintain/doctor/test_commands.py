"""Commands of findings: complete, and quoted for a shell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tailrace
from tailrace.maintain.doctor.commands import quote
from tests.doctoring import diagnose, shell


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


def append(path: Path, durable: bool) -> None:
    with tailrace.open(path) as log:
        log.topic("orders").append("x", durable=False)
        log.topic("orders").append("x", durable=durable)


def test_commands_are_quoted_for_a_shell(tmp_path, tailrace_faults, monkeypatch):
    path = tmp_path / "it's a\tlog; $HOME"
    fill(path)
    monkeypatch.setenv("TAILRACE_NAMESPACE", "elsewhere")
    assert tailrace_faults.kill(append_here, path, at="published").killed
    (found,) = [each for each in diagnose(path, "") if each.code == "not-on-disk"]
    assert "-N ''" in found.run
    shell(found.run)
    assert [each.code for each in diagnose(path, "")] == []


def append_here(path: Path) -> None:
    os.environ.pop("TAILRACE_NAMESPACE", None)
    append(path, durable=False)


def test_words_are_quoted():
    assert quote("a b") == "'a b'"
    odd = quote("a\x01b")
    assert shell(f"printf %s {odd} | od -An -tx1").split() == ["61", "01", "62"]
    assert Path(shell(f"printf %s {quote('/tmp/ü')}")) == Path("/tmp/ü")
