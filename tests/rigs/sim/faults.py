"""Faults: what can go wrong at one numbered operation of a simulated machine.

A plan is a list of faults. `at` counts the operations of the whole machine from 1, or those of one process when
`process` names it. With `kinds` a fault waits from `at` on for the first operation of such a kind. A fault fires once.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from dataclasses import dataclass, field

# Nothing on the disk changes in these, so a cut or a kill before one equals the one before the next operation.
PASSIVE = frozenset({"read", "stat", "list", "open", "close", "free_bytes", "map"})
# The system calls that can fail; a store into mapped memory cannot.
FALLIBLE = frozenset(
    {
        "read", "list", "open", "create", "write", "sync_data", "sync_directory", "rename", "link", "remove_file",
        "remove_directory", "make_directory", "truncate", "reserve", "lock", "map", "watch",
    }
)  # fmt: skip


class Killed(BaseException):
    """The process is dead: not an Exception, so that no handler takes it for an error it can deal with."""


class PowerCut(Killed):
    """The machine is off."""


class Deadlock(Exception):  # noqa: N818  # The word says it.
    """Nobody can go on."""


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong, `before` an operation has its effect, in the `middle` of it, or `after`."""

    at: int
    when: str = "before"
    keep: float = 0.5
    process: str | None = None
    kinds: Collection[str] | None = None
    fired: bool = field(default=False, init=False)

    def matches(self, number: int, name: str, own_number: int, kind: str) -> bool:
        if self.fired or (self.process is not None and self.process != name):
            return False
        reached = number if self.process is None else own_number
        if self.kinds is not None:
            return reached >= self.at and kind in self.kinds
        return reached == self.at


@dataclass(slots=True)
class Kill(Fault):
    """SIGKILL; in the middle of a write or a store, `keep` of its bytes have arrived."""


@dataclass(slots=True)
class Cut(Fault):
    """The power goes: every process is dead, `Disk.crash` says what is left."""


@dataclass(slots=True)
class Interrupt(Fault):
    """A signal handler raises KeyboardInterrupt inside the call; in the middle of a write it was short."""


@dataclass(slots=True)
class Fail(Fault):
    """The call raises OSError(number). A failed sync leaves the pages clean: a later one says success and writes
    nothing. A failed write or reserve has `keep` of its bytes in the file. Only FALLIBLE operations fail."""

    number: int = errno.EIO
    keep: float = 0.0


@dataclass(slots=True)
class Full(Fault):
    """From this operation on the disk has `free` bytes left, until `Disk.free` is set to None."""

    free: int = 0


@dataclass(slots=True)
class Stop(Fault):
    """SIGSTOP before the operation: the process keeps its locks and does nothing until `Disk.on_stop` returns."""
