"""The Spark example of the README runs as it stands, and its stream writes what the records say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import tailrace

README = Path(__file__).parents[2] / "README.md"
MINUTE_US = 60_000_000


def test_example_runs(spark, tmp_path, checkpoint):
    (block,) = re.findall(r"^```py\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    with tailrace.open(tmp_path / "shop") as log:
        start = 30_000_000 * MINUTE_US
        sold = [("tea", 4.0, 0), ("tea", 2.5, 1), ("pot", 19.0, 2), ("tea", 1.0, 70), ("tea", 1.0, 300)]
        log.topic("orders").extend(
            [{"sku": sku, "eur": eur} for sku, eur, _ in sold],
            json=True,
            timestamps=[start + second * 1_000_000 for *_, second in sold],
        )
    block = block.replace('"shop"', repr(str(tmp_path / "shop"))).replace('"checkpoint"', repr(checkpoint))
    # The last line starts the query and keeps nothing of it.
    block = block.replace("sink.option(", "query = sink.option(")
    names: dict[str, object] = {}
    exec(compile(block, str(README), "exec"), names)
    query = names["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    with tailrace.open(tmp_path / "shop", "r") as log:
        written = [(record.key, json.loads(record.value)) for record in log.topic("sales").read()]
    # The last minute is still open: its watermark has not passed.
    found = sorted((key.decode(), value["sum(eur)"]) for key, value in written)
    assert found == [("pot", 19.0), ("tea", 1.0), ("tea", 6.5)]
