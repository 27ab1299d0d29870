"""Frames: records that workers build, and send or stage before they have offsets in a partition."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.arguments import parse_ttl
from tailrace.bulk.shapes import Checked
from tailrace.disk import frames_size
from tailrace.disk.codec import codec_of
from tailrace.disk.frame import HEADER_BYTES, Prepared, body_fits, place, read_header, schema_version
from tailrace.engine import engine as engines
from tailrace.errors import CorruptionError
from tailrace.extras import require
from tailrace.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from tailrace.write.intake import check_sizes, take_in
from tailrace.write.partitioner import HASHES
from tailrace.write.recipe import Recipe, expiry_after

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.bulk.shapes import TopicShape
    from tailrace.disk.frame import Header
    from tailrace.types import Data, Duration
    from tailrace.write.schema import Checker


class Frames:
    """Encoded frames that have no partition and no offsets yet; pickled as checksummed bytes."""

    __slots__ = ("prepared", "topic_id")

    def __init__(self, prepared: Sequence[Prepared] = (), topic_id: int | None = None) -> None:
        self.prepared = tuple(prepared)
        # The topic whose schema the records were checked with, if they were and it is known.
        self.topic_id = topic_id

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(frame.count for frame in self.prepared)

    @property
    def bytes(self) -> int:
        """The size in a segment."""
        return frames_size(self.prepared)

    def __add__(self, other: Frames) -> Frames:
        return Frames(self.prepared + other.prepared, (self.checked + other.checked).topic_id)

    @property
    def checked(self) -> Checked:
        """What the records were checked with."""
        return Checked(frozenset(map(schema_version, self.prepared)), self.topic_id)

    def to_bytes(self) -> builtins.bytes:
        """Return the frames as bytes with checksums."""
        return b"".join(place(self.prepared, 0, 0).buffers)

    @classmethod
    def from_bytes(cls, data: builtins.bytes) -> Frames:
        """Return the frames that `to_bytes` wrote; CorruptionError if the bytes were damaged."""
        prepared = []
        position = 0
        while position < len(data):
            head = read_header(data, position)
            if head is None or not body_fits(data, position, head):
                raise CorruptionError("Frames were damaged on their way")
            body = data[position + HEADER_BYTES : position + HEADER_BYTES + head.body_length]
            prepared.append(prepared_again(head, body))
            position += head.size
        return cls(prepared)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.to_bytes(), self.topic_id)

    def __repr__(self) -> str:
        return f"<Frames of {self.records} records, {self.bytes} bytes>"


def _received(data: bytes, topic_id: int | None) -> Frames:
    """Return frames that were pickled."""
    return Frames(Frames.from_bytes(data).prepared, topic_id)


def prepared_again(head: Header, body: bytes) -> Prepared:
    """Return a frame that was read, without its offset and chain, so that it can be written again."""
    return Prepared(
        head.codec, head.flags, head.count, body, head.raw_length, head.body_crc, head.span,
        head.min_time, head.max_time, head.key_id, head.attributes,
    )  # fmt: skip


def build(
    values: Iterable[Data | None] | Any,
    keys: Iterable[Data | None] | Any = None,
    headers: Iterable[Mapping[str, Data] | None] | Any = None,
    timestamps: Iterable[datetime | int] | Any = None,
    compress: str = "none",
    ttl: Duration | None = None,
    shape: TopicShape | None = None,
) -> Frames:
    """Make frames of records: of lists, or of Arrow arrays, or of a table with these columns.

    With `ttl` the records expire that long after this call. A topic with a schema takes them only if they were checked
    with it, for which its `shape` is needed: SchemaError if a value does not fit.
    """
    builder = FrameBuilder(compress, ttl, shape)
    builder.extend(values, keys, headers, timestamps)
    return builder.finish()


def build_runs(
    values: Any,
    keys: Any,
    headers: Any,
    timestamps: Any,
    stops: Sequence[int],
    compress: str = "none",
    ttl: Duration | None = None,
    shape: TopicShape | None = None,
) -> list[Frames]:
    """Make frames of each run of rows that ends at one of `stops`; every column is an Arrow array, or None.

    Rows of many partitions, sorted by partition, cost about as much as those of a few. Without timestamps all records
    have the time of this call. With the `shape` of their topic the values are checked with its schema.
    """
    from tailrace.write.arrow_intake import check_values, prepare_runs

    check_sizes(_longest(values, VALUE_BYTES_MAX), _longest(keys, KEY_BYTES_MAX), VALUE_BYTES_MAX)
    now = engines.FILES.now_us()
    times = now if timestamps is None else timestamps
    expiry = 0 if ttl is None else expiry_after(parse_ttl(ttl), now)
    schema, topic_id = _schema_of(shape)
    if schema is not None:
        check_values(values, schema)
    made = prepare_runs(values, keys, headers, times, stops, codec_of(compress), expiry)
    if schema is not None:
        made = [[*map(schema.stamp, some)] for some in made]
    return [Frames(some, topic_id) for some in made]


def _schema_of(shape: TopicShape | None) -> tuple[Checker | None, int | None]:
    """Return what values for a topic are checked with, and the id of the topic; None, None if it has no schema."""
    if shape is None or shape.schema is None:
        return None, None
    from tailrace.write.schema import checker_of

    return checker_of(shape.schema), shape.id


def _longest(column: Any, maximum: int) -> int:
    """Return the length of the longest entry; 0 if the whole column is shorter than `maximum`."""
    if column is None or column.nbytes <= maximum:
        return 0
    compute = require("pyarrow.compute", "arrow")
    return compute.max(compute.binary_length(column)).as_py() or 0


def key_hash(partitioner: str) -> Callable[[bytes], int]:
    """Return the function whose remainder by the number of partitions is the partition of a key."""
    return HASHES[partitioner]


class FrameBuilder:
    """Gathers frames until there are enough of them for a commit message or a segment."""

    def __init__(self, compress: str = "none", ttl: Duration | None = None, shape: TopicShape | None = None) -> None:
        schema, self._topic_id = _schema_of(shape)
        self._recipe = Recipe(codec_of(compress), VALUE_BYTES_MAX, 0 if ttl is None else parse_ttl(ttl), schema)
        self._prepared: list[Prepared] = []
        self._checked = Checked()
        self.records = 0
        self.bytes = 0

    def extend(
        self,
        values: Iterable[Data | None] | Any,
        keys: Iterable[Data | None] | Any = None,
        headers: Iterable[Mapping[str, Data] | None] | Any = None,
        timestamps: Iterable[datetime | int] | Any = None,
    ) -> None:
        """Add records, as `build` takes them; those without a timestamp have the time of this call.

        A record may have neither a value nor a key here, as in Kafka, from where engines bring them.
        """
        now = engines.FILES.now_us()
        intake = take_in(values, keys, headers=headers, timestamps=timestamps, limited=False)
        if self._recipe.schema is not None:
            intake.check(self._recipe.schema)
        self.add(Frames(intake.frames(now, self._recipe, bare=True), self._topic_id))

    def add(self, frames: Frames) -> None:
        """Add frames that were built elsewhere, after those that were added before."""
        self._prepared += frames.prepared
        self._checked += frames.checked
        self.records += frames.records
        self.bytes += frames.bytes

    def finish(self) -> Frames:
        """Return all frames so far and empty the builder."""
        prepared, self._prepared = self._prepared, []
        checked, self._checked = self._checked, Checked()
        self.records = self.bytes = 0
        return Frames(prepared, checked.topic_id)
