"""What is put through power cuts: every system with its settings behind the same two calls, write and check."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Note = dict[str, Any]
Acknowledge = Callable[[Note], None]


class Verdict(NamedTuple):
    """What a check found after a cut."""

    # Records that had been acknowledged, and those of them that were read.
    acknowledged: int
    survived: int
    # Why it could not be opened or read; what broke a promise besides that.
    damaged: str = ""
    faults: tuple[str, ...] = ()


class System(NamedTuple):
    """One row of the table."""

    key: str
    name: str
    setting: str
    # write(directory, acknowledge, number of writes, seconds between two of them), in a process of its own.
    write: Callable[[Path, Acknowledge, int, float], None]
    # check(directory, what was acknowledged, seed), in a process of its own after the cut.
    check: Callable[[Path, list[Note], int], Verdict]
    package: str = ""
    module: str = ""
    # Whether every record is promised to be there, so that a single loss fails the run.
    promised: bool = False
    # Whether it is there for the tests of the rig alone.
    hidden: bool = False

    @property
    def missing(self) -> bool:
        return bool(self.module) and importlib.util.find_spec(self.module) is None

    @property
    def label(self) -> str:
        if self.package:
            return f"{self.name} {importlib.metadata.version(self.package)}"
        return f"{self.name} {sqlite3.sqlite_version}" if self.name == "SQLite" else self.name


def value_of(number: int) -> bytes:
    """The value that every system is given under a number: 200 bytes of text that cannot be taken for another."""
    return f"{number:08d}:{random.Random(number).randbytes(96).hex()[:191]}".encode()


def all_systems() -> dict[str, System]:
    from tests.rigs.powercut import naive, peers, tailrace_deletes, tailrace_groups, tailrace_log

    ours = (*tailrace_log.SYSTEMS, *tailrace_deletes.SYSTEMS, tailrace_groups.SYSTEM)
    systems = (*ours, *peers.SYSTEMS, naive.SYSTEM)
    return {system.key: system for system in systems}
