"""A bench for directed tests of groups: members of one machine, and something that happens at a chosen operation."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tailrace.errors import TailraceError
from tests.rigs.sim import Disk, Process
from tests.rigs.sim.group_audit import GroupAudit
from tests.rigs.sim.group_check import check
from tests.rigs.sim.group_members import PARTITIONS, Member
from tests.rigs.sim.group_witness import GroupWitness
from tests.rigs.sim.witness import Finding

Action = Callable[[], object]


class GroupBench:
    """Members a, b and c of a log with a few records in every partition of its topic."""

    def __init__(self, records: int = 4, seed: int = 1) -> None:
        self.disk = Disk(seed)
        self.witness = GroupWitness()
        self.audit = GroupAudit(self.disk, self.witness)
        self.a, self.b, self.c = (Member(self.disk, name, self.witness) for name in "abc")
        self.audit.on_silent = self.excuse
        self.audit.begin()
        for partition in range(PARTITIONS):
            self.a.produce(partition, records)
        self.happened = 0

    def excuse(self, silent: str) -> None:
        """What a member was handed that has not polled for too long comes again to others."""
        for member in (self.a, self.b, self.c):
            if member.consumer is not None and member.consumer.member == silent:
                member.turn.excused = True
        self.witness.silenced(silent)

    def when(self, member: Member, kind: str, path: str, action: Action, number: int = 1) -> None:
        """Do something before the number-th operation of a kind by a member on a path that holds a text."""
        seen = 0

        def look(process: Process, done: str, detail: tuple[object, ...]) -> None:
            nonlocal seen
            self.audit(process, done, detail)
            if process is member.process and done == kind and any(path in str(part) for part in detail):
                seen += 1
                if seen == number:
                    self.disk.observer = self.audit
                    self.happened += 1
                    action()

        self.disk.observer = look

    def finding(self) -> Finding | None:
        """The first thing wrong now, with everybody alive."""
        return self.audit.finding()

    def cut(self, states: int = 20) -> Finding | None:
        """The first thing wrong after a power cut, over many states of the medium."""
        for choice in self.disk.crash_states(Random(1), states):
            try:
                finding = check(self.disk.crash(choice), self.witness, cut=True, deep=True)
            except TailraceError as error:
                finding = Finding(repr(error))
            if finding is not None:
                return finding
        return self.finding()

    def close(self) -> None:
        for member in (self.a, self.b, self.c):
            member.die()
