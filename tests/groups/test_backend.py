"""The Consumer on a session that is not the local one: everything that it does, it asks of the session."""

from __future__ import annotations

import inspect

import pytest

import tailrace
from tailrace import errors
from tailrace.groups.backend import ConsumerSession
from tailrace.groups.session import Session
from tests.consuming import texts
from tests.groups.list_session import ListGroup, ListSession


@pytest.fixture
def group():
    return ListGroup(a=["0", "1", "2", "3"], b=["10", "11"])


@pytest.fixture
def consumer(group):
    with tailrace.Consumer(ListSession(group)) as consumer:
        yield consumer


ALL = ["0", "1", "2", "3", "10", "11"]
MEMBERS = [name for name in vars(ConsumerSession) if not name.startswith("_")]
METHODS = [name for name in MEMBERS if inspect.isfunction(vars(ConsumerSession)[name])]


class TestTheInterface:
    @pytest.mark.parametrize("kind", ["local", "list"])
    def test_both_sessions_have_all_of_it(self, tmp_path, kind):
        with tailrace.open(tmp_path / "log", durable=False) as log:
            session = log.consumer("t", "g")._session if kind == "local" else ListSession(ListGroup(t=[]))
            assert [name for name in MEMBERS if not hasattr(session, name)] == []

    @pytest.mark.parametrize("name", sorted(set(METHODS) - {"monotonic"}))
    def test_the_signatures_are_the_same(self, name):
        """`monotonic` is the clock itself, so that a loop calls it without a detour."""
        promised = inspect.signature(getattr(ConsumerSession, name))
        assert inspect.signature(getattr(Session, name)) == promised
        assert len(inspect.signature(getattr(ListSession, name)).parameters) == len(promised.parameters)

    def test_every_member_says_what_it_does(self):
        for name in MEMBERS:
            member = vars(ConsumerSession)[name]
            text = inspect.getdoc(member.fget if isinstance(member, property) else member)
            assert text is not None, name
            assert text.splitlines()[0].endswith("."), name

    def test_a_consumer_knows_no_engine(self):
        source = inspect.getsource(inspect.getmodule(tailrace.Consumer))
        assert "engine" not in source


