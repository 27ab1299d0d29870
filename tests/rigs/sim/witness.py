"""The witness: every value that was attempted, what was promised of it, and what a log must therefore show.

Values are unique, so that a record in the wrong place shows. Topics are told apart by id, never by name: a topic that
was dropped and made again is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tailrace.disk.store import Store

# A partition: the id of its topic, and its index.
Key = tuple[int, int]


@dataclass
class Group:
    """Values that were written together: all of them survive or none."""

    parts: dict[Key, list[bytes]]
    durable: bool
    # The offset of the first value of each part, once acknowledged.
    acknowledged: dict[Key, int] = field(default_factory=dict)
    # It is on disk, though the caller was told that it cannot be seen yet.
    committed: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.parts.values()))


@dataclass
class Witness:
    """What was attempted and what was promised, by all processes and over all boots of one simulated machine."""

    groups: list[Group] = field(default_factory=list)
    number: int = 0
    # How many partitions each topic has at least, by id.
    topics: dict[int, int] = field(default_factory=dict)
    # Drops that were begun, and those that were acknowledged.
    dropping: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    trimming: dict[Key, int] = field(default_factory=dict)
    trimmed: dict[Key, int] = field(default_factory=dict)
    # The highest `safe` that was ever to be seen: what lies below it is on disk for ever.
    safe: dict[Key, int] = field(default_factory=dict)

    def values(self, count: int, size: int = 0) -> list[bytes]:
        first = self.number
        self.number += count
        return [b"v%06d" % value + b"." * size for value in range(first, first + count)]

    def attempt(self, parts: dict[Key, list[bytes]], durable: bool) -> Group:
        group = Group(parts, durable)
        self.groups.append(group)
        return group

    def copy(self) -> Witness:
        """A witness of its own for what happens on one of several futures."""
        return Witness(
            [replace(group, acknowledged=dict(group.acknowledged)) for group in self.groups], self.number,
            dict(self.topics), set(self.dropping), set(self.dropped), dict(self.trimming), dict(self.trimmed),
            dict(self.safe),
        )  # fmt: skip

    @property
    def acknowledged(self) -> int:
        """How many records were acknowledged, or are known to be on disk."""
        return sum(group.count for group in self.groups if group.acknowledged or group.committed)

    def must(self, group: Group, key: Key, number: int, *, cut: bool) -> bool:
        """Whether a value of a group has to be there."""
        if not group.acknowledged:
            return group.committed and cut
        offset = group.acknowledged[key] + number
        return not cut or group.durable or offset < self.safe.get(key, 0)

    def outlive(self, found: Found) -> None:
        """After a power cut: what it may have taken, and took, is promised no longer; others may have its offsets."""
        there = {value for contents in found.values() for value in contents.records.values()}
        for group in self.groups:
            values = [(key, at, value) for key, some in group.parts.items() for at, value in enumerate(some)]
            if not any(value in there or self.must(group, key, at, cut=True) for key, at, value in values):
                group.acknowledged.clear()

    def hidden(self, group: Group, key: Key, number: int) -> bool:
        """Whether a trim that was begun may have taken a value away."""
        trim = max(self.trimming.get(key, 0), self.trimmed.get(key, 0))
        first = group.acknowledged.get(key)
        return trim > 0 and (first is None or first + number < trim)


class Finding(NamedTuple):
    """What is wrong, and how many acknowledged records it lost."""

    text: str
    lost: int = 0


class Contents(NamedTuple):
    """One partition as a reader sees it."""

    start: int
    end: int
    records: dict[int, bytes]


Found = dict[Key, Contents]


def read_all(store: Store) -> Found:
    """Every record of every topic by offset; damage raises, and so does a gap."""
    found: Found = {}
    for entry in list(store.refresh().by_name.values()):
        for index, slot in enumerate(entry.slots):
            partition = store.partition(slot)
            start, end = partition.start, partition.end
            reader = store.reader(partition)
            try:
                records = {
                    column.offset(at): column.value(at) or b""
                    for column in map(reader.columns, reader.frames(start, end))
                    for at in range(column.count)
                    if start <= column.offset(at) < end
                }
            finally:
                reader.close()
            if list(records) != list(range(start, end)):
                raise AssertionError(f"{entry.name}/{index} from {start} to {end} has {list(records)}")
            found[entry.id, index] = Contents(start, end, records)
    return found


def compare(witness: Witness, found: Found, *, cut: bool, whole: bool = True) -> Finding | None:
    """What is wrong with what was found: I6, I7 and, unless `whole` is false, I8.

    `cut` says that the power went, so that only what was promised for ever must be there.
    """
    where: dict[bytes, tuple[Key, int]] = {}
    for key, contents in found.items():
        for offset, value in contents.records.items():
            if value in where:
                return Finding(f"{value!r} is at {where[value]} and at {key}@{offset}")
            where[value] = (key, offset)
    findings = [finding for group in witness.groups if (finding := _compare_group(witness, group, where, cut, whole))]
    if findings:
        return Finding(findings[0].text, sum(finding.lost for finding in findings))
    attempted = {value for group in witness.groups for values in group.parts.values() for value in values}
    strange = [value for value in where if value not in attempted]
    if strange:
        return Finding(f"{strange[0]!r} was never written")
    return _compare_bounds(witness, found)


def _compare_group(
    witness: Witness, group: Group, where: dict[bytes, tuple[Key, int]], cut: bool, whole: bool
) -> Finding | None:
    present, absent = 0, 0
    lost: list[str] = []
    for key, values in group.parts.items():
        if key[0] in witness.dropping:
            continue
        first = group.acknowledged.get(key)
        for number, value in enumerate(values):
            place = where.get(value)
            if place is None:
                if witness.hidden(group, key, number):
                    continue
                absent += 1
                if witness.must(group, key, number, cut=cut):
                    lost.append(f"acknowledged {value[:7]!r} of {key}@{first} is lost")
                continue
            present += 1
            if place[0] != key:
                return Finding(f"{value[:7]!r} of {key} was found at {place}")
            if first is not None and place[1] != first + number and witness.must(group, key, number, cut=cut):
                return Finding(f"{value[:7]!r} was acknowledged at {key}@{first + number} and found at {place}")
    if lost:
        return Finding(lost[0], len(lost))
    if present and absent and whole and (cut or not group.committed):
        parts = {key: [value[:7] for value in values] for key, values in group.parts.items()}
        return Finding(f"a group is torn: {present} of its values are there, {absent} are not: {parts}")
    return None


def _compare_bounds(witness: Witness, found: Found) -> Finding | None:
    for topic, partitions in witness.topics.items():
        if topic not in witness.dropping and any((topic, index) not in found for index in range(partitions)):
            return Finding(f"topic {topic} or one of its {partitions} partitions is gone")
    for key, contents in found.items():
        if key[0] in witness.dropped:
            return Finding(f"topic {key[0]} was dropped and is back")
        if contents.start < witness.trimmed.get(key, 0):
            return Finding(f"{key} was trimmed to {witness.trimmed[key]} and starts at {contents.start}")
        if contents.start > max(witness.trimming.get(key, 0), witness.trimmed.get(key, 0)):
            return Finding(f"{key} starts at {contents.start}, which nobody asked for")
        if contents.end < witness.safe.get(key, 0):
            return Finding(f"{key} ends at {contents.end}, and {witness.safe[key]} was safe")
    return None


def differences(before: Found, after: Found, keys: Sequence[Key], below: dict[Key, int]) -> Finding | None:
    """I6: offsets below `below` that show another value than before."""
    for key in keys:
        for offset, value in before[key].records.items():
            if offset < below.get(key, 0) and (key not in after or after[key].records.get(offset) != value):
                if key in after and offset < after[key].start:
                    continue
                return Finding(f"{key}@{offset} was {value[:7]!r} before", 1)
    return None
