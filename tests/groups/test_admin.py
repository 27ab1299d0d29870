"""Groups as an operator sees them: listed, reset, evicted from and dropped."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

import tailrace
from tailrace import errors
from tests.groups.sharing import LONG, Member, Process, cursors, fill, numbers, wait_until
from tests.processes import start


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
