"""The reference model: what a log is, in lists and dictionaries, with nothing that could go wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple
from zlib import crc32


class Item(NamedTuple):
    """One record without its place."""

    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


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

    def offsets_at(self, time_us: int) -> set[int]:
        """The offsets that are right for a time: the first record at or after it, as far back as anything is kept.

        Records below `start` may or may not be on disk still, and the running maximum counts them if they are.
        """
        found = set()
        for kept in range(self.start + 1):
            first = next((at for at in range(kept, self.end) if self.items[at].timestamp_us >= time_us), self.end)
            found.add(max(first, self.start))
        return found

    def copy(self) -> ReferencePartition:
        return ReferencePartition(list(self.items), self.start, self.safe, list(self.groups), self.trimming)


@dataclass
class ReferenceTopic:
    """Partitions; `number` tells a topic from one of the same name that was dropped before."""

    number: int
    partitions: list[ReferencePartition]

    def partition_of(self, key: bytes) -> int:
        return crc32(key) % len(self.partitions)

    def grow(self, count: int) -> None:
        while len(self.partitions) < count:
            self.partitions.append(ReferencePartition())

    def read(
        self, starts: Mapping[int, int] | None = None, stops: Mapping[int, int] | None = None, *,
        last: int | None = None, limit: int | None = None, chosen: Sequence[int] | None = None,
        by_time: bool = False, reverse: bool = False,
    ) -> list[Place]:  # fmt: skip
        """What a scan gives: partition after partition, or merged by time where each partition keeps its own order."""
        streams: dict[int, list[Place]] = {}
        for index in range(len(self.partitions)) if chosen is None else sorted(set(chosen)):
            partition = self.partitions[index]
            start = (starts or {}).get(index, partition.start)
            stop = min((stops or {}).get(index, partition.end), partition.end)
            streams[index] = [Place(index, offset, partition.items[offset]) for offset in range(start, stop)]
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
        return ReferenceTopic(self.number, [partition.copy() for partition in self.partitions])


def _merged(streams: Mapping[int, list[Place]], *, reverse: bool) -> list[Place]:
    """By time, of equal times the lower partition first; turned around as a whole when reversed."""
    sign = -1 if reverse else 1
    turned = [stream[::-1] if reverse else stream for stream in streams.values()]
    return list(merge(*turned, key=lambda place: (sign * place.item.timestamp_us, sign * place.partition)))


@dataclass
class ReferenceLog:
    """Topics by name."""

    topics: dict[str, ReferenceTopic] = field(default_factory=dict)
    number: int = 0

    def create(self, name: str, partitions: int = 1) -> ReferenceTopic:
        if name not in self.topics:
            self.number += 1
            self.topics[name] = ReferenceTopic(self.number, [ReferencePartition() for _ in range(partitions)])
        return self.topics[name]

    def copy(self) -> ReferenceLog:
        return ReferenceLog({name: topic.copy() for name, topic in self.topics.items()}, self.number)
