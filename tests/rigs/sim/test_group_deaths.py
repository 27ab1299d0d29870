"""Groups at moments that the trials, or thinking, found to matter, each as small as it gets."""

from __future__ import annotations

import errno

import pytest

from tailrace.errors import GroupNotFoundError, PartitionLostError, StorageError
from tailrace.groups.consumer import Consumer
from tailrace.groups.group_topic import find_group, open_group
from tailrace.read.batch import Batch
from tailrace.write.transaction import Transaction
from tests.rigs.sim import Fail, Interrupt, Kill, Killed
from tests.rigs.sim.group_bench import GroupBench
from tests.rigs.sim.group_check import outputs, see
from tests.rigs.sim.group_members import EXACT_GROUP, ORDINARY_GROUP, SOURCE, TARGET, Member


def strike(bench: GroupBench, fault: Fail | Kill | Interrupt) -> None:
    """Let a fault happen at the operation that is about to be done."""
    fault.at = bench.disk.steps
    bench.disk.plan(fault)


def places(batch: Batch) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in batch]


def test_a_follower_is_overtaken_by_a_snapshot(bench):
    """Somebody writes a snapshot and removes the segments that another process is about to open."""
    bench.a.produce(0, 80)
    bench.a.consume(1)
    group = open_group(bench.b.log.engine, ORDINARY_GROUP)
    group.view()
    group.release()
    bench.a.consume(1)
    bench.when(bench.b, "open", "__group.g", lambda: [bench.a.consume(1) for _ in range(80)])
    state = group.view()
    assert bench.happened
    assert group.partition.start > 2
    assert state.offset == group.partition.end
    assert bench.finding() is None


def test_transactions_are_followed_by_snapshots_as_well(bench):
    """A group whose cursors are only ever stored with transactions does not grow for ever."""
    bench.a.produce(0, 60)
    for _ in range(60):
        bench.a.transact(1)
    group = find_group(bench.a.log.engine, EXACT_GROUP)
    assert group is not None
    assert group.partition.start > 30
    assert bench.cut(8) is None


def _commit_with(tx: Transaction, consumer: Consumer, batch: Batch) -> None:
    tx.extend(TARGET, [b"%d@%d=" % place for place in places(batch)], partition=0)
    consumer.commit(tx)


def test_a_partition_is_given_back_with_records_that_no_transaction_has_stored(bench):
    """What a transaction makes of them somebody else makes too, so it must not be committed."""
    bench.a.topic(TARGET, 1)
    mine = bench.a.log.consumer(SOURCE, EXACT_GROUP, commit="manual")
    theirs = bench.b.log.consumer(SOURCE, EXACT_GROUP, commit="manual")
    first = mine.poll(12, timeout=0)
    assert len(first) == 12
    assert not theirs.poll(1, timeout=0)
    # Asked for more, it gives a partition back.
    mine.poll(1, timeout=0)
    assert len(mine.assigned) == 2
    tx = bench.a.log.transaction()
    with pytest.raises(PartitionLostError, match=r"in\[2\]"), tx:
        _commit_with(tx, mine, first)
    assert not see(bench.a.log).target[next(iter(see(bench.a.log).target))].records
    # Both go on, and each record is handed out again, to one of them.
    again = [*places(theirs.poll(12, timeout=0.5)), *places(mine.poll(12, timeout=0.5))]
    again += places(theirs.poll(12, timeout=0.5))
    assert sorted(again) == sorted(places(first))
    for consumer in (mine, theirs):
        consumer.close()


@pytest.mark.parametrize("interrupted", [False, True])
def test_cursors_that_cannot_be_made_safe_are_no_part_of_the_transaction(bench, interrupted):
    """Whatever keeps commit(tx) from its work, the next poll gives the same records again."""
    bench.a.transact(1)
    bench.a.produce(0, 2, durable=False)
    fault = Interrupt(0) if interrupted else Fail(0, number=errno.EIO)
    path = "/log/tails" if interrupted else "-in/0/"
    bench.when(bench.a, "store" if interrupted else "sync_data", path, lambda: strike(bench, fault))
    with pytest.raises((StorageError, KeyboardInterrupt)):
        bench.a.transact(20)
    bench.disk.plan()
    assert fault.fired
    bench.a.failed(StorageError(""))
    if interrupted:
        while bench.a.transact(3):
            continue
        assert bench.cut(8) is None
    else:
        # The partition is read-only now, so no cursor can be stored behind what is not safe.
        with pytest.raises(StorageError):
            bench.a.transact(20)
        bench.a.failed(StorageError(""))
    seen = see(bench.a.log)
    group = find_group(bench.a.log.engine, EXACT_GROUP)
    assert group is not None
    assert outputs(seen, seen.cursors[group.id]) is None


