"""Transactions: whole or absent, to any number of topics, for one thread."""

from __future__ import annotations

import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import tailrace
from tailrace import errors
from tailrace.disk.commit import Committer
from tailrace.disk.lock import Reentered
from tailrace.limits import PARTICIPANTS_MAX
from tests.full_disk import FullDisk
from tests.processes import start


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        yield log


def texts(log, name):
    return [record.text for record in log.topic(name).read()]


def commit(log, *appends, meanwhile=None):
    """Commit appends, each given as (topic, value, keyword arguments)."""
    with log.transaction() as tx:
        for topic, value, arguments in appends:
            if isinstance(value, list):
                tx.extend(topic, value, **arguments)
            else:
                tx.append(topic, value, **arguments)
        if meanwhile is not None:
            meanwhile()
    return tx


def test_a_commit_writes_to_every_topic_and_says_where(log):
    orders = log.topic("orders", partitions=2)
    log.topic("stock").append("before")
    with log.transaction() as tx:
        tx.append(orders, "a", key="k", partition=1)
        tx.append("stock", json={"b": 1}, headers={"h": "1"}, timestamp=1_700_000_000_000_000)
        tx.extend("stock", ["c", b"d"])
        tx.append("made.by.it", None, key="gone")
        tx.extend("stock", [])
        assert tx.positions == []
        assert texts(log, "stock") == ["before"]
    assert tx.positions == [
        ("orders", {1: range(1)}),
        ("stock", {0: range(1, 2)}),
        ("stock", {0: range(2, 4)}),
        ("made.by.it", {0: range(1)}),
        ("stock", {}),
    ]
    assert texts(log, "stock") == ["before", '{"b":1}', "c", "d"]
    record = log.topic("stock").get(1)
    assert (dict(record.headers), record.timestamp_us) == ({"h": b"1"}, 1_700_000_000_000_000)
    assert (orders.get(0, 1).key, orders.get(0, 1).value) == (b"k", b"a")
    assert (log.topic("made.by.it").get(0).key, log.topic("made.by.it").get(0).value) == (b"gone", None)
    for name in ("orders", "stock", "made.by.it"):
        assert all(bounds.latest == bounds.durable for bounds in log.topic(name).offsets().values())


def test_an_exception_leaves_no_trace(log):
    tx = log.transaction()

    def fail():
        with tx:
            tx.append("orders", "x")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert log.topics() == []
    assert tx.positions == []
    with pytest.raises(errors.ClosedError, match="over"):
        tx.append("orders", "x")


def test_an_empty_transaction_does_nothing(log):
    with log.transaction() as tx:
        pass
    assert tx.positions == []
    with log.transaction() as tx:
        tx.extend("orders", [])
    assert tx.positions == [("orders", {})]


def test_keyed_records_go_to_their_partitions_in_order(log):
    log.topic("orders", partitions=4)
    with log.transaction() as tx:
        tx.extend("orders", [f"a{number}" for number in range(40)], keys=[str(number % 8) for number in range(40)])
        for number in range(40):
            tx.append("orders", f"b{number}", key=str(number % 8))
    found = {(record.partition, record.offset): record.text for record in log.topic("orders").read()}
    assert len(found) == 80
    for partition in range(4):
        mine = [record.text for record in log.topic("orders").read(partition=partition)]
        assert mine == sorted(mine, key=lambda text: (text[0], int(text[1:])))
    for number, (_, ranges) in enumerate(tx.positions[1:]):
        ((partition, offsets),) = ranges.items()
        assert found[partition, offsets.start] == f"b{number}"
    assert sum(len(offsets) for offsets in tx.positions[0][1].values()) == 40


def test_arrow_data_and_lists_keep_their_order(log):
    pyarrow = pytest.importorskip("pyarrow")
    with log.transaction() as tx:
        tx.append("orders", "a")
        tx.extend("orders", pyarrow.array(["b", "c"]))
        tx.append("orders", "d")
        tx.append("stock", "x")
    assert texts(log, "orders") == ["a", "b", "c", "d"]
    assert tx.positions[1] == ("orders", {0: range(1, 3)})


def test_large_parts_are_committed_as_well(log):
    with log.transaction() as tx:
        tx.extend("orders", [b"x" * 1_000] * 5_000)
        tx.append("stock", "small")
    assert log.topic("orders").read().count() == 5_000
    assert log.topic("orders").append("more").offset == 5_000
    assert texts(log, "stock") == ["small"]


