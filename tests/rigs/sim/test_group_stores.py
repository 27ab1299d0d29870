"""Cursors that were stored without the member knowing it: it was interrupted when they were written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tailrace.groups.consumer import Consumer
from tests.rigs.sim import Interrupt
from tests.rigs.sim.group_bench import GroupBench
from tests.rigs.sim.group_members import EXACT_GROUP, ORDINARY_GROUP, SOURCE, Member
from tests.rigs.sim.group_witness import GroupWitness

# Operations from the write of the record with the cursors: with the third it stands, whoever looks.
MOMENTS = {"synced": 2, "published": 3, "unlocked": 8, "read back": 9}


@pytest.fixture(params=MOMENTS.values(), ids=MOMENTS)
def moment(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def interrupted(bench: GroupBench, group: str, moment: int, action: Callable[[], object]) -> None:
    """Let a member do something, and interrupt it when it has written cursors."""
    fault = Interrupt(0, when="after")

    def strike() -> None:
        fault.at = bench.disk.steps + moment
        bench.disk.plan(fault)

    bench.when(bench.a, "write", f"__group.{group}", strike)
    with pytest.raises(KeyboardInterrupt):
        action()
    bench.disk.plan()
    bench.a.failed(KeyboardInterrupt())
    assert fault.fired


def joined(bench: GroupBench) -> Member:
    """A member that stores cursors before it hands records out; it was handed one of each partition."""
    bench.a.join(commit="before")
    for _ in range(3):
        assert bench.a.consume(1) == 1
    assert handed(bench) == [(partition, 0) for partition in range(3)]
    return bench.a


def handed(bench: GroupBench) -> list[tuple[int, int]]:
    """The records that anybody was handed, by partition."""
    return sorted((place[1], offset) for (_, place), known in bench.witness.handed.items() for offset in known)


def all_but(*skipped: tuple[int, int]) -> list[tuple[int, int]]:
    return [(partition, at) for partition in range(3) for at in range(4) if (partition, at) not in skipped]


def finish(bench: GroupBench, member: Member) -> None:
    """Read what is left; what was stored and promised is checked, now and after a power cut."""
    for _ in range(20):
        member.consume(3, timeout=0.25)
    member.commit()
    member.leave()
    assert bench.finding() is None
    assert bench.cut() is None


def test_a_batch_that_was_stored_and_not_handed_out_comes_with_the_next_call(bench, moment):
    member = joined(bench)
    interrupted(bench, ORDINARY_GROUP, moment, lambda: member.consume(3))
    finish(bench, member)
    assert handed(bench) == all_but()


def test_a_death_after_a_store_that_was_interrupted(bench, moment):
    """It loses the record in hand at most, and none of those that were taken back."""
    member = joined(bench)
    interrupted(bench, ORDINARY_GROUP, moment, lambda: member.consume(3))
    # Of another partition, whose turn it is.
    assert member.consume(1) == 1
    member.die()
    finish(bench, bench.b)
    assert handed(bench) == all_but()


def test_partitions_change_hands_after_a_store_that_was_interrupted(bench, moment):
    """Whoever gets a partition goes on behind what was handed out of it, not behind what was stored for it."""
    member = joined(bench)
    interrupted(bench, ORDINARY_GROUP, moment, lambda: member.consume(9))
    bench.b.consume(1)
    bench.c.consume(1)
    for _ in range(10):
        for each in (member, bench.b, bench.c):
            each.consume(1)
    bench.b.leave()
    bench.c.leave()
    finish(bench, member)
    assert handed(bench) == all_but()


def test_a_consumer_is_closed_after_a_store_that_was_interrupted(bench, moment):
    member = joined(bench)
    interrupted(bench, ORDINARY_GROUP, moment, lambda: member.consume(9))
    member.leave()
    finish(bench, bench.b)
    assert handed(bench) == all_but()


def test_a_consumer_is_closed_after_a_commit_that_was_interrupted(bench, moment):
    """Whoever commits has processed what is in hand: no cursor goes back before it, and it does not come again."""
    assert [bench.a.consume(1), bench.a.consume(4)] == [1, 4]
    interrupted(bench, ORDINARY_GROUP, moment, bench.a.commit)
    bench.a.leave()
    assert bench.finding() is None
    with bench.b.log.consumer(SOURCE, ORDINARY_GROUP, stop="now") as second:
        assert len(list(second)) == 7


def test_a_loop_that_was_interrupted_in_storing(bench, moment):
    """Whoever asks for the next record has processed the last one."""
    first = bench.a.log.consumer(SOURCE, ORDINARY_GROUP, commit_every="1s")
    for _ in range(2):
        next(first)
        bench.a.process.sleep(2.0)
    for _ in range(3):
        next(first)
    bench.a.process.sleep(2.0)
    interrupted(bench, ORDINARY_GROUP, moment, lambda: next(first))
    first.close()
    assert bench.finding() is None
    with bench.b.log.consumer(SOURCE, ORDINARY_GROUP, stop="now") as second:
        assert len(list(second)) == 7


def test_a_commit_after_one_that_was_interrupted_and_a_seek(bench, moment):
    """The cursors go back to where they were known to be stored: they may not be there any more."""

    def offsets(consumer: Consumer) -> list[tuple[int, int]]:
        return sorted((record.partition, record.offset) for record in consumer.poll(12, timeout=0))

    first = bench.a.log.consumer(SOURCE, EXACT_GROUP, commit="manual")
    for _ in range(3):
        assert len(first.poll(1, timeout=0)) == 1
    first.commit()
    assert offsets(first) == all_but((0, 0), (1, 0), (2, 0))
    bench.witness.undone.add(str(first.member))
    interrupted(bench, EXACT_GROUP, moment, first.commit)
    first.seek({0: 1, 1: 1, 2: 1})
    first.commit()
    first.close()
    with bench.b.log.consumer(SOURCE, EXACT_GROUP, commit="manual") as second:
        assert offsets(second) == all_but((0, 0), (1, 0), (2, 0))
    assert bench.finding() is None


@pytest.mark.parametrize("excused", [False, True])
def test_the_audit_sees_cursors_that_go_back_before_what_was_handed_out(bench, excused):
    """Also those of a member that may take back what it stored."""
    member = joined(bench)
    if excused:
        interrupted(bench, ORDINARY_GROUP, MOMENTS["published"], lambda: member.consume(3))
        assert bench.witness.undone
    assert member.consumer is not None
    member.consumer.seek("earliest")
    finding = bench.finding()
    assert finding is not None
    assert "went back from" in finding.text


PLACE = (1, 0)


@pytest.mark.parametrize(
    ("owner", "commit", "wrong"),
    [("mine", "after", True), ("another", "after", False), (None, "after", False), ("another", "before", True)],
)
def test_the_witness_excuses_a_member_only_for_what_it_lost(owner, commit, wrong):
    """A member that was evicted may be handed records below the stored cursor, but not of a partition that it owns."""
    witness = GroupWitness()
    turn = witness.turn("a", ORDINARY_GROUP, commit)
    turn.excused = True
    witness.stored(7, {PLACE: 5})
    witness.owners[7] = {} if owner is None else {PLACE: owner}
    witness.hand(7, turn, PLACE, 3, b"value", "mine")
    assert bool(witness.broken) is wrong


def test_what_no_other_member_owns_is_stored_when_everything_was_processed(bench):
    """Another member keeps its partitions: those are its to finish, and the cursors of the rest are promised."""
    assert bench.a.transact(1) == 1
    bench.b.join(EXACT_GROUP, "manual")
    for _ in range(4):
        # They share the partitions, so that each has some when b goes and reads with the loop of the library.
        bench.b.transact(1, timeout=0.25)
        bench.a.transact(1, timeout=0.25)
    group = bench.a.group
    kept = set(bench.a.owned)
    assert kept
    bench.witness.bounds[group] = {}
    bench.b.process_all()
    owned = set(bench.witness.owners[group])
    assert owned
    assert {place for place, bounds in bench.witness.bounds[group].items() if bounds.low == 4} == {
        place for place in bench.b._ends() if place not in owned
    }
    assert bench.finding() is None
