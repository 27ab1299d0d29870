"""A lock whose release was interrupted again and again is released by its thread before that waits for anything else.

Python runs signal handlers at backward jumps too, and each loop that insists on releasing a lock has one: interrupts
at all of them, after another one in the release itself, leave the lock. A signal that became pending right before the
interpreter gets there is handled at these very moments.
"""

from __future__ import annotations

import dis
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tailrace
from tailrace.disk.commit import Committer
from tailrace.disk.partition import Partition
from tailrace.errors import BusyError, LockedError
from tests.collector import uncollected
from tests.rigs.faults.inject import Injector, PendingSignal
from tests.rigs.faults.storm import locks_held

JUMP_BACKWARD = dis.opmap["JUMP_BACKWARD"]


class Interrupted:
    """Interrupts a write, then the release of its lock, then so many of the loops that would try again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, write: str, jumps: int) -> None:
        self.monkeypatch = monkeypatch
        self.owner = owner
        self.write = write
        self.jumps = jumps
        self.raised: list[str] = []
        self.signal = PendingSignal()

    def run(self, action: Callable[[], object]) -> None:
        def interrupted(*_given: object, **_named: object) -> None:
            self.raised.append("the write")
            raise KeyboardInterrupt

        self.monkeypatch.setattr(self.owner, self.write, interrupted)
        with uncollected(), self.signal.handled_by(self._at_jump):
            sys.setprofile(self._at_release)
            try:
                action()
            except KeyboardInterrupt:
                return
            finally:
                sys.setprofile(None)
                self.monkeypatch.undo()

    def _at_release(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and self.raised and frame.f_code.co_name == "abandon":
            self.raised.append("the release")
            if self.jumps:
                self.signal.pending
            raise KeyboardInterrupt

    def _at_jump(self, _number: int, frame: FrameType) -> None:
        at_jump = frame.f_code.co_code[frame.f_lasti] == JUMP_BACKWARD
        self.raised.append(f"the jump in {frame.f_code.co_name}" if at_jump else f"{frame.f_code.co_name}, at no jump")
        if len(self.raised) < 2 + self.jumps:
            self.signal.pending
        raise KeyboardInterrupt


class InARow:
    """Interrupts a write, then so many times whatever runs when the interpreter next looks for signals."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, write: str, more: int) -> None:
        self.monkeypatch = monkeypatch
        self.owner = owner
        self.write = write
        self.more = more
        self.places: list[str] = []
        self.signal = PendingSignal()

    def run(self, action: Callable[[], object]) -> None:
        def interrupted(*_given: object, **_named: object) -> None:
            self.signal.pending
            raise KeyboardInterrupt

        self.monkeypatch.setattr(self.owner, self.write, interrupted)
        with uncollected(), self.signal.handled_by(self._next), suppress(KeyboardInterrupt):
            action()
        self.monkeypatch.undo()

    def _next(self, _number: int, frame: FrameType) -> None:
        # Behind the end of the write there is nothing left to interrupt.
        if len(self.places) < self.more and frame.f_globals["__name__"].startswith("tailrace."):
            self.places.append(frame.f_code.co_qualname)
            self.signal.pending
            raise KeyboardInterrupt


def transact(log: tailrace.Log) -> None:
    with log.transaction() as transaction:
        transaction.append("left", "dead")
        transaction.append("right", "dead")


WRITES = {
    "append": (Partition, "write", "Writer._append", lambda log: log.topic("left").append("dead", durable=False)),
    "flush": (Partition, "settle", "Writer.inside", lambda log: log.engine.store.flush()),
    "transact": (Committer, "_journal", "Committer.holding", transact),
}


@pytest.fixture
def log(tmp_path):
    log = tailrace.open(tmp_path / "log", timeout=8.0)
    for name in ("left", "right", "plain"):
        log.topic(name).append("there")
    # The thread that flushes must not be first at what the test interrupts.
    log.engine.store.flusher.stop()
    yield log
    log.close()


