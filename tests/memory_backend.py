"""A log in memory: a second backend, as small as one can be, on which the public classes must work.

It stores the frames that a segment would hold, in one partition a topic, for one thread at a time. What it does not
have (groups, namespaces, maintenance) it refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from tailrace.arguments import StartPoint
from tailrace.disk.columns import FramePart, columns
from tailrace.disk.frame import Prepared, place_one, prepare_one, read_header
from tailrace.errors import ClosedError, OffsetMismatchError, OffsetOutOfRangeError
from tailrace.names import topic_not_found
from tailrace.read.batch import record_at
from tailrace.read.iteration import IterationPlaces
from tailrace.read.request import Request
from tailrace.records import Position, Record
from tailrace.settings import TopicSettings
from tailrace.types import Bounds
from tailrace.write.futures import PartitionBatch
from tailrace.write.recipe import Recipe


class MemoryLog:
    def __init__(self) -> None:
        self.location = "memory:"
        self.mode = "a"
        self.durable = 0.0
        self.timeout = 1.0
        self.closed = False
        self.stored: dict[str, list[FramePart]] = {}
        self.users: list[Any] = []

    def open(self) -> None:
        if self.closed:
            raise ClosedError("The log is closed.")

    def close(self) -> None:
        for user in list(self.users):
            user.close()
        self.closed = True

    def sync(self) -> None:
        for user in self.users:
            user.flush()

    def now_us(self) -> int:
        self.open()
        return time.time_ns() // 1000

    @property
    def engine(self) -> NoReturn:
        raise NotImplementedError("A log in memory has no engine.")

    def writing(self) -> NoReturn:
        raise NotImplementedError("A log in memory has no engine.")

    def topic(self, name: str, given: Mapping[str, Any], altering: bool) -> MemoryTopic:
        return MemoryTopic(self, name)

    def iterate(self, request: Request, limit: int | None, follow: bool, timeout: float | None) -> MemoryStream:
        self.open()
        assert not follow
        name = request.single
        assert name is not None
        if name not in self.stored:
            raise topic_not_found(name, list(self.stored))
        first = request.start.value if request.start.kind == "offset" else 0
        return MemoryStream(self.stored[name], first, limit)

    def count(self, request: Request) -> int:
        return sum(part.stop - part.first for part in self.iterate(request, None, False, None).gather(1 << 30))

    def transaction(self) -> MemoryTransaction:
        self.open()
        return MemoryTransaction(self)

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError(f"A log in memory has no {name}.")


class MemoryTopic:
    usual = Recipe.of(TopicSettings())

    def __init__(self, log: MemoryLog, name: str) -> None:
        self.log = log
        self.name = name

    def write(self, frames: Sequence[Prepared]) -> range:
        """Store frames as a segment would hold them, and read their columns back from those bytes."""
        self.log.open()
        parts = self.log.stored.setdefault(self.name, [])
        first = end = self.end()
        for frame in frames:
            data, _ = place_one(frame, end, 0)
            header = read_header(data)
            assert header is not None
            made = columns(header, memoryview(data)[96 : 96 + len(frame.body)], end)
            parts.append(FramePart(self.name, 0, made, 0, made.count))
            end += frame.span
        return range(first, end)

    def end(self) -> int:
        return sum(part.columns.count for part in self.log.stored.get(self.name, ()))

    def append(
        self, value: bytes | None, key: bytes | None, headers: bytes, time: int | None, partition: int | None,
        expect: int | None, durable: Any, ttl: int | None,
    ) -> Position:  # fmt: skip
        if expect is not None and expect != self.end():
            raise OffsetMismatchError("another offset", expected=expect, actual=self.end())
        now = self.log.now_us()
        made = prepare_one(value, key, headers, now if time is None else time, 0, self.usual.expiry(ttl, now))
        return Position(0, self.write([made]).start)

    def append_once(self, *arguments: Any) -> NoReturn:
        raise NotImplementedError("There are no ids in memory.")

    def extend(
        self, intake: Any, partition: int | None, durable: Any, now: int, dedupe_id: bytes | None = None
    ) -> dict[int, range]:
        return {0: self.write(intake.frames(now, self.usual))}

    def producer(self) -> MemoryProducer:
        return MemoryProducer(self)

    def recipe(self) -> Recipe:
        return self.usual

    def get(self, offset: int, partition: int) -> Record:
        for part in self.log.stored.get(self.name, ()):
            index = part.columns.index_at(offset)
            if part.columns.first_offset <= offset and index < part.stop:
                return record_at(part, index)
        raise OffsetOutOfRangeError("no such record", earliest=0, latest=self.end())

    def offset_at(self, time: int, partition: int) -> int:
        found = (record_at(part, at) for part in self.log.stored[self.name] for at in range(part.stop))
        return next((record.offset for record in found if record.timestamp_us >= time), self.end())

    def offsets(self) -> dict[int, Bounds]:
        return {0: Bounds(0, self.end(), self.end())}

    def partitions(self) -> int:
        return 1

    def settings(self) -> Any:
        return TopicSettings().to_user()

    def alter(self, settings: Mapping[str, Any]) -> NoReturn:
        raise NotImplementedError

    def erase(self, key: bytes) -> NoReturn:
        raise NotImplementedError

    def delete(self, ranges: Sequence[tuple[int, int]], partition: int) -> NoReturn:
        raise NotImplementedError

    def trim(self, point: StartPoint, partition: int | None) -> NoReturn:
        raise NotImplementedError

    def drop(self) -> None:
        del self.log.stored[self.name]

    def ensure(self) -> None:
        self.log.stored.setdefault(self.name, [])


class MemoryStream:
    reverse = merging = False

    def __init__(self, parts: Sequence[FramePart], first: int, limit: int | None) -> None:
        self.places = IterationPlaces(False)
        self.left = limit
        self.parts = [
            part._replace(first=part.columns.index_at(first)) for part in parts if part.columns.last_offset >= first
        ]

    def gather(self, max_records: int, *, whole: bool = False) -> list[FramePart]:
        self.places.settle()
        gathered: list[FramePart] = []
        room = max_records if self.left is None else min(max_records, self.left)
        while self.parts and room > 0:
            part = self.parts.pop(0)
            if part.stop - part.first > room:
                self.parts.insert(0, part._replace(first=part.first + room))
                part = part._replace(stop=part.first + room)
            room -= part.stop - part.first
            if self.left is not None:
                self.left -= part.stop - part.first
            gathered.append(part)
        return gathered

    def close(self) -> None:
        self.parts = []


class MemoryProducer:
    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic

    def add(self, producer: Any) -> None:
        self.topic.log.users.append(producer)

    def discard(self, producer: Any) -> None:
        if producer in self.topic.log.users:
            self.topic.log.users.remove(producer)

    def clock_ns(self) -> Callable[[], int]:
        return time.time_ns

    def check_same(self) -> None:
        pass

    def is_forked(self) -> bool:
        return False

    def refuse_handler(self, what: str) -> None:
        pass

    def prepare(self, value: bytes | None, key_bytes: int) -> Recipe:
        return self.topic.recipe()

    def send(self, batch: Any) -> tuple[Recipe, BaseException | None]:
        part = PartitionBatch(0, range(len(batch)))
        batch.seal()
        part.first = self.topic.write(batch.frames(0, self.topic.usual)).start
        batch.settle(part)
        return self.topic.recipe(), None


class MemoryTransaction:
    def __init__(self, log: MemoryLog) -> None:
        self.log = log

    def now_us(self) -> int:
        return self.log.now_us()

    def check_same(self) -> None:
        pass

    def check_cursors(self, cursors: Any) -> NoReturn:
        raise ValueError("There are no groups in memory.")

    def is_repeated(self, once: Any) -> NoReturn:
        raise NotImplementedError("There are no markers in memory.")

    def commit(
        self, calls: Sequence[Any], enlisted: Iterable[Any], removals: Sequence[Any], once: Any
    ) -> list[tuple[str, dict[int, range]]]:
        assert not enlisted
        assert once is None
        return [
            (call.topic.name, {0: call.topic.backend.write(call.intake.frames(call.time, MemoryTopic.usual))})
            for call in calls
        ]
