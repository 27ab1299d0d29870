"""Testing: a clock that can be set, disks that fail on demand, and processes that are killed at a named point.

`steered()` puts them under every log that is opened inside of it; the pytest plugin does so for one test. See
docs/testing.md.
"""

from __future__ import annotations

import errno as errors
import mmap
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.arguments import parse_count, parse_duration, parse_size, parse_time
from tailrace.engine import engine as engines
from tailrace.names import did_you_mean, readable
from tailrace.records import to_datetime
from tailrace.testing.child import Reporter, run_in_child
from tailrace.testing.files import FaultyFiles

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.types import Duration, Size

__all__ = ["POINTS", "Clock", "Ending", "Fault", "Faults", "Steering", "steered"]

# What is true when a process reaches the point; docs/testing.md says what another process finds after a kill there.
POINTS = {
    "create": "The file of a new segment is about to be made.",
    "created": "It is there, with nothing but its header in it.",
    "write": "Records are about to be written to their segment.",
    "written": "They are in the file; no reader sees them, and a power cut may take them.",
    "sync": "A segment with records is about to be synced.",
    "synced": "The records are on disk; no reader sees them yet.",
    "published": "Every process sees the records; the one that appended them was not told yet.",
    "seal": "A full or old segment is about to get its footer.",
    "sealed": "The footer is on disk; the next segment is not there yet.",
    "journal-write": "The entry of a commit over several partitions is about to be written to the journal.",
    "journal-written": "It is in the journal's file; a power cut may take it.",
    "journal-sync": "The journal is about to be synced.",
    "journal-synced": "The commit is on disk, whole: from here on it happens, whichever process has to finish it.",
    "staged-write": "A part of 1 MiB or more of such a commit is about to be written to a file of its own.",
    "staged-written": "It is in that file.",
    "staged-sync": "That file is about to be synced.",
    "staged-synced": "It is on disk; nothing names it yet.",
    "rename": "The commit is on disk, and that file is about to become a segment.",
    "renamed": "It is a segment; no reader sees its records yet.",
    "catalog-write": "The making, change, trimming or drop of a topic is about to be written to the catalog.",
    "catalog-written": "It is in the catalog's file; no process sees it, and a power cut may take it.",
    "catalog-sync": "The catalog is about to be synced.",
    "catalog-synced": "The change is on disk; no process sees it yet.",
    "catalog-published": "Every process sees the change.",
    "remove": "A segment is about to be removed; the catalog says so already.",
    "removed": "Its file is gone.",
}
_WRITES = frozenset({"write", "journal-write", "staged-write"})
_SYNCS = frozenset({"sync", "journal-sync", "staged-sync"})
_FALLIBLE = _WRITES | _SYNCS | {"create", "seal", "rename", "remove", "catalog-write", "catalog-sync"}
_OF_NO_TOPIC = ("journal-", "catalog-")
_RUNNING = -(1 << 63)


class Clock:
    """The time of day as logs see it: timestamps, ages, lag. Timeouts and waits use real time.

    It runs with the real clock until it is moved. Forked children share it, so moving it moves it for them too.
    """

    def __init__(self) -> None:
        # The difference to the real clock, and the time at which the clock is frozen.
        self._words = memoryview(mmap.mmap(-1, 16)).cast("q")
        self._words[1] = _RUNNING

    def __repr__(self) -> str:
        return f"<Clock {self.now.isoformat()}{' frozen' if self.frozen else ''}>"

    @property
    def now(self) -> datetime:
        """The time of the clock, in UTC."""
        return to_datetime(self.now_us)

    @property
    def now_us(self) -> int:
        """The same in microseconds since 1970."""
        stands = self._words[1]
        return stands if stands != _RUNNING else time.time_ns() // 1_000 + self._words[0]

    @property
    def frozen(self) -> bool:
        """Whether it is frozen."""
        return self._words[1] != _RUNNING

    def set(self, time: datetime | str | int) -> None:
        """Move it to a time; "-10m" is relative to its current time. It runs on from there unless it is frozen."""
        self._move(parse_time(time, now_us=self.now_us))

    def advance(self, duration: Duration) -> None:
        """Move it forward."""
        self._move(self.now_us + round(parse_duration(duration) * 1e6))

    def freeze(self, time: datetime | str | int | None = None) -> None:
        """Stop the clock, now or at a given time, until it is set, advanced or unfrozen."""
        now = self.now_us
        self._words[1] = now if time is None else parse_time(time, now_us=now)

    def unfreeze(self) -> None:
        """Let it run on from its current time."""
        now, self._words[1] = self.now_us, _RUNNING
        self._move(now)

    def _move(self, now_us: int) -> None:
        if self.frozen:
            self._words[1] = now_us
        else:
            self._words[0] = now_us - time.time_ns() // 1_000


