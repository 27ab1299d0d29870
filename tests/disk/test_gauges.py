"""The stats file counts exactly, over processes that close, that are killed, that sleep and that fork."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import timeit
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.disk import gauges
from tailrace.disk.files import BOOT_ID_VARIABLE, Files
from tailrace.disk.gauges import Gauges, Histogram, Totals, bucket_bounds, collect
from tests.rigs.sim import Disk, Fail, Full, Kill, Killed, Process

WRITER = """
import sys
from tailrace.disk.files import Files
from tailrace.disk.gauges import Gauges
files = Files()
own = Gauges.open(files, sys.argv[1], now_us=files.now_us())
for line in sys.stdin:
    if line == "beat\\n":
        own._beaten_us = 0
        own.beat()
    elif line == "close\\n":
        own.close()
    else:
        for _ in range(int(line)):
            own.appended(2, 10, 0.001)
            own.synced(0.004)
    print("done", flush=True)
"""


class Clock(Files):
    """The real files under a clock that the test moves."""

    __slots__ = ("time_us",)

    def __init__(self) -> None:
        self.time_us = 1_700_000_000_000_000

    def now_us(self) -> int:
        return self.time_us

    def pass_seconds(self, seconds: float) -> None:
        self.time_us += int(seconds * 1_000_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "stats")


def opened(files: Files, path: str, **options: int) -> Gauges:
    return Gauges.open(files, path, now_us=files.now_us(), **options)


def pages(path: str) -> int:
    return (os.stat(path).st_size - gauges.HEADER_BYTES) // gauges.PAGE_BYTES


def histogram_of(durations: list[float], path: str) -> Histogram:
    files = Files()
    own = opened(files, path)
    for seconds in durations:
        own.appended(1, 1, seconds)
    own.close()
    return collect(files, path).append_histogram


def test_without_a_file_everything_is_zero_and_nothing_is_made(path):
    assert collect(Files(), path) == Totals()
    assert not os.path.exists(path)


def test_every_counter_arrives(clock, path):
    own = opened(clock, path)
    own.appended(3, 300, 0.000010)
    own.appended(4, 400, 0.000020)
    own.synced(0.005)
    own.read_out(5, 500)
    own.failed()
    assert collect(clock, path).appended_records == 0, "nothing is shown before the beat"
    clock.pass_seconds(1)
    own.beat()
    totals = collect(clock, path)
    assert totals[:8] == (1, 7, 700, 2, 1, 1, 5, 500)
    assert totals.append_histogram.maximum == 20
    assert totals.sync_histogram.maximum == 5000
    own.close()
    assert collect(clock, path)[:8] == (0, 7, 700, 2, 1, 1, 5, 500)


def test_beats_closer_than_a_second_are_one(clock, path):
    own = opened(clock, path)
    own.failed()
    own.beat()
    assert collect(clock, path).failures == 0
    clock.pass_seconds(1)
    own.beat()
    assert collect(clock, path).failures == 1


class Writer:
    """A real process that counts as it is told."""

    def __init__(self, path: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, *lines: str) -> None:
        for line in lines:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "done\n"

    def end(self, number: int | None = None) -> None:
        if number is not None:
            self.process.send_signal(number)
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def test_three_processes_one_of_them_killed(path):
    writers = [Writer(path) for _ in range(3)]
    first, second, third = writers
    try:
        for writer in writers:
            writer.tell("0")  # Open: a beat beside an opening process finds the file locked, and waits for the next.
        first.tell("100", "beat")
        second.tell("200", "beat", "5000")
        third.tell("300", "beat", "30")
        totals = collect(Files(), path)
        assert totals[:5] == (3, 1200, 6000, 600, 600)
        second.end(signal.SIGKILL)
        first.tell("1", "close")
        third.tell("close")
        totals = collect(Files(), path)
        assert totals[1:5] == (1262, 6310, 631, 631), "the killed one counts as far as it had beaten"
        assert totals.append_histogram.samples == totals.sync_histogram.samples == 631
        assert totals.append_histogram.maximum == 1000
        assert pages(path) == 3
        # The pages of those that closed are free at once, and are counted on from.
        with_room = Writer(path)
        writers.append(with_room)
        with_room.tell("10", "close")
        assert collect(Files(), path).appended_records == 1282
        assert pages(path) == 3
    finally:
        for writer in writers:
            if writer.process.returncode is None:
                writer.end()


def test_threads_lose_no_count(clock, path):
    own = opened(clock, path)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [own.appended(1, 3, 0.0001) for _ in range(20_000)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            clock.pass_seconds(1)
            own.beat()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    own.close()
    assert collect(clock, path)[1:4] == (80_000, 240_000, 80_000)


def test_a_silent_page_is_taken_over_with_its_totals(clock, path):
    sleeper = opened(clock, path)
    sleeper.appended(5, 50, 0.001)
    clock.pass_seconds(1)
    sleeper.beat()
    clock.pass_seconds(59)
    young = opened(clock, path)
    assert pages(path) == 2, "59 seconds of silence are not enough"
    sleeper.appended(7, 70, 0.001)
    clock.pass_seconds(2)
    heir = opened(clock, path)
    assert pages(path) == 2
    assert collect(clock, path).appended_records == 5
    heir.appended(100, 1000, 0.001)
    clock.pass_seconds(1)
    heir.beat()
    assert collect(clock, path).appended_records == 105
    sleeper.beat()
    assert pages(path) == 3, "who wakes up without a page takes another"
    for own in (sleeper, young, heir):
        own.appended(1, 1, 0.001)
        own.close()
    totals = collect(clock, path)
    assert totals[:4] == (0, 115, 1123, 6)


def test_a_killed_process_stops_to_count_as_living_before_its_page_is_free(clock, path):
    own = opened(clock, path)
    clock.pass_seconds(9)
    assert collect(clock, path).processes == 1
    clock.pass_seconds(2)
    assert collect(clock, path).processes == 0
    own.close()


def test_a_clock_set_back_frees_pages_too(clock, path):
    opened(clock, path)
    clock.pass_seconds(-3600)
    opened(clock, path)
    assert pages(path) == 1
    assert collect(clock, path).processes == 1


def test_a_fork_counts_for_itself(path):
    files = Files()
    own = opened(files, path)
    own.appended(1000, 0, 0.001)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own.forget()
            own.appended(20, 0, 0.001)
            own.beat()
            own.appended(3, 0, 0.001)
            own.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert collect(files, path)[:2] == (1, 23), "the parent keeps its page and what it has counted"
    assert pages(path) == 2
    own.close()
    assert collect(files, path)[:2] == (0, 1023)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"TRSTATS1",
        b"TRSTATS2" + bytes(8_184),
        bytes(100_000),
        b"\xff" * 8192,
    ],
)
def test_a_damaged_file_is_replaced(clock, path, damage):
    with open(path, "wb") as file:
        file.write(damage)
    with open(f"{path}.new", "wb") as file:
        file.write(b"\xff" * 50_000)
    assert collect(clock, path) == Totals()
    own = opened(clock, path)
    own.failed()
    own.close()
    assert collect(clock, path).failures == 1
    assert os.stat(path).st_size == gauges.HEADER_BYTES + gauges.PAGE_BYTES
    assert not os.path.exists(f"{path}.new")


@pytest.mark.parametrize("harm", ["cut", "cut to the header", "overwritten", "removed"])
def test_damage_under_a_living_process_does_not_stop_it(clock, path, harm):
    own = opened(clock, path)
    own.failed()
    clock.pass_seconds(1)
    own.beat()
    if harm == "removed":
        os.unlink(path)
    elif harm == "overwritten":
        with open(path, "r+b") as file:
            file.write(b"\xff" * os.stat(path).st_size)
    else:
        os.truncate(path, gauges.HEADER_BYTES if harm == "cut to the header" else 0)
    own.appended(1, 1, 0.001)
    clock.pass_seconds(1)
    own.beat()
    totals = collect(clock, path)
    assert (totals.processes, totals.appended_records, totals.failures) == (1, 1, 0)


def test_a_file_full_of_ones_behind_a_good_header_is_added_to(clock, path):
    opened(clock, path).close()
    with open(path, "r+b") as file:
        file.seek(gauges.HEADER_BYTES)
        file.write(b"\xff" * (gauges.PAGE_BYTES + 100))
    own = opened(clock, path)
    own.appended(1, 1, 0.001)
    clock.pass_seconds(1)
    own.beat()
    assert collect(clock, path).processes == 1
    assert collect(clock, path).appended_records == 0, "a word that is full starts anew"


def test_numbers_of_another_boot_are_not_believed(clock, path, monkeypatch):
    own = opened(clock, path)
    own.failed()
    own.close()
    monkeypatch.setenv(BOOT_ID_VARIABLE, "another")
    assert collect(clock, path) == Totals()
    own = opened(clock, path)
    own.close()
    assert collect(clock, path) == Totals()
    assert pages(path) == 1


def test_pages_have_a_maximum(clock, path):
    first, second, third = (opened(clock, path, pages_max=2) for _ in range(3))
    assert pages(path) == 2
    third.appended(9, 9, 0.001)
    clock.pass_seconds(1)
    third.beat()
    assert collect(clock, path).appended_records == 0
    second.close()
    clock.pass_seconds(1)
    third.beat()
    assert collect(clock, path).appended_records == 9, "what was counted without a page is not lost"
    first.close()
    third.close()


def test_no_page_is_no_error(clock, tmp_path):
    own = opened(clock, str(tmp_path / "missing" / "stats"))
    own.failed()
    clock.pass_seconds(1)
    own.beat()
    (tmp_path / "missing").mkdir()
    clock.pass_seconds(1)
    own.beat()
    assert collect(clock, str(tmp_path / "missing" / "stats")).failures == 1


def test_rates_are_of_the_last_seconds(clock, path):
    own = opened(clock, path)
    other = opened(clock, path)
    for _ in range(40):
        own.appended(100, 1_000, 0.001)
        other.appended(1, 10, 0.001)
        clock.pass_seconds(1)
        own.beat()
        other.beat()
    totals = collect(clock, path)
    assert totals.records_per_second == pytest.approx(101)
    assert totals.bytes_per_second == pytest.approx(1_010)
    for _ in range(8):
        clock.pass_seconds(1)
        own.beat()
        other.beat()
    assert 40 < collect(clock, path).records_per_second < 60, "half of the window was idle"
    clock.pass_seconds(5)
    assert 10 < collect(clock, path).records_per_second < 40, "silence is no writing"
    clock.pass_seconds(20)
    assert collect(clock, path).records_per_second == 0


def test_rates_without_a_steady_beat(clock, path):
    own = opened(clock, path)
    own.appended(3_000, 0, 0.001)
    clock.pass_seconds(30)
    own.beat()
    assert collect(clock, path).records_per_second == pytest.approx(100)


def test_a_process_of_a_moment_shows_in_the_rates(clock, path):
    for _ in range(10):
        own = opened(clock, path)
        own.appended(10, 100, 0.001)
        clock.pass_seconds(0.5)
        own.close()
        clock.pass_seconds(0.5)
    assert pages(path) == 1
    assert 8 < collect(clock, path).records_per_second < 20


def test_buckets_meet_and_grow():
    bounds = [bucket_bounds(index) for index in range(gauges.BUCKETS)]
    assert bounds[0][0] == 0
    assert all(upper == lower for (_, upper), (lower, _) in pairwise(bounds))
    assert all(high - low <= max(0.25, (low + 1) / 4) for low, high in bounds)


@given(seconds=st.floats(0, 1e9))
def test_a_duration_falls_into_its_bucket(tmp_path_factory, seconds):
    path = str(tmp_path_factory.mktemp("bucket") / "stats")
    found = histogram_of([seconds], path)
    low, high = bucket_bounds(found.counts.index(1))
    if seconds * 1e6 < bucket_bounds(gauges.BUCKETS - 1)[1]:
        assert low <= seconds * 1e6 * (1 + 1e-12)
        assert seconds * 1e6 < high * (1 + 1e-12)
        assert found.maximum == pytest.approx(seconds * 1e6, abs=0.26)
    else:
        assert found.counts[-1] == 1


def test_a_negative_duration_is_none(path):
    assert histogram_of([-1.0, 0.0], path).counts[0] == 2


@pytest.mark.parametrize("shape", ["fast", "disk", "spread", "one"])
def test_percentiles_are_near_the_truth(path, rng, shape):
    draw = {
        "fast": lambda: rng.uniform(0, 20e-6),
        "disk": lambda: rng.lognormvariate(-6, 1),
        "spread": lambda: 10 ** rng.uniform(-7, 3),
        "one": lambda: 0.0037,
    }[shape]
    durations = sorted(draw() for _ in range(5_000))
    found = histogram_of(durations, path)
    assert found.maximum == pytest.approx(durations[-1] * 1e6, abs=0.26)
    for q in (0, 0.1, 1, 10, 50, 90, 99, 99.9, 100):
        truth = durations[max(0, math.ceil(len(durations) * q / 100) - 1)] * 1e6
        low, high = next(bounds for bounds in map(bucket_bounds, range(gauges.BUCKETS)) if bounds[1] > truth)
        assert low <= found.percentile(q) <= min(high, found.maximum)
        assert abs(found.percentile(q) - truth) <= max(0.25, (truth + 1) / 4)


def test_percentiles_of_nothing_and_of_nonsense():
    assert Histogram().percentile(99) == 0
    for q in (-1, 101, math.nan):
        with pytest.raises(ValueError):
            Histogram().percentile(q)


@pytest.mark.parametrize("before", [0, 100])
def test_a_kill_at_any_operation_loses_nothing_that_was_shown(before):
    """Two simulated processes share a page in turn; the second is killed at each of its operations, and a third, after
    a minute, counts on. Of the killed one all, some or none of its last counts may have arrived, and nothing else."""
    kills = 0
    for at in range(1, 1_000):
        disk = Disk(seed=at)
        first, second, third = (Process(disk, name) for name in ("first", "second", "third"))
        if before:
            own = opened(first, "/stats")
            own.appended(before, 100, 0.001)
            own.close()
        disk.plan(Kill(at=at, process="second"))
        try:
            own = opened(second, "/stats")
            own.appended(10, 10, 0.001)
            disk.clock_us += 2_000_000
            own.beat()
            own.close()
        except Killed:
            kills += 1
        shown = collect(third, "/stats")
        assert shown.appended_records in (before, before + 10)
        disk.clock_us += 61_000_000
        own = opened(third, "/stats")
        own.appended(1, 1, 0.001)
        own.close()
        assert collect(third, "/stats").appended_records == shown.appended_records + 1
        assert len(disk.files()["/stats"]) == gauges.HEADER_BYTES + gauges.PAGE_BYTES
        if kills < at:
            break
    assert 20 < kills < 999


@pytest.mark.parametrize("kind", [Full, Fail])
def test_a_failure_of_any_operation_is_not_the_callers(kind):
    """Each operation of a life fails in turn, or the disk is full from it on; later beats show every count."""
    fired = 0
    at, steps = 0, 1
    while at < steps:
        at += 1
        disk = Disk(seed=at)
        process = Process(disk)
        fault = kind(at=at)
        disk.plan(fault)
        own = opened(process, "/stats")
        own.appended(10, 10, 0.001)
        disk.clock_us += 2_000_000
        own.beat()
        steps = max(steps, disk.steps)
        disk.free = None
        disk.plan()
        disk.clock_us += 2_000_000
        own.beat()
        own.close()
        assert collect(process, "/stats").appended_records == 10
        fired += fault.fired
    assert fired > 8


def test_cost_of_counting_is_printed(path, capsys):
    files = Files()
    own = opened(files, path)
    rounds = 20_000
    seconds = min(timeit.repeat(lambda: own.appended(1, 100, 0.00123), number=rounds, repeat=5)) / rounds
    own.close()
    with capsys.disabled():
        print(f"\nGauges.appended: {seconds * 1e6:.2f} us a call")
    assert collect(files, path).appends == 5 * rounds
