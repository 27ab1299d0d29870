"""A log in a directory: its handles, engines, namespaces, closes, and directories that go away."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

import tailrace
from tailrace import errors
from tailrace.disk.files import Files
from tailrace.engine import engine as engines
from tests.processes import run, start


@pytest.fixture(autouse=True)
def _no_namespace(monkeypatch):
    for name in ("TAILRACE_NAMESPACE", "TAILRACE_JOURNAL_BYTES"):
        monkeypatch.delenv(name, raising=False)


def test_a_reading_handle_refuses_to_write(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        log.topic("orders").append("hello")
    with tailrace.open(tmp_path / "shop", "r") as log:
        topic = log.topic("orders")
        assert [record.text for record in topic.read()] == ["hello"]
        for write in (
            lambda: topic.append("x"),
            lambda: topic.extend(["x"]),
            topic.producer,
            lambda: topic.alter(partitions=2),
            lambda: topic.trim("latest"),
            topic.drop,
            log.transaction,
            lambda: log.topic("new", partitions=2),
            lambda: log.drop_namespace("tenant"),
            log.sync,
        ):
            with pytest.raises(errors.ReadOnlyError):
                write()
        assert log.topic("orders", partitions=1).partitions == 1


def test_a_reading_handle_beside_a_writing_one_stays_a_reading_one(tmp_path):
    with tailrace.open(tmp_path / "shop") as log, tailrace.open(tmp_path / "shop", "r") as reading:
        log.topic("orders").append("hello", durable=False)
        assert reading.topic("orders").get(0).text == "hello"
        with pytest.raises(errors.ReadOnlyError):
            reading.topic("orders").append("x")


def test_a_second_open_shares_the_engine_and_has_settings_of_its_own(tmp_path):
    with tailrace.open(tmp_path / "shop") as one:
        (tmp_path / "link").symlink_to(tmp_path / "shop")
        two = tailrace.open(tmp_path / "link", durable=False, io="mmap", timeout="1s")
        assert two.engine is one.engine
        assert (one.backend.durable, two.backend.durable) == (0.0, None)
        two.topic("orders").append("hello")
        two.close()
        # What a handle wrote is on disk when it is closed, though the engine lives on.
        assert one.topic("orders").offsets()[0] == (0, 1, 1)
        one.topic("orders").append("again")
        with pytest.raises(errors.ClosedError):
            two.topic("orders")


def test_exclusive_excludes_within_the_process_both_ways(tmp_path):
    with tailrace.open(tmp_path / "shop", exclusive=True) as log:
        log.topic("orders").append("hello")
        for exclusive in (False, True):
            with pytest.raises(errors.LockedError) as caught:
                tailrace.open(tmp_path / "shop", exclusive=exclusive)
            assert caught.value.pid == os.getpid()
        with tailrace.open(tmp_path / "shop", "r") as reading:
            assert reading.topic("orders").get(0).text == "hello"
    with tailrace.open(tmp_path / "shop"), pytest.raises(errors.LockedError):
        tailrace.open(tmp_path / "shop", exclusive=True)
    tailrace.open(tmp_path / "shop", exclusive=True).close()


def test_exclusive_excludes_other_processes_and_names_the_holder(tmp_path):
    program = """
        import sys, tailrace
        with tailrace.open(sys.argv[1], exclusive=sys.argv[2] == "True"):
            print("open", flush=True)
            sys.stdin.read()
    """
    for theirs, ours in ((True, False), (False, True)):
        other = start(program, tmp_path / "shop", theirs)
        assert other.stdout.readline() == "open\n"
        with pytest.raises(errors.LockedError) as caught:
            tailrace.open(tmp_path / "shop", exclusive=ours, timeout=0.2)
        assert caught.value.pid == other.pid
        other.communicate("", timeout=20)
    tailrace.open(tmp_path / "shop").close()


def test_closing_is_idempotent_and_every_method_notices(tmp_path):
    log = tailrace.open(tmp_path / "shop")
    topic = log.topic("orders")
    topic.append("hello")
    producer = topic.producer()
    scan = topic.read()
    log.close()
    log.close()
    assert "closed" in repr(log)
    for use in (
        lambda: topic.append("x"),
        lambda: topic.extend(["x"]),
        topic.producer,
        lambda: producer.append("x"),
        topic.read,
        lambda: list(scan),
        lambda: topic.get(0),
        lambda: topic.offset_at("-1h"),
        topic.offsets,
        lambda: topic.partitions,
        lambda: topic.settings,
        lambda: topic.alter(partitions=2),
        lambda: topic.trim("latest"),
        topic.drop,
        lambda: log.topic("orders"),
        log.topics,
        log.transaction,
        lambda: log.namespace("tenant"),
        log.namespaces,
        lambda: log.drop_namespace("tenant"),
        log.stats,
        log.verify,
        log.sync,
    ):
        with pytest.raises(errors.ClosedError):
            use()


def test_closing_waits_for_appends_of_other_threads_and_those_after_it_are_refused(tmp_path):
    for _ in range(5):
        log = tailrace.open(tmp_path / "shop", durable=False)
        topic = log.topic("orders")
        topic.append("first")
        ended = []

        def write(topic=topic, ended=ended):
            try:
                while True:
                    topic.append("x")
            except errors.ClosedError:
                ended.append(True)

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        log.close()
        for thread in threads:
            thread.join(20)
        assert ended == [True] * 3
    with tailrace.open(tmp_path / "shop") as log:
        assert log.verify().ok


def test_a_forgotten_handle_warns_and_its_records_are_kept(tmp_path):
    with pytest.warns(ResourceWarning, match="unclosed log"):
        tailrace.open(tmp_path / "shop", durable=False, exclusive=True).topic("orders").append("hello")
    # Whoever opens next closes what was left open, or an exclusive handle could never be replaced.
    with tailrace.open(tmp_path / "shop", exclusive=True) as log:
        assert log.topic("orders").offsets()[0] == (0, 1, 1)


class InterruptedOnce(Files):
    """The first sync after `armed` was set is interrupted by the user."""

    armed = False

    def sync_data(self, descriptor: int) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        super().sync_data(descriptor)


@pytest.fixture
def interrupted(monkeypatch):
    files = InterruptedOnce()
    monkeypatch.setattr(engines, "FILES", files)
    return files


def test_a_second_close_finishes_one_that_was_interrupted(tmp_path, interrupted):
    log = tailrace.open(tmp_path / "shop", exclusive=True)
    log.engine.store.flusher.stop()
    log.topic("orders").append(b"one", durable=False)
    partition = log.engine.store.partition(1)
    interrupted.armed = True
    with pytest.raises(KeyboardInterrupt):
        log.close()
    assert partition.safe == 0
    log.close()
    log.close()
    with tailrace.open(tmp_path / "shop", exclusive=True) as again:
        assert [record.value for record in again.topic("orders").read()] == [b"one"]
        assert again.engine.store.partition(1).safe == 1
    with pytest.raises(errors.ClosedError):
        log.topic("orders")


def test_opening_again_finishes_a_close_that_was_interrupted(tmp_path, interrupted):
    """Whoever was interrupted at the end of a `with` has no handle to close a second time."""
    log = tailrace.open(tmp_path / "shop", exclusive=True)
    log.engine.store.flusher.stop()
    log.topic("orders").append(b"one", durable=False)
    interrupted.armed = True
    with pytest.raises(KeyboardInterrupt):
        log.__exit__(None, None, None)
    with tailrace.open(tmp_path / "shop", exclusive=True) as again:
        partition = again.engine.store.partition(1)
        assert (partition.safe, partition.end) == (1, 1)


def test_the_end_of_the_process_closes_what_was_left_open(tmp_path):
    program = """
        import sys, tailrace
        log = tailrace.open(sys.argv[1], durable=False)
        log.topic("orders").append("hello")
        producer = log.topic("orders").producer(linger="1h")
        producer.append("buffered")
    """
    run(program, tmp_path / "shop")
    # Another boot sees only what was synced, so nothing is here by luck of the page cache.
    program = """
        import sys, tailrace
        with tailrace.open(sys.argv[1], "r") as log:
            print([record.text for record in log.topic("orders").read()])
    """
    printed = run(program, tmp_path / "shop", environment={"TAILRACE_BOOT_ID": "another"})
    assert printed == str(["hello", "buffered"])


def test_sync_brings_everything_to_disk(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        log.topic("orders").append("hello")
        producer = log.topic("orders").producer(linger="1h")
        future = producer.append("buffered")
        log.sync()
        assert future.done()
        assert log.topic("orders").offsets()[0] == (0, 2, 2)


def test_handles_can_be_pickled_and_open_at_their_first_use(tmp_path):
    with tailrace.open(tmp_path / "shop", "x", durable="50ms", io="mmap", timeout=timedelta(seconds=5)) as log:
        topic = log.topic("orders", partitions=2)
        copied = pickle.loads(pickle.dumps(log))
        inner = copied.backend
        assert (copied.mode, inner.durable, inner.io, inner.timeout) == ("a", 0.05, "mmap", 5.0)
        assert inner.live is None
        copied_topic = pickle.loads(pickle.dumps(topic))
        assert copied_topic.append("hello", partition=1) == (1, 0)
        assert topic.get(0, 1).text == "hello"
        copied_topic.log.close()
        copied.close()
        with pytest.raises(errors.ClosedError):
            copied.topics()


def test_a_pickled_handle_works_in_another_process(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        data = pickle.dumps(log.topic("orders")).hex()
        program = """
            import pickle, sys
            topic = pickle.loads(bytes.fromhex(sys.argv[1]))
            print(tuple(topic.append("from there")))
            topic.log.close()
        """
        assert run(program, data) == "(0, 0)"
        assert log.topic("orders").get(0).text == "from there"


def test_the_journal_may_be_small(tmp_path, monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "64KiB")
    with tailrace.open(tmp_path / "shop") as log:
        for number in range(50):
            with log.transaction() as tx:
                tx.append("a", b"x" * 4_000)
                tx.append("b", str(number))
        assert log.topic("b").offsets()[0].latest == 50
    assert sum(path.stat().st_size for path in (tmp_path / "shop" / "journal").iterdir()) <= 4 << 16
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "small")
    with pytest.raises(ValueError, match="TAILRACE_JOURNAL_BYTES"):
        tailrace.open(tmp_path / "other")


def test_namespaces_are_logs_of_their_own(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        assert log.namespaces() == []
        with log.namespace("Ä/b") as first, log.namespace("ä/b") as second:
            first.topic("orders").append("one")
            second.topic("orders").append("two")
            assert first.backend.durable is None
            assert first.topic("orders").get(0).text == "one"
            assert second.topic("orders").get(0).text == "two"
            assert log.namespaces() == ["Ä/b", "ä/b"]
            assert [info.name for info in log.topics()] == []
            assert [info.name for info in first.topics()] == ["orders"]
    with tailrace.open(tmp_path / "shop", "r", namespace="Ä/b") as log:
        assert log.topic("orders").get(0).text == "one"


def test_a_missing_namespace_is_not_read(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        log.namespace("tenant").close()
    with tailrace.open(tmp_path / "shop", "r") as log, pytest.raises(errors.NotALogError, match="mean 'tenant'"):
        log.namespace("tenent")
    with pytest.raises(errors.NotALogError, match="mean 'tenant'"):
        tailrace.open(tmp_path / "shop", "r", namespace="tenent")


def test_opening_a_namespace_makes_the_log_around_it(tmp_path):
    tailrace.open(tmp_path / "shop", namespace="tenant").close()
    with tailrace.open(tmp_path / "shop", "r") as log:
        assert log.namespaces() == ["tenant"]


def test_a_namespace_is_dropped_only_when_nobody_has_it_open(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        with log.namespace("tenant") as tenant:
            tenant.topic("orders").append("x")
            with pytest.raises(errors.LockedError, match="tenant"):
                log.drop_namespace("tenant")
            assert tenant.topic("orders").get(0).text == "x"
        log.drop_namespace("tenant")
        assert log.namespaces() == []
        assert list(Path(log.location, "namespaces").iterdir()) == []
        with pytest.raises(errors.NotALogError):
            log.drop_namespace("tenant")
        with log.namespace("tenant") as tenant, pytest.raises(errors.TopicNotFoundError):
            tenant.topic("orders").offsets()


def test_a_namespace_is_not_dropped_while_one_inside_it_is_open(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        with log.namespace("tenant") as tenant:
            tenant.topic("orders").append("x")
            with tenant.namespace("unit") as unit:
                deepest = unit.namespace("team")
        deepest.topic("orders").append("x")
        with pytest.raises(errors.LockedError, match="'team' inside 'tenant'"):
            log.drop_namespace("tenant")
        assert deepest.topic("orders").get(0).text == "x"
        assert log.namespaces() == ["tenant"]
        with log.namespace("tenant") as tenant:
            assert tenant.topic("orders").get(0).text == "x"
        deepest.close()
        log.drop_namespace("tenant")
        assert log.namespaces() == []
        assert list(Path(log.location, "namespaces").iterdir()) == []


class Forbidding(Files):
    """The real disk, on which some things are not allowed."""

    __slots__ = ("forbidden",)

    def __init__(self):
        self.forbidden = frozenset()

    def open(self, path, **arguments):
        if "open" in self.forbidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().open(path, **arguments)

    def stat(self, path):
        if "stat" in self.forbidden and path.endswith("tailrace.json"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().stat(path)


def test_missing_permissions_are_told(tmp_path, monkeypatch):
    disk = Forbidding()
    monkeypatch.setattr("tailrace.engine.engine.FILES", disk)
    tailrace.open(tmp_path / "shop").close()
    disk.forbidden = {"open"}
    with pytest.raises(errors.ReadOnlyError) as caught:
        tailrace.open(tmp_path / "shop")
    assert 'mode "r"' in caught.value.hint
    for forbidden in ({"open"}, {"stat"}):
        disk.forbidden = forbidden
        with pytest.raises(errors.OpenError, match="cannot be read: Permission denied") as caught:
            tailrace.open(tmp_path / "shop", "r")
        assert "permission to read" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may read everything")
def test_a_directory_that_may_not_be_read_is_told(tmp_path):
    tailrace.open(tmp_path / "shop").close()
    (tmp_path / "shop").chmod(0)
    try:
        with pytest.raises(errors.OpenError, match="Permission denied"):
            tailrace.open(tmp_path / "shop", "r")
    finally:
        (tmp_path / "shop").chmod(0o700)


def test_a_log_whose_directory_is_gone_says_so(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        log.topic("orders").append("x")
        shutil.rmtree(tmp_path / "shop")
        for use in (log.stats, log.verify):
            with pytest.raises(errors.StorageError, match="No such file"):
                use()


def test_a_failure_of_the_callers_own_progress_is_the_callers(tmp_path):
    def progress(done, total):
        raise BrokenPipeError("mine")

    with tailrace.open(tmp_path / "shop") as log, pytest.raises(BrokenPipeError, match="mine") as caught:
        log.verify(progress=progress)
    assert not isinstance(caught.value, errors.TailraceError)


def test_a_closed_reading_handle_is_closed_first_and_reading_second(tmp_path):
    tailrace.open(tmp_path / "shop").close()
    log = tailrace.open(tmp_path / "shop", "r")
    topic = log.topic("orders")
    log.close()
    for write in (lambda: topic.append("x"), topic.producer, log.transaction, log.sync, topic.drop):
        with pytest.raises(errors.ClosedError):
            write()


@pytest.mark.parametrize("successor", [False, True])
def test_a_log_that_was_removed_takes_no_more_records(tmp_path, successor):
    log = tailrace.open(tmp_path / "log")
    orders = log.topic("orders")
    orders.append(b"tea")
    (tmp_path / "log").rename(tmp_path / "away")
    if successor:
        tailrace.open(tmp_path / "log").close()

    def go_on():
        for _ in range(100):
            orders.append(b"coffee", durable=False)
            time.sleep(0.05)

    with pytest.raises(errors.NotALogError, match="was removed or replaced"):
        go_on()
    with pytest.raises(errors.NotALogError):
        log.topic("payments").append(b"2.40")
    log.close()
