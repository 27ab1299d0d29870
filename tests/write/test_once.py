"""transaction(once=): of one name, each number is committed once, in rising order, by any process."""

from __future__ import annotations

import threading

import pytest

import tailrace
from tailrace import errors
from tailrace.bulk import applied
from tailrace.limits import ONCE_NAME_BYTES_MAX, PARTICIPANTS_MAX
from tests.processes import start
from tests.rigs.sim.mutation import mutate, without


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        yield log


def texts(log, name):
    return [record.text for record in log.topic(name).read()]


def put(log, number, *names, name="importer"):
    with log.transaction(once=(name, number)) as tx:
        for topic in names or ("orders",):
            tx.append(topic, f"{name} {number}")
    return tx


def test_a_repeat_writes_nothing_and_says_so(log):
    first = put(log, 12, "orders", "stock")
    again = put(log, 12, "orders", "stock")
    assert (first.repeated, first.positions) == (False, [("orders", {0: range(1)}), ("stock", {0: range(1)})])
    assert (again.repeated, again.positions) == (True, [])
    assert texts(log, "orders") == texts(log, "stock") == ["importer 12"]


def test_numbers_rise_and_a_lower_one_is_a_repeat(log):
    assert [put(log, number).repeated for number in (3, 2, 3, 4, 0, 9)] == [False, True, True, False, True, False]
    assert texts(log, "orders") == ["importer 3", "importer 4", "importer 9"]


def test_names_are_apart_and_zero_is_a_number(log):
    assert [put(log, 0, name=name).repeated for name in ("a", "b", "a", "b ")] == [False, False, True, False]


def test_a_repeat_creates_no_topic_and_deletes_nothing(log):
    log.topic("people", mutable=True).append("kept")
    put(log, 1)
    with log.transaction(once=("importer", 1)) as tx:
        tx.append("never.made", "x")
        tx.delete("people", 0)
    assert tx.repeated
    assert texts(log, "people") == ["kept"]
    with pytest.raises(errors.TopicNotFoundError):
        log.topic("never.made").offsets()


def test_it_is_known_inside_of_with_whether_the_work_was_done(log):
    put(log, 1)
    with log.transaction(once=("importer", 1)) as tx:
        assert tx.repeated
    with log.transaction(once=("importer", 2)) as tx:
        assert not tx.repeated
    assert not tx.repeated
    with log.transaction() as tx:
        assert not tx.repeated


def test_a_number_without_records_counts_as_committed(log):
    with log.transaction(once=("importer", 5)) as tx:
        pass
    assert (tx.repeated, tx.positions) == (False, [])
    assert put(log, 5).repeated
    assert log.topics("orders") == []


def test_a_number_whose_transaction_failed_may_be_used_again(log):
    with pytest.raises(errors.OffsetMismatchError), log.transaction(once=("importer", 1)) as tx:
        tx.append("orders", "x", expect_offset=7)
    assert not tx.repeated
    tx = log.transaction(once=("importer", 1)).__enter__()
    tx.append("orders", "x")
    tx.__exit__(KeyError, KeyError(), None)
    assert not put(log, 1).repeated
    assert texts(log, "orders") == ["importer 1"]


def test_a_repeat_is_seen_after_a_restart_and_in_a_backup(log, tmp_path):
    put(log, 12)
    log.backup(tmp_path / "backup")
    log.close()
    with tailrace.open(tmp_path / "shop") as other:
        assert put(other, 12).repeated
        assert not put(other, 13).repeated
    tailrace.Log.restore(tmp_path / "backup", tmp_path / "copy")
    with tailrace.open(tmp_path / "copy") as copy:
        assert put(copy, 12).repeated
        assert not put(copy, 13).repeated


def test_a_transaction_inside_another_is_one_of_its_own(log):
    with log.transaction(once=("importer", 1)) as outer:
        outer.append("orders", "outer")
        with log.transaction(once=("importer", 2)) as inner:
            inner.append("orders", "inner")
    assert (outer.repeated, inner.repeated) == (True, False)
    assert texts(log, "orders") == ["inner"]


