"""Ctrl-C in a write leaves a whole record or none, no lock, no descriptor, and a process that goes on.

First at every moment, one after another (see inject.py), then by real signals, thousands of them a second (storm.py).
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

import tailrace
from tailrace import settings
from tailrace.engine import engine as engines
from tailrace.errors import OffsetMismatchError
from tailrace.settings import Tuning
from tests.meaning import record_meaning
from tests.rigs.faults.flip import Hang
from tests.rigs.faults.inject import Injector
from tests.rigs.faults.storm import locks_held

ROOT = Path(__file__).parents[3]
MOMENTS_MAX = 5_000
HANG_SECONDS_MAX = 2.0

SLOW = pytest.mark.slow
Write = Callable[[tailrace.Log, list[str]], object]

# Places at which one descriptor is lost, through which no lock is held: one of a directory to sync, or one about to
# be closed.
UNAVOIDABLE = {
    "Files.sync_directory after open",
    "JournalFile.close",
    "Segment.close",
}


def append(log: tailrace.Log, values: list[str]) -> None:
    log.topic("one").append(values[0], durable=False)


def append_durably(log: tailrace.Log, values: list[str]) -> None:
    log.topic("one").append(values[0])


def extend(log: tailrace.Log, values: list[str]) -> None:
    log.topic("one").extend(values[:3])


def extend_over_partitions(log: tailrace.Log, values: list[str]) -> None:
    log.topic("two").extend(values[:4], keys=["a", "b", "c", "d"])


def transact(log: tailrace.Log, values: list[str]) -> None:
    with log.transaction() as transaction:
        transaction.append("one", values[0])
        transaction.extend("two", values[1:3], keys=["a", "b"])


def roll(log: tailrace.Log, values: list[str]) -> None:
    log.topic("small").append(values[0].ljust(2_500, "."))


def expect_another_offset(log: tailrace.Log, values: list[str]) -> None:
    """The lock is held when this is refused, so letting go of it can be interrupted as well."""
    try:
        log.topic("one").append(values[0], expect_offset=1_000_000)
    except OffsetMismatchError:
        return


def leave_a_dead_commit(log: tailrace.Log, values: list[str]) -> None:
    """A commit that dies between its commit point and its first segment write: whoever comes next rolls it forward."""
    assert not Injector(1, "Committer._apply").run(lambda: transact(log, [f"dead {value}" for value in values]))


def leave_nothing_open(log: tailrace.Log, values: list[str]) -> None:
    """An interrupt inside a write: its lock and its segment are closed, and the next write opens them again."""
    for topic, partition in (("one", 0), ("two", 0), ("two", 1)):
        assert not Injector(1, "Partition.write").run(lambda: log.topic(topic).append("dead", partition=partition))  # noqa: B023


def create(log: tailrace.Log, values: list[str]) -> None:
    log.topic(f"new.{values[0]}", partitions=2)


def trim(log: tailrace.Log, values: list[str]) -> None:
    log.topic("one").trim(log.topic("one").offsets()[0].latest)


def read(log: tailrace.Log, values: list[str]) -> None:
    list(log.topic("two").read(last=3))


class Bench:
    """A log that is interrupted again and again, and looked at after each time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.logs = 0
        self.renew()

    def renew(self) -> None:
        """A log of its own after something went wrong with the last one."""
        self.logs += 1
        self.log = tailrace.open(self.home / str(self.logs), timeout=0.5)
        self.log.topic("one", partitions=1)
        self.log.topic("two", partitions=2)
        self.log.topic("small", segment_bytes=4_096)
        self.go_on(0)
        self.recently_open = len(os.listdir("/proc/self/fd"))
        # Those of logs that were given up are of no interest any more.
        self.known = locks_held(os.getpid())

    def go_on(self, number: int) -> None:
        """Write in every way to every partition, as a process that survived would."""
        with in_time():
            for topic, partition in (("one", 0), ("two", 0), ("two", 1), ("small", 0)):
                for durable in (False, True):
                    self.log.topic(topic).append(f"on {number}", partition=partition, durable=durable)
            with self.log.transaction() as transaction:
                for partition in (0, 1):
                    transaction.append("two", f"on {number}", partition=partition)
            # Each dead commit is resolved into a journal file of its own: without this the next one looks at more.
            self.log.engine.store.checkpoint()

    def give_up(self) -> None:
        """Forget a log whose locks or queues may be stuck: closing it could wait for ever."""
        engine = self.log.engine
        engines._registry.remove(engine)
        engine.closed = True
        self.log.backend.live = None
        self.log.backend.closed = True

    def close(self) -> None:
        with in_time():
            self.log.close()

    def look(self, values: list[str], number: int, more: int = 0) -> str | None:
        """What is wrong after an interrupt, or after several in a row: the next write releases what these left."""
        try:
            if more:
                with in_time():
                    self.log.topic("small").append(f"next {number}", durable=False)
            if left := locks_held(os.getpid()) - self.known:
                return f"{len(left)} locks are left behind"
            self.go_on(number)
            found = [record.text for name in ("one", "two", "small") for record in self.log.topic(name).read(last=40)]
        except Hang:
            return "the next write hangs"
        except Exception as error:  # noqa: BLE001  # whatever it is, the process cannot go on
            return f"the next write fails: {type(error).__name__}: {error}"
        there = [sum(text.rstrip(".") == value for text in found) for value in values]
        if max(there) > 1:
            return "a record is doubled"
        total = sum(there)
        if total not in self.whole:
            return f"{total} records of one write are there"
        if self.descriptors_more():
            # Python keeps a traceback, and what the frames in it have open, in cycles; this process does not collect.
            gc.collect()
            if lost := self.descriptors_more():
                return f"{lost} descriptors are lost"
        return None

    def descriptors_more(self) -> int:
        """Return how many descriptors are open beyond those that the log had when it was new."""
        return max(0, len(os.listdir("/proc/self/fd")) - self.recently_open)

    whole: tuple[int, ...] = (0,)


