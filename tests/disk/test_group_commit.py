"""Group commit: who leads, who waits, and what becomes of a lead that nobody passed on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

import tailrace
from tailrace.disk.files import Files
from tailrace.disk.group_commit import GroupCommit, Waiter
from tailrace.engine import engine as engines
from tailrace.errors import DurabilityError


class Disk:
    """Takes what is committed, in order, and notes how many came at once."""

    def __init__(self) -> None:
        self.taken: list[object] = []
        self.sizes: list[int] = []
        self.outcomes: list[object] = []
        self.gate = threading.Event()
        self.gate.set()
        self.queue = GroupCommit(self.commit, self.commit_one)

    def commit(self, waiters: list[Waiter]) -> None:
        self.gate.wait()
        self.sizes.append(len(waiters))
        for waiter in waiters:
            waiter.first = self._take(waiter.frames)

    def commit_one(self, partition: object, frames: object, expect: int | None, sync: bool, *_: object) -> int:
        self.gate.wait()
        self.sizes.append(1)
        return self._take(frames)

    def _take(self, frames: object) -> int:
        self.taken.append(frames)
        return len(self.taken) - 1


@pytest.fixture
def disk():
    return Disk()


def test_who_comes_alone_is_committed_at_once(disk):
    assert [disk.queue.submit(None, (number,), None) for number in range(3)] == [0, 1, 2]
    assert disk.sizes == [1, 1, 1]
    assert disk.queue.leader is None


def test_those_who_come_meanwhile_share_one_commit(disk):
    disk.gate.clear()
    firsts: list[int] = []
    threads = [threading.Thread(target=lambda: firsts.append(disk.queue.submit(None, (object(),), None)))]
    threads[0].start()
    while disk.queue.leader is None:
        time.sleep(0.001)
    threads += [
        threading.Thread(target=lambda: firsts.append(disk.queue.submit(None, (object(),), None))) for _ in range(7)
    ]
    for thread in threads[1:]:
        thread.start()
    while len(disk.queue.queue) < 7:
        time.sleep(0.001)
    disk.gate.set()
    for thread in threads:
        thread.join(10)
    assert sorted(firsts) == list(range(8))
    assert disk.sizes == [1, 7]


def test_a_leader_that_appends_in_a_handler_does_not_wait_for_itself(disk):
    def commit_one(partition: object, frames: object, expect: int | None, sync: bool, *_: object) -> int:
        if frames == ("outer",):
            assert disk.queue.submit(None, ("inner",), None) == 0
        return disk._take(frames)

    disk.queue.commit_one = commit_one
    assert disk.queue.submit(None, ("outer",), None) == 1


def test_a_handler_of_a_thread_that_waits_for_its_turn_does_not_wait_for_it_too(disk):
    """The lead goes to the call beneath the handler first, and that one goes on only when the handler is done."""
    firsts: list[int] = []
    disk.gate.clear()
    leader = threading.Thread(target=lambda: disk.queue.submit(None, ("leader",), None))
    leader.start()
    while disk.queue.leader is None:
        time.sleep(0.001)

    def disturb() -> None:
        while not disk.queue.queue:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        time.sleep(0.1)
        disk.gate.set()

    def give_up(*_: object) -> None:
        raise AssertionError("Nobody leads: " + repr(disk.queue.leader))

    before = [
        signal.signal(signal.SIGUSR1, lambda *_: firsts.append(disk.queue.submit(None, ("handler",), None))),
        signal.signal(signal.SIGALRM, give_up),
    ]
    other = threading.Thread(target=disturb)
    other.start()
    signal.setitimer(signal.ITIMER_REAL, 10)
    try:
        firsts.append(disk.queue.submit(None, ("waiter",), None))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGALRM, before[1])
    leader.join()
    other.join()
    assert sorted(disk.taken) == [("handler",), ("leader",), ("waiter",)]
    assert [disk.taken[first] for first in firsts] == [("handler",), ("waiter",)]
    assert disk.queue.leader is None
    assert not disk.queue.queue


class OutOfTimeError(Exception):
    """What a signal handler raises, as recipes for time limits do."""


def led_by_another(disk: Disk, leader: Callable[[], object], others: int) -> list[threading.Thread]:
    """Threads that wait for a commit, of which the first is the leader and waits within it."""
    disk.gate.clear()
    alone = threading.Thread(
        target=lambda: outcome(disk, lambda: disk.queue.submit(None, ("alone",), None)), daemon=True
    )
    alone.start()
    while disk.queue.leader is None:
        time.sleep(0.001)
    threads = [threading.Thread(target=leader, daemon=True)]
    threads += [
        threading.Thread(target=outcome, args=(disk, lambda: disk.queue.submit(None, (object(),), None)), daemon=True)
        for _ in range(others)
    ]
    for number, thread in enumerate(threads):
        thread.start()
        while len(disk.queue.queue) <= number:
            time.sleep(0.001)
    return [alone, *threads]


def outcome(disk: Disk, call: Callable[[], object]) -> None:
    try:
        disk.outcomes.append(call())
    except BaseException as error:  # noqa: BLE001  # looked at by the test
        disk.outcomes.append(type(error))


def test_what_a_handler_raises_in_the_leader_is_for_its_own_thread(disk):
    def commit(waiters: list[Waiter]) -> None:
        raise OutOfTimeError

    def lead() -> None:
        try:
            disk.queue.submit(None, ("leader",), None)
        except OutOfTimeError:
            disk.outcomes.append("its own")

    threads = led_by_another(disk, lead, 3)
    disk.queue.commit = commit
    disk.gate.set()
    for thread in threads:
        thread.join(10)
    assert sorted(map(str, disk.outcomes)) == sorted(map(str, [0, "its own", *[DurabilityError] * 3]))


def test_a_handler_that_raises_while_the_lead_is_passed_on_stops_nobody(disk, monkeypatch):
    wake, raised = Waiter.wake, []

    def late(waiter: Waiter) -> None:
        if not raised:
            raised.append(waiter)
            raise OutOfTimeError
        wake(waiter)

    threads = led_by_another(disk, lambda: outcome(disk, lambda: disk.queue.submit(None, ("leader",), None)), 3)
    monkeypatch.setattr(Waiter, "wake", late)
    disk.gate.set()
    for thread in threads:
        thread.join(10)
    assert raised
    assert not any(thread.is_alive() for thread in threads)
    assert disk.queue.leader is None


def test_a_leader_that_nobody_woke_is_woken_by_the_next_look(disk):
    waiter = Waiter(None, (object(),), None)
    waiter.turn = threading.Lock()
    waiter.turn.acquire()
    disk.queue.leader, disk.queue.leading_thread = waiter, threading.get_ident()
    disk.queue.look()
    assert not waiter.turn.locked()


def test_a_thread_counts_as_inside_until_it_has_left_the_line(disk):
    """A handler that appends meanwhile must not wait: those who lead may be waiting for what its thread holds."""
    pass_on = disk.queue._pass_on

    def noted(leader: object) -> None:
        if isinstance(leader, Waiter):
            disk.outcomes.append(leader.thread in disk.queue.inside)
        pass_on(leader)

    def commit(waiters: list[Waiter]) -> None:
        for waiter in waiters:
            waiter.error = DurabilityError("refused")

    threads = led_by_another(disk, lambda: outcome(disk, lambda: disk.queue.submit(None, ("leader",), None)), 1)
    disk.queue.commit, disk.queue._pass_on = commit, noted
    disk.gate.set()
    for thread in threads:
        thread.join(10)
    assert disk.outcomes.count(True) == 2
    assert False not in disk.outcomes[1:]
    assert not disk.queue.inside


def test_a_lead_left_behind_is_given_to_who_waits(disk):
    """The thread was interrupted at every try to pass the lead on, and does other things now."""
    over = threading.Event()

    def leave() -> None:
        disk.queue.leader, disk.queue.leading_thread = ("left",), threading.get_ident()
        over.wait(10)

    thread = threading.Thread(target=leave)
    thread.start()
    while disk.queue.leader is None:
        time.sleep(0.001)
    firsts: list[int] = []
    waiting = threading.Thread(target=lambda: firsts.append(disk.queue.submit(None, ("mine",), None)))
    waiting.start()
    while not disk.queue.queue:
        time.sleep(0.001)
    disk.queue.look()
    assert disk.queue.leader == ("left",), "once may be a mistake"
    disk.queue.look()
    waiting.join(10)
    over.set()
    thread.join()
    assert firsts == [0]
    assert disk.queue.leader is None


def test_a_look_leaves_a_leader_at_work_alone(disk):
    disk.gate.clear()
    firsts: list[int] = []
    threads = [
        threading.Thread(target=lambda: firsts.append(disk.queue.submit(None, (object(),), None))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    while len(disk.queue.queue) < 2:
        time.sleep(0.001)
    for _ in range(100):
        disk.queue.look()
    disk.gate.set()
    for thread in threads:
        thread.join(10)
    assert sorted(firsts) == [0, 1, 2]
    assert disk.sizes == [1, 2]


def test_a_lead_left_behind_is_noticed_by_its_own_thread(disk):
    disk.queue.leader, disk.queue.leading_thread = ("left",), threading.get_ident()
    assert disk.queue.submit(None, ("mine",), None) == 0
    assert disk.queue.leader is None
    assert disk.queue.leading_thread == 0


class Gone(BaseException):
    """Stands for an interrupt that came right behind another one: no loop tries again after it."""


class Torn(GroupCommit):
    """A queue whose calls by some threads end without cleaning up, some of them before they have begun to lead."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.commit, disk.commit_one)
        self.torn: set[int] = set()
        self.idle: set[int] = set()
        disk.queue = self

    def _lead(self, batch: list[Waiter]) -> None:
        if threading.get_ident() in self.idle:
            raise Gone
        super()._lead(batch)

    def _retire(self, waiter: Waiter, batch: list[Waiter]) -> None:
        if threading.get_ident() in self.torn:
            raise Gone
        super()._retire(waiter, batch)


