"""The writer: checks of appends that wait for the disk run under the partition's lock, inside their write group."""

from __future__ import annotations

import threading
import time

import pytest

import tailrace
from tailrace.disk.files import Files
from tailrace.disk.frame import prepare, prepare_one
from tailrace.disk.group_commit import WriteGroup
from tailrace.engine import engine as engines
from tailrace.errors import OffsetMismatchError, TopicNotFoundError


class Counting(Files):
    """Counts syncs, and lets none pass while the gate is closed."""

    __slots__ = ("gate", "syncs")

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.syncs = 0

    def sync_data(self, fd: int) -> None:
        assert self.gate.wait(20)
        self.syncs += 1
        super().sync_data(fd)


class Bench:
    """One open log, and threads that append to it while its disk does not answer."""

    def __init__(self, log: tailrace.Log, files: Counting) -> None:
        self.log = log
        self.files = files
        self.store = log.engine.store
        self.outcomes: dict[object, object] = {}

    def partition(self, topic: str):
        return self.log.topic(topic).backend.route(self.log.engine).partitions[0]

    def frame(self, value: bytes):
        return prepare_one(value, None, b"", self.files.now_us())

    def together(self, *appends) -> int:
        """Run appends as one write group, behind one that keeps the disk busy; the number of syncs they took."""
        queue = self.store.writer.queue
        self.files.gate.clear()
        first = threading.Thread(target=lambda: self.log.topic("busy").append(b"busy"))
        first.start()
        while queue.leader is None:
            time.sleep(0.001)
        threads = []
        for number, append in enumerate(appends):
            threads.append(threading.Thread(target=self._run, args=(number, append)))
            threads[-1].start()
            while len(queue.queue) <= number:
                time.sleep(0.001)
        before = self.files.syncs
        self.files.gate.set()
        for thread in (first, *threads):
            thread.join(20)
        return self.files.syncs - before - 1

    def _run(self, number: int, append) -> None:
        try:
            self.outcomes[number] = append()
        except Exception as error:  # noqa: BLE001  # the outcome is what the test compares
            self.outcomes[number] = error

    def values(self, topic: str) -> list[bytes]:
        return [record.value for record in self.log.topic(topic).read()]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    files = Counting()
    monkeypatch.setattr(engines, "FILES", files)
    with tailrace.open(tmp_path / "log") as log:
        for name in ("busy", "orders", "other"):
            log.topic(name).append(b"first")
        yield Bench(log, files)


def test_appends_with_checks_share_one_sync(bench):
    partition, ends = bench.partition("orders"), []

    def appending(number: int):
        def check(group: WriteGroup) -> None:
            ends.append(group.end)

        return lambda: bench.store.append(partition, [bench.frame(b"%d" % number)], 0.0, None, check)

    assert bench.together(*map(appending, range(8))) == 1
    assert ends == [*range(1, 9)]
    assert [bench.outcomes[number] for number in range(8)] == [*range(1, 9)]
    assert bench.values("orders") == [b"first", *(b"%d" % number for number in range(8))]


def test_a_check_that_raises_fails_its_own_append_only(bench):
    partition = bench.partition("orders")
    problem = ValueError("not this one")

    def refuse(_group: WriteGroup) -> None:
        raise problem

    def appending(value: bytes, check=None, expect: int | None = None):
        return lambda: bench.store.append(partition, [bench.frame(value)], 0.0, expect, check)

    assert bench.together(
        appending(b"a"), appending(b"refused", refuse), appending(b"b", expect=2), appending(b"late", expect=2)
    ) == 1  # fmt: skip
    assert bench.outcomes[0] == 1
    assert bench.outcomes[1] is problem
    assert bench.outcomes[2] == 2
    assert isinstance(bench.outcomes[3], OffsetMismatchError)
    assert bench.outcomes[3].actual == 3
    assert bench.values("orders") == [b"first", b"a", b"b"]


def test_a_check_alone_that_raises_leaves_nothing_and_no_lock(bench):
    partition = bench.partition("orders")

    def refuse(_group: WriteGroup) -> None:
        raise ValueError("not this one")

    for durable in (0.0, None):
        with pytest.raises(ValueError, match="not this one"):
            bench.store.append(partition, [bench.frame(b"refused")], durable, None, refuse)
        assert not partition.lock.held
    assert bench.log.topic("orders").append(b"on").offset == 1
    assert bench.values("orders") == [b"first", b"on"]


