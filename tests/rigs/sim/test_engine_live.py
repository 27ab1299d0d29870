"""Three writers and a reader take turns at every operation and every load, in an order that the seed decides.

One of the writers may die. Nobody waits for ever, the reader sees a growing log, and the power may go at any moment.
"""

from __future__ import annotations

import pytest

from tests.rigs.sim import Deadlock, Disk, Process, Scheduler
from tests.rigs.sim.engine import Writer, small_limits
from tests.rigs.sim.witness import Witness


def test_live_slice(trial):
    """I7, I8 and I9 after cuts in the middle; I2, I3, I4, I5 and I11 at every operation; no deadlock."""
    trial("live", moments=12)


@pytest.mark.slow
def test_live(trial):
    """I7, I8 and I9 after cuts in the middle; I2, I3, I4, I5 and I11 at every operation; no deadlock."""
    assert trial("live", moments=14, length=18).faults


def test_a_wait_against_the_lock_order_is_noticed():
    """I11: one that waits for the journal while it holds a partition, and one that does it in the right order."""
    with small_limits():
        disk, witness = Disk(1), Witness()
        first = Writer(Process(disk, "first"), witness)
        first.append(("t", 0))
        first.process.kill()
        scheduler = Scheduler(disk, 1)
        wrong, right = Process(disk, "wrong"), Process(disk, "right")

        def lock(process: Process, *paths: str) -> None:
            for path in paths:
                assert process.lock(process.open(path, directory=True), timeout=30.0)

        partition = "/log/topics/00000001-t/0"
        scheduler.spawn(wrong, lambda: lock(wrong, partition, "/log/journal"))
        scheduler.spawn(right, lambda: lock(right, "/log/journal", partition))
        with pytest.raises(Deadlock):
            scheduler.run()
