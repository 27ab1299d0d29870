"""The audit of groups: the records of a group's topic, read as they are published and judged by rules of their own.

Nothing here uses the library's own idea of a group. A record is looked at before the next operation of any process, so
what the locks and the words say then is what they said when it was published. In the rigs every cursor move is signed
with its member, which the library has no need to store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from tailrace.disk.store import Store
from tailrace.disk.tails import END
from tailrace.groups.member import Member
from tests.rigs.sim.disk import Disk
from tests.rigs.sim.engine import open_store
from tests.rigs.sim.group_witness import GroupWitness
from tests.rigs.sim.inode import File
from tests.rigs.sim.invariants import Invariants
from tests.rigs.sim.process import OpenFile, Process
from tests.rigs.sim.witness import Finding, Key

GROUP_PREFIX = "__group."
# What max_processing is by default.
SILENT_US = 300_000_000


@contextmanager
def signed() -> Iterator[None]:
    """Let every commit name its member."""
    plain = Member.record

    def record(member: Member, moves: Mapping[Key, int], lost: Iterable[tuple[int, int, int]] = ()) -> dict[str, Any]:
        return {"member": member.id, **plain(member, moves, lost)}

    Member.record = record  # type: ignore[method-assign]
    try:
        yield
    finally:
        Member.record = plain  # type: ignore[method-assign]


class Unseen:
    """A disk whose operations are nobody's: they count for nothing and let nobody run."""

    scheduler = None

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.clock_us = disk.clock_us
        self.descriptor = 0
        self.processes: list[Process] = []

    def step(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name)


def unseen_store(disk: Disk) -> Store:
    """A store that reads a live log without an operation."""
    return open_store(Process(cast(Disk, Unseen(disk)), "auditor"), mode="r")


def values_of(store: Store, slot: int, start: int, end: int) -> list[tuple[int, bytes]]:
    """The records of one partition with their offsets."""
    partition = store.partition(slot)
    reader = store.reader(partition)
    try:
        return [
            (column.offset(at), column.value(at) or b"")
            for column in map(reader.columns, reader.frames(start, end))
            for at in range(column.index_at(start), column.index_at(end))
        ]
    finally:
        reader.close()


class Replay:
    """What the records of one group add up to, and which of them nobody should have written."""

    def __init__(self) -> None:
        self.offset = 0
        self.members: set[str] = set()
        self.owners: dict[Key, str] = {}
        self.cursors: dict[Key, int] = {}
        # The cursors of partitions when their owners took them.
        self.begun: dict[Key, int] = {}

    def apply(self, offset: int, value: bytes, alive: Collection[int]) -> list[str]:
        """Take in a record; what is wrong with it by itself. A snapshot is of the topics that are `alive`."""
        record = json.loads(value)
        first, follows = not self.offset, offset == self.offset
        self.offset = offset + 1
        if "snapshot" in record:
            return self._restore(record["snapshot"], None if first else alive)
        return [*([] if follows else [f"there is no snapshot before {offset}"]), *self._apply(record)]

    def _apply(self, record: Mapping[str, Any]) -> list[str]:
        wrong = []
        member = record.get("member")
        moves = {(topic, index): cursor for topic, index, cursor in record.get("moves", ())}
        if "join" not in record and member is not None:
            strange = [place for place in moves if self.owners.get(place) != member]
            if strange:
                owners = [self.owners.get(place) for place in strange]
                wrong.append(f"{member} stored cursors of {strange}, which are {owners}'s")
            if member not in self.members and (moves or "take" in record or "give" in record):
                wrong.append(f"{member} wrote {record} and is no member")
        for gone in record.get("gone", ()):
            self.members.discard(gone)
            self.owners = {place: owner for place, owner in self.owners.items() if owner != gone}
        for silent in record.get("silent", ()):
            self.owners = {place: owner for place, owner in self.owners.items() if owner != silent}
        if "join" in record:
            wrong += [f"a newcomer moves {place}" for place in moves if place in self.cursors]
            self.members.add(record["join"]["id"])
        for place in map(tuple, record.get("give", ())):
            if self.owners.pop(place, None) != member:
                wrong.append(f"{member} gave {place}, which it had not")
        for place in map(tuple, record.get("take", ())):
            if place in self.owners:
                wrong.append(f"{member} took {place} from {self.owners[place]}")
            self.owners[place] = str(member)
            self.begun[place] = self.cursors.get(place, 0)
        if member is None and "join" not in record:
            wrong += [f"cursors were reset under {self.owners[place]}" for place in moves if place in self.owners]
        self.cursors.update(moves)
        return wrong

    def _restore(self, snapshot: Mapping[str, Any], alive: Collection[int] | None) -> list[str]:
        members = {member["id"] for member in snapshot["members"]}
        owners = {(topic, index): member for topic, index, member, _ in snapshot["owners"]}
        cursors = {(topic, index): cursor for topic, index, cursor in snapshot["cursors"]}
        wrong = []
        if alive is not None:
            for what, mine, theirs in (("owners", self.owners, owners), ("cursors", self.cursors, cursors)):
                known: Mapping[Key, object] = {place: each for place, each in mine.items() if place[0] in alive}
                if known != {place: each for place, each in theirs.items() if place[0] in alive}:
                    wrong.append(f"a snapshot has {what} {theirs} instead of {mine}")
            if members != self.members:
                wrong.append(f"a snapshot has members {members} instead of {self.members}")
        self.members, self.owners, self.cursors = members, owners, cursors
        return wrong


