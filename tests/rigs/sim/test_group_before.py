"""Cursors that are stored before their records are handed out, while an operator changes the group that they go to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.rigs.sim import Process
from tests.rigs.sim.group_bench import GroupBench
from tests.rigs.sim.group_check import check
from tests.rigs.sim.group_members import ORDINARY_GROUP, Member, small_groups
from tests.rigs.sim.mutation import instead, mutate
from tests.rigs.sim.witness import Finding

# What somebody else does when a member has found its group and has not joined it yet.
CHANGES: dict[str, Callable[[Member], object]] = {
    "nothing": lambda operator: None,
    "drop": lambda operator: operator.drop(),
    "reset": lambda operator: operator.reset("earliest"),
}
# One record more than is handed out, where there is one.
TOO_FAR = "{feed.place: min(feed.handed + 1, feed.partition.end) for feed in self.feeds}"


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_groups():
        yield


def joining(change: str) -> Finding | None:
    """A member joins a group that is changed in this moment; the power goes after each of its operations from there."""
    bench = GroupBench()
    bench.b.consume(2)
    bench.b.consume(1)
    bench.b.leave()
    member, random = bench.a, Random(1)
    findings: list[Finding | None] = []

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.audit(process, kind, detail)
        states = [bench.disk.crash(choice) for choice in bench.disk.crash_states(random, 2)]
        findings.extend(check(disk, bench.witness, cut=True) for disk in states)

    def act() -> None:
        CHANGES[change](bench.c)
        bench.disk.observer = look

    member.join(ORDINARY_GROUP, "before")
    bench.when(member, "make_directory", "/members/", act)
    assert member.consume(2) == 2
    assert bench.happened
    bench.disk.observer = bench.audit
    findings.append(check(bench.disk.clone(), bench.witness, cut=False))
    while member.consume(2):
        continue
    findings.append(bench.cut(4))
    bench.close()
    return next((finding for finding in findings if finding is not None), None)


@pytest.mark.parametrize("change", CHANGES)
def test_a_group_changes_while_a_member_joins(change):
    """What a call may store before it hands it out, it may in the group that it sits down in, as that is then."""
    assert joining(change) is None


@pytest.mark.parametrize("change", CHANGES)
def test_a_group_changes_while_a_member_joins_that_stores_too_far(monkeypatch, change):
    mutate(monkeypatch, instead("stored before it is handed out", f"self.membership.store({TOO_FAR})"))
    finding = joining(change)
    assert finding is not None
    assert "no more than" in finding.text or "nobody stored" in finding.text


def asked_in_vain() -> Finding | None:
    """A member asks again and again when there is nothing, and then gets less than it asks for."""
    bench = GroupBench(records=1)
    member = bench.a
    member.join(ORDINARY_GROUP, "before")
    while member.consume(2):
        continue
    for _ in range(4):
        member.consume(4)
    bench.b.produce(0, 2)
    assert member.consume(1) == 1
    finding = check(bench.disk.clone(), bench.witness, cut=False)
    bench.close()
    return finding


def test_asking_in_vain():
    assert asked_in_vain() is None


def test_asking_in_vain_allows_nothing(monkeypatch):
    """Whoever got nothing has stored nothing, and may not store it later."""
    mutate(monkeypatch, instead("stored before it is handed out", f"self.membership.store({TOO_FAR})"))
    assert asked_in_vain() is not None
