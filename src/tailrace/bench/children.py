"""Children: other processes of a run, which end with it."""

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
    """A module in a process of its own, which says what it has to say in lines of JSON."""

    def __init__(self, module: str, request: dict[str, Any], variables: dict[str, str] | None = None) -> None:
        # It finds what this process finds, wherever that was started.
        path = os.pathsep.join(filter(None, (*sys.path, os.getcwd())))
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # An interrupt from the terminal is for the parent, which then ends its children.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, **(variables or {})},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.pipes = (self.process.stdin, self.process.stdout)
        self.output = self.process.stdout.fileno()
        self.unread = b""

    def answer(self) -> Any:
        """The next line; RuntimeError when the child ended or says nothing."""
        deadline = monotonic() + ANSWER_SECONDS_MAX
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.output], [], [], max(0.0, deadline - monotonic()))
            data = os.read(self.output, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError(f"A child of the benchmark {'says nothing' if not ready else 'ended early'}.")
            self.unread += data
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)

    def tell(self, data: bytes) -> None:
        """Bytes for the child's stdin."""
        os.write(self.pipes[0].fileno(), data)

    def kill(self) -> None:
        """Kill it as a failure would."""
        os.kill(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in self.pipes:
            pipe.close()


@contextmanager
def started(module: str, request: dict[str, Any], variables: dict[str, str] | None = None) -> Iterator[Child]:
    """A child for the length of a block."""
    child = Child(module, request, variables)
    try:
        yield child
    finally:
        child.end()


def request(*, told: bool = False) -> dict[str, Any]:
    """In a child: what it was asked for. One that is told more reads stdin itself, and ends with it."""
    if not told:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def _end_with_parent() -> None:
    """Nothing ever comes through this pipe but its end, which comes with the parent's, however that is."""
    os.read(0, 1)
    os._exit(0)


def say(answer: Any) -> None:
    """In a child: answer the parent."""
    os.write(1, json.dumps(answer).encode() + b"\n")
