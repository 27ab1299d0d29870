"""Ends that meet: a log that is closed beside consumers and transactions of other threads, topics dropped meanwhile."""

from __future__ import annotations

import linecache
import sys
import threading

import pytest

import tailrace
from tailrace import errors
from tailrace.engine.engine import Engine
from tailrace.groups.consumer import Consumer
from tailrace.groups.member import Member
from tailrace.groups.membership import Membership
from tailrace.groups.session import Session
from tailrace.local.transaction import LocalTransaction
from tailrace.names import group_topic
from tailrace.write.producer import Producer
from tests.consuming import LONG, cursor, fill, in_thread, locks, numbers, wait_until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shop"


@pytest.fixture
def log(path):
    with tailrace.open(path, durable=False) as log:
        yield log


def processed(path):
    """What the target has in all, after whatever is left was processed."""
    with tailrace.open(path, durable=False) as log:
        log.process("t", lambda record: record.value, "out", group="g", stop="now")
        assert locks(log) == []
        return sorted(numbers(log.topic("out").read()))


class TestClosingBesideProcess:
    @pytest.mark.parametrize("stop", [None, "now"])
    @pytest.mark.parametrize("moment", ["function", "commit"])
    def test_it_ends_while_a_producer_still_sends(self, path, monkeypatch, moment, stop):
        """Consumers are closed first, and until the producers are as well the log does not say that it is closed."""
        log = tailrace.open(path, durable=False)
        fill(log, "t", 10)
        future = log.topic("held").producer(linger="20s").append("kept")
        met = threading.Event()
        commit, close = LocalTransaction.commit, Producer.close

        def meet():
            consumer = log.backend.consumers()[0]
            met.set()
            wait_until(consumer.is_closed)

        def function(record):
            if moment == "function" and record.offset == 4:
                meet()
            return record.value

        def committed(self, calls, enlisted, *rest):
            if moment == "commit" and 8 in enlisted[0].moves.values():
                meet()
            return commit(self, calls, enlisted, *rest)

        def closed(self):
            ended()
            close(self)

        monkeypatch.setattr(LocalTransaction, "commit", committed)
        monkeypatch.setattr(Producer, "close", closed)
        ended = in_thread(lambda: log.process("t", function, "out", group="g", stop=stop, batch=4))
        assert met.wait(LONG)
        log.close()
        assert ended() == 4
        assert future.result(LONG).offset == 0
        assert processed(path) == list(range(10))

    def test_a_transaction_at_its_end_is_not_disturbed(self, path, monkeypatch):
        """The member was evicted: its membership is being given back when another thread closes the log."""
        log = tailrace.open(path, durable=False)
        fill(log, "t", 3)
        future = log.topic("held").producer(linger="20s").append("kept")
        inside, release = threading.Event(), Member.release

        def function(record):
            log.evict_member("g", log.group("g").members[0].id)
            return record.value

        def stood_up(self):
            monkeypatch.setattr(Member, "release", release)
            consumer, me = log.backend.consumers()[0], threading.get_ident()
            inside.set()

            def is_waited_for():
                guard = consumer._session.guard
                return guard.closing and guard.mutex.locked() and guard.thread == me

            wait_until(lambda: log.closed or is_waited_for())
            release(self)

        monkeypatch.setattr(Member, "release", stood_up)
        ended = in_thread(lambda: log.process("t", function, "out", group="g", batch=1))
        assert inside.wait(LONG)
        log.close()
        # The eviction was first, but when it was told the log was closed already, or not yet.
        try:
            assert ended() == 0
        except errors.PartitionLostError:
            pass
        assert future.result(LONG).offset == 0
        monkeypatch.undo()
        assert processed(path) == [0, 1, 2]

    @pytest.mark.parametrize("error", [errors.StorageError("no"), ValueError("no")])
    def test_whatever_fails_at_a_close_producers_send_what_they_hold(self, path, monkeypatch, error):
        log = tailrace.open(path, durable=False)
        fill(log, "t", 1)
        consumer = log.consumer("t", "g")
        consumer.poll()
        future = log.topic("held").producer(linger="20s").append("kept")
        close = Consumer.close

        def failed(self):
            close(self)
            raise error

        monkeypatch.setattr(Consumer, "close", failed)
        with pytest.raises(type(error), match="no"):
            log.close()
        assert log.closed
        assert future.result(LONG).offset == 0
        monkeypatch.undo()
        with tailrace.open(path) as log:
            assert [record.text for record in log.topic("held").read()] == ["kept"]

    def test_a_consumer_that_was_evicted_is_not_in_the_way_of_a_repair(self, log):
        fill(log, "t", 3)
        consumer = log.consumer("t", "g")
        consumer.poll(1)
        consumer.poll(1)
        future = log.topic("held").producer(linger="20s").append("kept")
        log.evict_member("g", consumer.member)
        log.repair()
        assert consumer.is_closed()
        assert future.result(LONG).offset == 0


