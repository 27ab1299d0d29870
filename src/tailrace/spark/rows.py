"""Rows on their way into topics: Arrow columns sorted by partition and made frames, without a loop over rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace import engine as engines
from tailrace.arrow import pyarrow, require
from tailrace.bulk import FrameBuilder
from tailrace.errors import RecordTooLargeError
from tailrace.spark.hashing import partitions_of

if TYPE_CHECKING:
    from tailrace.bulk import Frames
    from tailrace.spark.sink_columns import Columns
    from tailrace.spark.targets import Shape, Targets

# So much is gathered before it is sorted by partition, so that frames are long even with many partitions.
GATHERED_BYTES_MAX = 32 << 20
# Rows without a key stay on one partition for so much, then move on to the next.
KEYLESS_BYTES_MAX = 64 << 20


class Place(NamedTuple):
    """A partition that rows go to."""

    topic: str
    partition: int


class Rows:
    """The rows of one task, as frames of the partitions they go to."""

    def __init__(self, columns: Columns, topic: str | None, targets: Targets, turn: int) -> None:
        self.columns = columns
        self.topic = topic
        self.targets = targets
        # Where rows without a key go: tasks have different ones, so that together they touch few partitions each.
        self.turn = turn
        self.count = 0
        self.builders: dict[Place, FrameBuilder] = {}
        self._keyless_bytes = 0
        self._gathered: list[Any] = []
        self._gathered_bytes = 0

    @property
    def bytes(self) -> int:
        """How much the frames take."""
        return sum(builder.bytes for builder in self.builders.values())

    def add(self, batch: Any) -> bool:
        """Take in a RecordBatch; whether frames were made."""
        if batch.num_rows:
            self.count += batch.num_rows
            self._gathered.append(batch)
            self._gathered_bytes += batch.nbytes
        if self._gathered_bytes < GATHERED_BYTES_MAX:
            return False
        self.sort()
        return True

    def sort(self) -> None:
        """Make frames of what was gathered."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered:
            # More than 2 GiB of a column stay in several batches.
            for batch in pyarrow().Table.from_batches(gathered).combine_chunks().to_batches():
                self._sort_batch(batch)

    def finish(self, place: Place) -> Frames:
        """The frames of one partition so far; it begins anew."""
        return self.builders.pop(place).finish()

    def _sort_batch(self, batch: Any) -> None:
        named = _Named(batch, self.columns)
        for topic, rows in self._by_topic(named):
            shape = self.targets.shape(topic)
            rows.check(topic, shape)
            for partition, some in self._by_partition(rows, topic, shape):
                builder = self.builders.setdefault(Place(topic, partition), FrameBuilder(shape.compress))
                builder.extend(some.values, some.keys, some.headers, some.times)

    def _by_topic(self, rows: _Named) -> Iterator[tuple[str, _Named]]:
        if rows.topics is None or self.topic is not None:
            if self.topic is None:
                raise ValueError(NO_TOPIC)
            yield self.topic, rows
            return
        if rows.topics.null_count:
            raise ValueError(
                f"{rows.topics.null_count} rows have no topic: fill the column, or give one topic for all."
            )
        compute = require("pyarrow.compute", "arrow")
        encoded = rows.topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], rows
            return
        for code, some in rows.split(encoded.indices, compute):
            yield names[code], some

    def _by_partition(self, rows: _Named, topic: str, shape: Shape) -> Iterator[tuple[int, _Named]]:
        compute = require("pyarrow.compute", "arrow")
        codes = self._partitions(rows, topic, shape)
        if isinstance(codes, int):
            yield codes, rows
            return
        bounds = compute.min_max(codes).as_py()
        if bounds["min"] == bounds["max"]:
            yield bounds["min"], rows
        else:
            yield from rows.split(codes, compute)

    def _partitions(self, rows: _Named, topic: str, shape: Shape) -> Any:
        """The partition of every row: one number when it is the same for all, else a column."""
        pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
        given = rows.partitions
        if given is not None:
            _check_partitions(given, topic, shape, compute)
            if not given.null_count:
                return given.cast(pa.int32())
        chosen = self._chosen(rows, shape)
        if given is None or given.null_count == len(given):
            return chosen
        return compute.coalesce(
            given.cast(pa.int32()), pa.scalar(chosen, pa.int32()) if isinstance(chosen, int) else chosen
        )

    def _chosen(self, rows: _Named, shape: Shape) -> Any:
        """The partitions that the keys choose; rows without a key go together."""
        pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
        keys = rows.keys
        if shape.partitions == 1:
            return 0
        if keys is None:
            return self._keyless(rows.values, shape)
        if not keys.null_count:
            return partitions_of(keys, shape.partitions, shape.partitioner)
        present = keys.is_valid()
        by_key = partitions_of(keys.filter(present), shape.partitions, shape.partitioner)
        without = pa.scalar(self._keyless(rows.values, shape), pa.int32())
        return compute.replace_with_mask(pa.repeat(without, len(keys)), present, by_key)

    def _keyless(self, values: Any, shape: Shape) -> int:
        if self._keyless_bytes >= KEYLESS_BYTES_MAX:
            self._keyless_bytes = 0
            self.turn += 1
        self._keyless_bytes += values.nbytes
        return self.turn % shape.partitions


