"""A bench for directed tests: two writers on one topic, a fault at a chosen operation, and a cut in many states."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tailrace.errors import TailraceError
from tailrace.settings import Tuning
from tests.rigs.sim import Disk, Killed, Process
from tests.rigs.sim.engine import Writer, check
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.invariants import Invariants
from tests.rigs.sim.witness import Finding, Witness

# The first segment of the first partition, and both partitions.
FIRST = "/log/topics/00000001-t/0/00000000000000000000.seg"
BOTH = (("t", 0), ("t", 1))


class Bench:
    """A machine with the writers a and b, who both use the partitions of topic t."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = Disk(seed)
        self.witness = Witness()
        self.invariants = Invariants(self.disk, self.witness)
        self.a = self.writer("a")
        self.a.append(("t", 0))
        self.a.append(("t", 1))
        self.b = self.writer("b")
        self.b.append(("t", 0))
        self.b.transact(BOTH)

    def writer(self, name: str, *, tuning: Tuning | None = None) -> Writer:
        return Writer(Process(self.disk, name), self.witness, tuning=tuning)

    def strike(self, fault: Fault, kind: str, path: str, number: int = 1) -> None:
        """Let a fault happen at the number-th operation of a kind on a path that holds a text."""
        seen = 0

        def look(process: Process, done: str, detail: tuple[object, ...]) -> None:
            nonlocal seen
            self.invariants(process, done, detail)
            if done == kind and any(path in str(part) for part in detail):
                seen += 1
                if seen == number:
                    fault.at = self.disk.steps
                    self.disk.plan(fault)

        self.disk.observer = look

    def calm(self) -> None:
        self.disk.observer = self.invariants
        self.disk.plan()

    def cut(self, states: int = 40) -> Finding | None:
        """The first thing wrong after a power cut, over many states of the medium; and no invariant was broken."""
        for choice in self.disk.crash_states(Random(1), states):
            try:
                finding = check(self.disk.crash(choice), self.witness, cut=True, deep=True)
            except TailraceError as error:
                finding = Finding(repr(error))
            if finding is not None:
                return finding
        return self.invariants.finding()


def killed(action: Callable[[], object]) -> None:
    with pytest.raises(Killed):
        action()
