"""Lock file: locked as long as its member lives, with its heartbeat in it, and gone after it."""

from __future__ import annotations

import os

import pytest

import tailrace
from tailrace.groups.lock_file import LockFile, is_alive, members_directory
from tests.consuming import descriptors


@pytest.fixture
def engine(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log.engine


@pytest.fixture
def directory(engine):
    return members_directory(engine, 7)


@pytest.fixture
def lock(engine, directory):
    made = LockFile(engine, directory, "m-1")
    assert made.take()
    yield made
    made.release()


def test_the_directory_is_named_after_the_group(engine):
    assert members_directory(engine, 0x1F) == f"{engine.path}/members/0000001f"


def test_it_is_locked_while_it_is_held(engine, directory, lock):
    assert is_alive(engine.files, directory, "m-1")
    assert not is_alive(engine.files, directory, "m-2")
    lock.release()
    assert not is_alive(engine.files, directory, "m-1")
    assert os.listdir(directory) == []


def test_nothing_is_left_open_and_a_release_may_be_repeated(engine, directory):
    # Python and the engine open what they keep with the first one.
    first = LockFile(engine, directory, "m-0")
    first.take()
    first.release()
    before = descriptors()
    lock = LockFile(engine, directory, "m-1")
    lock.take()
    assert lock.heartbeat in engine.heartbeats
    lock.release()
    lock.release()
    assert descriptors() == before
    assert not engine.heartbeats


def test_a_name_that_is_taken_is_refused_and_stays_with_its_member(engine, directory, lock):
    other = LockFile(engine, directory, "m-1")
    with pytest.raises(FileExistsError):
        other.take()
    other.release()
    assert is_alive(engine.files, directory, "m-1")


def test_the_heartbeat_tells_of_polls_and_waits(lock):
    lock.heartbeat.polled -= 90.0
    assert lock.silent_seconds() > 89.0
    lock.beat(waiting=True)
    assert lock.silent_seconds() < 60.0
    assert lock.heartbeat.waiting
    lock.beat()
    assert lock.heartbeat.waiting
    lock.beat(waiting=False)
    assert not lock.heartbeat.waiting


def test_without_a_lock_there_is_no_silence(engine, directory):
    lock = LockFile(engine, directory, "m-1")
    lock.beat()
    assert lock.silent_seconds() == 0.0
    lock.forget()
    assert lock.descriptor == -1