def test_an_expected_offset_decides_the_whole(log):
    log.topic("orders").append("x")
    with log.transaction() as tx:
        tx.append("orders", "a", expect_offset=1)
        tx.append("orders", "b", expect_offset=2)
        tx.append("stock", "c", expect_offset=0)
    assert texts(log, "orders") == ["x", "a", "b"]
    for expected in (2, 4):
        with pytest.raises(errors.OffsetMismatchError) as caught:
            commit(log, ("stock", "never", {}), ("orders", "never", {"expect_offset": expected}))
        assert (caught.value.expected, caught.value.actual) == (expected, 3)
    with pytest.raises(errors.OffsetMismatchError, match="different offsets"):
        commit(log, *[("orders", "never", {"expect_offset": offset}) for offset in (3, 5)])
    log.topic("wide", partitions=2)
    with pytest.raises(TypeError, match="partition="), log.transaction() as tx:
        tx.append("wide", "never", expect_offset=0)
    assert texts(log, "stock") == ["c"]
    assert texts(log, "orders") == ["x", "a", "b"]


def test_wrong_records_are_refused_where_they_are_added(log):
    log.topic("orders", max_record_bytes=10)
    with log.transaction() as tx:
        tx.append("orders", "good")
        for arguments, error in (
            ({}, TypeError),
            ({"value": None}, TypeError),
            ({"value": 1}, TypeError),
            ({"value": "x" * 11}, errors.RecordTooLargeError),
            ({"value": "x", "expect_offset": -1}, ValueError),
            ({"value": "x", "timestamp": 1}, ValueError),
        ):
            with pytest.raises(error):
                tx.append("orders", **arguments)
        with pytest.raises(errors.InvalidNameError):
            tx.append("orders.*", "x")
        with pytest.raises(TypeError):
            tx.extend("orders", "text")
    assert texts(log, "orders") == ["good"]
    for wrong in (["x" * 11], [None], [1]):
        with pytest.raises((errors.RecordTooLargeError, TypeError)):
            commit(log, ("other", "never", {}), ("orders", wrong, {}))
    with pytest.raises(ValueError, match="2 values but 1 keys"), log.transaction() as tx:
        tx.extend("orders", ["a", "b"], keys=["k"])
    with pytest.raises(ValueError, match="no partition 3"), log.transaction() as tx:
        tx.append("other", "never", partition=3)
    assert [info.name for info in log.topics()] == ["orders"]


def test_too_many_partitions_are_refused_before_anything_is_written(log):
    with pytest.raises(errors.LimitError, match=f"{PARTICIPANTS_MAX + 1} partitions"):
        commit(log, *[(f"topic.{number}", "x", {}) for number in range(PARTICIPANTS_MAX + 1)])
    assert log.topics() == []


def test_a_transaction_is_used_once_and_inside_with(log):
    tx = log.transaction()
    with pytest.raises(errors.ClosedError, match="not begun"):
        tx.append("orders", "x")
    with tx, pytest.raises(errors.ClosedError, match="once"):
        tx.__enter__()
    with pytest.raises(errors.ClosedError, match="once"):
        tx.__enter__()
    assert "over" in repr(tx)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(tx)


def test_two_transactions_may_be_open_at_once(log):
    with log.transaction() as one, log.transaction() as two:
        one.append("orders", "one")
        two.append("orders", "two")
    assert texts(log, "orders") == ["two", "one"]


def test_a_transaction_belongs_to_its_thread(log):
    with log.transaction() as tx, ThreadPoolExecutor() as pool:
        tx.append("orders", "x")
        with pytest.raises(errors.ThreadError):
            pool.submit(tx.append, "orders", "y").result()
        with pytest.raises(errors.ThreadError):
            pool.submit(tx.__exit__, None, None, None).result()
    assert texts(log, "orders") == ["x"]


def test_topics_of_another_log_are_refused(log, tmp_path):
    with tailrace.open(tmp_path / "other") as other, log.transaction() as tx:
        with pytest.raises(ValueError, match="another log"):
            tx.append(other.topic("orders"), "x")
        with log.namespace("tenant") as tenant, pytest.raises(ValueError, match="another log"):
            tx.append(tenant.topic("orders"), "x")


def test_closing_the_log_ends_its_transactions(tmp_path):
    log = tailrace.open(tmp_path / "shop")
    with pytest.raises(errors.ClosedError):
        commit(log, ("orders", "x", {}), meanwhile=log.close)


