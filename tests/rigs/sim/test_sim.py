"""The simulated machine itself: each rule of its fault model, and a toy log whose mutants it must catch."""

from __future__ import annotations

import errno
import inspect
import os
import time
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from tailrace.disk.files import Files
from tests.rigs.sim import (
    FALLIBLE,
    PASSIVE,
    Cut,
    Deadlock,
    Disk,
    Fail,
    Full,
    Interrupt,
    Kill,
    Killed,
    PowerCut,
    Process,
    Scheduler,
)

FOREVER = float("inf")


def machine(*names: str) -> tuple[Disk, Process, int]:
    """A machine with one process and one file, /log, whose name is durable."""
    disk = Disk(seed=1)
    process = Process(disk, "a")
    fd = process.open("/log", create=True)
    process.sync_directory("/")
    for name in names:
        process.make_directory(name)
        process.sync_directory("/")
    return disk, process, fd


def contents(disk: Disk, path: str = "/log", limit: int = 200) -> set[bytes | None]:
    """What `path` may hold after a power cut now."""
    return {disk.crash(choice).files().get(path) for choice in disk.crash_states(Random(0), limit)}


def test_process_has_every_method_of_files() -> None:
    public = {name for name, _ in inspect.getmembers(Files) if not name.startswith("_")}
    assert public <= set(vars(Process)), "a method that is not simulated would touch the real disk"


def test_an_unsynced_write_may_vanish_and_a_synced_one_never_does() -> None:
    disk, process, fd = machine()
    process.write(fd, b"first", 0)
    assert contents(disk) == {b"", b"first", bytes(5)}
    process.sync_data(fd)
    assert contents(disk) == {b"first"}
    process.write(fd, b"F", 0)
    process.write(fd, b"second", 5)
    assert contents(disk) == {head + tail for head in (b"first", b"First") for tail in (b"", b"second", bytes(6))}
    assert disk.files()["/log"] == b"Firstsecond", "a crash must not change the machine it is asked of"


def test_a_name_without_a_directory_sync_may_vanish_with_its_synced_bytes() -> None:
    disk, process, _ = machine()
    fd = process.open("/other", create=True)
    process.write(fd, b"data", 0)
    process.sync_data(fd)
    assert contents(disk, "/other") == {None, b"data"}
    process.sync_directory("/")
    assert contents(disk, "/other") == {b"data"}


def test_a_directory_and_what_is_in_it_are_lost_each_for_itself() -> None:
    disk, process, _ = machine()
    process.make_directory("/d")
    process.sync_data(process.open("/d/f", create=True))
    process.sync_directory("/d")
    states = {tuple(sorted(disk.crash(choice).files())) for choice in disk.crash_states(Random(0))}
    assert states == {("/log",), ("/d/f", "/log")}
    process.sync_directory("/")
    assert contents(disk, "/d/f") == {b""}


def test_a_rename_happens_as_a_whole() -> None:
    disk, process, fd = machine()
    process.write(fd, b"old", 0)
    process.sync_data(fd)
    new = process.open("/new", create=True)
    process.write(new, b"new", 0)
    process.sync_data(new)
    process.sync_directory("/")
    process.rename("/new", "/log")
    states = [disk.crash(choice).files() for choice in disk.crash_states(Random(0))]
    assert len(states) == 2
    assert {"/log": b"old", "/new": b"new"} in states
    assert {"/log": b"new"} in states
    process.sync_directory("/")
    assert contents(disk) == {b"new"}


def test_a_rename_between_directories_is_synced_by_either() -> None:
    disk, process, _ = machine("/d")
    process.rename("/log", "/d/log")
    process.sync_directory("/d")
    assert [disk.crash(choice).files() for choice in disk.crash_states(Random(0))] == [{"/d/log": b""}]


def test_a_removed_file_may_come_back_until_its_directory_is_synced() -> None:
    disk, process, fd = machine()
    process.write(fd, b"x", 0)
    process.sync_data(fd)
    process.remove_file("/log")
    assert process.read(fd, 1, 0) == b"x", "an open file outlives its name"
    assert contents(disk) == {None, b"x"}
    process.sync_directory("/")
    assert contents(disk) == {None}


