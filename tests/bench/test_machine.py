"""The machine of a run: what a reader needs to judge the figures, also where the system tells little."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.bench import machine
from tailrace.bench.machine import Watcher, file_system


def test_the_facts_can_be_written_as_json(tmp_path):
    facts = Watcher().facts(tmp_path)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["file_system"] == file_system(tmp_path)
    assert facts["processors"] > 0
    assert all(facts[name] for name in ("date", "tailrace", "python", "sqlite", "system", "processor"))


@pytest.mark.parametrize(
    ("busy", "own", "share"),
    [(8.0, 3.0, 0.25), (3.0, 3.0, 0.0), (2.0, 3.0, 0.0)],
)
def test_the_share_of_others_is_what_this_run_did_not_use(tmp_path, monkeypatch, busy, own, share):
    watcher = Watcher()
    watcher.busy, watcher.total, watcher.own = 100.0, 1_000.0, 10.0
    monkeypatch.setattr(machine, "_processor_seconds", lambda: (100.0 + busy, 1_020.0))
    monkeypatch.setattr(machine, "_own_seconds", lambda: 10.0 + own)
    assert watcher.facts(tmp_path)["others_share"] == share


def test_without_a_clock_of_the_processors_there_is_no_share(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_processor_seconds", lambda: (0.0, 0.0))
    assert Watcher().facts(tmp_path)["others_share"] is None


def test_the_file_system_is_that_of_the_nearest_mount(monkeypatch):
    mounts = "a / ext4 rw 0 0\nb /data xfs rw 0 0\nc /data/fast tmpfs rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda *_: mounts)
    found = {path: file_system(Path(path)) for path in ("/x", "/data/y", "/data/fast/z", "/data/faster")}
    assert found == {"/x": "ext4", "/data/y": "xfs", "/data/fast/z": "tmpfs", "/data/faster": "xfs"}


def test_a_system_without_these_files(monkeypatch):
    def missing(*_):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert file_system(Path("/x")) == "unknown"
    assert machine._processor_seconds() == (0.0, 0.0)
    assert machine._processor() == machine.platform.machine()
