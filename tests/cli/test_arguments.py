"""What the arguments and options of commands mean, and how a wrong one is refused."""

from __future__ import annotations

from tailrace import limits as library
from tailrace.cli import arguments


def test_the_limits_are_those_of_the_library():
    for name in ("OFFSET_MAX", "TIME_US_MIN", "TIME_US_MAX", "TTL_SECONDS_MIN", "TTL_SECONDS_MAX"):
        assert getattr(arguments, name) == getattr(library, name)
