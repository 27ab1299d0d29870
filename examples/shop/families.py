"""Process trees: the processes that a process started, directly or not, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from time import monotonic, sleep

END_SECONDS_MAX = 30.0
POLL_SECONDS = 0.02


def below(pid: int) -> list[int]:
    """Return every process that a process started, directly or not; parents before their children."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    todo = [pid]
    while todo:
        own = children.get(todo.pop(0), [])
        found += own
        todo += own
    return found


def kill(process: subprocess.Popen[bytes]) -> int:
    """Kill a process and everything that it started, wait for their end, and return how many there were."""
    # Listed first: a child whose parent is dead cannot be told from others.
    family = below(process.pid) if process.poll() is None else []
    process.kill()
    for pid in family:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            # It ended with the one before.
            pass
    process.wait(END_SECONDS_MAX)
    wait_for_end(family)
    return len(family) + 1


def wait_for_end(pids: Sequence[int], seconds_max: float = END_SECONDS_MAX) -> bool:
    """Wait until all of these processes have ended, and return whether they did."""
    deadline = monotonic() + seconds_max
    while alive(pids):
        if monotonic() > deadline:
            return False
        sleep(POLL_SECONDS)
    return True


def alive(pids: Sequence[int]) -> list[int]:
    """Return those of some processes that still run; zombies do not count."""
    if not pids:
        return []
    command = ["ps", "-o", "pid=,stat=", "-p", ",".join(map(str, pids))]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    states = dict(line.split() for line in listed.splitlines())
    return [int(pid) for pid, state in states.items() if not state.startswith("Z")]
