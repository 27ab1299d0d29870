"""Member: a reader in a group, under an id and a lock file of its own, and the partitions assigned to it.

A member lives as long as its lock file (lock_file.py) is locked. Which partitions it owns is written in the group's
topic. Every member computes the same assignment from that (assignment.py, plan.py): one that has too many partitions
gives some back; one that has too few takes free ones, or those of a dead member.

A lock does not tell whether its process runs, so the lock file also holds a heartbeat (heartbeat.py). A member that
does not take a free partition of its share within `answer_seconds` is passed over until it polls again. A member that
has not polled for its `max_processing` loses its partitions.

A member reads nothing: a Session (session.py) adds the reading. A server that reads for others needs only `join`,
`poll`, `commit_offsets` and `leave`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from tailrace.disk import Tolerating, by_system
from tailrace.errors import GroupNotFoundError, OffsetOutOfRangeError, PartitionLostError
from tailrace.groups.cursors import make_safe
from tailrace.groups.fencing import evicted, lost_partitions, too_slow
from tailrace.groups.group_topic import Stale
from tailrace.groups.heartbeat import Seen, look
from tailrace.groups.lock_file import LockFile, members_directory
from tailrace.groups.plan import Plan, eligible, make_plan, silent_members
from tailrace.groups.state import MemberInfo

if TYPE_CHECKING:
    from tailrace.disk import Files, TopicEntry
    from tailrace.engine.engine import Engine
    from tailrace.groups.group_topic import GroupLog
    from tailrace.groups.state import GroupState, Place

# The lock files of the others are looked at this often; where the system reports a closed file, at once.
LOOK_SECONDS = 0.1
# The system reports that a file was closed a moment before its lock is free.
DEATH_RETRY_SECONDS = 0.0005
DEATH_RETRIES_MAX = 20
# A member that is busy looks for events at most this often.
LISTEN_SECONDS = 0.001
UNPLANNED = (-1, -1)


class Member:
    """A member from `join` to `leave`; one thread at a time."""

    def __init__(
        self,
        engine: Engine,
        group: GroupLog,
        topics: tuple[str, ...],
        name: str | None = None,
        max_processing: float | None = None,
    ) -> None:
        self.engine = engine
        self.files: Files = engine.files
        self.group = group
        self.topics = topics
        self.directory = members_directory(engine, group.id)
        host, pid = self.files.host_name(), self.files.process_id()
        self.id = f"{name or f'{host}-{pid}'}-{self.files.random_bytes(4).hex()}"
        self.member = MemberInfo(self.id, host, pid, self.files.now_us(), topics, max_processing)
        self.max_processing = max_processing
        self.lock_file = LockFile(engine, self.directory, self.id)
        # The partitions of this member, with the epochs by which it owns them.
        self.epochs: dict[Place, int] = {}
        self.entries: dict[int, TopicEntry] = {}
        # The catalog and the state from which the last completed plan was made.
        self.planned = UNPLANNED
        self.looked = self.listened = 0.0
        self.others_alive: frozenset[str] = frozenset()
        # Other members that are about to take free partitions.
        self.awaited: frozenset[str] = frozenset()
        # Partitions of this member's share that their owners have not given back yet.
        self.waiting: list[Place] = []
        # The cursors of partitions that are being given back, until the caller has stopped reading those.
        self.giving: dict[Place, int] | None = None

    # Joining and leaving.

    def join(self, moves: Mapping[Place, int] = MappingProxyType({})) -> None:
        """Join the group; `moves` are first cursors for partitions that have none in the group."""
        try:
            if not self.lock_file.take():
                raise Stale
        except FileNotFoundError:
            if self.group.partition.alive:
                raise
            raise self.group.dropped() from None

        def check(state: GroupState) -> None:
            if any(place in state.cursors or place in state.owners for place in moves):
                raise Stale

        record = {"join": self.member._asdict(), "moves": _listed(moves)}
        try:
            self.group.append(record, check, durable=bool(moves))
        except GroupNotFoundError:
            # The process that dropped it has removed its files already, so this member removes the directory.
            self.release()
            with Tolerating():
                self.files.remove_directory(self.directory)
            raise

    def resign(self) -> None:
        """Record that this member leaves, and store no cursor."""
        self.group.append({"gone": [self.id], "member": self.id}, durable=False)

    def leave(
        self,
        moves: Mapping[Place, int] = MappingProxyType({}),
        epochs: Mapping[Place, int] = MappingProxyType({}),
        lost: Iterable[tuple[int, int, int]] = (),
    ) -> None:
        """Record that this member leaves, with the cursors of its partitions and the records that they lost.

        The caller calls `release` afterwards, also when this raises.
        """

        def check(state: GroupState) -> None:
            self.check(state, epochs)

        if moves and self.is_overdue():
            raise self.lost(epochs)
        record = {"gone": [self.id], "member": self.id, "moves": _listed(moves), "lost": list(lost)}
        self.group.append(record, check, durable=bool(moves))

    def release(self) -> None:
        """Unlock the lock file, which looks like a death to the others. Safe to repeat after an interrupt."""
        self.epochs = {}
        self.lock_file.release()

    def is_overdue(self) -> bool:
        """Return whether this member has not polled for its `max_processing`, so that it loses its partitions."""
        return self.max_processing is not None and self.lock_file.silent_seconds() > self.max_processing

    # Without a Session: for a server that reads for others.

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The partitions of this member as of its last poll, by topic."""
        return sorted((self.entries[topic].name, index) for topic, index in self.epochs if topic in self.entries)

    def poll(self, done: Mapping[tuple[str, int], int] | None = None) -> list[tuple[str, int]]:
        """Beat, rebalance, and return the partitions of this member.

        `done` are the offsets to store for partitions that have to be given back. Raise PartitionLostError when this
        member was evicted, or has not polled for too long: it cannot be used any more, and another one may join.
        """
        if self.is_overdue():
            raise self._evicted()
        self.lock_file.beat()
        if self.needs_rebalance():
            owned = set(self.assigned)
            self.rebalance(self._places({place: offset for place, offset in (done or {}).items() if place in owned}))
            self.giving = None
        return self.assigned

    def commit_offsets(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Store cursors of this member's partitions, by topic and partition; on disk when this returns."""
        moves = self._places(offsets)
        make_safe(self.engine, moves)
        self.commit(moves, {place: self.epochs.get(place, -1) for place in moves})

    def _places(self, offsets: Mapping[tuple[str, int], int]) -> dict[Place, int]:
        """Return the same offsets by the ids of their topics; each is checked to be within its partition."""
        moves: dict[Place, int] = {}
        for (topic, index), offset in offsets.items():
            entry = self.engine.entry(topic)
            partition = self.engine.partition(entry, index)
            if not partition.start <= offset <= partition.end:
                raise OffsetOutOfRangeError(
                    f"{offset} is not in {topic}[{index}], which holds {partition.start} up to {partition.end}.",
                    earliest=partition.start,
                    latest=partition.end,
                )
            moves[entry.id, index] = offset
        return moves

    # Rebalancing.

    def needs_rebalance(self) -> bool:
        """Return whether the assignment may have changed since the last plan; cheap enough for every read."""
        if self.planned != (self.engine.refresh().offset, self.group.follow().version):
            return True
        now, watch = self.files.monotonic(), self.lock_file.watch
        if now - self.listened > LISTEN_SECONDS and watch is not None:
            # A member that always finds records never waits, and would not learn of a death.
            self.listened = now
            watch.wait(0.0)
        parted = watch is not None and watch.parted()
        if parted or now - self.looked > LOOK_SECONDS:
            state = self.group.view()
            seen = self._look(state.members, parted)
            late = any(
                seen[member].is_late(now, self.engine.tuning.answer_seconds) for member in self.awaited & set(seen)
            )
            return late or seen.keys() != self.others_alive or bool(silent_members(state, seen, now))
        return False

    def _look(self, members: Iterable[str], parted: bool = False) -> dict[str, Seen]:
        """Return the other members that are alive, with their heartbeats."""
        self.looked = self.files.monotonic()
        others = [member for member in members if member != self.id]
        alive: dict[str, Seen] = {}
        for _ in range(DEATH_RETRIES_MAX if parted else 1):
            seen = {member: look(self.files, self.directory, member) for member in others}
            alive = {member: each for member, each in seen.items() if each.locked}  # rule: living members
            if alive.keys() != self.others_alive or not parted:
                break
            self.files.sleep(DEATH_RETRY_SECONDS)
        return alive

    def plan(self) -> Plan:
        """Return what to do, by the state as of now."""
        catalog = self.engine.refresh()
        offset = catalog.offset
        # The catalog shows a drop before the partition does, and this offset of it is not looked at again.
        if self.group.id not in catalog.by_id or not self.group.partition.alive:
            raise self.group.dropped()
        state = self._known()
        seen = self._look(state.members)
        self.others_alive = frozenset(seen)
        members = [member for member in state.members.values() if member.id in seen or member.id == self.id]
        readers, self.entries = eligible(self.engine, members)
        now, answer = self.files.monotonic(), self.engine.tuning.answer_seconds
        plan = make_plan(state, self.id, readers, seen, now, answer, offset)
        self.awaited = plan.awaited
        return plan

    def _known(self) -> GroupState:
        """Return the state as of now, after making sure that this member is in it and is not passed over."""
        while True:
            state = self.group.view()
            if self.id not in state.members or self.id in state.silent:
                raise self._evicted()
            self.epochs = state.owned_by(self.id)
            if self.id not in state.passed:
                return state
            # The others passed this member over while it did not poll.
            self.group.append({"member": self.id, "back": True}, durable=False)

    def rebalance(self, done: Mapping[Place, int], lost: Mapping[Place, int] | None = None) -> None:
        """Give back the partitions that are beyond this member's share, and take free ones up to it.

        `done` has the cursors to store for partitions that are given back, `lost` the number of their records that were
        removed unread.
        """
        self.planned = UNPLANNED
        while True:
            try:
                plan = self.plan()
                if plan.give:
                    moves = {place: done[place] for place in plan.give if place in done}
                    make_safe(self.engine, moves)
                    self.giving = {**(self.giving or {}), **moves}
                    self.give(plan.give, moves, _counts(plan.give, lost or {}))
                if plan.take or plan.dead or plan.passed or plan.silent:
                    self.take(plan)
            except Stale:
                continue
            break
        self.waiting = plan.wait
        # Last, so that a rebalance that fails or is interrupted is repeated.
        self.planned = plan.at

    def take(self, plan: Plan) -> None:
        """Take free partitions, and record which members are dead, passed over or silent.

        Raise Stale when a partition is not free any more, or another member has recorded the same.
        """

        def check(state: GroupState) -> None:
            named = [*plan.dead, *plan.passed, *plan.silent]
            # A member that looks dead may have left by itself.
            known = self.id in state.members and all(member in state.members for member in named)
            if not known or any(state.owners.get(place) != owner for place, owner in plan.seen.items()):
                raise Stale  # rule: free partitions

        self._remove_dead(plan.dead)
        record = {
            "member": self.id, "take": plan.take, "passed": plan.passed, "silent": plan.silent,
            "gone": plan.dead,  # rule: dead before inherited
        }  # fmt: skip
        self.group.append(record, check, durable=False)
        self.epochs = self.group.view().owned_by(self.id)

    def give(
        self, places: Iterable[Place], moves: Mapping[Place, int], lost: Iterable[tuple[int, int, int]] = ()
    ) -> None:
        """Give partitions back, with their cursors and lost records; raise Stale when one is not owned any more."""
        given = list(places)

        def check(state: GroupState) -> None:
            if any(state.owners.get(place) != (self.id, self.epochs.get(place)) for place in given):
                raise Stale

        record = {"member": self.id, "give": given, "moves": _listed(moves), "lost": list(lost)}
        self.group.append(record, check, durable=bool(moves))
        self.epochs = self.group.view().owned_by(self.id)

    def recall(self) -> None:
        """Update which partitions are this member's, by the state of the group as of now."""
        self._known()

    def _remove_dead(self, dead: Iterable[str]) -> None:
        """Remove the lock files of dead members; before the record of it, after which no member looks for them."""
        for member in dead:
            try:
                self.files.remove_file(f"{self.directory}/{member}")
            except by_system():
                # A file without a lock does no harm.
                continue

    # Committing.

    def commit(
        self, moves: Mapping[Place, int], epochs: Mapping[Place, int], lost: Iterable[tuple[int, int, int]] = ()
    ) -> None:
        """Store cursors and lost records of partitions that this member owns by these epochs."""

        def check(state: GroupState) -> None:
            self.check(state, epochs)

        if self.is_overdue():
            raise self.lost(epochs)
        self.group.append(self.record(moves, lost), check, durable=True)  # rule: cursor on disk

    def record(self, moves: Mapping[Place, int], lost: Iterable[tuple[int, int, int]] = ()) -> dict[str, object]:
        """Return the record that stores cursors."""
        return {"moves": _listed(moves), "lost": list(lost)}

    def check(self, state: GroupState, epochs: Mapping[Place, int]) -> None:
        """Fence: raise PartitionLostError unless this member owns the partitions by these epochs.

        The epochs are those of the moment when it read what is to be stored: another member may have owned a partition
        since, also when it is this member's again.
        """
        lost = [
            place for place, epoch in epochs.items()
            if state.owners.get(place) != (self.id, epoch) and not self._dropped(state, place)
        ]  # fmt: skip
        if lost:  # rule: epoch of an owner
            raise self.lost(lost)

    def _dropped(self, state: GroupState, place: Place) -> bool:
        """Return whether a partition has no owner because its topic was dropped, which is no loss to this member.

        A snapshot leaves out dropped topics. Otherwise a partition becomes free by being given back: after an interrupt
        this member may not know that it gave it back, and others may have read it since.
        """
        if place in state.owners or self.id not in state.members:
            return False
        # Not engine.refresh(), which may wait: this is called under a partition's lock.
        return place[0] not in self.engine.store.refresh().by_id

    def _evicted(self) -> PartitionLostError:
        lost = sorted(self.epochs)
        return self.lost(lost) if lost or self.is_overdue() else evicted(self.group.name, self.id)

    def lost(self, places: Iterable[Place]) -> PartitionLostError:
        """Return the error for partitions that this member does not own any more."""
        # Not the newest catalog, which may have to be waited for: this may be called under a partition's lock.
        entries = self.entries
        named = tuple((entries[topic].name, index) for topic, index in places if topic in entries)
        if self.is_overdue() and self.max_processing is not None:
            return too_slow(self.group.name, self.id, named, self.lock_file.silent_seconds(), self.max_processing)
        return lost_partitions(self.group.name, self.id, named)


def _counts(places: Iterable[Place], counts: Mapping[Place, int]) -> list[tuple[int, int, int]]:
    return [(*place, counts[place]) for place in places if place in counts]


def _listed(moves: Mapping[Place, int]) -> list[tuple[int, int, int]]:
    return [(*place, cursor) for place, cursor in moves.items()]
