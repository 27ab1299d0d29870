"""The state of a group: its members, who reads which partition, and how far, built from the records of its topic.

The records are JSON (docs/format.md, section 8). All have one shape: an object whose fields each change one thing, in
the order in which `GroupState.apply` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from tailrace.errors import CorruptionError

# A partition as a group knows it: the id of its topic, which no other topic ever has, and its index.
Place: TypeAlias = tuple[int, int]


CHANGES_SHARES = frozenset({"snapshot", "gone", "join", "give", "take"})


class MemberInfo(NamedTuple):
    """One consumer of a group: where it runs, and the lock file that tells whether it lives."""

    id: str
    host: str
    pid: int
    since: int
    topics: tuple[str, ...]


class Owner(NamedTuple):
    """Who reads a partition; the epoch is the offset of the record that gave it away, so no two are the same."""

    member: str
    epoch: int


class GroupState:
    """What the records up to `offset` add up to."""

    def __init__(self) -> None:
        self.offset = 0
        self.members: dict[str, MemberInfo] = {}
        self.owners: dict[Place, Owner] = {}
        self.cursors: dict[Place, int] = {}
        # Records that were removed before the group had read them.
        self.lost: dict[Place, int] = {}
        # What members have asked for, now or earlier: names and patterns.
        self.topics: dict[str, None] = {}
        # Grows with every record that changes who is there or who owns what.
        self.version = 0
        # The time of the last record that moved a cursor.
        self.moved_us = 0
        # Whether it was an engine that keeps its own place, and no member, who moved them last.
        self.engine = False

    def copy(self) -> GroupState:
        """The same state, apart from this one."""
        made = GroupState()
        made.offset, made.version = self.offset, self.version
        made.moved_us, made.engine = self.moved_us, self.engine
        made.members, made.owners, made.topics = self.members.copy(), self.owners.copy(), self.topics.copy()
        made.cursors, made.lost = self.cursors.copy(), self.lost.copy()
        return made

    def apply(self, offset: int, time: int, value: bytes) -> None:
        """Take in one record; records come in order, and a snapshot stands for all before it."""
        try:
            record = json.loads(value)
            if "snapshot" in record:
                self._restore(record["snapshot"])
            self._apply(offset, time, record)
            self.version += not CHANGES_SHARES.isdisjoint(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptionError("A record of a group cannot be understood", first=offset, last=offset) from error
        self.offset = offset + 1

    def _apply(self, offset: int, time: int, record: Mapping[str, Any]) -> None:
        for member in record.get("gone", ()):
            self.members.pop(member, None)
            for place in [place for place, owner in self.owners.items() if owner.member == member]:
                del self.owners[place]
        if "join" in record:
            joined = _member(record["join"])
            self.members[joined.id] = joined
            self.topics.update(dict.fromkeys(joined.topics))
        for place in _places(record.get("give", ())):
            self.owners.pop(place, None)
        for place in _places(record.get("take", ())):
            self.owners[place] = Owner(record["member"], offset)
        for topic, partition, cursor in record.get("moves", ()):
            self.cursors[topic, partition] = cursor
            self.moved_us = time
            if "engine" in record or "member" in record or "join" in record:
                # An operator who moves a cursor does not make it his.
                self.engine = "engine" in record
        for place in _places(record.get("forget", ())):
            self.cursors.pop(place, None)
            self.lost.pop(place, None)
        for topic, partition, count in record.get("lost", ()):
            self.lost[topic, partition] = self.lost.get((topic, partition), 0) + count

    def _restore(self, snapshot: Mapping[str, Any]) -> None:
        self.members = {member.id: member for member in map(_member, snapshot["members"])}
        self.owners = {(topic, part): Owner(member, epoch) for topic, part, member, epoch in snapshot["owners"]}
        self.cursors = {(topic, part): cursor for topic, part, cursor in snapshot["cursors"]}
        self.lost = {(topic, part): count for topic, part, count in snapshot["lost"]}
        self.topics = dict.fromkeys(snapshot["topics"])
        self.moved_us = snapshot["moved"]
        self.engine = snapshot.get("engine", False)

    def snapshot(self, alive: Iterable[int]) -> bytes:
        """The record that stands for all before it, without what was stored of topics that no longer exist."""
        known = set(alive)
        snapshot = {
            "members": [member._asdict() for member in self.members.values()],
            "owners": [(*place, *owner) for place, owner in self.owners.items() if place[0] in known],
            "cursors": [(*place, cursor) for place, cursor in self.cursors.items() if place[0] in known],
            "lost": [(*place, count) for place, count in self.lost.items() if place[0] in known],
            "topics": list(self.topics),
            "moved": self.moved_us,
            "engine": self.engine,
        }
        return encode({"snapshot": snapshot})

    def owned_by(self, member: str) -> dict[Place, int]:
        """The partitions of a member, with their epochs."""
        return {place: owner.epoch for place, owner in self.owners.items() if owner.member == member}


def encode(record: Mapping[str, Any]) -> bytes:
    """A record's value; fields that say nothing are left out."""
    told = {name: content for name, content in record.items() if content or name == "snapshot"}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


def _member(stored: Mapping[str, Any]) -> MemberInfo:
    return MemberInfo(stored["id"], stored["host"], stored["pid"], stored["since"], tuple(stored["topics"]))


def _places(listed: Iterable[Iterable[int]]) -> list[Place]:
    return [(topic, partition) for topic, partition in listed]
