"""Arrow data and Python records come in alike."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

import tailrace
from tailrace import errors
from tailrace.write.intake import UNSET, ArrowRows, Rows, take_in
from tailrace.write.recipe import Recipe

pyarrow = pytest.importorskip("pyarrow")


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


def rows(topic):
    return [(record.key, record.value, dict(record.headers)) for record in topic.read()]


def test_arrays_of_every_kind_come_in(log):
    topic = log.topic("orders")
    for array in (
        pyarrow.array(["a", "b"]),
        pyarrow.array([b"a", b"b"], pyarrow.large_binary()),
        pyarrow.chunked_array([["a"], ["b"]]),
        pyarrow.array(["a", "b"]).dictionary_encode(),
        pyarrow.array(["z", "a", "b"])[1:],
    ):
        first = topic.offsets()[0].latest if log.topics() else 0
        assert topic.extend(array) == {0: range(first, first + 2)}
    assert rows(topic) == [(None, b"a", {}), (None, b"b", {})] * 5
    assert topic.extend(pyarrow.array([], pyarrow.string())) == {}


def test_a_table_brings_every_column(log):
    topic = log.topic("orders")
    moment = datetime(2026, 11, 15, tzinfo=UTC)
    table = pyarrow.table(
        {
            "value": ["a", None],
            "key": [None, "gone"],
            "timestamp": pyarrow.array([moment, moment], pyarrow.timestamp("us", "UTC")),
            "headers": pyarrow.array(
                [[{"name": "h", "value": b"1"}], None],
                pyarrow.list_(pyarrow.struct([("name", pyarrow.string()), ("value", pyarrow.binary())])),
            ),
        }
    )
    topic.extend(table)
    assert rows(topic) == [(None, b"a", {"h": b"1"}), (b"gone", None, {})]
    assert {record.timestamp for record in topic.read()} == {moment}


@pytest.mark.parametrize("partitions", [1, 4])
def test_what_a_read_gives_can_be_written_again(log, partitions):
    source, target = log.topic("source", partitions=partitions), log.topic("target", partitions=partitions)
    source.extend(
        [f"v{number}" for number in range(500)],
        keys=[None if number % 9 == 0 else f"k{number % 20}" for number in range(500)],
        headers=[{"n": str(number)} for number in range(500)],
    )
    target.extend(source.read().to_arrow())
    assert sorted(rows(target), key=str) == sorted(rows(source), key=str)
    for record in target.read():
        if record.key is not None:
            assert record.partition == source.append("x", key=record.key).partition


def test_arrays_beside_arrays(log):
    topic = log.topic("orders", partitions=3)
    topic.extend(pyarrow.array(["a", "b", "c"]), keys=["k", None, b"l"], headers=[None, {"h": "1"}, None])
    topic.extend(pyarrow.array(["d"]), keys=pyarrow.array(["k"]), timestamps=[1_700_000_000_000_000])
    assert sorted(rows(topic), key=str) == sorted(
        [(b"k", b"a", {}), (None, b"b", {"h": b"1"}), (b"l", b"c", {}), (b"k", b"d", {})], key=str
    )


def test_rows_of_a_table_become_json(log):
    topic = log.topic("orders")
    topic.extend(pyarrow.table({"a": [1, 2], "b": ["x", None]}), json=True)
    assert [record.json() for record in topic.read()] == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_other_libraries_speak_arrow(log):
    polars = pytest.importorskip("polars")
    topic = log.topic("orders")
    topic.extend(polars.DataFrame({"value": ["a", "b"], "key": ["k", "l"]}))
    topic.extend(polars.Series(["c"]))
    assert rows(topic) == [(b"k", b"a", {}), (b"l", b"b", {}), (None, b"c", {})]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"values": pyarrow.array([1, 2])}, TypeError, "use json="),
        ({"values": pyarrow.array(["a", None])}, TypeError, "tombstone"),
        ({"values": pyarrow.array(["a", None]), "keys": ["k", None]}, TypeError, "tombstone"),
        ({"values": pyarrow.array(["a"]), "keys": ["k", "l"]}, ValueError, "1 values but 2"),
        ({"values": pyarrow.table({"value": ["a"]}), "keys": ["k"]}, TypeError, "keys= cannot be given"),
        ({"values": pyarrow.table({"a": ["a"]})}, TypeError, "column 'a'"),
        ({"values": pyarrow.table({"key": ["a"]})}, TypeError, "no column 'value'"),
        ({"values": pyarrow.table({"value": ["a"], "vaule": ["b"]})}, TypeError, "json=True"),
        ({"values": pyarrow.array(["x" * 101])}, errors.RecordTooLargeError, "101 bytes"),
    ],
)
def test_wrong_arrow_data_is_refused(log, arguments, error, said):
    topic = log.topic("orders", max_record_bytes=100)
    with pytest.raises(error, match=said):
        topic.extend(**arguments)
    assert topic.offsets()[0].latest == 0


def test_arrow_data_stays_arrow_data():
    assert isinstance(take_in(pyarrow.array(["a"])), ArrowRows)
    assert isinstance(take_in(["a"]), Rows)


def test_a_list_of_bytes_is_taken_as_it_is():
    given = [b"a", b"b"]
    intake = take_in(given)
    intake.frames(1_700_000_000_000_000, Recipe(0, 100))
    assert intake.values is given


def test_the_unset_argument_shows_as_dots():
    assert repr(UNSET) == "..."


@pytest.mark.parametrize("column", ["keys", "headers", "timestamps"])
def test_an_endless_column_is_refused_and_a_lazy_one_taken(log, column):
    item = {"keys": "k", "headers": {"h": "1"}, "timestamps": 1_700_000_000_000_000}[column]
    topic = log.topic("orders", partitions=2)
    for values in (["a", "b"], pyarrow.array(["a", "b"])):
        with pytest.raises(ValueError, match=f"2 values but more {column}"):
            topic.extend(values, **{column: itertools.repeat(item)})
        with pytest.raises(ValueError, match=f"2 values but 1 {column}"):
            topic.extend(values, **{column: iter([item])})
        assert sum(map(len, topic.extend(values, **{column: iter([item] * 2)}).values())) == 2


@pytest.mark.parametrize("values", [["a", "b"], pyarrow.array(["a", "b"])])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"keys": "xy"}, "keys must be an iterable with one for each value, not one str"),
        ({"keys": b"xy"}, "not one bytes"),
        ({"keys": 5}, "not one int"),
        ({"headers": {"h": "1", "i": "2"}}, "headers must be an iterable"),
        ({"timestamps": 5}, "timestamps must be an iterable"),
        ({"json": "yes"}, "json must be True or False"),
    ],
)
def test_a_column_that_is_no_column_is_refused(log, values, arguments, said):
    with pytest.raises(TypeError, match=said):
        log.topic("orders").extend(values, **arguments)
    assert log.topics() == []


@pytest.mark.parametrize("values", [None, 5, {"a": 1}])
def test_values_must_be_many(log, values):
    with pytest.raises(TypeError, match="extend takes many values"):
        log.topic("orders").extend(values)


def test_a_failure_of_the_callers_own_iterator_is_the_callers(log):
    def broken():
        yield "a"
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        log.topic("orders").extend(broken())


@pytest.mark.parametrize(
    ("time", "said"),
    [(1_700_000_000, "seconds"), (1_700_000_000_000, "milliseconds"), (2**63, "nanoseconds"), (-1, "before 1973")],
)
def test_integer_times_of_a_table_are_in_range(log, time, said):
    kind = pyarrow.uint64() if time > 0 else pyarrow.int64()
    times = pyarrow.array([1_700_000_000_000_000, time], kind)
    with pytest.raises(ValueError, match=said):
        log.topic("orders").extend(pyarrow.table({"value": ["a", "b"], "timestamp": times}))
    with pytest.raises(ValueError, match=said):
        log.topic("orders").extend(pyarrow.array(["a", "b"]), timestamps=times)
    assert log.topics() == []


def test_a_scan_is_a_table(log):
    source, target = log.topic("source", partitions=2), log.topic("target", partitions=2)
    source.extend(["a", None, "c"], keys=["k", "l", None], headers=[{"h": "1"}, None, None])
    target.extend(source.read())
    assert sorted(rows(target), key=str) == sorted(rows(source), key=str)
    times = {record.value: record.timestamp_us for record in source.read()}
    assert {record.value: record.timestamp_us for record in target.read()} == times
    with pytest.raises(errors.TopicNotFoundError):
        target.extend(log.topic("nothing").read())
    with pytest.raises(ValueError, match="never ends"):
        target.extend(source.read(follow=True))


def test_a_stream_of_structs_is_a_table(log):
    class Stream:
        def __init__(self, table):
            self.table = table

        def __arrow_c_stream__(self, requested_schema=None):
            return self.table.__arrow_c_stream__(requested_schema)

    topic = log.topic("orders")
    topic.extend(Stream(pyarrow.table({"value": ["a", "b"], "key": ["k", None]})))
    assert rows(topic) == [(b"k", b"a", {}), (None, b"b", {})]


@pytest.mark.parametrize(
    "headers",
    [["a", "b"], [b"a", b"b"], [["a"], ["b"]], [[{"name": "a"}], None], [1, 2]],
)
def test_a_column_that_holds_no_headers_is_refused(log, headers):
    column = pyarrow.array(headers)
    with pytest.raises(TypeError, match="holds no headers"):
        log.topic("orders").extend(pyarrow.table({"value": ["a", "b"], "headers": column}))
    with pytest.raises(TypeError, match="holds no headers"):
        log.topic("orders").extend(pyarrow.array(["a", "b"]), headers=column)
    assert log.topics() == []


def test_headers_may_be_a_map(log):
    headers = pyarrow.array([[("h", b"1")], None], pyarrow.map_(pyarrow.string(), pyarrow.binary()))
    topic = log.topic("orders")
    topic.extend(pyarrow.table({"value": ["a", "b"], "headers": headers}))
    assert rows(topic) == [(None, b"a", {"h": b"1"}), (None, b"b", {})]


def test_a_table_with_two_columns_of_one_name_is_refused(log):
    table = pyarrow.table([["a"], ["b"]], names=["value", "value"])
    with pytest.raises(ValueError, match="2 columns 'value'"):
        log.topic("orders").extend(table)


def test_missing_times_of_pandas_are_refused(log):
    pandas = pytest.importorskip("pandas")
    topic = log.topic("orders")
    with pytest.raises(ValueError, match="no time"):
        topic.append("x", timestamp=pandas.NaT)
    with pytest.raises(ValueError, match="no time"):
        topic.extend(["x"], timestamps=[pandas.NaT])
    assert log.topics() == []


def test_json_that_is_nested_too_deep_is_refused_when_written_and_when_read(log):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    topic = log.topic("orders")
    with pytest.raises(ValueError, match="too deep"):
        topic.append(json=deep)
    with pytest.raises(ValueError, match="too deep"):
        topic.extend([deep], json=True)
    assert log.topics() == []
    topic.append("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match="too deep"):
        topic.get(0).json()
