"""Forks: the child opens its own store at first use, nothing hangs, nothing of the parent is unlocked."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import pytest

import tailrace
from tailrace import errors
from tests.processes import in_fork, start


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


def texts(topic):
    return [record.text for record in topic.read()]


def test_parent_and_child_go_on_with_the_same_handles(log):
    topic = log.topic("orders")
    topic.append("parent")
    assert in_fork(lambda: tuple(topic.append("child", durable=True))) == (0, 1)
    assert in_fork(lambda: texts(topic)) == ["parent", "child"]
    assert topic.append("parent again") == (0, 2)
    assert texts(topic) == ["parent", "child", "parent again"]
    assert in_fork(lambda: log.verify().ok)


def test_a_child_that_closes_its_handle_leaves_the_parent_alone(log):
    topic = log.topic("orders")
    topic.append("parent")

    def close():
        topic.append("child")
        log.close()
        with pytest.raises(errors.ClosedError):
            topic.append("x")
        return log.closed

    assert in_fork(close)
    assert in_fork(lambda: log.close() or True)
    assert topic.append("parent again") == (0, 2)


def test_children_of_children_work(log):
    topic = log.topic("orders")
    topic.append("0")

    def child():
        topic.append("1")
        in_fork(lambda: topic.append("2"))
        topic.append("3")

    in_fork(child)
    assert texts(topic) == ["0", "1", "2", "3"]


def test_an_exclusive_log_is_locked_in_the_child(tmp_path):
    with tailrace.open(tmp_path / "shop", exclusive=True, timeout=0.2) as log:
        topic = log.topic("orders")
        topic.append("parent")
        with pytest.raises(errors.LockedError):
            in_fork(lambda: topic.append("child"))
        topic.append("parent again")
        assert texts(topic) == ["parent", "parent again"]


def test_the_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path):
    program = """
        import os, sys, time, tailrace
        log = tailrace.open(sys.argv[1], exclusive=True)
        topic = log.topic("orders")
        topic.append("x")
        if os.fork() == 0:
            time.sleep(30)
        print("ready", flush=True)
        sys.stdin.read()
        os._exit(0)
    """
    parent = start(program, tmp_path / "shop")
    try:
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait(10)
        with tailrace.open(tmp_path / "shop", exclusive=True, timeout=5) as log:
            assert texts(log.topic("orders")) == ["x"]
            log.topic("orders").append("y")
    finally:
        # The grandchild holds the pipe open; it sleeps and ends by itself.
        parent.stdin.close()
        parent.stdout.close()
        parent.stderr.close()


def test_what_was_carried_over_says_so(log):
    topic = log.topic("orders")
    topic.extend(["a", "b", "c"])
    scanning = iter(topic.read())
    next(scanning)
    scan = topic.read()
    sending = topic.producer(linger="1h")
    future = sending.append("buffered")

    def use_all():
        for use in (
            lambda: next(scanning),
            lambda: sending.append("x"),
            sending.flush,
            sending.__enter__,
            lambda: future.result(5),
            lambda: tx.append("orders", "x"),
            lambda: tx.__exit__(None, None, None),
        ):
            with pytest.raises(errors.ForkedError):
                use()
        sending.close()
        # A scan is a question, not a place: it may be asked anew.
        return [record.text for record in scan]

    with log.transaction() as tx:
        tx.append("orders", "in the transaction")
        assert in_fork(use_all) == ["a", "b", "c"]
    assert next(scanning).text == "b"
    sending.close()
    assert future.result() == (0, 4)
    assert texts(topic) == ["a", "b", "c", "in the transaction", "buffered"]


def test_a_fork_in_the_middle_of_appends_hangs_nobody(log):
    """Threads append, durably and not, and send by a producer while the main thread forks again and again."""
    topics = [log.topic("one", partitions=2), log.topic("two")]
    stopped = threading.Event()
    counts = {"one": 0, "two": 0}
    failures = []

    def write(number):
        try:
            while not stopped.is_set():
                topics[number % 2].append(f"thread {number}", durable=number < 2)
                counts[topics[number % 2].name] += 1 if number < 2 else 0
        except Exception as error:  # noqa: BLE001  # the test shows it
            failures.append(error)

    def child(turn):
        log.topic("children").append(f"child {turn}", durable=True)
        with log.topic("children").producer() as sending:
            sending.append("by producer")
        with log.transaction() as tx:
            tx.append("children", "in a transaction")
            tx.append("two", "in a transaction")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    with log.topic("two").producer() as sending:
        for thread in threads:
            thread.start()
        for turn in range(15):
            sending.append("parent")
            in_fork(child, turn)
        stopped.set()
        for thread in threads:
            thread.join(20)
    assert failures == []
    found = texts(log.topic("children"))
    assert len(found) == 45
    assert [text for text in found if text.startswith("child")] == [f"child {turn}" for turn in range(15)]
    two = texts(log.topic("two"))
    assert two.count("parent") == two.count("in a transaction") == 15
    assert log.verify().ok


def test_a_fork_waits_for_no_lock_that_another_thread_holds_for_long(log):
    topic = log.topic("orders")
    topic.append("x")
    partition = log.engine.partition(log.engine.entry("orders"), 0)
    holding, done = threading.Event(), threading.Event()

    def hold():
        with partition.lock.mutex:
            holding.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    try:
        began = time.monotonic()
        assert in_fork(lambda: tuple(topic.append("child"))) == (0, 1)
        assert time.monotonic() - began < 10
    finally:
        done.set()
        thread.join()


def append_there(topic, number):
    topic.append(f"{number}", durable=True)
    topic.log.close()
    return os.getpid()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_handles_travel_to_worker_processes(tmp_path, method):
    with tailrace.open(tmp_path / "shop") as log:
        topic = log.topic("orders")
        topic.append("parent")
        with multiprocessing.get_context(method).Pool(2) as pool:
            workers = set(pool.starmap(append_there, [(topic, number) for number in range(6)]))
            pool.close()
            pool.join()
        assert os.getpid() not in workers
        assert sorted(texts(topic)) == sorted(["parent", *map(str, range(6))])


def test_a_lock_is_taken_by_a_forked_process_object(log):
    topic = log.topic("orders")
    topic.append("parent")
    process = multiprocessing.get_context("fork").Process(target=topic.extend, args=(["a", "b"],))
    process.start()
    process.join(20)
    assert process.exitcode == 0
    assert texts(topic) == ["parent", "a", "b"]


def test_a_log_that_went_away_is_not_made_again_by_a_child(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        topic = log.topic("orders")
        topic.append("x")
        (tmp_path / "shop").rename(tmp_path / "moved")
        with pytest.raises(errors.NotALogError):
            in_fork(lambda: topic.append("y"))
        assert not (tmp_path / "shop").exists()
        (tmp_path / "moved").rename(tmp_path / "shop")


def test_descriptors_do_not_pile_up_over_generations(log):
    topic = log.topic("orders")
    topic.append("x")

    def count(depth):
        topic.append("x")
        if depth:
            return in_fork(count, depth - 1)
        return len(os.listdir("/proc/self/fd"))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("there is no /proc here")
    assert in_fork(count, 5) - in_fork(count, 1) <= 4 * 4
