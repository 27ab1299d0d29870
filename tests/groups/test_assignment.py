"""Assignment: even shares among the members that may read a partition, and few moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.groups.assignment import assign


def places(count, topic=1):
    return [(topic, index) for index in range(count)]


def shares(members, count, owners=None):
    return assign(dict.fromkeys(places(count), frozenset(members)), owners or {})


@pytest.mark.parametrize(("count", "expected"), [(6, [2, 2, 2]), (7, [2, 2, 3]), (2, [1, 1]), (0, [])])
def test_shares_are_even_to_within_one(count, expected):
    assert sorted(Counter(shares("abc", count).values()).values()) == expected


def test_an_owner_keeps_what_it_has_up_to_its_share():
    owners = dict.fromkeys(places(4), "a")
    target = shares("ab", 4, owners)
    assert Counter(target.values()) == {"a": 2, "b": 2}
    assert shares("ab", 4, target) == target
    # The member that holds more keeps the larger share, whatever its name.
    assert shares("ab", 3, {(1, 0): "b", (1, 1): "b", (1, 2): "a"}) == {(1, 0): "b", (1, 1): "b", (1, 2): "a"}


def test_what_a_member_that_is_gone_had_goes_to_the_others():
    target = shares("ab", 4, {(1, 0): "gone", (1, 1): "gone", (1, 2): "a", (1, 3): "b"})
    assert (target[1, 2], target[1, 3]) == ("a", "b")
    assert Counter(target.values()) == {"a": 2, "b": 2}


def test_a_partition_that_no_member_may_read_is_left_out():
    assert assign({(1, 0): frozenset(), (2, 0): frozenset("a")}, {(1, 0): "a"}) == {(2, 0): "a"}


def test_members_read_only_what_they_may_and_remainders_even_out():
    eligible = dict.fromkeys(places(1), frozenset("ab")) | dict.fromkeys(places(1, topic=2), frozenset("abc"))
    target = assign(eligible, {})
    assert target[1, 0] != target[2, 0]
    assert target[1, 0] in "ab"


@given(
    st.sets(st.sampled_from("abcde"), min_size=1), st.dictionaries(st.sampled_from(places(9)), st.sampled_from("abxyz"))
)
def test_no_partition_moves_for_nothing(members, owners):
    target = shares(members, 9, owners)
    assert target.keys() == set(places(9))
    assert set(target.values()) <= members
    counts = Counter(target.values())
    assert max(counts.values()) - min(counts[member] for member in members) <= 1
    for member in members:
        held = [place for place in places(9) if owners.get(place) == member]
        kept = [place for place in held if target[place] == member]
        assert len(kept) == min(len(held), counts[member])
    assert shares(members, 9, target) == target
