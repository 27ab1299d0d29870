"""Reading, in the executors: frames to Arrow batches with exactly the columns that the query asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tailrace import bulk
from tailrace.arrow import pyarrow
from tailrace.errors import OffsetOutOfRangeError
from tailrace.spark.json_values import Parser, corrupt_texts
from tailrace.spark.logs import hinted

if TYPE_CHECKING:
    from tailrace.bulk import ReadPart
    from tailrace.spark.schema import Layout

logger = logging.getLogger("tailrace.spark")

# Smaller batches are joined, as each costs Spark the same whatever is in it; larger ones are sent without a copy.
BATCH_ROWS = 4_096
# Each call of the JSON parser costs as much as parsing a few hundred values.
JSON_BATCH_ROWS = 32_768
BATCH_BYTES_MAX = 32 << 20
# Where a column comes from the frames; all others are the same for every record of a partition.
STORED = ("key", "value", "offset", "timestamp", "headers")


def read_parts(parts: Iterable[ReadPart], layout: Layout, fail_on_data_loss: bool) -> Iterator[Any]:
    """Batches of all parts, in their order."""
    made = Columns(layout)
    enough = made.batch_rows
    waiting: list[Any] = []
    rows = size = 0
    for part in parts:
        for batch in _batches(part, made, fail_on_data_loss):
            if batch.num_rows >= enough:
                if waiting:
                    yield _joined(waiting)
                    waiting, rows, size = [], 0, 0
                yield batch
                continue
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= enough or size >= BATCH_BYTES_MAX:
                yield _joined(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _batches(part: ReadPart, made: Columns, fail_on_data_loss: bool) -> Iterator[Any]:
    done = part.first
    try:
        with hinted():
            for stored in bulk.read_arrow(part, made.stored, made.batch_rows):
                yield made.batch(part, stored)
                done += stored.num_rows
    except OffsetOutOfRangeError as error:
        if fail_on_data_loss:
            error.message = (
                f"The records {done} to {part.stop - 1} of {part.topic}[{part.partition}] were removed, by retention "
                "or a trim, while the query was about to read them."
            )
            error.hint = (
                "Nothing was skipped; load the DataFrame again to read what is there now, or set failOnDataLoss to "
                "false to leave out what is gone."
            )
            error.__notes__ = [error.hint]
            raise
        logger.warning(
            "The records %d to %d of %s[%d] are gone and were left out (failOnDataLoss is false).",
            done, part.stop - 1, part.topic, part.partition,
        )  # fmt: skip


def _joined(batches: list[Any]) -> Any:
    pa = pyarrow()
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


class Columns:
    """Makes the columns of a layout of those that were stored."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.parser = Parser(layout.fields) if layout.parses else None
        self.batch_rows = JSON_BATCH_ROWS if layout.parses else BATCH_ROWS
        wanted = {source for source in layout.sources if source in STORED}
        if layout.parses:
            wanted.add("value")
        # Something must tell how many records there are.
        self.stored = tuple(name for name in STORED if name in wanted) or ("offset",)
        # The columns that are the same for all records, as long as was ever needed.
        self._constants: dict[tuple[str, str | int], Any] = {}

    def batch(self, part: ReadPart, stored: Any) -> Any:
        """One batch as Spark wants it."""
        count = stored.num_rows
        parsed = None
        corrupt = None
        if self.parser is not None:
            parsed, corrupt = self.parser.parse(stored.column("value"))
        fields = iter(parsed or ())
        arrays = []
        for source, field in zip(self.layout.sources, self.layout.arrow, strict=True):
            if source is None:
                arrays.append(next(fields))
            elif source == "corrupt":
                arrays.append(corrupt_texts(stored.column("value"), corrupt, field.type))
            elif source == "headers":
                arrays.append(_renamed(stored.column("headers"), field.type))
            elif source in STORED:
                arrays.append(stored.column(source))
            else:
                known: dict[str, str | int] = {"topic": part.topic, "partition": part.partition, "timestampType": 0}
                arrays.append(self._constant(source, known[source], field.type, count))
        return pyarrow().RecordBatch.from_arrays(arrays, schema=self.layout.arrow)

    def _constant(self, name: str, value: str | int, kind: Any, count: int) -> Any:
        known = self._constants.get((name, value))
        if known is None or len(known) < count:
            pa = pyarrow()
            if len(self._constants) > 64:
                # A task may read a thousand partitions.
                self._constants.clear()
            known = self._constants[name, value] = pa.repeat(pa.scalar(value, kind), count)
        return known if len(known) == count else known.slice(0, count)


def _renamed(headers: Any, kind: Any) -> Any:
    """Headers with the field names of Spark's Kafka source, over the same memory."""
    pa = pyarrow()
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), kind)
    pairs = headers.values
    inner = kind.value_type
    renamed = pa.StructArray.from_arrays(
        [pairs.field(0), pairs.field(1)], fields=[inner.field(0), inner.field(1)], mask=None
    )
    return pa.Array.from_buffers(
        kind, len(headers), headers.buffers()[:2], headers.null_count, headers.offset, children=[renamed]
    )
