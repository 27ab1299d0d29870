"""Members that are stopped or do not poll: they get no partitions, lose those they have, and are told from others."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, contextmanager

import pytest

import tailrace
from tailrace import errors, settings
from tailrace.groups.heartbeat import GONE, Heartbeat, Seen, look
from tests.processes import start
from tests.tuning import retune

LONG = 30.0
# Shorter than by default, and longer than a busy machine keeps a process waiting.
ANSWER_SECONDS = 0.6

MEMBER = """
    import sys, time, tailrace
    from tests.tuning import tune
    tune(answer_seconds=0.6)
    log = tailrace.open(sys.argv[1], durable=False)
    consumer = log.consumer("t", "g", member=sys.argv[2], max_processing=sys.argv[3], commit_every="1h")
    print("ready", flush=True)
    while True:
        try:
            batch = consumer.poll(timeout=0.05)
        except tailrace.errors.PartitionLostError as error:
            print("lost", error.hint, flush=True)
            continue
        for record in batch:
            print(record.partition, record.offset, flush=True)
            if record.text == "hold":
                sys.stdin.readline()
"""


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        retune(log, answer_seconds=ANSWER_SECONDS)
        yield log


@contextmanager
def other(log, name, max_processing="5m"):
    """A member in a process of its own."""
    process = start(MEMBER, log.location, name, max_processing)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(condition, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.002)


def owned(log):
    """How many partitions each member has, by the name it was given."""
    found = {}
    if "g" not in [info.name for info in log.groups()]:
        return found
    for part in log.group("g").partitions:
        name = None if part.owner is None else part.owner.rsplit("-", 1)[0]
        found[name] = found.get(name, 0) + 1
    return found


def members(log):
    return {member.id.rsplit("-", 1)[0]: member for member in log.group("g").members}


def stop(process):
    """Stop a process that waits inside poll: what it had to do with the group is long done."""
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGSTOP)


def fall_silent(consumer, seconds=90.0):
    """Make it look as if a consumer had last polled so much earlier."""
    heartbeat = consumer._session.membership.member.lock_file.heartbeat
    heartbeat.polled -= seconds
    heartbeat._store(0, round(heartbeat.polled * 1e6) << 1)
    # A loop looks after its group between two records, once some time has passed.
    consumer._hand.tick_at = 0.0


class TestStoppedMembers:
    def test_a_partition_is_not_left_to_a_stopped_member(self, log):
        """The share that a stopped member would get of a dead one goes to those that run."""
        log.topic("t", partitions=6)
        with ExitStack() as stack:
            killed, stopped = (stack.enter_context(other(log, name)) for name in ("killed", "stopped"))
            with log.consumer("t", "g", member="here") as consumer:
                wait_until(lambda: not consumer.poll(timeout=0.01) and set(owned(log).values()) == {2})
                stop(stopped)
                killed.kill()
                killed.wait()
                began = time.monotonic()
                wait_until(lambda: not consumer.poll(timeout=0.01) and len(consumer.assigned) == 4)
                assert time.monotonic() - began < 10 * ANSWER_SECONDS
                # It keeps what it has, and is shown as what it is.
                assert owned(log) == {"here": 4, "stopped": 2}
                told = members(log)
                assert (told["stopped"].state, told["stopped"].alive) == ("stopped", True)
                assert told["stopped"].silent_seconds > ANSWER_SECONDS
                assert told["here"].state == "alive"
                # Awake, it gets its share again.
                os.kill(stopped.pid, signal.SIGCONT)
                wait_until(lambda: not consumer.poll(timeout=0.01) and owned(log) == {"here": 3, "stopped": 3})
                assert members(log)["stopped"].state == "alive"

    def test_a_busy_member_does_not_keep_partitions_waiting(self, log):
        """It runs and has a record in hand: what is free goes to others until it asks again."""
        topic = log.topic("t", partitions=4)
        with other(log, "busy") as busy:
            wait_until(lambda: owned(log) == {"busy": 4})
            topic.append("hold", partition=0)
            assert busy.stdout.readline() == "0 0\n"
            topic.alter(partitions=6)
            with log.consumer("t", "g", member="here") as consumer:
                wait_until(lambda: not consumer.poll(timeout=0.01) and len(consumer.assigned) == 2)
                assert members(log)["busy"].state == "alive"
                busy.stdin.write("\n")
                busy.stdin.flush()
                wait_until(lambda: not consumer.poll(timeout=0.01) and owned(log) == {"here": 3, "busy": 3})

    def test_the_only_member_that_runs_takes_all_that_is_free(self, log):
        log.topic("t", partitions=4)
        with other(log, "one") as one, other(log, "two") as two:
            wait_until(lambda: owned(log) == {"one": 2, "two": 2})
            stop(one)
            stop(two)
            log.topic("t").alter(partitions=8)
            with log.consumer("t", "g", member="here") as consumer:
                wait_until(lambda: not consumer.poll(timeout=0.01) and len(consumer.assigned) == 4)
            assert owned(log) == {"one": 2, "two": 2, None: 4}


class TestMaxProcessing:
    def test_a_member_that_does_not_poll_loses_its_partitions(self, log):
        topic = log.topic("t", partitions=2)
        topic.extend(["hold", "next"], partition=0)
        with other(log, "slow", "1s") as slow:
            assert slow.stdout.readline() == "0 0\n"
            with log.consumer("t", "g", member="here") as consumer:
                found = []
                wait_until(lambda: found.extend(consumer.poll(timeout=0.01)) or len(found) == 2)
                assert len(consumer.assigned) == 2
                consumer.commit()
                told = members(log)["slow"]
                assert (told.state, told.partitions, told.alive) == ("silent", 0, True)
                slow.stdin.write("\n")
                slow.stdin.flush()
                wait_until(lambda: not consumer.poll(timeout=0.01) and owned(log) == {"here": 1, "slow": 1})
                positions = {part.partition: part.position for part in log.group("g").partitions}
                assert positions[0] == 2

    def test_the_next_commit_of_the_only_member_is_refused(self, log):
        """Whether another member was there to take the partitions makes no difference."""
        topic = log.topic("t")
        topic.extend(["a", "b"])
        with log.consumer("t", "g", commit="manual", max_processing="1m") as consumer:
            assert len(consumer.poll(1)) == 1
            fall_silent(consumer)
            assert log.group("g").members[0].state == "silent"
            with pytest.raises(errors.PartitionLostError, match="max_processing='1m'") as caught:
                consumer.commit()
            assert caught.value.partitions == (("t", 0),)
            assert "poll again" in caught.value.hint
            assert "max_processing" in caught.value.hint
            assert log.group("g").partitions[0].position is None
            assert [record.text for record in consumer.poll()] == ["a", "b"]
            consumer.commit()
        assert log.group("g").partitions[0].position == 2

    def test_a_transaction_is_refused_as_well(self, log):
        log.topic("t").append("a")
        with log.consumer("t", "g", commit="manual", max_processing="1m") as consumer:
            assert len(consumer.poll(1)) == 1
            fall_silent(consumer)

            def transact():
                with log.transaction() as tx:
                    tx.append("out", "made")
                    consumer.commit(tx)

            with pytest.raises(errors.PartitionLostError):
                transact()
            assert [topic.name for topic in log.topics()] == ["t"]
            assert len(consumer.poll(timeout=0)) == 1

    @pytest.mark.parametrize("commit", ["after", "manual"])
    def test_the_next_poll_says_that_what_was_handed_out_is_lost(self, log, commit):
        log.topic("t").extend(["a", "b"])
        with log.consumer("t", "g", commit=commit, max_processing="1m") as consumer:
            assert len(consumer.poll(1)) == 1
            fall_silent(consumer)
            with pytest.raises(errors.PartitionLostError, match="has not polled for"):
                consumer.poll(1)
            assert [record.text for record in consumer.poll()] == ["a", "b"]

    def test_a_loop_says_so_too(self, log):
        log.topic("t").extend(["a", "b"])
        with log.consumer("t", "g", max_processing="1m") as consumer:
            assert next(consumer).text == "a"
            fall_silent(consumer)
            with pytest.raises(errors.PartitionLostError):
                next(consumer)
            assert next(consumer).text == "a"

    def test_a_member_with_nothing_in_hand_joins_again_and_says_nothing(self, log):
        """Polling now and then is a way to work, and nothing is lost by it."""
        topic = log.topic("t")
        topic.append("a")
        with log.consumer("t", "g", max_processing="1m") as consumer:
            assert len(consumer.poll(timeout=0)) == 1
            assert not consumer.poll(timeout=0)
            consumer.commit()
            before = consumer.member
            fall_silent(consumer)
            topic.append("b")
            assert [record.text for record in consumer.poll(timeout=0)] == ["b"]
            assert consumer.member != before
            consumer.commit()
        assert log.group("g").partitions[0].position == 2

    def test_a_loop_with_everything_committed_goes_on(self, log):
        log.topic("t").extend(["a", "b"])
        with log.consumer("t", "g", max_processing="1m", stop="now") as consumer:
            assert next(consumer).text == "a"
            consumer.commit()
            fall_silent(consumer)
            assert [record.text for record in consumer] == ["b"]

    def test_waiting_inside_poll_is_polling(self, log):
        topic = log.topic("t")
        with log.consumer("t", "g", max_processing="1m", commit="manual") as consumer:
            assert not consumer.poll(timeout=0)
            polled = consumer._session.membership.member.lock_file.heartbeat.polled
            assert not consumer.poll(timeout=0.5)
            assert consumer._session.membership.member.lock_file.heartbeat.polled >= polled + 0.5
            member = consumer.member
            topic.append("a")
            assert len(consumer.poll()) == 1
            consumer.commit()
            assert consumer.member == member

    def test_without_a_limit_it_keeps_them(self, log):
        log.topic("t").append("a")
        with log.consumer("t", "g", max_processing=None, commit="manual") as consumer:
            consumer.poll()
            member = log.group("g").members[0]
            assert (member.state, member.partitions) == ("alive", 1)
            fall_silent(consumer, 400.0)
            assert log.group("g").members[0].state == "alive"
            consumer.commit()
        assert log.group("g").partitions[0].position == 1

    @pytest.mark.parametrize("wrong", ["0s", "10ms", 0.5])
    def test_a_limit_that_is_too_short(self, log, wrong):
        with pytest.raises(ValueError, match="the minimum is 1s"):
            log.consumer("t", "g", max_processing=wrong)

    def test_process_polls_between_two_records(self, log, monkeypatch):
        """A batch may take longer than a member may be silent, as long as no call of the function does."""
        monkeypatch.setattr(settings, "TUNING", settings.TUNING._replace(process_beat_seconds=0.0))
        log.topic("t").extend(["a", "b", "c", "d"])

        def function(seconds):
            def call(record):
                (consumer,) = log.engine.consumers
                fall_silent(consumer, seconds)
                return record.value

            return call

        assert log.process("t", function(200.0), "out", group="g", stop="now") == 4
        log.topic("t").append("e")
        with pytest.raises(errors.PartitionLostError, match="max_processing='5m'"):
            log.process("t", function(310.0), "out", group="g", stop="now")
        assert [record.text for record in log.topic("out").read()] == ["a", "b", "c", "d"]


class TestHeartbeat:
    def test_what_a_lock_file_says(self, log, tmp_path):
        files = log.engine.files
        assert look(files, str(tmp_path), "nobody") == GONE
        descriptor = files.open(f"{tmp_path}/one", exclusive=True)
        try:
            assert look(files, str(tmp_path), "one") == GONE
            files.lock(descriptor)
            fresh = look(files, str(tmp_path), "one")
            assert (fresh.locked, fresh.waiting, fresh.ran) == (True, False, 0.0)
            heartbeat = Heartbeat(files, descriptor)
            heartbeat.poll(1_000.25, waiting=True)
            heartbeat.run(1_000.5)
            assert look(files, str(tmp_path), "one") == Seen(True, 1_000.25, True, 1_000.5)
            heartbeat.close()
            heartbeat.poll(2_000.0, waiting=False)
            assert look(files, str(tmp_path), "one").polled == 1_000.25
        finally:
            files.close(descriptor)

    @pytest.mark.parametrize(
        ("seen", "state"),
        [
            (GONE, "dead"),
            (Seen(True, 99.5, True, 0.0), "alive"),
            (Seen(True, 98.0, True, 0.0), "stopped"),
            # Its background thread runs, so the process does.
            (Seen(True, 98.0, True, 99.5), "alive"),
            (Seen(True, 50.0, False, 99.0), "alive"),
            (Seen(True, 50.0, False, 90.0), "stopped"),
            # Without such a thread only a member that waits can be found out.
            (Seen(True, 50.0, False, 0.0), "alive"),
            (Seen(True, 30.0, False, 99.5), "silent"),
            (Seen(True, 30.0, False, 0.0), "silent"),
        ],
    )
    def test_states(self, seen, state):
        assert seen.state(100.0, 1.0, 60.0) == state

    def test_no_limit_is_never_silent(self):
        assert Seen(True, 0.0, False, 99.9).state(100.0, 1.0, None) == "alive"
