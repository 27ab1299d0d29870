"""A log for the tests of the source."""

from __future__ import annotations

import pytest

import tailrace


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


@pytest.fixture
def path(log):
    return log.location
