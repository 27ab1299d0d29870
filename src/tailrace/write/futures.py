"""Futures: records on their way to their partitions in batches, and the future of each one's position."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn

from tailrace.disk.staging import Write
from tailrace.records import Position
from tailrace.write.intake import Rows

if TYPE_CHECKING:
    from tailrace.write.producer import Producer
    from tailrace.write.route import Route

_position: Callable[[type[Position], tuple[int, int]], Position] = tuple.__new__
_FUTURE_FIELDS = frozenset({"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"})


class PartitionBatch:
    """Records of a group that go to one partition, and what became of them."""

    __slots__ = ("error", "first", "partition", "places")

    def __init__(self, partition: int, places: range | list[int]) -> None:
        self.partition = partition
        # Which records of the group, in their order; a range are all of them.
        self.places = places
        self.first = -1
        self.error: BaseException | None = None

    def position(self, place: int) -> Position:
        """Where a record is, once the first of the part has its offset."""
        places = self.places
        before = place if type(places) is range else bisect_left(places, place)
        return _position(Position, (self.partition, self.first + before))

    def tell(self, future: Future[Position], place: int) -> None:
        """Settle the future of one of the records."""
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.position(place))


class PendingBatch(Rows):
    """Records that are sent together, in the order in which they came, each with the time at which it did.

    Which partitions take them is decided when they are sent: by then the topic may have more of them, or be another.
    """

    __slots__ = ("parts", "producer", "stamps", "waiting")

    def __init__(self, producer: Producer) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[bytes] | None = None
        self.times: list[int] = []
        self.since = 0
        self.bare = False
        # When each record was appended, or the time it was given, in nanoseconds: `times` are made of them by `seal`.
        # A record's stamp comes before its value, so an interrupt leaves one too many and never one too few.
        self.stamps: list[int] = []
        self.producer = producer
        # The part of each record that is settled; empty before the first is.
        self.parts: list[PartitionBatch | None] = []
        # Futures that somebody waits for, by their records; all others find their result here when they are asked.
        self.waiting: dict[int, PendingPosition] = {}

    @property
    def plain(self) -> bool:
        """Whether it holds values and their times, and nothing else."""
        return self.keys is None and self.headers is None

    def add(self, value: bytes | None, key: bytes | None, headers: bytes, stamp: int) -> None:
        """Add a record; a column begins with the first record that has something in it."""
        before = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [None] * before
        if headers and self.headers is None:
            self.headers = [b""] * before
        try:
            self.stamps.append(stamp)
            if self.keys is not None:
                self.keys.append(key)
            if self.headers is not None:
                self.headers.append(headers)
            self.values.append(value)
        except BaseException:
            # An interrupt: columns of different lengths would take all others of the group with them.
            for column in (self.values, self.keys, self.headers, self.stamps):
                if column is not None:
                    del column[before:]
            raise

    def seal(self) -> None:
        """Make the times of the stamps, once no record comes any more."""
        stamps, self.stamps = self.stamps, []
        del stamps[len(self.values) :]
        if stamps:
            # Counted from the first: small numbers are divided in half the time.
            self.since = stamps[0] // 1000
            first = self.since * 1000
            self.times = [(stamp - first) // 1000 for stamp in stamps]

    def place(self, parts: list[PartitionBatch], route: Route, keyless: Callable[[], int]) -> list[PartitionBatch]:
        """The records of some parts as parts for the partitions that the topic has now."""
        keys = self.keys
        places = parts[0].places
        if type(places) is not range:
            places = sorted(place for part in parts for place in part.places)
            keys = None if keys is None else [keys[place] for place in places]
        placed = Rows(places, keys).by_partition(route.count, route.hash, keyless)
        return [PartitionBatch(index, rows.values) for index, rows in placed.items()]  # type: ignore[arg-type]  # some of places

    def write(self, part: PartitionBatch, route: Route) -> Write:
        """What is written for a part."""
        places = part.places
        rows = self._pick(places) if isinstance(places, list) else self
        return Write(route.partitions[part.partition], rows.frames(0, route.codec, route.maximum))

    def settle(self, part: PartitionBatch) -> None:
        """Tell the futures of a part: their positions, or what went wrong."""
        places = part.places
        if type(places) is range:
            self.parts = [part] * len(places)
        else:
            parts = self.parts or [None] * len(self.values)
            for place in places:
                parts[place] = part
            self.parts = parts
        # Whoever looked before that is waiting by now, or comes to it before the lock is to be had.
        with self.producer.settling:
            waiting = self.waiting
            told = [waiting.pop(place) for place in places if place in waiting] if waiting else []
        for future in told:
            if "_condition" not in future.__dict__:
                # An interrupt came before it was a future: it becomes a settled one when it is asked again.
                continue
            try:
                part.tell(future, future._index)
            except BaseException as error:  # noqa: BLE001  # a callback that wants to end its thread would end the sender
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                )

    def part(self, index: int) -> PartitionBatch | None:
        """What became of one of the records, once it is known."""
        return self.parts[index] if self.parts else None


class PendingPosition(Future[Position]):
    """The position of a record, once it is as durable as its topic asks.

    A future of the standard library costs more than the append itself, so this becomes one only when somebody waits
    for it; before, it is a place in a group.
    """

    __slots__ = ("_group", "_index")

    _group: PendingBatch
    _index: int

    # The producer sets both after the construction: arguments would double its price.
    __init__ = object.__init__

    def __getattr__(self, name: str) -> Any:
        if name not in _FUTURE_FIELDS:
            raise AttributeError(name)
        group = self._group
        producer = group.producer
        producer.check_same()
        if producer.is_settling():
            raise producer.reentered()
        with producer.settling:
            if "_condition" not in self.__dict__:
                # The fields come in one step, so that no interrupt leaves a future that nobody settles.
                made: Future[Position] = Future()
                part = group.part(self._index)
                if part is None:
                    group.waiting[self._index] = self
                else:
                    part.tell(made, self._index)
                self.__dict__.update(made.__dict__)
        return self.__dict__[name]

    def done(self) -> bool:
        """Whether the record is written, or failed."""
        return self._group.part(self._index) is not None

    def result(self, timeout: float | None = None) -> Position:
        """The position, after waiting for it; raises what went wrong."""
        group = self._group
        part = group.part(self._index)
        if part is None:
            group.producer.refuse_waiting("result()")
        elif part.error is None:
            return part.position(self._index)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What went wrong, after waiting for it; None when nothing did."""
        part = self._group.part(self._index)
        if part is not None:
            return part.error
        self._group.producer.refuse_waiting("exception()")
        return super().exception(timeout)

    def cancel(self) -> bool:
        """A record that was given to a producer is on its way."""
        return False

    def cancelled(self) -> bool:
        """Never."""
        return False

    def running(self) -> bool:
        """Whether the record is still on its way."""
        return not self.done()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A future cannot be pickled: pickle its result().")