def locked(log: tailrace.Log) -> set[tuple[str, int]]:
    """The exclusive locks of this process in one log: others, of tests before, may have threads at work."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(log.location):
                inodes.add(os.stat(int(name)).st_ino)
    return {lock for lock in locks_held(os.getpid()) if lock[0] == "WRITE" and lock[1] in inodes}


def left_locked(log: tailrace.Log, kind: str, monkeypatch: pytest.MonkeyPatch, jumps: int = 3) -> set[tuple[str, int]]:
    if kind == "flush":
        log.topic("left").append("not synced", durable=False)
    owner, write, region, action = WRITES[kind]
    interrupted = Interrupted(monkeypatch, owner, write, jumps)
    interrupted.run(lambda: action(log))
    loops = ["insist", "insist", region.rpartition(".")[2]][:jumps]
    assert interrupted.raised == ["the write", "the release", *[f"the jump in {name}" for name in loops]]
    return locked(log)


@pytest.mark.parametrize("jumps", [0, 1, 2])
@pytest.mark.parametrize("kind", WRITES)
def test_it_takes_an_interrupt_at_each_of_three_jumps_to_leave_a_lock(log, kind, jumps, monkeypatch):
    assert not left_locked(log, kind, monkeypatch, jumps)
    assert not log.engine.store.context.leaving


@pytest.mark.parametrize("kind", WRITES)
def test_the_next_write_releases_what_any_number_of_interrupts_in_a_row_left(log, kind, monkeypatch):
    """Each of them at the next moment at which there can be one: none is too many, and none leaves a lock unnoted."""
    owner, write, _, action = WRITES[kind]
    more = 0
    while True:
        more += 1
        if kind == "flush":
            log.topic("left").append("not synced", durable=False)
        row = InARow(monkeypatch, owner, write, more)
        row.run(lambda: action(log))
        left = locked(log)
        assert not left or log.engine.store.context.leaving, row.places
        log.topic("plain").append("on", durable=False)
        assert not locked(log), row.places
        assert not log.engine.store.context.leaving, row.places
        log.topic("left").append("on")
        if len(row.places) < more:
            break
    assert more > 2
    assert [record.text for record in log.topic("left").read(last=1)] == ["on"]
    assert "dead" not in [record.text for record in log.topic("left").read()]


def test_the_next_write_to_the_same_partition_goes_on_from_what_was_published(log, monkeypatch):
    """What the interrupted one had added to the index of the segment would make a seal take the segment for damaged."""
    topic = log.topic("small", segment_bytes=4_096)
    topic.append("there")
    more = 0
    while not locked(log):
        more += 1
        row = InARow(monkeypatch, Partition, "_put", more)
        row.run(lambda: topic.append("dead", durable=False))
        assert len(row.places) == more, "every one of them came up"
    values = [f"{number:0500d}" for number in range(20)]
    for value in values:
        topic.append(value, durable=False)
    assert len(list(Path(log.location).glob("topics/*-small/0/*.seg"))) > 2
    assert [record.text for record in topic.read()] == ["there", *values]
    assert log.verify().ok


def test_the_next_transaction_elsewhere_releases_every_partition_of_the_interrupted_one(log, monkeypatch):
    """It meets the journal lock, with which the others were noted."""
    owner, write, _, action = WRITES["transact"]
    more = 0
    while not locked(log):
        more += 1
        row = InARow(monkeypatch, owner, write, more)
        row.run(lambda: action(log))
        assert len(row.places) == more, "every one of them came up"
    assert len(locked(log)) == 3
    with log.transaction() as transaction:
        transaction.append("plain", "on")
        transaction.append("other", "on")
    assert not locked(log)


@pytest.mark.parametrize("kind", WRITES)
def test_the_next_write_elsewhere_releases_it(log, kind, monkeypatch):
    assert left_locked(log, kind, monkeypatch)
    log.topic("plain").append("on", durable=False)
    assert not locked(log)
    log.topic("left").append("on")
    assert [record.text for record in log.topic("left").read(last=1)] == ["on"]


@pytest.mark.parametrize("kind", WRITES)
def test_closing_does_not_wait_for_its_own_thread(log, kind, monkeypatch):
    assert left_locked(log, kind, monkeypatch)
    # A third interrupt, at the end of the call: it is never counted out.
    log.engine.enter()
    began = time.monotonic()
    log.close()
    assert time.monotonic() - began < 6.0
    assert not locked(log)


def test_what_another_thread_notes_is_not_taken_from_its_holder(log):
    """A thread that is interrupted while it waits notes the lock too, and its holder may be about to take another."""
    store = log.engine.store
    left, right = (store.partition(log.engine.entry(name).slots[0]) for name in ("left", "right"))

    def hold() -> None:
        store.committer._enter(left)
        store.context.leaving[left.lock] = left
        store.committer._enter(right)
        assert left.lock.held
        assert left.lock.owned
        assert len(locked(log)) == 3

    store.committer.holding(hold)
    log.topic("left").append("on")
    assert not store.context.leaving


def test_a_wait_for_a_shared_commit_is_a_wait_as_well(log, monkeypatch):
    """Whoever leads the commit may be waiting for the very lock that was left."""
    assert left_locked(log, "append", monkeypatch)
    queue = log.engine.store.writer.queue
    thread = threading.Thread(target=lambda: log.topic("left").append("led"))
    thread.start()
    while queue.leader is None:
        time.sleep(0.001)
    began = time.monotonic()
    log.topic("plain").append("waited")
    thread.join()
    assert time.monotonic() - began < 4.0
    assert [record.text for record in log.topic("left").read(last=1)] == ["led"]


def test_a_wait_that_ended_without_the_lock_leaves_no_note(log):
    """Else every later append of this process would go the long way round."""
    store = log.engine.store
    left = store.partition(log.engine.entry("left").slots[0])
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        over.wait(10)

    thread = threading.Thread(target=lambda: store.inside(left, hold))
    thread.start()
    held.wait(10)
    store.context.timeout = 0.05
    with pytest.raises(LockedError):
        log.topic("left").append("in vain", durable=False)
    over.set()
    thread.join()
    log.topic("plain").append("on", durable=False)
    assert not store.context.leaving
    assert [record.text for record in log.topic("left").read()] == ["there"]


def test_a_note_is_not_taken_back_while_somebody_has_the_lock(log, monkeypatch):
    """It may be the holder's own, and is all that tells it to let go."""
    assert left_locked(log, "append", monkeypatch)
    store = log.engine.store
    left = store.partition(log.engine.entry("left").slots[0])

    def wait_in_vain() -> None:
        with pytest.raises(LockedError):
            store.inside(left, lambda: None, timeout=0.05)

    thread = threading.Thread(target=wait_in_vain)
    thread.start()
    thread.join()
    assert left.lock in store.context.leaving
    log.topic("plain").append("on", durable=False)
    assert not store.context.leaving
    assert not locked(log)


