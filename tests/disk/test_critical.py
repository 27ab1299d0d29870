"""Critical regions: found on the stack while a function runs, and not a moment longer."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import pytest

from tailrace.disk.critical import Region, critical_region, in_handler, interrupted, regions
from tests.consuming import in_thread

# Two regions of this package: each calls something amid its work.
SOURCE = """
def locks(amid):
    return amid()

def queue(amid):
    return amid()

def ask(kind):
    return [frame.f_code.co_name for frame in interrupted(kind)]
"""
made: dict[str, Any] = {"__name__": "tailrace.made_up", "interrupted": interrupted}
exec(SOURCE, made)
locks = critical_region(Region.LOCKS)(made["locks"])
queue = critical_region(Region.QUEUE)(made["queue"])


def inside(kind):
    return [frame.f_code.co_name for frame in regions(kind, sys._getframe(1))]


def test_a_region_is_the_function_itself():
    assert locks is made["locks"]


def test_the_stack_is_inside_of_a_region_until_it_returns():
    assert inside(Region.LOCKS) == []
    assert locks(lambda: queue(lambda: (inside(Region.LOCKS), inside(Region.QUEUE), inside(Region.WRITE)))) == (
        ["locks"],
        ["queue"],
        [],
    )
    assert inside(Region.LOCKS) == []


def test_the_innermost_comes_first():
    def both():
        first, second = regions(Region.LOCKS, sys._getframe())
        return first.f_back is not second and second.f_locals["amid"] is not first.f_locals["amid"]

    assert locks(lambda: locks(both))


def test_a_region_that_was_left_by_an_exception_is_not_on_the_stack():
    with pytest.raises(KeyboardInterrupt):
        locks(lambda: signal.raise_signal(signal.SIGINT))
    assert inside(Region.LOCKS) == []


def test_a_call_of_the_region_itself_interrupts_nothing():
    namespace = {"__name__": "tailrace.made_up", "ask": made["ask"], "Region": Region}
    exec("def call():\n    return ask(Region.LOCKS)", namespace)
    assert locks(namespace["call"]) == []


def test_code_of_others_in_between_is_a_handler():
    assert locks(lambda: made["ask"](Region.LOCKS)) == ["locks"]
    assert locks(lambda: made["ask"](Region.QUEUE)) == []
    assert made["ask"](Region.LOCKS) == []


def test_only_the_main_thread_runs_handlers():
    assert threading.current_thread() is threading.main_thread()
    assert not in_handler()
    assert locks(in_handler)
    assert not queue(in_handler)
    assert not in_thread(lambda: locks(in_handler))()