class Line:
    """Threads that submit one after another, the first of them held up by the disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.queue = Torn(disk)
        self.firsts: dict[str, int] = {}
        self.threads: list[threading.Thread] = []
        self.over = threading.Event()
        disk.gate.clear()

    def add(self, name: str, *, torn: bool = False, idle: bool = False) -> None:
        def run() -> None:
            if torn:
                self.queue.torn.add(threading.get_ident())
            if idle:
                self.queue.idle.add(threading.get_ident())
            try:
                self.firsts[name] = self.queue.submit(None, (name,), None)
            except Gone:
                self.firsts[name] = -1
                # A thread that goes on with something else: its number is not given to another one.
                self.over.wait(10)

        before = len(self.queue.queue)
        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        while self.queue.leader is None or len(self.queue.queue) < before + (len(self.threads) > 1):
            time.sleep(0.001)

    def end(self) -> None:
        """What the flusher does again and again, until all are served or for five seconds."""
        self.disk.gate.set()
        deadline = time.monotonic() + 5
        while len(self.firsts) < len(self.threads) and time.monotonic() < deadline:
            time.sleep(0.01)
            self.queue.look()
        self.over.set()
        for thread in self.threads:
            thread.join(5)


def test_a_lead_left_behind_does_not_go_to_who_left_it(disk):
    """It was interrupted before it took what is queued, so it is still the first in the queue itself."""
    line = Line(disk)
    line.add("first")
    line.add("left", torn=True, idle=True)
    line.add("last")
    line.end()
    assert line.firsts == {"first": 0, "left": -1, "last": 1}
    assert disk.taken == [("first",), ("last",)]
    assert line.queue.leader is None
    assert not line.queue.queue


def test_those_whom_a_leader_committed_and_did_not_wake_are_woken(disk):
    line = Line(disk)
    line.add("first")
    line.add("left", torn=True)
    line.add("last")
    line.end()
    assert line.firsts == {"first": 0, "left": -1, "last": 2}
    assert disk.taken == [("first",), ("left",), ("last",)]
    assert not line.queue.batches


def test_who_left_the_queue_is_not_committed_later(disk):
    """Its caller was told that it was interrupted, may have looked for the record, and have written it again."""
    line = Line(disk)
    line.add("first")
    line.add("second")
    line.add("left", torn=True)
    (left,) = [waiter for waiter in line.queue.queue if waiter.frames == ("left",)]
    # Ends its wait as an interrupt would.
    left.wake()
    while "left" not in line.firsts:
        time.sleep(0.001)
    assert left in line.queue.queue
    line.end()
    assert line.firsts == {"first": 0, "second": 1, "left": -1}
    assert disk.taken == [("first",), ("second",)]


def test_records_of_several_threads_become_one_frame(tmp_path, monkeypatch):
    """Each thread has the offset of its own record, whatever the frame around it."""

    class Slow(Files):
        __slots__ = ("gate",)

        def sync_data(self, fd: int) -> None:
            assert self.gate.wait(20)
            super().sync_data(fd)

    files = Slow()
    files.gate = threading.Event()
    files.gate.set()
    monkeypatch.setattr(engines, "FILES", files)
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders")
        topic.append(b"first")
        queue = log.engine.store.writer.queue
        files.gate.clear()
        told: dict[int, int] = {}

        def append(number: int) -> None:
            key = b"key" if number % 2 else None
            headers = {"number": str(number)} if number % 3 else None
            told[number] = topic.append(b"%d" % number, key=key, headers=headers).offset

        threads = [threading.Thread(target=append, args=(number,)) for number in range(9)]
        for number, thread in enumerate(threads):
            thread.start()
            while len(queue.queue) < number or queue.leader is None:
                time.sleep(0.001)
        files.gate.set()
        for thread in threads:
            thread.join()
        assert sorted(told.values()) == [*range(1, 10)]
        for number, offset in told.items():
            record = topic.get(offset)
            assert record.value == b"%d" % number
            assert record.key == (b"key" if number % 2 else None)
            assert record.headers == ({"number": str(number).encode()} if number % 3 else {})
        reader = log.engine.store.reader(topic.backend.route(log.engine).partitions[0])
        assert [found.header.count for found in reader.frames(0, 10)] == [1, 1, 8]
        reader.close()
        assert log.verify().ok
