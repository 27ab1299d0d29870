"""Rebalance plan: what one member gives back, takes and waits for, computed from the state of its group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tailrace.groups.assignment import assign
from tailrace.read.request import matching

if TYPE_CHECKING:
    from tailrace.disk import TopicEntry
    from tailrace.engine.engine import Engine
    from tailrace.groups.heartbeat import Seen
    from tailrace.groups.state import GroupState, MemberInfo, Owner, Place


class Plan(NamedTuple):
    """What a member does in a rebalance."""

    give: list[Place]
    take: list[Place]
    # Partitions that are to be this member's once their owners give them back.
    wait: list[Place]
    # Members that are no longer there, that did not take their share, and that have not polled for too long.
    dead: list[str]
    passed: list[str]
    silent: list[str]
    # The owners of what is to be taken, as of the plan.
    seen: dict[Place, Owner | None]
    # Other members that are about to take free partitions.
    awaited: frozenset[str]
    # The offset of the catalog and the version of the state that the plan was made from.
    at: tuple[int, int]


def make_plan(
    state: GroupState,
    me: str,
    readers: Mapping[Place, frozenset[str]],
    seen: Mapping[str, Seen],
    now: float,
    answer_seconds: float,
    catalog_offset: int,
) -> Plan:
    """Return the plan of the member `me`.

    `readers` are the members that may read each partition; `seen` has the other members that are alive, with their
    heartbeats. A member that has not polled for `answer_seconds` gets no free partition.
    """
    silent = silent_members(state, seen, now)
    owners = {
        place: owner.member
        for place, owner in state.owners.items()
        if (owner.member in seen or owner.member == me) and owner.member not in silent
    }
    away = {*state.passed, *state.silent, *silent} - {me}
    passed: set[str] = set()
    while True:
        target = assign(_without(readers, owners, away), owners)
        awaited = {member for place, member in target.items() if place not in owners and member != me}
        late = {member for member in awaited if seen[member].is_late(now, answer_seconds)}
        if not late:  # rule: members passed over
            break
        passed |= late
        away |= late
    mine = sorted(place for place, member in target.items() if member == me)
    take = [place for place in mine if place not in owners]
    return Plan(
        give=sorted(place for place in state.owned_by(me) if target.get(place) != me),
        take=take,
        wait=[place for place in mine if owners.get(place, me) != me],
        dead=sorted(state.members.keys() - seen.keys() - {me}),
        passed=sorted(passed),
        silent=silent,
        seen={place: state.owners.get(place) for place in take},
        awaited=frozenset(awaited),
        at=(catalog_offset, state.version),
    )


def eligible(
    engine: Engine, members: Iterable[MemberInfo]
) -> tuple[dict[Place, frozenset[str]], dict[int, TopicEntry]]:
    """Return the members that may read each partition, by the names and patterns they asked for, and the topics."""
    wanted: dict[tuple[str, ...], set[str]] = {}
    for member in members:
        wanted.setdefault(member.topics, set()).add(member.id)
    readers: dict[int, set[str]] = {}
    entries: dict[int, TopicEntry] = {}
    for topics, ids in wanted.items():
        for entry in matching(engine, topics):
            readers.setdefault(entry.id, set()).update(ids)
            entries[entry.id] = entry
    found = {
        (entry.id, index): frozenset(readers[entry.id])
        for entry in entries.values()
        for index in range(len(entry.slots))
    }
    return found, entries


def silent_members(state: GroupState, seen: Mapping[str, Seen], now: float) -> list[str]:
    """Return the members that have not polled for their own `max_processing` and still own partitions."""
    late = []
    for member, each in seen.items():
        limit = state.members[member].max_processing
        if limit is not None and each.is_late(now, limit) and member not in state.silent:  # rule: silent members
            late.append(member)
    return sorted(member for member in late if state.owned_by(member))


def _without(
    readers: Mapping[Place, frozenset[str]], owners: Mapping[Place, str], away: set[str]
) -> Mapping[Place, frozenset[str]]:
    """Return the readers without members that are away: those keep what they own and get nothing."""
    if not away:
        return readers
    return {
        place: frozenset({owners[place]}) if owners.get(place) in away else members - away
        for place, members in readers.items()
    }
