"""Commits: cursors as a part of a transaction."""

from __future__ import annotations

import pytest

import tailrace
from tailrace import errors
from tests.consuming import wait_until

# ruff: noqa: PT012  # What a block leaves behind that raises in its middle is what is tested here.

LONG = 30.0


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


def texts(log, topic="out"):
    return [record.text for record in log.topic(topic).read()]


def exists(log, topic):
    return topic in [info.name for info in log.topics()]


def cursor(log, group="g", partition=0):
    return {each.partition: each.position for each in log.group(group).partitions}.get(partition)


class TestTransactions:
    def test_whole(self, log):
        log.topic("in").extend(["a", "b", "c"])
        with log.consumer("in", "g", commit="manual") as consumer:
            with log.transaction() as tx:
                for record in consumer.poll(2):
                    tx.append("out", record.value)
                consumer.commit(tx)
                assert cursor(log) is None
                assert not exists(log, "out")
            assert cursor(log) == 2
            assert texts(log) == ["a", "b"]
            assert [record.text for record in consumer.poll()] == ["c"]

    def test_absent_and_nothing_is_skipped(self, log):
        log.topic("in").extend(["a", "b", "c"])
        with log.consumer("in", "g", commit="manual") as consumer:
            assert len(consumer.poll(1)) == 1
            consumer.commit()
            with pytest.raises(KeyError), log.transaction() as tx:
                for record in consumer.poll(2):
                    tx.append("out", record.value)
                consumer.commit(tx)
                raise KeyError
            assert cursor(log) == 1
            assert not exists(log, "out")
            # It is back where the group stands, without a word from the caller.
            assert [record.text for record in consumer.poll()] == ["b", "c"]

    @pytest.mark.parametrize("commit", ["after", "manual"])
    def test_in_a_loop(self, log, commit):
        log.topic("in").extend([str(number) for number in range(10)])
        failed = []
        with log.consumer("in", "g", commit=commit, stop="now", commit_every=1) as consumer:
            for record in consumer:
                try:
                    with log.transaction() as tx:
                        tx.append("out", record.value)
                        consumer.commit(tx)
                        if record.offset in (0, 3, 9) and record.offset not in failed:
                            failed.append(record.offset)
                            raise KeyError
                except KeyError:
                    assert cursor(log) == (record.offset or None)
        assert failed == [0, 3, 9]
        assert texts(log) == [str(number) for number in range(10)]
        assert cursor(log) == 10

    def test_of_a_loop_that_came_to_its_end(self, log):
        log.topic("in").extend(["a", "b"])
        for fails in (True, False):
            with log.consumer("in", "g", commit="manual", stop="now") as consumer:
                try:
                    with log.transaction() as tx:
                        for record in consumer:
                            tx.append("out", record.value)
                        consumer.commit(tx)
                        if fails:
                            raise KeyError
                except KeyError:
                    assert [record.text for record in consumer] == ["a", "b"]
            assert cursor(log) == (None if fails else 2)
        assert texts(log) == ["a", "b"]

    def test_a_loop_that_stores_by_itself_says_so(self, log):
        log.topic("in").extend(["a", "b"])
        with log.consumer("in", "g", stop="now") as consumer:
            with pytest.raises(errors.PartitionLostError, match="came to its stop") as caught, log.transaction() as tx:
                for record in consumer:
                    tx.append("out", record.value)
                consumer.commit(tx)
            assert 'commit="manual"' in caught.value.hint
        assert not exists(log, "out")

    def test_nothing_is_stored_while_a_transaction_is_open(self, log):
        log.topic("in").extend([str(number) for number in range(10)])
        with log.consumer("in", "g", commit_every=1, stop="now") as consumer:
            with pytest.raises(KeyError), log.transaction() as tx:
                for record in consumer:
                    tx.append("out", record.value)
                    consumer.commit(tx)
                    assert cursor(log) is None
                raise KeyError
            assert len(list(consumer)) == 10

    def test_partitions_given_back_meanwhile_take_no_cursor_along(self, log):
        numbers = [str(number) for number in range(40)]
        log.topic("in", partitions=4).extend(numbers, keys=numbers)
        with log.consumer("in", "g") as one, log.consumer("in", "g", commit="manual") as two:
            two.pause()

            def shared():
                assert not two.poll(timeout=0)
                one.poll(timeout=0)
                return len(two.assigned) == 2

            with pytest.raises(KeyError), log.transaction() as tx:
                read = 0
                while read < 40:
                    read += len(one.poll(timeout=LONG))
                assert len(one.assigned) == 4
                tx.append("out", "x")
                one.commit(tx)
                wait_until(shared)
                raise KeyError
            assert {cursor(log, partition=each) or 0 for each in range(4)} == {0}

    def test_closing_the_consumer_first_makes_it_absent(self, log):
        log.topic("in").extend(["a", "b"])
        with (
            pytest.raises(errors.PartitionLostError),
            log.transaction() as tx,
            log.consumer("in", "g") as consumer,
        ):
            for record in consumer.poll():
                tx.append("out", record.value)
            consumer.commit(tx)
        assert not exists(log, "out")
        assert cursor(log) is None

    def test_a_disk_that_fails_takes_the_consumer_back(self, tailrace_log, tailrace_faults):
        log = tailrace_log
        log.topic("in").extend(["a", "b", "c"])
        log.topic("out", partitions=1)
        with log.consumer("in", "g", commit="manual") as consumer:
            assert len(consumer.poll(1)) == 1
            consumer.commit()
            tailrace_faults.fill_disk()
            with pytest.raises(errors.StorageError), log.transaction() as tx:
                tx.extend("out", [record.value for record in consumer.poll(1)])
                consumer.commit(tx)
            tailrace_faults.free_disk()
            with log.transaction() as tx:
                batch = consumer.poll()
                tx.extend("out", [record.value for record in batch])
                consumer.commit(tx)
            assert [record.text for record in batch] == ["b", "c"]
        assert texts(log) == ["b", "c"]
        assert cursor(log) == 3

    def test_two_consumers_in_one(self, log):
        log.topic("a").extend(["1", "2"])
        log.topic("b").extend(["3", "4"])
        with log.consumer("a", "g", commit="manual") as one, log.consumer("b", "h", commit="manual") as two:
            with pytest.raises(KeyError), log.transaction() as tx:
                tx.extend("out", [record.value for consumer in (one, two) for record in consumer.poll(1)])
                one.commit(tx)
                two.commit(tx)
                raise KeyError
            with log.transaction() as tx:
                tx.extend("out", [record.value for consumer in (one, two) for record in consumer.poll(1)])
                one.commit(tx)
                two.commit(tx)
            assert texts(log) == ["1", "3"]
            assert (cursor(log, "g"), cursor(log, "h")) == (1, 1)

    def test_two_members_of_one_group_in_one(self, log):
        log.topic("a").append("1")
        log.topic("b").append("2")
        with log.consumer("a", "g", commit="manual") as one, log.consumer("b", "g", commit="manual") as two:
            with log.transaction() as tx:
                tx.extend("out", [record.value for consumer in (one, two) for record in consumer.poll()])
                one.commit(tx)
                two.commit(tx)
            assert texts(log) == ["1", "2"]
            assert [each.position for each in log.group("g").partitions] == [1, 1]

    def test_two_commits_of_one_consumer(self, log):
        log.topic("in").extend(["a", "b", "c"])
        with log.consumer("in", "g", commit="manual") as consumer:
            with log.transaction() as tx:
                consumer.poll(1)
                consumer.commit(tx)
                consumer.poll(1)
                consumer.commit(tx)
            assert cursor(log) == 2
            assert [record.text for record in consumer.poll()] == ["c"]

    def test_a_consumer_of_another_log_is_refused(self, log, tmp_path):
        with tailrace.open(tmp_path / "other", durable=False) as other:
            other.topic("in").extend(["a", "b"])
            with other.consumer("in", "g", commit="manual") as consumer:
                with pytest.raises(ValueError, match="another log"), log.transaction() as tx:
                    tx.append("out", "x")
                    consumer.poll(1)
                    consumer.commit(tx)
                assert not exists(log, "out")
                assert cursor(other) is None
                # What the transaction was about is handed out again.
                assert [record.text for record in consumer.poll(1)] == ["a"]
                consumer.commit()
                assert cursor(other) == 1
        with log.namespace("n") as inner:
            inner.topic("in").append("a")
            with inner.consumer("in", "g") as consumer, log.transaction() as tx:
                consumer.poll()
                with pytest.raises(ValueError, match="another log"):
                    consumer.commit(tx)

    def test_a_transaction_that_is_over_or_not_begun_is_refused(self, log):
        log.topic("in").extend(["a", "b"])
        with log.consumer("in", "g", commit="manual") as consumer:
            consumer.poll(1)
            with log.transaction() as over:
                pass
            for tx in (over, log.transaction()):
                with pytest.raises(errors.ClosedError):
                    consumer.commit(tx)
                # Nobody stores its cursor, so it is handed out again.
                assert [record.text for record in consumer.poll(1)] == ["a"]
            for wrong in ("tx", True, log):
                with pytest.raises(TypeError, match="tx must be a Transaction"):
                    consumer.commit(wrong)
            consumer.commit()
            assert cursor(log) == 1
            assert [record.text for record in consumer.poll()] == ["b"]

    def test_evicted_before_the_end(self, log):
        log.topic("in").extend(["a", "b"])
        with log.consumer("in", "g", commit="manual") as consumer:
            with pytest.raises(errors.PartitionLostError, match=r"in\[0\]"), log.transaction() as tx:
                tx.extend("out", [record.value for record in consumer.poll()])
                consumer.commit(tx)
                log.evict_member("g", consumer.member)
            assert not exists(log, "out")
            assert cursor(log) is None
            assert [record.text for record in consumer.poll()] == ["a", "b"]

    def test_a_group_that_was_dropped_before_the_end(self, log):
        log.topic("in").extend(["a", "b"])
        with log.consumer("in", "g", commit="manual") as consumer:
            with pytest.raises(errors.GroupNotFoundError), log.transaction() as tx:
                tx.extend("out", [record.value for record in consumer.poll()])
                consumer.commit(tx)
                log.drop_group("g", force=True)
            assert not exists(log, "out")
            assert [record.text for record in consumer.poll()] == ["a", "b"]

    def test_only_cursors(self, log):
        log.topic("in").extend(["a", "b"])
        with log.consumer("in", "g", commit="manual") as consumer:
            with log.transaction() as tx:
                consumer.poll(1)
                consumer.commit(tx)
            assert cursor(log) == 1
            assert tx.positions == []
            with log.transaction() as tx:
                consumer.commit(tx)
            assert cursor(log) == 1

    def test_positions_are_those_of_the_appends(self, log):
        log.topic("in").append("a")
        with log.consumer("in", "g", commit="manual") as consumer, log.transaction() as tx:
            tx.append("x", "1")
            consumer.poll()
            consumer.commit(tx)
            tx.append("y", "2")
        assert tx.positions == [("x", {0: range(1)}), ("y", {0: range(1)})]

    def test_a_consumer_that_has_read_nothing(self, log):
        log.topic("in").append("a")
        with log.consumer("in", "g", commit="manual") as consumer, log.transaction() as tx:
            tx.append("out", "x")
            with pytest.raises(errors.PartitionLostError, match="nothing to commit"):
                consumer.commit(tx)

    def test_cursors_are_never_above_safe(self, log):
        for number in range(5):
            log.topic("in").append(str(number))
        with log.consumer("in", "g", commit="manual") as consumer, log.transaction() as tx:
            consumer.poll()
            consumer.commit(tx)
        assert cursor(log) == 5 == log.topic("in").offsets()[0].durable
