"""docs/spark.md says what is true: its examples run, and it names every option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from tailrace.spark.source.options import IGNORED_OPTIONS, SOURCE_OPTIONS

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"
FENCE = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_option_is_named():
    told = GUIDE.read_text("utf-8")
    assert [name for name in (*SOURCE_OPTIONS, *IGNORED_OPTIONS) if f"`{name}`" not in told] == []


def test_examples_run(spark, tmp_path, monkeypatch, capsys):
    """Those of the whole page in their order, in one directory; what a print promises is what it prints."""
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text("utf-8")
    # The session runs elsewhere, and is not started anew for a page.
    blocks = [re.sub(r'"(shop|checkpoint)"', rf'"{tmp_path}/\1"', block) for block in FENCE.findall(text)]
    blocks = [re.sub(r"log 'shop'", f"log '{tmp_path}/shop'", block) for block in blocks]
    namespace = {"spark": spark}
    promised = []
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), namespace)
        promised += re.findall(r"^\s*print\(.*\)\s+# (.+)$", block, re.MULTILINE)
    spark.catalog.dropTempView("amounts")
    printed = capsys.readouterr().out.splitlines()
    assert promised
    assert printed == promised
