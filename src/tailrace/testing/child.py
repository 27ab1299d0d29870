"""Child processes: run a function in a child that is killed at a named point, and return its report."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

# Added to the parent's timeout: ends a child whose parent died and so cannot end it.
ORPHAN_SECONDS = 5
_LENGTH_BYTES = 8


class Reporter:
    """The child's end of a pipe to its parent, for one report."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, **report: Any) -> None:
        """Send a report, whole."""
        data = json.dumps(report).encode()
        data = len(data).to_bytes(_LENGTH_BYTES, "little") + data
        while data:
            data = data[os.write(self._descriptor, data) :]

    def die(self, **report: Any) -> NoReturn:
        """Send a report and die like by kill -9: no handler, no finally, no flush."""
        self.send(**report)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("A process outlived its SIGKILL.")


def run_in_child(work: Callable[[Reporter], dict[str, Any]], timeout: float) -> dict[str, Any] | None:
    """Run `work` in a forked child and return its report, or None if it still ran after `timeout` seconds.

    The child is a copy, so `work` may be a closure and may use the handles of the parent. The child and everything that
    it started in its own process group are dead when this returns or raises. A child that died before it could report
    has the report {"died": exit code}.
    """
    for stream in (sys.stdout, sys.stderr):
        # Buffered output would be written by both processes.
        stream.flush()
    reading, writing = os.pipe()
    child = -1
    try:
        with warnings.catch_warnings():
            # From Python 3.12 on forking with threads warns; logs support forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _live(work, writing, timeout)
        os.close(writing)
        writing = -1
        report = _read_report(reading, time.monotonic() + timeout)
    finally:
        status = _end(child) if child > 0 else 0
        for descriptor in (reading, writing):
            if descriptor >= 0:
                os.close(descriptor)
    return {"died": status} if report == {} else report


def _live(work: Callable[[Reporter], dict[str, Any]], writing: int, timeout: float) -> NoReturn:
    """Run the child from start to exit, so that no exit handler and no test runner of the parent runs in it."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(min(int(timeout) + ORPHAN_SECONDS, 1 << 30))
        reporter = Reporter(writing)
        report = work(reporter)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        reporter.send(**report)
    finally:
        os._exit(0)


def _read_report(reading: int, deadline: float) -> dict[str, Any] | None:
    """Return the report of a child: empty if it died without one, None when time is up."""
    data = b""
    # select() cannot wait for descriptors above 1023.
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while len(data) < _LENGTH_BYTES or len(data) < _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1_000):
            return None
        chunk = os.read(reading, 65_536)
        if not chunk:
            return {}
        data += chunk
    report: dict[str, Any] = json.loads(data[_LENGTH_BYTES:])
    return report


def _end(child: int) -> int:
    """Kill a child and its group; until the child is waited for, its number cannot be reused for another group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # The group exists once the child has created it; on some systems a dead process has none.
            continue
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
