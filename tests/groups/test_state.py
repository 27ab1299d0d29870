"""The state of a group: what its records add up to."""

from __future__ import annotations

import json

import pytest

from tailrace.errors import CorruptionError, VersionError
from tailrace.groups.state import GroupState, encode

JOIN = {"join": {"id": "m", "host": "h", "pid": 7, "since": 1, "topics": ["a"]}}


def state_of(*records):
    state = GroupState()
    for offset, record in enumerate(records):
        state.apply(offset, 1_000 + offset, encode(record))
    return state


def test_a_snapshot_leaves_out_topics_that_are_not_alive():
    state = state_of({"moves": [[1, 0, 5], [2, 0, 6]]}, {"member": "m", "take": [[1, 0], [2, 0]], "lost": [[2, 0, 1]]})
    (value,) = state.snapshot({1}).values
    again = GroupState()
    again.apply(9, 0, value)
    assert (again.cursors, again.lost) == ({(1, 0): 5}, {})
    assert again.owned_by("m") == {(1, 0): 1}


def test_a_snapshot_asks_for_single_topics():
    """A log may have a hundred thousand of them."""

    class Alive:
        def __contains__(self, topic):
            return topic == 1

    assert b"[1,0,5]" in state_of({"moves": [[1, 0, 5], [2, 0, 6]]}).snapshot(Alive()).values[0]


def test_the_version_is_that_of_the_last_change_of_members_or_owners():
    state = state_of(JOIN, {"member": "m", "take": [[1, 0]]}, {"member": "m", "moves": [[1, 0, 5]]})
    assert (state.version, state.offset) == (2, 3)
    (value,) = state.snapshot({1}).values
    for each in (state, GroupState()):
        # The same for a process that begins at the snapshot.
        each.apply(3, 0, value)
        assert each.version == 4


def test_a_copy_does_not_change_with_the_state():
    state = state_of(JOIN, {"moves": [[1, 0, 5]]})
    made = state.copy()
    assert vars(made) == vars(state)
    state.apply(2, 0, encode({"gone": ["m"], "moves": [[1, 0, 6]]}))
    assert (made.cursors, [*made.members], made.offset) == ({(1, 0): 5}, ["m"], 2)


def test_a_record_that_cannot_be_understood():
    with pytest.raises(CorruptionError) as caught:
        state_of({"moves": [[1, 0, 5]]}).apply(1, 0, json.dumps({"moves": [[1]]}).encode())
    assert (caught.value.first, caught.value.last) == (1, 1)


def test_a_change_of_a_newer_version_is_neither_damage_nor_ignored():
    state = state_of(JOIN)
    with pytest.raises(VersionError, match="the change 'pause', which only a newer version"):
        state.apply(1, 0, encode({"member": "m", "pause": [[1, 0]]}))
    assert state.offset == 1
