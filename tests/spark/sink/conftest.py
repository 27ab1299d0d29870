"""A log for the tests of the sink, and faults of its files."""

from __future__ import annotations

import pytest

import tailrace
from tailrace import testing


@pytest.fixture
def log(tmp_path):
    # Importing it needs pyspark, without which the tests are skipped.
    from tailrace.spark import handles

    with tailrace.open(tmp_path / "log") as opened:
        opened.topic("a", partitions=4)
        yield opened
    handles.close_all()


@pytest.fixture
def steering():
    from tailrace.spark import handles

    with testing.steered() as steered:
        yield steered
        handles.close_all()
