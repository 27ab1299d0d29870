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
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).parents[1]
ANSWER_SECONDS_MAX = 60.0


class Child:
    """A module of this package in a process of its own, which says what it has to say in lines of JSON."""

    def __init__(self, module: str, request: dict[str, Any]) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            # An interrupt from the terminal is for the parent, which then ends its children.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
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
def started(module: str, request: dict[str, Any]) -> Iterator[Child]:
    """A child for the length of a block."""
    child = Child(module, request)
    try:
        yield child
    finally:
        child.end()


def request() -> dict[str, Any]:
    """In a child: what it was asked for."""
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