@pytest.mark.parametrize("number", range(1, 6))
def test_an_interrupt_while_partitions_are_given_up(bench, number):
    """A partition that is no longer the consumer's is not read, wherever the interrupt struck."""
    bench.a.consume(2)
    bench.a.consume(8)
    bench.b.evict(bench.a)
    fault = Interrupt(0)
    bench.when(bench.a, "close", "", lambda: strike(bench, fault), number)
    with pytest.raises((KeyboardInterrupt, PartitionLostError)):
        bench.a.commit()
    bench.disk.plan()
    assert fault.fired
    bench.a.failed(KeyboardInterrupt())
    bench.b.consume(2)
    # It waits for its share.
    assert not bench.a.consume(2)
    assert bench.finding() is None


def test_a_reset_evicts_those_who_join_meanwhile(bench):
    """Else a member that the reset did not see would overwrite the new cursors."""
    bench.a.consume(2)
    bench.when(bench.c, "lock", "__group.g", lambda: bench.b.consume(2))
    bench.c.reset("earliest", force=True)
    assert bench.happened
    for member in (bench.a, bench.b):
        with pytest.raises(PartitionLostError):
            member.consume(2)
        member.failed(PartitionLostError("", group=ORDINARY_GROUP))
    assert bench.finding() is None
    assert set(see(bench.c.log).cursors[bench.a.group].values()) == {0}


@pytest.mark.parametrize("number", [errno.EIO, errno.EINTR])
def test_a_drop_whose_lock_files_cannot_be_listed(bench, number):
    """The group is gone, whatever becomes of the files that its members had locked."""
    bench.a.consume(2)
    fault = Fail(0, number=number)
    bench.when(bench.c, "list", "/members/", lambda: strike(bench, fault))
    bench.c.drop()
    assert fault.fired
    bench.disk.plan()
    with pytest.raises(GroupNotFoundError):
        bench.a.commit()
    bench.a.failed(GroupNotFoundError("", group=ORDINARY_GROUP))
    assert bench.cut(8) is None


def test_a_drop_that_was_interrupted_and_is_done_again(bench):
    """The first one counts: the second says that there is no such group."""
    bench.a.consume(2)
    bench.a.leave()
    fault = Interrupt(0)
    bench.when(bench.c, "store", "/log/tails", lambda: strike(bench, fault), number=4)
    with pytest.raises(KeyboardInterrupt):
        bench.c.drop()
    assert fault.fired
    bench.disk.plan()
    try:
        bench.c.drop()
    except GroupNotFoundError:
        pass
    assert find_group(bench.c.log.engine, ORDINARY_GROUP) is None


def test_a_take_over_that_dies(bench):
    """Two deaths in a row: whoever takes over from the dead dies as well."""
    bench.a.consume(2)
    bench.b.consume(2)
    bench.a.die()
    fault = Kill(0, when="after")
    bench.when(bench.b, "write", "__group.g", lambda: strike(bench, fault))
    with pytest.raises(Killed):
        bench.b.consume(2, timeout=0.5)
    assert fault.fired
    bench.disk.plan()
    bench.b.die()
    while bench.c.consume(5, timeout=0.5):
        continue
    bench.c.commit()
    assert bench.finding() is None
    assert bench.cut(8) is None


def test_a_commit_of_a_dead_member_is_decided_before_its_partitions_are_taken(bench):
    """Its transaction was in the journal: whoever takes over begins behind it."""
    bench.a.transact(3)
    fault = Kill(0)
    bench.when(bench.a, "write", "-out/", lambda: strike(bench, fault))
    with pytest.raises(Killed):
        bench.a.transact(3)
    assert fault.fired
    bench.disk.plan()
    bench.a.die()
    member = bench.b
    while member.transact(4, timeout=0.5):
        continue
    assert bench.finding() is None
    assert bench.cut(8) is None


def test_a_member_that_left_is_no_death(bench):
    """Nothing that was processed comes again when members come and go in order."""
    members = [bench.a, bench.b, bench.c]
    for number in range(30):
        member = members[number % 3]
        member.consume(2, timeout=0.0)
        if number % 5 == 4:
            member.commit()
            member.leave()
    for member in members:
        member.commit()
    assert bench.finding() is None
    assert not any(turn.excused for turn in bench.witness.turns)


def drained(member: Member) -> None:
    while member.consume(5, timeout=0.5):
        continue


def test_what_one_member_reads_alone_is_everything(bench):
    drained(bench.a)
    assert bench.cut(8) is None
