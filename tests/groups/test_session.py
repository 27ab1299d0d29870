"""The consumer at its ends: closed, forked, interrupted, used by two threads, short of disk, and of many partitions."""

from __future__ import annotations

import gc
import pickle
import signal
import sys
import threading
import time

import pytest

import tailrace
from tailrace import errors
from tailrace.groups.membership import Membership
from tests.consuming import LONG, cursor, descriptors, fill, in_thread, locks, numbers, wait_until
from tests.processes import in_fork, run, start

# ruff: noqa: PT012  # What a block leaves behind that raises in its middle is what is tested here.


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


class TestClosing:
    def test_twice(self, log):
        fill(log, "t", 3)
        consumer = log.consumer("t", "g")
        next(consumer)
        next(consumer)
        consumer.close()
        consumer.close()
        assert cursor(log) == 1

    @pytest.mark.parametrize(
        ("commit", "rest"), [("after", [2, 3, 4, 5]), ("manual", [1, 2, 3, 4, 5]), ("before", [4, 5])]
    )
    def test_interrupted_and_called_again(self, log, monkeypatch, commit, rest):
        """The second call leaves the group, and what is in hand stays in hand."""
        fill(log, "t", 6)
        consumer = log.consumer("t", "g", commit=commit)
        consumer.poll(1)
        if commit == "manual":
            consumer.commit()
        consumer.poll(1)
        consumer.poll(2)
        leave = Membership.leave

        def interrupted(self: Membership, offsets: object) -> None:
            monkeypatch.setattr(Membership, "leave", leave)
            raise KeyboardInterrupt

        monkeypatch.setattr(Membership, "leave", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.close()
        consumer.close()
        assert (consumer.is_closed(), consumer.member) == (True, None)
        with log.consumer("t", "g", commit=commit) as following:
            assert numbers(following.poll(timeout=0)) == rest

    @pytest.mark.parametrize("whose", ["consumer", "log"])
    def test_inside_its_own_loop(self, tmp_path, whose):
        log = tailrace.open(tmp_path / "log", durable=False)
        fill(log, "t", 10)
        consumer = log.consumer("t", "g")
        found = []
        for record in consumer:
            found.append(record.offset)
            if record.offset == 3:
                (consumer if whose == "consumer" else log).close()
        assert found == [0, 1, 2, 3]
        log.close()
        with tailrace.open(tmp_path / "log") as log:
            assert cursor(log) == 3

    def test_what_left_the_block_is_not_hidden_by_the_close(self, log):
        fill(log, "t", 10)
        with pytest.raises(KeyError), log.consumer("t", "g") as consumer:
            consumer.poll(2)
            consumer.poll(2)
            log.evict_member("g", consumer.member)
            raise KeyError
        assert cursor(log) is None
        assert locks(log) == []

    def test_afterwards_everything_is_refused(self, log):
        fill(log, "t", 3)
        consumer = log.consumer("t", "g")
        next(consumer)
        consumer.close()
        calls = (
            consumer.poll, consumer.peek, consumer.commit, consumer.lag, consumer.pause, consumer.resume,
            lambda: consumer.seek("earliest"), lambda: iter(consumer),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(errors.ClosedError, match="consumer is closed"):
                call()
        assert consumer.assigned == []

    def test_from_another_thread_ends_a_wait(self, log):
        log.topic("t", partitions=1)
        for read in (tailrace.Consumer.poll, list):
            consumer = log.consumer("t", "g")
            ended = in_thread(lambda: read(consumer))  # noqa: B023
            wait_until(lambda: consumer.assigned)  # noqa: B023
            time.sleep(0.01)
            began = time.monotonic()
            consumer.close()
            assert len(ended()) == 0
            assert time.monotonic() - began < 2
        assert locks(log) == []

    def test_from_another_thread_never_surprises_a_loop_of_polls(self, log):
        """Whether the close comes in a wait or between two polls: the loop just ends."""
        fill(log, "t", 5_000)
        for turn in range(12):
            consumer = log.consumer("t", f"g{turn}", commit="manual")

            def loop(consumer=consumer):
                count = 0
                while batch := consumer.poll(10):
                    count += len(batch)
                return count

            ended = in_thread(loop)
            wait_until(lambda: consumer.assigned)  # noqa: B023
            time.sleep(0.0002 * turn)
            consumer.close()
            assert ended() <= 5_000

    def test_from_another_thread_never_surprises_a_loop_of_records(self, log):
        fill(log, "t", 5_000)
        for turn in range(8):
            # Between two records it looks after the group a thousand times a second.
            consumer = log.consumer("t", f"g{turn}", commit_every="1ms")

            def loop(consumer=consumer):
                for _ in consumer:
                    time.sleep(0.0001)

            ended = in_thread(loop)
            wait_until(lambda: consumer.assigned)  # noqa: B023
            time.sleep(0.0005 * turn)
            consumer.close()
            ended()

    def test_from_another_thread_ends_a_loop(self, log):
        fill(log, "t", 1_000)
        consumer = log.consumer("t", "g")
        handed = []

        def loop():
            for record in consumer:
                handed.append(record.offset)
                time.sleep(0.001)

        ended = in_thread(loop)
        wait_until(lambda: len(handed) > 5)
        consumer.close()
        ended()
        assert len(handed) < 1_000
        # All but the one that was in hand, and perhaps one that was handed out at that very moment.
        assert len(handed) - 2 <= cursor(log) <= len(handed) - 1

    def test_the_log_closes_its_consumers(self, tmp_path):
        log = tailrace.open(tmp_path / "log", durable=False)
        fill(log, "t", 10)
        one, two = log.consumer("t", "one"), log.consumer("t", "two", commit="manual")
        assert numbers(one.poll(4)) == [0, 1, 2, 3]
        assert next(one).offset == 4
        assert len(two.poll(3)) == 3
        log.close()
        assert len(one.poll()) == 0
        assert list(one) == []
        with pytest.raises(errors.ClosedError):
            one.commit()
        with tailrace.open(tmp_path / "log", durable=False) as log:
            assert cursor(log, "one") == 4
            assert cursor(log, "two") is None
            assert log.group("one").members == ()
            assert locks(log) == []

    def test_the_log_ends_loops_and_waits_of_other_threads(self, tmp_path):
        log = tailrace.open(tmp_path / "log", durable=False)
        fill(log, "t", 3)
        consumers = [log.consumer("t", f"g{number}") for number in range(4)]
        found = [in_thread(lambda each=each: numbers(each)) for each in consumers]
        wait_until(lambda: all(each.assigned for each in consumers))
        time.sleep(0.02)
        log.close()
        assert [each() for each in found] == [[0, 1, 2]] * 4
        with tailrace.open(tmp_path / "log") as log:
            assert [cursor(log, f"g{number}") for number in range(4)] == [3] * 4

    def test_another_handle_of_the_log_leaves_it_alone(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g") as consumer:
            assert next(consumer).offset == 0
            with tailrace.open(log.location) as other, other.consumer("t", "other", stop="now") as theirs:
                assert len(list(theirs)) == 3
            assert next(consumer).offset == 1

    def test_a_forgotten_consumer_warns_and_frees_its_place(self, log):
        fill(log, "t", 3)
        consumer = log.consumer("t", "g")
        next(consumer)
        with pytest.warns(ResourceWarning, match="unclosed consumer of the group 'g'"):  # noqa: PT031  # both are it
            del consumer
            gc.collect()
        with log.consumer("t", "g", stop="now") as consumer:
            assert numbers(consumer) == [0, 1, 2]

    def test_a_consumer_that_was_never_asked_is_forgotten_quietly(self, log):
        consumer = log.consumer("t", "g")
        del consumer
        gc.collect()

    def test_at_exit_what_was_processed_is_stored(self, tmp_path):
        program = """
            import sys, tailrace
            log = tailrace.open(sys.argv[1])
            log.topic("t").extend(list("abcde"))
            consumer = log.consumer("t", "g")
            for record in consumer:
                if record.offset == 3:
                    break
        """
        process = start(program, tmp_path / "log")
        process.communicate()
        with tailrace.open(tmp_path / "log") as log:
            assert cursor(log) == 3
            assert log.group("g").members == ()

    def test_nothing_is_left_open(self, log):
        log.topic("t", partitions=4)
        for partition in range(4):
            log.topic("t").extend(["a"] * 10, partition=partition)
        before = threads = 0
        for _ in range(3):
            # The first round opens what the log keeps open for a partition that is written to.
            before, threads = descriptors(), threading.active_count()
            for number in range(6):
                with log.consumer("t", f"g{number}", stop="now" if number % 2 else None) as consumer:
                    consumer.peek(3)
                    consumer.poll(2)
                    consumer.lag()
                    next(consumer)
                log.group(f"g{number}")
            log.groups()
        assert threading.active_count() == threads
        assert descriptors() <= before
        assert locks(log) == []

    def test_nothing_is_left_open_by_what_was_refused(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g") as consumer:
            next(consumer)
        before = descriptors()
        for _ in range(10):
            with pytest.raises(errors.TopicNotFoundError):
                log.consumer("missing", "g", stop="now")
            with pytest.raises(errors.OffsetOutOfRangeError):
                log.consumer("t", "other", start=99)
        assert descriptors() <= before


class TestThreadsAndProcesses:
    def test_two_threads_at_once_are_refused(self, log):
        log.topic("t", partitions=1)
        with log.consumer("t", "g") as consumer:
            ended = in_thread(lambda: len(consumer.poll(timeout=LONG)))
            wait_until(lambda: consumer.assigned)
            calls = (
                lambda: consumer.poll(timeout=0), lambda: next(consumer), consumer.peek, consumer.commit, consumer.lag,
                consumer.pause, consumer.resume, lambda: consumer.seek("earliest"),
            )  # fmt: skip
            for call in calls:
                with pytest.raises(errors.ThreadError, match="Another thread"):
                    call()
            fill(log, "t", 1)
            assert ended() == 1
            assert len(consumer.poll(timeout=0)) == 0

    def test_one_thread_after_another_is_fine(self, log):
        fill(log, "t", 4)
        with log.consumer("t", "g", stop="now") as consumer:
            for number in range(4):
                assert in_thread(lambda: next(consumer).offset)() == number

    def test_consumers_cannot_be_pickled(self, log):
        with log.consumer("t", "g") as consumer, pytest.raises(TypeError, match="pickle its Log"):
            pickle.dumps(consumer)

    def test_a_log_that_came_by_pickle_has_consumers(self, log):
        fill(log, "t", 2)
        with pickle.loads(pickle.dumps(log)) as other, other.consumer("t", "g", stop="now") as consumer:
            assert numbers(consumer) == [0, 1]

    def test_a_fork_does_not_inherit_it(self, log):
        fill(log, "t", 10)
        consumer = log.consumer("t", "g")
        assert next(consumer).offset == 0

        def child():
            refused = 0
            for call in (lambda: next(consumer), consumer.poll, consumer.peek, consumer.commit, consumer.close):
                try:
                    call()
                except errors.ForkedError:
                    refused += 1
            # The partitions are the parent's, who lives.
            with log.consumer("t", "g") as mine:
                assert len(mine.poll(timeout=0.05)) == 0
            with log.consumer("t", "other", stop="now") as mine:
                return refused, len(list(mine))

        assert in_fork(child) == (5, 10)
        assert next(consumer).offset == 1
        consumer.close()
        assert cursor(log) == 1

    def test_a_fork_does_not_keep_a_dead_parent_alive(self, log):
        fill(log, "t", 3)
        program = """
            import os, sys, time, tailrace
            log = tailrace.open(sys.argv[1], durable=False)
            consumer = log.consumer("t", "g")
            next(consumer)
            if os.fork() == 0:
                os.close(1)
                os.close(2)
                sys.stdin.readline()
                os._exit(0)
            print("ready", flush=True)
            time.sleep(60)
        """
        process = start(program, log.location)
        assert process.stdout.readline() == "ready\n"
        with log.consumer("t", "g") as consumer:
            assert len(consumer.poll(timeout=0)) == 0
            process.kill()
            assert len(consumer.poll(timeout=LONG)) == 3
        process.communicate()

    def test_a_read_only_handle_has_none(self, log):
        fill(log, "t", 1)
        with tailrace.open(log.location, "r") as reader, pytest.raises(errors.ReadOnlyError):
            reader.consumer("t", "g")

    def test_a_handle_that_is_closed_has_none(self, tmp_path):
        log = tailrace.open(tmp_path / "log")
        log.close()
        with pytest.raises(errors.ClosedError):
            log.consumer("t", "g")

    def test_two_in_one_thread_do_not_wait_for_each_other(self, log):
        topic = log.topic("t", partitions=2)
        for partition in range(2):
            topic.extend(["0", "1"], partition=partition)
        with log.consumer("t", "g") as one, log.consumer("t", "g", stop="now") as two:
            assert next(one).offset == 0
            for read in (lambda: next(two), two.poll):
                with pytest.raises(errors.GroupBusyError, match="in this very thread"):
                    read()
            assert len(two.poll(timeout=0)) == 0
            one.close()
            assert sorted(numbers(two)) == [0, 0, 1, 1]

    def test_a_full_disk_loses_no_record(self, tailrace_log, tailrace_faults):
        log = tailrace_log
        fill(log, "t", 10)
        with log.consumer("t", "g", commit="manual") as consumer:
            assert len(consumer.poll(4)) == 4
            tailrace_faults.fill_disk()
            with pytest.raises(errors.DiskFullError):
                consumer.commit()
            tailrace_faults.free_disk()
            consumer.commit()
            assert cursor(log) == 4
            assert numbers(consumer.poll(2)) == [4, 5]

    def test_a_full_disk_at_the_close_leaves_nobody_behind(self, tailrace_log, tailrace_faults):
        log = tailrace_log
        fill(log, "t", 10)
        consumer = log.consumer("t", "g")
        consumer.poll(4)
        consumer.poll(4)
        tailrace_faults.fill_disk()
        with pytest.raises(errors.DiskFullError):
            consumer.close()
        consumer.close()
        assert locks(log) == []
        tailrace_faults.free_disk()
        with log.consumer("t", "g", stop="now") as consumer:
            assert len(list(consumer)) == 10

    def test_a_disk_that_is_full_when_it_joins(self, tailrace_log, tailrace_faults):
        log = tailrace_log
        fill(log, "t", 10)
        with log.consumer("t", "g", stop="now") as consumer:
            tailrace_faults.fill_disk()
            for _ in range(3):
                with pytest.raises(errors.DiskFullError):
                    consumer.poll()
            assert locks(log) == []
            tailrace_faults.free_disk()
            # An error on the way is not the end of a bounded read.
            assert len(consumer.poll()) == 10

    @pytest.mark.parametrize("n", range(1, 6))
    def test_a_failed_write_on_the_way_loses_nothing(self, tailrace_log, tailrace_faults, n):
        log = tailrace_log
        fill(log, "t", 10)
        found = []
        with log.consumer("t", "g", stop="now", commit_every=1) as consumer:
            fault = tailrace_faults.fail_write(n, topic="__group.g")
            for _ in range(20):
                try:
                    if not (batch := consumer.poll(3)):
                        break
                except errors.StorageError:
                    continue
                found += numbers(batch)
            assert fault.fired
        assert found == list(range(10))
        assert cursor(log) == 10

    def test_a_full_disk_before_a_hand_out_skips_nothing(self, tailrace_log, tailrace_faults):
        log = tailrace_log
        fill(log, "t", 10)
        with log.consumer("t", "g", commit="before") as consumer:
            assert next(consumer).offset == 0
            tailrace_faults.fill_disk()
            for read in (lambda: next(consumer), lambda: consumer.poll(3)):
                with pytest.raises(errors.DiskFullError):
                    read()
            tailrace_faults.free_disk()
            assert next(consumer).offset == 1
            assert numbers(consumer.poll(3)) == [2, 3, 4]


# Interrupts as fast as they come, but one a call at most, so that the test itself is spared.
STORM = """
    import random, signal, sys, tailrace

    def interrupt(*_):
        global armed
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, longest))
        if armed:
            armed = False
            raise KeyboardInterrupt

    path, total, by_batch, settings = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "poll", eval(sys.argv[4])
    # What waits for the disk needs more time between two interrupts to get anywhere.
    longest = {"before": 0.02, "after": 0.006, "manual": 0.002}[settings["commit"]]
    log = tailrace.open(path, durable=False)
    consumer = log.consumer("t", "g", stop="now", **settings)
    consumer.peek()
    found, count, armed, ended = [], 0, False, False
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    batches = []
    while not ended:
        try:
            armed = True
            # Taken and kept in C: no interrupt falls between the two.
            if by_batch:
                batches.extend(map(consumer.poll, (10,)))
            else:
                found.extend(consumer)
                ended = True
            armed = False
            ended = ended or len(batches[-1]) == 0
        except KeyboardInterrupt:
            count += 1
    armed = False
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    found += [record for batch in batches for record in batch]
    assert [record.offset for record in found] == list(range(total)), [record.offset for record in found][:100]
    assert len(log.group("g").members) <= 1
    consumer.close()
    log.close()
    print(count)
"""


class TestInterrupts:
    def test_in_a_wait(self, log):
        log.topic("t", partitions=1)

        def interrupt(*_):
            raise KeyboardInterrupt

        old = signal.signal(signal.SIGALRM, interrupt)
        try:
            with log.consumer("t", "g") as consumer:
                for read in (lambda: next(consumer), consumer.poll):
                    signal.setitimer(signal.ITIMER_REAL, 0.03)
                    with pytest.raises(KeyboardInterrupt):
                        read()
                fill(log, "t", 3)
                assert next(consumer).offset == 0
                assert numbers(consumer.poll()) == [1, 2]
        finally:
            signal.signal(signal.SIGALRM, old)

    @pytest.mark.parametrize("how", ["poll", "loop"])
    @pytest.mark.parametrize("commit", ["after", "manual", "before"])
    def test_none_of_many_skips_a_record(self, log, how, commit):
        total = 15_000 if commit != "before" else 60 if how == "loop" else 600
        fill(log, "t", total)
        settings = {"commit": commit, "commit_every": 3_000}
        # On a quick disk little is left to interrupt where each record waits for it.
        assert int(run(STORM, log.location, total, how, settings)) > (3 if commit != "before" else 0)
        assert cursor(log) == (None if commit == "manual" else total)
        assert locks(log) == []

    def test_close_in_a_signal_handler(self, log):
        log.topic("t", partitions=1)
        consumer = log.consumer("t", "g")
        old = signal.signal(signal.SIGALRM, lambda *_: consumer.close())
        try:
            for read in (tailrace.Consumer.poll, list):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                assert len(read(consumer)) == 0
                assert consumer.member is None
                assert locks(log) == []
                consumer = log.consumer("t", "g")
        finally:
            signal.signal(signal.SIGALRM, old)
            consumer.close()

    def test_closing_the_log_in_a_signal_handler(self, tmp_path):
        program = """
            import signal, sys, tailrace
            log = tailrace.open(sys.argv[1])
            log.topic("t").extend(list("abc"))
            signal.signal(signal.SIGTERM, lambda *_: log.close())
            consumer = log.consumer("t", "g")
            found = []
            print("ready", flush=True)
            for record in consumer:
                found.append(record.text)
            print("".join(found), flush=True)
        """
        process = start(program, tmp_path / "log")
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.terminate()
        printed, complaint = process.communicate(timeout=LONG)
        assert (printed, complaint, process.returncode) == ("abc\n", "", 0)

    def test_a_handler_may_not_read_in_between(self, log):
        log.topic("t", partitions=1)
        seen = []
        with log.consumer("t", "g") as consumer:

            def read(*_):
                try:
                    consumer.poll(timeout=0)
                except errors.ThreadError as error:
                    seen.append(error)

            def send():
                """Only while the other thread waits: on a busy machine a timer may run out before that."""
                wait_until(lambda: consumer._session.guard.resting)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

            old = signal.signal(signal.SIGALRM, read)
            try:
                sent = in_thread(send)
                assert len(consumer.poll(timeout=1.0)) == 0
                sent()
            finally:
                signal.signal(signal.SIGALRM, old)
        assert len(seen) == 1


class TestMany:
    @pytest.mark.slow
    def test_a_thousand_partitions_with_few_descriptors(self, tmp_path):
        program = """
            import os, resource, sys, tailrace
            resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, 1_024))
            with tailrace.open(sys.argv[1], durable=False) as log:
                topic = log.topic("t", partitions=1_000)
                topic.extend([str(n) for n in range(5_000)], keys=[str(n) for n in range(5_000)])
                before = len(os.listdir("/proc/self/fd"))
                found = []
                with log.consumer("t", "g", stop="now") as consumer:
                    while batch := consumer.poll(700):
                        found += [int(record.text) for record in batch]
                    assert consumer.assigned == []
                assert sorted(found) == list(range(5_000)), len(found)
                assert log.group("g").lag_records == 0
                topic.extend(["x"] * 10, keys=[str(n) for n in range(10)])
                with log.consumer("t", "g", stop="now") as consumer:
                    assert len([*consumer]) == 10
                print(len(os.listdir("/proc/self/fd")) - before)
        """
        assert int(run(program, tmp_path / "log")) < 100

    def test_a_hundred_topics_of_a_pattern(self, log):
        for number in range(100):
            log.topic(f"s.{number}").append(str(number))
        with log.consumer("s.*", "g", stop="now") as consumer:
            assert sorted(numbers(consumer)) == list(range(100))
        assert len(log.group("g").partitions) == 100

    def test_consumers_in_many_threads(self, log):
        topic = log.topic("t", partitions=8)
        topic.extend([str(number) for number in range(2_000)], keys=[str(number) for number in range(2_000)])

        def read(group):
            with log.consumer("t", group, stop="now", commit_every=50) as consumer:
                return numbers(consumer)

        found = [in_thread(lambda number=number: read(f"g{number}")) for number in range(8)]
        for each in found:
            assert sorted(each()) == list(range(2_000))

    def test_consumers_made_while_others_are_listed(self, log):
        """The log lists its consumers when it closes, and a member that waits lists those of its thread."""
        log.topic("t", partitions=2)
        ends = time.monotonic() + 0.5
        switch = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)

        def make():
            while time.monotonic() < ends:
                for consumer in [log.consumer("t", f"g{number}") for number in range(20)]:
                    consumer.close()

        def look():
            while time.monotonic() < ends:
                log.backend.consumers()

        try:
            for join in [in_thread(each) for each in (make, make, look, look)]:
                join()
        finally:
            sys.setswitchinterval(switch)

    def test_idle_consumers_cost_next_to_nothing(self, log):
        log.topic("t", partitions=8)
        consumers = [log.consumer("t", "g") for _ in range(4)]
        ended = [in_thread(lambda each=each: list(each)) for each in consumers]
        wait_until(lambda: all(len(each.assigned) == 2 for each in consumers))
        time.sleep(0.3)
        before = time.process_time()
        time.sleep(1.0)
        spent = time.process_time() - before
        for each in consumers:
            each.close()
        for end in ended:
            assert end() == []
        assert spent < 0.3
