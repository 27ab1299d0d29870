"""A lock on a directory: between threads, between processes, and after any exception."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tailrace.disk.files import Files
from tailrace.disk.lock import DirectoryLock, insist, let_go
from tailrace.errors import LockedError
from tests.consuming import in_thread


class Context(SimpleNamespace):
    """As much of a log's context as a lock needs."""

    def __init__(self):
        super().__init__(files=Files(), timeout=0.0, leaving={})

    def locked(self, descriptor, what, timeout):
        return LockedError(f"{what} is locked", pid=self.files.lock_holder(descriptor))


@pytest.fixture
def context():
    return Context()


@pytest.fixture
def lock(context, tmp_path):
    made = DirectoryLock(context, str(tmp_path))
    yield made
    made.close()


def is_free(path):
    """Whether another open file gets the lock of a directory."""
    files = Files()
    descriptor = files.open(path, directory=True)
    try:
        return files.lock(descriptor)
    finally:
        files.close(descriptor)


def test_it_is_held_from_acquire_to_release(lock):
    for _ in range(2):
        # The second time its directory is open already.
        lock.acquire()
        assert lock.held
        assert lock.owned
        assert not is_free(lock.path)
        lock.release()
        assert not lock.held
        assert not lock.owned
        assert is_free(lock.path)


def test_another_thread_waits_for_no_longer_than_it_is_told(lock):
    lock.acquire()
    with pytest.raises(LockedError, match="by another thread of this process") as caught:
        in_thread(lambda: lock.acquire(0.0))()
    assert caught.value.pid == os.getpid()
    lock.release()
    in_thread(lambda: (lock.acquire(0.0), lock.release()))()


def test_another_process_is_named(lock, tmp_path):
    other = DirectoryLock(Context(), str(tmp_path))
    other.acquire()
    with pytest.raises(LockedError) as caught:
        lock.acquire()
    assert caught.value.pid == os.getpid()
    # The descriptor is closed: a helper may still wait on a duplicate of it.
    assert lock.descriptor == -1
    lock.abandon()
    other.release()
    other.close()
    lock.acquire()
    lock.release()


def test_abandoning_releases_by_closing(lock):
    lock.acquire()
    lock.context.leaving[lock] = lock
    assert lock.abandon()
    assert (lock.held, lock.owned, lock.descriptor, lock.context.leaving) == (False, False, -1, {})
    assert is_free(lock.path)
    assert not lock.abandon()


def test_what_an_earlier_call_of_this_thread_left_is_let_go(lock, context):
    lock.acquire()
    context.leaving[lock] = lock
    let_go(context)
    assert not lock.owned
    assert is_free(lock.path)
    assert context.leaving == {}


def test_a_lock_that_another_thread_holds_is_not_let_go(lock, context):
    lock.acquire()
    context.leaving[lock] = lock
    in_thread(lambda: let_go(context))()
    assert lock.owned
    assert context.leaving == {lock: lock}
    lock.release()
    lock.strike()
    assert context.leaving == {}


def test_a_child_closes_what_it_inherited_and_unlocks_nothing(lock, tmp_path):
    lock.acquire()
    inherited = DirectoryLock(lock.context, lock.path)
    inherited.descriptor = os.dup(lock.descriptor)
    inherited.held = True
    inherited.forget()
    assert (inherited.held, inherited.descriptor) == (False, -1)
    assert not is_free(str(tmp_path))
    lock.release()


def test_interrupts_only_delay_the_release():
    calls = []

    def abandon():
        calls.append(1)
        if len(calls) < 4:
            raise KeyboardInterrupt

    given = ValueError("given")
    assert isinstance(insist(abandon, given), KeyboardInterrupt)
    assert len(calls) == 4
    assert insist(abandon, given) is given
