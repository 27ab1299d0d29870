"""Groups: several members that share partitions, come, go and are thrown out; and groups as an operator sees them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

import tailrace
from tailrace import errors
from tailrace.groups import group_topic as group_log
from tests.processes import start
from tests.tuning import retune

LONG = 30.0


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


def fill(log, topic, per_partition, first=0):
    """So many records in each partition, each with a number of its own."""
    handle = log.topic(topic)
    for partition in range({info.name: info.partitions for info in log.topics()}.get(topic, 1)):
        numbers = range(first + partition * 10_000, first + partition * 10_000 + per_partition)
        handle.extend([str(number) for number in numbers], partition=partition)


def numbers(records):
    return [int(record.text) for record in records]


def cursors(log, group="g"):
    return {(each.topic, each.partition): each.position for each in log.group(group).partitions}


def wait_until(condition, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.001)


def settle(*consumers):
    """Let members of one thread find their shares: each has to be asked."""
    for _ in range(6):
        for consumer in consumers:
            consumer.pause()
            assert len(consumer.poll(timeout=0)) == 0
            consumer.resume()


class Member:
    """A consumer in a thread of its own, which notes what it gets."""

    def __init__(self, log, topics="t", group="g", **settings):
        self.consumer = log.consumer(topics, group, **settings)
        self.found = []
        self.error = None
        self.pause = 0.0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            for record in self.consumer:
                self.found.append(int(record.text))
                if self.pause:
                    time.sleep(self.pause)
        except errors.TailraceError as error:
            self.error = error

    def stop(self):
        self.consumer.close()
        self.thread.join(LONG)
        assert not self.thread.is_alive()
        assert self.error is None


@pytest.fixture
def members(log):
    with ExitStack() as stack:

        def start_one(*arguments, **settings):
            made = Member(log, *arguments, **settings)
            stack.callback(made.stop)
            return made

        yield start_one


# A member in a process of its own: it prints each record that it gets, and ends with its input.
PROGRAM = """
    import os, sys, threading, tailrace
    log = tailrace.open(sys.argv[1], durable=False)
    consumer = log.consumer("t", "g", member=sys.argv[2], commit_every=int(sys.argv[3]))
    def end():
        sys.stdin.readline()
        consumer.close()
    threading.Thread(target=end, daemon=True).start()
    print("ready", flush=True)
    for record in consumer:
        print(record.partition, record.offset, flush=True)
    log.close()
