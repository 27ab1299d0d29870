"""Options of the benchmark commands: those that all of them have, and their checks."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"


class Lengths(NamedTuple):
    """How long a command measures by default, and with --quick."""

    seconds: float
    rounds: int
    quick_seconds: float
    quick_rounds: int


def add_common(parser: argparse.ArgumentParser, parts: Collection[str], lengths: Lengths) -> None:
    """Add the options that every command has."""
    parser.add_argument("--seconds", type=float, help=f"how long to measure in all (default {lengths.seconds:g})")
    parser.add_argument("--rounds", type=int, help=f"how often all systems take their turn (default {lengths.rounds})")
    parser.add_argument("--only", action="append", metavar="PART", help=f"one of {', '.join(parts)}; may be repeated")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to work and to write (benchmarks/results)")
    parser.add_argument("--write-docs", action="store_true", help="write the tables into docs/benchmarks.md")


def checked(
    parser: argparse.ArgumentParser, arguments: Sequence[str], parts: Collection[str], lengths: Lengths
) -> argparse.Namespace:
    """Return the parsed options with defaults filled in; the parser refuses invalid ones."""
    asked = parser.parse_args(arguments)
    asked.seconds = asked.seconds or (lengths.quick_seconds if asked.quick else lengths.seconds)
    asked.rounds = asked.rounds or (lengths.quick_rounds if asked.quick else lengths.rounds)
    asked.only = [part for each in asked.only or [] for part in each.split(",")] or list(parts)
    for part in asked.only:
        if part not in parts:
            parser.error(f"there is no part {part!r}: {', '.join(parts)}")
    if asked.seconds <= 0 or asked.rounds < 1:
        parser.error("--seconds and --rounds have to be positive")
    return asked
