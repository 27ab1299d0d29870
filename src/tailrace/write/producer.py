"""The producer: appends in the background, in large batches, with a future for each record."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, Self

from tailrace.arguments import parse_duration, parse_size, parse_time, parse_ttl
from tailrace.disk import OneThread, Region, critical_region
from tailrace.disk.frame import NEVER
from tailrace.errors import BusyError, ClosedError, TailraceError, ThreadError
from tailrace.limits import FRAME_BYTES_TARGET, PRODUCER_BUFFER_BYTES_MAX
from tailrace.records import encode_data, encode_headers
from tailrace.write.futures import PendingBatch, PendingPosition
from tailrace.write.intake import UNSET, check_sizes, encode_value
from tailrace.write.recipe import expiry_after

if TYPE_CHECKING:
    from concurrent.futures import Future
    from datetime import datetime

    from tailrace.records import Position
    from tailrace.topics import Topic
    from tailrace.types import Data, Duration, Size
    from tailrace.write.recipe import Recipe

# Memory of a record besides its bytes, so that many small records fill the buffer as well.
RECORD_OVERHEAD_BYTES = 64
# With this many bytes buffered, lingering longer gains nothing.
EAGER_BYTES = FRAME_BYTES_TARGET


class Producer:
    """Appends to one topic from any thread; a background thread sends the buffered records.

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
        self._backend = topic.backend.producer()
        self.settling = threading.RLock()
        self.is_settling = self.settling._is_owned  # type: ignore[attr-defined]  # as threading.Condition does
        self.closed = False
        # The sending thread, started with the first record.
        self.loop = OneThread(self._run, f"tailrace-producer-{topic.name}")
        # Guards everything below. It is reentrant, so that a signal handler can be refused when its own thread owns it.
        self._mutex = threading.RLock()
        self._is_mine = self._mutex._is_owned  # type: ignore[attr-defined]
        self._clock_ns = self._backend.clock_ns()
        self._work = threading.Condition(self._mutex)
        self._room = threading.Condition(self._mutex)
        # The batch of the next send; `_plain` is the same batch while it holds only values.
        self._group: PendingBatch | None = None
        self._plain: PendingBatch | None = None
        # Bytes that are not sent yet, and the limit up to which an append needs no further checks.
        self._buffered = 0
        self._sending = 0
        self._limit = 0
        # What the topic takes, as of the last read of its settings; None before the first.
        self._recipe: Recipe | None = None
        # The largest value that needs no further check: -1 before that read, and while the topic has a schema.
        self._unchecked_bytes_max = -1
        self._due = 0.0
        # Sends are numbered: the one being filled, the last that need not linger, the last that is done.
        self._filling = 1
        self._hurried = 0
        self._done = 0
        self._error: BaseException | None = None
        self._backend.add(self)

    def __repr__(self) -> str:
        return f"<Producer of {self.topic.name!r}{' closed' if self.closed else ''}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A producer cannot be pickled: pickle its Topic and call producer() in the other process.")

    @critical_region(Region.WRITE)
    def append(
        self,
        value: Data | None = UNSET,
        *,
        json: Any = UNSET,
        key: Data | None = None,
        headers: Mapping[str, Data] | None = None,
        timestamp: datetime | int | None = None,
        ttl: Duration | None = None,
    ) -> Future[Position]:
        """Buffer one record; the future has its position once it is written as the topic's `durable` asks.

        With `ttl` it expires that long after this call; with "never" it does not, whatever the topic says.
        """
        if type(value) is not bytes or json is not UNSET:
            value = encode_value(value, json, key)
        mutex = self._mutex
        if mutex._is_owned():  # type: ignore[attr-defined]  # as threading.Condition does
            raise self.reentered()
        size = 0 if value is None else len(value)
        if key is None and headers is None and timestamp is None and ttl is None and size <= self._unchecked_bytes_max:
            group: PendingBatch | None = None
            future: PendingPosition | None = None
            # Like `with mutex`, at half its cost: no interrupt can come between the last step and the release.
            try:
                mutex.acquire()
                group = self._plain
                buffered = self._buffered + size + RECORD_OVERHEAD_BYTES
                if group is not None and buffered <= self._limit:
                    # Nothing to check and no thread to wake: most records of a busy producer take this path.
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
        return self._append(value, key, headers, timestamp, ttl)

    @critical_region(Region.WRITE)
    def _append(
        self,
        value: bytes | None,
        key: Data | None,
        headers: Mapping[str, Data] | None,
        timestamp: datetime | int | None,
        ttl: Duration | None,
    ) -> Future[Position]:
        self.check_same()
        key = None if key is None else encode_data(key, "key")
        stored = encode_headers(headers)
        time = None if timestamp is None else parse_time(timestamp, "timestamp", now_us=self._clock_ns() // 1000)
        expiry = 0 if ttl is None else expiry_after(parse_ttl(ttl), self._clock_ns() // 1000) or NEVER
        value_bytes, key_bytes = len(value or b""), len(key or b"")
        size = value_bytes + key_bytes + len(stored) + RECORD_OVERHEAD_BYTES
        recipe = self._recipe
        checked = None if recipe is None else recipe.schema
        if checked is not None:
            # Here, where other threads need not wait for it.
            checked.check_one(value, self.topic.name)
        with self._mutex:
            self._check_open()
            recipe = self._recipe
            if recipe is None:
                recipe = self._backend.prepare(value, key_bytes)
                checked = recipe.schema
                self._take_in(recipe)
            check_sizes(value_bytes, key_bytes, recipe.value_bytes_max)
            schema = recipe.schema
            if schema is not None and schema != checked:
                schema.check_one(value, self.topic.name)
            if self._buffered + size > self._limit:
                self._make_room(size)
            group = self._group
            if group is None:
                group = self._begin()
                group.schema = schema
            elif group.schema != schema:
                # The schema was changed since the batch was begun: all of it is checked when it is sent.
                group.schema = None
            future: PendingPosition = PendingPosition()
            future._group, future._index = group, len(group.values)
            # Cleared before the batch gets a column that the short path does not fill.
            self._plain = None
            group.add(value, key, stored, self._clock_ns() if time is None else time * 1000, expiry)
            self._buffered += size
            if key is None and group.plain:
                self._plain = group
            return future

    def _take_in(self, recipe: Recipe) -> None:
        """Check the records from now on as the topic asks."""
        self._recipe = recipe
        self._unchecked_bytes_max = recipe.value_bytes_max if recipe.schema is None else -1

    def _make_room(self, size: int) -> None:
        """Send the current batch at once; if the buffer is full, wait until there is room."""
        if self._group is not None:
            self._hurried = self._filling
            self._limit = self.buffer_bytes
            self._work.notify()
        # A callback of a future runs in the sending thread, so nothing would be sent while it waits.
        timeout = 0.0 if threading.current_thread() is self.loop.thread else self.topic.log.backend.timeout
        # A record that is larger than the whole buffer is sent alone.
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
            f"The producer of {self.topic.name!r} is in the middle of a call that this signal handler interrupted.",
            hint="Nothing of this call was taken; set a flag there, and continue when the interrupted call is over.",
        )

    def refuse_waiting(self, what: str) -> None:
        """Raise if waiting would never end: in the sending thread, or in a handler that interrupted a write."""
        refuse_callback([self], what)
        self._backend.refuse_handler(what)
        if self._is_mine():
            raise self.reentered()

    @critical_region(Region.WRITE)
    def flush(self, timeout: Duration | None = None) -> None:
        """Send everything that was appended so far; raise the first error since the last flush."""
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

    @critical_region(Region.WRITE)
    def close(self) -> None:
        """Send everything, end the thread, raise the first error; a second call waits for the first.

        In a callback of one of its own futures it does not wait: the thread ends once everything is sent.
        """
        if self._backend.is_forked():
            return
        self._backend.refuse_handler("Producer.close()")
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
        self._backend.discard(self)
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
            # The futures have this error, and the exception of the body explains the exit.
            if kind is None:
                raise

    def check_same(self) -> None:
        """Raise ForkedError in a child of the process that made this producer."""
        self._backend.check_same()

    def forget(self) -> None:
        """In a forked child: reset what was copied, so that it neither blocks nor accepts records."""
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
            recipe, error = self._backend.send(group)
            with self._mutex:
                if recipe is not None:
                    self._take_in(recipe)
                self._buffered -= size
                self._done += 1
                self._error = self._error or error
                self._room.notify_all()
        self._backend.discard(self)

    def _next(self) -> PendingBatch | None:
        """Wait for records and linger for more, and return the batch; None after the close."""
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


def refuse_callback(producers: Iterable[Producer], what: str) -> None:
    """Raise ThreadError in a callback of a future of these producers: it runs in the thread it would wait for."""
    if any(producer.loop.thread is threading.current_thread() for producer in producers):
        raise ThreadError(
            f"{what} was called in a callback of a producer's future, where it would wait for itself.",
            hint="Nothing was lost; let the callback tell another thread, which calls it.",
        )
