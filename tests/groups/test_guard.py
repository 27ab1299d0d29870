"""Guard: which thread is inside a session, and which asked for its close."""

from __future__ import annotations

import threading

from tailrace.groups.guard import Guard
from tests.consuming import in_thread


def test_only_the_thread_inside_finds_itself_inside():
    guard = Guard()
    assert not guard.is_mine()
    with guard.mutex:
        guard.thread = threading.get_ident()
        assert guard.is_mine()
        assert not in_thread(guard.is_mine)()
    # The number of the last thread stays, which is no sign of being inside.
    assert guard.thread == threading.get_ident()
    assert not guard.is_mine()


def test_the_first_that_asks_for_the_close_is_remembered():
    guard = Guard()
    assert (guard.closing, guard.closed, guard.closed_by) == (False, False, 0)
    in_thread(guard.ask_to_close)()
    first = guard.closed_by
    guard.ask_to_close()
    assert guard.closing
    assert guard.closed_by == first != threading.get_ident()
    # To ask is not to close.
    assert not guard.closed
