"""The limits of a call: those of the library where it has one, frozen, replaced as a whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace import limits as library
from tailrace.cli import limits

CLI = Path(limits.__file__).parent


def test_the_largest_record_is_that_of_the_library():
    assert limits.LIMITS.entry_bytes_max == library.VALUE_BYTES_MAX


def test_no_single_limit_can_be_set():
    with pytest.raises(AttributeError):
        limits.LIMITS.batch_bytes_max = 1


def test_every_limit_is_used():
    texts = [path.read_text() for path in CLI.rglob("*.py")]
    used = {name for text in texts for name in re.findall(r"(?:LIMITS|limit)\.(\w+)", text)}
    assert {*limits.CliLimits._fields} <= used