def test_a_second_sync_after_a_failed_one_succeeds_and_brings_nothing_to_the_medium() -> None:
    disk, process, fd = machine()
    process.write(fd, b"lost", 0)
    disk.plan(Fail(disk.steps + 1, number=errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        process.sync_data(fd)
    process.sync_data(fd)
    assert process.read(fd, 4, 0) == b"lost"
    assert disk.crash().files()["/log"] == b""
    assert b"lost" in contents(disk), "a failed sync may have written a part"
    process.write(fd, b"kept", 4)
    process.sync_data(fd)
    assert contents(disk) == {b"\0\0\0\0kept", b"lostkept"}
    process.write(fd, b"LO", 0)
    process.sync_data(fd)
    assert contents(disk) == {b"LO\0\0kept", b"LOstkept"}
    disk.evict("/log")
    assert process.read(fd, 8, 0) == b"LO\0\0kept"


def test_a_failed_directory_sync_loses_names_the_same_way() -> None:
    disk, process, _ = machine()
    process.open("/other", create=True)
    disk.plan(Fail(1, kinds={"sync_directory"}))
    with pytest.raises(OSError, match="Input/output"):
        process.sync_directory("/")
    process.sync_directory("/")
    assert contents(disk, "/other") == {None, b""}
    process.remove_file("/other")
    process.sync_directory("/")
    assert contents(disk, "/other") == {None}


def test_a_long_write_is_torn_between_sectors_both_ways() -> None:
    disk, process, fd = machine()
    process.write(fd, bytes(2000), 0)
    process.sync_data(fd)
    process.write(fd, b"x" * 1024, 300)
    sectors = set()
    for state in contents(disk):
        assert state is not None
        assert len(state) == 2000
        for start, end in ((300, 512), (512, 1024), (1024, 1324)):
            assert len(set(state[start:end])) == 1, "a sector is never torn"
        sectors.add((state[300] > 0, state[600] > 0, state[1100] > 0))
    assert {(False, False, False), (True, True, True), (True, False, False), (False, True, True)} <= sectors


def test_truncation_and_reservation_are_pending_too() -> None:
    disk, process, fd = machine()
    process.write(fd, b"abcdef", 0)
    process.sync_data(fd)
    process.truncate(fd, 2)
    assert contents(disk) == {b"abcdef", b"ab"}
    process.sync_data(fd)
    process.reserve(fd, 2, 3)
    assert contents(disk) == {b"ab", b"ab\0\0\0"}
    process.truncate(fd, 1)
    process.truncate(fd, 3)
    assert process.read(fd, 10, 0) == b"a\0\0"


def test_many_pending_changes_are_sampled_within_the_limit() -> None:
    disk, process, fd = machine()
    for index in range(20):
        process.write(fd, bytes([65 + index]), index)
    states = list(disk.crash_states(Random(0), 30))
    assert len(states) == len(set(states)) == 30
    files = [disk.crash(choice).files()["/log"] for choice in states]
    assert b"" in files
    assert bytes(range(65, 85)) in files
    every = {disk.crash(choice).files()["/log"] for choice in disk.crash_states(Random(0), 500)}
    for count in range(20):
        assert bytes(range(65, 65 + count)) in every, "every prefix"


def test_a_killed_process_leaves_its_writes_and_no_locks() -> None:
    disk, process, fd = machine()
    other = Process(disk, "b")
    theirs = other.open("/log", write=True)
    assert process.lock(fd)
    assert not other.lock(theirs)
    assert other.lock_holder(theirs) == process.process_id()
    process.write(fd, b"seen", 0)
    disk.plan(Kill(disk.steps + 1))
    with pytest.raises(Killed):
        process.write(fd, b"never", 0)
    for operation in (lambda: process.unlock(fd), lambda: process.stat("/log"), process.now_us):
        with pytest.raises(Killed):
            operation()
    assert other.read(theirs, 9, 0) == b"seen"
    assert other.lock(theirs)


@pytest.mark.parametrize(("when", "left"), [("before", b""), ("middle", b"12"), ("after", b"1234")])
def test_a_kill_strikes_before_in_the_middle_of_or_after_a_write(when: str, left: bytes) -> None:
    disk, process, fd = machine()
    disk.plan(Kill(disk.steps + 1, when))
    with pytest.raises(Killed):
        process.write(fd, b"1234", 0)
    assert disk.files()["/log"] == left


def test_an_interrupt_may_come_after_the_lock_is_taken() -> None:
    disk, process, fd = machine()
    disk.plan(Interrupt(disk.steps + 1, "after"))
    with pytest.raises(KeyboardInterrupt):
        process.lock(fd)
    other = Process(disk, "b")
    theirs = other.open("/log", write=True)
    assert not other.lock(theirs)
    process.close(fd)
    assert other.lock(theirs)


def test_flock_belongs_to_the_open_file_and_may_be_shared_or_converted() -> None:
    _disk, process, fd = machine()
    again = process.open("/log")
    assert process.lock(fd, shared=True)
    assert process.lock(again, shared=True)
    assert not process.lock(fd), "another description holds it shared"
    assert process.lock(again), "the failed conversion gave the first lock up"
    assert not process.lock(fd, shared=True, timeout=30.0)
    with pytest.raises(Deadlock, match="a waits for /log"):
        process.lock(fd, timeout=FOREVER)
    process.close(again)
    assert process.lock(fd)


def test_every_failing_call_raises_and_leaves_what_a_kernel_would() -> None:
    disk, process, fd = machine()
    disk.plan(Fail(disk.steps + 1, number=errno.ENOSPC, keep=0.5))
    with pytest.raises(OSError, match="No space") as caught:
        process.write(fd, b"1234", 0)
    assert caught.value.errno == errno.ENOSPC
    assert process.read(fd, 9, 0) == b"12"
    for operation in (
        lambda: process.open("/new", create=True),
        lambda: process.rename("/log", "/else"),
        lambda: process.remove_file("/log"),
        lambda: process.make_directory("/d"),
        lambda: process.truncate(fd, 0),
        lambda: process.lock(fd),
        lambda: process.read(fd, 1, 0),
    ):
        disk.plan(Fail(disk.steps + 1))
        with pytest.raises(OSError, match="Input/output"):
            operation()
    assert disk.files() == {"/log": b"12"}


def test_a_full_disk_takes_what_fits_and_overwriting_needs_no_space() -> None:
    disk, process, fd = machine()
    process.write(fd, b"12345678", 0)
    disk.plan(Full(disk.steps + 1, free=3))
    process.write(fd, b"abcdefgh", 0)
    with pytest.raises(OSError, match="No space"):
        process.write(fd, b"-----", 8)
    assert process.read(fd, 20, 0) == b"abcdefgh---"
    for operation in (lambda: process.open("/new", create=True), lambda: process.reserve(fd, 11, 1)):
        with pytest.raises(OSError, match="No space"):
            operation()
    process.truncate(fd, 10)
    process.reserve(fd, 10, 1)
    disk.free = None
    process.write(fd, b"=" * 100, 11)
    assert len(disk.files()["/log"]) == 111


def test_faults_nest_and_a_cut_stops_every_process() -> None:
    disk, process, fd = machine()
    other = Process(disk, "b")
    start = disk.steps
    disk.plan(Fail(start + 1), Kill(start + 2, process=None), Cut(start + 3))
    with pytest.raises(OSError, match="Input/output"):
        process.write(fd, b"x", 0)
    with pytest.raises(Killed):
        process.write(fd, b"x", 0)
    with pytest.raises(PowerCut):
        other.stat("/log")
    with pytest.raises(Killed):
        other.stat("/log")
    after = disk.crash()
    assert Process(after, "c").stat("/log") is not None
    assert after.boot_id() != disk.boot_id()


def test_mapped_sectors_show_any_version_since_the_last_sync() -> None:
    disk, process, fd = machine()
    process.write(fd, bytes(1024), 0)
    process.sync_data(fd)
    mapping = process.map(fd, 1024)
    other = Process(disk, "b")
    shared = other.map(other.open("/log", write=True), 1024)
    for value in (1, 2, 3):
        mapping.words[0] = value
    shared.words[64] = 9
    assert (mapping.words[64], shared.words[0], mapping.view[0], bytes(mapping.view[510:514])) == (
        9,
        3,
        3,
        b"\0\0\x09\0",
    )
    assert list(shared.words[0:128:64]) == [3, 9]
    shown = {(state[0], state[512]) for state in contents(disk, limit=400) if state is not None}
    assert shown == {(first, second) for first in (0, 1, 2, 3) for second in (0, 9)}
    process.sync_data(fd)
    assert len(contents(disk)) == 1
    mapping.view[0:16] = b"\1" * 16
    disk.plan(Fail(1, kinds={"sync_data"}))
    with pytest.raises(OSError, match="Input/output"):
        process.sync_data(fd)
    process.sync_data(fd)
    assert {state[0] for state in contents(disk) if state is not None} == {1, 3}
    disk.plan(Kill(1, "middle", kinds={"store"}))
    with pytest.raises(Killed):
        mapping.view[0:16] = b"\2" * 16
    assert bytes(shared.view[0:16]) == b"\2" * 8 + b"\1" * 8


def test_a_mapped_file_grows_by_writes_whose_size_may_be_lost() -> None:
    disk, process, fd = machine()
    process.write(fd, b"1" * 512, 0)
    process.sync_data(fd)
    process.map(fd, 512)
    process.write(fd, b"2" * 512, 512)
    states = contents(disk, limit=100)
    assert states == {b"1" * 512, b"1" * 512 + bytes(512), b"1" * 512 + b"2" * 512}


def test_a_clone_goes_its_own_way_and_a_copy_has_other_inodes() -> None:
    disk, process, fd = machine("/d")
    process.write(process.open("/d/f", create=True), b"f", 0)
    process.write(fd, b"before", 0)
    clone = disk.clone()
    process.write(fd, b"after!", 0)
    assert clone.files() == {"/d/f": b"f", "/log": b"before"}
    assert clone.boot_id() == disk.boot_id()
    assert contents(clone) == {b"", b"before", bytes(6)}
    disk.copy("/d", "/e")
    assert disk.files()["/e/f"] == b"f"
    assert disk.crash().files()["/e/f"] == b"f"
    assert process.stat("/e/f") != process.stat("/d/f")
    disk.flip("/log", 0, 5)
    assert disk.files()["/log"] == b"After!"
    stat = process.stat("/log")
    assert stat is not None
    rebooted = Process(disk.crash(disk.everything())).stat("/log")
    assert rebooted == stat, "inode numbers are stable over a boot"


def test_the_same_seed_gives_the_same_bytes_and_another_boot_other_ones() -> None:
    first, second = Process(Disk(seed=7)), Process(Disk(seed=7))
    drawn = first.random_bytes(16)
    assert drawn == second.random_bytes(16)
    assert drawn != Process(first.disk.crash()).random_bytes(16)
    assert first.now_us() < first.now_us() < Process(first.disk.crash()).now_us()


def test_watchers_see_writes_and_not_stores() -> None:
    disk, process, fd = machine()
    process.write(fd, bytes(8), 0)
    watch = process.watch("/log")
    assert not watch.wait(0.1)
    process.map(fd, 8).words[0] = 1
    assert not watch.wait(0.1)
    process.write(fd, b"\0", 0)
    assert watch.wait(0.1)
    watch.wake()
    assert watch.wait(0.1)
    assert not watch.wait(0.1)
    assert disk.steps == process.steps


class Toy:
    """A log of 4-byte records in files of three, each record durable when `append` returns: what a sweep must pass."""

    def __init__(self, files: Files, *, sync: bool = True, sync_names: bool = True, lock: bool = True) -> None:
        self.files = files
        self.sync = sync
        self.sync_names = sync_names
        self.locking = lock

    def append(self, value: int) -> None:
        files = self.files
        guard = files.open("/log", write=True)
        if self.locking:
            assert files.lock(guard, timeout=30.0)
        records = self.read()
        name = f"/{len(records) // 3}.part"
        fresh = files.stat(name) is None
        fd = files.open(name, create=True)
        files.write(fd, value.to_bytes(4, "little"), len(records) % 3 * 4)
        if self.sync:
            files.sync_data(fd)
        if self.sync_names and fresh:
            files.sync_directory("/")
        files.close(fd)
        files.close(guard)

    def read(self) -> list[int]:
        files = self.files
        records: list[int] = []
        while files.stat(name := f"/{len(records) // 3}.part") is not None:
            fd = files.open(name)
            data = files.read(fd, 12, 0)
            files.close(fd)
            found = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data) // 4 * 4, 4)]
            records.extend(value for value in found if value)
            if len(found) < 3 or 0 in found:
                break
        return records


def power_cut_sweep(**rules: bool) -> int:
    """One run; before every operation that matters, every state a cut may leave. The states that lost a record."""
    disk, process, _ = machine()
    toy = Toy(process, **rules)
    acknowledged: list[int] = []
    bad = 0

    def look(_process: Process, kind: str, _detail: tuple[object, ...]) -> None:
        nonlocal bad
        if kind not in PASSIVE:
            for choice in disk.crash_states(random, 20):
                recovered = Toy(Process(disk.crash(choice))).read()
                bad += recovered[: len(acknowledged)] != acknowledged

    random = Random(0)
    disk.observer = look
    for value in range(1, 8):
        toy.append(value)
        acknowledged.append(value)
    return bad


def test_a_power_cut_sweep_passes_the_toy_and_catches_its_mutants() -> None:
    assert power_cut_sweep() == 0
    assert power_cut_sweep(sync=False) > 0
    assert power_cut_sweep(sync_names=False) > 0


def test_a_kill_sweep_leaves_a_survivor_that_goes_on() -> None:
    disk, process, _ = machine()
    before = disk.steps
    fill(process)
    for at in range(1, disk.steps - before + 1):
        disk, process, _ = machine()
        disk.plan(Kill(at, process="b"))
        victim = Process(disk, "b")
        acknowledged = []
        try:
            for value in range(1, 5):
                Toy(victim).append(value)
                acknowledged.append(value)
        except Killed:
            pass
        Toy(process).append(99)
        records = Toy(process).read()
        assert records[: len(acknowledged)] == acknowledged
        assert records[-1] == 99


def fill(process: Process) -> None:
    for value in range(1, 5):
        Toy(process).append(value)


def test_a_failure_sweep_reports_every_failed_operation() -> None:
    disk, process, _ = machine()
    start = disk.steps
    trace = disk.record()
    fill(process)
    numbers = [start + number for number, (_, kind, _) in enumerate(trace, 1) if kind in FALLIBLE]
    assert len(numbers) > 20
    for at in numbers:
        for number in (errno.EIO, errno.ENOSPC):
            disk, process, _ = machine()
            fault = Fail(at, number=number)
            disk.plan(fault)
            with pytest.raises(OSError, match=os.strerror(number)):
                fill(process)
            assert fault.fired


def racing(seed: int, *, lock: bool) -> list[int]:
    disk, process, _ = machine()
    scheduler = Scheduler(disk, seed)

    def writer(name: str, first: int) -> None:
        toy = Toy(Process(disk, name), lock=lock)
        member = toy.files
        assert isinstance(member, Process)

        def body() -> None:
            for value in range(first, first + 3):
                toy.append(value)

        scheduler.spawn(member, body)

    writer("b", 10)
    writer("c", 20)
    writer("d", 30)
    scheduler.run()
    assert scheduler.switches > 10
    return sorted(Toy(process).read())


def test_live_writers_interleave_and_only_the_lock_keeps_them_apart() -> None:
    expected = [10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert all(racing(seed, lock=True) == expected for seed in range(15))
    assert any(racing(seed, lock=False) != expected for seed in range(15))
    assert racing(3, lock=False) == racing(3, lock=False), "a seed decides everything"


def opposite_locks(disk: Disk, seed: int, timeout: float) -> None:
    scheduler = Scheduler(disk, seed)

    def body(process: Process, paths: tuple[str, str]) -> Callable[[], None]:
        def run() -> None:
            fds = [process.open(path, write=True) for path in paths]
            for fd in fds:
                process.lock(fd, timeout=timeout)
            for fd in fds:
                process.unlock(fd)

        return run

    for name, paths in (("b", ("/log", "/other")), ("c", ("/other", "/log"))):
        member = Process(disk, name)
        scheduler.spawn(member, body(member, paths))
    scheduler.run()


@pytest.mark.parametrize("timeout", [FOREVER, 30.0])
def test_a_deadlock_is_found_and_named(timeout: float) -> None:
    found = []
    for seed in range(20):
        disk, process, _ = machine()
        process.close(process.open("/other", create=True))
        try:
            opposite_locks(disk, seed, timeout)
        except Deadlock as deadlock:
            found.append(str(deadlock))
    assert found
    assert set(found) == {"b waits for /other; c waits for /log"}


def test_a_scheduled_kill_lets_the_others_go_on() -> None:
    for at in range(1, 12):
        disk, process, _ = machine()
        disk.plan(Kill(at, process="b"))
        scheduler = Scheduler(disk, seed=at, stay=0.5)
        tasks = []
        for name, value in (("b", 1), ("c", 2)):
            member = Process(disk, name)
            tasks.append(scheduler.spawn(member, partial(Toy(member).append, value)))
        scheduler.run()
        assert tasks[0].killed
        assert not tasks[1].killed
        assert Toy(process).read()[-1:] == [2] or Toy(process).read() == [2, 1]


def test_waits_use_the_simulated_clock_and_a_lock_of_an_idle_process_times_out() -> None:
    disk, process, fd = machine()
    assert process.lock(fd)
    scheduler = Scheduler(disk, seed=0)
    waiter, sleeper = Process(disk, "b"), Process(disk, "c")
    events: list[object] = []

    def wait() -> None:
        theirs = waiter.open("/log", write=True)
        events.append(waiter.lock(theirs, timeout=30.0))
        watch = waiter.watch("/log")
        events.append(watch.wait(60.0))

    def sleep() -> None:
        sleeper.sleep(50.0)
        events.append("slept")
        sleeper.write(sleeper.open("/log", write=True), b"x", 0)

    scheduler.spawn(waiter, wait)
    scheduler.spawn(sleeper, sleep)
    started = time.monotonic()
    scheduler.run()
    assert events == [False, "slept", True]
    assert time.monotonic() - started < 5


def test_an_error_in_one_process_frees_its_locks_and_is_raised_at_the_end() -> None:
    disk, _process, _ = machine()
    scheduler = Scheduler(disk, seed=0)
    first, second = Process(disk, "b"), Process(disk, "c")

    def fail() -> None:
        assert first.lock(first.open("/log", write=True), timeout=FOREVER)
        raise ValueError("on purpose")

    def work() -> None:
        fd = second.open("/log", write=True)
        assert second.lock(fd, timeout=FOREVER)
        second.close(fd)

    scheduler.spawn(first, fail)
    task = scheduler.spawn(second, work)
    with pytest.raises(ValueError, match="on purpose"):
        scheduler.run()
    assert task.ended
    assert task.error is None


def test_a_cut_under_the_scheduler_ends_everybody() -> None:
    disk, process, fd = machine()
    assert process.lock(fd)
    disk.plan(Cut(disk.steps + 4))
    scheduler = Scheduler(disk, seed=0)
    tasks = []
    for name in ("b", "c"):
        member = Process(disk, name)
        tasks.append(scheduler.spawn(member, partial(Toy(member).append, 1)))
    tasks.append(scheduler.spawn(process, partial(process.sleep, 5.0)))
    scheduler.run()
    assert [task.killed for task in tasks] == [True, True, True]


def test_single_process_steps_are_quick_enough_for_sweeps() -> None:
    _disk, process, fd = machine()
    data = b"x" * 164
    process.write(fd, bytes(4096), 0)
    words = process.map(process.open("/tails", create=True), 0).words
    assert len(words) == 0
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        for index in range(2000):
            process.write(fd, data, index & 1023)
            process.lock(fd)
            process.unlock(fd)
        process.sync_data(fd)
        best = max(best, 6001 / (time.perf_counter() - started))
    assert best > 50_000, f"{best:.0f} steps a second"
