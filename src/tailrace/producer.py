"""The producer: appends in the background, in large groups, with a future for each record."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, NoReturn, Self

from tailrace.disk.commit import Write
from tailrace.engine import name_damage
from tailrace.errors import BusyError, ClosedError, CorruptionError, ForkedError, TailraceError, TopicNotFoundError
from tailrace.intake import UNSET, Rows, check_sizes, encode_value
from tailrace.limits import FRAME_BYTES_TARGET, GROUP_BYTES_MAX, KEY_BYTES_MAX, PARTICIPANTS_MAX
from tailrace.options import parse_duration, parse_size, parse_time
from tailrace.records import Position, encode_data, encode_headers

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.topics import Route, Topic
    from tailrace.types import Data, Duration, Size

# What a record costs in memory besides its bytes, so that many small ones fill the buffer as well.
RECORD_OVERHEAD_BYTES = 64
# As soon as so much is buffered, lingering would gain nothing.
EAGER_BYTES = FRAME_BYTES_TARGET
BUFFER_BYTES_MAX = GROUP_BYTES_MAX // 2

_FUTURE_FIELDS = frozenset({"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"})


class Group(Rows):
    """Records of one partition that are sent together; all have the time of the first that came without its own."""

    __slots__ = ("error", "first", "partition", "producer", "time", "waiting")

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[bytes] | None
    times: list[int] | None

    def __init__(self, producer: Producer, partition: int) -> None:
        super().__init__([])
        self.producer = producer
        self.partition = partition
        self.time = time_ns() // 1_000
        self.first = -1
        self.error: BaseException | None = None
        # Futures that somebody waits for; all others find their result here when they are asked.
        self.waiting: list[PendingPosition] = []

    def add(self, value: bytes | None, key: bytes | None, headers: bytes, time: int | None) -> None:
        """Add a record that has more than a value, or comes after one that had."""
        before = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [None] * before
        if headers and self.headers is None:
            self.headers = [b""] * before
        if time is not None and self.times is None:
            self.times = [self.time] * before
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers)
        if self.times is not None:
            self.times.append(self.time if time is None else time)

    def settle(self, first: int, error: BaseException | None = None) -> None:
        """Tell every future: the offset of the first record, or what went wrong."""
        with self.producer.settling:
            self.first = first
            self.error = error
            waiting, self.waiting = self.waiting, []
        for future in waiting:
            future.settle()


class PendingPosition(Future[Position]):
    """The position of a record, once it is as durable as its topic asks.

    A future of the standard library costs more than the append itself, so this becomes one only when somebody waits
    for it; before, it is a place in a group.
    """

    def __init__(self, group: Group, index: int) -> None:
        self._group = group
        self._index = index

    def __getattr__(self, name: str) -> Any:
        if name not in _FUTURE_FIELDS:
            raise AttributeError(name)
        producer = self._group.producer
        producer.check_same()
        with producer.settling:
            if "_condition" not in self.__dict__:
                super().__init__()
                if self.done():
                    self.settle()
                else:
                    self._group.waiting.append(self)
        return self.__dict__[name]

    def settle(self) -> None:
        """Become what the group became."""
        group = self._group
        if group.error is not None:
            self.set_exception(group.error)
        else:
            self.set_result(Position(group.partition, group.first + self._index))

    def done(self) -> bool:
        """Whether the record is written, or failed."""
        return self._group.first >= 0 or self._group.error is not None

    def result(self, timeout: float | None = None) -> Position:
        """The position, after waiting for it; raises what went wrong."""
        group = self._group
        if group.first >= 0:
            return Position(group.partition, group.first + self._index)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What went wrong, after waiting for it; None when nothing did."""
        return self._group.error if self.done() else super().exception(timeout)

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


class Producer:
    """Appends to one topic from any thread; a thread of its own sends what has come together.

    Each thread's records keep their order within a partition. A full buffer makes append() wait. Leaving `with`
    sends everything and raises the first error.
    """

    def __init__(self, topic: Topic, *, linger: Duration, buffer_bytes: Size) -> None:
        self.topic = topic
        self.linger = parse_duration(linger, "linger")
        self.buffer_bytes = parse_size(buffer_bytes, "buffer_bytes")
        if not 0 < self.buffer_bytes <= BUFFER_BYTES_MAX:
            raise ValueError(f"buffer_bytes={buffer_bytes!r} is out of range: write 1 to {BUFFER_BYTES_MAX} bytes.")
        self.engine = topic.log.writing()
        self.generation = self.engine.generation
        self.settling = threading.Lock()
        self.closed = False
        # Guards everything below.
        self._mutex = threading.Lock()
        self._work = threading.Condition(self._mutex)
        self._room = threading.Condition(self._mutex)
        self._route: Route | None = None
        self._groups: dict[int, Group] = {}
        # Where keyless records go until the next send.
        self._keyless: Group | None = None
        self._buffered = 0
        self._due = 0.0
        # Sends are numbered: this is the number of the next, up to which one is asked to hurry, and which one is done.
        self._number = 1
        self._hurry = 0
        self._done = 0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.engine.producers.add(self)

    def __repr__(self) -> str:
        return f"<Producer of {self.topic.name!r}{' closed' if self.closed else ''}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A producer cannot be pickled: pickle its Topic and call producer() in the other process.")

    def append(
        self,
        value: Data | None = UNSET,
        *,
        json: Any = UNSET,
        key: Data | None = None,
        headers: Mapping[str, Data] | None = None,
        timestamp: datetime | int | None = None,
    ) -> Future[Position]:
        """Hand over one record; the future has its position once it is written as the topic's `durable` asks."""
        if type(value) is not bytes or json is not UNSET:
            value = encode_value(value, json, key)
            size = RECORD_OVERHEAD_BYTES if value is None else len(value) + RECORD_OVERHEAD_BYTES
        else:
            size = len(value) + RECORD_OVERHEAD_BYTES
        plain = key is None and headers is None and timestamp is None
        with self._mutex:
            group = self._keyless
            if plain and group is not None and group.time and self._buffered + size <= EAGER_BYTES:
                # Nothing to check, nobody to wake: most records of a busy producer come this way.
                values = group.values
                future = PendingPosition(group, len(values))
                values.append(value)
                self._buffered += size
                return future
        return self._append(value, key, headers, timestamp, size)
