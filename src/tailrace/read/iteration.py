"""Iteration: one pass over a scan, and the iterators that return its records."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from operator import length_hint
from typing import TYPE_CHECKING

from tailrace.disk.columns import FramePart, Newest
from tailrace.engine.failures import typed_failures
from tailrace.errors import ClosedError, TailraceError, ThreadError
from tailrace.read.batch import Batch, record_at, records
from tailrace.read.follow import Follower, Hiding, note_hiding
from tailrace.read.merge import merged, one_by_one, turned
from tailrace.read.picked import Picked
from tailrace.read.request import Request, select
from tailrace.read.span import Span
from tailrace.read.visibility import still_visible
from tailrace.records import Record

if TYPE_CHECKING:
    from tailrace.backend import PartStream
    from tailrace.disk import Gauges
    from tailrace.engine.engine import Engine

# A batch takes no further frame once it has this many bytes, so that large records do not fill the memory.
BATCH_BYTES_MAX = 16 << 20
# Nor once it holds this many hidden records with its own, so that it ends before its frames take far more memory than
# what is shown of them: for the process to get new memory takes longer than to read into what it has.
HIDDEN_RECORDS_MAX = 16_384
# Records are made a frame at a time; from small frames, this many at a time.
READ_AHEAD_RECORDS = 256


class IterationPlaces:
    """The positions of an iteration; it outlives the iteration, and holds no file open."""

    def __init__(self, reverse: bool) -> None:
        self.reverse = reverse
        self.positions: dict[tuple[str, int], int] = {}
        # The records that are being returned one by one, the iterator over them, and the parts they come from.
        self.open: tuple[list[Record], Iterator[Record]] = ([], iter(()))
        self.parts: Sequence[FramePart] = ()

    def opened(self, span: Span) -> None:
        """Record the start of a partition; in a reverse iteration, its end."""
        self.positions[span.topic, span.partition.index] = max(span.stop, span.next) if self.reverse else span.next

    def emptied(self, spans: Iterable[Span]) -> None:
        """Record that spans are read to their ends: records that are not visible may follow the last part of one."""
        further = min if self.reverse else max
        for span in spans:
            key = (span.topic, span.partition.index)
            self.positions[key] = further(self.positions[key], span.next)

    def settle(self) -> None:
        """Record that all records that were returned one by one are read."""
        self.passed(self.parts)
        self.parts, self.open = (), ([], iter(()))

    def left(self, topic: str) -> None:
        """Remove a topic that was dropped: a successor of its name has other records at the same offsets."""
        self.positions = {key: offset for key, offset in self.positions.items() if key[0] != topic}

    def passed(self, parts: Sequence[FramePart]) -> None:
        """Record that parts were returned."""
        newest = {(part.topic, part.partition): part for part in parts}
        for key, part in newest.items():
            columns = part.columns
            self.positions[key] = columns.offset(part.first) if self.reverse else columns.offset(part.stop - 1) + 1

    def now(self) -> dict[tuple[str, int], int]:
        """Return the position of every partition, exact to the record."""
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
        # Whether parts come right after they were compared with the clock, if they are all that their frame shows.
        self.prompt = not request.by_time and not follow
        self.left = limit
        self.generation = engine.generation
        self.mutex = threading.Lock()
        self.places = IterationPlaces(request.reverse)
        self.gauges: Gauges | None = None if engine.closed else engine.store.context.gauges
        # Parts that were read and not returned yet, the next one last.
        self.rest: list[FramePart] = []
        self.error: Exception | None = None
        # The spans read since the parts last came to an end; not in `places`, which holds no file open.
        self.reading: dict[Span, None] = {}
        # By topic and partition what is visible in mutable topics: records may be deleted after they were read.
        self.hiding: Hiding = {}
        self.parts = _parts(engine, request, self.places, self.reading, self.hiding, follow, timeout, closed)

    def gather(self, max_records: int, *, whole: bool = False) -> list[FramePart]:
        """Return parts of at most `max_records` records, none at the end; a follower returns what it has.

        With `whole` no part is cut, and the last one may exceed `max_records`: but parts with records that expire or
        may be deleted are, so that none is returned long after it was read.
        """
        gathered: list[FramePart] = []
        room, size, hidden = max_records, 0, 0
        with _Alone(self):
            # Before anything is read, so that a topic found to be dropped by that read does not come back.
            self.places.settle()
            while room > 0 and size < BATCH_BYTES_MAX and hidden < HIDDEN_RECORDS_MAX:
                try:
                    part = self._pull()
                except StopIteration:
                    if not gathered:
                        self._empty()
                    break
                except TailraceError:
                    if gathered:
                        # Parts read before the damage are returned first; the next call raises `error`.
                        break
                    raise
                if part is None:
                    if gathered:
                        break
                    self._empty()
                    continue
                columns, first, stop = part.columns, part.first, part.stop
                count = stop - first
                if self.left is not None:
                    count = min(count, self.left)
                if not whole or type(columns) is Picked or columns.expiry is not None or self._hides(part):
                    count = min(count, room)
                if count < stop - first:
                    part, rest = _split(part, count, self.reverse)
                    # Needed even at the limit: some of the others may turn out to be hidden.
                    self.rest.append(rest)
                room -= count
                if self.left is not None:
                    self.left -= count
                if type(columns) is Picked:
                    hidden += columns.hidden * count // columns.count
                size += columns.weight * count // columns.count
                gathered.append(part)
                if type(part) is Newest:
                    break
        if self.gauges is not None and gathered:
            self.gauges.read_out(sum([part.stop - part.first for part in gathered]), size)
        return gathered

    def close(self) -> None:
        """Close the descriptors."""
        with _Alone(self):
            self._end()

    def _end(self) -> None:
        self.parts.close()
        self.rest.clear()
        # These spans were not read to their ends.
        self.reading.clear()

    def _empty(self) -> None:
        """Record that every part of the current spans was returned."""
        self.places.emptied(self.reading)
        self.reading.clear()

    def _pull(self) -> FramePart | None:
        """Return the next part; None if a follower is about to wait."""
        if self.error is not None:
            raise self.error
        while True:
            if self.left == 0:
                self._end()
                raise StopIteration
            fresh = self.prompt and not self.rest
            part = self.rest.pop() if self.rest else self._read()
            if part is None:
                return None
            columns = part.columns
            if not self.hiding and ((fresh and type(columns) is Picked) or columns.expiry is None):
                return part
            seen = self._seen(part)
            if seen:
                self.rest += reversed(seen[1:])
                return seen[0]

    def _read(self) -> FramePart | None:
        try:
            return next(self.parts)
        except StopIteration:
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self.reading.clear()
        if isinstance(error, Exception):
            # Further calls raise the same error: an end would look like the end of the records.
            self.error = error

    def _hides(self, part: FramePart) -> bool:
        """Return whether records of a part may be deleted."""
        return (part.topic, part.partition) in self.hiding

    def _seen(self, part: FramePart) -> Sequence[FramePart]:
        """Return what is visible of a part now, in the order of the pass."""
        visibility = self.hiding.get((part.topic, part.partition))
        try:
            kept = (part,) if visibility is None else visibility.again(part)
        except BaseException as error:
            self._fail(error)
            raise
        clock = self.engine.files.now_us
        seen = [shown for each in kept for shown in still_visible(each, clock)]
        return seen[::-1] if self.reverse else seen


def _parts(
    engine: Engine,
    request: Request,
    places: IterationPlaces,
    reading: dict[Span, None],
    hiding: Hiding,
    follow: bool,
    timeout: float | None,
    closed: Callable[[], bool],
) -> Generator[FramePart | None, None, None]:
    """Yield the parts of one pass, with typed errors. Not a method: an iteration is freed with its last reference."""
    try:
        with typed_failures(engine, request.name):
            if follow:
                yield from Follower(engine, request, timeout, closed, places, reading, hiding).parts()
            else:
                yield from _bounded(engine, request, places, reading, hiding, closed)
    except ClosedError:
        if not follow:
            raise


def _bounded(
    engine: Engine,
    request: Request,
    places: IterationPlaces,
    reading: dict[Span, None],
    hiding: Hiding,
    closed: Callable[[], bool],
) -> Iterator[FramePart]:
    if closed():
        raise ClosedError("The log is closed.")
    spans = select(engine, request)
    for span in spans:
        places.opened(span)
        note_hiding(span, hiding)
    spans = [span for span in spans if span.next < span.stop]
    reading.update(dict.fromkeys(spans))
    if request.reverse and not request.by_time:
        spans.reverse()
    streams = [span.backward() if request.reverse else span.forward(span.stop) for span in spans]
    if not request.by_time:
        yield from one_by_one(spans, streams, many=len(spans) > engine.tuning.readers_open_max)
    elif streams:
        yield from merged(streams, reverse=request.reverse)


class _Alone:
    """Guard: one thread at a time uses an iteration, in the process that made it."""

    __slots__ = ("iteration",)

    def __init__(self, iteration: Iteration) -> None:
        self.iteration = iteration

    def __enter__(self) -> None:
        iteration = self.iteration
        # Checked before the mutex, which a thread of the parent may have held at the fork.
        iteration.engine.check_same(iteration.generation)
        if not iteration.mutex.acquire(blocking=False):
            raise ThreadError("Another thread is using this iterator.")

    def __exit__(self, *_: object) -> None:
        self.iteration.mutex.release()


class Records(Iterator[Record]):
    """The records of an iteration, one by one."""

    __slots__ = ("__weakref__", "_decoded", "_iteration", "_left")

    def __init__(self, iteration: PartStream) -> None:
        self._iteration = iteration
        self._left: Iterator[Record] = iter(())
        # In a merge the current frame of each partition, because its runs may be as short as one record.
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
        """End the iteration and close the descriptors."""
        self._iteration.close()
        self.drop()

    def drop(self) -> None:
        """Discard records that were read ahead, so that the next one comes from the iteration."""
        places = self._iteration.places
        places.positions, places.parts = places.now(), ()
        places.open[0].clear()


class Batches(Iterator[Batch]):
    """The records of an iteration, many at a time."""

    __slots__ = ("_iteration", "_max_records")

    def __init__(self, iteration: PartStream, max_records: int) -> None:
        self._iteration = iteration
        self._max_records = max_records

    def __next__(self) -> Batch:
        parts = self._iteration.gather(self._max_records)
        if not parts:
            raise StopIteration
        self._iteration.places.passed(parts)
        return Batch([turned(part) for part in parts] if self._iteration.reverse else parts)

    def close(self) -> None:
        """End the iteration and close the descriptors."""
        self._iteration.close()


_live: weakref.WeakSet[Records] = weakref.WeakSet()


def _forget_read_ahead() -> None:
    """In a forked child: discard read-ahead records, so that an inherited iterator raises instead of repeating them."""
    for iterator in list(_live):
        iterator.drop()


os.register_at_fork(after_in_child=_forget_read_ahead)


def _split(part: FramePart, count: int, reverse: bool) -> tuple[FramePart, FramePart]:
    """Split a part: return the `count` records that come first, and the others."""
    at = part.stop - count if reverse else part.first + count
    low, high = part._replace(stop=at), part._replace(first=at)
    return (high, low) if reverse else (low, high)