def test_an_interrupt_at_any_moment_leaves_a_note_or_a_free_lock(log):
    """The note goes in the same moment as the lock itself."""
    store = log.engine.store
    left = store.partition(log.engine.entry("left").slots[0])
    number = 0
    while True:
        number += 1
        left.enter()
        store.context.leaving[left.lock] = left
        injector = Injector(number)
        injector.run(left.lock.abandon)
        assert left.lock.owned == (left.lock in store.context.leaving), injector.place
        if left.lock.owned:
            left.abandon()
        if not injector.place:
            break
    assert number > 5


def test_an_interrupt_while_a_note_is_taken_back_leaves_no_mutex(log):
    """Others would wait for it until this thread writes again, and so would whoever waits for them."""
    store = log.engine.store
    left = store.partition(log.engine.entry("left").slots[0])
    number = 0
    while True:
        number += 1
        store.context.leaving[left.lock] = left
        injector = Injector(number)
        injector.run(left.lock.strike)
        assert not left.lock.owned, injector.place
        if not injector.place:
            break
    assert number > 3
    assert not store.context.leaving


def test_an_interrupt_while_a_partition_is_closed_leaves_no_mutex(log):
    """As above; this thread closes one to open another, and may never write to it again."""
    left = log.engine.store.partition(log.engine.entry("left").slots[0])
    number = 0
    while True:
        number += 1
        log.topic("left").append("on", durable=False)
        log.engine.store.flush()
        injector = Injector(number)
        injector.run(left.release)
        assert not left.lock.owned, injector.place
        if not injector.place:
            break
    assert number > 5
    assert left.descriptor == left.lock.descriptor == -1


@pytest.mark.timeout(120)
def test_an_interrupted_drop_leaves_no_lock(log):
    """At any moment from its marks on: others would wait for the lock in vain, and could not resolve what was left."""
    number = 0
    while True:
        number += 1
        log.topic("brief").append("there", durable=False)
        injector = Injector(number, "Partition.end_writing")
        injector.run(log.topic("brief").drop)
        if not injector.place:
            break
        left = locked(log)
        assert not left, injector.place
    assert number > 50


def test_a_handler_does_not_wait_for_whom_its_own_thread_keeps_waiting(log, monkeypatch):
    """The leader of a shared commit waits for the partition of the call that the handler came into."""
    queue, told = log.engine.store.writer.queue, []

    def lead() -> None:
        told.append(log.topic("left").append("led").offset)

    leader = threading.Thread(target=lead)

    def handle(*_: object) -> None:
        leader.start()
        while queue.leader is None:
            time.sleep(0.001)
        began = time.monotonic()
        with pytest.raises(BusyError, match="by this very thread"):
            log.topic("left").append("refused")
        told.append(log.topic("plain").append("handled").offset)
        assert time.monotonic() - began < 4.0

    write = Partition.write

    def signalled(self: Partition, *arguments: Any) -> int:
        monkeypatch.setattr(Partition, "write", write)
        signal.raise_signal(signal.SIGUSR1)
        return write(self, *arguments)

    monkeypatch.setattr(Partition, "write", signalled)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        log.topic("left").append("interrupted", durable=False)
    finally:
        signal.signal(signal.SIGUSR1, before)
    leader.join()
    assert told == [1, 2]
    assert [record.text for record in log.topic("left").read()] == ["there", "interrupted", "led"]
    assert [record.text for record in log.topic("plain").read()] == ["there", "handled"]
    assert not locked(log)