class Fault:
    """A planned failure; `fired` is whether it happened, so that a test can check it."""

    def __init__(self, points: frozenset[str], n: int, errno: int, topic: str | None) -> None:
        self.points = points
        self.errno = errno
        self.fired = False
        self._left = n
        self._directory = None if topic is None else readable(topic)

    def __repr__(self) -> str:
        name = errors.errorcode.get(self.errno, self.errno)
        where = f"at {', '.join(sorted(self.points))}" if self.points else "on a full disk"
        return f"<Fault {name} {where}{' fired' if self.fired else ''}>"

    def reached(self, point: str, directory: str) -> bool:
        """Return whether this operation is the one that fails, and count it if it matches."""
        wanted = self._directory is None or directory[9:] == self._directory
        if self.fired or point not in self.points or not wanted:
            return False
        self._left -= 1
        self.fired = self._left == 0
        return self.fired


class Ending(NamedTuple):
    """How a child process ended: whether it was killed at the point, the points it passed, its error."""

    killed: bool
    passed: dict[str, int]
    error: str | None


class Faults:
    """Failures of the disk, planned by a test, and processes that are killed at a point of `POINTS`.

    A forked child has a copy and counts for itself from the fork on.
    """

    def __init__(self) -> None:
        # Guards all fields below: the flusher and producers write in threads of their own.
        self._guard = threading.Lock()
        self._planned: list[Fault] = []
        self._passed = dict.fromkeys(POINTS, 0)
        self._full: Fault | None = None
        self._room = 0
        self._death: tuple[Fault, Reporter] | None = None
        _known.add(self)

    # Counts.

    @property
    def passed(self) -> dict[str, int]:
        """How often each point was passed so far; points never passed are omitted."""
        return {point: count for point, count in self._passed.items() if count}

    @property
    def writes(self) -> int:
        """Number of writes so far, as `fail_write` counts them."""
        return sum(self._passed[point] for point in _WRITES)

    @property
    def syncs(self) -> int:
        """Number of syncs so far, as `fail_sync` counts them."""
        return sum(self._passed[point] for point in _SYNCS)

    @property
    def fired(self) -> list[Fault]:
        """The planned failures that happened."""
        return [fault for fault in self._planned if fault.fired]

    @property
    def room(self) -> int | None:
        """How many bytes the disk still takes; None if it was not filled."""
        return None if self._full is None else self._room

    # Plans.

    def fail_write(self, n: int = 1, errno: int = errors.EIO, *, topic: str | None = None) -> Fault:
        """Make the n-th write from now fail: of records to a segment, or of a commit's entry to the journal."""
        return self._plan(_WRITES, n, errno, topic)

    def fail_sync(self, n: int = 1, errno: int = errors.EIO, *, topic: str | None = None) -> Fault:
        """Make the n-th sync from now fail: of a segment with records, or of the journal."""
        return self._plan(_SYNCS, n, errno, topic)

    def fail(self, point: str, n: int = 1, errno: int = errors.EIO, *, topic: str | None = None) -> Fault:
        """Make the n-th operation of one kind fail, named by the point before it."""
        _check_point(point, topic)
        if point not in _FALLIBLE:
            known = ", ".join(each for each in POINTS if each in _FALLIBLE)
            raise ValueError(f"Nothing can fail at {point!r}: write one of {known}.")
        return self._plan(frozenset({point}), n, errno, topic)

    def _plan(self, points: frozenset[str], n: int, errno: int, topic: str | None) -> Fault:
        fault = Fault(points, parse_count(n, "n", minimum=1), parse_count(errno, "errno", minimum=1), topic)
        with self._guard:
            self._planned.append(fault)
        return fault

    def fill_disk(self, after: Size = 0) -> Fault:
        """Make the disk full, at once or after `after` bytes, until `free_disk`."""
        room = parse_size(after, "after")
        fault = Fault(frozenset(), 1, errors.ENOSPC, None)
        with self._guard:
            self._planned.append(fault)
            self._full, self._room = fault, room
        return fault

    def free_disk(self) -> None:
        """Give the disk room again."""
        with self._guard:
            self._full = None

    def clear(self) -> None:
        """Remove planned failures that did not happen, and free the disk."""
        with self._guard:
            self._planned = self.fired
            self._full = None

    # Children.

    def kill(
        self,
        function: Callable[..., object],
        *args: Any,
        at: str,
        n: int = 1,
        topic: str | None = None,
        timeout: Duration = 30.0,
        check: bool = True,
    ) -> Ending:
        """Call a function in a child process that is killed with SIGKILL when it reaches a point for the n-th time.

        Raise AssertionError if it ends without reaching the point, unless `check` is False; TimeoutError if it does
        neither.
        """
        __tracebackhide__ = True  # pytest then shows the caller's line
        _check_point(at, topic)
        death = Fault(frozenset({at}), parse_count(n, "n", minimum=1), errors.EIO, topic)
        seconds = parse_duration(timeout, "timeout")

        def work(reporter: Reporter) -> dict[str, Any]:
            self._passed = dict.fromkeys(POINTS, 0)
            self._death = death, reporter
            error = None
            try:
                function(*args)
            except BaseException:  # noqa: BLE001  # the parent gets every error
                error = traceback.format_exc()
            return {"passed": self.passed, "error": error}

        report = run_in_child(work, seconds)
        if report is None:
            raise TimeoutError(f"After {seconds:g} s the child had neither reached {at!r} nor ended; it was killed.")
        ending = Ending(report.get("killed", False), report.get("passed", {}), report.get("error"))
        if "died" in report:
            ending = ending._replace(error=f"The child ended by itself with exit code {report['died']}.")
        if check and not ending.killed:
            raise AssertionError(_unreached(ending, at, n))
        return ending

    # Called by the file layer.

    def reach(self, point: str, directory: str = "") -> None:
        """Count a point that was reached; raise the error planned for it, or kill the process."""
        with self._guard:
            self._passed[point] += 1
            if self._death is not None and self._death[0].reached(point, directory):
                self._death[1].die(killed=True, passed=self.passed)
            failed = [fault for fault in self._planned if fault.reached(point, directory)]
        if failed:
            raise OSError(failed[0].errno, os.strerror(failed[0].errno))

    def take(self, count: int, *, whole: bool = False) -> int:
        """Return how many of `count` bytes the disk takes, and use them up; `whole` takes all of them or none."""
        with self._guard:
            if self._full is None or not count:
                return count
            taken = min(count, self._room)
            if taken < count:
                self._full.fired = True
                taken = 0 if whole else taken
            self._room -= taken
            return taken


