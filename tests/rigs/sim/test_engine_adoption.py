"""Several staged segments of one partition in one commit: whole or absent, wherever something dies.

The partition may be empty before. Then the second segment is the first one on the medium whenever the name of the
first is on its way, and nothing may take the first for one that was trimmed long ago.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.rigs.sim import Cut, Disk, Kill, Killed, Process
from tests.rigs.sim.bench import Bench, killed
from tests.rigs.sim.engine import check, open_store
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.witness import compare, read_all

EMPTY = (("n", 0), ("n", 1))


def adopting(fault: Fault, kind: str, path: str, number: int) -> Bench:
    """A machine on which a commit of three segments for each of two empty partitions met a fault."""
    bench = Bench()
    bench.a.topic("n")
    bench.strike(fault, kind, path, number)
    killed(lambda: bench.a.adopt(EMPTY, 3))
    assert fault.fired
    bench.calm()
    return bench


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_between_the_names(small, number, when):
    """I7, I8: another process finishes it, and a power cut at any moment finds it whole."""
    bench = adopting(Kill(0, when=when), "rename", ".staged", number)
    bench.witness.groups[-1].committed = True
    assert bench.cut() is None
    bench.b.append(("n", 0))
    assert compare(bench.witness, read_all(bench.b.store), cut=True) is None
    assert bench.cut() is None


@pytest.mark.parametrize("number", [1, 2, 4, 5, 6])
@pytest.mark.parametrize("fault", [Kill, Cut])
def test_a_recovery_that_stops_between_the_names(small, number, fault):
    """I9: names that are given anew one by one are all given by the next recovery, also where nothing lay before."""
    bench = adopting(Kill(0, when="after"), "rename", ".staged", 6)
    bench.witness.groups[-1].committed = True
    for choice in (None, *bench.disk.crash_states(Random(number), 6)):
        disk = bench.disk.crash(choice)
        recover(disk, fault(0, when="after"), number)
        for state in disk.crash_states(Random(number), 4):
            assert check(disk.crash(state), bench.witness, cut=True, deep=True) is None
        if not disk.off:
            assert check(disk, bench.witness, cut=True) is None


def test_a_segment_that_the_state_names_is_not_moved_when_its_commit_is_resolved(small):
    """I7, I8: who died while it was away would leave a partition without its newest segment, also for readers."""
    quiet = Bench()
    quiet.a.topic("n")
    trace = quiet.disk.record()
    quiet.a.adopt(EMPTY, 3)
    stores = [detail for _, kind, detail in trace if kind == "store"]
    # The last but one says that nothing is pending in the second partition.
    bench = adopting(Kill(0, when="before"), "store", "tails", len(stores) - 1)
    bench.witness.groups[-1].committed = True
    assert bench.cut() is None
    trace = bench.disk.record()
    bench.b.append(("n", 1))
    assert [detail for _, kind, detail in trace if kind == "rename" and ".staged" in str(detail)] == []
    assert compare(bench.witness, read_all(bench.b.store), cut=True) is None
    assert bench.cut() is None


def recover(disk: Disk, fault: Fault, number: int) -> None:
    """Open the log, with a fault at the number-th name that is given."""
    seen = 0

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal seen
        if kind == "rename" and any(".staged" in str(part) for part in detail):
            seen += 1
            if seen == number:
                fault.at = disk.steps
                disk.plan(fault)

    disk.observer = look
    process = Process(disk, "first")
    try:
        open_store(process)
    except Killed:
        pass
    disk.observer = None
    disk.plan()
    process.kill()
