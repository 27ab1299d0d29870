"""The examples of docs/spark-sink.md run, in one session, and print what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark-sink.md"


def test_examples_run(spark, tmp_path, monkeypatch, capsys):
    from tailrace.spark.sink.columns import NAMES as COLUMNS
    from tailrace.spark.sink.options import NAMES as OPTIONS

    text = DOCUMENT.read_text("utf-8")
    for name in (*OPTIONS, *COLUMNS):
        assert f"`{name}`" in text
    blocks = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    # Paths in a document are short; the workers have another directory.
    names: dict[str, object] = {"__name__": "document"}
    for block in blocks:
        block = re.sub(r'"(shop|checkpoint[a-z-]*)"', lambda found: repr(str(tmp_path / found[1])), block)
        exec(compile(block, str(DOCUMENT), "exec"), names)
    promised = re.findall(r"^\s*print\(.*\)\s+# (.+)$", "\n".join(blocks), re.MULTILINE)
    printed = iter(capsys.readouterr().out.splitlines())
    assert promised
    assert [line for line in promised if line not in printed] == []
