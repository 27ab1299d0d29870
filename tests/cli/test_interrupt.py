"""Ctrl-C inside of a block that must be whole, and a reader that closes its pipe."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from tailrace.cli import interrupt
from tailrace.cli.interrupt import Hold, ended_by_departure


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _handlers():
    """Ctrl-C raises, also where pytest-xdist was started with it ignored, and both handlers are those of before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGPIPE)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGPIPE) is before[1]
    signal.signal(signal.SIGINT, before[0])


def held(*steps):
    """Run steps in a block that Ctrl-C must not cut; return how many were done, and what came out of it."""
    done = 0
    try:
        with Hold() as hold:
            for step in steps:
                step()
                done += 1
    except (KeyboardInterrupt, ZeroDivisionError) as error:
        return done, hold.interrupted, type(error)
    return done, hold.interrupted, None


def test_a_block_is_finished_first():
    assert held(press, bool) == (2, True, KeyboardInterrupt)


def test_a_second_time_acts_at_once():
    assert held(press, press, bool) == (1, True, KeyboardInterrupt)


def test_an_error_of_the_block_comes_first():
    assert held(press, lambda: 1 / 0) == (1, True, ZeroDivisionError)


def test_nothing_happens_without_ctrl_c():
    with Hold() as hold:
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert not hold.interrupted


def test_another_thread_sets_no_handler():
    seen = []

    def work():
        with Hold() as hold, ended_by_departure():
            seen.append((signal.getsignal(signal.SIGINT), hold.interrupted))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(signal.default_int_handler, False)]


@contextmanager
def piped(monkeypatch):
    """Let stdout write to a pipe, and yield its reading end; pytest puts its own stdout back after a fixture."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        yield reading


def test_a_reader_that_leaves_ends_a_block_that_waits(monkeypatch):
    def wait():
        with ended_by_departure():
            os.close(reader)
            time.sleep(20)

    with piped(monkeypatch) as reader, pytest.raises(BrokenPipeError):
        wait()


def test_a_reader_that_stays(monkeypatch):
    before = signal.getsignal(signal.SIGPIPE)
    with piped(monkeypatch) as reader:
        with ended_by_departure():
            assert signal.getsignal(signal.SIGPIPE) is not before
        os.close(reader)


def test_a_file_has_no_reader_that_could_leave(tmp_path, monkeypatch):
    with open(tmp_path / "out", "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert interrupt._pipe() is None
        before = threading.active_count()
        with ended_by_departure():
            assert threading.active_count() == before
