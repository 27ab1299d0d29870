"""Rows to frames: Arrow columns are sorted by partition and encoded, without a loop over rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace import bulk
from tailrace.bulk import FrameBuilder, Frames
from tailrace.errors import RecordTooLargeError, SchemaError
from tailrace.extras import pyarrow, require
from tailrace.spark import limits
from tailrace.spark.sink.hashing import partitions_of

if TYPE_CHECKING:
    from tailrace.bulk import TopicShape
    from tailrace.spark.sink.columns import ColumnIndexes
    from tailrace.spark.sink.targets import Targets, TargetShape


class TargetPartition(NamedTuple):
    """A partition that rows go to."""

    topic: str
    partition: int


class TaskRows:
    """The rows of one task, as frames of the partitions they go to."""

    def __init__(self, columns: ColumnIndexes, topic: str | None, targets: Targets, turn: int) -> None:
        self.columns = columns
        self.topic = topic
        self.targets = targets
        # The first partition for rows without a key: it differs between tasks, so that each task touches few
        # partitions.
        self.turn = turn
        self.count = 0
        self.builders: dict[TargetPartition, FrameBuilder] = {}
        self._keyless_bytes = 0
        self._gathered: list[Any] = []
        self._gathered_bytes = 0

    @property
    def bytes(self) -> int:
        """Size of the frames."""
        return sum(builder.bytes for builder in self.builders.values())

    def add(self, batch: Any) -> bool:
        """Take in a RecordBatch, and return whether frames were made."""
        if batch.num_rows:
            self.count += batch.num_rows
            self._gathered.append(batch)
            self._gathered_bytes += batch.nbytes
        if self._gathered_bytes < limits.LIMITS.gathered_bytes_max:
            return False
        self.sort()
        return True

    def sort(self) -> None:
        """Make frames of the gathered rows."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered:
            # A column of more than 2 GiB stays in several batches.
            for batch in pyarrow().Table.from_batches(gathered).combine_chunks().to_batches():
                self._sort_batch(batch)

    def finish(self, place: TargetPartition) -> Frames:
        """Return the frames of one partition so far, and start over."""
        return self.builders.pop(place).finish()

    def _sort_batch(self, batch: Any) -> None:
        named = _Named(batch, self.columns)
        for topic, rows in self._by_topic(named):
            shape = self.targets.shape(topic)
            rows.check(topic, shape)
            ordered, runs = self._by_partition(rows, topic, shape)
            try:
                frames = ordered.frames([*runs.values()], self.targets.checked(topic))
            except SchemaError as error:
                error.message = f"Rows for the topic {topic!r}: {error.message}"
                raise
            for partition, some in zip(runs, frames, strict=True):
                self.builders.setdefault(TargetPartition(topic, partition), FrameBuilder(shape.compress)).add(some)

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

    def _by_partition(self, rows: _Named, topic: str, shape: TargetShape) -> tuple[_Named, dict[int, int]]:
        """Return the rows sorted by partition, and where those of each partition end."""
        compute = require("pyarrow.compute", "arrow")
        codes = self._partitions(rows, topic, shape)
        if isinstance(codes, int):
            return rows, {codes: rows.count}
        bounds = compute.min_max(codes).as_py()
        if bounds["min"] == bounds["max"]:
            return rows, {bounds["min"]: rows.count}
        return rows.sorted(codes, compute)

    def _partitions(self, rows: _Named, topic: str, shape: TargetShape) -> Any:
        """Return the partition of every row: one number if it is the same for all, else a column."""
        pa, compute = pyarrow(), require("pyarrow.compute", "arrow")
        given = rows.partitions
        # All rows of one topic may lack a partition while those of another topic have one.
        if given is None or given.null_count == len(given):
            return self._chosen(rows, shape)
        _check_partitions(given, topic, shape, compute)
        if not given.null_count:
            return given.cast(pa.int32())
        chosen = self._chosen(rows, shape)
        return compute.coalesce(
            given.cast(pa.int32()), pa.scalar(chosen, pa.int32()) if isinstance(chosen, int) else chosen
        )

    def _chosen(self, rows: _Named, shape: TargetShape) -> Any:
        """Return the partitions chosen by the keys; rows without a key go to one partition together."""
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

    def _keyless(self, values: Any, shape: TargetShape) -> int:
        if self._keyless_bytes >= limits.LIMITS.keyless_bytes_max:
            self._keyless_bytes = 0
            self.turn += 1
        self._keyless_bytes += values.nbytes
        return self.turn % shape.partitions