class TestReading:
    def test_iteration(self, consumer):
        assert texts(consumer) == ALL

    def test_a_loop_that_is_left(self, group):
        """The record in hand was not processed."""
        with tailrace.Consumer(ListSession(group)) as consumer:
            for record in consumer:
                if record.text == "2":
                    break
        assert group.cursors == {"a": 2, "b": 0}
        with tailrace.Consumer(ListSession(group)) as consumer:
            assert texts(consumer) == ALL[2:]
        assert group.cursors == {"a": 4, "b": 2}

    def test_poll(self, consumer):
        assert texts(consumer.poll(2)) == ["0", "1"]
        assert texts(consumer.poll(3)) == ["2", "3", "10"]
        assert texts(consumer.poll(timeout=0)) == ["11"]
        assert len(consumer.poll(timeout="1s")) == 0

    def test_poll_after_a_loop_that_was_left(self, consumer):
        assert next(consumer).text == "0"
        assert texts(consumer.poll()) == ALL[1:]

    def test_peek(self, consumer):
        assert texts(consumer.peek(2)) == texts(consumer.peek(2)) == ["0", "1"]
        assert next(consumer).text == "0"
        assert texts(consumer.peek()) == ["1"]
        assert texts(consumer.poll(1)) == ["1"]

    def test_what_an_interrupt_kept_back_comes_again(self, group, monkeypatch):
        """The session has read, and the consumer could not return it."""
        with tailrace.Consumer(ListSession(group)) as consumer:
            with monkeypatch.context() as patched:
                patched.setattr("tailrace.groups.consumer.Batch", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    consumer.poll(2)
            assert texts(consumer.poll(2)) == ["0", "1"]
        assert group.cursors == {"a": 0, "b": 0}


def interrupt(*_):
    raise KeyboardInterrupt


class TestCommitting:
    def test_commit(self, group, consumer):
        consumer.poll(2)
        assert group.cursors["a"] == 0
        consumer.commit()
        assert group.cursors["a"] == 2

    def test_commit_in_a_loop(self, group):
        with tailrace.Consumer(ListSession(group)) as consumer:
            for record in consumer:
                consumer.commit()
                if record.text == "1":
                    break
        assert group.cursors["a"] == 2

    def test_the_next_call_counts_a_batch_as_processed(self, group):
        with tailrace.Consumer(ListSession(group)) as consumer:
            consumer.poll(1)
            consumer.poll(2)
        assert group.cursors["a"] == 1

    def test_a_part_of_a_batch(self, group, consumer):
        with tailrace.Consumer(ListSession(group)) as consumer:
            consumer._commit_first(object(), consumer.poll(3), 2)
            assert group.cursors["a"] == 2

    def test_with_something_else_than_a_transaction(self, consumer):
        with pytest.raises(TypeError, match="tx must be a Transaction"):
            consumer.commit(1)


class TestMoving:
    def test_seek(self, consumer):
        consumer.poll()
        consumer.seek("earliest")
        consumer.seek(1, topic="b")
        assert texts(consumer) == ["0", "1", "2", "3", "11"]

    def test_seek_within_a_loop(self, consumer):
        found = []
        for record in consumer:
            found.append(record.text)
            if record.text == "0" and found.count("0") == 1:
                consumer.seek(3, topic="a")
        assert found == ["0", "3", "10", "11"]

    def test_pause_and_resume(self, consumer):
        consumer.pause("a")
        assert texts(consumer.poll()) == ["10", "11"]
        consumer.resume()
        assert texts(consumer.poll()) == ["0", "1", "2", "3"]


class TestShowing:
    def test_what_the_session_says(self, consumer):
        assert consumer.group == "g"
        assert consumer.member == "list-1"
        assert consumer.assigned == [("a", 0), ("b", 0)]
        assert consumer.lost == []
        assert repr(consumer) == "<Consumer of a, b for the group 'g': 2 partitions>"

    def test_lag(self, consumer):
        consumer.poll(3)
        lag = consumer.lag()
        assert (lag.records, lag.seconds) == (3, 1.5)
        assert lag.partitions == {("a", 0): (1, 1.5), ("b", 0): (2, 1.5)}

    def test_beats_reach_the_session(self, consumer):
        consumer._beat()
        assert consumer._session.beats == 1


class TestClosing:
    def test_close(self, group):
        consumer = tailrace.Consumer(ListSession(group))
        consumer.poll(1)
        consumer.poll(1)
        consumer.close()
        consumer.close()
        assert group.cursors["a"] == 1
        assert consumer.is_closed()
        assert repr(consumer) == "<Consumer of a, b for the group 'g': closed>"
        for call in (consumer.poll, consumer.peek, consumer.commit, consumer.lag, lambda: iter(consumer)):
            with pytest.raises(errors.ClosedError):
                call()

    def test_close_within_a_loop(self, group):
        consumer = tailrace.Consumer(ListSession(group))
        found = []
        for record in consumer:
            found.append(record.text)
            if record.text == "1":
                consumer.close()
        assert found == ["0", "1"]
        assert group.cursors["a"] == 1

    def test_one_that_is_never_closed(self, group):
        consumer = tailrace.Consumer(ListSession(group))
        session = consumer._session
        with pytest.warns(ResourceWarning, match="unclosed consumer of the group 'g'"):
            del consumer
        assert session.closed

    def test_the_fork_of_a_process(self, group):
        consumer = tailrace.Consumer(ListSession(group))
        assert next(consumer).text == "0"
        consumer.forget()
        assert consumer.is_closed()
        assert group.cursors["a"] == 0
