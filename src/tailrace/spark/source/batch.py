"""The batch source: reads the records that exist when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tailrace import bulk
from tailrace.errors import OffsetOutOfRangeError
from tailrace.spark.handles import hinted, reading
from tailrace.spark.source.offsets import check_order, check_present, starts, stops
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.plan import TailracePartition, plan_tasks
from tailrace.spark.source.read import read_parts
from tailrace.spark.source.schema import layout_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# How often planning is repeated when records are removed between the survey and the plan.
LOOKS_MAX = 5


class TailraceReader(DataSourceReader):
    """Batch reader: plans in the driver, reads in the executors; holds plain values, so that it can be pickled."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        with hinted():
            self.options = parse_options(options)
            self.layout = layout_of(schema, self.options)

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        with hinted():
            for look in range(LOOKS_MAX):
                try:
                    return list(self._plan())
                except OffsetOutOfRangeError:
                    # The earliest record may have been removed since the survey; explicit offsets stay out of range.
                    if look == LOOKS_MAX - 1:
                        raise
            return []

    def _plan(self) -> list[TailracePartition]:
        options = self.options
        log = reading(options.location, options.namespace)
        bounds = bulk.Survey(log, options.selection.wants).look()
        check_present(log, bounds, options.selection, matched=True)
        begin = starts(log, options, bounds, streaming=False)
        end = stops(log, options, bounds)
        check_order(begin, end, options)
        ranges = {place: (first, end[place]) for place, first in begin.items()}
        return plan_tasks(log, ranges, options.min_partitions, options.max_records)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the records of one task; without tasks Spark passes an empty partition of its own."""
        parts = partition.parts if isinstance(partition, TailracePartition) else ()
        return read_parts(parts, self.layout, self.options.fail_on_data_loss)
