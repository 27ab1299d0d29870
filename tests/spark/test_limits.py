"""The limits of the sink and the source: frozen, replaced as a whole, and within what a transaction takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tailrace.limits import PARTICIPANTS_MAX
from tailrace.spark import limits
from tailrace.spark.sink.task import Staging
from tests.tuning import limit

SPARK = Path(limits.__file__).parent


def test_no_single_limit_can_be_set():
    with pytest.raises(AttributeError):
        limits.LIMITS.segment_bytes = 1


def test_a_task_takes_the_limits_of_its_process(monkeypatch):
    limit(monkeypatch, limits, segments_max=3)
    assert Staging("/nowhere", 0)._limits == limits.SparkLimits(segments_max=3)
    monkeypatch.undo()
    assert Staging("/nowhere", 0)._limits == limits.SparkLimits()


def test_the_marker_of_a_batch_has_room_in_its_transaction():
    assert limits.LIMITS.places_max + 1 == PARTICIPANTS_MAX


def test_a_task_can_stage_before_it_is_full():
    found = limits.LIMITS
    assert found.message_bytes_max < found.write_bytes_min <= found.segment_bytes < found.task_bytes_max
    assert found.gathered_bytes_max <= found.segment_bytes


def test_every_limit_is_used():
    used = {
        name
        for path in SPARK.rglob("*.py")
        for name in re.findall(r"(?:LIMITS|_limits|limit)\.(\w+)", path.read_text())
    }
    assert {*limits.SparkLimits._fields} <= used
