"""The scan: a lazy read of a topic, or of all topics of a pattern, as records, batches or Arrow data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from tailrace.arguments import StartPoint, parse_count, parse_duration, parse_flag, parse_last
from tailrace.read.iteration import Batches, IterationPlaces, Records
from tailrace.read.request import Offsets, Request, parse_partitions, parse_place
from tailrace.records import Record

if TYPE_CHECKING:
    from datetime import timedelta

    from tailrace.backend import LogBackend, PartStream
    from tailrace.read.batch import Batch
    from tailrace.types import Damage, Duration, Start

BATCH_RECORDS_DEFAULT = 65_536


class Scan(Iterable[Record]):
    """Records of one topic, or of every topic that a pattern matches, read anew by each iteration.

    Nothing is read before the iteration. Every iteration reads the topics up to their ends at its start; with `follow`
    it continues, including topics created later, until `timeout` idle seconds pass or the log is closed. With
    order="offset" the partitions come one after another, topics by name; with "time" they are merged by timestamp,
    where a follower merges what it finds in each round and does not wait for silent partitions.
    """

    def __init__(
        self,
        backend: LogBackend,
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
    ) -> None:
        if order not in ("offset", "time"):
            raise ValueError(f'order={order!r} is not an order: write "offset" or "time".')
        if parse_flag(reverse, "reverse") and parse_flag(follow, "follow"):
            raise ValueError("reverse=True and follow=True exclude each other: there is no newest record to begin at.")
        if on_damage not in ("error", "skip"):
            raise ValueError(f'on_damage={on_damage!r} is not known: write "error" to stop at damage, or "skip".')
        if isinstance(start, Mapping) and not start:
            # The positions of a scan before its first iteration.
            start = "earliest"
        if last is not None and start != "earliest":
            raise ValueError("last= and start= exclude each other: leave one of them out.")
        if timeout is not None and not follow:
            raise ValueError("timeout= is how long a follower waits: write follow=True with it, or leave it out.")
        self._backend = backend
        now = backend.now_us()
        begin, starts = parse_place(start, name, "start", now)
        end, stops = (None, None) if stop is None else parse_place(stop, name, "stop", now)
        self._request = Request(
            (name,),
            begin,
            # Stops by topic exclude any other stop.
            None if stops else end,
            None if last is None else parse_last(last),
            parse_partitions(partition),
            order == "time",
            reverse,
            starts=starts,
            stops=stops,
        )
        self._limit = None if limit is None else parse_count(limit, "limit")
        self._follow = parse_flag(follow, "follow")
        self._timeout = None if timeout is None else parse_duration(timeout, "timeout")
        self._places: IterationPlaces | None = None
        self._skips = on_damage == "skip"
        self._skipped: list[Damage] = []

    def __iter__(self) -> Iterator[Record]:
        return Records(self._start())

    def __reduce__(self) -> NoReturn:
        raise TypeError("A scan cannot be pickled: pickle its Topic and call read() in the other process.")

    def batches(self, max_records: int = BATCH_RECORDS_DEFAULT) -> Iterator[Batch]:
        """Return the records in batches of whole frames, cut at `max_records` and at 16 MiB of frames.

        Frames are held whole: a batch also ends when it holds 16,384 records that are hidden between its own.
        """
        return Batches(self._start(), parse_count(max_records, "max_records", minimum=1))

    def to_arrow(self, *, json: bool = False) -> Any:
        """Return a pyarrow.Table; with `json` the fields of JSON values become columns."""
        from tailrace.extras import pyarrow
        from tailrace.read.arrow import schema

        self._check_bounded("to_arrow()")
        if json:
            from tailrace.read.json_table import json_table

            return json_table(self._arrow_batches())
        return pyarrow().Table.from_batches(list(self._arrow_batches()), schema())

    def to_pandas(self, *, json: bool = False) -> Any:
        """Return a pandas.DataFrame."""
        from tailrace.read.arrow import to_pandas

        return to_pandas(self.to_arrow(json=json))

    def to_polars(self, *, json: bool = False) -> Any:
        """Return a polars.DataFrame."""
        from tailrace.read.arrow import to_polars

        return to_polars(self.to_arrow(json=json))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the records as a stream of Arrow batches, so that DuckDB and Polars can read a scan directly."""
        from tailrace.read.arrow import reader

        stream: object = reader(self._arrow_batches()).__arrow_c_stream__(requested_schema)
        return stream

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """By (topic, partition) the offset after the last record of the latest iteration: where to continue.

        It may be passed to another read as `start`. For a reverse scan it is the offset to stop at. Empty before the
        first iteration.
        """
        return {} if self._places is None else self._places.now()

    @property
    def skipped(self) -> list[Damage]:
        """With on_damage="skip" the ranges that the latest iteration skipped; empty if it found no damage."""
        return list(self._skipped)

    def first(self) -> Record | None:
        """Return the first record; None if there is none."""
        iteration = self._start(1)
        try:
            return next(Records(iteration), None)
        finally:
            iteration.close()

    def count(self) -> int:
        """Return the number of records, from footers and headers, without reading the records."""
        self._check_bounded("count()")
        if self._follow:
            return sum(map(len, self.batches()))
        total = self._backend.count(self._asked())
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
        return f"<Scan of {request.name!r}: {', '.join([*told, *(text for text, flag in flags if flag)])}>"

    def _start(self, limit: int | None = None) -> PartStream:
        limits = [each for each in (limit, self._limit) if each is not None]
        iteration = self._backend.iterate(self._asked(), min(limits, default=None), self._follow, self._timeout)
        # Not the iteration, whose files are closed as soon as its iterator is released.
        self._places = iteration.places
        return iteration

    def _asked(self) -> Request:
        """Return the request of a new iteration, with its own list for the ranges that it skips."""
        self._skipped = []
        return self._request._replace(skipped=self._skipped) if self._skips else self._request

    def _arrow_batches(self) -> Iterator[Any]:
        from tailrace.read.merge import parts_to_arrow

        iteration = self._start()
        while parts := iteration.gather(BATCH_RECORDS_DEFAULT):
            iteration.places.passed(parts)
            made = parts_to_arrow(parts, reverse=self._request.reverse)
            # Released before the next ones are read: a stream should need the memory of one batch.
            del parts
            yield made
            del made

    def _check_bounded(self, what: str) -> None:
        stops = self._request.stop is not None or self._request.stops is not None
        if self._follow and self._timeout is None and self._limit is None and not stops:
            raise ValueError(f"{what} of a follower never ends: give it limit=, timeout= or stop=.")


def _tell(point: StartPoint | None, places: Mapping[str, Offsets] | None) -> str:
    if point is None or places is not None:
        return f"positions in {len(places or ())} topics"
    if point.kind == "time":
        from tailrace.records import to_datetime

        return to_datetime(point.value).isoformat()
    if point.kind == "offsets":
        return str(dict(point.offsets))
    return str(point.value) if point.kind == "offset" else point.kind
