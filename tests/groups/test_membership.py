"""Membership: several members that share partitions, come, go and are thrown out."""

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
from tailrace.groups import group_topic as group_log
from tests.groups.sharing import LONG, Member, Process, cursors, fill, numbers, settle, wait_until


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


@pytest.fixture
def members(log):
    with ExitStack() as stack:

        def start_one(*arguments, **settings):
            made = Member(log, *arguments, **settings)
            stack.callback(made.stop)
            return made

        yield start_one


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
