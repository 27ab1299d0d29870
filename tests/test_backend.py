"""The public classes hold a backend and nothing else: they work on any log, not only on one in a directory."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import ClosedError, OffsetMismatchError, OffsetOutOfRangeError, TopicNotFoundError
from tailrace.log import Log
from tests.memory_backend import MemoryLog

SOURCE = Path(__file__).parents[1] / "src" / "tailrace"
NOW = 1_700_000_000_000_000
FACADE = ("topics.py", "read/scan.py", "write/producer.py", "write/transaction.py")


@pytest.fixture
def log():
    with Log(MemoryLog()) as log:
        yield log


def test_a_log_elsewhere_is_a_log(log):
    assert isinstance(log, tailrace.Log)
    assert isinstance(log.topic("orders"), tailrace.Topic)
    assert repr(log) == "<Log 'memory:' mode 'a'>"


def test_append_and_read(log):
    topic = log.topic("orders")
    assert topic.append("one", key="k", headers={"h": "v"}, timestamp=NOW) == (0, 0)
    assert topic.append(json={"n": 2}, expect_offset=1) == (0, 1)
    assert topic.extend(["three", "four"]) == {0: range(2, 4)}
    with pytest.raises(OffsetMismatchError):
        topic.append("late", expect_offset=1)
    scan = topic.read()
    first, second, *rest = scan
    assert (first.key, first.value, dict(first.headers), first.timestamp_us) == (b"k", b"one", {"h": b"v"}, NOW)
    assert second.json() == {"n": 2}
    assert [record.text for record in rest] == ["three", "four"]
    assert scan.positions == {("orders", 0): 4}
    assert [record.offset for record in topic.read(2)] == [2, 3]
    assert topic.read(1, limit=2).count() == 2
    assert topic.read(limit=1).first() == first
    assert [len(batch) for batch in topic.read().batches(max_records=3)] == [3, 1]
    assert topic.read().to_arrow().column("value").to_pylist() == [b"one", b'{"n":2}', b"three", b"four"]


def test_single_records_and_bounds(log):
    topic = log.topic("orders")
    topic.extend(["a", "b"], timestamps=[NOW, NOW + 10])
    assert topic.get(1).text == "b"
    with pytest.raises(OffsetOutOfRangeError):
        topic.get(2)
    assert topic.offset_at(NOW + 1) == 1
    assert topic.offsets()[0].latest == 2
    assert topic.partitions == 1
    topic.drop()
    with pytest.raises(TopicNotFoundError):
        list(topic.read())


def test_a_producer(log):
    topic = log.topic("orders")
    with topic.producer() as producer:
        futures = [producer.append(str(n)) for n in range(100)]
        assert futures[99].result(timeout=10) == (0, 99)
    assert [record.text for record in topic.read()] == [str(n) for n in range(100)]


def test_a_close_of_the_log_sends_what_producers_hold():
    memory = MemoryLog()
    log = Log(memory)
    producer = log.topic("orders").producer(linger="1h")
    future = producer.append("x")
    log.close()
    assert future.result(timeout=10) == (0, 0)
    with pytest.raises(ClosedError):
        producer.append("y")
    with pytest.raises(ClosedError):
        log.topic("orders")


def test_a_transaction(log):
    with log.transaction() as tx:
        tx.append("orders", "a")
        tx.extend(log.topic("payments"), ["b", "c"])
    assert tx.positions == [("orders", {0: range(1)}), ("payments", {0: range(2)})]
    with pytest.raises(OSError, match="later"), log.transaction() as tx:  # noqa: PT012  # the error ends it
        tx.append("orders", "never")
        raise OSError("later")
    assert [record.text for record in log.topic("orders").read()] == ["a"]


def test_a_topic_of_another_log_is_refused(log, tmp_path):
    with tailrace.open(tmp_path / "other") as other, log.transaction() as tx:
        target = other.topic("orders")
        with pytest.raises(ValueError, match="another log"):
            tx.append(target, "x")


@pytest.mark.parametrize("name", FACADE)
def test_the_public_classes_name_no_engine(name):
    """Neither by an import nor by an attribute: what needs one belongs into the local backend."""
    tree = ast.parse((SOURCE / name).read_text("utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert used.isdisjoint({"engine", "store", "live", "writing"})
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [module for module in modules if module and module.startswith("tailrace.engine")]