@contextmanager
def in_time() -> Iterator[None]:
    """Raise Hang in the main thread when something takes far too long."""

    def handle(_number: int, _frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def memory_path(tmp_path) -> Iterator[Path]:
    """A directory in memory where there is one: hundreds of logs that wait for no disk."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else tmp_path, prefix="tailrace-"))
    yield path
    shutil.rmtree(path)


# Python reports an interrupt inside a finalizer and goes on; the alarm clock is taken, see in_time().
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(300, method="thread")
@pytest.mark.parametrize(
    ("write", "whole", "prepare"),
    [
        (append, 1, None),
        (append_durably, 1, None),
        (extend, 3, None),
        (roll, 1, None),
        (expect_another_offset, 0, None),
        pytest.param(append, 1, leave_nothing_open, id="append-after-an-interrupt"),
    ],
)
def test_interrupt_at_every_moment(memory_path, monkeypatch, write: Write, whole: int, prepare: Write | None):
    interrupt_at_moments(memory_path, monkeypatch, write, whole, prepare)


# The seed says at which of these moments the first interrupt comes; the long test has one at each.
STEP = 4


@SLOW
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(300, method="thread")
@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("write", "whole", "prepare"),
    [
        (extend_over_partitions, 4, None),
        (transact, 3, None),
        pytest.param(append, 1, leave_a_dead_commit, id="append-after-a-dead-commit"),
        pytest.param(transact, 3, leave_a_dead_commit, id="transact-after-a-dead-commit"),
        pytest.param(transact, 3, leave_nothing_open, id="transact-after-an-interrupt"),
        (create, 0, None),
        (trim, 0, None),
        (read, 0, None),
    ],
)
def test_interrupt_at_many_moments(memory_path, monkeypatch, seed, write, whole, prepare, step):
    interrupt_at_moments(memory_path, monkeypatch, write, whole, prepare, moments=count(1 + seed % step, step))


# Python reports an interrupt inside a finalizer and goes on; the alarm clock is taken, see in_time().
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(300, method="thread")
@pytest.mark.parametrize(
    ("write", "whole", "step"),
    [
        (roll, 1, 1),
        pytest.param(transact, 3, STEP, marks=SLOW),
        pytest.param(transact, 3, 1, marks=pytest.mark.long),
    ],
)
def test_three_interrupts_in_a_row(memory_path, monkeypatch, seed, write: Write, whole: int, step: int):
    """What they leave locked, the next write of this thread releases, and forgets what the first one had cached."""
    moments = count(1 + seed % step, step)
    interrupt_at_moments(memory_path, monkeypatch, write, whole, None, more=2, moments=moments)


def interrupt_at_moments(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Write,
    whole: int,
    prepare: Write | None,
    more: int = 0,
    moments: Iterable[int] | None = None,
) -> None:
    monkeypatch.setattr(settings, "TUNING", Tuning(background=False, journal_bytes=65_536))
    # An interrupt while a generator is closed by its finalizer is reported there. The hook of pytest would keep it,
    # with its traceback and the files that the frames in it have open.
    monkeypatch.setattr(sys, "unraisablehook", lambda _unraisable: None)
    bench = Bench(home)
    bench.whole = (0, whole)
    wrong: dict[str, list[str]] = {}
    tried = further = 0
    for number in moments or count(1):
        values = [f"v{number}.{at}" for at in range(4)]
        injector = Injector(number, more=more)
        try:
            with in_time():
                if prepare is not None:
                    prepare(bench.log, values)
                injector.run(lambda values=values: write(bench.log, values))
            if not injector.place:
                break
            tried += 1
            further += len(injector.next_places)
            problem = bench.look(values, number, more)
        except Hang:
            problem = "the interrupted write hangs"
        assert number < MOMENTS_MAX
        if problem == "1 descriptors are lost" and injector.place in UNAVOIDABLE:
            bench.give_up()
            bench.renew()
        elif problem is not None:
            wrong.setdefault(problem, []).append(" ".join([injector.place, *injector.next_places]))
            bench.give_up()
            bench.renew()
    bench.close()
    record_meaning(interrupts=tried + further)
    assert tried > 20, "too few moments to have been inside anything"
    assert further > 20 or not more, "too few further interrupts to have met the release of a lock"
    assert not wrong, {problem: (len(places), places[:6]) for problem, places in wrong.items()}


def storm(home: Path, seed: int, seconds: float, names: str) -> list[dict[str, object]]:
    done = subprocess.run(  # noqa: PLW1510  # the exit code is asserted with the output beside it
        [
            sys.executable, "-m", "tests.rigs.faults", "interrupts", "--minutes", str(seconds / 60),
            "--seed", str(seed), "--storms", names, "--directory", str(home),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((home / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "name",
    ["alone-once", "threads-once", "alone", "threads"],
)
def test_storm_of_interrupts(tmp_path, seed, name):
    (result,) = storm(tmp_path, seed, 2.0, name)
    assert result["raised"] > 100
    assert result["acknowledged"] > 100
    assert (result["lost"], result["doubled"]) == (0, 0)
    record_meaning(interrupts=result["raised"], acknowledged=result["acknowledged"], acknowledged_lost=0, doubled=0)