def _check_point(point: str, topic: str | None) -> None:
    if point not in POINTS:
        suggestion = did_you_mean(str(point), POINTS)
        question = f"write one of {', '.join(POINTS)}" if suggestion is None else f"did you mean {suggestion!r}?"
        raise ValueError(f"{point!r} is not a point: {question}.".replace("?.", "?"))
    if topic is not None and point.startswith(_OF_NO_TOPIC):
        raise ValueError(f"{point!r} belongs to no single topic: leave topic= out.")


def _unreached(ending: Ending, at: str, n: int) -> str:
    times = "" if n == 1 else f" {n} times"
    passed = ", ".join(f"{point} {count}" for point, count in ending.passed.items()) or "none"
    said = f"The child ended without reaching {at!r}{times}; the points it passed: {passed}."
    return said if ending.error is None else f"{said}\n{ending.error}"


class Steering(NamedTuple):
    """The clock and the faults of the logs that are opened inside of `steered()`."""

    clock: Clock
    faults: Faults


@contextmanager
def steered() -> Iterator[Steering]:
    """Put a clock and faults under every log that this process opens in the block; plans are removed after it."""
    steering = Steering(Clock(), Faults())
    before, engines.FILES = engines.FILES, FaultyFiles(*steering)
    try:
        yield steering
    finally:
        engines.FILES = before
        steering.faults.clear()


_known: weakref.WeakSet[Faults] = weakref.WeakSet()


def _renew_guards() -> None:
    """Replace the locks in a forked child: another thread of the parent may have held one."""
    for faults in list(_known):
        faults._guard = threading.Lock()


os.register_at_fork(after_in_child=_renew_guards)
