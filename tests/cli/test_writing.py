"""What was appended, and how it is told."""

from __future__ import annotations

import json

import click
import pytest

import tailrace
from tailrace.cli import limits
from tailrace.cli.input import InputRecord
from tailrace.cli.invocation import Invocation
from tailrace.cli.writing import WrittenOffsets, settings_of, value_bytes_max


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


def test_the_largest_value_that_a_topic_takes(log):
    assert value_bytes_max(log.topic("new"), 0) == limits.LIMITS.entry_bytes_max
    assert settings_of(log.topic("new")) is None
    log.topic("small", partitions=2, max_record_bytes=1_000)
    assert value_bytes_max(log.topic("small"), None) == 1_000
    for name, index in (("new", 1), ("small", 2)):
        with pytest.raises(click.UsageError, match=f"no partition {index}"):
            value_bytes_max(log.topic(name), index)


def test_offsets_of_several_appends(log):
    topic = log.topic("orders", partitions=2)
    written = WrittenOffsets("orders")
    assert written.so_far() == "Nothing was appended."
    assert written.deed() == "Appended 0 records"
    written.extend(topic, [InputRecord(b"a"), InputRecord(b"b", b"k")], 1, True)
    topic.append("of another", partition=1)
    written.extend(topic, [InputRecord(b"c")], 1, None, "1h")
    written.extend(topic, [InputRecord(b"d")], 0, False)
    written.extend(topic, [], 0, None)
    assert written.records == 4
    assert written.rows() == [
        {"topic": "orders", "partition": 0, "first": 0, "last": 0, "records": 1},
        {"topic": "orders", "partition": 1, "first": 0, "last": 3, "records": 3},
    ]
    assert written.lines("orders") == ["orders[0]@0  (1 record)", "orders[1]@0..3  (3 records)"]
    assert written.deed() == "Appended orders[0]@0, orders[1]@0..3"
    assert written.so_far() == "Appended before: orders[0]@0  (1 record), orders[1]@0..3  (3 records)."
    assert topic.get(1, 1).key == b"k"


def test_the_answer_in_every_format(capsysbinary):
    written = WrittenOffsets("orders")
    written.add(0, range(17, 20))
    written.add(1, range(0))
    answers = {}
    for layout in ("auto", "json", "jsonl", "csv"):
        invocation = Invocation()
        invocation.output = layout
        written.print(invocation)
        answers[layout] = capsysbinary.readouterr().out.decode()
    assert answers["auto"] == "orders[0]@17..19  (3 records)\n"
    assert json.loads(answers["json"]) == [json.loads(answers["jsonl"])] == written.rows()
    assert answers["csv"] == "topic,partition,first,last,records\norders,0,17,19,3\n"
    WrittenOffsets("orders").print(Invocation())
    assert capsysbinary.readouterr().err == b"Appended 0 records.\n"