class TestClosingBesideTransactions:
    def test_what_was_committed_meanwhile_stays_committed(self, log, monkeypatch):
        """The close has gone back to the cursor that was stored, and stores it no more when a later one came."""
        fill(log, "t", 4)
        consumer = log.consumer("t", "g")
        consumer.poll(1)
        consumer.commit()
        consumer.poll(2)
        committing, leaving = threading.Event(), threading.Event()
        enlisted = []
        commit, leave = LocalTransaction.commit, Membership.leave

        def committed(self, calls, cursors, *rest):
            enlisted.extend(cursors)
            committing.set()
            assert leaving.wait(LONG)
            return commit(self, calls, cursors, *rest)

        def left(self, offsets):
            leaving.set()
            wait_until(lambda: not worker.is_alive() or getattr(enlisted[0], "committed", False))
            leave(self, offsets)

        def work():
            with log.transaction() as tx:
                tx.append("out", "2 records")
                consumer.commit(tx)

        monkeypatch.setattr(LocalTransaction, "commit", committed)
        monkeypatch.setattr(Membership, "leave", left)
        worker = threading.Thread(target=work)
        worker.start()
        assert committing.wait(LONG)
        consumer.close()
        worker.join(LONG)
        assert [record.text for record in log.topic("out").read()] == ["2 records"]
        assert cursor(log) == 3
        assert locks(log) == []

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_log_that_is_closed_before_a_transaction_has_told_its_consumers(self, path, monkeypatch, fails):
        log = tailrace.open(path, durable=False)
        fill(log, "t", 4)
        consumer = log.consumer("t", "g", commit="manual")
        consumer.poll(2)
        commit = LocalTransaction.commit

        def committed(self, calls, cursors, *rest):
            if fails:
                in_thread(log.close)()
                return commit(self, calls, cursors, *rest)
            positions = commit(self, calls, cursors, *rest)
            in_thread(log.close)()
            return positions

        def work():
            with log.transaction() as tx:
                tx.append("out", "2 records")
                consumer.commit(tx)

        monkeypatch.setattr(LocalTransaction, "commit", committed)
        if fails:
            with pytest.raises(errors.ClosedError):
                work()
        else:
            work()
        with tailrace.open(path) as log:
            assert cursor(log) == (None if fails else 2)

    def test_what_another_thread_keeps_busy_is_told_later(self, log):
        """Two threads at once are against the rule, but neither hangs, and nothing is skipped or comes twice."""
        fill(log, "t", 2)
        with log.consumer("t", "g", commit="manual") as consumer:
            with log.transaction() as tx:
                tx.extend("out", [record.value for record in consumer.poll()])
                consumer.commit(tx)
                waiting = in_thread(lambda: numbers(consumer.poll(timeout=LONG)))
                wait_until(lambda: consumer._session.guard.resting)
            assert cursor(log) == 2
            fill(log, "t", 1, 2)
            assert waiting() == [2]
            with log.transaction() as tx:
                consumer.commit(tx)
            assert cursor(log) == 3
            assert len(consumer.poll(timeout=0)) == 0


def test_a_handler_that_closes_again_does_not_wait_for_its_own_thread(log, monkeypatch):
    """Another thread waits for the close meanwhile, and must not pass for the one that is inside."""
    fill(log, "t", 3)
    consumer = log.consumer("t", "g")
    consumer.poll(1)
    leave = Membership.leave
    polled = []

    def is_waiting():
        frame = sys._current_frames().get(other.ident)
        while frame is not None and frame.f_code is not Session._alone.__code__:
            frame = frame.f_back
        if frame is None:
            return False
        return "with guard.mutex" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)

    def left(self, offsets):
        monkeypatch.setattr(Membership, "leave", leave)
        other.start()
        wait_until(is_waiting)
        # A handler would wait for ever here if it did not know this.
        assert self.guard.thread == threading.get_ident()
        consumer.close()
        leave(self, offsets)

    other = threading.Thread(target=lambda: polled.append(len(consumer.poll())))
    monkeypatch.setattr(Membership, "leave", left)
    consumer.close()
    other.join(LONG)
    assert polled == [0]
    assert locks(log) == []


