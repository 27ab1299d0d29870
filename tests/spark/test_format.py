"""The entry points that Spark calls: the schema, the readers and the writers of a query."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

import tailrace
from tailrace.errors import InvalidNameError
from tailrace.spark import TailraceSource, handles
from tailrace.spark.sink.batch import TailraceWriter
from tailrace.spark.sink.stream import TailraceStreamWriter
from tailrace.spark.source.batch import TailraceReader
from tailrace.spark.source.stream import Refused, TailraceStreamReader
from tests.spark.ddl import struct
from tests.spark.plain import source

TABLE = {"owner": "me", "provider": "tailrace", "option.log": "/data/log", "option.subscribe": "orders"}


def test_it_is_called_tailrace():
    assert TailraceSource.name() == "tailrace"


class TestSchemas:
    def test_the_columns_of_a_query(self):
        assert source(path="/data/log", subscribe="a").schema().names[:3] == ["key", "value", "topic"]
        assert source(path="/data/log", subscribe="a", includeHeaders=True).schema().names[-1] == "headers"

    def test_options_are_checked_when_a_query_is_loaded(self):
        with pytest.raises(ValueError, match="no option 'subscibe': did you mean subscribe"):
            source(subscibe="a").schema()
        with pytest.raises(InvalidNameError) as caught:
            source(subscribe="a..b").schema()
        # Spark shows the text of an error alone.
        assert caught.value.__notes__ == [caught.value.hint]

    def test_a_table_keeps_its_options_in_its_schema(self):
        schema = source(**TABLE).schema()
        # A later query of the table brings the schema, and no options.
        for made in (source().reader(schema), source().streamReader(schema)):
            assert made.options.location == "/data/log"
            assert made.options.selection.names == ("orders",)

    def test_the_options_of_a_table_are_checked_too(self):
        with pytest.raises(ValueError, match="did you mean subscribe"):
            source(**{**TABLE, "option.subscibe": "orders"}).schema()


class TestReaders:
    def test_of_a_batch(self):
        made = source(path="/data/log", subscribe="a")
        assert isinstance(made.reader(made.schema()), TailraceReader)
        with pytest.raises(ValueError, match="Say which topics to read"):
            source(path="/data/log").reader(struct("key binary"))

    def test_of_a_stream(self):
        made = source(path="/data/log", subscribe="a")
        assert isinstance(made.streamReader(made.schema()), TailraceStreamReader)

    @pytest.mark.parametrize(
        "ask",
        [
            lambda reader: reader.initialOffset(),
            lambda reader: reader.latestOffset({}, None),
            lambda reader: reader.getDefaultReadLimit(),
            lambda reader: reader.prepareForTriggerAvailableNow(),
            lambda reader: reader.partitions({}, {}),
            lambda reader: reader.read(None),
        ],
    )
    def test_a_stream_that_is_refused_says_why_at_the_first_question(self, ask):
        """Spark replaces an error at the creation of a reader by one of the process that creates it."""
        reader = source(path="/data/log").streamReader(struct("key binary"))
        assert isinstance(reader, Refused)
        with pytest.raises(ValueError, match="Say which topics to read"):
            ask(reader)


class TestWriters:
    @pytest.fixture
    def path(self, tmp_path):
        with tailrace.open(tmp_path / "log") as log:
            log.topic("a", partitions=1)
        yield str(tmp_path / "log")
        handles.close_all()

    def test_of_a_batch_job_and_of_a_stream(self, path):
        made = source(path=path, topic="a")
        job, stream = (make(struct("value string"), False) for make in (made.writer, made.streamWriter))
        assert (type(job), type(stream)) == (TailraceWriter, TailraceStreamWriter)
        assert (job.sink.streaming, stream.sink.streaming) == (False, True)

    def test_only_a_batch_job_is_refused_when_it_overwrites(self, path):
        made = source(path=path, topic="a")
        with pytest.raises(ValueError, match="would delete the records"):
            made.writer(struct("value string"), True)
        assert made.streamWriter(struct("value string"), True).sink.streaming


def test_a_source_has_no_filters_of_its_own():
    """Spark gives wrong results when a source takes filters and a DataFrame is used twice."""
    from pyspark.sql.datasource import DataSourceReader

    made = source(path="/x", subscribe="a")
    assert type(made.reader(made.schema())).pushFilters is DataSourceReader.pushFilters
