"""Restored and copied logs under Spark's checkpoints, without a JVM: that the log is another one is noticed."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import tailrace
from tailrace.errors import TopicNotFoundError
from tests.spark.plain import Stream


@pytest.mark.parametrize("how", ["restored", "copied"])
def test_a_query_does_not_go_on_with_another_log(tmp_path, how):
    """Its offsets would be those of other records, as soon as the two logs live on apart."""
    offsets, commits = [], []

    def query(path):
        options = {"path": str(path), "subscribe": "orders", "startingOffsets": "earliest"}
        return Stream(offsets, commits, None, **options)

    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").extend([b"x"] * 5)
        first = query(tmp_path / "log")
        assert first.batch().num_rows == 5
        first.stop()
        log.backup(tmp_path / "backup")
    if how == "restored":
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "other")
    else:
        shutil.copytree(tmp_path / "log", tmp_path / "other")
    with tailrace.open(tmp_path / "other") as other:
        other.topic("orders").extend([b"y"] * 3)
        second = query(tmp_path / "other")
        with pytest.raises(TopicNotFoundError, match="its log was created again"):
            second.batch()
        second.stop()
    # The log itself is the one that the checkpoint knows.
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").extend([b"z"] * 2)
        third = query(tmp_path / "log")
        assert third.batch().num_rows == 2
        third.stop()
