"""Threads in the background run once, also when the start of one was interrupted at any of its moments."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

import tailrace
from tailrace.disk.threads import OneThread
from tests.collector import uncollected

PATIENCE_SECONDS = 20


def is_interrupted(action: Callable[[], object], number: int) -> bool:
    """Whether a call has an n-th moment in Thread.start, or where it calls something; it is interrupted there."""
    moments = 0

    def look(frame, event, argument):
        nonlocal moments
        starting = threading.Thread.start.__code__
        at_call = event == "call" and frame.f_back is not None and frame.f_back.f_code is starting
        if at_call or (event in ("call", "c_return") and frame.f_code is starting):
            moments += 1
            if moments == number:
                raise KeyboardInterrupt

    with uncollected():
        sys.setprofile(look)
        try:
            action()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
    return False


def test_a_start_that_was_interrupted_is_made_good():
    number = 1
    while True:
        began = []
        ending = threading.Event()

        def run(began=began, ending=ending):
            began.append(threading.current_thread())
            ending.wait(PATIENCE_SECONDS)

        thread = OneThread(run, "one-of-a-test")
        interrupted = is_interrupted(thread.start, number)
        # Whichever thread comes to run, the others end at once.
        for _ in range(3):
            thread.start()
        ending.set()
        thread.join(PATIENCE_SECONDS)
        assert began == [thread.thread], f"moment {number}"
        if not interrupted:
            break
        number += 1
    assert number > 3


def test_no_thread_that_cannot_be_started_is_waited_for(monkeypatch):
    thread = OneThread(lambda: None, "one-of-a-test")
    thread.join()
    with monkeypatch.context() as patched:
        # As the system does where it has too many.
        for name in ("_start_new_thread", "_start_joinable_thread"):
            patched.setattr(threading, name, refuse, raising=False)
        with pytest.raises(RuntimeError, match="can't start"):
            thread.start()
    thread.join()
    thread.start()
    thread.join(PATIENCE_SECONDS)


def refuse(*arguments, **named):
    raise RuntimeError("can't start new thread")


def test_a_producer_sends_after_its_first_append_was_interrupted(tmp_path):
    number = 1
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("t")
        topic.append("before")
        while True:
            with topic.producer() as producer:
                interrupted = is_interrupted(lambda producer=producer: producer.append("perhaps"), number)
                future = producer.append(f"after {number}")
                producer.flush(PATIENCE_SECONDS)
                assert topic.get(future.result(PATIENCE_SECONDS).offset).text == f"after {number}"
            if not interrupted:
                break
            number += 1
    assert number > 3


def test_the_flusher_flushes_after_its_start_was_interrupted(tmp_path):
    number = 1
    while True:
        with tailrace.open(tmp_path / str(number)) as log:
            topic = log.topic("t")
            interrupted = is_interrupted(lambda topic=topic: topic.append("perhaps", durable="1ms"), number)
            topic.append("after", durable="1ms")
            flusher = log.engine.live.flusher
            assert flusher.loop.thread.is_alive()
        assert not flusher.loop.thread.is_alive()
        if not interrupted:
            break
        number += 1
    assert number > 3
