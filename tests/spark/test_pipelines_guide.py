"""The commands of the pipelines, and docs/pipelines.md, which explains them."""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import re
import shlex
from contextlib import nullcontext

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import examples.pipelines
from examples.pipelines import command, samples
from examples.pipelines.alerts import ALERTS
from examples.pipelines.command import Pipeline
from examples.pipelines.orders import ORDERS
from examples.pipelines.sessions import SESSIONS

import tailrace
from tests.spark import launch

PIPELINES = (SESSIONS, ORDERS, ALERTS)
GUIDE = launch.ROOT / "docs" / "pipelines.md"
FENCE = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as opened:
        yield opened


class TestTheGuide:
    """docs/pipelines.md says what is true."""

    def test_examples_run(self, spark, tmp_path, capsys):
        """Those of the whole page in their order; what a print promises is what it prints."""
        text = GUIDE.read_text("utf-8")
        promised = []
        namespace = {}
        for block in FENCE.findall(text):
            # The session runs elsewhere.
            block = re.sub(r'"(shop|checkpoint[a-z-]*)"', rf'"{tmp_path}/\1"', block)
            exec(compile(block, str(GUIDE), "exec"), namespace)
            promised += re.findall(r"^\s*print\(.*\)\s+# (.+)$", block, re.MULTILINE)
        assert promised
        assert capsys.readouterr().out.splitlines() == promised

    def test_commands_are_understood(self, tmp_path, monkeypatch):
        monkeypatch.setattr(command, "_alone", lambda checkpoint: nullcontext())
        commands = re.findall(
            r"^python -m examples\.pipelines\.(\w+) (.*?)(?:  +#.*)?$", GUIDE.read_text("utf-8"), re.MULTILINE
        )
        assert [name for name, _ in commands] == [each.name for each in PIPELINES]
        asked = []
        monkeypatch.setattr(Pipeline, "_prepare", lambda pipeline, options: asked.append(options))
        monkeypatch.setattr(Pipeline, "_run", lambda pipeline, options: 0)
        for pipeline, (_, line) in zip(PIPELINES, commands, strict=True):
            assert pipeline.main("", shlex.split(line)) == 0
        assert {options.log for options in asked} == {"/tmp/shop"}
        assert (asked[0].once, asked[2].trigger) == (True, "2 seconds")

    def test_every_option_is_named(self, capsys):
        with pytest.raises(SystemExit):
            ORDERS.main("", ["--help"])
        options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help"}
        told = GUIDE.read_text("utf-8")
        assert [option for option in sorted(options) if f"| `{option}" not in told] == []


class TestTheCommand:
    """What is missing is said at once, before Spark is started."""

    def refused(self, capsys, *arguments):
        code = ORDERS.main("", arguments)
        printed = capsys.readouterr()
        assert printed.out == ""
        return code, printed.err

    def test_no_log(self, tmp_path, capsys):
        code, told = self.refused(capsys, "--log", str(tmp_path / "none"))
        assert code == 3
        assert f"There is no log in {tmp_path}/none" in told
        assert "--sample" in told
        assert list(tmp_path.iterdir()) == []

    def test_no_topic(self, log, capsys):
        log.topic("orders", partitions=1)
        code, told = self.refused(capsys, "--log", log.location)
        assert code == 3
        assert "has no topic customers: " in told

    def test_no_java(self, log, capsys, monkeypatch):
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setenv("JAVA_HOME", "/nowhere")
        code, told = self.refused(capsys, "--log", log.location, "--sample", "10")
        assert code == 1
        assert "Spark needs Java 17" in told
        assert log.topics() == []

    def test_another_run(self, log, capsys):
        ORDERS.sample(log, 10)
        with open(f"{log.location}-orders.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            code, told = self.refused(capsys, "--log", log.location, "--checkpoint", f"{log.location}-orders")
        assert code == 6
        assert "running already" in told

    def test_no_pyspark(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(SystemExit, match=r'pip install "tailrace\[spark\]"'):
            importlib.reload(examples.pipelines)

    @pytest.mark.parametrize("wrong", [["--sample", "0"], ["--once", "--trigger", "1 second"], [], ["--onse"]])
    def test_usage(self, wrong, capsys, monkeypatch):
        monkeypatch.delenv("TAILRACE_LOG", raising=False)
        with pytest.raises(SystemExit) as ended:
            ORDERS.main("", [*wrong, *(["--log", "x"] if wrong else [])])
        assert ended.value.code == 2
        assert "usage: python -m examples.pipelines.orders" in capsys.readouterr().err

    def test_help(self, capsys):
        with pytest.raises(SystemExit) as ended:
            SESSIONS.main("Sessions: what each visitor did.", ["--help"])
        assert ended.value.code == 0
        told = capsys.readouterr().out
        assert all(
            word in told for word in ("Sessions: what", "--log", "--once", "--trigger", "--sample", "--checkpoint")
        )


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda each: each.name)
def test_samples_are_input(pipeline, log):
    """Made-up records are what the pipelines read; a second lot goes on where the first one ended."""
    pipeline.sample(log, 100)
    times = [record.timestamp for record in log.topic(pipeline.reads[0]).read()]
    assert len(times) == 101
    pipeline.sample(log, 50)
    assert {topic.name for topic in log.topics()} == set(pipeline.reads)
    later = [record.timestamp for record in log.topic(pipeline.reads[0]).read() if record.timestamp > max(times)]
    assert len(later) == 51
    assert sum(record.text == samples.BROKEN for record in log.topic(pipeline.reads[0]).read()) == 2
