"""The engine: one store a directory and process, found, watched and counted."""

from __future__ import annotations

import os
import threading

import pytest

import tailrace
from tailrace import errors
from tailrace.disk.files import Files
from tailrace.engine import engine as engines
from tailrace.settings import TopicSettings, Tuning
from tests.processes import run, start


def acquire(path, mode="a", handle=1, **arguments):
    options = {"exclusive": False, "timeout": 1.0, "tuning": Tuning(), **arguments}
    return engines.acquire(engines.FILES, str(path), mode, handle=handle, **options)


@pytest.fixture
def engine(tmp_path):
    engine = acquire(tmp_path / "shop")
    yield engine
    engine.release(1)


def test_the_last_handle_closes_the_store(tmp_path):
    engine = acquire(tmp_path / "shop", handle=1)
    assert acquire(tmp_path / "shop", handle=2) is engine
    engine.release(1)
    assert not engine.closed
    engine.release(2)
    assert engine.closed
    for use in (lambda: engine.store, engine.refresh, lambda: engine.write(lambda: None)):
        with pytest.raises(errors.ClosedError):
            use()
    again = acquire(tmp_path / "shop", handle=3)
    assert again is not engine
    again.release(3)


def test_other_files_have_other_engines(tmp_path):
    engine = acquire(tmp_path / "shop", handle=1)
    elsewhere = engines.acquire(
        Files(), str(tmp_path / "shop"), "a", exclusive=False, timeout=1.0, tuning=Tuning(), handle=2
    )
    assert elsewhere is not engine
    elsewhere.release(2)
    engine.release(1)


def test_the_longest_timeout_of_the_handles_counts(tmp_path):
    engine = acquire(tmp_path / "shop", handle=1, timeout=1.0)
    acquire(tmp_path / "shop", handle=2, timeout=5.0)
    assert engine.store.context.timeout == 5.0
    engine.release(1)
    engine.release(2)


def test_a_reader_that_shows_the_past_is_not_shared(tmp_path, monkeypatch):
    with tailrace.open(tmp_path / "shop") as log:
        log.topic("orders").append("x")
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    with tailrace.open(tmp_path / "shop", "r") as old:
        assert old.engine.frozen
        with tailrace.open(tmp_path / "shop") as log:
            log.topic("orders").append("y")
            with tailrace.open(tmp_path / "shop", "r") as new:
                assert [record.text for record in new.topic("orders").read()] == ["x", "y"]
        with tailrace.open(tmp_path / "shop", "r") as newer:
            assert newer.engine is not old.engine
            assert newer.topic("orders").read().count() == 2
        assert old.topic("orders").read().count() == 1


def test_topics_are_found_by_name(engine):
    settings = TopicSettings.from_user(partitions=2, segment_age="90m", durable="1s")
    created = engine.change(lambda admin: admin.create("orders", engines.stored_settings(settings), 2))
    assert engine.find("orders") == engine.entry("orders") == created
    assert engine.find("order") is None
    with pytest.raises(errors.TopicNotFoundError, match="mean 'orders'"):
        engine.entry("order")
    assert engines.topic_settings(created) == settings
    assert engine.partition(created, 1).index == 1


def test_waiting_ends_with_an_append_of_any_process(tmp_path):
    program = """
        import sys, tailrace
        with tailrace.open(sys.argv[1]) as log:
            sys.stdin.readline()
            log.topic("orders").append("x")
    """
    with tailrace.open(tmp_path / "shop") as log:
        engine = log.engine
        watch = engine.watch()
        other = start(program, tmp_path / "shop")
        while engine.rest(watch, 0.2):
            continue
        other.stdin.write("\n")
        other.stdin.flush()
        assert engine.rest(watch, 20)
        other.communicate(timeout=20)
        while engine.rest(watch, 0.05):
            continue
        watch.close()


def test_closing_a_handle_wakes_whoever_waits(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        watch = log.engine.watch()
        closing = tailrace.open(tmp_path / "shop")
        while watch.wait(0.05):
            continue
        threading.Timer(0.05, closing.close).start()
        assert watch.wait(20)
        watch.close()


def test_interrupted_appends_are_whole_or_absent_and_leave_no_lock(tmp_path):
    """Interrupts rain on a thread that appends; between any two of them the log goes on."""
    program = """
        import signal, sys, time, tailrace

        class Interrupt(BaseException):
            pass

        armed = False

        def interrupt(number, frame):
            global armed
            if armed:
                armed = False
                raise Interrupt

        signal.signal(signal.SIGALRM, interrupt)
        log = tailrace.open(sys.argv[1], durable=False, timeout=5)
        topic = log.topic("orders")
        topic.append("first")
        attempts = interrupts = 0
        acknowledged = []
        deadline = time.monotonic() + 1.0

        def append():
            global attempts
            while time.monotonic() < deadline:
                attempts += 1
                position = topic.append(str(attempts), durable=attempts % 5 == 0)
                acknowledged.append((position.offset, str(attempts)))

        while time.monotonic() < deadline:
            try:
                # Again and again, because one that hits a finalizer is lost.
                signal.setitimer(signal.ITIMER_REAL, 0.0003 + attempts % 7 * 0.0001, 0.003)
                armed = True
                # In a call: Python 3.13 leaves the jump at the end of a loop out of the `try` around it.
                append()
                armed = False
            except Interrupt:
                interrupts += 1
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        found = {record.offset: record.text for record in topic.read()}
        # An interrupt may come between the write and the note of it, so there may be more than was noted, never less.
        assert set(acknowledged) <= found.items()
        assert len(set(found.values())) == len(found) <= attempts + 1
        log.close()
        with tailrace.open(sys.argv[1], exclusive=True) as log:
            assert log.verify().ok
            log.topic("orders").append("last")
        print(interrupts)
    """
    assert int(run(program, tmp_path / "shop")) > 10


def test_a_fork_outside_of_python_is_noticed_through_its_hook(tmp_path):
    """What embeds Python calls the hook for children alone, so it must not depend on the one before the fork."""
    engine = acquire(tmp_path / "shop")
    store = engine.store
    generation = engine.generation
    child = os.fork()
    if child == 0:
        code = 1
        try:
            engines._registry.after_in_child()
            if engine.generation == generation + 2 and engine.store is not store:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert engine.store is store
    engine.release(1)