"""


class Process:
    """A member in another process."""

    def __init__(self, log, name, every=1_000_000):
        self.name = name
        self.process = start(PROGRAM, log.location, name, every)
        self.found = []
        assert self.process.stdout.readline() == "ready\n"
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            partition, offset = line.split()
            self.found.append((int(partition), int(offset)))

    def end(self, how=None):
        if self.process.returncode is None:
            if how is not None:
                self.process.send_signal(how)
            else:
                self.process.stdin.write("\n")
                self.process.stdin.flush()
            self.process.wait(LONG)
        self.thread.join(LONG)
        complaint = self.process.stderr.read()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        return complaint


class TestShares:
    @pytest.mark.parametrize(("partitions", "count"), [(4, 2), (5, 2), (8, 3), (2, 4), (1, 2)])
    def test_are_even_to_within_one(self, log, members, partitions, count):
        log.topic("t", partitions=partitions)
        joined = [members() for _ in range(count)]

        def shares():
            return sorted(len(each.consumer.assigned) for each in joined)

        wait_until(lambda: sum(shares()) == partitions and shares()[-1] - shares()[0] <= 1)
        owned = Counter(place for each in joined for place in each.consumer.assigned)
        assert sorted(owned) == [("t", index) for index in range(partitions)]
        assert set(owned.values()) == {1}

    def test_every_record_goes_to_one_member(self, log, members):
        log.topic("t", partitions=6)
        fill(log, "t", 50)
        joined = [members() for _ in range(3)]
        wait_until(lambda: [len(each.consumer.assigned) for each in joined] == [2, 2, 2])
        fill(log, "t", 50, 100)
        wait_until(lambda: sum(len(each.found) for each in joined) >= 600)
        for each in joined:
            each.stop()
        found = [number for each in joined for number in each.found]
        assert len(found) == len(set(found)) == 600
        assert set(cursors(log).values()) == {100}

    def test_only_what_must_move_moves(self, log):
        log.topic("t", partitions=6)
        with log.consumer("t", "g") as one:
            settle(one)
            before = set(one.assigned)
            with log.consumer("t", "g") as two:
                settle(one, two)
                assert len(one.assigned) == len(two.assigned) == 3
                assert set(one.assigned) < before
                kept = {id(one): set(one.assigned), id(two): set(two.assigned)}
                with log.consumer("t", "g") as three:
                    settle(one, two, three)
                    assert len(three.assigned) == 2
                    for each in (one, two):
                        assert set(each.assigned) < kept[id(each)]
                settle(one, two)
                # Whoever stayed keeps what it has.
                assert len(one.assigned) == len(two.assigned) == 3
            settle(one)
            assert set(one.assigned) == before

    def test_reading_goes_on_at_the_cursor_when_partitions_move(self, log):
        log.topic("t", partitions=2)
        fill(log, "t", 20)
        with log.consumer("t", "g") as one:
            first = numbers(one.poll(30))
            with log.consumer("t", "g") as two:
                rest = []
                while len(rest) < 10:
                    rest += numbers(two.poll(timeout=0))
                    rest += numbers(one.poll(timeout=0))
        found = first + rest
        assert len(found) == len(set(found)) == 40

    def test_what_is_in_hand_does_not_move(self, log):
        """A member gives partitions back only when it asks for more, so nobody reads what it is working on."""
        log.topic("t", partitions=2)
        fill(log, "t", 5)
        with log.consumer("t", "g") as one, log.consumer("t", "g") as two:
            assert len(one.poll()) == 10
            assert len(two.poll(timeout=0.02)) == 0
            assert len(one.poll(timeout=0)) == 0
            assert len(two.poll(timeout=0)) == 0
            settle(one, two)
            assert len(two.assigned) == 1
        assert set(cursors(log).values()) == {5}

    def test_a_loop_gives_back_between_two_records(self, log, members):
        log.topic("t", partitions=2)
        fill(log, "t", 200)
        slow = members()
        slow.pause = 0.005
        wait_until(lambda: len(slow.found) > 3)
        fast = members()
        wait_until(lambda: len(fast.consumer.assigned) == 1)
        slow.pause = 0
        wait_until(lambda: len(slow.found) + len(fast.found) >= 400)
        found = slow.found + fast.found
        assert len(found) == len(set(found)) == 400

    def test_members_that_want_different_topics(self, log):
        for name in ("a", "b", "c"):
            log.topic(name).append(name)
        with log.consumer(["a", "b"], "g") as one, log.consumer(["b", "c"], "g") as two:
            settle(one, two)
            assert ("a", 0) in one.assigned
            assert ("c", 0) in two.assigned
            assert sorted(one.assigned + two.assigned) == [("a", 0), ("b", 0), ("c", 0)]

    def test_partitions_that_are_added_are_shared(self, log, members):
        log.topic("t", partitions=2)
        joined = [members() for _ in range(2)]
        wait_until(lambda: [len(each.consumer.assigned) for each in joined] == [1, 1])
        log.topic("t").alter(partitions=6)
        wait_until(lambda: [len(each.consumer.assigned) for each in joined] == [3, 3])
        fill(log, "t", 10)
        wait_until(lambda: sum(len(each.found) for each in joined) == 60)

    def test_topics_that_match_later_are_shared(self, log, members):
        log.topic("s.a", partitions=2)
        joined = [members("s.*") for _ in range(2)]
        wait_until(lambda: [len(each.consumer.assigned) for each in joined] == [1, 1])
        log.topic("s.b", partitions=2)
        fill(log, "s.b", 10)
        wait_until(lambda: [len(each.consumer.assigned) for each in joined] == [2, 2])
        wait_until(lambda: sum(len(each.found) for each in joined) == 20)

    def test_a_bounded_read_by_several_members_ends_for_all(self, log):
        log.topic("t", partitions=4)
        fill(log, "t", 100)
        found, ended = [], []

        def read():
            with log.consumer("t", "g", stop="now") as consumer:
                while batch := consumer.poll(7):
                    found.extend(numbers(batch))
                    time.sleep(0.0005)
            ended.append(True)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert len(ended) == 3
        assert sorted(set(found)) == sorted(found) == sorted(p * 10_000 + n for p in range(4) for n in range(100))
        assert log.group("g").lag_records == 0

    def test_manual_commits_are_not_made_by_a_move(self, log):
        log.topic("t", partitions=2)
        fill(log, "t", 5)
        with log.consumer("t", "g", commit="manual") as one, log.consumer("t", "g", commit="manual") as two:
            assert len(one.poll()) == 10
            two.poll(timeout=0)
            one.poll(timeout=0)
            assert set(cursors(log).values()) == {None}
            # What was handed out and not committed comes again where it moved to.
            assert len(two.poll()) == 5
            one.commit()
            two.commit()
            assert set(cursors(log).values()) == {5}


class TestProcesses:
    def test_share_and_leave(self, log):
        log.topic("t", partitions=4)
        joined = [Process(log, f"p{number}", 1) for number in range(2)]
        try:
            wait_until(lambda: [sorted(one.partitions for one in each.members) for each in log.groups()] == [[2, 2]])
            fill(log, "t", 20)
            wait_until(lambda: sum(len(each.found) for each in joined) == 80)
            # A record that was told and is still in hand when its consumer is closed comes again.
            wait_until(lambda: set(cursors(log).values()) == {20})
            assert joined[0].end() == ""
            wait_until(lambda: [member.partitions for member in log.group("g").members] == [4])
            fill(log, "t", 5, 100)
            wait_until(lambda: sum(len(each.found) for each in joined) == 100)
            wait_until(lambda: set(cursors(log).values()) == {25})
        finally:
            complaints = [each.end() for each in joined if each.process.returncode is None]
        assert complaints == [""]
        found = joined[0].found + joined[1].found
        assert len(set(found)) == 100
        assert set(cursors(log).values()) == {25}

    def test_a_killed_member_is_replaced_at_once(self, log):
        log.topic("t", partitions=4)
        other = Process(log, "victim")
        with log.consumer("t", "g", commit_every=1) as consumer:
            wait_until(lambda: len(consumer.poll(timeout=0.01)) == 0 and len(consumer.assigned) == 2)
            fill(log, "t", 10)
            wait_until(lambda: len(other.found) == 20)
            found = numbers(consumer.poll())
            assert len(found) == 20
            other.end(signal.SIGKILL)
            began = time.monotonic()
            while len(found) < 40:
                found += numbers(consumer.poll(timeout=LONG))
            taken = time.monotonic() - began
            assert len(consumer.assigned) == 4
        assert taken < 2
        # The other had stored nothing, so everything of it comes again, and nothing else does.
        assert len(set(found)) == len(found) == 40
        assert [member.id for member in log.group("g").members] == []
        assert not any(os.listdir(f"{log.location}/members/{name}") for name in os.listdir(f"{log.location}/members"))

    def test_a_killed_member_that_had_nothing_is_forgotten(self, log):
        """There is nothing to take over, and all the same nothing stays behind of it."""
        log.topic("t", partitions=1)
        with log.consumer("t", "g") as consumer:
            wait_until(lambda: len(consumer.poll(timeout=0.01)) == 0 and len(consumer.assigned) == 1)
            for _ in range(2):
                other = Process(log, "victim")
                # By its process: the victim before it may still be there.
                wait_until(lambda pid=other.process.pid: pid in [each.pid for each in log.group("g").members])
                other.end(signal.SIGKILL)
            state = group_log.existing_group(log.engine, "g")
            wait_until(lambda: len(consumer.poll(timeout=0.01)) == 0 and len(state.view().members) == 1)
            (directory,) = os.listdir(f"{log.location}/members")
            wait_until(lambda: os.listdir(f"{log.location}/members/{directory}") == [consumer.member])

    def test_a_stopped_member_is_seen_and_can_be_evicted(self, log):
        log.topic("t", partitions=2)
        other = Process(log, "stuck", 1)
        try:
            with log.consumer("t", "g") as consumer:
                wait_until(lambda: len(consumer.poll(timeout=0.01)) == 0 and len(consumer.assigned) == 1)
                # Not while it holds a lock: it is done with the group's affairs, and waits.
                time.sleep(0.3)
                os.kill(other.process.pid, signal.SIGSTOP)
                fill(log, "t", 10)
                assert len(consumer.poll()) == 10
                assert len(consumer.poll(timeout=0.3)) == 0
                stuck = next(member for member in log.group("g").members if member.id.startswith("stuck"))
                assert (stuck.pid, stuck.alive, stuck.partitions) == (other.process.pid, True, 1)
                assert abs(datetime.now(UTC) - stuck.since) < timedelta(minutes=1)
                log.evict_member("g", stuck.id)
                assert len(consumer.poll(timeout=LONG)) == 10
                assert len(consumer.assigned) == 2
                consumer.commit()
                os.kill(other.process.pid, signal.SIGCONT)
                assert other.process.wait(LONG) != 0
        finally:
            if other.process.returncode is None:
                other.process.send_signal(signal.SIGCONT)
            complaint = other.end(signal.SIGKILL)
        assert "PartitionLostError" in complaint
        assert set(cursors(log).values()) == {10}


class TestEviction:
    def test_an_evicted_member_can_commit_nothing(self, log):
        log.topic("t", partitions=1)
        fill(log, "t", 10)
        with log.consumer("t", "g", commit="manual") as one:
            assert len(one.poll(4)) == 4
            log.evict_member("g", one.member)
            with pytest.raises(errors.PartitionLostError, match=r"no longer owns t\[0\]") as caught:
                one.commit()
            assert (caught.value.group, caught.value.partitions) == ("g", (("t", 0),))
            assert cursors(log) == {("t", 0): None}
            assert one.member is None
            # It may go on: it joins again, and reads what was not committed again.
            assert numbers(one.poll(2)) == [0, 1]
            one.commit()
            assert cursors(log) == {("t", 0): 2}

    @pytest.mark.parametrize("how", ["poll", "next", "commit", "tick"])
    def test_it_learns_of_it(self, log, how):
        fill(log, "t", 10)
        with log.consumer("t", "g", commit_every=1) as one:
            next(one)
            next(one)
            log.evict_member("g", one.member)
            calls = {"poll": one.poll, "next": lambda: [next(one), time.sleep(0.06), next(one)], "commit": one.commit,
                     "tick": lambda: [*one]}  # fmt: skip
            with pytest.raises(errors.PartitionLostError):
                calls[how]()
            assert cursors(log)[("t", 0)] in (None, 1)
            again = next(one).offset
            assert again == (cursors(log)[("t", 0)] or 0)

    def test_another_has_read_on(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g") as one, log.consumer("t", "g") as two:
            assert len(one.poll(4)) == 4
            log.evict_member("g", one.member)
            assert len(two.poll(6)) == 6
            two.commit()
            with pytest.raises(errors.PartitionLostError):
                one.commit()
            assert cursors(log) == {("t", 0): 6}
            assert len(one.poll(timeout=0)) == 0
            assert numbers(two.poll()) == [6, 7, 8, 9]

    def test_closing_says_so_too(self, log):
        fill(log, "t", 10)
        one = log.consumer("t", "g")
        one.poll(4)
        one.poll(4)
        log.evict_member("g", one.member)
        with pytest.raises(errors.PartitionLostError):
            one.close()
        one.close()
        assert cursors(log) == {("t", 0): None}
        assert log.group("g").members == ()
        assert not any(os.listdir(f"{log.location}/members/{name}") for name in os.listdir(f"{log.location}/members"))

    def test_who_has_nothing_to_store_closes_in_peace(self, log):
        fill(log, "t", 10)
        with log.consumer("t", "g") as one:
            one.peek()
            log.evict_member("g", one.member)

    def test_a_member_without_partitions(self, log):
        fill(log, "t", 1)
        with log.consumer("t", "g") as one, log.consumer("t", "g") as two:
            next(one)
            assert len(two.poll(timeout=0)) == 0
            log.evict_member("g", two.member)
            with pytest.raises(errors.PartitionLostError, match="was evicted") as caught:
                two.poll(timeout=0)
            assert caught.value.partitions == ()

    def test_an_unknown_member(self, log):
        fill(log, "t", 1)
        with log.consumer("t", "g") as one:
            next(one)
            for name in ("nobody", "", None):
                with pytest.raises(errors.OwnershipError, match="has no member") as caught:
                    log.evict_member("g", name)
                assert one.member in caught.value.hint
        with pytest.raises(errors.GroupNotFoundError):
            log.evict_member("h", "nobody")


class TestLooking:
    def test_groups(self, log):
        assert log.groups() == []
        log.topic("t", partitions=2)
        fill(log, "t", 10)
        with log.consumer("t", "g") as consumer, log.consumer("...", "h", stop="now") as other:
            consumer.poll(5)
            consumer.commit()
            list(other)
            found = log.groups()
            assert [info.name for info in found] == ["g", "h"]
            info = found[0]
            alone = log.group("g")
            assert [each._replace(silent_seconds=0) for each in info.members] == [
                each._replace(silent_seconds=0) for each in alone.members
            ]
            blank = {"partitions": (), "members": (), "lag_seconds": 0}
            assert info._replace(**blank) == alone._replace(**blank)
            assert info.topics == ("t",)
            assert info.lag_records == 15
            assert 0 <= info.lag_seconds < 60
            assert abs(datetime.now(UTC) - info.moved) < timedelta(minutes=1)
            (member,) = info.members
            assert (member.id, member.pid, member.alive, member.partitions) == (consumer.member, os.getpid(), True, 2)
            assert member.topics == ("t",)
            assert member.host == os.uname().nodename
            assert [(each.topic, each.partition, each.latest) for each in info.partitions] == [
                ("t", 0, 10),
                ("t", 1, 10),
            ]
            assert {each.owner for each in info.partitions} == {consumer.member}
            assert sorted((each.position or 0) + each.lag_records for each in info.partitions) == [10, 10]
            assert found[1].topics == ("...",)
            assert found[1].members == ()
            assert found[1].lag_records == 0
        told = log.group("g").to_json()
        assert told["group"] == "g"
        assert told["members"] == []
        assert told["partitions"][0]["owner"] is None

    def test_a_group_that_is_not_there(self, log):
        fill(log, "t", 1)
        with log.consumer("t", "billing", stop="now") as consumer:
            list(consumer)
        calls = (
            lambda: log.group("biling"), lambda: log.drop_group("biling"), lambda: log.evict_member("biling", "x"),
            lambda: log.reset_group("biling", "earliest"),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(errors.GroupNotFoundError, match="did you mean 'billing'") as caught:
                call()
            assert (caught.value.group, caught.value.suggestion) == ("biling", "billing")
            assert isinstance(caught.value, LookupError)
        assert [info.name for info in log.groups()] == ["billing"]

    def test_lag_survives_a_restart(self, tmp_path):
        then = int((time.time() - 100) * 1e6)
        with tailrace.open(tmp_path / "log") as log:
            log.topic("t").extend(["a", "b", "c"], timestamps=[then, then + 10_000_000, then + 20_000_000])
            with log.consumer("t", "g") as consumer:
                next(consumer)
                next(consumer)
        for _ in range(2):
            with tailrace.open(tmp_path / "log") as log:
                info = log.group("g")
                assert info.lag_records == 2
                assert 89 < info.lag_seconds < 100
                assert cursors(log) == {("t", 0): 1}
                with log.consumer("t", "g") as consumer:
                    assert consumer.lag().records == 2

    def test_lag_follows_the_clock(self, tailrace_log, tailrace_clock):
        tailrace_log.topic("t").append("a")
        with tailrace_log.consumer("t", "g") as consumer:
            tailrace_clock.advance("1h")
            assert 3_600 <= consumer.lag().seconds < 3_700
            assert 3_600 <= tailrace_log.group("g").lag_seconds < 3_700

    def test_a_read_only_handle_sees_groups(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g") as consumer:
            next(consumer)
            next(consumer)
            consumer.commit()
            with tailrace.open(log.location, "r") as reader:
                info = reader.group("g")
                assert (info.lag_records, info.members[0].alive) == (1, True)
                assert reader.reset_group("g", "earliest", dry_run=True) == {"t": {0: 0}}
                for call in (lambda: reader.drop_group("g"), lambda: reader.reset_group("g", "earliest"),
                             lambda: reader.evict_member("g", consumer.member)):  # fmt: skip
                    with pytest.raises(errors.ReadOnlyError):
                        call()

    def test_a_read_only_handle_of_a_log_that_nobody_writes(self, tmp_path):
        with tailrace.open(tmp_path / "log") as log:
            fill(log, "t", 3)
            with log.consumer("t", "g") as consumer:
                next(consumer)
                next(consumer)
        with tailrace.open(tmp_path / "log", "r") as reader:
            assert reader.group("g").lag_records == 2
            assert [info.name for info in reader.groups()] == ["g"]

    def test_members_of_before_a_restart_of_the_machine_are_gone(self, tmp_path, monkeypatch):
        program = """
            import os, sys, tailrace
            log = tailrace.open(sys.argv[1])
            log.topic("t").extend(list("abc"))
            consumer = log.consumer("t", "g", commit_every=1)
            next(consumer), next(consumer)
            consumer.commit()
            next(consumer)
            os._exit(0)
        """
        process = start(program, tmp_path / "log")
        process.communicate()
        monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
        with tailrace.open(tmp_path / "log") as log:
            assert not any(member.alive for member in log.group("g").members)
            assert cursors(log) == {("t", 0): 2}
            with log.consumer("t", "g", stop="now") as consumer:
                assert [record.text for record in consumer] == ["c"]
            assert log.group("g").members == ()

    def test_dead_members_are_shown_as_dead(self, log):
        fill(log, "t", 3)
        other = Process(log, "victim")
        wait_until(lambda: len(other.found) == 3)
        other.end(signal.SIGKILL)
        info = log.group("g")
        assert [(member.alive, member.partitions) for member in info.members] == [(False, 1)]
        assert info.partitions[0].owner is None
        with log.consumer("t", "g", stop="now") as consumer:
            assert len(list(consumer)) == 3
        assert log.group("g").members == ()

    def test_namespaces_have_groups_of_their_own(self, log):
        one, two = log.namespace("one"), log.namespace("two")
        with one, two:
            fill(one, "t", 3)
            fill(two, "t", 5)
            with one.consumer("t", "g", stop="now") as first, two.consumer("t", "g", stop="now") as second:
                assert (len(list(first)), len(list(second))) == (3, 5)
            assert [info.name for info in one.groups()] == ["g"]
            assert log.groups() == []
            one.drop_group("g")
            assert cursors(two) == {("t", 0): 5}

    def test_internal_topics_stay_internal(self, log):
        fill(log, "t", 1)
        with log.consumer("t", "g", stop="now") as consumer:
            list(consumer)
        assert [info.name for info in log.topics()] == ["t"]
        assert log.stats().topics == 1
        with pytest.raises(errors.InvalidNameError):
            log.topic("__group.g")
        assert log.verify().ok


class TestReset:
    @pytest.fixture
    def at_five(self, log):
        """A group that stands at 5 of 10, in each of two partitions."""
        log.topic("t", partitions=2)
        fill(log, "t", 10)
        with log.consumer("t", "g", stop={0: 5, 1: 5}) as consumer:
            list(consumer)
        return log

    def test_to_a_place(self, at_five):
        log = at_five
        assert log.reset_group("g", "earliest") == {"t": {0: 0, 1: 0}}
        assert cursors(log) == {("t", 0): 0, ("t", 1): 0}
        assert log.reset_group("g", "latest") == {"t": {0: 10, 1: 10}}
        assert log.reset_group("g", {1: 3}) == {"t": {1: 3}}
        assert cursors(log) == {("t", 0): 10, ("t", 1): 3}
        assert log.reset_group("g", "-1h") == {"t": {0: 0, 1: 0}}
        assert log.reset_group("g", datetime.now(UTC) + timedelta(hours=1)) == {"t": {0: 10, 1: 10}}

    def test_by_a_number_of_records(self, at_five):
        log = at_five
        assert log.reset_group("g", shift=-2) == {"t": {0: 3, 1: 3}}
        assert log.reset_group("g", shift=4) == {"t": {0: 7, 1: 7}}
        assert log.reset_group("g", shift=-100) == {"t": {0: 0, 1: 0}}
        assert log.reset_group("g", shift=100) == {"t": {0: 10, 1: 10}}
        assert log.reset_group("g", shift=0) == {"t": {0: 10, 1: 10}}

    def test_a_trial(self, at_five):
        assert at_five.reset_group("g", "earliest", dry_run=True) == {"t": {0: 0, 1: 0}}
        assert cursors(at_five) == {("t", 0): 5, ("t", 1): 5}

    def test_is_read_from_there(self, at_five):
        at_five.reset_group("g", {0: 8, 1: 9})
        with at_five.consumer("t", "g", stop="now") as consumer:
            assert sorted(numbers(consumer)) == [8, 9, 10_009]

    def test_some_topics(self, log):
        for name in ("a.x", "a.y", "b"):
            log.topic(name).extend(["1", "2", "3"])
        with log.consumer(["a.*", "b"], "g", stop="now") as consumer:
            list(consumer)
        assert log.reset_group("g", "earliest", topics="a.*") == {"a.x": {0: 0}, "a.y": {0: 0}}
        assert log.reset_group("g", 1, topics=["b"]) == {"b": {0: 1}}
        assert cursors(log) == {("a.x", 0): 0, ("a.y", 0): 0, ("b", 0): 1}
        with pytest.raises(ValueError, match="reads no partition of c"):
            log.reset_group("g", "earliest", topics="c")

    def test_while_members_are_at_work(self, at_five):
        log = at_five
        with log.consumer("t", "g") as consumer:
            consumer.peek()
            with pytest.raises(errors.GroupBusyError, match="1 member") as caught:
                log.reset_group("g", "earliest")
            assert caught.value.members == (consumer.member,)
            assert "force" in caught.value.hint
            assert log.reset_group("g", "earliest", dry_run=True) == {"t": {0: 0, 1: 0}}
            assert log.reset_group("g", "earliest", force=True) == {"t": {0: 0, 1: 0}}
            assert cursors(log) == {("t", 0): 0, ("t", 1): 0}
            with pytest.raises(errors.PartitionLostError):
                consumer.poll()
            assert len(consumer.poll()) == 20
            consumer.commit()
        assert cursors(log) == {("t", 0): 10, ("t", 1): 10}

    def test_after_a_death_there_is_nobody_at_work(self, log):
        fill(log, "t", 3)
        other = Process(log, "victim")
        wait_until(lambda: len(other.found) == 3)
        other.end(signal.SIGKILL)
        assert log.reset_group("g", 2) == {"t": {0: 2}}
        assert log.group("g").members == ()

    @pytest.mark.parametrize(
        ("arguments", "settings", "kind"),
        [((), {}, TypeError), (("earliest",), {"shift": 1}, TypeError), ((), {"shift": 1.5}, TypeError),
         ((), {"shift": "1"}, TypeError), ((), {"shift": True}, TypeError), (("soon",), {}, ValueError),
         ((3,), {}, ValueError), (({7: 1},), {}, ValueError), (({0: 99},), {}, errors.OffsetOutOfRangeError),
         (("earliest",), {"topics": []}, ValueError), (("earliest",), {"topics": 5}, TypeError),
         (("earliest",), {"force": "yes"}, TypeError), (("earliest",), {"dry_run": 1}, TypeError)],
    )  # fmt: skip
    def test_wrong_arguments(self, at_five, arguments, settings, kind):
        with pytest.raises(kind):
            at_five.reset_group("g", *arguments, **settings)
        assert cursors(at_five) == {("t", 0): 5, ("t", 1): 5}

    def test_never_above_safe(self, log):
        topic = log.topic("t", partitions=1)
        for number in range(5):
            topic.append(str(number))
        with log.consumer("t", "g") as consumer:
            consumer.peek()
        log.reset_group("g", "latest")
        assert cursors(log) == {("t", 0): 5}
        assert topic.offsets()[0].durable == 5


class TestDrop:
    def test_forgets_everything(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g", stop="now") as consumer:
            assert len(list(consumer)) == 3
        log.drop_group("g")
        assert log.groups() == []
        assert os.listdir(f"{log.location}/members") == []
        with pytest.raises(errors.GroupNotFoundError):
            log.drop_group("g")
        with log.consumer("t", "g", stop="now") as consumer:
            assert len(list(consumer)) == 3

    def test_while_members_are_at_work(self, log):
        fill(log, "t", 3)
        with log.consumer("t", "g") as consumer:
            assert next(consumer).offset == 0
            with pytest.raises(errors.GroupBusyError) as caught:
                log.drop_group("g")
            assert caught.value.members == (consumer.member,)
            log.drop_group("g", force=True)
            assert log.groups() == []
            with pytest.raises(errors.GroupNotFoundError, match="was dropped"):
                consumer.poll()
            # Going on makes a new group of the same name, which has read nothing.
            assert len(consumer.poll()) == 3
            consumer.commit()
            assert cursors(log) == {("t", 0): 3}

    @pytest.mark.parametrize("how", ["commit", "next", "lag", "close"])
    def test_every_call_says_so_or_ends(self, log, how):
        fill(log, "t", 3)
        with log.consumer("t", "g", commit_every=1) as consumer:
            next(consumer)
            next(consumer)
            log.drop_group("g", force=True)
            if how == "next":
                with pytest.raises(errors.GroupNotFoundError):
                    next(consumer)
            elif how == "commit":
                with pytest.raises(errors.GroupNotFoundError):
                    consumer.commit()
            elif how == "lag":
                assert consumer.lag().records == 1
        assert not any(names for _, _, names in os.walk(f"{log.location}/members"))

    def test_while_members_come_and_go(self, log):
        """Whoever waits for the lock of a group that goes away is told so, and holds up nobody."""
        log.topic("t", partitions=3)
        fill(log, "t", 10)
        ends = time.monotonic() + 1.0
        surprises = []

        def member():
            while time.monotonic() < ends:
                try:
                    with log.consumer("t", "g", commit_every=1) as consumer:
                        for _ in range(3):
                            consumer.poll(2, timeout=0.002)
                except (errors.GroupNotFoundError, errors.PartitionLostError):
                    continue
                except BaseException as error:  # noqa: BLE001  # told below
                    surprises.append(error)

        threads = [threading.Thread(target=member) for _ in range(3)]
        for thread in threads:
            thread.start()
        while time.monotonic() < ends:
            # Whatever is dropped meanwhile is not in the list.
            log.groups()
            try:
                log.drop_group("g", force=True)
                log.reset_group("g", "earliest", force=True)
            except errors.GroupNotFoundError:
                time.sleep(0.001)
        began = time.monotonic()
        for thread in threads:
            thread.join(LONG)
        assert time.monotonic() - began < 10
        assert surprises == []
        if log.groups():
            log.drop_group("g")
        assert os.listdir(f"{log.location}/members") == []

    def test_of_a_topic_leaves_no_lock_behind(self, log):
        """Threads that wait for the lock of a partition while its topic goes away."""
        ends = time.monotonic() + 1.0
        surprises = []

        def write():
            while time.monotonic() < ends:
                try:
                    log.topic("t").append("x")
                except errors.TopicNotFoundError:
                    continue
                except BaseException as error:  # noqa: BLE001  # told below
                    surprises.append(error)

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        while time.monotonic() < ends:
            try:
                log.topic("t").drop()
            except errors.TopicNotFoundError:
                time.sleep(0.0005)
        began = time.monotonic()
        for thread in threads:
            thread.join(LONG + 5)
        assert time.monotonic() - began < 10
        assert surprises == []

    def test_and_a_member_in_a_wait(self, log):
        log.topic("t", partitions=1)
        with log.consumer("t", "g") as consumer:
            failed = []

            def wait():
                try:
                    consumer.poll()
                except errors.GroupNotFoundError as error:
                    failed.append(error)

            thread = threading.Thread(target=wait)
            thread.start()
            wait_until(lambda: consumer.assigned)
            log.drop_group("g", force=True)
            thread.join(LONG)
            assert len(failed) == 1


class TestSnapshots:
    def records(self, log, group="g"):
        partition = log.engine.partition(log.engine.find(f"__group.{group}"), 0)
        return partition.end - partition.start

    def test_many_commits_leave_few_records(self, log, monkeypatch):
        retune(log, group_records_max=50)
        topic = log.topic("t", partitions=2)
        for number in range(100):
            topic.append(str(number), partition=0, durable=True)
            topic.append(str(number), partition=1, durable=True)
        with log.consumer("t", "g", commit_every=1, stop="now") as consumer:
            assert len(list(consumer)) == 200
        assert self.records(log) < 60
        assert set(cursors(log).values()) == {100}
        # What a snapshot says is what the records said: whoever opens it now, sees the same.
        assert log.group("g").topics == ("t",)
        with tailrace.open(log.location) as again:
            assert set(cursors(again).values()) == {100}
            with again.consumer("t", "g", stop="now") as consumer:
                assert list(consumer) == []

    def test_members_and_owners_live_on_in_a_snapshot(self, log, monkeypatch):
        retune(log, group_records_max=20)
        log.topic("t", partitions=2)
        with log.consumer("t", "g", commit="manual") as one, log.consumer("t", "g", commit="manual") as two:
            settle(one, two)
            for number in range(60):
                fill(log, "t", 1, number)
                assert len(one.poll(timeout=LONG)) == 1
                one.commit()
            assert self.records(log) < 30
            assert len(two.poll()) == 60
            two.commit()
            assert set(cursors(log).values()) == {60}
            assert sorted(member.partitions for member in log.group("g").members) == [1, 1]
            # Somebody who never saw the records that the snapshot stands for.
            program = """
                import sys, tailrace
                with tailrace.open(sys.argv[1], durable=False) as log, log.consumer("t", "g") as consumer:
                    assert len(consumer.poll(timeout=0)) == 0
                    assert sorted(member.partitions for member in log.group("g").members) == [0, 1, 1]
            """
            process = start(program, log.location)
            _, complaint = process.communicate(timeout=LONG)
            assert process.returncode == 0, complaint

    def test_a_group_with_many_past_commits_opens_quickly(self, tmp_path, monkeypatch):
        with tailrace.open(tmp_path / "log", durable=False) as log:
            fill(log, "t", 1)
            with log.consumer("t", "g", stop="now") as consumer:
                list(consumer)
            group = group_log.existing_group(log.engine, "g")
            entry = log.engine.find("t")
            # What 12,000 commits leave behind, without waiting for the disk each time.
            monkeypatch.setattr(group_log.GroupLog, "shorten", lambda self: None)
            for number in range(12_000):
                group.append({"moves": [[entry.id, 0, number % 2]]}, durable=False)
            monkeypatch.undo()
            assert self.records(log) > 12_000
            group.append({"moves": [[entry.id, 0, 1]]}, durable=True)
            assert self.records(log) < 10
        with tailrace.open(tmp_path / "log") as log:
            began = time.perf_counter()
            assert cursors(log) == {("t", 0): 1}
            with log.consumer("t", "g", stop="now") as consumer:
                assert list(consumer) == []
            assert time.perf_counter() - began < 2

    def test_a_topic_that_was_dropped_is_forgotten(self, log, monkeypatch):
        retune(log, group_records_max=5)
        for name in ("a", "b"):
            log.topic(name).extend(["1", "2"])
        with log.consumer("...", "g", stop="now", commit_every=1) as consumer:
            list(consumer)
        log.topic("a").drop()
        for number in range(10):
            log.topic("b").append(str(number))
            with log.consumer("...", "g", stop="now") as consumer:
                list(consumer)
        assert cursors(log) == {("b", 0): 12}
        assert len(group_log.existing_group(log.engine, "g").view().cursors) == 1

    @pytest.mark.parametrize("polled", [False, True], ids=["at once", "after another poll"])
    def test_a_topic_dropped_within_a_transaction_takes_nothing_from_its_member(self, log, monkeypatch, polled):
        """A snapshot leaves the topic out; whoever owned it was not evicted, and the transaction stands."""
        retune(log, group_records_max=5)
        for name in ("s.a", "s.b"):
            log.topic(name).extend(["1", "2"])
        with log.consumer("s.*", "g", commit="manual") as consumer:
            handed = 0
            while handed < 4:
                handed += len(consumer.poll(timeout=1))
            member = consumer.member
            with log.transaction() as transaction:
                transaction.append("out", "x")
                consumer.commit(transaction)
                log.topic("s.b").drop()
                group = group_log.existing_group(log.engine, "g")
                for _ in range(20):
                    group.append({"gone": ["nobody"]}, durable=False)
                assert len(group.view().owners) == 1
                if polled:
                    consumer.poll(timeout=0)
            assert consumer.member == member
        assert cursors(log) == {("s.a", 0): 2}
        assert [record.value for record in log.topic("out").read()] == [b"x"]


class TestLeaks:
    def test_handles_that_are_closed_are_freed(self, tmp_path):
        import gc
        import weakref

        stores = []
        for _ in range(3):
            with tailrace.open(tmp_path / "log", durable=False) as log:
                fill(log, "t", 3)
                with log.consumer("t", "g", stop="now") as consumer:
                    list(consumer)
                log.groups()
                stores.append(weakref.ref(log.engine.store))
            del log, consumer
        gc.collect()
        assert [each() for each in stores] == [None] * 3

    def test_members_that_come_and_go(self, log, members):
        log.topic("t", partitions=4)
        fill(log, "t", 100)
        stay = members()
        for _ in range(5):
            some = [members() for _ in range(2)]
            wait_until(lambda: all(each.consumer.assigned for each in some))  # noqa: B023
            for each in some:
                each.stop()
        wait_until(lambda: len(stay.consumer.assigned) == 4)
        (folder,) = os.listdir(f"{log.location}/members")
        assert os.listdir(f"{log.location}/members/{folder}") == [stay.consumer.member]

    def test_threads_that_make_and_close_consumers_at_once(self, log):
        log.topic("t", partitions=3)
        fill(log, "t", 30)
        failures = []

        def work(number):
            try:
                for turn in range(10):
                    with log.consumer("t", f"g{number % 3}", commit_every=5) as consumer:
                        consumer.poll(5, timeout=0.01 if turn % 2 else 0)
                        consumer.poll(5, timeout=0)
            except BaseException as error:  # noqa: BLE001  # told below
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert failures == []
        assert all(info.members == () for info in log.groups())


class Company:
    """Members of one group in one thread, who come, go and read at random, and what each of them has in hand."""

    def __init__(self, log, rng, commit):
        self.log, self.rng, self.commit = log, rng, commit
        self.written, self.seen = Counter(), Counter()
        # What may come again: it was handed out, and nobody said that it was processed.
        self.repeatable = set()
        self.members = {}
        log.topic("a", partitions=3)
        log.topic("b", partitions=1)

    def write(self):
        topic = self.rng.choice(["a", "b"])
        partition = self.rng.randrange(self.log.topic(topic).partitions)
        first = len(self.written)
        values = [f"{topic} {partition} {number}" for number in range(first, first + self.rng.choice([1, 20]))]
        self.log.topic(topic).extend(values, partition=partition)
        self.written.update(values)

    def read(self):
        if not self.members:
            return
        consumer = self.rng.choice(list(self.members))
        values = [record.text for record in consumer.poll(self.rng.choice([1, 5, 50]), timeout=0)]
        self.seen.update(values)
        if self.commit == "after":
            self.members[consumer] = values
        elif self.commit == "manual":
            # A partition that moves takes along what was handed out of it and not committed.
            self.repeatable.update(values)
            if self.rng.random() < 0.5:
                consumer.commit()

    def join(self):
        if len(self.members) < 4:
            every = self.rng.choice([1, 10**6])
            self.members[self.log.consumer(["a", "b"], "g", commit=self.commit, commit_every=every)] = []

    def leave(self):
        if self.members:
            consumer = self.rng.choice(list(self.members))
            self.repeatable.update(self.members.pop(consumer))
            consumer.close()

    def grow(self):
        if self.log.topic("a").partitions < 8:
            self.log.topic("a").alter(partitions=self.log.topic("a").partitions + 1)


class TestAgainstAModel:
    @pytest.mark.parametrize("commit", ["after", "manual", "before"])
    def test_nothing_is_missed_and_only_what_was_in_hand_comes_again(self, log, rng, commit):
        company = Company(log, rng, commit)
        read, write = company.read, company.write
        for _ in range(250):
            rng.choice([write, write, read, read, read, read, read, company.join, company.leave, company.grow])()
        while company.members:
            company.leave()
        with log.consumer(["a", "b"], "g", commit=commit, stop="now") as consumer:
            company.seen.update(record.text for record in consumer)
        assert sorted(company.seen) == sorted(company.written)
        assert {value for value, count in company.seen.items() if count > 1} <= company.repeatable
