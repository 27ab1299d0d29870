"""The benchmarks run to their end at tiny sizes, say the durability of everything, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest
from benchmarks import engine, engine_reads, engine_stage, groups, page, peers, report, stores
from benchmarks.engine_segments import QUESTIONS, WORK_COLD, WORK_WARM

from tailrace.bench.cases import MICROSECONDS, Case, Result

ROOT = Path(__file__).parents[1]


def command(results: Path, *options: str, name: str = "groups") -> list[str]:
    tiny = ["--quick", "--seconds", "0.2", "--rounds", "1", "--results", str(results)]
    return [sys.executable, "-m", "benchmarks", name, *tiny, *options]


def measured(results: Path, *options: str, name: str = "groups") -> tuple[str, list[dict]]:
    """What a run printed, and the rows that it wrote."""
    done = subprocess.run(
        command(results, *options, name=name), check=False, cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    # The directory in which it worked is gone.
    assert sorted(path.name for path in results.iterdir()) == [f"{name}.json", f"{name}.svg"]
    ElementTree.parse(results / f"{name}.svg")
    return done.stdout, json.loads((results / f"{name}.json").read_text("utf-8"))["results"]


# The whole command.


@pytest.mark.slow
def test_what_needs_no_other_process_is_measured_beside_the_peers_that_are_there(tmp_path):
    text, rows = measured(tmp_path, "--only", "consume,commit", "--only", "process,join")
    assert {row["work"] for row in rows} >= {
        "consume by record",
        "consume by batch",
        "commit",
        "process",
        "join and leave",
    }
    assert all(row["median"] > 0 and row["durability"] and row["samples"] for row in rows)
    for kind in peers.installed():
        levels = [row["durability"] for row in rows if row["system"] == kind.label]
        assert levels
        assert any("kill" in level or "disk" in level for level in levels)
    for package in peers.missing():
        assert package in text
        assert peers.INSTALL in text
    assert "Goals met: " in text


def test_receipt_and_take_over_are_measured_between_processes(tmp_path):
    _, rows = measured(tmp_path, "--only", "receipt,takeover", "--alone")
    found = {row["work"]: row for row in rows if row["goals"]}
    assert found["append to receipt"]["samples"] >= 30
    assert found["take-over"]["samples"] == groups.QUICK_TAKEOVERS
    assert 0 < found["take-over"]["median"] <= found["take-over"]["p99"]


def test_a_terminated_run_leaves_no_directory_and_no_process(tmp_path):
    child = subprocess.Popen(command(tmp_path, "--only", "takeover", "--rounds", "50"), cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not psutil.Process(child.pid).children() and time.monotonic() < deadline:
            time.sleep(0.02)
        children = psutil.Process(child.pid).children()
        assert children
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(30) == 128 + signal.SIGTERM
    finally:
        child.kill()
        child.wait()
    assert list(tmp_path.iterdir()) == []
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


@pytest.mark.slow
def test_questions_about_many_segments_are_measured_cold_and_warm(tmp_path):
    _, rows = measured(tmp_path, "--only", "segments", "--alone", name="engine")
    cold, warm = [[row for row in rows if row["work"] == work] for work in (WORK_COLD, WORK_WARM)]
    assert len(cold) == 2 * (len(QUESTIONS) + 1)
    assert len(warm) == 2 * len(QUESTIONS)
    assert all(row["median"] > 0 for row in rows)
    assert all((row["ratio"] is None) == (row["system"] == "plain file") for row in cold)
    assert [bool(row["goals"]) for row in warm] == [row["ratio"] is not None for row in warm] == [False, True] * 4


@pytest.mark.slow
def test_writing_is_measured_beside_every_store_that_is_there(tmp_path):
    parts = "append,append-steady,threads,append-quick,producer,extend,extend-quick,transaction"
    text, rows = measured(tmp_path, "--only", parts, name="engine")
    assert all(row["median"] > 0 and row["durability"] and row["samples"] for row in rows)
    works = {row["work"] for row in rows}
    for work in works:
        some = [row for row in rows if row["work"] == work]
        assert "Tailrace" in {row["system"] for row in some}
        # What is on disk when its call returns, and what is not, are not in one table.
        durable = "not durable" not in work
        assert {"on disk" in row["durability"] for row in some} == {durable}, work
        # The same bytes, written by bare system calls, are there to compare with.
        if work.startswith(("append", "extend")):
            assert [row["ratio"] for row in some if row["system"] == "plain file"] == [None]
            assert all(row["ratio"] > 0 for row in some if row["system"] != "plain file")
    measured_systems = {row["system"] for row in rows}
    assert {kind.label for kind in stores.installed()} <= measured_systems
    without = {"append of one record, durable, one thread, 100 B"} | {work for work in works if _is_large(work)}
    assert {row["work"] for row in rows if row["goals"]} == works - without | {
        "extend of 1,000 records, not durable, 1 KB"
    }
    steady = [row for row in rows if "steady state, 100 B" in row["work"]]
    own = next(row for row in steady if row["system"] == "Tailrace")
    others = [row for row in steady if row["system"] not in ("Tailrace", "plain file", "bare loop")]
    assert [goal["goal"] for goal in own["goals"]] == ["ratio >= 0.9", "lead >= 1"]
    assert own["lead"] == pytest.approx(min(_ratio_of(own, other) for other in others))
    for package in stores.missing():
        assert f"NOT INSTALLED, so not measured: {package}" in text or f", {package}" in text


def _is_large(work: str) -> bool:
    return work.endswith("1 KB")


def _ratio_of(row: dict[str, Any], other: dict[str, Any]) -> float:
    return median(one / another for one, another in zip(row["rounds"], other["rounds"], strict=True))


@pytest.mark.slow
def test_reading_following_opening_and_size_are_measured(tmp_path):
    text, rows = measured(tmp_path, "--only", "read,follow,open,open-topics,open-cut,size", "--alone", name="engine")
    found = {work: [row for row in rows if row["work"] == work] for work in {row["work"] for row in rows}}
    follow = next(rows for work, rows in found.items() if work.startswith("append in one process"))
    assert [row["samples"] >= 30 for row in follow] == [True] * 5
    assert {row["system"] for row in follow} == {"pipe", "Tailrace", "SQLite"}
    assert len(found["open after a kill"]) == 2
    assert len(found["open after a power cut"]) == 4
    size = next(rows for work, rows in found.items() if work.startswith("bytes on disk"))
    assert 110 < size[0]["median"] < 250
    assert "load " in text.splitlines()[0]


@pytest.mark.parametrize("kind", stores.installed(), ids=lambda kind: kind.key)
def test_a_store_keeps_what_it_was_given(tmp_path, kind):
    store = kind.open(tmp_path / "store")
    try:
        if kind.one:
            store.append(b"one")
        if kind.many:
            store.extend([b"two", b"three"])
        if kind.scans:
            assert store.scan() == 3
        assert ("on disk" in store.level()) == kind.durable
    finally:
        store.close()


def test_a_framed_file_that_is_damaged_is_noticed(tmp_path):
    path = tmp_path / "framed"
    good = engine_reads.HEAD.pack(3, engine_reads.zlib.crc32(b"abc")) + b"abc"
    path.write_bytes(good * 3)
    assert engine_reads.read_framed(path) == 3
    path.write_bytes(good * 2 + good[:-1] + b"x")
    with pytest.raises(ValueError, match="damaged at"):
        engine_reads.read_framed(path)


def test_a_read_that_sees_too_little_is_no_measurement():
    with pytest.raises(RuntimeError, match="9 records were read of 10"):
        engine_reads.whole(lambda: 9, 10)(0.0)


def test_what_does_not_fit_on_the_disk_is_left_out_loudly(tmp_path, monkeypatch, capsys):
    usage = engine.shutil.disk_usage(tmp_path)._replace(free=engine.SPARE_BYTES + 2 * 10**9)
    monkeypatch.setattr(engine.shutil, "disk_usage", lambda _: usage)
    sizes = engine._that_fit(engine_stage.Sizes.full(), engine.parse(["--results", str(tmp_path)]))
    assert sizes.open_bytes == (10**9,)
    assert "no room for logs to open of 10 GB" in capsys.readouterr().err


def test_a_section_of_the_page_has_its_place(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("# Benchmarks of groups\n\nold\n\n## Sub\n\n# Another\n\nkept\n", "utf-8")
    page.put("# Benchmarks of the engine\n\nfirst\n", path)
    page.put("# Benchmarks of groups\n\nnew\n", path)
    assert path.read_text("utf-8") == (
        "# Benchmarks of the engine\n\nfirst\n\n# Benchmarks of groups\n\nnew\n\n# Another\n\nkept\n"
    )


def test_the_page_is_written_with_its_goals_and_its_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page.put, "__defaults__", (tmp_path / "page.md",))
    tiny = ["--quick", "--alone", "--seconds", "0.1", "--rounds", "1", "--only", "producer", "--write-docs"]
    figures, picture = tmp_path / "own.json", tmp_path / "own.svg"
    results = ["--results", str(tmp_path / "results"), "--json", str(figures), "--svg", str(picture)]
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert engine.main([*tiny, *results]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    text = (tmp_path / "page.md").read_text("utf-8")
    assert text.startswith("# Benchmarks of the engine\n")
    assert "| producer, 100 B | producer.append() one by one, flush() | on disk when its future has a result |" in text
    assert "rounds of a quick run" in text
    for drawn in (picture, tmp_path / "benchmarks-engine.svg"):
        ElementTree.parse(drawn)
    assert json.loads(figures.read_text("utf-8"))["machine"]["quick"] is True
    assert list((tmp_path / "results").iterdir()) == []
    assert f"written: {figures}" in capsys.readouterr().out


def test_a_run_of_many_segments_alone_keeps_what_was_measured_of_the_engine(tmp_path, monkeypatch):
    """Its rows are a section of their own, which says under which load they were measured, and that ratios count."""
    path = tmp_path / "page.md"
    path.write_text("# Benchmarks of the engine\n\nkept\n\n# Benchmarks of groups\n\nkept as well\n", "utf-8")
    monkeypatch.setattr(page, "PAGE", path)
    monkeypatch.setattr(page.put, "__defaults__", (path,))
    row = Case(WORK_WARM, "Tailrace", "topics(), 5 segments", "-", MICROSECONDS, lambda _: [1.0])
    facts = dict.fromkeys(("date", "tailrace", "python", "sqlite", "processors", "processor", "system"), "x")
    facts |= {"file_system": "ext4", "load_at_start": 9.0, "load_at_end": 8.0, "rounds": 4, "others_share": 0.5}
    engine._write_docs([Result(row, [[40.0]])], facts, [report.noise(facts)])
    first, own, last = re.split(r"^(?=# )", path.read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert first == "# Benchmarks of the engine\n\nkept\n\n"
    assert last == "# Benchmarks of groups\n\nkept as well\n"
    assert own.startswith("# Benchmarks of many segments\n")
    assert "| Tailrace | topics(), 5 segments | 40.0 | 40.0 |" in own
    for told in ("The ratios count.", "load 9.0 before and 8.0 after", "NOISY: other processes took 50%"):
        assert told in own


def test_a_noisy_machine_is_told_of():
    assert report.noise({"others_share": 0.02}) == report.noise({"others_share": None}) == ""
    assert report.noise({"others_share": 0.5}).startswith("NOISY: other processes took 50%")


def test_the_script_refuses_what_it_does_not_know_and_prints_its_usage():
    script = str(ROOT / "benchmarks" / "run")
    wrong = subprocess.run([script, "nothing"], check=False, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "engine, groups or spark" in wrong.stderr
    told = subprocess.run([script, "--help"], check=True, capture_output=True, text=True)
    assert "benchmarks/run engine" in told.stdout
    assert told.stderr == ""


@pytest.mark.parametrize("parse", [groups.parse, engine.parse])
@pytest.mark.parametrize("options", [["--only", "nothing"], ["--seconds", "-1"], ["--rounds", "0.5"]])
def test_wrong_options_are_refused(parse, options):
    with pytest.raises(SystemExit) as error:
        parse(options)
    assert error.value.code == 2


def test_without_the_peers_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda _: None)
    assert peers.installed() == []
    assert peers.missing() == ["persist-queue", "litequeue", "huey", "diskcache"]
    assert stores.missing() == list(stores.MODULES)
    assert {kind.package for kind in stores.installed()} == {"sqlite3"}
    listed = (ROOT / "pyproject.toml").read_text("utf-8").partition("\nbench = ")[2].partition("\n")[0]
    assert all(f'"{package}>=' in listed for package in (*peers.missing(), *stores.missing()))
