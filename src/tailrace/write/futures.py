"""Futures: batches of records that are being sent, and the future of each record's position."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn

from tailrace.disk import Write
from tailrace.errors import SchemaError
from tailrace.records import Position
from tailrace.write.intake import Rows

if TYPE_CHECKING:
    from tailrace.write.producer import Producer
    from tailrace.write.route import Route
    from tailrace.write.schema import Checker

_position: Callable[[type[Position], tuple[int, int]], Position] = tuple.__new__
_FUTURE_FIELDS = frozenset({"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"})


class PartitionBatch:
    """The records of a batch that go to one partition, and their outcome."""

    __slots__ = ("error", "first", "partition", "places")

    def __init__(self, partition: int, places: range | list[int]) -> None:
        self.partition = partition
        # The indexes of these records in the batch, in order; a range means all of them.
        self.places = places
        self.first = -1
        self.error: BaseException | None = None

    def position(self, place: int) -> Position:
        """Return the position of a record, once the first record of this part has its offset."""
        places = self.places
        before = place if type(places) is range else bisect_left(places, place)
        return _position(Position, (self.partition, self.first + before))

    def tell(self, future: Future[Position], place: int) -> None:
        """Settle the future of one record."""
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.position(place))


class PendingBatch(Rows):
    """Records that are sent together, in the order of their appends, each with its time.

    Their partitions are chosen when they are sent: by then the topic may have more partitions, or be a new topic.
    """

    __slots__ = ("parts", "producer", "schema", "stamps", "waiting")

    def __init__(self, producer: Producer) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[bytes] | None = None
        self.times: list[int] = []
        self.since = 0
        self.bare = False
        self.ttl = None
        self.expiries: list[int] | None = None
        # The time of each append, or the time the caller gave, in nanoseconds; `seal` makes `times` from them. A
        # record's stamp is appended before its value, so an interrupt leaves one stamp too many and never one too few.
        self.stamps: list[int] = []
        self.producer = producer
        # The schema that all of the values were checked with; None if there was none, or several.
        self.schema: Checker | None = None
        # The settled part of each record; empty before the first is settled.
        self.parts: list[PartitionBatch | None] = []
        # Futures that a thread waits for, by record; all others look up their result here on demand.
        self.waiting: dict[int, PendingPosition] = {}

    @property
    def plain(self) -> bool:
        """Whether it holds only values and their times."""
        return self.keys is None and self.headers is None and self.expiries is None

    def add(self, value: bytes | None, key: bytes | None, headers: bytes, stamp: int, expiry: int) -> None:
        """Add a record; a column starts with the first record that has a value in it.

        An expiry of 0 is that of the topic when the record is sent.
        """
        before = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [None] * before
        if headers and self.headers is None:
            self.headers = [b""] * before
        if expiry and self.expiries is None:
            self.expiries = [0] * before
        try:
            self.stamps.append(stamp)
            if self.keys is not None:
                self.keys.append(key)
            if self.headers is not None:
                self.headers.append(headers)
            if self.expiries is not None:
                self.expiries.append(expiry)
            self.values.append(value)
        except BaseException:
            # An interrupt: columns of different lengths would make every other record of the batch fail.
            for column in (self.values, self.keys, self.headers, self.expiries, self.stamps):
                if column is not None:
                    del column[before:]
            raise

    def seal(self) -> None:
        """Compute the times from the stamps, after the last record."""
        stamps, self.stamps = self.stamps, []
        del stamps[len(self.values) :]
        if stamps:
            # Relative to the first: small numbers are divided in half the time.
            self.since = stamps[0] // 1000
            first = self.since * 1000
            self.times = [(stamp - first) // 1000 for stamp in stamps]

    def place(self, parts: list[PartitionBatch], route: Route, keyless: Callable[[], int]) -> list[PartitionBatch]:
        """Return the records of some parts as new parts for the partitions that the topic has now."""
        keys = self.keys
        places = parts[0].places
        if type(places) is not range:
            places = sorted(place for part in parts for place in part.places)
            keys = None if keys is None else [keys[place] for place in places]
        placed = Rows(places, keys).by_partition(route.count, route.hash, keyless)
        return [PartitionBatch(index, rows.values) for index, rows in placed.items()]  # type: ignore[arg-type]  # some of places

    def refuse(self, parts: list[PartitionBatch], schema: Checker, topic: str) -> SchemaError | None:
        """Settle the records of some parts that do not fit a schema, each with its own error; return the first.

        The parts have the other records afterwards.
        """
        first: SchemaError | None = None
        for part in parts:
            kept = []
            for place in part.places:
                try:
                    schema.check_one(self.values[place], topic)
                    kept.append(place)
                except SchemaError as error:
                    first = first or error
                    bad = PartitionBatch(part.partition, [place])
                    bad.error = error
                    self.settle(bad)
            if len(kept) < len(part.places):
                part.places = kept
        return first

    def write(self, part: PartitionBatch, route: Route, now_us: int) -> Write:
        """Return the write of a part; records without a ttl of their own have that of the topic from now on."""
        places = part.places
        rows = self._pick(places) if isinstance(places, list) else self
        return Write(route.partitions[part.partition], rows.frames(now_us, route.recipe), recipe=route.offset)

    def settle(self, part: PartitionBatch) -> None:
        """Settle the futures of a part: with their positions, or with the error."""
        places = part.places
        if type(places) is range:
            self.parts = [part] * len(places)
        else:
            parts = self.parts or [None] * len(self.values)
            for place in places:
                parts[place] = part
            self.parts = parts
        # A thread that found no result holds this lock until it is in `waiting`, so this finds every waiting future.
        with self.producer.settling:
            waiting = self.waiting
            told = [waiting.pop(place) for place in places if place in waiting] if waiting else []
        for future in told:
            if "_condition" not in future.__dict__:
                # An interrupt came before it was a real future: its next use makes it a settled one.
                continue
            try:
                part.tell(future, future._index)
            except BaseException as error:  # noqa: BLE001  # a callback that wants to end its thread would end the sender
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                )

    def part(self, index: int) -> PartitionBatch | None:
        """Return the settled part of a record; None before it is settled."""
        return self.parts[index] if self.parts else None


class PendingPosition(Future[Position]):
    """The position of a record, once it is as durable as its topic asks.

    A future of the standard library costs more than the append itself, so this becomes one only when a thread waits for
    it; until then it is an index in a batch.
    """

    __slots__ = ("_group", "_index")

    _group: PendingBatch
    _index: int

    # The producer sets both after the construction: passing arguments would double the cost.
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
                # The fields are set in one step, so that no interrupt leaves a future that is never settled.
                made: Future[Position] = Future()
                part = group.part(self._index)
                if part is None:
                    group.waiting[self._index] = self
                else:
                    part.tell(made, self._index)
                self.__dict__.update(made.__dict__)
        return self.__dict__[name]

    def done(self) -> bool:
        """Return whether the record is written, or failed."""
        return self._group.part(self._index) is not None

    def result(self, timeout: float | None = None) -> Position:
        """Wait for the position and return it; raise the error if the write failed."""
        group = self._group
        part = group.part(self._index)
        if part is None:
            group.producer.refuse_waiting("result()")
        elif part.error is None:
            return part.position(self._index)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome, and return the error; None if the record was written."""
        part = self._group.part(self._index)
        if part is not None:
            return part.error
        self._group.producer.refuse_waiting("exception()")
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Return False: a record that was given to a producer will be sent."""
        return False

    def cancelled(self) -> bool:
        """Return False."""
        return False

    def running(self) -> bool:
        """Return whether the record is neither written nor failed yet."""
        return not self.done()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A future cannot be pickled: pickle its result().")
