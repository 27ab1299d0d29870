"""The declarative project of examples/ by its commands: a dry run writes nothing, a second run exactly the new rows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import tailrace
from tests.spark import launch

PROJECT = launch.ROOT / "examples" / "declarative"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.fixture
def project(tmp_path):
    """A copy whose log and checkpoints are of this test."""
    for package in ("grpc_status", "google.rpc", "zstandard", "pandas", "yaml"):
        pytest.importorskip(package, reason='declarative pipelines need more: pip install "pyspark[pipelines]"')
    reason = launch.missing()
    if reason is not None:
        pytest.skip(reason)
    copy = shutil.copytree(PROJECT, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    spec = copy / "spark-pipeline.yml"
    text = spec.read_text("utf-8")
    assert text.count("/tmp/shop") == 2
    spec.write_text(text.replace("/tmp/shop", f"{tmp_path}/shop"), "utf-8")
    return spec


def command(spec, what):
    tool = Path(sys.executable).with_name("spark-pipelines")
    settings = ("spark.driver.memory=1g", "spark.ui.enabled=false", "spark.ui.showConsoleProgress=false")
    confs = [word for each in settings for word in ("--conf", each)]
    done = subprocess.run(
        [tool, *confs, what, "--spec", spec],
        check=False,
        cwd=spec.parents[1],
        env={**os.environ, **launch.environment()},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Run is COMPLETED" in done.stdout + done.stderr


def click(number):
    """A click, and the record that it becomes."""
    when = NOON + timedelta(seconds=number)
    given = {"user": f"User-{number % 7}", "page": f"/{number % 3}", "at": when.isoformat()}
    if number % 3 == 0:
        del given["page"]
    made = {"user": f"user-{number % 7}", "page": f"/{number % 3}" if number % 3 else "/", "at": f"{when:%FT%T}.000Z"}
    return given, (made["user"].encode(), made, when)


def rows(log, topic):
    found = [(record.key, record.json(), record.timestamp) for record in log.topic(topic).read()]
    return sorted(found, key=repr)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_dry_run_writes_nothing(project, tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        log.topic("clicks", partitions=2).extend([click(number)[0] for number in range(10)], json=True)
        command(project, "dry-run")
        assert not (tmp_path / "shop-checkpoints").exists()
        assert [topic.name for topic in log.topics()] == ["clicks"]


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.xdist_group("spark")
def test_two_runs(project, tmp_path):
    broken = ["no click", json.dumps({"user": "Eve"}), json.dumps({"at": NOON.isoformat(), "page": 7})]
    with tailrace.open(tmp_path / "shop") as log:
        clicks = log.topic("clicks", partitions=2)
        given, expected = zip(*map(click, range(100)), strict=True)
        clicks.extend(given, json=True)
        clicks.extend(broken[:2], keys=["eve", "eve"])
        command(project, "run")
        assert rows(log, "clicks.clean") == sorted(expected, key=repr)
        assert sorted(record.text for record in log.topic("clicks.rejected").read()) == sorted(broken[:2])
        kept = {place: bounds.latest for place, bounds in log.topic("clicks.clean").offsets().items()}

        given, more = zip(*map(click, range(100, 130)), strict=True)
        clicks.extend(given, json=True)
        clicks.append(broken[2], key="eve")
        command(project, "run")
        assert rows(log, "clicks.clean") == sorted([*expected, *more], key=repr)
        new = [(record.key, record.json(), record.timestamp) for record in log.topic("clicks.clean").read(kept)]
        assert sorted(new, key=repr) == sorted(more, key=repr)
        rejected = [(record.key, record.text) for record in log.topic("clicks.rejected").read()]
        assert sorted(rejected) == sorted((b"eve", text) for text in broken)
