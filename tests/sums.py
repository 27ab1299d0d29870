"""A state topic for tests: sums by key, which a record that is taken in twice, or not at all, makes wrong."""

from __future__ import annotations

from collections.abc import Callable, Container

from tailrace.disk.columns import Columns
from tailrace.disk.staging import Write
from tailrace.engine.engine import Engine
from tailrace.errors import CorruptionError
from tailrace.state_topic import NewRecords, StateTopic, TopicState, find_state_topic, open_state_topic

TOPIC = "__sums"
RECORDS_MAX = 10


class Sums(TopicState):
    """By key, the sum of what was added; a snapshot has a record for each key."""

    def __init__(self) -> None:
        super().__init__()
        self.by_key: dict[bytes, int] = {}
        # How often records were handed over.
        self.handed = 0

    @property
    def entries(self) -> int:
        return len(self.by_key)

    def take(self, columns: Columns, first: int, stop: int) -> None:
        self.handed += 1
        keys = columns.keys(first, stop) or [b""] * (stop - first)
        for at, (key, value) in enumerate(zip(keys, columns.values(first, stop), strict=True), first):
            try:
                number = int(value or b"", 0)
            except ValueError as error:
                offset = columns.offset(at)
                raise CorruptionError("A sum cannot be understood", first=offset, last=offset) from error
            whole = (value or b"").startswith(b"0x")
            self.by_key[key or b""] = number if whole else self.by_key.get(key or b"", 0) + number

    def snapshot(self, alive: Container[int]) -> NewRecords:
        return NewRecords([hex(number).encode() for number in self.by_key.values()], list(self.by_key))

    def copy(self) -> Sums:
        made = Sums()
        made.offset, made.by_key, made.handed = self.offset, self.by_key.copy(), self.handed
        return made


class SumTopic(StateTopic[Sums]):
    """Sums by key."""

    def empty(self) -> Sums:
        return Sums()

    @property
    def records_max(self) -> int:
        return RECORDS_MAX

    def add(
        self, key: str, number: int = 1, check: Callable[[Sums], None] | None = None, *, durable: bool = True
    ) -> int:
        return self.append_records(added((key, number)), check, durable=durable)

    def adding(self, key: str, number: int, check: Callable[[Sums], None] | None = None) -> Write:
        """The same as a part of a transaction."""
        return self.write_records(added((key, number)), [check])

    def now(self) -> dict[str, int]:
        return {key.decode(): number for key, number in self.view().by_key.items()}


def added(*pairs: tuple[str, int]) -> NewRecords:
    return NewRecords([str(number).encode() for _, number in pairs], [key.encode() for key, _ in pairs])


def open_sums(engine: Engine, index: int = 0, *, partitions: int = 1) -> SumTopic:
    return open_state_topic(engine, SumTopic, TOPIC, index, partitions=partitions)


def find_sums(engine: Engine, index: int = 0) -> SumTopic | None:
    return find_state_topic(engine, SumTopic, TOPIC, index)


def read_anew(topic: SumTopic) -> dict[str, int]:
    """What the records say to a process that begins with none of them."""
    engine = topic.engine
    return SumTopic(engine, engine.entry(TOPIC), topic.partition.index).now()