def test_cursors_of_a_repeat_are_not_stored(log):
    log.topic("orders").extend(["a", "b"])
    put(log, 1, "out")
    with log.consumer("orders", group="billing", commit="manual", stop="now") as consumer:
        got = consumer.poll()
        with log.transaction(once=("importer", 1)) as tx:
            tx.append("out", "again")
            consumer.commit(tx=tx)
        assert tx.repeated
        assert [record.text for record in consumer.poll()] == [record.text for record in got]
    assert texts(log, "out") == ["importer 1"]


def test_the_markers_are_those_of_bulk_commits(log):
    put(log, 12)
    assert applied(log, "importer") == 12


def test_markers_are_shortened(tmp_path, monkeypatch):
    monkeypatch.setattr("tailrace.settings.TUNING", tailrace.settings.TUNING._replace(applied_records_max=20))
    with tailrace.open(tmp_path / "shop") as log:
        for number in range(100):
            put(log, number)
        bounds = log.topic("orders").offsets()[0]
        assert bounds.latest == 100
        assert put(log, 99).repeated


def test_threads_that_race_commit_each_number_once(log):
    done = []
    barrier = threading.Barrier(4)

    def race():
        barrier.wait()
        done.extend([number for number in range(30) if not put(log, number, "orders", "stock").repeated])

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == len(set(done))
    assert texts(log, "orders") == texts(log, "stock")
    assert sorted(texts(log, "orders"), key=lambda text: int(text.split()[1])) == texts(log, "orders")
    assert len(set(texts(log, "orders"))) == len(done)


RACER = """
import sys, tailrace
with tailrace.open(sys.argv[1]) as log:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[2])):
        with log.transaction(once=("importer", number)) as tx:
            tx.append("orders", str(number))
            tx.append("stock", str(number))
        print("repeated" if tx.repeated else "stored", number, flush=True)
"""


def test_processes_that_race_commit_each_number_once(log, tmp_path):
    """The first is killed at some point; the second ends with every number stored exactly once."""
    log.topic("orders")
    racers = [start(RACER, tmp_path / "shop", 40) for _ in range(2)]
    for racer in racers:
        assert racer.stdout.readline().strip() == "ready"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for _ in range(10):
        racers[0].stdout.readline()
    racers[0].kill()
    told, _ = racers[1].communicate(timeout=60)
    racers[0].communicate(timeout=60)
    assert told.count("\n") == 40
    found = [int(text) for text in texts(log, "orders")]
    assert found == sorted(set(found)) == [int(text) for text in texts(log, "stock")]
    # A number that is missing was passed over by the faster one, whose higher number came first.
    assert {int(line.split()[1]) for line in told.splitlines() if line.startswith("stored")} <= set(found)
    assert max(found) == 39


@pytest.mark.parametrize(
    ("once", "error", "match"),
    [
        ("importer", TypeError, "not a pair"),
        (("importer",), TypeError, "not a pair"),
        (["importer", 1], TypeError, "not a pair"),
        ((b"importer", 1), TypeError, "must be a str, not bytes"),
        (("", 1), ValueError, "is empty"),
        (("__outbox[0]", 1), ValueError, "does not begin with __"),
        (("x" * (ONCE_NAME_BYTES_MAX + 1), 1), ValueError, "the maximum is 1,024"),
        (("\ud800", 1), ValueError, "lone surrogate"),
        (("importer", "1"), TypeError, "the number in once="),
        (("importer", True), TypeError, "the number in once="),
        (("importer", -1), ValueError, "the number in once="),
        (("importer", 1 << 63), ValueError, "the number in once="),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(log, once, error, match):
    with pytest.raises(error, match=match):
        log.transaction(once=once)
    assert log.topics() == []


def test_too_many_partitions_with_the_marker(log):
    log.topic("wide", partitions=PARTICIPANTS_MAX)
    tx = log.transaction(once=("importer", 1)).__enter__()
    for index in range(PARTICIPANTS_MAX):
        tx.append("wide", "x", partition=index)
    with pytest.raises(errors.LimitError):
        tx.__exit__(None)
    assert not put(log, 1).repeated


def test_without_its_marker_a_repeat_is_stored_twice(log, monkeypatch):
    mutate(monkeypatch, without("marker inside the transaction"))
    put(log, 1)
    put(log, 1)
    assert texts(log, "orders") == ["importer 1"] * 2
