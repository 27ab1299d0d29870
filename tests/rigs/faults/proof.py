"""The proof of a run with groups: from the notes of members and writers, the witness's copy, and the log itself.

The group's topic says who owned a partition from which record to which, and where the cursor stood at both ends. Such a
stretch must begin where the one before it ended. What its owner noted must begin there too and go on without a gap. A
stretch that ended in good order was handed out exactly as far as it was committed; one that ended by a kill or an
eviction may have been handed out further, and only that may come twice. So nothing is missed when every stretch holds
and the last cursor stands at the end.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import tailrace
from tailrace.groups.group_topic import find_group
from tailrace.groups.state import GroupState, Place, encode
from tests.rigs.faults.members import DOOMED, GROUP, OUTPUT, STRICT_FILE
from tests.rigs.faults.notes import read_notes
from tests.rigs.faults.witness import testimony

KILLED, EVICTED, LEFT, GAVE = "killed", "evicted", "left", "gave"
# A loop that another thread closes may have been handed one record more than the one in hand.
BATCHES_IN_HAND_MAX = 2


@dataclass
class Stretch:
    """One partition with one owner: from the record that took it to the record that ended it."""

    place: Place
    member: str
    epoch: int
    first: int
    # Where the cursor stood at the end, and how it ended.
    stop: int = -1
    ended: str = ""
    until: int = -1
    handed: int = -1


@dataclass
class Run:
    """What one member was handed of one partition at a time, from its notes."""

    batch: int
    place: Place
    first: int
    count: int
    check: int
    done: bool


@dataclass
class Life:
    """One process of a member, from its notes."""

    name: str
    pid: int
    runs: dict[str, list[Run]] = field(default_factory=dict)
    # The newest batch, by membership, and the newest whose commit was seen to succeed.
    newest: dict[str, int] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)


@dataclass
class Facts:
    """What the controller did and what the topics are."""

    ids: dict[str, int]
    ends: dict[Place, int]
    killed: set[int] = field(default_factory=set)
    evicted: set[str] = field(default_factory=set)


class Proof:
    """Everything that is compared; `faults` says in words what must not have happened."""

    def __init__(self, home: Path, log: tailrace.Log) -> None:
        self.home = home
        self.log = log
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        catalog = log.engine.refresh()
        self.facts = Facts(
            {name: entry.id for name, entry in catalog.by_name.items()},
            {
                (entry.id, index): log.engine.partition(entry, index).end
                for entry in catalog.by_name.values()
                for index in range(len(entry.slots))
                if not entry.name.startswith("__") and entry.name not in (OUTPUT, DOOMED)
            },
        )
        self.names = {topic: name for name, topic in self.facts.ids.items()}
        for note in read_notes(home / "controller.notes"):
            if "killed" in note:
                self.facts.killed.add(note["killed"])
            if "evicted" in note:
                self.facts.evicted.add(note["evicted"])
        self.lives = [self._read_life(path) for path in sorted(home.glob("*.member"))]
        self.pids: dict[str, int] = {}
        self.strict = (home / STRICT_FILE).exists()
        self.stretches: list[Stretch] = []

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def where(self, place: Place) -> str:
        return f"{self.names.get(place[0], place[0])}[{place[1]}]"

    def run(self) -> None:
        self._replay()
        self._check_stretches()
        self._check_notes()
        self._check_values()
        self._check_acknowledged()
        self._check_output()
        self._check_end()

    # The notes.

    def _read_life(self, path: Path) -> Life:
        notes = [*read_notes(path)]
        life = Life(path.stem, notes[0]["pid"] if notes else 0)
        done = {note["done"] for note in notes if "done" in note}
        for note in notes:
            if "handed" in note:
                membership, batch = note["membership"], note["handed"]
                life.newest[membership] = batch
                for topic, partition, first, count, check in note["runs"]:
                    if topic == DOOMED:
                        continue
                    place = (self.facts.ids[topic], partition)
                    life.runs.setdefault(membership, []).append(Run(batch, place, first, count, check, batch in done))
                    self.counts["handed"] += count
            elif "committed" in note and note["membership"] is not None:
                life.committed[note["membership"]] = note["committed"]
                self.counts["commits seen"] += 1
            elif "closing" in note:
                life.closed.add(note["closing"])
            elif "lost" in note:
                life.lost.append(note["lost"])
                self.counts["refused"] += 1
                self.counts[f"refused at {note['lost']}"] += 1
        return life

    # The group's topic.

    def _replay(self) -> None:
        """Follow the group's records, and note every stretch of ownership."""
        state = GroupState()
        open_stretches: dict[Place, Stretch] = {}
        for offset, time, record in testimony(self.home):
            if offset != state.offset:
                self.fault(f"the witness saw {offset} after {state.offset - 1}")
            if "snapshot" in record:
                self._check_snapshot(state, offset, record)
            self._check_writer(state, offset, record)
            before = dict(state.owners)
            state.apply(offset, time, encode(record))
            self._follow(state, offset, record, before, open_stretches)
        for place, stretch in open_stretches.items():
            self.fault(f"{self.where(place)} is still owned by {stretch.member}")
        self.counts["group records"] = state.offset
        found = find_group(self.log.engine, GROUP)
        assert found is not None
        now = found.view()
        for field_name in ("members", "owners", "cursors", "offset"):
            if getattr(now, field_name) != getattr(state, field_name):
                self.fault(f"the group's {field_name} are not what its records add up to")

    def _check_snapshot(self, state: GroupState, offset: int, record: dict[str, Any]) -> None:
        self.counts["snapshots"] += 1
        (value,) = state.snapshot({topic for topic, _ in [*state.owners, *state.cursors]}).values
        wanted = json.loads(value)["snapshot"]
        for name in ("members", "owners", "cursors"):
            # What was stored of a topic that was dropped before the snapshot is not in it.
            told, computed = (
                [each for each in some[name] if name == "members" or each[0] in self.names]
                for some in (record["snapshot"], wanted)
            )
            if told != computed:
                self.fault(f"the {name} of the snapshot at {offset} are not what the records before it add up to")

    def _check_writer(self, state: GroupState, offset: int, record: dict[str, Any]) -> None:
        """Whoever moves a cursor, gives or takes must be who owns it, or be allowed to."""
        writer = record.get("by", record.get("member"))
        for at, (topic, partition, cursor) in enumerate(record.get("moves", ())):
            place = (topic, partition)
            owner = state.owners.get(place)
            self.counts["moves"] += 1
            if "join" in record:
                self.fault(f"{offset}: a join moved {self.where(place)}, which nobody asked for")
            elif owner is None and topic not in self.names:
                # The topic was dropped, so a snapshot left its owner out before that one stored what it had read.
                continue
            elif owner is None or owner.member != writer:
                self.fault(f"{offset}: {writer} moved {self.where(place)} to {cursor}, the owner is {owner}")
            elif "epochs" in record and record["epochs"][at] != owner.epoch:
                self.fault(f"{offset}: {writer} moved {self.where(place)} under a former epoch")
            if cursor < state.cursors.get(place, 0):
                self.fault(f"{offset}: {writer} moved {self.where(place)} back to {cursor}")
            if place in self.facts.ends and cursor > self.facts.ends[place]:
                self.fault(f"{offset}: {writer} moved {self.where(place)} beyond its end")
        for place in map(tuple, record.get("give", ())):
            if state.owners[place].member != writer:
                self.fault(f"{offset}: {writer} gave {self.where(place)}, which was not its own")
        for place in map(tuple, record.get("take", ())):
            owner = state.owners.get(place)
            if writer not in state.members:
                self.fault(f"{offset}: {writer} took {self.where(place)} without being a member")
            if owner is not None and owner.member not in record.get("gone", ()):
                self.fault(f"{offset}: {writer} took {self.where(place)} from {owner.member}, who lives")

    def _follow(
        self, state: GroupState, offset: int, record: dict[str, Any], before: dict[Place, Any],
        open_stretches: dict[Place, Stretch],
    ) -> None:  # fmt: skip
        if "join" in record:
            self.pids[record["join"]["id"]] = record["join"]["pid"]
            self.counts["joins"] += 1
        how = {member: self._why_gone(member, record, offset) for member in record.get("gone", ())}
        for place, owner in before.items():
            if state.owners.get(place) == owner:
                continue
            stretch = open_stretches.pop(place)
            # What a record moves, it moves for whoever owned the partition before it.
            stretch.stop = state.cursors.get(place, 0)
            stretch.ended, stretch.until = how.get(owner.member, GAVE), offset
        for place, owner in state.owners.items():
            if before.get(place) != owner:
                stretch = Stretch(place, owner.member, owner.epoch, state.cursors.get(place, 0))
                open_stretches[place] = stretch
                if place in self.facts.ends:
                    self.stretches.append(stretch)

    def _why_gone(self, member: str, record: dict[str, Any], offset: int) -> str:
        writer = record.get("member")
        if writer == member:
            self.counts["left"] += 1
            return LEFT
        if writer is None:
            if member not in self.facts.evicted:
                self.fault(f"{offset}: {member} was evicted by nobody")
            self.counts["evicted"] += 1
            return EVICTED
        if self.pids.get(member) not in self.facts.killed:
            self.fault(f"{offset}: {writer} took {member} for dead, which was not killed")
        self.counts["take-overs"] += 1
        return KILLED

    # Stretches against notes.

    def _check_stretches(self) -> None:
        """Each begins where the one before ended, and was handed out without a gap as far as it may."""
        by_member: dict[str, dict[Place, list[Run]]] = {}
        self.life_of: dict[str, Life] = {}
        for life in self.lives:
            for membership, runs in life.runs.items():
                self.life_of[membership] = life
                for run in runs:
                    by_member.setdefault(membership, {}).setdefault(run.place, []).append(run)
        last: dict[Place, int] = {}
        for stretch in self.stretches:
            place = stretch.place
            if stretch.first != last.get(place, 0):
                self.fault(f"{self.where(place)} was taken at {stretch.first}, left at {last.get(place, 0)}")
            last[place] = stretch.stop
            self._check_stretch(stretch, by_member.get(stretch.member, {}).get(place, []))
        for membership, places in by_member.items():
            for place, runs in places.items():
                if runs:
                    self.fault(f"{membership} was handed {self.where(place)} {runs[0]} outside of what it owned")
        self.last = last

    def _check_stretch(self, stretch: Stretch, runs: list[Run]) -> None:
        """Take from the runs of its owner those that belong to it, in order."""
        where = f"{self.where(stretch.place)} of {stretch.member} from {stretch.epoch} to {stretch.until}"
        following = done = stretch.first
        newest = self.life_of[stretch.member].newest[stretch.member] if stretch.member in self.life_of else 0
        while runs and runs[0].first == following and (stretch.ended != GAVE or following < stretch.stop):
            run = runs.pop(0)
            following = run.first + run.count
            if run.done:
                done = following
            if following > stretch.stop:
                self.counts[f"uncommitted at {stretch.ended}"] += following - max(stretch.stop, run.first)
                in_hand = stretch.ended == LEFT and run.batch > newest - BATCHES_IN_HAND_MAX
                if self.strict or (stretch.ended in (GAVE, LEFT) and not in_hand):
                    self.fault(f"{where} {stretch.ended} at {stretch.stop}, handed out up to {following}: {run}")
        stretch.handed = following
        if self.strict:
            self.counts["unseen at a kill"] += stretch.stop - following
            # One that was stopped, evicted and then killed died with it in hand as well.
            if following < stretch.stop and self.pids.get(stretch.member) not in self.facts.killed:
                self.fault(f"{where} {stretch.ended} at {stretch.stop}, handed out only up to {following}")
        elif done < stretch.stop:
            self.fault(f"{where}: committed up to {stretch.stop}, processed up to {done}")

    def _check_notes(self) -> None:
        """A commit that a member saw succeed is in the group's topic."""
        stops: dict[tuple[str, Place], int] = {}
        for stretch in self.stretches:
            stops[stretch.member, stretch.place] = max(stops.get((stretch.member, stretch.place), 0), stretch.stop)
        for life in self.lives:
            for membership, batch in life.committed.items():
                for run in life.runs.get(membership, ()):
                    if run.batch <= batch and stops.get((membership, run.place), 0) < run.first + run.count:
                        self.fault(
                            f"{membership} saw the commit of {self.where(run.place)} {run} succeed; it is not stored"
                        )
        for membership in self.facts.evicted & self.life_of.keys():
            life = self.life_of[membership]
            if life.pid not in self.facts.killed and not life.lost and membership not in life.closed:
                self.fault(f"{membership} was evicted and never heard of it")

    # The log.

    def _check_values(self) -> None:
        """What was handed out is what the log holds, and twice only where a kill or an eviction explains it."""
        times: dict[Place, list[int]] = {place: [0] * end for place, end in self.facts.ends.items()}
        held = {place: self._values(place) for place in times}
        for life in self.lives:
            for runs in life.runs.values():
                for run in runs:
                    check = 0
                    start, values = held[run.place]
                    for value in values[max(0, run.first - start) : max(0, run.first + run.count - start)]:
                        check = crc32(value, check)
                    if check != run.check and run.first >= start:
                        self.fault(f"{life.name} was handed other values of {self.where(run.place)} {run}")
                    for offset in range(run.first, run.first + run.count):
                        times[run.place][offset] += 1
        explained: dict[Place, list[int]] = {place: [0] * end for place, end in self.facts.ends.items()}
        for stretch in self.stretches:
            for offset in range(stretch.stop, stretch.handed):
                explained[stretch.place][offset] += 1
            for offset in range(stretch.handed, stretch.stop):
                # Only where cursors are stored first: somebody was killed with it in hand.
                explained[stretch.place][offset] -= 1
        for place, counts in times.items():
            for offset, count in enumerate(counts):
                again = count - 1
                self.counts["duplicates"] += max(0, again)
                if count == 0 and not explained[place][offset] < 0:
                    self.counts["missed"] += 1
                    self.fault(f"{self.where(place)}@{offset} was handed out to nobody")
                elif again > max(0, explained[place][offset]):
                    self.counts["doubled"] += 1
                    self.fault(f"{self.where(place)}@{offset} was handed out {count} times")
        self.held = held

    def _values(self, place: Place) -> tuple[int, list[bytes]]:
        """What a partition still holds, and the offset at which that begins: what was read may have been removed."""
        topic = self.log.topic(self.names[place[0]])
        start = topic.offsets()[place[1]].earliest
        self.counts["removed"] += start
        return start, [record.value or b"" for record in topic.read(start, partition=place[1])]

    def _check_acknowledged(self) -> None:
        for path in sorted(self.home.glob("*.writer")):
            for note in read_notes(path):
                for topic, partition, first, values in note["places"]:
                    start, held = self.held[self.facts.ids[topic], partition]
                    self.counts["acknowledged"] += len(values)
                    kept = values[max(0, start - first) :]
                    at = max(0, first - start)
                    if held[at : at + len(kept)] != [value.encode() for value in kept]:
                        self.counts["lost"] += 1
                        self.fault(f"{topic}[{partition}]@{first} was acknowledged and is not there")

    def _check_output(self) -> None:
        """What was written together with cursors is there once."""
        if OUTPUT not in self.facts.ids:
            return
        written = (record.text for record in self.log.topic(OUTPUT).read())
        seen = Counter(text for text in written if not text.startswith(DOOMED))
        self.counts["output"] = len(seen)
        for text, count in seen.items():
            if count > 1:
                self.counts["doubled"] += 1
                self.fault(f"{text} is in the output {count} times")

    def _check_end(self) -> None:
        for place, end in self.facts.ends.items():
            if self.last.get(place, 0) != end:
                self.fault(f"the cursor of {self.where(place)} is {self.last.get(place, 0)}, the end {end}")
        info = self.log.group(GROUP)
        if info.lag_records:
            self.fault(f"the lag is {info.lag_records}")
        if [member.id for member in info.members if member.alive]:
            self.fault(f"members are left: {info.members}")


def prove(home: Path, log: tailrace.Log) -> Proof:
    """Compare everything."""
    proof = Proof(home, log)
    proof.run()
    return proof
