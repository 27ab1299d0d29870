"""The power goes, at any operation and in any state of the medium: nothing acknowledged is lost.

Every state is recovered and compared with what the witness was promised; some are recovered twice, gone on with, and
cut again; some are read by a reader first, which must not write.
"""

from __future__ import annotations

from random import Random

import pytest

from tailrace.errors import RecoveryNeededError
from tests.rigs.sim import Disk, Process
from tests.rigs.sim.engine import Writer, check, check_reading, open_store, step
from tests.rigs.sim.invariants import Invariants
from tests.rigs.sim.witness import Finding, Witness, compare, read_all


def test_cut_slice(trial):
    """I1, I6, I7, I8, I9; and I2, I3, I4, I5 and I11 at every operation."""
    trial("cuts", moments=60, states=10, length=18)


@pytest.mark.slow
def test_cuts(trial):
    """I1, I6, I7, I8, I9; and I2, I3, I4, I5 and I11 at every operation."""
    trial("cuts", shift=1, moments=90, states=12, length=24)


def busy_machine() -> tuple[Disk, Witness, Writer]:
    disk, witness = Disk(5), Witness()
    Invariants(disk, witness)
    writer = Writer(Process(disk, "writer"), witness)
    for each in (
        step("append", ("t", 0), 3, split=True), step("append", ("t", 1), durable=None),
        step("transact", (("t", 0), ("t", 1), ("u", 0))), step("append", ("u", 0), durable=None),
    ):  # fmt: skip
        each(writer)
    return disk, witness, writer


def test_a_reader_on_another_boot_sees_all_or_asks_for_recovery(small):
    """I7 for readers: no operation of theirs changes anything, and what they see is what recovery finds."""
    disk, witness, _ = busy_machine()
    needed = 0
    for choice in disk.crash_states(Random(1), 60):
        before = disk.crash(choice).files()
        after = disk.crash(choice)
        assert check_reading(after, witness, cut=True) is None
        reading = disk.crash(choice)
        try:
            read_all(open_store(Process(reading, "reader"), mode="r"))
        except RecoveryNeededError:
            needed += 1
        assert reading.files() == before
    assert needed, "no state had a commit that only the journal holds"


def test_a_reader_of_a_live_log_writes_nothing(small):
    disk, witness, _ = busy_machine()
    assert check_reading(disk.clone(), witness, cut=False) is None


def test_safe_is_a_promise_too(small):
    """I6: what was flushed survives though nobody waited for it, and the witness knows."""
    disk, witness, writer = busy_machine()
    writer.store.flush()
    key = next(key for group in witness.groups if not group.durable for key in group.acknowledged)
    writer.append(("t", 0))
    assert witness.safe[key] > 0
    assert check(disk.crash(None), witness, cut=True, deep=True) is None


def test_the_witness_notices_a_loss(small):
    """A check that cannot fail proves nothing: each kind of wrong is seen."""
    _, witness, writer = busy_machine()
    found = read_all(writer.store)
    key = max(found, key=lambda each: len(found[each].records))
    contents = found[key]
    last = max(contents.records)

    def wrong(**changes: object) -> Finding | None:
        return compare(witness, {**found, key: contents._replace(**changes)}, cut=False)  # type: ignore[arg-type]

    assert compare(witness, found, cut=False) is None
    shorter = {offset: value for offset, value in contents.records.items() if offset != last}
    assert wrong(records=shorter).lost == 1  # type: ignore[union-attr]
    moved = {offset + 1: value for offset, value in contents.records.items()}
    assert "found at" in wrong(records=moved).text  # type: ignore[union-attr]
    assert "never written" in wrong(records={**contents.records, last + 1: b"x"}).text  # type: ignore[union-attr]
    doubled = {**contents.records, last + 1: contents.records[last]}
    assert "and at" in wrong(records=doubled).text  # type: ignore[union-attr]
    assert "nobody asked" in wrong(start=1).text  # type: ignore[union-attr]