class TestTopicsThatAreDroppedMeanwhile:
    @pytest.fixture
    def log(self, log, monkeypatch):
        """A group that has read t.1 and others; once `armed` says so, t.1 is dropped under the next call about it."""
        for name in ("t.1", "t.2", "s"):
            log.topic(name, partitions=2).extend([str(number) for number in range(20)], partition=1)
        with log.consumer(["t.*", "s"], "g", stop="now") as consumer:
            assert len(list(consumer)) == 60
        partition = Engine.partition
        log.armed = None

        def dropping(engine, entry, index):
            if log.armed == "before" and entry.name == "t.1":
                log.armed = None
                log.topic("t.1").drop()
            found = partition(engine, entry, index)
            if log.armed == "after" and entry.name == "t.1":
                log.armed = None
                log.topic("t.1").drop()
            return found

        monkeypatch.setattr(Engine, "partition", dropping)
        return log

    @pytest.mark.parametrize("moment", ["before", "after"])
    @pytest.mark.parametrize(
        ("call", "topics"),
        [(lambda log: {each.topic for each in log.group("g").partitions}, {"t.2", "s"}),
         (lambda log: {each.topic for group in log.groups() for each in group.partitions}, {"t.2", "s"}),
         (lambda log: set(log.reset_group("g", "earliest")), {"t.2", "s"}),
         (lambda log: set(log.reset_group("g", "-1h")), {"t.2", "s"}),
         (lambda log: set(log.reset_group("g", shift=-3, dry_run=True)), {"t.2", "s"}),
         (lambda log: set(log.reset_group("g", "earliest", topics="t.*")), {"t.2"}),
         (lambda log: {record.topic for record in log.consumer(["t.*", "s"], "h", stop="now")}, {"t.2", "s"}),
         (lambda log: {record.topic for record in log.consumer(["t.*"], "h", start="-1h", stop="now")}, {"t.2"}),
         (lambda log: {record.topic for record in log.consumer(["t.*"], "h", stop="-1us")}, {"t.2"})],
    )  # fmt: skip
    def test_are_not_in_the_answer(self, log, call, topics, moment):
        log.armed = moment
        assert call(log) == topics
        assert log.armed is None

    @pytest.mark.parametrize("moment", ["before", "after"])
    @pytest.mark.parametrize(
        "call",
        [lambda log: log.reset_group("g", "earliest", topics=["t.1", "s"]),
         lambda log: log.reset_group("g", shift=-1, topics="t.1", dry_run=True),
         lambda log: log.consumer(["t.1", "s"], "h", stop="now"),
         lambda log: log.consumer("t.1", "h", start="latest", stop="now")],
    )  # fmt: skip
    def test_are_an_error_for_those_who_named_them(self, log, call, moment):
        log.armed = moment
        with pytest.raises(errors.TopicNotFoundError, match=r"'t\.1' was dropped") as caught:
            call(log)
        assert caught.value.topic == "t.1"
        assert {each.position for each in log.group("g").partitions if each.partition == 1} == {20}

    def test_are_waited_for_without_an_end(self, log):
        log.armed = "before"
        with log.consumer(["t.1", "s"], "h", start="latest") as consumer:
            assert log.armed is None
            log.topic("t.1", partitions=1).append("new")
            assert [record.text for record in consumer.poll(timeout=LONG)] == ["new"]

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_do_not_keep_a_consumer_from_sitting_down(self, log, moment):
        """A stored cursor behind the end of a topic that goes is no sign of a log that was copied."""
        with log.consumer(["t.*", "s"], "g") as consumer:
            log.armed = moment
            assert len(consumer.poll(timeout=0)) == 0
            assert log.armed is None
            assert {topic for topic, _ in consumer.assigned} == {"t.2", "s"}

    def test_and_groups_as_well(self, path, monkeypatch):
        with tailrace.open(path, durable=False) as log:
            fill(log, "t", 1)
            for group in ("one", "two"):
                with log.consumer("t", group, stop="now") as consumer:
                    consumer.poll()
        partition = Engine.partition

        def dropping(engine, entry, index):
            if entry.name == group_topic("one"):
                monkeypatch.setattr(Engine, "partition", partition)
                engine.change(lambda admin: admin.drop(entry.id))
            return partition(engine, entry, index)

        monkeypatch.setattr(Engine, "partition", dropping)
        with tailrace.open(path) as log:
            assert [group.name for group in log.groups()] == ["two"]
            with pytest.raises(errors.GroupNotFoundError):
                log.group("one")