class _Named:
    """The columns of a batch by what they mean; None for one that says nothing."""

    __slots__ = ("headers", "keys", "partitions", "times", "topics", "values")

    def __init__(self, batch: Any, columns: Columns) -> None:
        pa = pyarrow()

        def column(index: int | None) -> Any:
            if index is None or batch.column(index).null_count == batch.num_rows:
                return None
            return batch.column(index)

        self.values = batch.column(columns.value).cast(pa.binary())
        keys = column(columns.key)
        self.keys = None if keys is None else keys.cast(pa.binary())
        self.topics = column(columns.topic)
        self.partitions = column(columns.partition)
        self.headers = _renamed_headers(column(columns.headers))
        self.times = _filled_times(column(columns.timestamp))

    def take(self, indices: Any) -> _Named:
        """Some of the rows."""
        taken: _Named = object.__new__(_Named)
        for name in self.__slots__:
            column = getattr(self, name)
            setattr(taken, name, None if column is None else column.take(indices))
        return taken

    def slice(self, first: int, count: int) -> _Named:
        """Rows that follow one another."""
        sliced: _Named = object.__new__(_Named)
        for name in self.__slots__:
            column = getattr(self, name)
            setattr(sliced, name, None if column is None else column.slice(first, count))
        return sliced

    def split(self, codes: Any, compute: Any) -> Iterator[tuple[int, _Named]]:
        """The rows of each code, in their order."""
        # The sort is stable, and for numbers that are near one another it only counts them.
        order = compute.sort_indices(codes)
        runs = compute.run_end_encode(codes.take(order))
        ordered = self.take(order)
        first = 0
        for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield code, ordered.slice(first, end - first)
            first = end

    def check(self, topic: str, shape: Shape) -> None:
        """Refuse what no record can be, before it is made a frame."""
        compute = require("pyarrow.compute", "arrow")
        longest = compute.max(compute.binary_length(self.values)).as_py() or 0
        if longest > shape.max_record_bytes:
            raise RecordTooLargeError(
                f"A value has {longest:,} bytes; the maximum of the topic {topic!r} is {shape.max_record_bytes:,}.",
                size=longest,
                maximum=shape.max_record_bytes,
                hint="Nothing was written; split the value, or raise max_record_bytes of the topic (64 MiB at most).",
            )
        if self.values.null_count:
            bare = self.values.is_null()
            if self.keys is not None:
                bare = compute.and_(bare, self.keys.is_null())
            count = compute.sum(bare).as_py()
            if count:
                raise ValueError(
                    f"{count} rows have neither a value nor a key: a null value deletes what its key stands for. "
                    "Filter them out: .where('value IS NOT NULL')"
                )


NO_TOPIC = (
    "It is not said which topic the rows go to: "
    'write .option("topic", "clicks"), or add a column topic with a name in every row.'
)


def _check_partitions(given: Any, topic: str, shape: Shape, compute: Any) -> None:
    for number in compute.min_max(given).as_py().values():
        if not 0 <= number < shape.partitions:
            raise ValueError(
                f"The column partition has {number}, and the topic {topic!r} has {shape.partitions} partitions, "
                "counted from 0. Where it is null, the key decides."
            )


def _renamed_headers(headers: Any) -> Any:
    """Headers as the library calls them: a list of structs of name and value; a map stays one."""
    pa = pyarrow()
    if headers is None or pa.types.is_map(headers.type):
        return headers
    if headers.flatten().null_count:
        raise ValueError("The column headers has a null among the headers of a row: leave it out, or give it a value.")
    # Arrow makes no list with nulls from offsets that are themselves a slice, so they are computed anew.
    offsets = require("pyarrow.compute", "arrow").add(headers.offsets, pa.scalar(0, pa.int32()))
    pairs = headers.values
    renamed = pa.StructArray.from_arrays([pairs.field(0), pairs.field(1)], names=["name", "value"])
    return pa.ListArray.from_arrays(offsets, renamed, mask=headers.is_null() if headers.null_count else None)


def _filled_times(times: Any) -> Any:
    """Times with now where there is none."""
    if times is None or not times.null_count:
        return times
    now = pyarrow().scalar(engines.FILES.now_us(), times.type)
    return require("pyarrow.compute", "arrow").coalesce(times, now)
