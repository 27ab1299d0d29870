"""A lock whose release was interrupted twice is released by the same thread before it waits for anything else.

Python runs signal handlers at backward jumps too, and the loop that insists on releasing a lock has one: an interrupt
there, after another one in the release itself, leaves the lock. A trace function raises at exactly these moments.
"""

from __future__ import annotations

import dis
import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import tailrace
from tests.faults.storm import locks_held

JUMP_BACKWARD = dis.opmap["JUMP_BACKWARD"]


class Last(KeyboardInterrupt):
    """An interrupt that begins to trace again when nobody refers to it any more: what a tracer raises ends it."""

    def __init__(self, again: Callable[[], None]) -> None:
        self.again = again

    def __del__(self) -> None:
        self.again()


class TwiceInterrupted:
    """Interrupts a write, then the release of its lock, then the loop that would try again."""

    def __init__(self, write: str, region: str) -> None:
        self.write = write
        self.region = region
        self.frame: FrameType | None = None
        self.raised: list[str] = []

    def run(self, action: Callable[[], object]) -> None:
        sys.setprofile(self._at_write)
        try:
            action()
        except KeyboardInterrupt:
            return
        finally:
            sys.setprofile(None)
            sys.settrace(None)
            self.frame = None

    def _at_write(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_qualname == self.region:
            self.frame = frame
        if event == "call" and frame.f_code.co_qualname == self.write and self.frame is not None:
            sys.settrace(self._at_release)
            self.raised.append("the write")
            raise Last(self._trace_again)

    def _at_release(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "abandon":
            self.raised.append("the release")
            raise KeyboardInterrupt

    def _trace_again(self) -> None:
        assert self.frame is not None
        self.frame.f_trace = self._step
        self.frame.f_trace_opcodes = True
        sys.settrace(lambda *_: None)

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] == JUMP_BACKWARD:
            self.raised.append("the backward jump")
            raise KeyboardInterrupt
        return self._step


def transact(log: tailrace.Log) -> None:
    with log.transaction() as transaction:
        transaction.append("left", "dead")
        transaction.append("right", "dead")


WRITES = {
    "append": ("Partition.write", "Store._append", lambda log: log.topic("left").append("dead", durable=False)),
    "flush": ("Partition.settle", "Store.inside", lambda log: log.engine.store.flush()),
    "transact": ("Committer._plan", "Committer.holding", transact),
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


def left_locked(log: tailrace.Log, kind: str) -> set[tuple[str, int]]:
    if kind == "flush":
        log.topic("left").append("not synced", durable=False)
    write, region, action = WRITES[kind]
    twice = TwiceInterrupted(write, region)
    twice.run(lambda: action(log))
    assert twice.raised == ["the write", "the release", "the backward jump"]
    return {lock for lock in locks_held(os.getpid()) if lock[0] == "WRITE"}


@pytest.mark.parametrize("kind", WRITES)
def test_the_next_write_elsewhere_releases_it(log, kind):
    assert left_locked(log, kind)
    log.topic("plain").append("on", durable=False)
    assert not {lock for lock in locks_held(os.getpid()) if lock[0] == "WRITE"}
    log.topic("left").append("on")
    assert [record.text for record in log.topic("left").read(last=1)] == ["on"]


@pytest.mark.parametrize("kind", WRITES)
def test_closing_does_not_wait_for_its_own_thread(log, kind):
    assert left_locked(log, kind)
    # A third interrupt, at the end of the call: it is never counted out.
    log.engine.enter()
    began = time.monotonic()
    log.close()
    assert time.monotonic() - began < 6.0
    assert not {lock for lock in locks_held(os.getpid()) if lock[0] == "WRITE"}


def test_what_another_thread_notes_is_not_taken_from_its_holder(log):
    """A thread that is interrupted while it waits notes the lock too, and its holder may be about to take another."""
    store = log.engine.store
    left, right = (store.partition(log.engine.entry(name).slots[0]) for name in ("left", "right"))

    def hold() -> None:
        store.committer._enter(left)
        store.home.leaving[left.lock] = left
        store.committer._enter(right)
        assert left.lock.held
        assert left.lock.owned
        assert len([lock for lock in locks_held(os.getpid()) if lock[0] == "WRITE"]) == 3

    store.committer.holding(hold)
    log.topic("left").append("on")
    assert not store.home.leaving
