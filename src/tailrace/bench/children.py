"""Child processes of a run, which end with it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

ANSWER_SECONDS_MAX = 60.0


class Child:
    """A module in a process of its own, which answers in lines of JSON."""

    def __init__(self, module: str, request: dict[str, Any], variables: dict[str, str] | None = None) -> None:
        # The child imports from the same paths as this process.
        path = os.pathsep.join(filter(None, (*sys.path, os.getcwd())))
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # An interrupt from the terminal goes to the parent only, which then ends its children.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, **(variables or {})},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.pipes = (self.process.stdin, self.process.stdout)
        self.output = self.process.stdout.fileno()
        self.unread = b""

    def answer(self, seconds_max: float = ANSWER_SECONDS_MAX) -> Any:
        """Return the next answer; raise RuntimeError if the child ended or did not answer in time."""
        deadline = monotonic() + seconds_max
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.output], [], [], max(0.0, deadline - monotonic()))
            data = os.read(self.output, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError(f"A child of the benchmark {'says nothing' if not ready else 'ended early'}.")
            self.unread += data
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)

    def send(self, data: bytes) -> None:
        """Write bytes to the child's stdin."""
        os.write(self.pipes[0].fileno(), data)

    def kill(self) -> None:
        """Kill the child, like a failure would."""
        os.kill(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in self.pipes:
            pipe.close()


@contextmanager
def started(module: str, request: dict[str, Any], variables: dict[str, str] | None = None) -> Iterator[Child]:
    """Run a child for the duration of the block."""
    child = Child(module, request, variables)
    try:
        yield child
    finally:
        child.end()


def request(*, reads_stdin: bool = False) -> dict[str, Any]:
    """Return the request, in a child. With `reads_stdin` the child reads it itself, and ends when it closes."""
    if not reads_stdin:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def _end_with_parent() -> None:
    """End the child when its stdin closes, which happens when the parent ends in any way."""
    os.read(0, 1)
    os._exit(0)


def say(answer: Any) -> None:
    """Answer the parent, in a child."""
    os.write(1, json.dumps(answer).encode() + b"\n")
