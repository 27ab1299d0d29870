"""The reference model: what a log is, in lists and dictionaries, with nothing that could go wrong."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from typing import NamedTuple
from zlib import crc32


class Item(NamedTuple):
    """One record without its place."""

    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    # When it expires; 0: never. No reader is told, so it is not among what is compared.
    expires_us: int = 0

    @property
    def shown(self) -> Item:
        """What a reader is given of it."""
        return self._replace(expires_us=0) if self.expires_us else self


class Place(NamedTuple):
    """One record with its place."""

    partition: int
    offset: int
    item: Item


@dataclass
class ReferencePartition:
    """Every record that was ever there; trims move `start`, and all below `safe` must outlive a power cut."""

    items: list[Item] = field(default_factory=list)
    start: int = 0
    safe: int = 0
    # Where writes ended: a crash keeps or loses each of them as a whole.
    groups: list[int] = field(default_factory=lambda: [0])
    # Where a trim wanted to go whose process died: nobody was promised anything, and a recovery may finish it.
    trimming: int = 0
    # Up to where retention may remove records, in one or several steps; what it does remove is for it to say.
    removable: int = 0
    # Records that were deleted, which holds whatever comes, and records that are known to be in no segment any more.
    removed: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    # Records that a call which died may have deleted, or taken out of their segment; once they would be visible again,
    # a look tells, and those that are not found are absent until a power cut brings an old file back.
    doubtful: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        return len(self.items)

    def add(self, items: Sequence[Item], *, durable: bool) -> range:
        first = self.end
        self.items += items
        self.groups.append(self.end)
        if durable:
            self.safe = self.end
        return range(first, self.end)

    def has_expired(self, offset: int, now_us: int) -> bool:
        return 0 < self.items[offset].expires_us <= now_us

    def shows(self, offset: int, now_us: int) -> bool:
        """Whether a reader is shown a record."""
        lost = offset in self.removed or offset in self.gone or offset in self.absent
        return not lost and not self.has_expired(offset, now_us)

    def visible(self, now_us: int) -> dict[int, Item]:
        """The records that a reader is shown, by their offsets."""
        return {
            offset: self.items[offset].shown for offset in range(self.start, self.end) if self.shows(offset, now_us)
        }

    def hidden(self, now_us: int) -> set[int]:
        """The offsets that no reader is shown."""
        return {offset for offset in range(self.start, self.end) if not self.shows(offset, now_us)}

    def settle_doubts(self, found: Container[int], now_us: int) -> None:
        """Note which of the records that may be gone are there, now that they would be visible."""
        for offset in sorted(self.doubtful - self.absent):
            if self.start <= offset < self.end and self.shows(offset, now_us):
                (self.doubtful.discard if offset in found else self.absent.add)(offset)

    def offsets_at(self, time_us: int) -> set[int]:
        """The offsets that are right for a time: the first record at or after it, as far back as anything is kept.

        Records below `start` may or may not be on disk still, and the running maximum counts them if they are.
        """
        found = set()
        for kept in range(self.start + 1):
            first = next((at for at in range(kept, self.end) if self.items[at].timestamp_us >= time_us), self.end)
            found.add(max(first, self.start))
        return found

    def since(self, earlier: ReferencePartition) -> bool:
        """Whether it goes on where it was then."""
        return self.items[: len(earlier.items)] == earlier.items

    def copy(self) -> ReferencePartition:
        return replace(
            self, items=list(self.items), groups=list(self.groups), removed=set(self.removed), gone=set(self.gone),
            doubtful=set(self.doubtful), absent=set(self.absent),
        )  # fmt: skip


@dataclass
class ReferenceTopic:
    """Partitions; `number` tells a topic from one of the same name that was dropped before."""

    number: int
    partitions: list[ReferencePartition]
    # Seconds after which records may go, "read" for when all groups have read them, None for never.
    retain: int | str | None = None
    # Whether what may go waits for the groups.
    keep_unread: bool = False
    # Whether records may be deleted, and the life of one that is appended without a ttl (0: it does not expire).
    mutable: bool = False
    ttl_us: int = 0

    def partition_of(self, key: bytes) -> int:
        return crc32(key) % len(self.partitions)

    def grow(self, count: int) -> None:
        while len(self.partitions) < count:
            self.partitions.append(ReferencePartition())

    def read(
        self, starts: Mapping[int, int] | None = None, stops: Mapping[int, int] | None = None, *,
        last: int | None = None, limit: int | None = None, chosen: Sequence[int] | None = None,
        by_time: bool = False, reverse: bool = False, now_us: int = 0,
    ) -> list[Place]:  # fmt: skip
        """What a scan gives: partition after partition, or merged by time where each partition keeps its own order."""
        streams: dict[int, list[Place]] = {}
        for index in range(len(self.partitions)) if chosen is None else sorted(set(chosen)):
            partition = self.partitions[index]
            start = (starts or {}).get(index, partition.start)
            stop = min((stops or {}).get(index, partition.end), partition.end)
            shown = partition.visible(now_us)
            streams[index] = [Place(index, at, item) for at, item in shown.items() if start <= at < stop]
        if last is not None:
            newest = _merged(streams, reverse=True)[:last]
            streams = {index: [place for place in stream if place in newest] for index, stream in streams.items()}
        if by_time:
            places = _merged(streams, reverse=reverse)
        elif reverse:
            places = [place for _, stream in sorted(streams.items(), reverse=True) for place in reversed(stream)]
        else:
            places = [place for _, stream in sorted(streams.items()) for place in stream]
        return places if limit is None else places[:limit]

    def copy(self) -> ReferenceTopic:
        return replace(self, partitions=[partition.copy() for partition in self.partitions])


def _merged(streams: Mapping[int, list[Place]], *, reverse: bool) -> list[Place]:
    """By time, of equal times the lower partition first; turned around as a whole when reversed."""
    sign = -1 if reverse else 1
    turned = [stream[::-1] if reverse else stream for stream in streams.values()]
    return list(merge(*turned, key=lambda place: (sign * place.item.timestamp_us, sign * place.partition)))


# A partition as a group knows it: the number of its topic, and its index.
Slot = tuple[int, int]


@dataclass
class ReferenceGroup:
    """How far a group has read, and which topics it was ever asked to read; "..." stands for all."""

    # Tells it from one of the same name that was dropped before.
    number: int
    topics: list[str] = field(default_factory=list)
    # How many of these must outlive a power cut: a cursor is on disk at once, and all that was written before it.
    safe: int = 0
    cursors: dict[Slot, int] = field(default_factory=dict)

    def asks(self, name: str) -> bool:
        return name in self.topics or "..." in self.topics

    def ask(self, topics: Sequence[str]) -> None:
        self.topics += [name for name in topics if name not in self.topics]

    def store(self, moves: Mapping[Slot, int]) -> None:
        self.cursors.update(moves)
        if moves:
            self.safe = len(self.topics)

    def since(self, earlier: ReferenceGroup) -> bool:
        """Whether nothing but questions came to it since then."""
        return self.cursors == earlier.cursors and self.topics[: len(earlier.topics)] == earlier.topics

    def copy(self) -> ReferenceGroup:
        return ReferenceGroup(self.number, list(self.topics), self.safe, dict(self.cursors))


@dataclass
class ReferenceLog:
    """Topics and groups by name."""

    topics: dict[str, ReferenceTopic] = field(default_factory=dict)
    number: int = 0
    groups: dict[str, ReferenceGroup] = field(default_factory=dict)

    def create(self, name: str, partitions: int = 1) -> ReferenceTopic:
        if name not in self.topics:
            self.number += 1
            self.topics[name] = ReferenceTopic(self.number, [ReferencePartition() for _ in range(partitions)])
        return self.topics[name]

    def group(self, name: str) -> ReferenceGroup:
        if name not in self.groups:
            self.number += 1
            self.groups[name] = ReferenceGroup(self.number)
        return self.groups[name]

    def slots(self, group: ReferenceGroup) -> dict[Slot, tuple[str, ReferencePartition]]:
        """The partitions that a group reads or has read, with the names of their topics."""
        return {
            (topic.number, index): (name, partition)
            for name, topic in self.topics.items()
            for index, partition in enumerate(topic.partitions)
            if group.asks(name) or any(number == topic.number for number, _ in group.cursors)
        }

    def removable(self, name: str, index: int, now_us: int) -> int:
        """The offset before which every record of a partition may go."""
        topic = self.topics[name]
        partition = topic.partitions[index]
        slot = (topic.number, index)
        readers = [group for group in self.groups.values() if slot in self.slots(group)]
        read = min((group.cursors.get(slot, partition.start) for group in readers), default=0)
        for offset in range(partition.start, partition.end):
            if topic.retain is None or (topic.retain == "read" and offset >= read):
                return offset
            if isinstance(topic.retain, int):
                young = now_us - partition.items[offset].timestamp_us <= topic.retain * 1_000_000
                if young or (topic.keep_unread and readers and offset >= read):
                    return offset
        return partition.end

    def copy(self) -> ReferenceLog:
        topics = {name: topic.copy() for name, topic in self.topics.items()}
        return ReferenceLog(topics, self.number, {name: group.copy() for name, group in self.groups.items()})
