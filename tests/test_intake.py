"""Arrow data and Python records come in alike."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import tailrace
from tailrace import errors
from tailrace.intake import UNSET, ArrowRows, Rows, take_in

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
    intake.frames(1_700_000_000_000_000, 0, 100)
    assert intake.values is given


def test_the_unset_argument_shows_as_dots():
    assert repr(UNSET) == "..."
