"""Member: a membership in a group, held by a lock file, and the partitions that it is assigned.

A member lives as long as its lock file is locked, which the kernel ends with its process. Which partitions it owns is
written in the group's topic. Every member computes the same assignment from that (assignment.py). One that has too many
partitions gives some back; one that has too few takes free ones, or those of a dead member. No member decides for
another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.failures import Tolerating, by_system
from tailrace.errors import GroupNotFoundError, PartitionLostError
from tailrace.groups.assignment import assign
from tailrace.groups.state import MemberInfo
from tailrace.read.span import matching

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.files import Files
    from tailrace.disk.watch import Watch
    from tailrace.engine.engine import Engine
    from tailrace.groups.group_topic import GroupLog
    from tailrace.groups.state import GroupState, Owner, Place

MEMBERS = "members"
# Whether the others still live is asked at least so often; where the system tells of a death it is asked at once.
LOOK_SECONDS = 0.1
# A file's close is told a moment before its lock is free.
DEATH_RETRY_SECONDS = 0.0005
DEATH_RETRIES_MAX = 20
# A member that is busy looks for events at most this often.
LISTEN_SECONDS = 0.001
UNPLANNED = (-1, -1)


class Stale(Exception):  # noqa: N818  # a state to act on, never shown to a user
    """Somebody else was faster: look again, then decide again."""


class Plan(NamedTuple):
    """What a member should do: give back, take, and wait for others to give."""

    give: list[Place]
    take: list[Place]
    wait: list[Place]
    # Members that are no longer there.
    dead: list[str]
    # Who owned what is to be taken when the plan was made.
    seen: dict[Place, Owner | None]
    # The catalog and the shares that it was made of.
    at: tuple[int, int]


def members_directory(engine: Engine, group_id: int) -> str:
    """Where the lock files of a group's members are."""
    return f"{engine.path}/{MEMBERS}/{group_id:08x}"


def is_alive(files: Files, directory: str, member: str) -> bool:
    """Whether a member's lock file is locked."""
    try:
        descriptor = files.open(f"{directory}/{member}")
    except FileNotFoundError:
        return False
    try:
        return not files.lock(descriptor, shared=True)
    finally:
        files.close(descriptor)


