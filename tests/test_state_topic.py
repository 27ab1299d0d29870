"""State topics: followed, appended to under a check, part of transactions, shortened, dropped, damaged."""

from __future__ import annotations

import gc
import json
import threading
import traceback
import weakref
from pathlib import Path

import pytest

import tailrace
from tailrace.disk.frame import prepare, prepare_lost
from tailrace.disk.group_commit import Waiter
from tailrace.disk.staging import Write
from tailrace.errors import CorruptionError, DiskFullError, TopicNotFoundError
from tailrace.groups.group_topic import GroupLog, open_group
from tailrace.state_topic import NewRecords
from tests.processes import in_fork, start
from tests.rigs.sim.mutation import edited, instead, mutate, without
from tests.sums import RECORDS_MAX, TOPIC, added, find_sums, open_sums, read_anew
from tests.tuning import retune

LONG = 30.0


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield log


@pytest.fixture
def sums(log):
    return open_sums(log.engine)


class RefusedError(Exception):
    pass


def refuse(_state):
    raise RefusedError


class TestFollowing:
    def test_the_state_is_what_the_records_add_up_to(self, sums):
        for number in range(1, 5):
            assert sums.add("a", number) == number - 1
        sums.append_records(added(("a", 5), ("b", 7)), durable=False)
        assert sums.now() == {"a": 15, "b": 7}
        assert read_anew(sums) == {"a": 15, "b": 7}
        assert sums.follow().offset == sums.partition.end == 6

    def test_nothing_is_read_when_nothing_changed(self, sums, monkeypatch):
        sums.add("a")

        def pieces(*_):
            raise AssertionError

        monkeypatch.setattr(sums.reader, "pieces", pieces)
        assert not sums.changed
        assert sums.follow() is sums.follow()
        sums.shorten()
        assert sums.now() == {"a": 1}
        monkeypatch.undo()
        in_fork(lambda: open_sums(sums.engine).add("a"))
        assert sums.changed
        assert sums.now() == {"a": 2}

    def test_a_view_stays_as_it_is(self, sums):
        sums.add("a")
        view = sums.view()
        sums.add("a")
        assert (view.by_key, view.offset) == ({b"a": 1}, 1)
        assert sums.follow().by_key == {b"a": 2}

    def test_many_records_are_handed_over_in_few_pieces(self, sums):
        count = 200_000
        frames = prepare([b"1"] * count, [b"%d" % (number % 7) for number in range(count)], None, 0)
        sums.engine.store.append(sums.partition, frames, None)
        for _ in range(50):
            sums.engine.store.append(sums.partition, prepare([b"1"], [b"x"], None, 0), None)
        state = sums.follow()
        assert sum(state.by_key.values()) == count + 50
        # Frames of single records come as one run.
        assert state.handed <= len(frames) + 2

    def test_an_interrupt_leaves_no_half_of_a_frame_in_the_state(self, sums, monkeypatch):
        assert self.interrupted(sums, monkeypatch) == {"a": 13, "b": 2}

    def test_an_interrupt_without_the_rule(self, sums, monkeypatch):
        mutate(monkeypatch, without("no state by halves"))
        assert self.interrupted(sums, monkeypatch) != {"a": 13, "b": 2}

    def interrupted(self, sums, monkeypatch):
        sums.add("a", 10)
        # Both are in one frame, and the interrupt comes when the first of them was taken in.
        sums.engine.store.append(sums.partition, prepare([b"3", b"2"], [b"a", b"b"], None, 0), None)
        take = sums.state.take

        def interrupt(columns, first, stop):
            take(columns, first, stop - 1)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(sums.state, "take", interrupt)
            with pytest.raises(KeyboardInterrupt):
                sums.follow()
        return sums.now()

    def test_the_file_is_given_back(self, sums):
        sums.add("a")
        assert sums.reader.segment is not None
        sums.release()
        assert sums.reader.segment is None
        sums.add("a")
        assert sums.now() == {"a": 2}

    def test_each_partition_has_a_state_of_its_own(self, log):
        topics = [open_sums(log.engine, index, partitions=3) for index in range(3)]
        for number, topic in enumerate(topics):
            for _ in range(2 * RECORDS_MAX):
                topic.add("a", number)
        assert [topic.now() for topic in topics] == [{"a": 2 * RECORDS_MAX * number} for number in range(3)]
        assert [read_anew(topic) for topic in topics] == [topic.now() for topic in topics]
        assert all(topic.partition.start for topic in topics)


