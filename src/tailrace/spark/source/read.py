"""Reading in the executors: frames to Arrow batches with exactly the columns of the query."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from tailrace import bulk
from tailrace.errors import OffsetOutOfRangeError
from tailrace.extras import pyarrow, require
from tailrace.spark.handles import hinted
from tailrace.spark.source.json_values import Parser, corrupt_texts

if TYPE_CHECKING:
    from tailrace.bulk import FramePart, ReadPart
    from tailrace.spark.source.schema import Layout

logger = logging.getLogger("tailrace.spark")

# Smaller batches are joined, since Spark has a fixed cost per batch; larger ones are sent without a copy.
BATCH_ROWS = 4_096
# Each call of the JSON parser costs as much as parsing a few hundred values.
JSON_BATCH_ROWS = 32_768
# Columns stored in the frames; all others are the same for every record of a partition.
STORED = ("key", "value", "offset", "timestamp", "headers")


def read_parts(parts: Iterable[ReadPart], layout: Layout, fail_on_data_loss: bool) -> Iterator[Any]:
    """Yield the batches of all parts, in order; small frames are joined, also those of several partitions."""
    made = LayoutColumns(layout)
    frames = chain.from_iterable(_frames(part, fail_on_data_loss) for part in parts)
    for some in bulk.gathered(frames, made.batch_rows):
        yield made.batch(some)


def _frames(part: ReadPart, fail_on_data_loss: bool) -> Iterator[FramePart]:
    try:
        with hinted():
            yield from bulk.read_frames(part)
    except OffsetOutOfRangeError as error:
        # The file is gone, which is detected before its first frame.
        if fail_on_data_loss:
            error.message = (
                f"The records {part.first} to {part.stop - 1} of {part.topic}[{part.partition}] were removed, by "
                "retention or a trim, while the query was about to read them."
            )
            error.hint = (
                "Nothing was skipped; load the DataFrame again to read what remains, or set failOnDataLoss to "
                "false to leave out what is gone."
            )
            error.__notes__ = [error.hint]
            raise
        logger.warning(
            "The records %d to %d of %s[%d] are gone and were left out (failOnDataLoss is false).",
            part.first, part.stop - 1, part.topic, part.partition,
        )  # fmt: skip


class LayoutColumns:
    """Builder of the columns of a layout from the stored ones."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.parser = Parser(layout.fields) if layout.parses else None
        self.batch_rows = JSON_BATCH_ROWS if layout.parses else BATCH_ROWS
        wanted = {source for source in layout.sources if source in STORED}
        if layout.parses:
            wanted.add("value")
        # Without any column the number of records would be unknown.
        self.stored = tuple(name for name in STORED if name in wanted) or ("offset",)
        # The constant columns, as long as was ever needed.
        self._constants: dict[tuple[str, str | int], Any] = {}

    def batch(self, parts: list[FramePart]) -> Any:
        """Return one batch in the layout, of frames that may be of several partitions."""
        stored = bulk.to_arrow(parts, self.stored)
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
                arrays.append(self._repeated(source, parts, field.type, count))
        return pyarrow().RecordBatch.from_arrays(arrays, schema=self.layout.arrow)

    def _repeated(self, name: str, parts: list[FramePart], kind: Any, count: int) -> Any:
        """Return a column that is the same for all records of a partition."""
        if name == "timestampType":
            return self._constant(name, 0, kind, count)
        values: list[str | int] = [part.topic if name == "topic" else part.partition for part in parts]
        if values.count(values[0]) == len(values):
            return self._constant(name, values[0], kind, count)
        pa = pyarrow()
        ends = pa.array([*accumulate(part.stop - part.first for part in parts)], pa.int32())
        runs = pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind))
        return require("pyarrow.compute", "arrow").run_end_decode(runs)

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
    """Return headers with the field names of Spark's Kafka source, over the same memory."""
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
