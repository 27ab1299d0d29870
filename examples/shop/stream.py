"""The stream from the outside: its driver is started, killed in the middle of a batch, started again and finished."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, NamedTuple

from examples.shop import families, sessions
from examples.shop.crew import ROOT
from examples.shop.day import MORNING, SECOND, shown
from examples.shop.diary import Batch, DiaryReader
from examples.shop.driver import FINISH

import tailrace
from tailrace import bulk

# The driver is killed after this many batches, or in the first batch that runs after the writers ended.
BATCHES_MIN = 2
POLL_SECONDS = 0.02
# A cold start of Java on a busy machine takes this long.
PATIENCE_SECONDS = 300.0


class StreamError(RuntimeError):
    """The driver failed."""


class Killed(NamedTuple):
    """The end of the first life of the driver."""

    # In seconds since 1970.
    time: float
    # How many processes died with it, Java's included.
    processes: int
    # The first batch that is not done, whether it was begun, and whether its sessions were in the topic already.
    batch: int
    begun: bool
    written: bool


class Streamed(NamedTuple):
    """What the stream did."""

    # When the shop opened, by the clock of the batches and of the kill.
    opened: float
    killed: Killed
    batches: list[Batch]
    comparison: sessions.Comparison

    def life(self, number: int) -> list[Batch]:
        """Return the batches of one life of the driver."""
        return [batch for batch in self.batches if batch.life == number]

    @property
    def late(self) -> int:
        return sum(batch.late for batch in self.batches)

    @property
    def back_seconds(self) -> float:
        """Return the time from the kill to the end of the first batch after it."""
        return self.life(2)[0].ended - self.killed.time if self.life(2) else 0.0

    def faults(self) -> dict[str, object]:
        """Return every promise about sessions, with whether it was broken."""
        compared, killed = self.comparison, self.killed
        first = self.life(2)[0].number if self.life(2) else None
        return {
            "Spark found no session": not compared.found,
            f"{compared.lost:,} sessions are lost": compared.lost,
            f"{compared.doubled:,} sessions are doubled": compared.doubled,
            f"{compared.wrong:,} sessions are wrong": compared.wrong,
            f"{compared.clicks_found:,} of {compared.clicks:,} clicks are in sessions": (
                compared.clicks_found != compared.clicks
            ),
            f"{self.late:,} clicks came later than Spark was told to wait; the machine has stalled": self.late,
            f"Spark continued with batch {first} after the kill, not with {killed.batch}": first != killed.batch,
        }


class Stream:
    """The driver in each of its lives."""

    def __init__(self, log_path: Path, directory: Path) -> None:
        self.log_path = log_path
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.noise = directory / "driver.log"
        self.diary = DiaryReader(directory / "diary.jsonl")
        self.killed: Killed | None = None
        self._life = 0
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        # With a short name, because the name of a socket has a limit, and removed at the end.
        self._scratch = tempfile.mkdtemp(prefix="tailrace-demo-")

    def start(self) -> None:
        """Start the driver, without waiting for Java."""
        self._life += 1
        arguments = (self.log_path, self.directory, self._scratch, self._life)
        command = [sys.executable, "-W", "ignore", "-m", "examples.shop.driver", *map(str, arguments)]
        environment = {**os.environ, "TMPDIR": self._scratch}
        with self.noise.open("ab") as noise:
            # In a group of its own Ctrl-C does not reach it: the parent decides what that means.
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=noise, stderr=noise, process_group=0
            )

    def kill_when_due(self, log: tailrace.Log, *, at_once: bool = False) -> Killed | None:
        """Kill the driver with everything that it started, once, while a batch runs; return the kill, if it was now."""
        self._look()
        if self.killed is not None or not (at_once or self._is_busy()) or not self._planned() - self._done():
            return None
        process = self._running()
        moment = time()
        processes = families.kill(process)
        if process.returncode != -signal.SIGKILL:
            raise self._error(f"ended with code {process.returncode} before it could be killed")
        _pipe(process).close()
        self.diary.read_on()
        # The next life starts from the current checkpoint.
        batch = max(self._done(), default=-1) + 1
        self.killed = Killed(moment, processes, batch, batch in self._planned(), self._applied(log) >= batch)
        self.start()
        return self.killed

    def close_shop(self, log: tailrace.Log, opened: float) -> None:
        """Append the last click, a day later: no session lasts until then, so this one completes all of them."""
        later = MORNING + (time() - opened) * SECOND + timedelta(days=1)
        log.topic(sessions.SOURCE).append(json={"id": 0, "at": shown(later), "page": "closed"}, key="shop")

    def kill_at_once(self, log: tailrace.Log, tell: Callable[[], None]) -> None:
        """Kill the driver in the first batch that runs; the last click causes one, if all others are done."""
        deadline = monotonic() + PATIENCE_SECONDS
        while self.kill_when_due(log, at_once=True) is None:
            self._wait(deadline, tell)

    def finish(self, tell: Callable[[], None]) -> dict[str, Any]:
        """Let the driver make sessions of all clicks, and return its answers to the questions of the day."""
        deadline = monotonic() + PATIENCE_SECONDS
        _pipe(self._running()).write(FINISH)
        _pipe(self._running()).flush()
        while "answers" not in self.diary.entries:
            self._wait(deadline, tell)
        return dict(self.diary.entries["answers"])

    def state(self) -> str:
        """Return the current state as text."""
        if self.diary.entries.get("started") != self._life:
            return "Java starts"
        if not any(batch.life == self._life for batch in self.diary.batches):
            return "the first batch of this driver runs"
        sessions_total = sum(batch.sessions for batch in self.diary.batches)
        last = self.diary.batches[-1]
        return f"{last.number + 1:,} batches   {last.clicks_total:,} clicks   {sessions_total:,} sessions"

    def end(self) -> None:
        """Leave no process running, whatever happened."""
        if self._process is not None:
            families.kill(self._process)
            _pipe(self._process).close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _is_busy(self) -> bool:
        """Return whether the stream has found its pace, and sessions come out of it."""
        batches = self.diary.batches
        return len(batches) >= BATCHES_MIN and any(batch.sessions for batch in batches)

    def _wait(self, deadline: float, tell: Callable[[], None]) -> None:
        if monotonic() > deadline:
            raise self._error(f"did not finish in {PATIENCE_SECONDS:.0f} s")
        self._look()
        tell()
        sleep(POLL_SECONDS)

    def _look(self) -> None:
        """Read the diary, and raise if the driver ended by itself."""
        code = self._running().poll()
        self.diary.read_on()
        if code is not None:
            raise self._error(f"ended by itself with code {code}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the driver was not started")
        return self._process

    def _error(self, what: str) -> StreamError:
        return StreamError(f"the Spark driver {what}; what Spark said is in {self.noise}")

    def _planned(self) -> set[int]:
        return _numbers(self.checkpoint / "offsets")

    def _done(self) -> set[int]:
        return _numbers(self.checkpoint / "commits")

    def _applied(self, log: tailrace.Log) -> int:
        """Return the last batch that the log has applied."""
        query = json.loads((self.checkpoint / "metadata").read_bytes())["id"]
        last = bulk.applied(log, f"spark-stream:{query}")
        return -1 if last is None else last


def _numbers(directory: Path) -> set[int]:
    """Return the batches of which the checkpoint has a file."""
    try:
        return {int(name) for name in os.listdir(directory) if name.isdecimal()}
    except FileNotFoundError:
        return set()


def _pipe(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdin is not None
    return process.stdin