def test_a_failed_commit_leaves_nothing_and_the_log_goes_on(tmp_path, monkeypatch):
    disk = FullDisk()
    monkeypatch.setattr("tailrace.engine.engine.FILES", disk)
    with tailrace.open(tmp_path / "shop") as log:
        for name in ("orders", "stock"):
            log.topic(name).append("first")
        with pytest.raises(errors.DiskFullError):
            commit(log, ("orders", "x", {}), ("stock", "y", {}), meanwhile=lambda: setattr(disk, "full", True))
        disk.full = False
        assert texts(log, "orders") == texts(log, "stock") == ["first"]
        with log.transaction() as tx:
            tx.append("orders", "x")
            tx.append("stock", "y")
        assert texts(log, "orders") == ["first", "x"]
        assert log.verify().ok


def test_dropping_topics_under_transactions_breaks_none_of_them(log):
    stopped = threading.Event()
    failures = []

    def write():
        try:
            while not stopped.is_set():
                with log.transaction() as tx:
                    tx.append("orders", "x")
                    tx.append("stock", "y")
        except Exception as error:  # noqa: BLE001  # the test shows it
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(15):
        try:
            log.topic("orders").drop()
        except errors.TopicNotFoundError:
            continue
    stopped.set()
    thread.join(20)
    assert failures == []
    assert log.verify().ok


def test_killed_writers_leave_whole_transactions(tmp_path):
    """Writers in several processes are killed again and again: both topics always hold the same numbers."""
    program = """
        import sys, tailrace
        log = tailrace.open(sys.argv[1])
        number = int(sys.argv[2]) * 1_000_000
        while True:
            with log.transaction() as tx:
                tx.append("orders", str(number), headers={"size": b"x" * 500})
                tx.append("stock", str(number))
            print(number, flush=True)
            number += 1
    """
    acknowledged = []
    for turn in range(3):
        writers = [start(program, tmp_path / "shop", 10 * turn + each) for each in range(2)]
        for writer in writers:
            acknowledged += [writer.stdout.readline().strip() for _ in range(5)]
        for writer in writers:
            writer.kill()
            rest, complaint = writer.communicate(timeout=20)
            assert not complaint
            acknowledged += rest.split("\n")[:-1]
    with tailrace.open(tmp_path / "shop") as log:
        orders, stock = texts(log, "orders"), texts(log, "stock")
        assert orders == stock
        assert len(orders) == len(set(orders))
        assert set(acknowledged) <= set(orders)
        assert log.verify().ok


def test_a_mismatch_makes_no_topic(log):
    log.topic("orders").append("x")
    for arguments in ({"topic": "orders", "expect_offset": 5}, {"topic": "clicks", "expect_offset": 1}):
        tx = log.transaction().__enter__()
        tx.append("new", "x")
        tx.append(value="y", **arguments)
        with pytest.raises(errors.OffsetMismatchError) as caught:
            tx.__exit__(None, None, None)
        assert caught.value.expected == arguments["expect_offset"]
        assert [info.name for info in log.topics()] == ["orders"]
    with log.transaction() as tx:
        tx.append("new", "x", expect_offset=0)
        tx.append("orders", "y", expect_offset=1)
    assert tx.positions == [("new", {0: range(1)}), ("orders", {0: range(1, 2)})]


@pytest.mark.parametrize("step", ["_journal", "_apply"])
def test_a_signal_handler_cannot_append_in_the_middle_of_a_commit(tmp_path, monkeypatch, step):
    """It would write where the commit beneath it is about to."""
    with tailrace.open(tmp_path / "log") as log:
        for name in ("a", "b"):
            log.topic(name).append("before")
        caught: list[errors.BusyError] = []

        def handle(*_: object) -> None:
            try:
                log.topic("a").append("handler", durable=False)
            except errors.BusyError as error:
                caught.append(error)

        inner = getattr(Committer, step)

        def signalled(self: Committer, *arguments: object) -> object:
            monkeypatch.setattr(Committer, step, inner)
            signal.raise_signal(signal.SIGUSR1)
            return inner(self, *arguments)

        monkeypatch.setattr(Committer, step, signalled)
        before = signal.signal(signal.SIGUSR1, handle)
        try:
            with log.transaction() as tx:
                tx.append("a", "together")
                tx.append("b", "together")
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert [type(error) for error in caught] == [Reentered]
        assert "set a flag" in caught[0].hint
        for name in ("a", "b"):
            assert [record.value for record in log.topic(name).read()] == [b"before", b"together"]
        assert log.topic("a").append("after").offset == 2
        assert log.verify().ok