def test_a_check_builds_the_frames_that_are_written(bench):
    """It knows the offset that they get, and may find that there is nothing to write."""
    partition = bench.partition("orders")

    def appending(count: int):
        def make(group: WriteGroup):
            values = [b"%d at %d" % (number, group.end + number) for number in range(count)]
            return prepare(values, None, None, bench.files.now_us())

        return lambda: bench.store.append(partition, (), 0.0, None, make)

    assert bench.together(appending(2), appending(0), appending(1)) == 1
    assert [bench.outcomes[number] for number in range(3)] == [1, 3, 3]
    assert bench.values("orders") == [b"first", b"0 at 1", b"1 at 2", b"0 at 3"]
    assert appending(0)() == 4
    assert bench.store.append(partition, (), None, None, lambda _group: [bench.frame(b"last")]) == 4


def test_a_check_sees_what_earlier_checks_of_its_group_left_and_nothing_of_a_group_that_failed(bench):
    partition, key = bench.partition("orders"), object()
    seen: list[list[str]] = []

    def appending(name: str, *, refuse: bool = False):
        def check(group: WriteGroup) -> None:
            earlier = group.overlay.setdefault(key, [])
            seen.append([*earlier])
            if refuse:
                raise ValueError(name)
            earlier.append(name)

        return lambda: bench.store.append(partition, [bench.frame(name.encode())], 0.0, None, check)

    bench.together(appending("a"), appending("b", refuse=True), appending("c"))
    assert seen == [[], ["a"], ["a"]]
    seen.clear()
    bench.together(appending("d"), appending("e"))
    assert seen == [[], ["d"]]


def test_checks_over_several_partitions_are_one_journalled_commit(bench):
    orders, other = bench.partition("orders"), bench.partition("other")
    called: list[bytes] = []

    def appending(partition, value: bytes):
        def check(_group: WriteGroup) -> None:
            called.append(value)

        return lambda: bench.store.append(partition, [bench.frame(value)], 0.0, None, check)

    lsn = bench.store.committer.own_lsn
    bench.together(appending(orders, b"a"), appending(other, b"b"), appending(orders, b"c"))
    assert bench.store.committer.own_lsn > lsn
    assert sorted(called) == [b"a", b"b", b"c"]
    assert bench.values("orders") == [b"first", b"a", b"c"]
    assert bench.values("other") == [b"first", b"b"]


def test_a_refusal_in_a_journalled_commit_fails_its_own_append_only(bench):
    orders, other = bench.partition("orders"), bench.partition("other")

    def refuse(_group: WriteGroup) -> None:
        raise ValueError("not this one")

    def appending(partition, value: bytes, check=None):
        return lambda: bench.store.append(partition, [bench.frame(value)], 0.0, None, check)

    def make(group: WriteGroup):
        return [bench.frame(b"made at %d" % group.end)]

    bench.together(appending(orders, b"a"), appending(other, b"refused", refuse), appending(other, b"b", make))
    assert bench.outcomes[0] == 1
    assert isinstance(bench.outcomes[1], ValueError)
    assert bench.outcomes[2] == 1
    assert bench.values("orders") == [b"first", b"a"]
    assert bench.values("other") == [b"first", b"made at 1"]


def test_a_waiter_of_a_dropped_topic_does_not_write_to_the_next_topic_of_its_slot(bench):
    """It has no recipe and no check that would refuse it: its partition alone tells that it is another topic's."""
    old = bench.partition("orders")
    bench.log.topic("orders").drop()
    bench.log.topic("next").append(b"first")
    new, other = bench.partition("next"), bench.partition("other")
    assert new.slot == old.slot

    def appending(partition, value: bytes):
        return lambda: bench.store.append(partition, [bench.frame(value)], 0.0)

    bench.together(appending(new, b"second"), appending(old, b"of another topic"), appending(other, b"second"))
    assert isinstance(bench.outcomes[1], TopicNotFoundError)
    assert (bench.outcomes[0], bench.outcomes[2]) == (1, 1)
    assert bench.values("next") == bench.values("other") == [b"first", b"second"]
