"""The rules that groups stand on, one by one: each is then taken out, and the trials or the audit must notice."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from tailrace.errors import DurabilityError, OffsetOutOfRangeError, PartitionLostError, StorageError
from tailrace.groups.consumer import Consumer
from tailrace.groups.group_topic import find_group, open_group
from tests.rigs.sim import Fail, group_trials
from tests.rigs.sim.group_bench import GroupBench
from tests.rigs.sim.group_check import check, outputs, see
from tests.rigs.sim.group_members import EXACT_GROUP, ORDINARY_GROUP, PARTITIONS, SOURCE, TARGET, Member, small_groups
from tests.rigs.sim.groups import GroupMachine
from tests.rigs.sim.machine import Plan
from tests.rigs.sim.mutation import edited, instead, mutate, never, without
from tests.rigs.sim.witness import Finding

Run = Callable[[], Finding | None]


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_groups():
        yield


def scenario(name: str) -> Finding | None:
    """What the audit says of a scenario that nothing disturbs."""
    machine = GroupMachine(Plan(1), name)
    machine.run(machine.steps)
    finding = machine.audit.finding()
    machine.close()
    return finding


def trial(monkeypatch: pytest.MonkeyPatch, name: str, of: str, moments: int) -> Finding | None:
    """The first problem of a trial over one scenario."""
    monkeypatch.setattr(group_trials, "EVERYTHING", (of,))
    tally = group_trials.GROUP_TRIALS[name](Plan(1, moments=moments, states=3))
    return Finding(tally.problems[0]) if tally.problems else None


# Former owners.


def zombie() -> Finding | None:
    """A member that was evicted commits what it was handed."""
    return scenario("operator")


def test_former_owners_are_refused():
    assert zombie() is None


@pytest.mark.parametrize("rule", ["epoch of an owner", "check under the lock"])
def test_former_owners_without_the_check(monkeypatch, rule):
    mutate(monkeypatch, never(rule))
    finding = zombie()
    assert finding is not None
    assert "stored cursors of" in finding.text


def exact_zombie() -> Finding | None:
    """A member that was evicted commits a transaction; whoever has its partitions makes the same."""
    bench = GroupBench()
    bench.a.transact(1)
    bench.when(bench.a, "lock", "/journal", lambda: (bench.c.evict(bench.a), bench.b.transact(12)))
    try:
        bench.a.transact(12)
    except PartitionLostError as error:
        bench.a.failed(error)
    assert bench.happened
    finding = check(bench.disk.clone(), bench.witness, cut=False) or bench.finding()
    bench.close()
    return finding


def test_former_owners_in_transactions():
    assert exact_zombie() is None


def test_former_owners_in_transactions_without_the_check(monkeypatch):
    mutate(monkeypatch, without("epoch in a transaction"))
    assert exact_zombie() is not None


# Cursors and the log.


def ahead() -> Finding | None:
    """A cursor is stored behind a record that is not on disk; then the power goes."""
    bench = GroupBench()
    bench.a.produce(0, 2, durable=False)
    while bench.a.consume(8):
        continue
    bench.a.commit()
    audited = bench.finding()
    bench.audit.broken.clear()
    finding = bench.cut(4)
    bench.close()
    return finding and Finding(f"{finding.text}; {audited}")


def test_cursors_are_safe():
    assert ahead() is None


def test_cursors_without_safety(monkeypatch):
    mutate(monkeypatch, edited("cursor at or below safe", "offset > partition.safe", "False"))
    finding = ahead()
    assert finding is not None
    assert "is ahead of the log" in finding.text
    assert "which is safe" in finding.text


def test_cursors_that_are_not_synced(monkeypatch):
    mutate(monkeypatch, edited("cursor on disk", "durable=True", "durable=False"))
    finding = ahead()
    assert finding is not None
    assert "was stored as" in finding.text


def test_cursors_outside_the_transaction(monkeypatch):
    assert trial(monkeypatch, "group-kills", "exactly once", 2) is None
    apart = "[engine.store.append(w.partition, w.frames, 0.0, None, w.check) for w in _cursor_writes(enlisted)]"
    mutate(monkeypatch, instead("cursors inside the transaction", apart))
    finding = trial(monkeypatch, "group-kills", "exactly once", 8)
    assert finding is not None
    assert "outputs are there of" in finding.text


def unknown_outcome() -> Finding | None:
    """The sync of the journal fails: the commit may or may not have come about, and the consumer goes on."""
    bench = GroupBench()
    bench.a.transact(1)
    fault = Fail(0, number=errno.EIO)

    def strike() -> None:
        fault.at = bench.disk.steps
        bench.disk.plan(fault)

    bench.when(bench.a, "sync_data", "/journal/", strike)
    with pytest.raises(DurabilityError) as caught:
        bench.a.transact(2)
    assert fault.fired
    bench.a.failed(caught.value)
    while bench.a.transact(3):
        continue
    finding = check(bench.disk.clone(), bench.witness, cut=False) or bench.cut(4)
    bench.close()
    return finding


def test_an_unknown_outcome_is_decided_before_the_consumer_goes_on():
    assert unknown_outcome() is None


def test_an_unknown_outcome_that_is_left_open(monkeypatch):
    mutate(monkeypatch, without("unknown outcome decided"))
    finding = unknown_outcome()
    assert finding is not None
    assert "outputs are there of" in finding.text


def refused_transaction() -> Finding | None:
    """What cursors are about cannot be made safe at first, so they are no part of the transaction."""
    bench = GroupBench()
    bench.a.transact(1)
    bench.a.produce(0, 2, durable=False)
    fault = Fail(0, number=errno.EINTR)

    def strike() -> None:
        fault.at = bench.disk.steps
        bench.disk.plan(fault)

    bench.when(bench.a, "lock", "-in/0", strike)
    with pytest.raises(StorageError) as caught:
        bench.a.transact(20)
    assert fault.fired
    bench.a.failed(caught.value)
    bench.a.produce(1, 1)
    while bench.a.transact(20):
        continue
    finding = check(bench.disk.clone(), bench.witness, cut=False)
    bench.close()
    return finding


def test_a_refused_transaction_takes_its_consumer_back():
    assert refused_transaction() is None


def test_a_refused_transaction_that_does_not(monkeypatch):
    mutate(monkeypatch, instead("refused transaction", "membership.enlistments.remove(enlisted)"))
    finding = refused_transaction()
    assert finding is not None
    assert "outputs are there of" in finding.text


def given_back() -> Finding | None:
    """A partition is given back with records that no transaction has stored; then one is committed over all of them."""
    bench = GroupBench()
    bench.a.topic(TARGET, 1)
    mine = bench.a.log.consumer(SOURCE, EXACT_GROUP, commit="manual")
    theirs = bench.b.log.consumer(SOURCE, EXACT_GROUP, commit="manual")
    first = mine.poll(12, timeout=0)
    theirs.poll(1, timeout=0)
    mine.poll(1, timeout=0)
    made = [b"%d@%d=" % (record.partition, record.offset) + (record.value or b"") for record in first]
    try:
        with bench.a.log.transaction() as tx:
            tx.extend(TARGET, made, partition=0)
            mine.commit(tx)
    except PartitionLostError:
        pass
    group, seen = find_group(bench.a.log.engine, EXACT_GROUP), see(bench.a.log)
    assert group is not None
    bench.close()
    return outputs(seen, seen.cursors[group.id])


def test_records_of_partitions_that_were_given_back():
    assert given_back() is None


def test_records_of_partitions_that_were_given_back_without_the_rule(monkeypatch):
    mutate(monkeypatch, never("partitions given back"))
    finding = given_back()
    assert finding is not None
    assert "outputs are there of" in finding.text


def came_back() -> Finding | None:
    """A partition is given back within a transaction, read by somebody else, and comes back before the commit."""
    bench = GroupBench()
    bench.a.topic(TARGET, 1)
    mine = bench.a.log.consumer(SOURCE, EXACT_GROUP, commit="manual")
    theirs = bench.b.log.consumer(SOURCE, EXACT_GROUP, commit="manual")

    def make(member: Member, consumer: Consumer, meanwhile: Callable[[], object]) -> None:
        handed = list(consumer.poll(12, timeout=0))
        with member.log.transaction() as tx:
            made = [b"%d@%d=" % (record.partition, record.offset) + (record.value or b"") for record in handed]
            tx.extend(TARGET, made, partition=0)
            consumer.commit(tx)
            meanwhile()

    def meanwhile() -> None:
        theirs.poll(1, timeout=0)
        mine.poll(1, timeout=0)
        make(bench.b, theirs, theirs.assigned.copy)
        theirs.close()
        mine.poll(1, timeout=0)
        assert len(mine.assigned) == PARTITIONS

    try:
        make(bench.a, mine, meanwhile)
    except PartitionLostError:
        pass
    group, seen = find_group(bench.a.log.engine, EXACT_GROUP), see(bench.a.log)
    assert group is not None
    bench.close()
    return outputs(seen, seen.cursors[group.id])


def test_records_of_a_partition_that_came_back():
    assert came_back() is None


def test_records_of_a_partition_that_came_back_without_the_epoch_of_then(monkeypatch):
    now = "self.member.check(state, {place: self.member.epochs.get(place) for place in self.moves})"
    mutate(monkeypatch, instead("epoch in a transaction", now))
    finding = came_back()
    assert finding is not None
    assert "outputs are there of" in finding.text


# Members.


def take_over() -> Finding | None:
    """A member dies, and another takes its partitions."""
    bench = GroupBench()
    bench.a.consume(2)
    bench.a.die()
    while bench.b.consume(4, timeout=0.5):
        continue
    finding = bench.finding()
    bench.close()
    return finding


def test_the_dead_are_gone_when_they_are_inherited():
    assert take_over() is None


def test_the_dead_are_forgotten_to_be_gone(monkeypatch):
    mutate(monkeypatch, edited("dead before inherited", '"gone": plan.dead', '"gone": []'))
    finding = take_over()
    assert finding is not None
    assert " took " in finding.text


def test_the_living_are_taken_for_dead(monkeypatch):
    mutate(monkeypatch, edited("living members", "if each.locked", "if False"))
    finding = scenario("rebalance")
    assert finding is not None
    assert "was declared gone and lives" in finding.text


def stopped_member() -> Finding | None:
    """One member dies and another is stopped: the third reads everything but what the stopped one has."""
    bench = GroupBench()
    members = (bench.a, bench.b, bench.c)
    for _ in range(3):
        for member in members:
            member.consume(1)
    bench.a.die()
    for _ in range(8):
        bench.c.consume(1, timeout=0.25)
    finding = bench.finding()
    group = find_group(bench.c.log.engine, ORDINARY_GROUP)
    assert group is not None
    owners = len(group.view().owners)
    if finding is None and owners != PARTITIONS:
        finding = Finding(f"nobody reads {PARTITIONS - owners} partitions")
    # It is back when it polls, and gets its share.
    for _ in range(6):
        bench.b.consume(1, timeout=0.25)
        bench.c.consume(1, timeout=0.25)
    state = group.view()
    if finding is None and (state.passed or len(state.owners) != PARTITIONS):
        finding = Finding(f"{state.passed} did not come back")
    bench.close()
    return finding


def test_a_stopped_member_gets_no_partitions():
    assert stopped_member() is None


def test_a_stopped_member_is_waited_for(monkeypatch):
    mutate(monkeypatch, edited("members passed over", "not late", "True"))
    finding = stopped_member()
    assert finding is not None
    assert "nobody reads" in finding.text


def silent_member() -> Finding | None:
    """A member that does not poll loses its partitions, and can store nothing for them."""
    bench = GroupBench()

    def consume(member: Member, timeout: float) -> None:
        try:
            member.consume(2, timeout=timeout)
        except PartitionLostError as error:
            member.failed(error)

    for _ in range(3):
        consume(bench.a, 0.0)
        consume(bench.b, 0.0)
    for _ in range(3):
        bench.disk.clock_us += 120_000_000
        consume(bench.a, 0.25)
    for _ in range(6):
        consume(bench.a, 0.25)
    finding = bench.finding()
    group = find_group(bench.a.log.engine, ORDINARY_GROUP)
    assert group is not None
    state = group.view()
    owners = {state.members[owner.member].pid for owner in state.owners.values()}
    if finding is None and owners != {bench.a.process.number}:
        finding = Finding(f"{owners} own something")
    if finding is None:
        with pytest.raises(PartitionLostError, match="has not polled for"):
            bench.b.commit()
        bench.b.failed(PartitionLostError("", group=ORDINARY_GROUP))
        bench.b.consume(1, timeout=0.25)
        finding = bench.finding()
    bench.close()
    return finding


def test_a_silent_member_loses_its_partitions():
    assert silent_member() is None


def test_a_member_that_polls_is_taken_for_silent(monkeypatch):
    mutate(monkeypatch, edited("silent members", "each.is_late(now, limit)", "True"))
    finding = silent_member()
    assert finding is not None
    assert "was declared silent and polls" in finding.text


def free_partitions() -> Finding | None:
    """Two members want the same free partitions."""
    bench = GroupBench()
    bench.a.consume(1)
    bench.a.leave()
    bench.when(bench.b, "lock", "__group.g", lambda: bench.c.consume(2), number=2)
    for _ in range(3):
        bench.b.consume(2, timeout=0.5)
    assert bench.happened
    finding = bench.finding()
    bench.close()
    return finding


def test_free_partitions_are_taken_once():
    assert free_partitions() is None


def test_free_partitions_without_a_second_look(monkeypatch):
    mutate(monkeypatch, instead("free partitions", "return"))
    finding = free_partitions()
    assert finding is not None
    assert " took " in finding.text


def meanwhile() -> Finding | None:
    """A member joins while an operator resets the group with force."""
    bench = GroupBench()
    bench.a.consume(2)
    bench.when(bench.c, "lock", "__group.g", lambda: (bench.b.consume(2), bench.a.consume(2), bench.b.consume(2)))
    bench.c.reset("earliest", force=True)
    assert bench.happened
    finding = bench.finding()
    bench.close()
    return finding


def test_nobody_reads_on_under_a_reset():
    assert meanwhile() is None


def test_somebody_reads_on_under_a_reset(monkeypatch):
    mutate(monkeypatch, instead("reset under a member", "return"))
    finding = meanwhile()
    assert finding is not None
    assert "cursors were reset under" in finding.text


# Snapshots.


def overtaken_snapshot() -> Finding | None:
    """Somebody stores a cursor between the making of a snapshot and its writing."""
    bench = GroupBench(60)
    members: list[Member] = [bench.a, bench.b]
    for number in range(20):
        members[number % 2].consume(1)
    # Its next-but-one record is the snapshot.
    for _ in range(12):
        bench.when(bench.a, "lock", "__group.g", lambda: bench.b.consume(1), number=2)
        bench.a.consume(1)
        if bench.happened:
            break
    assert bench.happened
    finding = bench.finding()
    bench.close()
    return finding


def test_a_snapshot_is_of_what_is_before_it():
    assert overtaken_snapshot() is None


def test_a_snapshot_that_does_not_look(monkeypatch):
    mutate(monkeypatch, edited("snapshot of what is before it", "expect=expected", "expect=None"))
    finding = overtaken_snapshot()
    assert finding is not None
    assert "a snapshot has" in finding.text


def test_a_follower_that_does_not_look_again(monkeypatch):
    mutate(monkeypatch, instead("state followed from its snapshot", "if True:"))
    bench = GroupBench(80)
    bench.a.consume(1)
    group = open_group(bench.b.log.engine, ORDINARY_GROUP)
    group.view()
    group.release()
    bench.a.consume(1)
    bench.when(bench.b, "open", "__group.g", lambda: [bench.a.consume(1) for _ in range(80)])
    with pytest.raises(OffsetOutOfRangeError):
        group.view()
    bench.close()
