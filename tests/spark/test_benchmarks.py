"""The benchmark of Spark runs to its end at tiny sizes, says what it measured, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from benchmarks import page, spark, spark_stage

from tests.spark import launch


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("parts", "goals"), [("write", 1), pytest.param("", 9, marks=pytest.mark.long)])
def test_a_tiny_run_reports_its_parts_and_leaves_nothing(tmp_path, parts, goals):
    reason = launch.missing()
    if reason is not None:
        pytest.skip(reason)
    chosen = ["--only", parts] if parts else []
    options = [*chosen, "--quick", "--scale", "0.001", "--rounds", "1", "--results", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "spark", *options],
        check=False, cwd=launch.ROOT, capture_output=True, text=True, timeout=550,
        env={**os.environ, **launch.environment()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The directory in which it worked is gone.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spark.json", "spark.svg"]
    ElementTree.parse(tmp_path / "spark.svg")
    found = json.loads((tmp_path / "spark.json").read_text("utf-8"))
    rows = found["results"]
    assert all(row["median"] > 0 and row["durability"] and row["samples"] for row in rows)
    assert sum(len(row["goals"]) for row in rows) == goals
    assert {row["work"] for row in rows if row["goals"]} == {row["work"] for row in rows}
    assert all(row["ratio"] and row["ratio_against"] != "poll" for row in rows if row["goals"])
    assert found["machine"]["pyspark"]
    assert "Goals met: " in done.stdout
    assert f"Java {found['machine']['java']}" in done.stdout


def test_without_spark_or_java_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(spark_stage, "find_spec", lambda _: None)
    assert spark.main(["--quick"]) == 1
    assert 'pip install "tailrace[spark]"' in capsys.readouterr().err
    monkeypatch.setattr(spark_stage, "find_spec", lambda _: object())
    monkeypatch.setattr(spark_stage.shutil, "which", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert spark.main(["--quick"]) == 1
    assert "Java 17" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--only", "nothing"], ["--scale", "-1"], ["--scale", "0"], ["--rounds", "0"]])
def test_wrong_options_are_refused(options):
    with pytest.raises(SystemExit) as error:
        spark.parse(options)
    assert error.value.code == 2


def test_sizes_fill_whole_frames():
    for scale in (0.001, 0.2, 1.0):
        sizes = spark_stage.Sizes.scaled(scale)
        assert all(size % (spark_stage.FRAME_RECORDS * spark_stage.PARTITIONS) == 0 for size in sizes[:3])
        assert min(sizes) >= 4


def test_each_command_writes_its_own_section_of_the_page(tmp_path):
    path = tmp_path / "page.md"
    page.put("# One\n\n## Part\n\nold\n", path)
    page.put("# Two\n\ntext\n", path)
    page.put("# One\n\n## Part\n\nnew\n\n", path)
    assert path.read_text("utf-8") == "# One\n\n## Part\n\nnew\n\n# Two\n\ntext\n"