class Member:
    """A place in a group, from `join` to `leave`; one thread at a time."""

    def __init__(self, engine: Engine, group: GroupLog, topics: tuple[str, ...], name: str | None) -> None:
        self.engine = engine
        self.files: Files = engine.files
        self.group = group
        self.topics = topics
        self.directory = members_directory(engine, group.id)
        host, pid = self.files.host_name(), self.files.process_id()
        self.id = f"{name or f'{host}-{pid}'}-{self.files.random_bytes(4).hex()}"
        self.member = MemberInfo(self.id, host, pid, self.files.now_us(), topics)
        self.lock = -1
        self.watch: Watch | None = None
        # The partitions that are this member's, with the epochs that prove it.
        self.epochs: dict[Place, int] = {}
        self.entries: dict[int, TopicEntry] = {}
        # What the last plan was made of that was carried out to its end.
        self.planned = UNPLANNED
        self.looked = self.listened = 0.0
        self.others_alive: frozenset[str] = frozenset()

    # Coming and going.

    def join(self, moves: Mapping[Place, int]) -> None:
        """Sit down; `moves` are first cursors for partitions that the group has none of."""
        try:
            self._lock()
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
            # Whoever dropped it has swept up already, so this membership takes its directory away itself.
            self.release()
            with Tolerating():
                self.files.remove_directory(self.directory)
            raise

    def _lock(self) -> None:
        files = self.files
        files.make_directory(f"{self.engine.path}/{MEMBERS}")
        files.make_directory(self.directory)
        path = f"{self.directory}/{self.id}"
        # From here on `release` gives back what there is. The watch is armed before the first look at anything, so
        # that nothing is missed, and before the lock is taken: Linux closes the highest descriptors of a dead process
        # first, and closing an event queue takes it ten milliseconds, for which the others would wait.
        self.watch = self.engine.watch(self.directory)
        self.lock = files.open(path, exclusive=True)
        if not files.lock(self.lock):
            raise Stale

    def leave(
        self, moves: Mapping[Place, int], epochs: Mapping[Place, int], lost: Iterable[tuple[int, int, int]] = ()
    ) -> None:
        """Say that this member goes, and store how far its partitions were read, and what they lost."""

        def check(state: GroupState) -> None:
            self.check(state, epochs)

        record = {"gone": [self.id], "member": self.id, "moves": _listed(moves), "lost": list(lost)}
        self.group.append(record, check, durable=bool(moves))

    def release(self) -> None:
        """Let go of the lock file; to the others that looks like a death. Safe to repeat after an interrupt."""
        self.epochs = {}
        if self.watch is not None:
            self.watch.close()
            self.watch = None
        if self.lock >= 0:
            try:
                self.files.remove_file(f"{self.directory}/{self.id}")
            except by_system():
                # Somebody swept up after the whole group; or it cannot be removed now, and whoever takes over does it.
                pass
            # Nothing is called between these two, so that no interrupt parts them.
            lock, self.lock = self.lock, -1
            self.files.close(lock)

    def forget(self) -> None:
        """In a forked child: close what was inherited without unlocking, which would unlock the parent."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            self.files.close(lock)
        if self.watch is not None:
            self.watch.close()
        self.watch = None

    # Sharing.

    def attend(self) -> bool:
        """Whether shares may have changed since the last plan; cheap enough to be asked before every read."""
        if self.planned != (self.engine.refresh().offset, self.group.follow().version):
            return True
        now = self.files.monotonic()
        if now - self.listened > LISTEN_SECONDS and self.watch is not None:
            # Whoever always finds something to read never waits, and would not hear of a death.
            self.listened = now
            self.watch.wait(0.0)
        parted = self.watch is not None and self.watch.parted()
        if parted or now - self.looked > LOOK_SECONDS:
            return self._living(self.group.view().members, parted) != self.others_alive
        return False

    def _living(self, members: Iterable[str], parted: bool = False) -> frozenset[str]:
        """The other members that are alive."""
        self.looked = self.files.monotonic()
        others = [member for member in members if member != self.id]
        alive: frozenset[str] = frozenset()
        for _ in range(DEATH_RETRIES_MAX if parted else 1):
            # rule: living members
            alive = frozenset(member for member in others if is_alive(self.files, self.directory, member))
            if alive != self.others_alive or not parted:
                break
            self.files.sleep(DEATH_RETRY_SECONDS)
        return alive

    def plan(self) -> Plan:
        """What to do, by the state as of now."""
        if not self.group.partition.alive:
            raise self.group.dropped()
        catalog = self.engine.refresh()
        offset = catalog.offset
        state = self.group.view()
        if self.id not in state.members:
            raise self._evicted()
        self.epochs = state.owned_by(self.id)
        alive = self.others_alive = self._living(state.members)
        members = [member for member in state.members.values() if member.id in alive or member.id == self.id]
        eligible = self._eligible(members)
        owners = {
            place: owner.member
            for place, owner in state.owners.items()
            if owner.member in alive or owner.member == self.id
        }
        target = assign(eligible, owners)
        mine = sorted(place for place, member in target.items() if member == self.id)
        take = [place for place in mine if place not in owners]
        return Plan(
            give=sorted(place for place in self.epochs if target.get(place) != self.id),
            take=take,
            wait=[place for place in mine if owners.get(place, self.id) != self.id],
            dead=sorted(set(state.members) - alive - {self.id}),
            seen={place: state.owners.get(place) for place in take},
            at=(offset, state.version),
        )

    def _eligible(self, members: Iterable[MemberInfo]) -> dict[Place, frozenset[str]]:
        """Who may read which partition: by the names and patterns that each member asked for."""
        wanted: dict[tuple[str, ...], set[str]] = {}
        for member in members:
            wanted.setdefault(member.topics, set()).add(member.id)
        readers: dict[int, set[str]] = {}
        entries: dict[int, TopicEntry] = {}
        for topics, ids in wanted.items():
            for entry in matching(self.engine, topics):
                readers.setdefault(entry.id, set()).update(ids)
                entries[entry.id] = entry
        self.entries = entries
        return {
            (entry.id, index): frozenset(readers[entry.id])
            for entry in entries.values()
            for index in range(len(entry.slots))
        }

    def take(self, plan: Plan) -> None:
        """Become the owner of partitions that are free; Stale when one of them is not, or a dead member is gone."""

        def check(state: GroupState) -> None:
            # One of the dead may have left in order, or somebody else has written that it is gone.
            known = self.id in state.members and all(member in state.members for member in plan.dead)
            if not known or any(state.owners.get(place) != owner for place, owner in plan.seen.items()):
                raise Stale  # rule: free partitions

        self._sweep(plan.dead)
        record = {"member": self.id, "take": plan.take, "gone": plan.dead}  # rule: dead before inherited
        self.group.append(record, check, durable=False)
        self.epochs = self.group.view().owned_by(self.id)

    def remove_dead(self, dead: Iterable[str]) -> None:
        """Write down that members are gone who had nothing to take over; Stale when somebody else did."""
        gone = list(dead)

        def check(state: GroupState) -> None:
            if self.id not in state.members or not all(member in state.members for member in gone):
                raise Stale

        self._sweep(gone)
        self.group.append({"member": self.id, "gone": gone}, check, durable=False)

    def give(
        self, places: Iterable[Place], moves: Mapping[Place, int], lost: Iterable[tuple[int, int, int]] = ()
    ) -> None:
        """Give partitions back, and store how far they were read, and what they lost; Stale when one is not owned."""
        given = list(places)

        def check(state: GroupState) -> None:
            if any(state.owners.get(place) != (self.id, self.epochs.get(place)) for place in given):
                raise Stale

        record = {"member": self.id, "give": given, "moves": _listed(moves), "lost": list(lost)}
        self.group.append(record, check, durable=bool(moves))
        self.epochs = self.group.view().owned_by(self.id)

    def recall(self) -> None:
        """Learn which partitions are this member's, as the group knows it now."""
        state = self.group.view()
        if self.id not in state.members:
            raise self._evicted()
        self.epochs = state.owned_by(self.id)

    def _sweep(self, dead: Iterable[str]) -> None:
        """Remove the lock files of the dead; before it is written that they are gone, as nobody looks for them then."""
        for member in dead:
            try:
                self.files.remove_file(f"{self.directory}/{member}")
            except by_system():
                # An empty file that nobody locks tells nobody anything.
                continue

    # Committing.

    def check(self, state: GroupState, epochs: Mapping[Place, int]) -> None:
        """Refuse to store anything for a partition that this member does not own any more.

        The epochs are those by which it owned the partitions when it read what is to be stored: somebody else may have
        had one of them since, also when it is this member's again.
        """
        lost = [
            place for place, epoch in epochs.items()
            if state.owners.get(place) != (self.id, epoch) and not self._dropped(state, place)
        ]  # fmt: skip
        if lost:  # rule: epoch of an owner
            raise self.lost(lost)

    def _dropped(self, state: GroupState, place: Place) -> bool:
        """Whether nobody owns a partition because its topic is gone, which takes nothing away from this member.

        A snapshot leaves out what was dropped. Otherwise a partition becomes free by being given back, which an
        interrupt may have kept from this member, and then others may have read it since.
        """
        if place in state.owners or self.id not in state.members:
            return False
        # Not the engine's way to the newest catalog, which may wait: this is called under a partition's lock.
        return place[0] not in self.engine.store.refresh().by_id

    def _evicted(self) -> PartitionLostError:
        lost = sorted(self.epochs)
        if lost:
            return self.lost(lost)
        return PartitionLostError(
            f"The member {self.id} was evicted from the group {self.group.name!r}.", group=self.group.name
        )

    def lost(self, places: Iterable[Place]) -> PartitionLostError:
        """The error for partitions that this member does not own any more."""
        # Not the newest catalog: this may be called under a partition's lock, where nothing is waited for.
        entries = self.entries
        named = tuple((entries[topic].name, index) for topic, index in places if topic in entries)
        told = ", ".join(f"{name}[{index}]" for name, index in named[:4]) or "partitions of a dropped topic"
        more = f" and {len(named) - 4} more" if len(named) > 4 else ""
        return PartitionLostError(
            f"The member {self.id} of the group {self.group.name!r} no longer owns {told}{more}.",
            group=self.group.name,
            partitions=named,
        )


def _listed(moves: Mapping[Place, int]) -> list[tuple[int, int, int]]:
    return [(*place, cursor) for place, cursor in moves.items()]
