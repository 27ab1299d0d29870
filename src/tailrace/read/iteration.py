"""Iteration: one pass over a scan, and the iterators that hand out what it finds."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from operator import length_hint
from typing import TYPE_CHECKING

from tailrace.disk.columns import FramePart, Newest
from tailrace.disk.context import storage_error
from tailrace.disk.failures import by_system
from tailrace.errors import ClosedError, TailraceError, ThreadError
from tailrace.read.batch import Batch, record_at, records
from tailrace.read.follow import Follower
from tailrace.read.merge import merged, turned
from tailrace.read.request import select
from tailrace.read.span import READERS_OPEN_MAX, Request, Span, one_by_one
from tailrace.records import Record

if TYPE_CHECKING:
    from tailrace.disk.gauges import Gauges
    from tailrace.engine.engine import Engine

# A batch takes no further frame once it has so many bytes, so that large records do not fill the memory.
BATCH_BYTES_MAX = 16 << 20
# Records are made a frame at a time, of small frames so many at a time.
READ_AHEAD_RECORDS = 256


class IterationPlaces:
    """Where an iteration stands; it outlives the iteration, and holds nothing open."""

    def __init__(self, reverse: bool) -> None:
        self.reverse = reverse
        self.positions: dict[tuple[str, int], int] = {}
        # The records that are being handed out one by one, the iterator over them, and the parts they are of.
        self.open: tuple[list[Record], Iterator[Record]] = ([], iter(()))
        self.parts: Sequence[FramePart] = ()

    def opened(self, span: Span) -> None:
        """Note where a partition begins; of a reverse iteration, where it ends."""
        self.positions[span.topic, span.partition.index] = max(span.stop, span.next) if self.reverse else span.next

    def settle(self) -> None:
        """Note that all records which were handed out one by one are read."""
        self.passed(self.parts)
        self.parts, self.open = (), ([], iter(()))

    def left(self, topic: str) -> None:
        """Forget a topic that was dropped: a successor of its name has other records at the same offsets."""
        self.positions = {key: offset for key, offset in self.positions.items() if key[0] != topic}

    def passed(self, parts: Sequence[FramePart]) -> None:
        """Note that parts were handed out."""
        newest = {(part.topic, part.partition): part for part in parts}
        for key, part in newest.items():
            columns = part.columns
            self.positions[key] = columns.offset(part.first) if self.reverse else columns.offset(part.stop - 1) + 1

    def now(self) -> dict[tuple[str, int], int]:
        """Where every partition stands, exact to the record."""
        places = dict(self.positions)
        made, left = self.open
        for record in made[: len(made) - length_hint(left)]:
            places[record.topic, record.partition] = record.offset if self.reverse else record.offset + 1
        return places


class Iteration:
    """One pass over a scan: parts in order, for one thread at a time, in one process."""

    def __init__(
        self,
        engine: Engine,
        request: Request,
        limit: int | None,
        follow: bool,
        timeout: float | None,
        closed: Callable[[], bool],
    ) -> None:
        self.engine = engine
        self.reverse = request.reverse
        self.merging = request.by_time
        self.left = limit
        self.generation = engine.generation
        self.mutex = threading.Lock()
        self.places = IterationPlaces(request.reverse)
        self.gauges: Gauges | None = None if engine.closed else engine.store.context.gauges
        self.rest: FramePart | None = None
        self.error: Exception | None = None
        self.parts = _parts(engine, request, self.places, follow, timeout, closed)

    def gather(self, max_records: int, *, whole: bool = False) -> list[FramePart]:
        """Parts of so many records at most, none at the end; a follower takes what is there.

        With `whole` no part is cut: the last one may hold more records than asked for.
        """
        gathered: list[FramePart] = []
        room, size = max_records, 0
        with _Alone(self):
            # Before anything is read, so that a topic which is then found to be dropped does not come back.
            self.places.settle()
            while room > 0 and size < BATCH_BYTES_MAX:
                try:
                    part = self._pull()
                except StopIteration:
                    break
                except TailraceError:
                    if gathered:
                        # What was read before the damage is handed out first; `error` is raised the next time.
                        break
                    raise
                if part is None:
                    if gathered:
                        break
                    continue
                columns, first, stop = part.columns, part.first, part.stop
                if stop - first > room and not whole:
                    part, self.rest = _split(part, room, self.reverse)
                    room = 0
                room -= stop - first
                size += columns.weight * (stop - first) // columns.count
                gathered.append(part)
                if type(part) is Newest:
                    break
        if self.gauges is not None and gathered:
            self.gauges.read_out(sum([part.stop - part.first for part in gathered]), size)
        return gathered

    def close(self) -> None:
        """Give the descriptors back."""
        with _Alone(self):
            self.parts.close()

    def _pull(self) -> FramePart | None:
        """The next part within the limit; None when a follower is about to wait."""
        if self.error is not None:
            raise self.error
        part, self.rest = self.rest, None
        if part is None:
            if self.left == 0:
                self.parts.close()
                raise StopIteration
            try:
                part = next(self.parts)
            except StopIteration:
                raise
            except Exception as error:
                # Asked again, it says the same: an end would look like the end of the records.
                self.error = error
                raise
            if part is not None and self.left is not None:
                if part.stop - part.first > self.left:
                    part, _ = _split(part, self.left, self.reverse)
                self.left -= part.stop - part.first
        return part


def _parts(
    engine: Engine,
    request: Request,
    places: IterationPlaces,
    follow: bool,
    timeout: float | None,
    closed: Callable[[], bool],
) -> Generator[FramePart | None, None, None]:
    """The parts of one pass, every failure typed. No method: an iteration is freed with its last reference."""
    try:
        with typed_failures(engine, request.topic):
            if follow:
                yield from Follower(engine, request, timeout, closed, places.opened, places.left).parts()
            else:
                yield from _bounded(engine, request, places, closed)
    except ClosedError:
        if not follow:
            raise


def _bounded(
    engine: Engine, request: Request, places: IterationPlaces, closed: Callable[[], bool]
) -> Iterator[FramePart]:
    if closed():
        raise ClosedError("The log is closed.")
    spans = select(engine, request)
    for span in spans:
        places.opened(span)
    spans = [span for span in spans if span.next < span.stop]
    if request.reverse and not request.by_time:
        spans.reverse()
    streams = [span.backward() if request.reverse else span.forward(span.stop) for span in spans]
    if not request.by_time:
        yield from one_by_one(spans, streams, many=len(spans) > READERS_OPEN_MAX)
    elif streams:
        yield from merged(streams, reverse=request.reverse)


@contextmanager
def typed_failures(engine: Engine, topic: str) -> Iterator[None]:
    """Let no failure out that is not one of ours."""
    try:
        yield
    except ValueError as error:
        # The tails are unmapped when the log is closed, and whoever reads a word then gets this.
        if not engine.closed:
            raise
        raise ClosedError("The log was closed while it was read.") from error
    except by_system() as error:
        if isinstance(error, TailraceError):
            raise
        raise storage_error(error, f"Reading {topic!r}") from error


class _Alone:
    """An iteration entered by one thread, in the process that made it."""

    __slots__ = ("iteration",)

    def __init__(self, iteration: Iteration) -> None:
        self.iteration = iteration

    def __enter__(self) -> None:
        iteration = self.iteration
        # Before the mutex, which a thread of the parent may have held when it forked.
        iteration.engine.check_same(iteration.generation)
        if not iteration.mutex.acquire(blocking=False):
            raise ThreadError("Another thread is using this iterator.")

    def __exit__(self, *_: object) -> None:
        self.iteration.mutex.release()


class Records(Iterator[Record]):
    """The records of an iteration, one by one."""

    __slots__ = ("__weakref__", "_decoded", "_iteration", "_left")

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self._left: Iterator[Record] = iter(())
        # Of a merge the current frame of each partition, because its runs may be as short as one record.
        self._decoded: dict[tuple[str, int], tuple[object, list[Record]]] = {}
        _live.add(self)

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        try:
            return next(self._left)
        except StopIteration:
            pass
        return self._more()

    def _more(self) -> Record:
        iteration = self._iteration
        parts = iteration.gather(READ_AHEAD_RECORDS, whole=True)
        made: list[Record] = []
        for part in parts:
            some = self._make(part)
            if iteration.reverse:
                some.reverse()
            made += some
        self._left = iter(made)
        iteration.places.open, iteration.places.parts = (made, self._left), parts
        return next(self._left)

    def _make(self, part: FramePart) -> list[Record]:
        topic, partition, columns, first, stop = part
        if columns.count == 1:
            return [record_at(part, 0)]
        if not self._iteration.merging:
            return [*records(part)]
        known = self._decoded.get((topic, partition))
        if known is None or known[0] is not columns:
            if stop - first == columns.count:
                return [*records(part)]
            known = self._decoded[topic, partition] = (columns, [*records(part._replace(first=0, stop=columns.count))])
        return known[1][first:stop]

    def close(self) -> None:
        """End the iteration and give the descriptors back."""
        self._iteration.close()
        self.drop()

    def drop(self) -> None:
        """Forget records that were read ahead, so that the next one is asked of the iteration."""
        places = self._iteration.places
        places.positions, places.parts = places.now(), ()
        places.open[0].clear()


class Batches(Iterator[Batch]):
    """The records of an iteration, many at a time."""

    __slots__ = ("_iteration", "_max_records")

    def __init__(self, iteration: Iteration, max_records: int) -> None:
        self._iteration = iteration
        self._max_records = max_records

    def __next__(self) -> Batch:
        parts = self._iteration.gather(self._max_records)
        if not parts:
            raise StopIteration
        self._iteration.places.passed(parts)
        return Batch([turned(part) for part in parts] if self._iteration.reverse else parts)

    def close(self) -> None:
        """End the iteration and give the descriptors back."""
        self._iteration.close()


_live: weakref.WeakSet[Records] = weakref.WeakSet()


def _forget_read_ahead() -> None:
    """In a forked child: the next record of an inherited iterator must be an error, not one that both would see."""
    for iterator in list(_live):
        iterator.drop()


os.register_at_fork(after_in_child=_forget_read_ahead)


def _split(part: FramePart, count: int, reverse: bool) -> tuple[FramePart, FramePart]:
    """So many records that come first, and the others."""
    at = part.stop - count if reverse else part.first + count
    low, high = part._replace(stop=at), part._replace(first=at)
    return (high, low) if reverse else (low, high)
