"""The producer: appends in the background, in large groups, with a future for each record."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, Self

from tailrace.arguments import parse_duration, parse_size, parse_time
from tailrace.disk.threads import OneThread
from tailrace.engine.engine import name_damage
from tailrace.engine.reentrancy import refuse_handler
from tailrace.errors import (
    BusyError,
    ClosedError,
    CorruptionError,
    TailraceError,
    ThreadError,
    TopicNotFoundError,
)
from tailrace.limits import FRAME_BYTES_TARGET, PARTICIPANTS_MAX, PRODUCER_BUFFER_BYTES_MAX
from tailrace.records import encode_data, encode_headers
from tailrace.write.futures import PartitionBatch, PendingBatch, PendingPosition
from tailrace.write.intake import UNSET, check_sizes, encode_value

if TYPE_CHECKING:
    from concurrent.futures import Future
    from datetime import datetime

    from tailrace.records import Position
    from tailrace.topics import Topic
    from tailrace.types import Data, Duration, Size
    from tailrace.write.route import Route

# What a record costs in memory besides its bytes, so that many small ones fill the buffer as well.
RECORD_OVERHEAD_BYTES = 64
# As soon as so much is buffered, lingering would gain nothing.
EAGER_BYTES = FRAME_BYTES_TARGET


class Producer:
    """Appends to one topic from any thread; a thread of its own sends what has come together.

    Each thread's records keep their order within a partition. A full buffer makes append() wait. Leaving `with`
    sends everything and raises the first error.
    """

    def __init__(self, topic: Topic, *, linger: Duration, buffer_bytes: Size) -> None:
        self.topic = topic
        self.linger = parse_duration(linger, "linger")
        self.buffer_bytes = parse_size(buffer_bytes, "buffer_bytes")
        if not 0 < self.buffer_bytes <= PRODUCER_BUFFER_BYTES_MAX:
            raise ValueError(
                f"buffer_bytes={buffer_bytes!r} is out of range: write 1 to {PRODUCER_BUFFER_BYTES_MAX} bytes."
            )
        self.engine = topic.log.writing()
        self.generation = self.engine.generation
        self.settling = threading.RLock()
        self.is_settling = self.settling._is_owned  # type: ignore[attr-defined]  # as threading.Condition does
        self.closed = False
        # The thread that sends, once there is something to send.
        self.loop = OneThread(self._run, f"tailrace-producer-{topic.name}")
        # Guards everything below. It knows its owner, so that a signal handler of that one is refused at once.
        self._mutex = threading.RLock()
        self._is_mine = self._mutex._is_owned  # type: ignore[attr-defined]
        self._clock_ns = self.engine.files.clock_ns()
        self._work = threading.Condition(self._mutex)
        self._room = threading.Condition(self._mutex)
        # What the next send takes; and the same again as long as it holds nothing but values.
        self._group: PendingBatch | None = None
        self._plain: PendingBatch | None = None
        # Bytes that were not sent yet, and up to how many an append needs to look at nothing else.
        self._buffered = 0
        self._sending = 0
        self._limit = 0
        # The largest value, as of the last look at the topic; 0 before the first.
        self._value_bytes_max = 0
        self._due = 0.0
        # Sends are numbered: the one that is being filled, the one that need not linger, the one that is done.
        self._filling = 1
        self._hurried = 0
        self._done = 0
        self._error: BaseException | None = None
        self.engine.producers.add(self)
        if topic.log.closed:
            # Closed since it was asked for its engine: it may have looked for producers already.
            self.engine.producers.discard(self)
            raise ClosedError("The log is closed.")

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
        mutex = self._mutex
        if mutex._is_owned():  # type: ignore[attr-defined]  # as threading.Condition does
            raise self.reentered()
        size = 0 if value is None else len(value)
        if key is None and headers is None and timestamp is None and size <= self._value_bytes_max:
            group: PendingBatch | None = None
            future: PendingPosition | None = None
            # What `with mutex` does, at half its price: no interrupt can come between the last step and the release.
            try:
                mutex.acquire()
                group = self._plain
                buffered = self._buffered + size + RECORD_OVERHEAD_BYTES
                if group is not None and buffered <= self._limit:
                    # Nothing to check, nobody to wake: most records of a busy producer come this way.
                    values = group.values
                    future = PendingPosition()
                    future._group, future._index = group, len(values)
                    group.stamps.append(self._clock_ns())
                    values.append(value)
                    self._buffered = buffered
            except BaseException:
                try:
                    if group is not None:
                        del group.stamps[len(group.values) :]
                finally:
                    try:
                        mutex.release()
                    except RuntimeError:
                        # The interrupt came before the lock was taken.
                        pass
                raise
            mutex.release()
            if future is not None:
                return future
        return self._append(value, key, headers, timestamp)

    def _append(
        self,
        value: bytes | None,
        key: Data | None,
        headers: Mapping[str, Data] | None,
        timestamp: datetime | int | None,
    ) -> Future[Position]:
        self.check_same()
        key = None if key is None else encode_data(key, "key")
        stored = encode_headers(headers)
        time = None if timestamp is None else parse_time(timestamp, "timestamp", now_us=self.engine.files.now_us())
        value_bytes, key_bytes = len(value or b""), len(key or b"")
        size = value_bytes + key_bytes + len(stored) + RECORD_OVERHEAD_BYTES
        with self._mutex:
            self._check_open()
            if not self._value_bytes_max:
                self.topic.shape(self.engine).check_first(value_bytes, key_bytes, None, None)
                self._value_bytes_max = self.topic.route(self.engine).maximum
            check_sizes(value_bytes, key_bytes, self._value_bytes_max)
            if self._buffered + size > self._limit:
                self._make_room(size)
            group = self._group
            if group is None:
                group = self._begin()
            future: PendingPosition = PendingPosition()
            future._group, future._index = group, len(group.values)
            # Before the group has a column that the short way knows nothing of.
            self._plain = None
            group.add(value, key, stored, self._clock_ns() if time is None else time * 1000)
            self._buffered += size
            if key is None and group.plain:
                self._plain = group
            return future

    def _make_room(self, size: int) -> None:
        """So much is buffered that it is sent at once; and when the buffer is full, wait until some of it was."""
        if self._group is not None:
            self._hurried = self._filling
            self._limit = self.buffer_bytes
            self._work.notify()
        # A callback of a future runs in the sending thread, and nothing is sent while it waits.
        timeout = 0.0 if threading.current_thread() is self.loop.thread else self.topic.log.timeout
        # A record that is larger than the whole buffer goes alone.
        if not self._room.wait_for(lambda: not self._buffered or self._buffered + size <= self.buffer_bytes, timeout):
            raise BusyError(
                f"The buffer of the producer of {self.topic.name!r} stayed full for {timeout:g} s.",
                hint="This record was not taken, those before it are still buffered; slow down or try again.",
            )
        self._check_open()

    def _begin(self) -> PendingBatch:
        self._due = monotonic() + self.linger
        self._limit = min(self._buffered + EAGER_BYTES, self.buffer_bytes)
        self.loop.start()
        self._work.notify()
        group = self._group = PendingBatch(self)
        return group

    def reentered(self) -> BusyError:
        return BusyError(
            f"The producer of {self.topic.name!r} is in the middle of a call that this signal handler came into.",
            hint="Nothing of this call was taken; set a flag there, and go on when the interrupted call is over.",
        )

    def refuse_waiting(self, what: str) -> None:
        """Raise where waiting for the sender would never end: in its own thread, and above what it waits for."""
        refuse_callback([self], what)
        refuse_handler(self.engine, what)
        if self._is_mine():
            raise self.reentered()

    def flush(self, timeout: Duration | None = None) -> None:
        """Send everything that was appended so far; raises the first error since the last flush."""
        self.check_same()
        self.refuse_waiting("flush()")
        seconds = None if timeout is None else parse_duration(timeout, "timeout")
        with self._mutex:
            wanted = self._filling if self._group is not None else self._filling - 1
            self._hurried = max(self._hurried, wanted)
            self._work.notify()
            if not self._room.wait_for(lambda: self._done >= wanted, seconds):
                raise BusyError(
                    f"The producer of {self.topic.name!r} did not send everything within {seconds:g} s.",
                    hint="Nothing was lost: what is left is still buffered and is being sent.",
                )
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Send everything, end the thread, raise the first error; a second call waits for the first.

        In a callback of one of its own futures it cannot wait: the thread ends by itself once everything is sent.
        """
        if self.generation != self.engine.generation:
            return
        refuse_handler(self.engine, "Producer.close()")
        if self._is_mine():
            raise self.reentered()
        with self._mutex:
            self.closed = True
            self._plain = None
            self._work.notify()
            self._room.notify_all()
        if self.loop.thread is threading.current_thread():
            return
        self.loop.join()
        self.engine.producers.discard(self)
        with self._mutex:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        self.check_same()
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            self.close()
        except TailraceError:
            # The futures have it, and what left the body says why this ends.
            if kind is None:
                raise

    def check_same(self) -> None:
        """ForkedError in a child of the process that made this."""
        self.engine.check_same(self.generation)

    def forget(self) -> None:
        """In a forked child: what was copied must neither block nor look ready."""
        self._mutex = threading.RLock()
        self._is_mine = self._mutex._is_owned  # type: ignore[attr-defined]
        self._plain = None

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("The producer is closed.")

    # The thread.

    def _run(self) -> None:
        while (group := self._next()) is not None:
            size = self._sending
            error = self._send(group)
            with self._mutex:
                self._buffered -= size
                self._done += 1
                self._error = self._error or error
                self._room.notify_all()
        self.engine.producers.discard(self)

    def _next(self) -> PendingBatch | None:
        """Wait for records, and for more of them as long as it is worth it; nothing after the close."""
        with self._mutex:
            self._work.wait_for(lambda: self._group is not None or self.closed)
            while not self.closed and self._hurried < self._filling and (left := self._due - monotonic()) > 0:
                self._work.wait(left)
            group, self._group = self._group, None
            if group is not None:
                self._filling += 1
                self._sending = self._buffered
                self._plain = None
            return group

    def _send(self, group: PendingBatch) -> BaseException | None:
        """Write what was buffered; its futures learn how it went, and the first error is returned."""
        failed: BaseException | None = None
        engine = self.engine
        route: Route | None = None
        parts = [PartitionBatch(0, range(len(group)))] if len(group) else []
        group.seal()
        engine.enter()
        try:
            while parts:
                size = len(parts)
                try:
                    if route is None:
                        route = self.topic.route(engine)
                        parts = group.place(parts, route, partial(self.topic.sticky.next, route.count))
                    # What waits for the disk shares one commit. The rest is written partition by partition.
                    size = PARTICIPANTS_MAX if route.durable == 0.0 else 1
                    firsts = route.store.extend([group.write(part, route) for part in parts[:size]], route.durable)
                except TopicNotFoundError:
                    # Dropped since the route was taken: its successor takes what is left, with the partitions it has.
                    route = None
                    continue
                except Exception as error:  # noqa: BLE001  # whatever it is, whoever waits for the futures must know
                    failed = failed or error
                    if isinstance(error, CorruptionError):
                        name_damage(error, self.topic.name)
                    for part in parts[:size]:
                        part.error = error
                        group.settle(part)
                else:
                    for part, first in zip(parts, firsts, strict=False):
                        part.first = first
                        group.settle(part)
                    with self._mutex:
                        self._value_bytes_max = route.maximum
                del parts[:size]
        finally:
            engine.leave()
        return failed


def refuse_callback(producers: Iterable[Producer], what: str) -> None:
    """ThreadError in a callback of a future of one of these: it runs in the thread that would be waited for."""
    if any(producer.loop.thread is threading.current_thread() for producer in producers):
        raise ThreadError(
            f"{what} was called in a callback of a producer's future, where it would wait for itself.",
            hint="Nothing was lost; let the callback tell another thread, which calls it.",
        )
