"""The scan: a lazy reading of a topic, or of all that a pattern matches, as records, batches or Arrow data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from tailrace.arguments import StartPoint, parse_count, parse_duration, parse_flag, parse_last, parse_start
from tailrace.errors import ClosedError
from tailrace.names import is_pattern
from tailrace.read.iteration import Batches, Iteration, IterationPlaces, Records, typed_failures
from tailrace.read.request import Offsets, is_positions, parse_positions, select
from tailrace.read.span import Request
from tailrace.records import Record

if TYPE_CHECKING:
    from datetime import timedelta

    from tailrace.engine.engine import Engine
    from tailrace.read.batch import Batch
    from tailrace.types import Damage, Duration, Start

BATCH_RECORDS_DEFAULT = 65_536


class Scan(Iterable[Record]):
    """Records of one topic, or of every topic that a pattern matches, read when iterated, each time anew.

    Nothing is read before. Every iteration sees the topics up to where they ended when that iteration began; with
    `follow` it goes on for ever, with topics that are made later, `timeout` idle seconds end it, and so does closing
    the log. With order="offset" the partitions come one after another, topics by name; with "time" they are merged by
    timestamp, where a follower merges what it finds at each look and does not wait for partitions that are silent.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        start: Start | Mapping[tuple[str, int], int] = "earliest",
        stop: Start | Mapping[tuple[str, int], int] | None = None,
        last: int | timedelta | str | None = None,
        limit: int | None = None,
        partition: int | Sequence[int] | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
        order: Literal["offset", "time"] = "offset",
        reverse: bool = False,
        on_damage: Literal["error", "skip"] = "error",
        mapped: bool = False,
        closed: Callable[[], bool] | None = None,
    ) -> None:
        if order not in ("offset", "time"):
            raise ValueError(f'order={order!r} is not an order: write "offset" or "time".')
        if parse_flag(reverse, "reverse") and parse_flag(follow, "follow"):
            raise ValueError("reverse=True and follow=True exclude each other: there is no newest record to begin at.")
        if on_damage not in ("error", "skip"):
            raise ValueError(f'on_damage={on_damage!r} is not known: write "error" to stop at damage, or "skip".')
        if isinstance(start, Mapping) and not start:
            # The positions of a scan that nobody iterated yet.
            start = "earliest"
        if last is not None and start != "earliest":
            raise ValueError("last= and start= exclude each other: leave one of them out.")
        if timeout is not None and not follow:
            raise ValueError("timeout= is how long a follower waits: write follow=True with it, or leave it out.")
        self._engine = engine
        now = engine.files.now_us()
        begin, starts = _parse_place(start, name, "start", now)
        end, stops = (None, None) if stop is None else _parse_place(stop, name, "stop", now)
        self._request = Request(
            name,
            begin,
            # Stops by topic leave no other place to stop at.
            None if stops else end,
            None if last is None else parse_last(last),
            parse_partitions(partition),
            order == "time",
            reverse,
            mapped,
            starts,
            stops,
        )
        self._limit = None if limit is None else parse_count(limit, "limit")
        self._follow = parse_flag(follow, "follow")
        self._timeout = None if timeout is None else parse_duration(timeout, "timeout")
        self._closed = closed or (lambda: engine.closed)
        self._places: IterationPlaces | None = None
        self._skips = on_damage == "skip"
        self._skipped: list[Damage] = []

    def __iter__(self) -> Iterator[Record]:
        return Records(self._start())

    def __reduce__(self) -> NoReturn:
        raise TypeError("A scan cannot be pickled: pickle its Topic and call read() in the other process.")

    def batches(self, max_records: int = BATCH_RECORDS_DEFAULT) -> Iterator[Batch]:
        """The records in batches of whole frames, cut at `max_records` and at 16 MiB of frames."""
        return Batches(self._start(), parse_count(max_records, "max_records", minimum=1))

    def to_arrow(self, *, json: bool = False) -> Any:
        """A pyarrow.Table; with `json` the fields of JSON values become columns."""
        from tailrace.read.arrow import pyarrow, schema

        self._check_bounded("to_arrow()")
        if json:
            from tailrace.read.json_table import json_table

            return json_table(self._arrow_batches())
        return pyarrow().Table.from_batches(list(self._arrow_batches()), schema())

    def to_pandas(self, *, json: bool = False) -> Any:
        """A pandas.DataFrame."""
        from tailrace.read.arrow import to_pandas

        return to_pandas(self.to_arrow(json=json))

    def to_polars(self, *, json: bool = False) -> Any:
        """A polars.DataFrame."""
        from tailrace.read.arrow import to_polars

        return to_polars(self.to_arrow(json=json))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The records as a stream of Arrow batches, so that DuckDB and Polars read a scan as it is."""
        from tailrace.read.arrow import reader

        stream: object = reader(self._arrow_batches()).__arrow_c_stream__(requested_schema)
        return stream

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """By (topic, partition) the offset after the last record that the latest iteration gave: where to go on.

        It may be given to another read as `start`. Of a reverse scan it is the offset to stop at. Empty before the
        first iteration.
        """
        return {} if self._places is None else self._places.now()

    @property
    def skipped(self) -> list[Damage]:
        """With on_damage="skip" the ranges that the latest pass left out; empty when it met no damage."""
        return list(self._skipped)

    def first(self) -> Record | None:
        """The first record, or None when there is none."""
        iteration = self._start(1)
        try:
            return next(Records(iteration), None)
        finally:
            iteration.close()

    def count(self) -> int:
        """How many records there are; footers and headers tell, the records are not read."""
        self._check_bounded("count()")
        if self._follow:
            return sum(map(len, self.batches()))
        if self._closed():
            raise ClosedError("The log is closed.")
        with typed_failures(self._engine, self._request.topic):
            total = sum(span.count() for span in select(self._engine, self._asked()) if span.next < span.stop)
        return total if self._limit is None else min(total, self._limit)

    def __repr__(self) -> str:
        request = self._request
        told = [f"from {_tell(request.start, request.starts)}"] if request.last is None else [f"last {request.last}"]
        if request.stop is not None or request.stops is not None:
            told.append(f"to {_tell(request.stop, request.stops)}")
        if request.partitions is not None:
            told.append(f"partitions {', '.join(map(str, request.partitions))}")
        if self._limit is not None:
            told.append(f"at most {self._limit}")
        flags = (("by time", request.by_time), ("newest first", request.reverse), ("following", self._follow))
        return f"<Scan of {request.topic!r}: {', '.join([*told, *(text for text, flag in flags if flag)])}>"

    def _start(self, limit: int | None = None) -> Iteration:
        limits = [each for each in (limit, self._limit) if each is not None]
        iteration = Iteration(
            self._engine, self._asked(), min(limits, default=None), self._follow, self._timeout, self._closed
        )
        # Not the iteration, whose files are closed as soon as its iterator is let go.
        self._places = iteration.places
        return iteration

    def _asked(self) -> Request:
        """The request of a new pass, with a list of its own for what it leaves out."""
        self._skipped = []
        return self._request._replace(skipped=self._skipped) if self._skips else self._request

    def _arrow_batches(self) -> Iterator[Any]:
        from tailrace.read.merge import parts_to_arrow

        iteration = self._start()
        while parts := iteration.gather(BATCH_RECORDS_DEFAULT):
            iteration.places.passed(parts)
            made = parts_to_arrow(parts, reverse=self._request.reverse)
            # Not to be held while the next ones are read: a stream should need the memory of one batch.
            del parts
            yield made
            del made

    def _check_bounded(self, what: str) -> None:
        stops = self._request.stop is not None or self._request.stops is not None
        if self._follow and self._timeout is None and self._limit is None and not stops:
            raise ValueError(f"{what} of a follower never ends: give it limit=, timeout= or stop=.")


def _parse_place(
    place: Start | Mapping[tuple[str, int], int], name: str, what: str, now_us: int
) -> tuple[StartPoint, Mapping[str, Offsets] | None]:
    """A start or a stop; of a pattern, the positions of another scan by topic."""
    if is_positions(place):
        places = parse_positions(place, name, what)  # type: ignore[arg-type]  # It is a mapping.
        return (StartPoint("earliest"), places) if is_pattern(name) else (StartPoint("offsets", 0, places[name]), None)
    # Whatever else it is, parse_start says what it should be.
    return parse_start(place, what, now_us=now_us), None  # type: ignore[arg-type]


def parse_partitions(partition: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """The partitions to read, in order; None for all of them."""
    if partition is None:
        return None
    if isinstance(partition, (str, bytes, bytearray, memoryview, Mapping, Set)):
        raise TypeError(f"partition must be an integer or a list of them, not {type(partition).__name__}.")
    many = partition if isinstance(partition, Iterable) else [partition]
    chosen = sorted({parse_count(each, "partition") for each in many})
    if not chosen:
        raise ValueError("partition=[] names no partition: leave it out to read all of them.")
    return tuple(chosen)


def _tell(point: StartPoint | None, places: Mapping[str, Offsets] | None) -> str:
    if point is None or places is not None:
        return f"positions in {len(places or ())} topics"
    if point.kind == "time":
        from tailrace.records import to_datetime

        return to_datetime(point.value).isoformat()
    if point.kind == "offsets":
        return str(dict(point.offsets))
    return str(point.value) if point.kind == "offset" else point.kind
