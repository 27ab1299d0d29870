"""Reentrancy guard: a signal handler inside a write of its own thread is refused, all other callers are not."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import pytest

import tailrace
from tailrace.disk.critical import Region, critical_region
from tailrace.engine.reentrancy import refuse_handler
from tailrace.errors import BusyError
from tests.consuming import in_thread


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        log.topic("orders").append("first")
        yield log


# A write of this package, which calls something amid its work.
WRITE = """
def write(engine, amid):
    return amid()

class Writer:
    def __init__(self, engine):
        self.engine = engine

    def write(self, amid):
        return amid()
"""
made: dict[str, Any] = {"__name__": "tailrace.made_up"}
exec(WRITE, made)
critical_region(Region.WRITE)(made["write"])
critical_region(Region.WRITE)(made["Writer"].write)


def handled(write, engine):
    """Write, and ask in a signal handler that comes amid the write; what the handler raised."""
    raised = []

    def handler(*_):
        try:
            refuse_handler(engine, "sync()")
        except BusyError as error:
            raised.append(error)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        write(lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    return raised


def test_outside_of_a_write_everything_is_allowed(log):
    refuse_handler(log.engine, "sync()")
    assert handled(lambda amid: amid(), log.engine) == []


@pytest.mark.parametrize("owner", ["engine", "self"])
def test_inside_a_write_it_is_refused_by_name(log, owner):
    write = partial(made["write"], log.engine) if owner == "engine" else made["Writer"](log.engine).write
    (error,) = handled(write, log.engine)
    assert str(error).startswith("sync() was called in a signal handler that interrupted a write to the same log.")
    assert "nothing is lost" in error.hint


def test_a_write_to_another_log_is_no_obstacle(log, tmp_path):
    with tailrace.open(tmp_path / "other", durable=False) as other:
        assert handled(partial(made["write"], log.engine), other.engine) == []


def test_a_write_that_calls_itself_is_no_handler(log):
    called = {"__name__": "tailrace.made_up", "refuse_handler": refuse_handler, "engine": log.engine}
    exec("def amid():\n    refuse_handler(engine, 'sync()')\n    return 'went on'", called)
    assert made["write"](log.engine, called["amid"]) == "went on"


def test_another_thread_may_wait_for_the_write(log):
    def other():
        made["write"](log.engine, lambda: refuse_handler(log.engine, "sync()"))
        return "waited"

    assert in_thread(other)() == "waited"