class GroupAudit:
    """An observer of one boot of a machine: the engine's invariants, and every record of every group."""

    def __init__(self, disk: Disk, witness: GroupWitness) -> None:
        self.disk = disk
        self.witness = witness
        self.invariants = Invariants(disk, witness.records)
        self.replays: dict[int, Replay] = {}
        self.broken: list[str] = []
        # Told of each member that loses its partitions because it does not poll.
        self.on_silent: Callable[[str], None] | None = None
        # How many records of groups were judged.
        self.judged = 0
        self._store: Store | None = None
        self._slots: object = None
        disk.observer = self

    def begin(self) -> None:
        """The log is there: judge what is published from now on."""
        self._store = store = unseen_store(self.disk)
        self.invariants.look()
        for entry in list(store.refresh().by_name.values()):
            if entry.name.startswith(GROUP_PREFIX):
                partition, replay = store.partition(entry.slots[0]), Replay()
                for offset, value in values_of(store, entry.slots[0], partition.start, partition.end):
                    replay.apply(offset, value, store.catalog.by_id)
                self.replays[entry.id] = replay
                self.witness.owners[entry.id] = replay.owners

    def __call__(self, process: Process, kind: str, detail: tuple[object, ...]) -> None:
        self.invariants(process, kind, detail)
        self.look()

    def look(self) -> None:
        """Judge what was published since the last look."""
        slots = self.invariants.slots
        if self._store is None or slots is self._slots:
            return
        self._slots = slots
        for entry in list(self._store.refresh().by_name.values()):
            if entry.name.startswith(GROUP_PREFIX) and entry.slots[0] < len(slots):
                end = slots[entry.slots[0]][END]
                replay = self.replays.setdefault(entry.id, Replay())
                if replay.offset < end:
                    self._judge(entry.id, entry.slots[0], replay, end)

    def _judge(self, group: int, slot: int, replay: Replay, end: int) -> None:
        assert self._store is not None
        start = max(replay.offset, self._store.partition(slot).start)
        alive = self._store.refresh().by_id
        for offset, value in values_of(self._store, slot, start, end):
            self.judged += 1
            judged = [*self._deaths(group, value), *self._silences(value), *self._moved(group, replay, value)]
            for wrong in [*judged, *replay.apply(offset, value, alive)]:
                self._say(f"record {offset} of group {group}: {wrong}: {value[:200]!r}")
            self.witness.owners[group] = replay.owners
            self._note_join(group, value)
            self._note_reset(group, value)

    def _note_join(self, group: int, value: bytes) -> None:
        """Tell the witness who sat down, before it can store a cursor."""
        record = json.loads(value)
        if "join" in record:
            self.witness.joined(group, record["join"]["pid"])

    def _note_reset(self, group: int, value: bytes) -> None:
        """Tell the witness that an operator moved cursors, under whoever reads by now."""
        record = json.loads(value)
        if "moves" in record and "member" not in record and "join" not in record:
            assert self._store is not None
            moves = {(topic, index): cursor for topic, index, cursor in record["moves"]}
            self.witness.reset(group, moves, done=True)
            self.witness.evict(self._store.catalog.by_id[group].name.removeprefix(GROUP_PREFIX))

    def _deaths(self, group: int, value: bytes) -> Iterator[str]:
        """Nobody is declared gone who lives, except by an operator."""
        record = json.loads(value)
        for gone in record.get("gone", ()):
            if gone == record.get("member"):
                continue
            if record.get("member") is None and (gone in self.witness.evicting or group in self.witness.resetting):
                continue
            if self._lives(gone):
                yield f"{gone} was declared gone and lives"

    def _silences(self, value: bytes) -> Iterator[str]:
        """Nobody loses its partitions by silence who has polled within its time."""
        for member in json.loads(value).get("silent", ()):
            if self.on_silent is not None:
                self.on_silent(member)
            for file in self._locks(member):
                polled = int.from_bytes(bytes(cast(File, file.inode).data[:8]), "little") >> 1
                if self.disk.clock_us - polled <= SILENT_US:
                    yield f"{member} was declared silent and polls"

    def _locks(self, member: str) -> list[OpenFile]:
        files = [file for process in self.disk.processes for file in process.descriptors.values()]
        return [file for file in files if file.path.endswith(f"/{member}") and file in file.inode.holders]

    def _lives(self, member: str) -> bool:
        return any(file.exclusive for file in self._locks(member))

    def _moved(self, group: int, replay: Replay, value: bytes) -> Iterator[str]:
        """Cursors are safe when they are stored, and go forward unless an operator moves them.

        A member may take back what it stored for records that it could not hand out: not below where it found the
        cursor, nor below any record that was handed out and must not come again.
        """
        record = json.loads(value)
        member = record.get("member")
        for topic, index, cursor in record.get("moves", ()):
            safe = self._safe((topic, index))
            if safe is not None and cursor > safe:
                yield f"the cursor {cursor} of {(topic, index)} is above {safe}, which is safe"
            earlier = lowest = replay.cursors.get((topic, index), 0)
            if member in self.witness.undone:
                begun = replay.begun.get((topic, index), earlier)
                lowest = max(begun, self.witness.read_once(group, (topic, index)))
            if cursor < min(earlier, lowest) and member is not None:
                yield f"the cursor of {(topic, index)} went back from {earlier} to {cursor}"

    def _safe(self, place: Key) -> int | None:
        assert self._store is not None
        entry = self._store.refresh().by_id.get(place[0])
        return None if entry is None else self._store.partition(entry.slots[place[1]]).safe

    def _say(self, text: str) -> None:
        self.broken.append(f"operation {self.disk.steps}: {text}")

    def finding(self) -> Finding | None:
        """The first thing that did not hold, with one more look."""
        found = self.invariants.finding()
        self.look()
        if self.broken or self.witness.broken:
            return Finding([*self.broken, *self.witness.broken][0])
        return found
