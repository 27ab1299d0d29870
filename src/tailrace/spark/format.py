"""The data source "tailrace": the entry points that Spark calls for a query that reads or writes a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class TailraceSource(DataSource):
    """Topics of a log as a source and a sink, in batches and as a stream."""

    @classmethod
    def name(cls) -> str:
        """Return the name that a query writes after `format`."""
        return "tailrace"

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source; the options are checked here, when a query is loaded."""
        from tailrace.spark.handles import hinted
        from tailrace.spark.source.options import parse_options
        from tailrace.spark.source.schema import default_schema
        from tailrace.spark.source.tables import is_table, table_options, with_options

        with hinted():
            if is_table(self.options):
                options = table_options(self.options)
                return with_options(default_schema(parse_options(options)), options)
            return default_schema(parse_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from tailrace.spark.source.batch import TailraceReader
        from tailrace.spark.source.tables import options_of

        return TailraceReader(options_of(self.options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (the name is Spark's)
        """Return the reader of a stream."""
        from tailrace.spark.source.stream import Refused, TailraceStreamReader
        from tailrace.spark.source.tables import options_of

        try:
            return TailraceStreamReader(options_of(self.options, schema), schema)
        except Exception as error:  # noqa: BLE001 (raised at the first question)
            return Refused(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch job, which appends all of a result or nothing."""
        from tailrace.spark.sink.batch import TailraceWriter

        return TailraceWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream, which appends each batch exactly once."""
        from tailrace.spark.sink.stream import TailraceStreamWriter

        return TailraceStreamWriter(self.options, schema, overwrite)
