"""A sync of names that fails while a log is made, and a death right after it: typed errors, and the next one goes on.

Every sync of a directory in the creation of a log, two levels below what exists, fails once, and the process dies at
one of the operations that follow. Whoever reads then gets the log or NotALogError, and whoever writes gets a log.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from tailrace.disk.store import Store
from tailrace.errors import NotALogError, StorageError
from tests.rigs.sim import Disk, Fail, Kill, Killed, Process
from tests.rigs.sim.engine import sim_tuning

PATH = "/above/below/log"


def opened(disk: Disk, name: str, *, write: bool) -> Store:
    return Store(Process(disk, name), PATH, "a" if write else "r", timeout=1.0, tuning=sim_tuning())


def syncs() -> list[int]:
    """The operations of a creation that bring names to disk."""
    disk = Disk(1)
    trace = disk.record()
    opened(disk, "maker", write=True)
    return [number for number, (_, kind, _) in enumerate(trace, 1) if kind == "sync_directory"]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_failed_sync_of_a_name_and_a_death(after):
    numbers = syncs()
    assert len(numbers) > 5
    for number in numbers:
        disk = Disk(1)
        disk.plan(Fail(number), Kill(number + after))
        with pytest.raises((Killed, StorageError)):
            opened(disk, "maker", write=True)
        disk.plan()
        with suppress(NotALogError):
            assert opened(disk, "reader", write=False).catalog.by_name == {}
        store = opened(disk, "next", write=True)
        assert store.catalog.by_name == {}
        assert opened(disk, "reader of that", write=False).context.log_id == store.context.log_id