class TestChecks:
    def test_what_a_check_raises_ends_the_append(self, sums):
        sums.add("a")
        for durable in (True, False):
            with pytest.raises(RefusedError):
                sums.add("a", check=refuse, durable=durable)
        assert sums.partition.end == 1
        assert sums.add("a", check=lambda state: None) == 1

    def test_a_check_sees_what_another_process_wrote(self, sums):
        sums.add("a")
        in_fork(lambda: open_sums(sums.engine).add("a", 5))
        seen = []
        sums.add("a", check=lambda state: seen.append((state.by_key[b"a"], state.offset)))
        assert seen == [(6, 2)]

    def test_threads_and_processes_that_count_together(self, log, sums):
        """Each adds the next number, which only a check under the lock makes gapless."""

        program = """
            import sys, tailrace
            from tests.sums import open_sums
            from tests.test_state_topic import count_up
            with tailrace.open(sys.argv[1], durable=False) as log:
                count_up(open_sums(log.engine), 40)
        """
        others = [start(program, log.location) for _ in range(2)]
        threads = [threading.Thread(target=count_up, args=(sums, 40)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        for other in others:
            _, complaint = other.communicate(timeout=LONG)
            assert other.returncode == 0, complaint
        assert sums.now() == read_anew(sums) == {"last": 160}

    def test_a_part_of_a_transaction(self, log, sums):
        topic = log.topic("t", partitions=1)
        topic.append("0")
        store, partition = log.engine.store, log.engine.partition(log.engine.entry("t"), 0)

        def commit(check):
            writes = [Write(partition, prepare([b"x"], None, None, 0)), sums.adding("a", 3, check)]
            return log.engine.write(lambda: store.transact(writes))

        assert commit(None) == [1, 0]
        assert sums.now() == {"a": 3}
        seen = []
        assert commit(lambda state: seen.append(dict(state.by_key))) == [2, 1]
        assert seen == [{b"a": 3}]
        with pytest.raises(RefusedError):
            commit(refuse)
        assert (partition.end, sums.partition.end) == (3, 2)
        assert sums.now() == {"a": 6}

    def test_a_part_of_a_transaction_with_several_checks(self, log, sums):
        write = sums.write_records(added(("a", 1), ("b", 1)), [None, refuse])
        with pytest.raises(RefusedError):
            log.engine.store.transact([write])
        assert sums.partition.end == 0

    def test_checks_of_one_write_group_see_the_writes_before_them(self, sums):
        assert self.together(sums) == [(0, 0), (1, 1), (2, 2)]

    def test_checks_of_one_write_group_without_the_rule(self, sums, monkeypatch):
        mutate(monkeypatch, instead("earlier writes of the same group", "state = self.follow()"))
        assert self.together(sums) == [(0, 0), (0, 0), (0, 0)]

    def together(self, sums):
        """What the checks of a write group saw: three that add, and between them one that is refused."""
        seen = []

        def look(state):
            seen.append((state.by_key.get(b"a", 0), state.offset))

        checks = [look, refuse, look, look]
        waiters = [
            Waiter(write.partition, write.frames, check=write.check)
            for write in [sums.adding("a", 1, check) for check in checks]
        ]
        sums.engine.store.writer.commit(waiters)
        assert [type(waiter.error) for waiter in waiters] == [type(None), RefusedError, type(None), type(None)]
        assert [waiter.first for waiter in waiters] == [0, -1, 1, 2]
        assert sums.now() == read_anew(sums) == {"a": 3}
        return seen

    def test_no_other_thread_sees_what_is_not_published(self, sums):
        seen = []

        def look(state):
            other = threading.Thread(target=lambda: seen.append(sums.now()))
            other.start()
            other.join(LONG)

        waiters = [
            Waiter(write.partition, write.frames, check=write.check)
            for write in [sums.adding("a", 1), sums.adding("a", 1, look)]
        ]
        sums.engine.store.writer.commit(waiters)
        assert seen == [{}]
        assert sums.now() == {"a": 2}

    def test_a_write_group_that_fails_leaves_nothing_in_the_state(self, sums, monkeypatch):
        sums.add("a")

        def fail(*_):
            raise DiskFullError("The disk is full.")

        waiters = [
            Waiter(write.partition, write.frames, check=write.check)
            for write in [sums.adding("a", 1), sums.adding("a", 1, lambda state: None)]
        ]
        with monkeypatch.context() as patched:
            patched.setattr(sums.partition, "write", fail)
            sums.engine.store.writer.commit(waiters)
        assert all(isinstance(waiter.error, DiskFullError) for waiter in waiters)
        seen = []
        sums.add("a", check=lambda state: seen.append(state.by_key[b"a"]))
        assert seen == [1]
        assert sums.now() == {"a": 2}

    def test_the_check_is_left_out(self, sums, monkeypatch):
        mutate(monkeypatch, edited("check under the lock", "check is not None", "False"))
        sums.add("a", check=refuse)
        assert sums.now() == {"a": 1}

    def test_a_check_never_waits_for_the_mutex_of_the_engine(self, log):
        assert self.waits(log) == []

    def test_a_snapshot_that_waits_for_the_mutex_of_the_engine(self, log, monkeypatch):
        mutate(monkeypatch, edited("no engine mutex under a state", "engine.store.refresh()", "engine.refresh()"))
        assert self.waits(log)

    def waits(self, log):
        """Where the engine's mutex was asked for under a partition's lock or a state's mutex, over all of groups.

        With that, a thread in engine.change that waits for the partition, and this one, would wait for each other.
        """
        engine = log.engine
        retune(log, group_records_max=5)
        found = []
        plain = engine.mutex
        refresh = engine.refresh

        class Mutex:
            def __enter__(self):
                if group.mutex._is_owned() or group.partition.lock.owned:
                    found.append("".join(traceback.format_stack(limit=8)))
                plain.acquire()

            def __exit__(self, *_):
                plain.release()

        def always():
            # The catalog may have changed before any call.
            with engine.mutex:
                return refresh()

        log.topic("t", partitions=2).extend([str(number) for number in range(40)])
        group = open_group(engine, "g")
        engine.mutex, engine.refresh = Mutex(), always
        try:
            with log.consumer("t", "g", stop="now", commit_every=1) as consumer:
                for _ in range(20):
                    next(consumer)
                assert group.partition.start > 0
                # The check of the transaction asks the catalog whether the topic is gone.
                next(consumer)
                with log.transaction() as tx:
                    consumer.commit(tx)
                    log.topic("t").drop()
                    # A snapshot leaves out what was dropped, and with it the owner.
                    group.append({"snapshot": _without_owners(group)}, durable=False)
        finally:
            engine.mutex = plain
            del engine.refresh
        return found


def _without_owners(group):
    (value,) = group.view().snapshot(()).values
    return json.loads(value)["snapshot"]


def count_up(sums, times):
    """Add 1 to what stands there, as often as told, whatever others do."""
    done = 0
    while done < times:
        expected = sums.now().get("last", 0)

        def check(state, expected=expected):
            if state.by_key.get(b"last", 0) != expected:
                raise RefusedError

        try:
            sums.append_records(NewRecords([hex(expected + 1).encode()], [b"last"]), check, durable=False)
            done += 1
        except RefusedError:
            continue


class TestShortening:
    def test_a_snapshot_takes_the_place_of_what_is_before_it(self, sums):
        for number in range(10 * RECORDS_MAX):
            sums.add("ab"[number % 2], number)
            assert sums.partition.end - sums.partition.start <= 2 * RECORDS_MAX
        wanted = {"a": sum(range(0, 100, 2)), "b": sum(range(1, 100, 2))}
        assert sums.now() == read_anew(sums) == wanted

    def test_many_entries_may_have_many_records(self, sums):
        for number in range(5 * RECORDS_MAX):
            sums.add(str(number), durable=False)
        assert sums.partition.start == 0

    def test_an_object_that_slept_goes_on_from_the_snapshot(self, sums):
        sums.add("a")
        assert sums.now() == {"a": 1}

        def work():
            other = open_sums(sums.engine)
            for _ in range(5 * RECORDS_MAX):
                other.add("a", durable=False)
            return other.partition.start

        assert in_fork(work) > 1
        assert sums.now() == {"a": 1 + 5 * RECORDS_MAX}

    def test_another_process_follows_all_the_while(self, log, sums):
        program = """
            import sys, tailrace
            from tests.sums import find_sums
            with tailrace.open(sys.argv[1], "r") as log:
                print("ready", flush=True)
                sums, last = find_sums(log.engine), 0
                while last < 600:
                    sums.release()
                    now = sums.now()["a"]
                    assert now >= last, (now, last)
                    last = now
        """
        sums.add("a")
        others = [start(program, log.location) for _ in range(2)]
        for other in others:
            assert other.stdout.readline() == "ready\n"
        for _ in range(599):
            sums.add("a", durable=False)
        for other in others:
            _, complaint = other.communicate(timeout=LONG)
            assert other.returncode == 0, complaint
        assert sums.partition.start > 500

    def test_what_fails_is_tried_the_next_time(self, sums, monkeypatch):
        def full(_action):
            raise DiskFullError("The disk is full.")

        with monkeypatch.context() as patched:
            patched.setattr(sums.engine, "change", full)
            for _ in range(2 * RECORDS_MAX):
                sums.add("a")
            assert sums.partition.start == 0
        sums.add("a")
        assert sums.partition.start > 0
        assert read_anew(sums) == {"a": 2 * RECORDS_MAX + 1}


class TestDropping:
    def test_an_object_is_made_once_and_forgotten_with_its_store(self, tmp_path):
        with tailrace.open(tmp_path / "log") as log:
            assert find_sums(log.engine) is None
            made = []
            threads = [threading.Thread(target=lambda: made.append(open_sums(log.engine))) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LONG)
            assert len(made) == 8
            assert {id(each) for each in made} == {id(find_sums(log.engine))}
            kept = weakref.ref(made[0])
            made[0].add("a")
            made.clear()
            gc.collect()
            assert kept() is not None
        gc.collect()
        assert kept() is None

    def test_a_topic_that_is_dropped_and_made_again(self, log, sums):
        sums.add("a")
        log.engine.change(lambda admin: admin.drop(sums.id))
        for use in (lambda: sums.add("a"), sums.settle, lambda: sums.add("a", check=lambda state: None)):
            with pytest.raises(TopicNotFoundError, match="__sums"):
                use()
        assert find_sums(log.engine) is None
        again = open_sums(log.engine)
        assert again is not sums
        assert again is open_sums(log.engine)
        assert again.now() == {}
        again.add("b")
        assert again.now() == {"b": 1}

    def test_it_is_dropped_by_another_process(self, log, sums):
        sums.add("a")

        def work():
            other = open_sums(log.engine)
            log.engine.change(lambda admin: admin.drop(other.id))
            open_sums(log.engine).add("b", 4)

        in_fork(work)
        assert open_sums(log.engine).now() == {"b": 4}
        with pytest.raises(TopicNotFoundError):
            sums.settle()

    def test_a_forked_child_has_its_own(self, log, sums):
        sums.add("a")
        assert in_fork(lambda: open_sums(log.engine) is not sums and open_sums(log.engine).now()) == {"a": 1}

    def test_a_dropped_group_is_named(self, log):
        group = open_group(log.engine, "g")
        assert isinstance(group, GroupLog)
        log.engine.change(lambda admin: admin.drop(group.id))
        with pytest.raises(tailrace.errors.GroupNotFoundError, match="'g' was dropped"):
            group.settle()


class TestDamage:
    def test_damage_is_named_with_the_topic(self, tmp_path):
        with tailrace.open(tmp_path / "log") as log:
            sums = open_sums(log.engine)
            for _ in range(3):
                sums.add("a", 1_234_567)
            file = Path(sums.partition.path) / "00000000000000000000.seg"
            data = bytearray(file.read_bytes())
            at = data.rindex(b"1234567")
            data[at] ^= 1
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(data[at : at + 1])
            with pytest.raises(CorruptionError) as caught:
                read_anew(sums)
            assert (caught.value.topic, caught.value.first) == (TOPIC, 2)
            # What was read before is not lost by it.
            assert sums.now() == {"a": 3 * 1_234_567}

    def test_a_record_that_cannot_be_understood_is_named_with_the_topic(self, sums):
        sums.add("a")
        for _ in range(2):
            with pytest.raises(CorruptionError, match="cannot be understood") as caught:
                sums.append_records(NewRecords([b"many"], [b"a"]), durable=True)
            assert (caught.value.topic, caught.value.first) == (TOPIC, 1)
            with pytest.raises(CorruptionError):
                sums.view()
        # The second one is refused: a check cannot decide by a state that cannot be read.
        assert sums.partition.end == 2

    def test_placeholders_are_passed_over(self, sums):
        store = sums.engine.store
        sums.add("a")
        for span in (1, 4):
            store.append(sums.partition, [prepare_lost(span, b'{"reason":"a bad sector"}', 0, 0)], 0.0)
        assert sums.follow().offset == 6
        sums.add("a")
        store.append(sums.partition, [prepare_lost(2, b'{"reason":"a bad sector"}', 0, 0)], 0.0)
        assert sums.now() == read_anew(sums) == {"a": 2}
        assert sums.follow().offset == sums.partition.end == 9
