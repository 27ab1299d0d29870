"""Pending records: groups of them on their way to a partition, and the futures of their positions."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn

from tailrace.intake import Rows
from tailrace.records import Position

if TYPE_CHECKING:
    from tailrace.producer import Producer

_FUTURE_FIELDS = frozenset({"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"})


class Group(Rows):
    """Records of one partition that are sent together; all have the time of the first that came without its own."""

    __slots__ = ("error", "first", "partition", "producer", "time", "waiting")

    def __init__(self, producer: Producer, partition: int) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[bytes] | None = None
        self.times: list[int] | None = None
        self.producer = producer
        self.partition = partition
        self.time = producer.engine.files.now_us()
        self.first = -1
        self.error: BaseException | None = None
        # Futures that somebody waits for; all others find their result here when they are asked.
        self.waiting: dict[PendingPosition, None] = {}

    @property
    def plain(self) -> bool:
        """Whether it holds values and nothing else."""
        return self.keys is None and self.headers is None and self.times is None

    def add(self, value: bytes | None, key: bytes | None, headers: bytes, time: int | None) -> None:
        """Add a record; a column begins with the first record that has something in it."""
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
            waiting, self.waiting = self.waiting, {}
        for future in waiting:
            if "_condition" not in future.__dict__:
                # An interrupt came before it was a future: it becomes a settled one when it is asked again.
                continue
            try:
                self.tell(future, future._index)
            except BaseException as error:  # noqa: BLE001  # a callback that wants to end its thread would end the sender
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                )

    def tell(self, future: Future[Position], index: int) -> None:
        """Settle the future of one of the records."""
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(Position(self.partition, self.first + index))


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
        group = self._group
        producer = group.producer
        producer.check_same()
        if producer.is_settling():
            raise producer.reentered()
        with producer.settling:
            if "_condition" not in self.__dict__:
                # The fields come in one step, so that no interrupt leaves a future that nobody settles.
                made: Future[Position] = Future()
                if self.done():
                    group.tell(made, self._index)
                else:
                    group.waiting[self] = None
                self.__dict__.update(made.__dict__)
        return self.__dict__[name]

    def done(self) -> bool:
        """Whether the record is written, or failed."""
        return self._group.first >= 0 or self._group.error is not None

    def result(self, timeout: float | None = None) -> Position:
        """The position, after waiting for it; raises what went wrong."""
        group = self._group
        if group.first >= 0:
            return Position(group.partition, group.first + self._index)
        if group.error is None:
            group.producer.refuse_waiting("result()")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What went wrong, after waiting for it; None when nothing did."""
        if self.done():
            return self._group.error
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
