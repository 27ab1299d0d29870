"""The state of a group: its members, the owners of partitions and the cursors, built from the records of its topic.

The records are JSON (docs/format.md, section 8). All have one shape: an object whose fields each change one thing, in
the order in which `GroupState.apply` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tailrace.errors import CorruptionError, VersionError
from tailrace.state_topic import NewRecords, TopicState

if TYPE_CHECKING:
    from tailrace.disk.columns import Columns

# A partition as a group knows it: the id of its topic, which no other topic ever has, and its index.
Place: TypeAlias = tuple[int, int]


CHANGES_SHARES = frozenset({"snapshot", "gone", "passed", "silent", "back", "join", "give", "take"})
# Everything that a record of a group may hold.
KNOWN_CHANGES = CHANGES_SHARES | {"member", "moves", "engine", "forget", "lost"}


class MemberInfo(NamedTuple):
    """One member of a group: its id, which names its lock file, its process, and what it reads."""

    id: str
    host: str
    pid: int
    since: int
    topics: tuple[str, ...]
    # Seconds without a poll after which it loses its partitions; None: no limit.
    max_processing: float | None = None


class Owner(NamedTuple):
    """The member that reads a partition; its epoch is the offset of the record that made it the owner, unique to it."""

    member: str
    epoch: int


class GroupState(TopicState):
    """The state of a group after its records before `offset`."""

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, MemberInfo] = {}
        self.owners: dict[Place, Owner] = {}
        # Members that did not take a free partition of their share: they get none until they poll again.
        self.passed: set[str] = set()
        # Members that lost their partitions because they did not poll: they join again under another id.
        self.silent: set[str] = set()
        self.cursors: dict[Place, int] = {}
        # Records that were removed before the group had read them.
        self.lost: dict[Place, int] = {}
        # Names and patterns that members have asked for, now or earlier.
        self.topics: dict[str, None] = {}
        # The offset after the last record that changed the members or the owners.
        self.version = 0
        # The time of the last record that moved a cursor.
        self.moved_us = 0
        # Whether an engine that keeps its own offsets, and not a member, moved the cursors last.
        self.engine = False

    @property
    def entries(self) -> int:
        """The number of cursors."""
        return len(self.cursors)

    def copy(self) -> GroupState:
        """Return a copy that shares nothing with this state."""
        made = GroupState()
        made.offset, made.version = self.offset, self.version
        made.moved_us, made.engine = self.moved_us, self.engine
        made.members, made.owners, made.topics = self.members.copy(), self.owners.copy(), self.topics.copy()
        made.cursors, made.lost = self.cursors.copy(), self.lost.copy()
        made.passed, made.silent = self.passed.copy(), self.silent.copy()
        return made

    def take(self, columns: Columns, first: int, stop: int) -> None:
        """Apply some records of a frame."""
        for at in range(first, stop):
            self.apply(columns.offset(at), columns.time(at), columns.value(at) or b"")

    def apply(self, offset: int, time: int, value: bytes) -> None:
        """Apply one record; records come in order, and a snapshot replaces all before it."""
        try:
            record = json.loads(value)
            if not KNOWN_CHANGES.issuperset(record):
                unknown = min(record.keys() - KNOWN_CHANGES)
                raise VersionError(
                    f"A record of a group has the change {unknown!r}, which only a newer version of Tailrace knows."
                )
            if "snapshot" in record:
                self._restore(record["snapshot"])
            self._apply(offset, time, record)
            if not CHANGES_SHARES.isdisjoint(record):
                self.version = offset + 1
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptionError("A record of a group cannot be understood", first=offset, last=offset) from error
        self.offset = offset + 1

    def _apply(self, offset: int, time: int, record: Mapping[str, Any]) -> None:
        for member in record.get("gone", ()):
            self.members.pop(member, None)
            self.passed.discard(member)
            self.silent.discard(member)
            self._free(member)
        self.passed.update(self.members.keys() & record.get("passed", ()))
        for member in self.members.keys() & record.get("silent", ()):
            self.silent.add(member)
            self._free(member)
        if "back" in record:
            self.passed.discard(record["member"])
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
                # An operator who moves a cursor does not become its owner.
                self.engine = "engine" in record
        for place in _places(record.get("forget", ())):
            self.cursors.pop(place, None)
            self.lost.pop(place, None)
        for topic, partition, count in record.get("lost", ()):
            self.lost[topic, partition] = self.lost.get((topic, partition), 0) + count

    def _free(self, member: str) -> None:
        for place in [place for place, owner in self.owners.items() if owner.member == member]:
            del self.owners[place]

    def _restore(self, snapshot: Mapping[str, Any]) -> None:
        self.members = {member.id: member for member in map(_member, snapshot["members"])}
        self.owners = {(topic, part): Owner(member, epoch) for topic, part, member, epoch in snapshot["owners"]}
        self.cursors = {(topic, part): cursor for topic, part, cursor in snapshot["cursors"]}
        self.lost = {(topic, part): count for topic, part, count in snapshot["lost"]}
        self.passed, self.silent = set(snapshot["passed"]), set(snapshot["silent"])
        self.topics = dict.fromkeys(snapshot["topics"])
        self.moved_us = snapshot["moved"]
        self.engine = snapshot.get("engine", False)

    def snapshot(self, alive: Container[int]) -> NewRecords:
        """Return a record that replaces all before it, without what was stored for topics that are not alive."""
        snapshot = {
            "members": [member._asdict() for member in self.members.values()],
            "owners": [(*place, *owner) for place, owner in self.owners.items() if place[0] in alive],
            "cursors": [(*place, cursor) for place, cursor in self.cursors.items() if place[0] in alive],
            "lost": [(*place, count) for place, count in self.lost.items() if place[0] in alive],
            "passed": sorted(self.passed),
            "silent": sorted(self.silent),
            "topics": list(self.topics),
            "moved": self.moved_us,
            "engine": self.engine,
        }
        return NewRecords([encode({"snapshot": snapshot})])

    def owned_by(self, member: str) -> dict[Place, int]:
        """Return the partitions of a member, with their epochs."""
        return {place: owner.epoch for place, owner in self.owners.items() if owner.member == member}


def encode(record: Mapping[str, Any]) -> bytes:
    """Return the value of a record; empty fields are left out."""
    kept = {name: content for name, content in record.items() if content or name == "snapshot"}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False).encode()


def _member(stored: Mapping[str, Any]) -> MemberInfo:
    bound = stored.get("max_processing")
    max_processing = None if bound is None else float(bound)
    topics = tuple(stored["topics"])
    return MemberInfo(stored["id"], stored["host"], stored["pid"], stored["since"], topics, max_processing)


def _places(listed: Iterable[Iterable[int]]) -> list[Place]:
    return [(topic, partition) for topic, partition in listed]
