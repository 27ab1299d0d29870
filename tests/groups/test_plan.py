"""The plan of a rebalance: computed from values alone, so every case is a few records and heartbeats."""

from __future__ import annotations

import pytest

from tailrace.groups.heartbeat import Seen
from tailrace.groups.plan import make_plan, silent_members
from tailrace.groups.state import GroupState, Owner, encode

NOW, ANSWER = 1_000.0, 1.0
BEATS, LATE = Seen(True, NOW, True, 0.0), Seen(True, NOW - 60.0, False, 0.0)
ONE, TWO, THREE, FOUR = [(1, index) for index in range(4)]


def state_of(members, owned, **more):
    """A group with these members, each with its limit in seconds, and the partitions that they took."""
    state = GroupState()
    for offset, (member, limit) in enumerate(members.items()):
        joined = {"id": member, "host": "h", "pid": 7, "since": 1, "topics": ["t"], "max_processing": limit}
        state.apply(offset, 1, encode({"join": joined}))
    for offset, (member, places) in enumerate(owned.items(), len(members)):
        state.apply(offset, 1, encode({"member": member, "take": places}))
    state.apply(99, 1, encode(more))
    return state


def plan_of(state, me, seen, readers=None):
    alive = frozenset({me, *seen})
    readers = dict.fromkeys((ONE, TWO, THREE, FOUR), alive) if readers is None else readers
    return make_plan(state, me, readers, seen, NOW, ANSWER, 7)


def test_a_member_alone_takes_everything():
    plan = plan_of(state_of({"a": None}, {}), "a", {})
    assert plan.take == [ONE, TWO, THREE, FOUR]
    assert plan.seen == dict.fromkeys(plan.take)
    assert (plan.give, plan.wait, plan.dead, plan.passed, plan.silent) == ([], [], [], [], [])


def test_it_says_what_it_was_made_from():
    state = state_of({"a": None}, {})
    assert plan_of(state, "a", {}).at == (7, state.version)


def test_a_share_is_given_back_and_waited_for():
    state = state_of({"a": None, "b": None}, {"a": [ONE, TWO, THREE, FOUR]})
    mine, other = plan_of(state, "a", {"b": BEATS}), plan_of(state, "b", {"a": BEATS})
    assert (len(mine.give), mine.take, mine.wait) == (2, [], [])
    assert (other.give, other.take, other.wait) == ([], [], mine.give)


def test_the_partitions_of_a_dead_member_are_taken():
    state = state_of({"a": None, "dead": None}, {"a": [ONE, TWO], "dead": [THREE, FOUR]})
    plan = plan_of(state, "a", {})
    assert (plan.dead, plan.take) == (["dead"], [THREE, FOUR])
    assert plan.seen == {place: Owner("dead", 3) for place in (THREE, FOUR)}


def test_free_partitions_are_shared_with_members_that_answer():
    state = state_of({"a": None, "b": None}, {"a": [ONE], "b": [TWO]})
    plan = plan_of(state, "a", {"b": BEATS})
    assert (plan.take, plan.passed, plan.awaited) == ([THREE], [], frozenset({"b"}))


def test_a_member_that_does_not_answer_is_passed_over_and_keeps_what_it_has():
    state = state_of({"a": None, "b": None}, {"a": [ONE], "b": [TWO]})
    plan = plan_of(state, "a", {"b": LATE})
    assert (plan.take, plan.passed, plan.awaited) == ([THREE, FOUR], ["b"], frozenset())


@pytest.mark.parametrize("field", ["passed", "silent"])
def test_a_member_that_was_passed_over_gets_nothing(field):
    state = state_of({"a": None, "b": None}, {"a": [ONE]}, **{field: ["b"]})
    plan = plan_of(state, "a", {"b": BEATS})
    assert (plan.take, plan.passed) == ([TWO, THREE, FOUR], [])


def test_the_partitions_of_a_silent_member_are_taken():
    state = state_of({"a": None, "b": 30.0}, {"a": [ONE], "b": [TWO, THREE, FOUR]})
    plan = plan_of(state, "a", {"b": LATE})
    assert (plan.silent, plan.take, plan.dead) == (["b"], [TWO, THREE, FOUR], [])


@pytest.mark.parametrize(
    ("limit", "owned", "seen", "found"),
    [
        (30.0, [ONE], LATE, ["b"]),
        (30.0, [ONE], BEATS, []),
        (None, [ONE], LATE, []),
        (90.0, [ONE], LATE, []),
        (30.0, [], LATE, []),
    ],
)
def test_who_is_silent(limit, owned, seen, found):
    assert silent_members(state_of({"b": limit}, {"b": owned}), {"b": seen}, NOW) == found


def test_a_member_takes_only_what_it_may_read():
    state = state_of({"a": None, "b": None}, {})
    readers = {ONE: frozenset({"a"}), TWO: frozenset({"b"}), THREE: frozenset()}
    plan = plan_of(state, "a", {"b": BEATS}, readers)
    assert (plan.take, plan.awaited) == ([ONE], frozenset({"b"}))
