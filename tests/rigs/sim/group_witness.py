"""The witness of groups: what members were handed, what was promised to be stored, and what a log must therefore show.

A stored cursor lies between two bounds. Below is what a member was told is stored; above is what was handed out and
processed, so that no record is skipped. Groups are told apart by the id of their topic, never by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.rigs.sim.witness import Finding, Found, Key, Witness

# What a step of an exactly-once loop makes of an input: its partition, its offset, its value.
OUTPUT = b"%d@%d="


@dataclass(eq=False)
class Turn:
    """One consumer from its first record to its end."""

    name: str
    group: str
    commit: str
    # Something went wrong: what it was handed and did not store comes again.
    excused: bool = False
    # The id of the member that was handed its records.
    member: str | None = None
    # What it had in hand when it was closed.
    in_hand: set[tuple[Key, int]] = field(default_factory=set)


@dataclass
class Bounds:
    """Where the cursor of one partition may stand."""

    low: int = 0
    high: int = 0
    # What is on disk, though a member was told that it cannot be seen yet.
    committed: int = 0


@dataclass
class Ahead:
    """A call under way that stores cursors before it hands out the records below them."""

    count: int
    # Where it may: the groups that its process has joined.
    groups: set[int]


@dataclass
class GroupWitness:
    """What was attempted and what was promised, by all processes and over all boots of one simulated machine."""

    records: Witness = field(default_factory=Witness)
    bounds: dict[int, dict[Key, Bounds]] = field(default_factory=dict)
    # By group and partition: who was handed what.
    handed: dict[tuple[int, Key], dict[int, tuple[Turn, bytes]]] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    # Groups that read each input into exactly one output, with the topic of their outputs.
    exact: dict[int, str] = field(default_factory=dict)
    # Members that an operator takes away, or may have.
    evicting: set[str] = field(default_factory=set)
    # Groups whose cursors an operator moves, or may have moved.
    resetting: set[int] = field(default_factory=set)
    # Members that may have stored cursors for records which they could not hand out, and take them back.
    undone: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    # By group: the owner of each partition, as the audit reads it from the records of the group's topic.
    owners: dict[int, dict[Key, str]] = field(default_factory=dict)
    # By process.
    ahead: dict[int, Ahead] = field(default_factory=dict)

    def say(self, text: str) -> None:
        self.broken.append(text)

    def copy(self) -> GroupWitness:
        """A witness of its own for what happens on one of several futures."""
        return GroupWitness(
            self.records.copy(),
            {
                group: {place: replace(each) for place, each in bounds.items()}
                for group, bounds in self.bounds.items()
            },
            {key: dict(handed) for key, handed in self.handed.items()}, list(self.turns),
            dict(self.exact), set(self.evicting), set(self.resetting), set(self.undone), list(self.broken),
            {group: dict(owners) for group, owners in self.owners.items()},
            {process: replace(call, groups=set(call.groups)) for process, call in self.ahead.items()},
        )  # fmt: skip

    # What members tell.

    def turn(self, name: str, group: str, commit: str) -> Turn:
        """Somebody begins to read."""
        turn = Turn(name, group, commit)
        self.turns.append(turn)
        return turn

    def evict(self, group: str) -> None:
        """Everybody who reads for a group may find that it does not any more."""
        for turn in self.turns:
            turn.excused |= turn.group == group

    def silenced(self, member: str) -> None:
        """Excuse the turns of a member that lost its partitions by silence, one that stands in its close included."""
        for turn in self.turns:
            turn.excused |= turn.member == member

    def at(self, group: int, place: Key) -> Bounds:
        return self.bounds.setdefault(group, {}).setdefault(place, Bounds())

    def stored(self, group: int, positions: Mapping[Key, int]) -> None:
        """A member was told that these are stored."""
        for place, offset in positions.items():
            bounds = self.at(group, place)
            bounds.low, bounds.high = max(bounds.low, offset), max(bounds.high, offset)

    def storing(self, group: int, positions: Mapping[Key, int]) -> None:
        """A member may store these from now on."""
        for place, offset in positions.items():
            bounds = self.at(group, place)
            bounds.high = max(bounds.high, offset)

    def committed(self, group: int, positions: Mapping[Key, int]) -> None:
        """A member was told that these are on disk and cannot be seen."""
        for place, offset in positions.items():
            bounds = self.at(group, place)
            bounds.committed = max(bounds.committed, offset)

    def ask(self, process: int, count: int, group: int | None) -> None:
        """A member asks for so many records, whose cursors are stored before it has them; it may be no member yet."""
        self.ahead[process] = Ahead(count, set() if group is None else {group})

    def joined(self, group: int, process: int) -> None:
        """A process sat down: in the group that has the name then, which need not be the one that it found at first."""
        call = self.ahead.get(process)
        if call is not None:
            call.groups.add(group)

    def answered(self, process: int, positions: Mapping[Key, int] | None) -> None:
        """A call is over and handed out all that it stored; without positions it broke off, and nobody knows."""
        call = self.ahead.pop(process)
        places = [(topic, index) for topic, count in self.records.topics.items() for index in range(count)]
        for group in call.groups:
            self.storing(group, positions or {})
            for place in places if positions is None else ():
                self.at(group, place).high += call.count

    def high(self, group: int, place: Key) -> int:
        """The highest cursor that may be stored now."""
        return self.at(group, place).high + sum(call.count for call in self.ahead.values() if group in call.groups)

    def _leave(self, group: int) -> None:
        """Nobody is a member any more: whoever asks must join again before it stores anything."""
        for call in self.ahead.values():
            call.groups.discard(group)

    def is_fenced(self, group: int, place: Key, member: str | None) -> bool:
        """Whether a partition is another member's by now, or free; also where no audit says whose it is."""
        return group not in self.owners or self.owners[group].get(place) != member

    def is_free(self, group: int, place: Key) -> bool:
        """Whether the audit says that a partition has no owner."""
        return group in self.owners and place not in self.owners[group]

    def hand(self, group: int, turn: Turn, place: Key, offset: int, value: bytes, member: str | None = None) -> None:
        """A member was handed a record."""
        known = self.handed.setdefault((group, place), {})
        before = known.get(offset)
        # A member that was evicted hands out what it has at hand until it notices, and can store nothing for it. That
        # is no excuse for a partition which it owns, nor for one that stores a cursor before it hands out the record.
        late = turn.excused and turn.commit != "before" and self.is_fenced(group, place, member)
        if offset < self.at(group, place).low and not late:
            self.say(f"{turn.name} was handed {place}@{offset}, and {self.at(group, place).low} was stored")
        if before is not None:
            earlier, shown = before
            if shown != value:
                self.say(f"{place}@{offset} was {shown[:7]!r} and is now {value[:7]!r}")
            allowed = earlier.excused or (place, offset) in earlier.in_hand or group in self.resetting
            if (earlier.commit == "before" or not allowed) and not late:
                self.say(f"{place}@{offset} was handed to {earlier.name} and again to {turn.name}")
        if before is None or not late:
            known[offset] = (turn, value)

    def read_once(self, group: int, place: Key) -> int:
        """Behind the last record that was handed out and must not be again, because its cursor was stored before."""
        handed = self.handed.get((group, place), {})
        return max((offset + 1 for offset, (turn, _) in handed.items() if turn.commit == "before"), default=0)

    def reset(self, group: int, positions: Mapping[Key, int], *, done: bool) -> None:
        """An operator moves cursors; until that is published both the old and the new ones may stand."""
        if done:
            self._leave(group)
        for place, offset in positions.items():
            bounds = self.at(group, place)
            if done:
                bounds.low = bounds.high = offset
            else:
                bounds.low, bounds.high = min(bounds.low, offset), max(bounds.high, offset)
            self.handed.pop((group, place), None)

    def forget(self, group: int) -> None:
        """The group was dropped."""
        self._leave(group)
        self.bounds.pop(group, None)
        self.exact.pop(group, None)
        for key in [key for key in self.handed if key[0] == group]:
            del self.handed[key]

    def settle(self, group: int, cursors: Mapping[Key, int], found: Found) -> None:
        """Everybody died and this is what was left: it must stay, and offsets behind the ends will be given again."""
        self._leave(group)
        self.resetting.discard(group)
        for place in self.bounds.get(group, {}).keys() | cursors.keys():
            cursor = cursors.get(place, 0)
            self.bounds.setdefault(group, {})[place] = Bounds(cursor, cursor)
        for (owner, place), handed in self.handed.items():
            if owner == group:
                end = found[place].end if place in found else 0
                # Not the turns themselves, which go on in other futures.
                kept = [(offset, shown) for offset, shown in handed.items() if offset < end]
                self.handed[owner, place] = {at: (replace(turn, excused=True), value) for at, (turn, value) in kept}

    # What a log must show.

    def compare(self, group: int, cursors: Mapping[Key, int], found: Found, *, cut: bool) -> Finding | None:
        """Whether the cursors of a group are what was promised: none lost, none ahead of the log, none too far."""
        for place, cursor in cursors.items():
            if place in found and cursor > found[place].end:
                return Finding(f"the cursor {cursor} of {place} is ahead of the log, which ends at {found[place].end}")
        for place, bounds in self.bounds.get(group, {}).items():
            if place[0] in self.records.dropping:
                continue
            cursor = cursors.get(place, 0)
            low = max(bounds.low, bounds.committed if cut else 0)
            if cursor < low:
                return Finding(f"{place} was stored as {low} and is {cursor}", low - cursor)
            high = self.high(group, place)
            if cursor > high:
                return Finding(f"{place} is stored as {cursor}, and no more than {high} was processed")
        unknown = {place: cursor for place, cursor in cursors.items() if cursor > self.high(group, place)}
        return Finding(f"cursors that nobody stored: {unknown}") if unknown else None


def compare_outputs(cursors: Mapping[Key, int], topic: int, found: Found, out: Found) -> Finding | None:
    """Every input below its cursor has one output and no other has, in the order of each partition."""
    made: dict[int, list[int]] = {}
    for contents in out.values():
        for value in contents.records.values():
            place, _, original = value.partition(b"=")
            index, offset = (int(number) for number in place.split(b"@"))
            made.setdefault(index, []).append(offset)
            source = found.get((topic, index))
            if source is None or source.records.get(offset) != original:
                return Finding(f"the output {value[:20]!r} was made of a record that is not there")
    for key in found:
        if key[0] == topic:
            offsets = made.get(key[1], [])
            if offsets != list(range(cursors.get(key, 0))):
                return Finding(f"the cursor of {key} is {cursors.get(key, 0)}, and outputs are there of {offsets}")
    return None
