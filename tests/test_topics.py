"""Appending to topics, finding records again, and changing topics under writers and readers."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from zlib import crc32

import pyarrow as pa
import pytest

import tailrace
from tailrace import errors, settings
from tailrace.disk import frame
from tailrace.limits import HEADERS_BYTES_MAX, KEY_BYTES_MAX
from tailrace.settings import Tuning
from tailrace.write.intake import GATHERED
from tests.processes import run


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


def values(topic, **arguments):
    return [record.value for record in topic.read(**arguments)]


# One record.


def test_append_takes_bytes_text_and_json(log):
    topic = log.topic("orders")
    assert topic.append(b"bytes") == (0, 0)
    assert topic.append("täxt").offset == 1
    assert topic.append(bytearray(b"array")).offset == 2
    assert topic.append(memoryview(b"view")).offset == 3
    assert topic.append(json={"a": [1, None], "ü": "ß"}).offset == 4
    assert topic.append(json=None).offset == 5
    assert topic.append("").offset == 6
    assert values(topic) == [
        b"bytes",
        "täxt".encode(),
        b"array",
        b"view",
        '{"a":[1,null],"ü":"ß"}'.encode(),
        b"null",
        b"",
    ]
    assert topic.get(4).json() == {"a": [1, None], "ü": "ß"}


def test_append_keeps_key_headers_and_time(log):
    topic = log.topic("orders")
    moment = datetime(2026, 11, 15, 20, 0, 0, 123456, tzinfo=UTC)
    topic.append("x", key="käy", headers={"a": "1", "b": b"2"}, timestamp=moment)
    topic.append(None, key=b"gone", timestamp=1_700_000_000_000_000)
    first, second = topic.read()
    assert (first.topic, first.partition, first.offset) == ("orders", 0, 0)
    assert (first.key, first.headers, first.timestamp) == ("käy".encode(), {"a": b"1", "b": b"2"}, moment)
    assert (second.key, second.value, second.timestamp_us) == (b"gone", None, 1_700_000_000_000_000)
    assert topic.get(0) == first
    assert topic.get(1) == second


def test_append_takes_the_time_itself(log):
    before = time.time_ns() // 1_000
    log.topic("orders").append("x")
    assert before <= log.topic("orders").get(0).timestamp_us <= time.time_ns() // 1_000


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({}, TypeError, "value or json="),
        ({"value": None}, TypeError, "tombstone, which needs a key"),
        ({"value": b"x", "json": 1}, TypeError, "not both"),
        ({"value": 1}, TypeError, "use json="),
        ({"value": "\ud800"}, ValueError, "surrogate"),
        ({"json": float("nan")}, ValueError, "JSON"),
        ({"json": object()}, TypeError, "JSON"),
        ({"value": b"x", "key": 1}, TypeError, "key"),
        ({"value": b"x", "headers": [("a", "b")]}, TypeError, "headers"),
        ({"value": b"x", "headers": {"a": 1}}, TypeError, "header 'a'"),
        ({"value": b"x", "timestamp": datetime(2026, 1, 1)}, ValueError, "zone"),  # noqa: DTZ001
        ({"value": b"x", "timestamp": 1_700_000_000_000}, ValueError, "milliseconds"),
        ({"value": b"x", "timestamp": 1.0}, TypeError, "float"),
        ({"value": b"x", "partition": 1}, ValueError, "no partition 1"),
        ({"value": b"x", "partition": -1}, ValueError, "partition=-1"),
        ({"value": b"x", "durable": 1}, TypeError, "durable"),
    ],
)
def test_a_wrong_record_is_refused_and_nothing_is_written(log, arguments, error, said):
    topic = log.topic("orders")
    topic.append("first")
    with pytest.raises(error, match=said):
        topic.append(**arguments)
    assert topic.offsets()[0].latest == 1


def test_sizes_are_checked(log):
    topic = log.topic("orders", max_record_bytes="1KiB")
    topic.append(b"x" * 1024)
    with pytest.raises(errors.RecordTooLargeError, match="1,025 bytes; the maximum of the topic is 1,024") as caught:
        topic.append(b"x" * 1025)
    assert (caught.value.size, caught.value.maximum) == (1025, 1024)
    with pytest.raises(errors.RecordTooLargeError):
        topic.extend([b"x", b"x" * 1025])
    topic.append("x", key=b"k" * KEY_BYTES_MAX)
    with pytest.raises(errors.RecordTooLargeError, match="key"):
        topic.append("x", key=b"k" * (KEY_BYTES_MAX + 1))
    with pytest.raises(errors.RecordTooLargeError, match="key"):
        topic.extend(["x"], keys=[b"k" * (KEY_BYTES_MAX + 1)])
    with pytest.raises(errors.RecordTooLargeError, match="headers"):
        topic.append("x", headers={"a": b"h" * HEADERS_BYTES_MAX})
    assert topic.offsets()[0].latest == 2
    topic.alter(max_record_bytes="2KiB")
    topic.append(b"x" * 1025)


def test_the_largest_record_goes_through(log):
    topic = log.topic("orders")
    largest = os.urandom(1024) * (64 << 10)
    topic.append(largest)
    assert topic.get(0).value == largest
    with pytest.raises(errors.RecordTooLargeError):
        topic.append(largest + b"x")
    with pytest.raises(errors.RecordTooLargeError):
        topic.extend([largest * 3])


# Many records.


def test_extend_takes_lists_generators_and_json(log):
    topic = log.topic("orders")
    assert topic.extend([b"a", b"b"]) == {0: range(2)}
    assert topic.extend(("c", "d")) == {0: range(2, 4)}
    assert topic.extend(f"e{number}" for number in range(3)) == {0: range(4, 7)}
    assert topic.extend([{"f": 1}, None], json=True) == {0: range(7, 9)}
    assert topic.extend([bytearray(b"g"), memoryview(b"h"), "i", b"j"]) == {0: range(9, 13)}
    assert topic.extend([]) == {}
    assert topic.extend(iter(())) == {}
    assert values(topic) == [
        b"a", b"b", b"c", b"d", b"e0", b"e1", b"e2", b'{"f":1}', b"null", b"g", b"h", b"i", b"j"
    ]  # fmt: skip


def test_extend_keeps_every_column(log):
    topic = log.topic("orders")
    moment = datetime(2026, 11, 15, tzinfo=UTC)
    topic.extend(
        ["a", None, "c"],
        keys=["k", b"gone", None],
        headers=[{"h": "1"}, None, {}],
        timestamps=[moment, 1_700_000_000_000_000, moment + timedelta(days=99)],
    )
    records = list(topic.read())
    assert [(record.key, record.value) for record in records] == [(b"k", b"a"), (b"gone", None), (None, b"c")]
    assert [dict(record.headers) for record in records] == [{"h": b"1"}, {}, {}]
    assert [record.timestamp for record in records][::2] == [moment, moment + timedelta(days=99)]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"values": "text"}, TypeError, "not one str"),
        ({"values": b"bytes"}, TypeError, "not one bytes"),
        ({"values": 1}, TypeError, "not iterable"),
        ({"values": ["a", 1]}, TypeError, "use json="),
        ({"values": ["a", None]}, TypeError, "tombstone"),
        ({"values": ["a", None], "keys": ["k", None]}, TypeError, "tombstone"),
        ({"values": ["a"], "keys": ["k", "l"]}, ValueError, "1 values but 2 keys"),
        ({"values": ["a"], "keys": [1]}, TypeError, "key"),
        ({"values": ["a"], "headers": []}, ValueError, "headers"),
        ({"values": ["a"], "timestamps": [1_700_000_000]}, ValueError, "seconds"),
        ({"values": ["a"], "partition": 9}, ValueError, "no partition 9"),
    ],
)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_wrong_batch_is_refused_as_a_whole(log, arguments, error, said, partitions):
    topic = log.topic("orders", partitions=partitions)
    with pytest.raises(error, match=said):
        topic.extend(**arguments)
    assert all(bounds.latest == 0 for bounds in topic.offsets().values())


def test_more_than_a_partition_takes_is_refused_up_front(log, monkeypatch):
    monkeypatch.setattr(settings, "TUNING", Tuning(group_bytes_max=100_000))
    topic = log.topic("orders", partitions=2)
    keys = [key for number in range(99) if crc32(key := str(number).encode()) % 2]
    with pytest.raises(errors.LimitError, match="maximum is 100,000"):
        topic.extend([b"x" * 2_100] * len(keys) + [b"x"], keys=[*keys, keys[0]])
    assert all(bounds.latest == 0 for bounds in topic.offsets().values())


def described(kind):
    """3,000,000 bytes for one partition, in every form that extend takes."""
    text = "x" * 10_000
    if kind == "list":
        return {"values": [text.encode()] * 300}
    if kind == "text":
        return {"values": [text] * 300}
    if kind == "keys":
        return {"values": [text] * 300, "keys": ["k"] * 300}
    if kind == "json":
        return {"values": [text] * 300, "json": True}
    array = pa.array([text] * 300)
    if kind == "Arrow":
        return {"values": array}
    if kind == "Arrow with keys":
        return {"values": pa.table({"value": array, "key": ["k"] * 299 + [KEY_OF_ANOTHER]})}
    if kind == "Arrow in chunks":
        return {"values": pa.chunked_array([array[:100], array[100:]])}
    assert kind == "an Arrow dictionary"
    return {"values": pa.DictionaryArray.from_arrays(pa.array([0] * 300), pa.array([text]))}


KEY_OF_ANOTHER = next(key for key in map(str, range(99)) if crc32(key.encode()) % 2 != crc32(b"k") % 2)
FORMS = ["list", "text", "keys", "json", "Arrow", "Arrow with keys", "Arrow in chunks", "an Arrow dictionary"]


@pytest.mark.parametrize("compress", ["none", "zstd"])
@pytest.mark.parametrize("kind", FORMS)
def test_nothing_is_built_of_what_is_too_much(log, monkeypatch, kind, compress):
    topic = log.topic("orders", partitions=2, compress=compress)
    built = []
    seal = frame._seal
    monkeypatch.setattr(frame, "_seal", lambda *arguments: built.append(arguments) or seal(*arguments))
    monkeypatch.setattr(settings, "TUNING", Tuning(group_bytes_max=2_000_000))
    with pytest.raises(errors.LimitError, match="the maximum is 2,000,000") as caught:
        topic.extend(**described(kind))
    assert "in smaller parts" in caught.value.hint
    with pytest.raises(errors.LimitError), log.transaction() as transaction:
        transaction.extend(topic, **described(kind))
    assert built == []
    monkeypatch.setattr(settings, "TUNING", Tuning(group_bytes_max=4_000_000))
    assert sum(map(len, topic.extend(**described(kind)).values())) == 300
    assert built


def test_no_more_is_taken_of_an_iterator_than_can_be_written(log, monkeypatch):
    monkeypatch.setattr(settings, "TUNING", Tuning(group_bytes_max=200_000))
    for json in (False, True):
        taken = count()
        with pytest.raises(errors.LimitError):
            log.topic("orders").extend((f"{number:0100}" for number in taken), json=json)
        assert next(taken) < 200_000 // 100 + 2 * GATHERED
    assert log.topics() == []


def test_gigabytes_are_refused_without_a_copy_of_them(tmp_path):
    program = """
        import resource, sys
        import pyarrow as pa
        import tailrace
        value = b"x" * (1 << 20)
        dictionary = pa.DictionaryArray.from_arrays(pa.array([0] * 2_500), pa.array([value]))
        with tailrace.open(sys.argv[1], durable=False) as log:
            topic = log.topic("orders", partitions=2)
            topic.extend([value] * 4)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            text = value.decode()
            for values, keys in (([value] * 2_500, None), ([text] * 2_500, ["k"] * 2_500), (dictionary, None)):
                try:
                    topic.extend(values, keys=keys)
                except tailrace.errors.LimitError as error:
                    print(error)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    *refused, grown = run(program, tmp_path / "shop").splitlines()
    assert [line.split(" bytes ")[0] for line in refused] == [
        "One call would write 2,621,440,000",
        "One call would write 2,621,442,500",
        "One call would write 2,621,440,000",
    ]
    assert int(grown) < 32 << 10, "so many KiB more than before"


@pytest.mark.parametrize("kind", ["string_view", "binary_view", "dictionary"])
def test_large_columns_of_every_kind_of_text(log, kind):
    texts = ["a" * 900_000, None, "b" * 900_000]
    column = pa.array(texts).dictionary_encode() if kind == "dictionary" else pa.array(texts, getattr(pa, kind)())
    log.topic("orders").extend(pa.table({"value": column, "key": pa.array(["k", "l", "m"])}))
    assert [record.value and record.text for record in log.topic("orders").read()] == texts
    log.topic("orders").alter(max_record_bytes=100)
    with pytest.raises(errors.RecordTooLargeError, match="900,000"):
        log.topic("orders").extend(column)