class _Named:
    """The columns of a batch by meaning; None for a missing one."""

    __slots__ = ("headers", "keys", "partitions", "times", "topics", "values")

    def __init__(self, batch: Any, columns: ColumnIndexes) -> None:
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
        """Return the rows at the given indices."""
        taken: _Named = object.__new__(_Named)
        for name in self.__slots__:
            column = getattr(self, name)
            setattr(taken, name, None if column is None else column.take(indices))
        return taken

    def slice(self, first: int, count: int) -> _Named:
        """Return consecutive rows."""
        sliced: _Named = object.__new__(_Named)
        for name in self.__slots__:
            column = getattr(self, name)
            setattr(sliced, name, None if column is None else column.slice(first, count))
        return sliced

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.values)

    def sorted(self, codes: Any, compute: Any) -> tuple[_Named, dict[int, int]]:
        """Return the rows sorted by code, in order within a code, and where those of each code end."""
        # The sort is stable, and for numbers in a small range it is a counting sort.
        order = compute.sort_indices(codes)
        runs = compute.run_end_encode(codes.take(order))
        return self.take(order), dict(zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True))

    def split(self, codes: Any, compute: Any) -> Iterator[tuple[int, _Named]]:
        """Yield the rows of each code, in their order."""
        ordered, runs = self.sorted(codes, compute)
        first = 0
        for code, end in runs.items():
            yield code, ordered.slice(first, end - first)
            first = end

    def frames(self, stops: list[int], shape: TopicShape) -> list[Frames]:
        """Return frames of each run of rows that ends at one of `stops`, checked with the schema of the topic."""
        return bulk.build_runs(
            self.values, self.keys, self.headers, self.times, stops, shape.compress, shape.ttl, shape
        )

    def check(self, topic: str, shape: TargetShape) -> None:
        """Raise for values that are larger than the topic allows, before frames are built."""
        compute = require("pyarrow.compute", "arrow")
        longest = compute.max(compute.binary_length(self.values)).as_py() or 0
        if longest > shape.max_record_bytes:
            raise RecordTooLargeError(
                f"A value has {longest:,} bytes; the maximum of the topic {topic!r} is {shape.max_record_bytes:,}.",
                size=longest,
                maximum=shape.max_record_bytes,
                hint="Nothing was written; split the value, or raise max_record_bytes of the topic (64 MiB at most).",
            )


NO_TOPIC = (
    "It is not said which topic the rows go to: "
    'write .option("topic", "clicks"), or add a column topic with a name in every row.'
)


def _check_partitions(given: Any, topic: str, shape: TargetShape, compute: Any) -> None:
    for number in compute.min_max(given).as_py().values():
        if not 0 <= number < shape.partitions:
            raise ValueError(
                f"The column partition has {number}, and the topic {topic!r} has {shape.partitions} partitions, "
                "counted from 0. Where it is null, the key decides."
            )


def _renamed_headers(headers: Any) -> Any:
    """Return headers with the library's field names: a list of structs of name and value."""
    pa = pyarrow()
    if headers is None:
        return None
    if pa.types.is_map(headers.type):
        pair = [headers.keys, headers.items]
    elif headers.flatten().null_count:
        raise ValueError("The column headers has a null among the headers of a row: leave it out, or give it a value.")
    else:
        pair = [headers.values.field(0), headers.values.field(1)]
    # Arrow builds no list with nulls from offsets that are a slice, so they are copied.
    offsets = require("pyarrow.compute", "arrow").add(headers.offsets, pa.scalar(0, pa.int32()))
    pairs = pa.StructArray.from_arrays(pair, names=["name", "value"])
    renamed = pa.ListArray.from_arrays(offsets, pairs, mask=headers.is_null() if headers.null_count else None)
    _check_headers(renamed.flatten())
    return renamed


def _check_headers(pairs: Any) -> None:
    """Raise for nulls, which the format cannot store."""
    names, values = pairs.field(0), pairs.field(1)
    if names.null_count:
        raise ValueError("The column headers has a header whose key is null: leave it out, or give it a name.")
    if values.null_count:
        first = names[require("pyarrow.compute", "arrow").index(values.is_null(), True).as_py()].as_py()
        raise ValueError(
            f"The header {first!r} of a row has a null value, and a log stores no such: leave the header out of that "
            "row, or give it a value, as coalesce(value, '')."
        )


def _filled_times(times: Any) -> Any:
    """Return timestamps with the current time in place of nulls."""
    if times is None or not times.null_count:
        return times
    now = pyarrow().scalar(bulk.now_us(), times.type)
    return require("pyarrow.compute", "arrow").coalesce(times, now)
